"""Arguments of another type than was asked for, told in one line to people who write Python."""

import functools
import inspect
import typing
from collections.abc import Callable
from numbers import Integral, Real
from typing import ParamSpec, TypeVar

from heldin.base.errors import InputError

P = ParamSpec("P")
Result = TypeVar("Result")


def require_number(name: str, value: object, *, whole: bool = False) -> None:
    """Raise InputError, naming the argument, unless the value is a number, or a whole one."""
    if isinstance(value, bool) or not isinstance(value, Integral if whole else Real):
        raise InputError(f"{name} = {value!r}: a {'whole ' if whole else ''}number was expected")


def numbers_named(function: Callable[P, Result]) -> Callable[P, Result]:
    """The function with numbers of other libraries as Python's own, and InputErrors that name what is no number."""
    signature = inspect.signature(function)

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> Result:
        try:
            given = signature.bind(*args, **kwargs)
        except TypeError:
            return function(*args, **kwargs)  # says of which function an argument is missing or unknown
        for name, kinds in _asked_for(function).items():
            if name not in given.arguments or (given.arguments[name] is None and type(None) in kinds):
                continue
            value = given.arguments[name]
            require_number(name, value, whole=float not in kinds)
            given.arguments[name] = int(value) if isinstance(value, Integral) else float(value)
        return function(*given.args, **given.kwargs)

    return call


@functools.cache
def _asked_for(function: Callable[..., object]) -> dict[str, set[type]]:
    """The types of the arguments that are numbers."""
    hints = typing.get_type_hints(function)
    kinds = {name: {hint, *typing.get_args(hint)} for name, hint in hints.items() if name != "return"}
    return {name: its for name, its in kinds.items() if its & {int, float}}
