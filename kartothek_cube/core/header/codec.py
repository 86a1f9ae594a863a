"""The binary form of headers: msgpack within one zstd frame that states its size."""

from __future__ import annotations

from typing import Any

import msgpack
import zstandard

__all__ = ("packb", "unpackb")

# Headers shrink to a tenth or so. Whoever claims to have shrunk very much more is after our memory.
_ALWAYS_ALLOWED = 16 * 2**20
_MAX_RATIO = 200
_MAX_SIZE = 4 * 2**30


def packb(obj: object) -> bytes:
    """Turn an object into msgpack and compress it.

    Parameters
    ----------
    obj
        Dicts with keys of type str, lists, str, bytes, int, float, bool and None.

    Returns
    -------
    bytes
        One zstd frame with content size.

    Raises
    ------
    TypeError
        Something in the object has no form in msgpack.
    OverflowError
        An integer needs more than 64 bits.
    ValueError
        The result could not be read again: it is larger than :func:`unpackb` allows.

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
    """Reverse :func:`packb`, trusting nothing.

    Parameters
    ----------
    bts
        Exactly one zstd frame that states its content size, around exactly one msgpack object.

    Returns
    -------
    object
        Text as str, arrays as list.

    Raises
    ------
    ValueError
        The bytes are something else, truncated or followed by more; or the content is much larger than any
        honest header (over 16 MiB and 200 times the compressed size, or over 4 GiB). Then it is not
        decompressed.

    Examples
    --------
    >>> unpackb(packb([1, 2])[:-1])
    Traceback (most recent call last):
    ...
    ValueError: not a zstd frame: decompression error: did not decompress full frame
    """
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
