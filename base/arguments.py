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
    """The function, whose TypeErrors name the argument that is no number, as InputErrors."""

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> Result:
        try:
            return function(*args, **kwargs)
        except TypeError:
            # Only now, so that what works is neither looked at nor converted.
            given = inspect.signature(function).bind(*args, **kwargs).arguments
            hints = typing.get_type_hints(function)
            for name, value in given.items():
                kinds = {hints.get(name), *typing.get_args(hints.get(name))}
                if kinds & {int, float} and not (value is None and type(None) in kinds):
                    require_number(name, value, whole=float not in kinds)
            raise

    return call
