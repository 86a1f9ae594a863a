"""Building blocks of the HTML representations."""
