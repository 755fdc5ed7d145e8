"""Numbers from a user, as arguments or as text. heldin refuses any other value with a one-line message."""

import functools
import inspect
import typing
from collections.abc import Callable
from numbers import Integral, Real
from typing import Any, ParamSpec, TypeVar

from heldin.base.errors import InputError
from heldin.base.section import LARGEST, MOST

P = ParamSpec("P")
Result = TypeVar("Result")


def require_number(name: str, value: object, *, whole: bool = False) -> None:
    """Raise InputError, naming the argument, unless the value is a number, or with ``whole`` a whole number."""
    if isinstance(value, bool) or not isinstance(value, Integral if whole else Real):
        raise InputError(f"{name} is {value!r}: give a {'whole ' if whole else ''}number")


def require_within(name: str, value: float) -> None:
    """Raise InputError, naming the argument, if the number is beyond ``MOST`` or ``LARGEST``."""
    most = MOST if isinstance(value, int) else LARGEST
    if value > most:
        raise InputError(f"{name} is above {most:,.12g}, the largest number that heldin accepts: lower {name}")
    if value < -most:
        raise InputError(f"{name} is below {-most:,.12g}, the smallest number that heldin accepts: raise {name}")


def number_in(text: str) -> float:
    """Return the number in a text, possibly infinite or "nan". Raises ValueError if the text is not a number."""
    # Python reads 1_5 as 15; a table in which it stands is damaged, or means something else by it.
    if "_" in text:
        raise ValueError(f"'{text}' is not a number")
    return float(text)


def whole_number_in(text: str) -> int:
    """Return the whole number in a text. Raises ValueError if the text is not a whole number, or is too large."""
    if "_" in text:
        raise ValueError(f"'{text}' is not a whole number")
    value = int(text)
    require_within("the number", value)
    return value


def numbers_named(function: Callable[P, Result]) -> Callable[P, Result]:
    """Wrap a function: convert other libraries' numbers to Python's own, and name a wrong argument in an InputError."""
    signature = inspect.signature(function)

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> Result:
        try:
            given = signature.bind(*args, **kwargs)
        except TypeError:
            return function(*args, **kwargs)  # says of which function an argument is missing or unknown
        for name, kinds in _asked_for(function).items():
            value: Any = given.arguments.get(name)
            # A word in place of a number, where the argument takes one.
            if name not in given.arguments or (value is None and type(None) in kinds):
                continue
            if isinstance(value, str) and any(value in typing.get_args(kind) for kind in kinds):
                continue
            require_number(name, value, whole=float not in kinds)
            require_within(name, value)
            given.arguments[name] = int(value) if isinstance(value, Integral) else float(value)
        return function(*given.args, **given.kwargs)

    return call


@functools.cache
def _asked_for(function: Callable[..., object]) -> dict[str, set[type]]:
    """Return a map from each argument that is a number to its types."""
    hints = typing.get_type_hints(function)
    kinds = {name: {hint, *typing.get_args(hint)} for name, hint in hints.items() if name != "return"}
    return {name: types for name, types in kinds.items() if types & {int, float}}
