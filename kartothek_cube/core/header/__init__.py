"""The header (metadata file) of a dataset: parsing, rendering, compression."""
