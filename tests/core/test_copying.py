import pytest

from kartothek_cube.core.arguments import CopyMixin


class Plain(CopyMixin):
    def __init__(self, x, y=1, *, load=False):
        if y == 0:
            raise ValueError("y")
        self.x = x
        self._y = y
        self.loaded_by_constructor = load

    @property
    def y(self):
        return self._y

    def load(self):
        """A method called like a parameter of the constructor."""


def test_copy_goes_through_the_constructor():
    original = Plain([1], y=2, load=True)
    copy = original.copy(x=3)
    assert type(copy) is Plain
    assert (copy.x, copy.y, copy.loaded_by_constructor) == (3, 2, False)
    assert original.x == [1]
    with pytest.raises(ValueError, match="y"):
        original.copy(y=0)

    class Sub(Plain):
        pass

    assert type(Sub(1).copy()) is Sub
    with pytest.raises(TypeError, match="z"):
        Plain(1).copy(z=1)
