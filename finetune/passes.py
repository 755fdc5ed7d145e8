"""How many records go through the model at once: fewer when memory runs out, which changes only the rounding."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import torch

from heldin.base.errors import ResumableError

Result = TypeVar("Result")


@dataclass
class Passes:
    """Limits the records of a forward pass, in whole units; halves the limit and says so when memory runs out.

    Attributes:
        most: records of a pass.
        say: receives a line when the limit is lowered.
        gradients: records whose gradients this process was asked for, once for each step that uses them.
    """

    most: int
    say: Callable[[str], None] = lambda _: None
    gradients: int = 0

    def fitted(self, compute: Callable[[int], Result], largest: Callable[[int], int]) -> Result:
        """The result of ``compute`` with as many records per pass as fit into memory.

        Args:
            compute: does the work, given the most records of a pass.
            largest: records of the largest actual pass, given the most records of a pass.

        Raises:
            ResumableError: a single unit does not fit.
        """
        before = self.most
        while True:
            try:
                result = compute(self.most)
            except (torch.OutOfMemoryError, RuntimeError) as error:
                if not _out_of_memory(error):
                    raise
                # Halved from what was really tried, which may be less than allowed: else the same pass would run again.
                failed = largest(self.most)
                self.most = max(1, failed // 2)
                if largest(self.most) >= failed:  # one unit, which must not be split: its gradient is clipped as one
                    raise ResumableError(
                        f"out of memory at {failed} records in one pass, and the unit that they form cannot be split:"
                        " lower defense.group_size or finetune.sequence_length, or use a smaller model"
                    ) from error
            else:
                if self.most != before:
                    self.say(
                        f"out of memory at {before} records in one pass: {self.most} fit, and training goes on with"
                        " these; the mechanism is the same"
                    )
                return result
            # Out here, where the error is gone: its traceback would keep the failed pass's tensors.
            if torch.cuda.is_available():
                torch.cuda.empty_cache()


def cut(sizes: Sequence[int], most: int) -> list[list[int]]:
    """Unit numbers of each pass: whole units in order, at most ``most`` records; a larger unit is alone."""
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
    # torch has no error class of its own for a CPU that runs out of memory.
    return isinstance(error, torch.OutOfMemoryError) or "can't allocate memory" in str(error)
