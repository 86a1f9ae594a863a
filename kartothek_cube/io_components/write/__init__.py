"""Writes of datasets and cubes: plan, write files, commit."""
