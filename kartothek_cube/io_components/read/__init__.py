"""Reads of datasets."""
