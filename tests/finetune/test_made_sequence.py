"""A sequence whose items are made when they are asked for is read as a list is."""

import pytest

from heldin.finetune.sampled_units import MadeSequence


class _Squares(MadeSequence[int]):
    def __len__(self) -> int:
        return 7

    def one(self, number: int) -> int:
        return number**2


def test_it_is_read_as_the_list_of_its_items():
    squares, listed = _Squares(), [0, 1, 4, 9, 16, 25, 36]
    assert list(squares) == listed
    assert [squares[i] for i in range(-7, 7)] == [listed[i] for i in range(-7, 7)]
    for part in (slice(2, 5), slice(None, None, -1), slice(-3, None), slice(5, 2), slice(6, None, -2), slice(0, 99)):
        assert squares[part] == listed[part]
    assert squares.index(25) == 5


@pytest.mark.parametrize("number", [7, -8])
def test_beyond_its_ends_there_is_nothing(number):
    with pytest.raises(IndexError):
        _Squares()[number]
