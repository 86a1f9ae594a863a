"""Predicates: check, bind to column types, evaluate."""
