"""Part 5 of the GPU benchmark: the work of a ULS step other than gradients, on the GPU and on the host."""

import itertools
import random
import statistics
import time
from typing import Any

import torch
from gpu_base import Clock, Figure, Shape, median_step

from heldin.base.coins import keyed_positions
from heldin.defenses.choices import NoiseGenerator
from heldin.defenses.noise import block_digest, block_sizes, gaussian
from heldin.defenses.samplers import Draws, PoissonSampler
from heldin.finetune.passes import cut, whole_units
from heldin.models.tokens import Tokens

HOST_SECONDS = 0.2
STEPS = 12
KEY = bytes(32)
# Stack Overflow of Charles et al.: records of a user on average, and tokens of a record.
OWNED, TOKENS = 397, 20


def beside_gradients(
    shape: Shape, users: int, cohort: int, device: torch.device, *, group: int = 16, a_pass: int = 512
) -> tuple[list[Figure], dict[str, Any]]:
    """Measure the noise of both generators and Adam on all tensors of a model, and the host's part of a step."""
    model = shape.model(device)
    parameters = dict(model.named_parameters())
    clock = Clock(device)
    told: dict[str, Any] = {}
    for generator in (NoiseGenerator.PHILOX, NoiseGenerator.SECURE):
        seconds = []
        for step in range(4 if generator is NoiseGenerator.PHILOX else 1):
            began = clock()
            for name, parameter in parameters.items():
                parameter.grad = gaussian(generator, KEY, step, name, parameter.shape, 1.0, device)
            seconds.append(clock() - began)
        told[f"noise, {generator.name.lower()}"] = statistics.median(seconds)
    for parameter, value in zip(parameters.values(), itertools.repeat(1e-3)):
        parameter.grad = torch.full_like(parameter, value)
    told["optimizer"] = median_step(lambda _: None, model, device, STEPS, keep=True)
    shapes = {name: parameter.shape for name, parameter in parameters.items()}
    told |= _host(shapes, users, cohort, group, a_pass, shape.vocabulary)
    about = f"{users:,} users, cohort {cohort:,} of {group} records: seconds of a step on the host"
    figures = [Figure(about, sum(told[part] for part in PARTS), HOST_SECONDS)]
    figures += [Figure(f"seconds of {name}", value) for name, value in told.items() if isinstance(value, float)]
    return figures, told


PARTS = ("a draw", "choosing records", "laying out passes", "keys of the noise")


def _host(
    shapes: dict[str, torch.Size], users: int, cohort: int, group: int, a_pass: int, vocabulary: int
) -> dict[str, Any]:
    """Return medians over steps of the host's work before a GPU can start: draw, choose, collate, derive noise keys."""
    names = [f"user {number}" for number in range(users)]
    numbers = random.Random(3)
    texts = [Tokens([numbers.randrange(vocabulary) for _ in range(TOKENS + 1)]) for _ in range(4096)]
    began = time.perf_counter()
    draws = Draws(PoissonSampler(rate=cohort / users), KEY, names, 1000)
    drawn = [len(draws.at(0))]
    first = time.perf_counter() - began
    seconds: dict[str, list[float]] = {part: [] for part in PARTS}
    for step in range(1, STEPS):
        marks = [time.perf_counter()]
        units = draws.at(step)
        marks.append(time.perf_counter())
        rows = [keyed_positions(KEY, f"records {step}", names[u], count=group, total=OWNED) for u in units]
        given = [[texts[(u + row) % len(texts)] for row in chosen] for u, chosen in zip(units, rows, strict=True)]
        marks.append(time.perf_counter())
        for run in cut([len(its) for its in given], a_pass):
            whole_units([given[i] for i in run])
        marks.append(time.perf_counter())
        for name, shape in shapes.items():
            for number in range(len(block_sizes(shape.numel()))):
                block_digest(KEY, step, name, number)
        marks.append(time.perf_counter())
        drawn.append(len(units))
        for part, (one, other) in zip(PARTS, itertools.pairwise(marks), strict=True):
            seconds[part].append(other - one)
    return {
        "first draw": first,
        **{part: statistics.median(its) for part, its in seconds.items()},
        "cohorts": drawn,
    }
