"""What is done to datasets and cubes: each operation once, as plan, run and finish."""
