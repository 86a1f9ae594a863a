"""Vectorised functions on columns: take, encode, sort, search."""
