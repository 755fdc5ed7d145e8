"""A sequence whose items are made when they are asked for."""

from abc import abstractmethod
from collections.abc import Sequence
from typing import TypeVar, overload

_T = TypeVar("_T", covariant=True)


class MadeSequence(Sequence[_T]):
    """Items are made one at a time, or those of a slice together; none is kept."""

    @abstractmethod
    def one(self, number: int) -> _T:
        """The item of this number, from 0."""

    def some(self, numbers: range) -> list[_T]:
        """The items of these numbers."""
        return [self.one(number) for number in numbers]

    @overload
    def __getitem__(self, number: int) -> _T: ...
    @overload
    def __getitem__(self, number: slice) -> list[_T]: ...
    def __getitem__(self, number: int | slice) -> _T | list[_T]:
        if isinstance(number, slice):
            return self.some(range(*number.indices(len(self))))
        if not -len(self) <= number < len(self):
            raise IndexError(number)
        return self.one(number % len(self))
