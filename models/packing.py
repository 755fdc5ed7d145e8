"""Passes over records that are not packed: transformers need not ask a GPU, before each pass, whether they are.

Without a mask of padding transformers looks at the positions for several texts in one row, and waits for the answer
until a GPU has done all that it was given. Nothing here packs texts.
"""

import contextlib
import functools
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Any

from transformers import masking_utils

_ASKS = "find_packed_sequence_indices"
_UNPACKED: ContextVar[bool] = ContextVar("unpacked", default=False)


@contextlib.contextmanager
def unpacked() -> Iterator[None]:
    """Nothing is packed in this block and thread; elsewhere, transformers asks as before."""
    _listen()
    token = _UNPACKED.set(True)
    try:
        yield
    finally:
        _UNPACKED.reset(token)


@functools.cache
def _listen() -> None:
    """Put a question of ours before that of transformers, once a process; a release that asks otherwise is left so."""
    asks = getattr(masking_utils, _ASKS, None)
    if asks is None:
        return

    @functools.wraps(asks)
    def unless_unpacked(*args: Any, **kwargs: Any) -> Any:
        return None if _UNPACKED.get() else asks(*args, **kwargs)

    setattr(masking_utils, _ASKS, unless_unpacked)
