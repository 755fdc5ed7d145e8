"""What a refusal is, whatever its sentence: the type of the error, the check that raised it, and the data it names.

Data are what a message is about and no wording: a file, a line, a key, an option, a user, a number. So a sentence
can change without a test.
"""

import inspect
import re
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from types import CodeType

import pydantic
import pytest

from heldin.base.errors import InputError, ResumableError

_INNER = re.compile(r"(\.<locals>)?\.<(genexpr|listcomp|dictcomp|setcomp|lambda)>")
_REPORTING = ("BadRows.report",)
_BEFORE, _AFTER = r"(?<!\w)(?<!\d[.,])(?<!\de[-+])", r"(?!\w)(?![.,]\d)"


def lacks(text: str, *data: object) -> list[str]:
    """Return those data that a text does not name, each as a whole: ``1`` is named by ``row 1``, not by ``1.5``."""
    missing = []
    for item in map(str, data):
        before, after = _BEFORE if item[:1].isalnum() else "", _AFTER if item[-1:].isalnum() else ""
        if re.search(before + re.escape(item) + after, text) is None:
            missing.append(item)
    return missing


def names(text: str, *data: object) -> bool:
    """Return whether a text names all of these data; an AssertionError shows the text and what it lacks."""
    assert data
    missing = lacks(text, *data)
    assert not missing, f"{missing} not named in: {text}"
    return True


def _errors_behind(error: BaseException) -> Iterator[BaseException]:
    """Yield an error, those it was raised from, and those that a model of pydantic collected."""
    seen: list[BaseException] = []
    waiting: list[BaseException | None] = [error]
    while waiting:
        current = waiting.pop(0)
        if current is None or any(current is known for known in seen):
            continue
        seen.append(current)
        yield current
        waiting += [current.__cause__, current.__context__]
        if isinstance(current, pydantic.ValidationError):
            waiting += [fault.get("ctx", {}).get("error") for fault in current.errors()]


def raising_place(error: BaseException) -> tuple[CodeType, int] | None:
    """Return the innermost function of heldin that an error passed, with the line; None where it passed none.

    Functions in ``_REPORTING`` are passed over: they raise the error that their caller found.
    """
    innermost = None
    trace = error.__traceback__
    while trace is not None:
        code = trace.tb_frame.f_code
        product = trace.tb_frame.f_globals.get("__name__", "").partition(".")[0] in ("heldin", "replication")
        if product and code.co_qualname not in _REPORTING:
            innermost = code, trace.tb_lineno
        trace = trace.tb_next
    return innermost


def refusing_functions(error: BaseException) -> list[str]:
    """Return the qualified names of the functions that raised an error and the errors it was made from.

    A function within another has its name alone.
    """
    places = [place for each in _errors_behind(error) if (place := raising_place(each)) is not None]
    return [_INNER.sub("", code.co_qualname).rpartition("<locals>.")[2] for code, _ in places]


@contextmanager
def refused(
    by: Callable[..., object] | str | None = None,
    naming: object = (),
    kind: type[BaseException] = InputError,
) -> Generator[pytest.ExceptionInfo[BaseException], None, None]:
    """Check that a block ends with an error of this kind, raised by this function, that names these data.

    Its message is a line, or a line and the faults below it, one an indented line.

    ``by`` is the function, the class whose method it is, or its qualified name. It may be left out where the data
    alone make clear which check refused.
    """
    data = naming if isinstance(naming, tuple) else (naming,)
    assert by is not None or data, "a test of a refusal names the function that refuses, or the data"
    with pytest.raises(kind) as caught:
        yield caught
    message = str(caught.value)
    if isinstance(caught.value, InputError):
        _, *faults = message.split("\n")
        assert all(re.match(r" +\S", fault) for fault in faults), f"lines that are no list of faults: {message}"
    _check(message, refusing_functions(caught.value), by, data)


def _check(
    message: str, functions: list[str], by: Callable[..., object] | str | None, data: tuple[object, ...]
) -> None:
    """Check that one of the functions that refused is the wanted one, and that the message names the data."""
    if by is not None:
        wanted = by if isinstance(by, str) else inspect.unwrap(by).__qualname__
        if inspect.isclass(by):
            functions = [name.partition(".")[0] for name in functions]
        assert wanted in functions, f"refused by {functions}, not by {wanted}: {message}"
    assert not data or names(message, *data)


class Refusal:
    """The error that ended a command."""

    def __init__(self, ended: SystemExit, printed: str) -> None:
        """Take the exit of a command, and what the command printed on standard error."""
        error = ended.__context__
        # Not the error itself: it would keep the models of all frames that it passed.
        self._code, self._printed = ended.code or 0, printed
        self._message = str(error) if isinstance(error, InputError | ResumableError) else printed
        self._functions = [] if error is None else refusing_functions(error)

    def __call__(self, by: Callable[..., object] | str | None = None, naming: object = (), *, code: int = 2) -> bool:
        """Check the exit code, which function refused, and that the message names these data, as in ``refused``."""
        data = naming if isinstance(naming, tuple) else (naming,)
        assert by is not None or data, "a test of a refusal names the function that refuses, or the data"
        assert self._code == code, self._printed
        assert self._message in self._printed
        _check(self._message, self._functions, by, data)
        return True


def raised_apart(*caught: pytest.ExceptionInfo[BaseException]) -> bool:
    """Return whether these errors were raised by different statements, where they name the same data."""
    places = [tuple(raising_place(each) for each in _errors_behind(error.value)) for error in caught]
    return len(set(places)) == len(places)


def refused_apart(
    by: Callable[..., object] | str, *groups: list[Callable[[], object]]
) -> list[list[pytest.ExceptionInfo[BaseException]]]:
    """Check that this function refuses all of these calls, each group of calls by a statement of its own.

    Returns the errors, group by group. For checks that have no data to name.
    """
    caught: list[list[pytest.ExceptionInfo[BaseException]]] = []
    for calls in groups:
        errors = []
        for call in calls:
            with refused(by=by) as error:
                call()
            errors.append(error)
        assert not any(raised_apart(errors[0], other) for other in errors[1:])
        caught.append(errors)
    assert raised_apart(*(errors[0] for errors in caught))
    return caught
