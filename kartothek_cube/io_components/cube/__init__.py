"""Operations on cubes."""
