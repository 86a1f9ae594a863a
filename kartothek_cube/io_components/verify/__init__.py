"""Verify that a dataset is what its header says, and repair what can be rebuilt."""
