"""Table schemas: wrapper, comparison, schema files and their versions."""
