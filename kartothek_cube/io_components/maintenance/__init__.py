"""Garbage collection, deletion, copies, compaction, history and statistics."""
