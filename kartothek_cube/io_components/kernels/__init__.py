"""Vectorised kernels on key columns: encoding, sorting, searching, joining."""
