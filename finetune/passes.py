"""The passes of a step for any mechanism: the number of records in each pass, and the sum of clipped gradients.

When memory runs out, heldin makes passes with fewer records, which changes only the rounding.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

import torch
from transformers import PreTrainedModel

from heldin.base.errors import ResumableError
from heldin.defenses.gradients.held_gradients import Sums
from heldin.defenses.gradients.model_parts import take_apart, trainable
from heldin.defenses.gradients.one_pass import release_workspace
from heldin.defenses.gradients.per_unit_gradients import ClippedSum, UnitBatch, clipped_gradient_sum
from heldin.finetune.batches import collate
from heldin.finetune.effort import Effort
from heldin.models.devices import is_out_of_memory
from heldin.models.repeated import forget_recordings
from heldin.models.tokens import Tokens

Result = TypeVar("Result")
Contribution = list[Tokens]
Noise = Callable[[str, torch.Size, torch.device], torch.Tensor]


@dataclass
class Passes:
    """Limits the number of records in a forward pass.

    When memory runs out, the object halves the limit and reports the new limit.

    Each unit is in a single pass, until a single unit does not fit. From then on, heldin computes larger units in
    several passes.

    Attributes:
        most: maximum number of records per pass.
        say: receives a line when the limit or the method for gradients changes.
        gradients: number of gradients of records that this process had to compute; a record counts once per step.
        tokens: number of predicted tokens of the records counted in ``gradients``.
        splits: whether heldin computes a unit with more than ``most`` records in several passes.
        budget: maximum number of bytes for kept gradients; None: the engine's default in each pass.
        effort: object that receives the methods for gradients, and notices.
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

    def count(self, records: Sequence[Tokens], times: int = 1) -> None:
        """Count the gradients of these records, ``times`` times each."""
        self.gradients += times * len(records)
        self.tokens += times * sum(tokens.predicted for tokens in records)

    def hear(self, line: str | None) -> None:
        """Report a line, if there is one."""
        if line is not None:
            self.say(line)

    def note(self, ways: str, notice: str | None) -> None:
        """Note the method for a sum of clipped gradients, and report new facts."""
        for line in self.effort.note(ways, notice):
            self.say(line)

    def fitted(
        self, compute: Callable[[int], Result], largest: Callable[[int], int], *, can_split: bool = False
    ) -> Result:
        """Return the result of ``compute`` with as many records per pass as fit into memory.

        Args:
            compute: function from the maximum number of records per pass to the result.
            largest: function from the maximum number of records per pass to the number in the largest actual pass.
            can_split: whether ``compute`` and ``largest`` can split a unit as ``splits`` states.

        Raises:
            ResumableError: a single record does not fit, or a unit that cannot be split does not fit.
        """
        before = self.most
        while True:
            try:
                result = compute(self.most)
            except (torch.OutOfMemoryError, RuntimeError) as error:
                if not is_out_of_memory(error):
                    raise
                if forget_recordings():
                    continue  # the memory of recorded passes may be what is missing
                # Halved from what was really tried, which may be less than allowed: else the same pass would run again.
                failed = largest(self.most)
                self.most = max(1, failed // 2)
                if largest(self.most) >= failed and can_split:
                    self.splits = True  # one unit: its gradient is summed over passes, and clipped as one after that
                if largest(self.most) >= failed:
                    raise ResumableError(
                        f"out of memory at {failed} record{'s'[: failed > 1]} in one pass, and heldin cannot split"
                        " this pass: lower finetune.sequence_length, set finetune.checkpointing, or use a smaller"
                        " model"
                    ) from error
            else:
                if self.most != before:
                    self.lowered = True
                    how = ", and a larger unit takes several passes" if self.splits else ""
                    self.say(
                        f"out of memory at {before} records in one pass: {self.most} fit{how}, and training"
                        " continues with smaller passes. The mechanism stays the same"
                    )
                return result
            # Out here, where the error is gone: its traceback would keep the failed pass's tensors.
            if torch.cuda.is_available():
                torch.cuda.empty_cache()


def cut(sizes: Sequence[int], most: int) -> list[list[int]]:
    """Return the unit numbers of each pass: whole units in order, at most ``most`` records.

    A larger unit is a separate pass.
    """
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


def clipped_sum(
    model: PreTrainedModel, runs: Sequence[Sequence[Contribution]], clip_norm: float, passes: Passes
) -> ClippedSum:
    """Return the sum of units' clipped gradients over several passes, with norms, losses and masks in unit order."""
    total: Sums | None = None
    of_passes: list[ClippedSum] = []
    parts = take_apart(model)
    for units in runs:
        clipped = clipped_gradient_sum(
            model,
            whole_units(units),
            clip_norm=clip_norm,
            memory_budget=passes.budget,
            most_records=passes.most if passes.splits else None,
            parts=parts,
            onto=total,
        )
        passes.note(clipped.engine, clipped.notice)
        total = clipped.gradients
        of_passes.append(clipped)
    if not of_passes:
        zeros = {name: torch.zeros_like(p, dtype=torch.float32) for name, p in trainable(model).items()}
        none = torch.zeros(0, device=model.device)
        return ClippedSum(zeros, none, none, none > 0, "no records")
    return replace(
        of_passes[-1],
        norms=torch.cat([clipped.norms for clipped in of_passes]),
        losses=torch.cat([clipped.losses for clipped in of_passes]),
        masked=torch.cat([clipped.masked for clipped in of_passes]),
    )


def fitted_sum(model: PreTrainedModel, people: Sequence[Contribution], clip_norm: float, passes: Passes) -> ClippedSum:
    """Return ``clipped_sum`` of these units, in passes that fit into memory."""
    sizes = [len(records) for records in people]

    def compute(most: int) -> ClippedSum:
        return clipped_sum(model, [[people[i] for i in run] for run in cut(sizes, most)], clip_norm, passes)

    def largest(most: int) -> int:
        # Asked only after a failure: the kept gradients of the failed pass are given back before the next try.
        release_workspace(model)
        records = max((sum(sizes[i] for i in run) for run in cut(sizes, most)), default=0)
        return min(records, most) if passes.splits else records

    # A step that runs out of memory is retried in smaller passes. Its units, their records and its noise are functions
    # of the key and the step, so they stay the same.
    return passes.fitted(compute, largest, can_split=True)


def put_gradient(
    model: PreTrainedModel, total: Mapping[str, torch.Tensor], scale: float, divisor: float, noise: Noise | None
) -> None:
    """Put the noised mean gradient into ``.grad``.

    Args:
        model: the model; its ``.grad`` is set.
        total: sums by parameter name, in float32; the function overwrites them.
        scale: factor for the sums before noise is added.
        noise: function from a tensor's name, shape and device to its noise; None: no noise.
    """
    parameters = trainable(model)
    sums = [total[name] for name in parameters]
    # In place: three more copies of the largest tensor would be in memory at the step's peak.
    if scale != 1.0:
        torch._foreach_mul_(sums, scale)
    for name, summed in zip(parameters, sums, strict=True):
        if noise is not None:
            summed.add_(noise(name, summed.shape, summed.device))
    torch._foreach_div_(sums, divisor)
    for parameter, summed in zip(parameters.values(), sums, strict=True):
        parameter.grad = summed.to(parameter.dtype)


def whole_units(units: Sequence[Contribution]) -> UnitBatch:
    """Return a batch of units, each a list of records, on the CPU."""
    batch = collate([tokens for records in units for tokens in records], torch.device("cpu"))
    unit = torch.tensor([i for i, records in enumerate(units) for record in records for _ in record.rows()])
    return UnitBatch.of(batch, unit, len(units))
