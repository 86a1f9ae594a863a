"""Arrow types, values and arrays; conversion from and to pandas."""
