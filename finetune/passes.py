"""How many records go through the model at once: fewer when memory ends, which changes nothing but rounding."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import torch

from heldin.base.errors import ResumableError

Result = TypeVar("Result")


@dataclass
class Passes:
    """The most records of one forward pass, of whole units; halved and announced when a pass runs out of memory."""

    most: int
    say: Callable[[str], None] = lambda _: None

    def fitted(self, compute: Callable[[int], Result], largest: Callable[[int], int]) -> Result:
        """``compute`` with the most records that fit.

        Args:
            compute: from the most records of a pass.
            largest: records of the largest pass, from the most records of a pass.

        Raises:
            ResumableError: the smallest pass that keeps units whole does not fit.
        """
        before = self.most
        while True:
            try:
                result = compute(self.most)
            except (torch.OutOfMemoryError, RuntimeError) as error:
                if not _out_of_memory(error):
                    raise
                failed = largest(self.most)
                self.most = max(1, failed // 2)
                if largest(self.most) >= failed:
                    raise ResumableError(
                        f"out of memory at {failed} records in one pass, and the unit that they form cannot be split:"
                        " lower defense.group_size or finetune.sequence_length, or use a smaller model"
                    ) from error
                if torch.cuda.is_available():
                    torch.cuda.empty_cache()
                continue
            if self.most != before:
                self.say(
                    f"out of memory at {before} records in one pass: {self.most} fit, and training goes on with these;"
                    " the mechanism is the same"
                )
            return result


def cut(sizes: Sequence[int], most: int) -> list[list[int]]:
    """Numbers of the units of each pass: whole units, in order, at most ``most`` records; a larger one alone."""
    runs: list[list[int]] = []
    taken = 0
    for number, size in enumerate(sizes):
        if not size:
            continue  # a unit with nothing to give contributes zero
        if not runs or taken + size > most:
            runs.append([])
            taken = 0
        runs[-1].append(number)
        taken += size
    return runs


def _out_of_memory(error: BaseException) -> bool:
    return isinstance(error, torch.OutOfMemoryError) or "can't allocate memory" in str(error)
