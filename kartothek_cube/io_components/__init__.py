"""Operations on datasets and cubes: each is written once, as plan, run and finish."""
