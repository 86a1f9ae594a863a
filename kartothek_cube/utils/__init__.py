"""Helpers of kartothek's public ``utils`` modules."""
