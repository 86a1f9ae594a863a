"""Threads, slices of work and progress."""
