"""The effort and the devices of a training over all its resumes, for the record; and its choices about memory."""

from dataclasses import dataclass, field

import torch

from heldin.finetune.precision import Arithmetic
from heldin.models.devices import device_name

KEPT_WAYS = 16  # of the record's list: batches of many shapes may take many mixtures of ways


@dataclass
class Memory:
    """The choices about memory on a device, kept over steps and resumes so that steps of one shape are alike.

    Attributes:
        device: its name; on another one everything is settled anew.
        budget: bytes that kept gradients may take.
        most: records of a pass; None until memory ran out.
        splits: whether a unit of more records is taken in several passes.
    """

    device: str
    budget: int
    most: int | None = None
    splits: bool = False


@dataclass
class Effort:
    """The effort of a training, over all its resumes.

    Attributes:
        precisions: arithmetic of the passes: fp32, bf16.
        devices: names of the devices, in the order in which they were first used.
        processes: most processes, each with a device of its own.
        tokens: predicted tokens of all records whose gradients were computed, a record once for each step.
        step_seconds: of steps alone, without evaluation and checkpoints.
        peak_memory: most bytes that torch held on a GPU of the first process; 0 on a CPU.
        ways: how clipped gradients were computed, in words, in the order in which they first occurred.
        notices: what the user should know of it, such as why a slower way was taken.
        memory: what was settled about memory.
        clip_norm: of the next step, where it follows a quantile; None before the first step.
    """

    precisions: list[str] = field(default_factory=list)
    devices: list[str] = field(default_factory=list)
    processes: int = 0
    tokens: int = 0
    step_seconds: float = 0.0
    peak_memory: int = 0
    ways: list[str] = field(default_factory=list)
    notices: list[str] = field(default_factory=list)
    memory: Memory | None = None
    clip_norm: float | None = None

    def goes_on(self, arithmetic: Arithmetic, device: torch.device, processes: int) -> list[str]:
        """Note what this call uses; returns the names of devices that an earlier call used, if it was on others."""
        name = device_name(device)
        others = [device_used for device_used in self.devices if device_used != name]
        self.devices = list(dict.fromkeys([*self.devices, name]))
        self.precisions = list(dict.fromkeys([*self.precisions, arithmetic]))
        self.processes = max(self.processes, processes)
        if self.memory is not None and self.memory.device != name:
            self.memory = None
        return others

    def note(self, ways: str, notice: str | None) -> list[str]:
        """Note how a sum was computed; returns what was not known before, for a line each."""
        new = []
        if ways not in self.ways and len(self.ways) < KEPT_WAYS:
            if not self.ways:
                new.append(f"per-unit gradients: {ways}")
            self.ways.append(ways)
        if notice is not None and notice not in self.notices:
            new.append(f"per-unit gradients: {notice}")
            self.notices.append(notice)
        return new

    def measure(self, device: torch.device) -> None:
        """Take the GPU's peak memory so far."""
        if device.type == "cuda":
            self.peak_memory = max(self.peak_memory, int(torch.cuda.max_memory_allocated(device)))
