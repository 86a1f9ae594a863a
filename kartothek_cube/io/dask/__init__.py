"""Façades that build dask graphs; they need ``kartothek_cube[dask]``."""
