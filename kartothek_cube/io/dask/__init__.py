"""Façades that build dask graphs; they need ``kartothek_cube[dask]``."""

from __future__ import annotations

from importlib.util import find_spec

if find_spec("dask") is None:
    raise ImportError("dask is not installed: pip install 'kartothek_cube[dask]'", name="dask")
