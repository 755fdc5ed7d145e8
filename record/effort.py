"""The part of a record about what a training took, over all its resumes, and on what."""

from heldin.base.section import Facts


class EffortFacts(Facts):
    """What a training took.

    Attributes:
        precisions: arithmetic of the passes: fp32, bf16.
        devices: names of the devices, in the order in which they were first used.
        processes: most processes at a time, each with a device of its own.
        tokens: predicted tokens of all records whose gradients were computed, a record once for each step.
        step_seconds: duration of the steps alone, without evaluation and checkpoints.
        tokens_per_second: tokens over these seconds; null without any.
        gradients_per_second: records' gradients over these seconds; null without any.
        peak_memory: most bytes that torch held on a GPU of the first process; null on a CPU.
        ways: how clipped gradients were computed; empty for plain training.
        notices: what the user should know of it, such as why a slower way was taken.
    """

    precisions: list[str]
    devices: list[str]
    processes: int
    tokens: int
    step_seconds: float
    tokens_per_second: float | None
    gradients_per_second: float | None
    peak_memory: int | None
    ways: list[str]
    notices: list[str]
