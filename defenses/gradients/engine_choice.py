"""Three exact ways to compute norms and the weighted sum of the units' gradients of a parameter, and how to choose.

| way | norm | sum | extra time, in multiply-adds | extra memory |
|---|---|---|---|---|
| materialise | of each unit's gradient, kept | of the kept gradients | memory traffic of U M N floats | U M N floats |
| stream | of each unit's gradient, dropped | one product, scaled by the factors | B L M N | inputs and deltas |
| ghost | Gram matrices over the unit's tokens | as stream | sum of T^2 (M + N) over the units | inputs and deltas |

Ghost norms: Li et al. 2022, "Large Language Models Can Be Strong Differentially Private Learners", section 4; the sum
from kept inputs and deltas: Bu et al. 2023 (book-keeping). Axes as in ``layer_rules``.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Literal, Protocol, get_args

import torch
from torch import Tensor

from heldin.base.memory import main_memory
from heldin.defenses.gradients.layer_rules import Block, Layout, Product, Rows, Total, Use
from heldin.defenses.gradients.products import add_scaled, multiply_into, piece_floats, product
from heldin.models.devices import kind_of

MatrixWay = Literal["materialise", "ghost", "stream"]
Way = MatrixWay | Literal["rows", "total"]  # an embedding that is only looked up; a vector

# What one float kept for each unit costs in memory traffic (written, read for the norm and for the sum), in
# multiply-adds, and how much slower small Gram products are than large ones; measured by benchmarks/uls_step.py.
TRAFFIC = {"cpu": 30.0, "cuda": 100.0}
GRAM = 1.5
OCCUPYING = 4096  # tokens of a pass that occupy a GPU; a guess that no GPU has confirmed


class Workspace:
    """Memory for kept gradients, reused from step to step."""

    # On a CPU, fresh pages cost as much time as the products.

    def __init__(self) -> None:
        self._buffers: dict[str, Tensor] = {}

    def take(self, name: str, units: int, size: int, device: torch.device) -> Tensor:
        """A float32 tensor of arbitrary content, valid until the next call with this name.

        Args:
            name: of the parameter.
            units: first dimension.
            size: second dimension.
            device: where it is.
        """
        if kind_of(device) != "cpu":  # the GPU's allocator reuses memory itself
            return torch.empty(units, size, device=device)
        if name not in self._buffers or self._buffers[name].numel() < units * size:
            self._buffers.pop(name, None)
            self._buffers[name] = torch.empty(units * size)
        return self._buffers[name][: units * size].view(units, size)


class UnitGradients(Protocol):
    """The units' gradients of one parameter, fed by its uses during the backward pass."""

    def add(self, use: Use) -> None:
        """Take in one use."""

    def squares(self) -> Tensor:
        """(U,) squared norms, float64; call it once, after the last use."""

    def discard(self, bad: Tensor) -> None:
        """Set the gradients of the units marked in bad (U,) to zero, whatever their values; after ``squares``."""

    def weighted_sum(self, weights: Tensor) -> Tensor:
        """The sum of weight (U,) times gradient, float32, shaped as the parameter; after ``squares``."""


class Materialised:
    """Each unit's gradient is kept, in ``kept`` (U, numel); norm and sum use exactly these numbers."""

    def __init__(self, shape: torch.Size, layout: Layout, kept: Tensor, *, looked_up: bool) -> None:
        self._shape, self._layout, self._kept = shape, layout, kept
        # A tall matrix that is not looked up is kept transposed: products with long rows are faster.
        self._transposed = len(shape) == 2 and shape[0] > shape[1] and not looked_up
        self._length = shape[0] if self._transposed else shape[-1] if shape else 1  # a scalar is a row of one number
        self._empty = True

    def add(self, use: Use) -> None:
        """Take in one use."""
        for block in self._layout.blocks:
            out = self._kept[block.first : block.last].view(block.units, -1, self._length)
            match use:
                case Product(left, right):
                    one, other = (right, left) if self._transposed else (left, right)
                    # The first use overwrites whatever the workspace held; later ones, of a tied weight, add to it.
                    multiply_into(out, block.tokens(one), block.tokens(other), keep=not self._empty)
                case Rows(ids, values):
                    _scatter(out.zero_() if self._empty else out, block, ids, values)
                case Total(values):
                    total = block.tokens(values).sum(1, keepdim=True, dtype=torch.float32)
                    _ = out.copy_(total) if self._empty else out.add_(total)
        self._empty = False

    def squares(self) -> Tensor:
        """(U,) squared norms."""
        if self._empty:
            self._kept.zero_()  # no use in this batch: the workspace still holds another step's numbers
        # In short rows: those are summed in float32, and the rows among each other in float64.
        return _squares(self._kept.view(len(self._kept), -1, min(self._shape)))

    def discard(self, bad: Tensor) -> None:
        """Set the gradients of the bad units to zero."""
        # Before ``weights @ kept``, in which a factor of zero would not undo a NaN.
        self._kept.masked_fill_(bad.unsqueeze(1), 0.0)

    def weighted_sum(self, weights: Tensor) -> Tensor:
        """The weighted sum, float32."""
        total: Tensor = weights @ self._kept
        return total.view(-1, self._length).t().contiguous() if self._transposed else total.view(self._shape)


