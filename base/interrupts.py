"""Ctrl-C and SIGTERM that wait for the end of a step, so that nothing of it is lost."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def put_off() -> Iterator[Callable[[], bool]]:
    """Put off the first Ctrl-C or SIGTERM; a second one acts at once.

    Yields a function that says whether one came. At the end of the block it does what it would have done. Only the main
    thread of a process may decide so: in others nothing is put off.
    """
    if threading.current_thread() is not threading.main_thread():
        yield lambda: False
        return
    before = {number: signal.getsignal(number) for number in _SIGNALS}
    came: list[int] = []

    def noted(number: int, frame: FrameType | None) -> None:
        if came:
            act(number, frame)
        came.append(number)

    def act(number: int, frame: FrameType | None) -> None:
        handler = before[signal.Signals(number)]
        if callable(handler):
            handler(number, frame)
        elif handler == signal.SIG_DFL:
            signal.signal(number, handler)
            signal.raise_signal(number)

    for number, handler in before.items():
        # One that is ignored, or was set by another language, stays.
        if callable(handler) or handler == signal.SIG_DFL:
            signal.signal(number, noted)
    try:
        yield lambda: bool(came)
    finally:
        for number, handler in before.items():
            if signal.getsignal(number) is noted:
                signal.signal(number, handler)
    if came:
        act(came[0], None)
