"""The effort, devices and memory settings of a training, over all its resumes, for the record."""

from dataclasses import dataclass, field

import torch

from heldin.finetune.precision import Arithmetic
from heldin.models.devices import device_name

KEPT_WAYS = 16  # of the record's list: batches of many shapes may take many mixtures of ways


@dataclass
class Memory:
    """Memory settings for a device. They stay the same over steps and resumes, so equal steps compute alike.

    Attributes:
        device: name of the device. On another device, heldin determines all settings again.
        budget: maximum number of bytes for kept gradients.
        most: maximum number of records per pass; None unless memory ran out.
        splits: whether heldin computes a unit with more records in several passes.
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
        processes: largest number of processes, each with its own device.
        tokens: predicted tokens of all records whose gradients were computed; a record counts once for each step.
        step_seconds: seconds in steps, without evaluation and checkpoints.
        peak_memory: peak bytes that torch held on a GPU of the first process; 0 on a CPU.
        ways: methods that computed clipped gradients, in words, in the order of their first use.
        notices: messages for the user, such as the reason for a slower method.
        memory: the memory settings.
        clip_norm: clip norm of the next step, if the clip norm follows a quantile; None before the first step.
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
        """Record the devices of this call. If earlier calls ran on other devices, return the names of those devices."""
        name = device_name(device)
        others = [device_used for device_used in self.devices if device_used != name]
        self.devices = list(dict.fromkeys([*self.devices, name]))
        self.precisions = list(dict.fromkeys([*self.precisions, arithmetic]))
        self.processes = max(self.processes, processes)
        if self.memory is not None and self.memory.device != name:
            self.memory = None
        return others

    def note(self, ways: str, notice: str | None) -> list[str]:
        """Record the method for a sum, and return the new notes, one per line."""
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
        """Update the peak memory of the GPU."""
        if device.type == "cuda":
            self.peak_memory = max(self.peak_memory, int(torch.cuda.max_memory_allocated(device)))
