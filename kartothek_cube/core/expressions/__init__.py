"""Predicates: validation, binding to column types, evaluation."""
