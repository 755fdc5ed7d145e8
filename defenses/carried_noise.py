"""Noise that is correlated over steps, C^-1 z. Like all noise, it is a function of (key, step, tensor name).

With coefficients c_0 to c_(b-1), the noise of step t is w_t = (z_t - c_1 w_(t-1) - ... - c_(b-1) w_(t-b+1)) / c_0. Main
memory stores the amounts that past steps subtract from each of the next b - 1 steps, as b - 1 vectors of the trained
parameters. heldin never writes these amounts to disk. A resumed run computes the noise of all earlier steps again, from
the key and with the same operations, so the noise is bitwise identical.
"""

from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field

import torch

from heldin.defenses.noise import NoiseSource
from heldin.models.devices import moved


@dataclass
class _Carried:
    """The amounts that the noise of one tensor carries over to later steps.

    Attributes:
        asked: shape, deviation, device and rows of the computation.
        step: the next step.
        owed: amounts that past steps subtract from this step and the steps after it; shape (b - 1, ...).
        adding: the addition of the last step's noise, if it is still running.
    """

    asked: tuple[object, ...]
    step: int = 0
    owed: list[torch.Tensor] = field(default_factory=list)
    adding: "Future[None] | None" = None


class CarriedNoise:
    """The noise of one run.

    Args:
        source: source of the independent noise z.
        coefficients: coefficients of C; with only the number 1, z is unchanged.
    """

    def __init__(self, source: NoiseSource, coefficients: Sequence[float]) -> None:
        self._source, self._coefficients = source, tuple(coefficients)
        self._tensors: dict[str, _Carried] = {}
        self._pool: ThreadPoolExecutor | None = None

    def notice(self, step: int) -> str | None:
        """Return a line if a run begins after the first step, so earlier noise must be computed again."""
        if len(self._coefficients) == 1 or step == 0 or self._tensors:
            return None
        return f"banded noise: the noise of {step:,} earlier steps is computed again from the key"

    def gaussian(
        self,
        step: int,
        name: str,
        shape: torch.Size,
        deviation: float,
        device: torch.device,
        rows: tuple[int, int] | None = None,
    ) -> torch.Tensor:
        """Return the noise of one tensor in one step: C^-1 times ``NoiseSource.gaussian`` of all steps so far.

        Consecutive steps cost one draw each. For any other step, heldin starts again from the first step.
        """
        if len(self._coefficients) == 1:
            return self._source.gaussian(step, name, shape, deviation, device, rows)
        asked = (shape, deviation, device, rows)
        carried = self._tensors.get(name)
        if carried is None or carried.step > step or carried.asked != asked:
            carried = self._tensors[name] = _Carried(asked)
        while carried.step < step:
            self._next(carried, name, shape, deviation, device, rows)
        return self._next(carried, name, shape, deviation, device, rows)

    def _next(
        self,
        carried: _Carried,
        name: str,
        shape: torch.Size,
        deviation: float,
        device: torch.device,
        rows: tuple[int, int] | None,
    ) -> torch.Tensor:
        noise = self._source.gaussian(carried.step, name, shape, deviation, device, rows)
        if carried.adding is not None:
            carried.adding.result()
        if carried.owed:
            noise.sub_(moved(carried.owed[0], device))
        noise.div_(self._coefficients[0])
        carried.step += 1
        # Only the vector of the next step goes to a GPU; the others are added up here, beside the next step's passes.
        if device.type == "cpu":
            self._add(carried, noise)
        else:
            self._pool = self._pool or ThreadPoolExecutor(1)
            carried.adding = self._pool.submit(self._add, carried, noise.to("cpu"))
        return noise

    def _add(self, carried: _Carried, noise: torch.Tensor) -> None:
        """Subtract a step's noise from the steps after it."""
        later = self._coefficients[1:]
        if not carried.owed:
            carried.owed = [noise * c for c in later]
            return
        for i, c in enumerate(later[:-1]):
            torch.add(carried.owed[i + 1], noise, alpha=c, out=carried.owed[i])
        torch.mul(noise, later[-1], out=carried.owed[-1])
