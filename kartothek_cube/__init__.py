"""Datasets of Parquet files with a strict state, and cubes made of them.

Importing this package loads nothing else; the public names live in :mod:`kartothek_cube.api` and in the
façades below :mod:`kartothek_cube.io`.
"""

from __future__ import annotations

__all__ = ("__version__",)

__version__: str


def __getattr__(name: str) -> str:
    """Look up ``__version__`` on first use: reading the package's metadata takes time."""
    if name != "__version__":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("kartothek_cube")
    except PackageNotFoundError:  # a checkout that was never installed
        return "0+unknown"
