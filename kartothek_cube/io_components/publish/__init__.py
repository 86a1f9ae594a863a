"""Publish datasets as tables of formats that other engines read."""
