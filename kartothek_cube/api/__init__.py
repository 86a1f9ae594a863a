"""What users import: the functions and classes of the library by topic."""
