"""Façades: each runs the jobs of ``io_components`` by an executor of its own."""