class Deferred:
    """Inputs and deltas are kept; norms come from Gram matrices or unit by unit, the sum from one product."""

    def __init__(self, shape: torch.Size, layout: Layout, *, ghost: bool, device: torch.device) -> None:
        self._shape, self._layout, self.ghost, self._device = shape, layout, ghost, device
        self._products: list[Product] = []
        self._rows: list[Rows] = []

    def add(self, use: Use) -> None:
        """Take in one use."""
        match use:
            case Product():
                self._products.append(use)
            case Rows():
                self._rows.append(use)
            case Total():
                raise TypeError("a sum over tokens is materialised")

    def squares(self) -> Tensor:
        """(U,) squared norms."""
        return self.squares_and_bounds()[0] if self.ghost else self.exact_squares()

    def exact_squares(self, only: Tensor | None = None) -> Tensor:
        """(U,) squared norms from the gradients themselves, a few units at a time; zero for units not in only (U,)."""
        squares = torch.zeros(self._layout.units, dtype=torch.float64, device=self._device)
        for piece in self._pieces(self._shape.numel()):
            if only is None or bool(only[piece.first : piece.last].any()):
                squares[piece.first : piece.last] = _squares(self._dense(piece))
        return squares if only is None else torch.where(only, squares, 0.0)

    def squares_and_bounds(self) -> tuple[Tensor, Tensor]:
        """(U,) squared ghost norms, and squares of the sums of the tokens' norms, to which rounding is proportional."""
        squares = torch.zeros(self._layout.units, dtype=torch.float64, device=self._device)
        bounds = torch.zeros_like(squares)
        uses = len(self._products) + len(self._rows)
        tokens = max((b.rows for b in self._layout.blocks), default=0) * self._positions()
        for piece in self._pieces(2 * (tokens * uses) ** 2):  # two Gram matrices (T, T) a unit, T over all uses
            here = slice(piece.first, piece.last)
            squares[here], bounds[here] = _ghost(piece, self._products, self._rows, self._device)
        return squares, bounds

    def discard(self, bad: Tensor) -> None:
        """Set the inputs and deltas of the bad units to zero."""
        # Both factors: zero times infinity would still be NaN.

        def cleaned(x: Tensor) -> Tensor:
            return x.masked_fill(bad[self._layout.unit].view(-1, *[1] * (x.dim() - 1)), 0.0)

        self._products = [Product(cleaned(p.left), cleaned(p.right)) for p in self._products]
        self._rows = [Rows(r.ids, cleaned(r.values)) for r in self._rows]

    def weighted_sum(self, weights: Tensor) -> Tensor:
        """The weighted sum, float32."""
        total = torch.zeros(self._shape, device=self._device)
        if not self.ghost and any(p.left.dtype != torch.float32 for p in self._products):
            # The numbers whose norms were taken, made again: in half precision cheaper than a product in float32.
            for piece in self._pieces(self._shape.numel()):
                total += (weights[piece.first : piece.last] @ self._dense(piece).flatten(1)).view(self._shape)
            return total
        of_record = weights[self._layout.unit]
        for its in self._products:
            add_scaled(total, its.left, its.right, of_record)
        for use in self._rows:
            values = use.values.float() * of_record.view(-1, *[1] * (use.values.dim() - 1))
            total.index_add_(0, use.ids.flatten(), values.flatten(0, -2))
        return total

    def _pieces(self, floats_per_unit: int) -> Iterator[Block]:
        most = piece_floats(self._device)
        for block in self._layout.blocks:
            yield from block.pieces(floats_per_unit, most)

    def _positions(self) -> int:
        sizes = [p.left[0, ..., 0].numel() for p in self._products] + [r.ids[0].numel() for r in self._rows]
        return max(sizes, default=0)

    def _dense(self, piece: Block) -> Tensor:
        dense = torch.zeros(piece.units, *self._shape, device=self._device)
        for its in self._products:
            multiply_into(dense, piece.tokens(its.left), piece.tokens(its.right), keep=True)
        for use in self._rows:
            _scatter(dense, piece, use.ids, use.values)
        return dense


