"""Schemas of tables beside their making and storing: comparison, wrapping, which header they go with."""
