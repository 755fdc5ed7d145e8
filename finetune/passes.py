"""The number of records in a pass through the model: fewer when memory runs out, which changes only the rounding."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import torch

from heldin.base.errors import ResumableError
from heldin.finetune.batches import positions
from heldin.finetune.effort import Effort
from heldin.models.devices import is_out_of_memory

Result = TypeVar("Result")


@dataclass
class Passes:
    """Limits the records of a forward pass; halves the limit and says so when memory runs out.

    Units are whole in a pass until a single one does not fit: from then on larger ones are taken in several passes.

    Attributes:
        most: records of a pass.
        say: receives a line when the limit is lowered, and when gradients are first computed in another way.
        gradients: records whose gradients this process was asked for, once for each step that uses them.
        tokens: predicted tokens of these.
        splits: whether a unit of more records than ``most`` is taken in several passes.
        budget: bytes that kept gradients may take; None: the engine's default in each pass.
        effort: where ways and notices are noted.
        lowered: whether memory ran out.
    """

    most: int
    say: Callable[[str], None] = lambda _: None
    gradients: int = 0
    tokens: int = 0
    splits: bool = False
    budget: int | None = None
    effort: Effort = field(default_factory=Effort)
    lowered: bool = False

    def count(self, records: Sequence[Sequence[int]], times: int = 1) -> None:
        """Count the gradients of these token sequences."""
        self.gradients += times * len(records)
        self.tokens += times * sum(positions(ids) for ids in records)

    def hear(self, line: str | None) -> None:
        """Say a line, if there is one."""
        if line is not None:
            self.say(line)

    def note(self, ways: str, notice: str | None) -> None:
        """Note how a sum of clipped gradients was computed; new facts are reported."""
        for line in self.effort.note(ways, notice):
            self.say(line)

    def fitted(
        self, compute: Callable[[int], Result], largest: Callable[[int], int], *, can_split: bool = False
    ) -> Result:
        """The result of ``compute`` with as many records per pass as fit into memory.

        Args:
            compute: does the work, given the most records of a pass.
            largest: records of the largest actual pass, given the most records of a pass.
            can_split: whether ``compute`` and ``largest`` follow ``splits``.

        Raises:
            ResumableError: a single record does not fit, or a unit that cannot be split.
        """
        before = self.most
        while True:
            try:
                result = compute(self.most)
            except (torch.OutOfMemoryError, RuntimeError) as error:
                if not is_out_of_memory(error):
                    raise
                # Halved from what was really tried, which may be less than allowed: else the same pass would run again.
                failed = largest(self.most)
                self.most = max(1, failed // 2)
                if largest(self.most) >= failed and can_split:
                    self.splits = True  # one unit: its gradient is summed over passes, and clipped as one after that
                if largest(self.most) >= failed:
                    raise ResumableError(
                        f"out of memory at {failed} record{'s'[: failed > 1]} in one pass, which cannot be split: lower"
                        " finetune.sequence_length, set finetune.checkpointing, or use a smaller model"
                    ) from error
            else:
                if self.most != before:
                    self.lowered = True
                    how = ", and a unit of more is taken in several passes" if self.splits else ""
                    self.say(
                        f"out of memory at {before} records in one pass: {self.most} fit{how}, and training goes on"
                        " with these; the mechanism is the same"
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
