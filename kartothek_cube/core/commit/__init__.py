"""Changing a dataset: a change as data, its application to a state, its publication by compare-and-swap."""
