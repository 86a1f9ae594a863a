"""Threads, progress and task sizes."""
