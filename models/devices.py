"""Where models run: the device that the environment names, else the GPU if there is one."""

import os
import platform

import torch

from heldin.base.errors import InputError

# In the environment and not in a config: a run may go on on another device, and processes that it starts use the same.
DEVICE = "HELDIN_DEVICE"
SPREAD = "auto"  # over all GPUs, and main memory


def default_device() -> torch.device:
    """The device that ``DEVICE`` names in the environment; without it, or for "auto", the GPU if there is one.

    Raises:
        InputError: it names none, or a GPU where torch finds none.
    """
    asked = os.environ.get(DEVICE)
    if asked not in (None, "", "cpu", "cuda", SPREAD):
        raise InputError(f"unknown device '{asked}': choose cpu, cuda or auto (--device, or {DEVICE})")
    if asked == "cuda" and not torch.cuda.is_available():
        raise InputError("device 'cuda' was asked for, but torch finds no GPU that it can use here")
    if asked in ("cpu", "cuda"):
        return torch.device(asked)
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def spreads() -> bool:
    """Whether the environment asks that a model be spread over all GPUs, and main memory for the rest."""
    return os.environ.get(DEVICE) == SPREAD


def device_name(device: torch.device) -> str:
    """The model of a GPU, or the kind of a CPU."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else f"CPU ({platform.machine()})"
