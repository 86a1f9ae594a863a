"""Small helpers that have no home elsewhere."""
