"""Three exact ways to compute norms and the weighted sum of units' gradients, and the choice of a way.

| way | norm | sum | extra time, in multiply-adds | extra memory |
|---|---|---|---|---|
| materialise | of each unit's gradient, kept | of the kept gradients | memory traffic of U M N floats | U M N floats |
| stream | of each unit's gradient, dropped | of the gradients, computed again | B L M N | inputs and deltas |
| ghost | Gram matrices over the unit's tokens | one product | B L M N + sum of T^2 (M + N) | inputs and deltas |

For units whose tokens cancel, ghost computes norm and sum as stream does. Ghost norms are from Li et al. 2022, "Large
Language Models Can Be Strong Differentially Private Learners", section 4. The sum from kept inputs and deltas is from
Bu et al. 2023 (book-keeping). ``layer_rules`` defines the names of the axes.
"""

from collections.abc import Mapping
from typing import Literal, get_args

import torch

from heldin.base.machine import main_memory
from heldin.defenses.gradients.layer_rules import RecordLayout
from heldin.models.devices import kind_of
from heldin.models.repeated import LASTING

MatrixWay = Literal["materialise", "ghost", "stream"]
Way = MatrixWay | Literal["rows", "total"]  # an embedding that is only looked up; a vector

# What one float kept for each unit costs in memory traffic (written, read for the norm and for the sum), in
# multiply-adds, and how much slower small Gram products are than large ones; measured by benchmarks/uls_step.py.
TRAFFIC = {"cpu": 30.0, "cuda": 100.0}
GRAM = 1.5
OCCUPYING = 4096  # tokens of a pass that occupy a GPU; a guess that no GPU has confirmed
FEW = 1024  # tokens of a unit's recorded pass that take a GPU no longer than the host takes to lay out several units


def choose_ways(
    matrices: Mapping[str, torch.Size], layout: RecordLayout, positions: int, device: torch.device, budget: int | None
) -> dict[str, MatrixWay]:
    """Return a way for each weight matrix: materialise if this way saves most time and fits into ``budget`` bytes.

    The other matrices get the faster of stream and ghost. The function estimates times from the module's table and
    constants.

    Args:
        matrices: shape of each matrix that multiplies (M, N).
        budget: bytes for kept gradients; None: half of a GPU's free memory, otherwise a quarter of the machine's
            memory.
    """
    # Greedy: memory goes first to the matrix where a kept float saves the most time.
    left = default_budget(device) if budget is None else budget
    traffic = TRAFFIC.get(kind_of(device), TRAFFIC["cpu"])
    tokens = sum(b.units * b.rows for b in layout.blocks) * positions
    grams = sum(b.units * (b.rows * positions) ** 2 for b in layout.blocks)
    ways: dict[str, MatrixWay] = {}
    gains: list[tuple[float, str]] = []
    for name, (m, n) in matrices.items():
        kept = layout.units * m * n
        # A streamed gradient is written and read for its norm and again for the sum: no less traffic than a kept one.
        stream, ghost = tokens * m * n + traffic * kept, tokens * m * n + GRAM * grams * (m + n)
        ways[name] = "ghost" if ghost < stream else "stream"
        gains.append(((min(stream, ghost) - traffic * kept) / max(1, kept), name))
    for gain, name in sorted(gains, reverse=True):
        size = 4 * layout.units * matrices[name].numel()  # bytes of float32
        if gain > 0 and size <= left:
            ways[name], left = "materialise", left - size
    return ways


def unit_by_unit(
    ways: Mapping[str, Way], weights: int, layout: RecordLayout, positions: int, device: torch.device, recorded: bool
) -> bool:
    """Return whether a plain backward pass for each unit is faster than these ways.

    On a GPU, the plain pass is faster in three cases. First, a pass takes longer than the host needs to start it.
    Second, passes are recorded, so the host starts each pass as a whole, with fewer operations and compiled layers.
    Third, memory is too small, so the other ways would compute gradients twice, and each unit has enough tokens to
    occupy a GPU.

    Args:
        ways: the way for the gradients of each parameter.
        weights: number of elements of all trainable parameters.
        recorded: whether repeated passes are recorded.
    """
    fewest = min((block.rows for block in layout.blocks), default=0) * positions
    twice = "stream" in ways.values() and fewest >= OCCUPYING
    quick = (recorded and fewest >= FEW) or 6 * weights * fewest >= LASTING
    return kind_of(device) == "cuda" and (twice or quick)


def in_words(engine: str, ways: Mapping[str, Way]) -> str:
    """Return the engine's name. For "auto", the text has the number of weight matrices for each way."""
    taken = list(ways.values())
    counts = [f"{way} {taken.count(way)}" for way in get_args(MatrixWay) if way in taken]
    return f"auto: {', '.join(counts) or 'no'} weight matrices" if engine == "auto" else engine


def default_budget(device: torch.device) -> int:
    """Return the bytes for kept gradients: half of a GPU's free memory, else a quarter of main memory."""
    if device.type == "cuda":
        # What torch has cached is free for it too: after the first step that is nearly all.
        cached = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return (int(torch.cuda.mem_get_info(device)[0]) + cached) // 2
    return main_memory() // 4