class RowSums:
    """An embedding that is only looked up: each unit's gradient is kept as the rows it touched."""

    def __init__(self, shape: torch.Size, layout: Layout, device: torch.device) -> None:
        self._shape, self._layout, self._device = shape, layout, device
        self._keys: list[Tensor] = []
        self._values: list[Tensor] = []

    def add(self, use: Use) -> None:
        """Take in one use."""
        if not isinstance(use, Rows):
            raise TypeError("an embedding that is only looked up has no other use")
        unit = self._layout.unit.view(-1, *[1] * (use.ids.dim() - 1))
        self._keys.append((unit * self._shape[0] + use.ids).flatten())  # one number for each (unit, row)
        self._values.append(use.values.flatten(0, -2).float())

    def squares(self) -> Tensor:
        """(U,) squared norms."""
        # The empty tensor is for a batch that never used the embedding: ``cat`` of nothing fails.
        keys = torch.cat([*self._keys, torch.empty(0, dtype=torch.long, device=self._device)])
        keys, row = torch.unique(keys, return_inverse=True)
        self._sums = torch.zeros(len(keys), self._shape[1], device=self._device)
        if self._values:
            # Before the norm: a token that a unit uses twice has the norm of the sum, not the sum of two norms.
            self._sums.index_add_(0, row, torch.cat(self._values))
        self._unit, self._id = keys // self._shape[0], keys % self._shape[0]
        squares = torch.zeros(self._layout.units, dtype=torch.float64, device=self._device)
        return squares.index_add_(0, self._unit, torch.linalg.vector_norm(self._sums, dim=1).double().square())

    def discard(self, bad: Tensor) -> None:
        """Set the bad units' rows to zero."""
        self._sums.masked_fill_(bad[self._unit].unsqueeze(1), 0.0)

    def weighted_sum(self, weights: Tensor) -> Tensor:
        """The weighted sum, float32."""
        total = torch.zeros(self._shape, device=self._device)
        return total.index_add_(0, self._id, self._sums * weights[self._unit].unsqueeze(1))


def choose_ways(
    matrices: Mapping[str, torch.Size], layout: Layout, positions: int, device: torch.device, budget: int | None
) -> dict[str, MatrixWay]:
    """The fastest way for each weight matrix by the module's table, with at most ``budget`` bytes of kept gradients.

    Args:
        matrices: shape of each matrix that multiplies (M, N).
        layout: of the units.
        positions: L.
        device: where the pass runs.
        budget: in bytes; None: half of a GPU's free memory, otherwise a quarter of the machine's memory.
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
        # A streamed gradient is written and read once for its norm, so it pays half the traffic of a kept one.
        stream, ghost = tokens * m * n + traffic / 2 * kept, tokens * m * n + GRAM * grams * (m + n)
        ways[name] = "ghost" if ghost < stream else "stream"
        gains.append(((min(stream, ghost) - traffic * kept) / max(1, kept), name))
    for gain, name in sorted(gains, reverse=True):
        size = 4 * layout.units * matrices[name].numel()  # bytes of float32
        if gain > 0 and size <= left:
            ways[name], left = "materialise", left - size
    return ways


def unit_by_unit(ways: Mapping[str, Way], layout: Layout, positions: int, device: torch.device) -> bool:
    """Whether a plain backward pass for each unit is faster than these ways.

    It is where gradients would be computed twice for want of memory, and each unit has tokens enough to occupy a GPU.

    Args:
        ways: how the gradients of each parameter would be held.
        layout: of the units.
        positions: L.
        device: where the pass runs.
    """
    fewest = min((block.rows for block in layout.blocks), default=0) * positions
    return kind_of(device) == "cuda" and "stream" in ways.values() and fewest >= OCCUPYING


def hold(
    name: str, parameter: torch.nn.Parameter, way: Way, layout: Layout, workspace: Workspace, *, looked_up: bool
) -> UnitGradients:
    """The collector of the units' gradients of a parameter.

    Args:
        name: of the parameter.
        parameter: the parameter.
        way: how to hold its gradients.
        layout: of the units.
        workspace: memory for kept gradients.
        looked_up: whether an embedding uses the parameter too.
    """
    shape, device = parameter.shape, parameter.device
    match way:
        case "rows":
            return RowSums(shape, layout, device)
        case "materialise" | "total":
            kept = workspace.take(name, layout.units, parameter.numel(), device)
            return Materialised(shape, layout, kept, looked_up=looked_up)
        case "ghost" | "stream":
            return Deferred(shape, layout, ghost=way == "ghost", device=device)


def in_words(engine: str, ways: Mapping[str, Way]) -> str:
    """The engine; for "auto", how many weight matrices went each way."""
    taken = list(ways.values())
    counts = [f"{way} {taken.count(way)}" for way in get_args(MatrixWay) if way in taken]
    return f"auto: {', '.join(counts) or 'no'} weight matrices" if engine == "auto" else engine


def default_budget(device: torch.device) -> int:
    """Bytes that the kept gradients may take: half of a GPU's free memory, else a quarter of main memory."""
    if device.type == "cuda":
        # What torch has cached is free for it too: after the first step that is nearly all.
        cached = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return (int(torch.cuda.mem_get_info(device)[0]) + cached) // 2
    return main_memory() // 4


