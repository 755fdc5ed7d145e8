"""The problems that a check finds, and the files that the tested code opens."""

import contextlib
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

_OPENED: list[list[str]] = []  # of the watches that are on, innermost last
_HOOKS: list[bool] = []  # whether Python's hook is in: it cannot be taken out again


def require(problems: Sequence[str], title: str) -> None:
    """Raise AssertionError with a list of the problems, if there are any."""
    lines = list(dict.fromkeys(problems))
    if lines:
        raise AssertionError("\n".join([f"{title}:", *(f"  - {line}" for line in lines)]))


def tried(call: Callable[[], Any], doing: str, problems: list[str]) -> Any:
    """Call ``call`` and return its result. If it raises, add a problem that begins with ``doing``, and return None."""
    try:
        return call()
    except Exception as error:  # whatever somebody else's code does
        problems.append(f"{doing} raised {type(error).__name__}: {error}")
        return None


@contextlib.contextmanager
def watched_files() -> Iterator[list[str]]:
    """Yield a list. The function adds the name of each file that this process opens in the block, except Python's own
    modules."""
    if not _HOOKS:
        _HOOKS.append(True)
        sys.addaudithook(_heard)
    opened: list[str] = []
    _OPENED.append(opened)
    try:
        yield opened
    finally:
        _OPENED.remove(opened)


def _heard(event: str, arguments: tuple[Any, ...]) -> None:
    if event == "open" and _OPENED and isinstance(arguments[0], str | bytes):
        name = arguments[0] if isinstance(arguments[0], str) else arguments[0].decode(errors="replace")
        if not name.endswith((".py", ".pyc", ".so")):
            _OPENED[-1].append(name)
