"""Binary form of headers: msgpack within one zstd frame that states its size."""

from __future__ import annotations

from typing import Any

import msgpack
import zstandard

__all__ = ("packb", "unpackb")

# Zip-bomb guard: refuse compression ratios far above those of headers (about 10).
_ALWAYS_ALLOWED = 16 * 2**20
_MAX_RATIO = 200
_MAX_SIZE = 4 * 2**30


def packb(obj: object) -> bytes:
    """Serialise an object to msgpack and compress it; raises ValueError if `unpackb` would refuse the result.

    Examples
    --------
    >>> unpackb(packb({"COUNTRY_CODE": "DE"}))
    {'COUNTRY_CODE': 'DE'}
    """
    content = msgpack.packb(obj, use_bin_type=True)
    compressed = zstandard.ZstdCompressor(write_content_size=True).compress(content)
    _check_size(len(content), len(compressed))
    return compressed


def unpackb(bts: bytes) -> Any:
    """Decompress and parse one object; untrusted input, ValueError for anything malformed or oversized."""
    try:
        size = zstandard.frame_content_size(bts)
        if size < 0:
            raise ValueError("the zstd frame does not state its content size")
        _check_size(size, len(bts))
        content = zstandard.ZstdDecompressor().decompress(bts, allow_extra_data=False)
    except zstandard.ZstdError as error:
        raise ValueError(f"not a zstd frame: {error}") from error
    try:
        return msgpack.unpackb(content, raw=False, strict_map_key=True)
    except ValueError as error:  # all errors of msgpack are
        raise ValueError(f"not one msgpack object: {str(error) or type(error).__name__}") from error


def _check_size(size: int, compressed_size: int) -> None:
    limit = min(_MAX_SIZE, max(_ALWAYS_ALLOWED, _MAX_RATIO * compressed_size))
    if size > limit:
        raise ValueError(f"{compressed_size} compressed bytes stand for {size}; {limit} are allowed")