def _squares(dense: Tensor) -> Tensor:
    """(u,) squared norms of dense (u, M, N), rows in float32, their sum in float64."""
    squares: Tensor = torch.linalg.vector_norm(dense, dim=2).double().square().sum(1)
    return squares


def _scatter(dense: Tensor, block: Block, ids: Tensor, values: Tensor) -> None:
    """Add the block's values (B, ..., d) to the rows ids (B, ...) of dense (units, V, d)."""
    row = block.tokens(ids.unsqueeze(-1)).squeeze(-1)  # (units, T)
    # (units, T), as rows of all units' weights one below another.
    row = row + torch.arange(block.units, device=row.device).unsqueeze(1) * dense.shape[1]
    flat = dense.view(-1, dense.shape[-1])
    flat.index_add_(0, row.flatten(), block.tokens(values).flatten(0, 1).float())


def _ghost(
    piece: Block, products: Sequence[Product], rows: Sequence[Rows], device: torch.device
) -> tuple[Tensor, Tensor]:
    """(u,) ||sum of left^T right + scattered values||^2 without forming it, and (sum of the tokens' norms)^2."""
    squares = torch.zeros(piece.units, dtype=torch.float64, device=device)
    sizes = torch.zeros_like(squares)
    if products:
        left = torch.cat([piece.tokens(p.left) for p in products], 1)  # (u, S, M)
        right = torch.cat([piece.tokens(p.right) for p in products], 1)  # (u, S, N)
        lefts, rights = product(left, left.mT), product(right, right.mT)  # (u, S, S)
        # ||sum_t l_t r_t^T||^2 = sum over pairs of tokens s, t of (l_s . l_t) (r_s . r_t).
        squares += (lefts * rights).sum((1, 2), dtype=torch.float64)
        sizes += (lefts.diagonal(dim1=1, dim2=2) * rights.diagonal(dim1=1, dim2=2)).sqrt().sum(1)
    if rows:
        ids = torch.cat([piece.tokens(r.ids.unsqueeze(-1)).squeeze(-1) for r in rows], 1)  # (u, T)
        values = torch.cat([piece.tokens(r.values) for r in rows], 1)  # (u, T, d)
        same = ids.unsqueeze(1) == ids.unsqueeze(2)  # (u, T, T)
        # Values scattered to one row add up before the square; values of two rows are orthogonal.
        squares += torch.where(same, product(values, values.mT), 0.0).sum((1, 2), dtype=torch.float64)
        sizes += torch.linalg.vector_norm(values, dim=2, dtype=torch.float32).sum(1)
    if products and rows:  # twice the inner product of the two parts
        looked_up = left.gather(2, ids.unsqueeze(1).expand(-1, left.shape[1], -1))  # (u, S, T)
        squares += 2 * (looked_up.float() * product(right, values.mT)).sum((1, 2), dtype=torch.float64)
    return squares.clamp_min(0.0), sizes.square()  # cancellation may leave a square below 0
