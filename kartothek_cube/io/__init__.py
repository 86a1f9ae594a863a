"""Façades: each runs the operations of ``io_components`` in its own way."""
