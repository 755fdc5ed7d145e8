"""The gradients of all units of a pass. heldin keeps them until it has computed the norms and the weighted sum.

``layer_rules`` defines the names of the axes.
"""

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Protocol

import torch
from torch import Tensor

from heldin.defenses.gradients.layer_rules import Product, RecordLayout, Rows, Total, UnitBlock, Use
from heldin.defenses.gradients.products import add_scaled, multiply_into, piece_floats, product
from heldin.models.devices import kind_of

Sums = dict[str, Tensor]

_ROW = 512  # of the numbers of vectors


class Workspace:
    """Memory for kept gradients, reused from step to step."""

    # On a CPU, fresh pages cost as much time as the products.

    def __init__(self) -> None:
        self._buffers: dict[str, Tensor] = {}

    def take(self, name: str, units: int, size: int, device: torch.device) -> Tensor:
        """Return a float32 tensor of arbitrary content, valid until the next call with this name.

        Args:
            units: size of the first dimension.
            size: size of the second dimension.
        """
        if kind_of(device) != "cpu":  # the GPU's allocator reuses memory itself
            return torch.empty(units, size, device=device)
        if name not in self._buffers or self._buffers[name].numel() < units * size:
            self._buffers.pop(name, None)
            self._buffers[name] = torch.empty(units * size)
        return self._buffers[name][: units * size].view(units, size)


class UnitGradients(Protocol):
    """The units' gradients of one or more parameters, from the uses of the parameters during the backward pass."""

    def add(self, name: str, use: Use) -> None:
        """Add one use of the parameter with this name."""

    def norms(self) -> Tensor:
        """Return norms of parts, (U, parts), whose squares sum to the squared norms.

        Call this once, after the last use.
        """

    def discard(self, bad: Tensor) -> None:
        """Set the gradients of the marked units in ``bad`` (U,) to zero, even if the gradients are NaN.

        Call this after ``norms``.
        """

    def weighted_sums(self, weights: Tensor, onto: Sums | None) -> Sums:
        """Return, by name, the sum over units of weight times gradient, in the parameter's shape.

        Call this after ``norms``.

        Args:
            weights: weights of the units, (U,), float32.
            onto: float32 sums to which the function adds the result in place; None: there are no earlier sums.
        """


class Materialised:
    """Each unit's gradient of a matrix, in ``kept`` (U, numel). Norm and sum use exactly these numbers."""

    def __init__(self, name: str, shape: torch.Size, layout: RecordLayout, kept: Tensor, *, looked_up: bool) -> None:
        self._name, self._shape, self._layout, self._kept = name, shape, layout, kept
        # On a CPU a tall matrix that is not looked up is kept transposed: products with long rows are faster.
        self._transposed = shape[0] > shape[1] and not looked_up and kind_of(kept.device) == "cpu"
        self._length = shape[0] if self._transposed else shape[1]
        self._empty = True

    def add(self, name: str, use: Use) -> None:
        """Take in one use."""
        for block in self._layout.blocks:
            out = self._kept[block.first : block.last].view(block.units, -1, self._length)
            match use:
                case Product(left, right):
                    first, other = (right, left) if self._transposed else (left, right)
                    # The first use overwrites whatever the workspace held; later ones, of a tied weight, add to it.
                    multiply_into(out, block.tokens(first), block.tokens(other), keep=not self._empty)
                case Rows(ids, values):
                    _scatter(out.zero_() if self._empty else out, block, ids, values)
                case Total():
                    raise TypeError(f"'{name}' is a matrix, and has no sum over tokens")
        self._empty = False

    def norms(self) -> Tensor:
        """Return (U, rows) norms of rows."""
        if self._empty:
            self._kept.zero_()  # no use in this batch: the workspace still holds another step's numbers
        # Of short rows: those are summed in float32, and rows among each other in float64.
        return _row_norms(self._kept.view(len(self._kept), -1, min(self._shape)))

    def discard(self, bad: Tensor) -> None:
        """Set the gradients of the bad units to zero."""
        # Before ``weights @ kept``, in which a factor of zero would not undo a NaN.
        self._kept.masked_fill_(bad.unsqueeze(1), 0.0)

    def weighted_sums(self, weights: Tensor, onto: Sums | None) -> Sums:
        """Return the weighted sum."""
        if onto is not None and not self._transposed:
            # Without a sum of its own, which is as large as the matrix.
            flat = onto[self._name].view(-1)
            _ = flat.addcmul_(self._kept[0], weights) if len(weights) == 1 else flat.addmv_(self._kept.t(), weights)
            return {self._name: onto[self._name]}
        total: Tensor = weights @ self._kept
        whole = total.view(-1, self._length).t() if self._transposed else total.view(self._shape)
        return {self._name: whole.contiguous() if onto is None else onto[self._name].add_(whole)}


class Vectors:
    """Each unit's gradients of all vectors, stored one after another in rows of ``_ROW`` numbers."""

    # Together: a model has more vectors than matrices, and a GPU idles between many small tasks.

    def __init__(
        self, shapes: Mapping[str, torch.Size], layout: RecordLayout, workspace: Workspace, device: torch.device
    ) -> None:
        self._shapes, self._layout = shapes, layout
        sizes = [shape.numel() for shape in shapes.values()]
        ends = list(itertools.accumulate(sizes, initial=0))
        self._places = {name: slice(*span) for name, span in zip(shapes, itertools.pairwise(ends), strict=True)}
        self._end = ends[-1]
        self._kept = workspace.take("", layout.units, -(-self._end // _ROW) * _ROW, device)
        self._met: set[str] = set()

    def add(self, name: str, use: Use) -> None:
        """Take in one use."""
        if not isinstance(use, Total):
            raise TypeError(f"'{name}' is a vector, and has only sums over tokens")
        for block in self._layout.blocks:
            out = self._kept[block.first : block.last, self._places[name]]
            total = block.tokens(use.values).sum(1, dtype=torch.float32)
            # The first use overwrites whatever the workspace held.
            _ = out.add_(total) if name in self._met else out.copy_(total)
        self._met.add(name)

    def norms(self) -> Tensor:
        """Return (U, rows) norms of rows."""
        self._kept[:, self._end :] = 0.0
        for name in self._shapes.keys() - self._met:
            self._kept[:, self._places[name]] = 0.0
        return _row_norms(self._kept.view(len(self._kept), -1, _ROW))

    def discard(self, bad: Tensor) -> None:
        """Set the gradients of the bad units to zero."""
        self._kept.masked_fill_(bad.unsqueeze(1), 0.0)

    def weighted_sums(self, weights: Tensor, onto: Sums | None) -> Sums:
        """Return the weighted sums."""
        total = weights @ self._kept
        sums = {name: total[place].view(self._shapes[name]) for name, place in self._places.items()}
        if onto is None:
            return sums
        added = {name: onto[name] for name in sums}
        torch._foreach_add_(list(added.values()), list(sums.values()))
        return added


class Deferred:
    """Kept inputs and deltas.

    Norm and sum come from gradients that are computed twice, or from Gram matrices and a product.

    Gram matrices give ghost norms. heldin uses them only for units whose tokens do not cancel. If tokens cancel, the
    product rounds differently from the norm, and a contribution could exceed the clip norm.
    """

    def __init__(
        self, name: str, shape: torch.Size, layout: RecordLayout, *, ghost: bool, device: torch.device
    ) -> None:
        self._name, self._shape, self._layout, self.ghost, self._device = name, shape, layout, ghost, device
        self._products: list[Product] = []
        self._rows: list[Rows] = []
        # (U,) the units of a ghost whose norms are those of their gradients, and whose sum must be of these.
        self._cancelling: Tensor | None = None

    def add(self, name: str, use: Use) -> None:
        """Take in one use."""
        match use:
            case Product():
                self._products.append(use)
            case Rows():
                self._rows.append(use)
            case Total():
                raise TypeError(f"'{name}' is a matrix, and has no sum over tokens")

    def norms(self) -> Tensor:
        """Return (U, 1) norms, from the gradients themselves."""
        return self._exact_squares(None).sqrt().unsqueeze(1)

    def taken_again(self, cancelling: Tensor) -> Tensor:
        """Return squared norms, (U,), of the marked units from their gradients; zero for the other units.

        Args:
            cancelling: marks, (U,), of the units whose tokens cancel.
        """
        self._cancelling = cancelling
        return torch.where(cancelling, self._exact_squares(cancelling), 0.0)

    def _exact_squares(self, only: Tensor | None) -> Tensor:
        """Return squared norms, (U,), from the gradients, a few units at a time; zero for units not in ``only``."""
        squares = torch.zeros(self._layout.units, dtype=torch.float64, device=self._device)
        for piece in self._dense_pieces(only):
            squares[piece.first : piece.last] = _row_norms(self._dense(piece)).double().square().sum(1)
        return squares

    def _dense_pieces(self, only: Tensor | None) -> Iterator[UnitBlock]:
        """Yield the pieces, small enough for memory, with a unit that is marked in ``only`` (U,); None: all pieces."""
        for piece in self._pieces(self._shape.numel()):
            if only is None or bool(only[piece.first : piece.last].any()):
                yield piece

    def squares_and_bounds(self) -> tuple[Tensor, Tensor]:
        """Return squared ghost norms, (U,), and squared sums of the tokens' norms, which scale the rounding error."""
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

    def weighted_sums(self, weights: Tensor, onto: Sums | None) -> Sums:
        """Return the weighted sum."""
        total = torch.zeros(self._shape, device=self._device) if onto is None else onto[self._name]
        if self.ghost:
            of_product = weights if self._cancelling is None else weights.masked_fill(self._cancelling, 0.0)
            self._add_product(total, of_product[self._layout.unit])
            if self._cancelling is None:
                return {self._name: total}
            weights = weights.masked_fill(~self._cancelling, 0.0)
        # The numbers whose norms were taken, made again.
        for piece in self._dense_pieces(self._cancelling):
            total += (weights[piece.first : piece.last] @ self._dense(piece).flatten(1)).view(self._shape)
        return {self._name: total}

    def _add_product(self, total: Tensor, of_record: Tensor) -> None:
        """Add the gradients of all records, times their factors ``of_record`` (B,), to ``total``."""
        for pair in self._products:
            add_scaled(total, pair.left, pair.right, of_record)
        for use in self._rows:
            values = use.values.float() * of_record.view(-1, *[1] * (use.values.dim() - 1))
            total.index_add_(0, use.ids.flatten(), values.flatten(0, -2))

    def _pieces(self, floats_per_unit: int) -> Iterator[UnitBlock]:
        most = piece_floats(self._device)
        for block in self._layout.blocks:
            yield from block.pieces(floats_per_unit, most)

    def _positions(self) -> int:
        sizes = [p.left[0, ..., 0].numel() for p in self._products] + [r.ids[0].numel() for r in self._rows]
        return max(sizes, default=0)

    def _dense(self, piece: UnitBlock) -> Tensor:
        dense = torch.zeros(piece.units, *self._shape, device=self._device)
        for pair in self._products:
            multiply_into(dense, piece.tokens(pair.left), piece.tokens(pair.right), keep=True)
        for use in self._rows:
            _scatter(dense, piece, use.ids, use.values)
        return dense


class RowSums:
    """The gradients of an embedding that is only looked up.

    For each unit, heldin keeps only the rows that the unit used.
    """

    def __init__(self, name: str, shape: torch.Size, layout: RecordLayout, device: torch.device) -> None:
        self._name, self._shape, self._layout, self._device = name, shape, layout, device
        self._keys: list[Tensor] = []
        self._values: list[Tensor] = []

    def add(self, name: str, use: Use) -> None:
        """Take in one use."""
        if not isinstance(use, Rows):
            raise TypeError(f"'{name}' is only looked up, and has no other use")
        unit = self._layout.unit.view(-1, *[1] * (use.ids.dim() - 1))
        self._keys.append((unit * self._shape[0] + use.ids).flatten())  # one number for each (unit, row)
        self._values.append(use.values.flatten(0, -2).float())

    def norms(self) -> Tensor:
        """Return (U, 1) norms."""
        # The empty tensor is for a batch that never used the embedding: ``cat`` of nothing fails.
        keys = torch.cat([*self._keys, torch.empty(0, dtype=torch.long, device=self._device)])
        # Not ``torch.unique``, whose result has as many rows as a GPU finds: it would have to be waited for. Here rows
        # of different numbers come first, and as many zeros follow as numbers came again.
        ordered, order = torch.sort(keys)
        run = torch.cumsum(ordered != ordered.roll(1), 0)
        run = run - run[:1]  # the first differs from the last, unless all are the same
        row = torch.empty_like(run).index_copy_(0, order, run)
        self._sums = torch.zeros(len(keys), self._shape[1], device=self._device)
        if self._values:
            # Before the norm: a token that a unit uses twice has the norm of the sum, not the sum of two norms.
            self._sums.index_add_(0, row, torch.cat(self._values))
        key = torch.zeros_like(run).index_copy_(0, run, ordered)
        self._unit, self._id = key // self._shape[0], key % self._shape[0]
        squares = torch.zeros(self._layout.units, dtype=torch.float64, device=self._device)
        squares.index_add_(0, self._unit, torch.linalg.vector_norm(self._sums, dim=1).double().square())
        return squares.sqrt().unsqueeze(1)

    def discard(self, bad: Tensor) -> None:
        """Set the rows of the bad units to zero."""
        self._sums.masked_fill_(bad[self._unit].unsqueeze(1), 0.0)

    def weighted_sums(self, weights: Tensor, onto: Sums | None) -> Sums:
        """Return the weighted sum."""
        total = torch.zeros(self._shape, device=self._device) if onto is None else onto[self._name]
        return {self._name: total.index_add_(0, self._id, self._sums * weights[self._unit].unsqueeze(1))}


def norm_of_all(tensors: Iterable[Tensor]) -> Tensor:
    """Return the norm of all tensors together, float64, shape ().

    Rows have float32 norms, which are combined in float64.
    """
    # Of each tensor's own copy in float64 nothing is made, which would be twice as large.
    matrices: list[Tensor] = []
    vectors: list[Tensor] = []
    for tensor in tensors:
        (matrices if tensor.dim() > 1 else vectors).append(tensor)
    together = [torch.cat([vector.flatten() for vector in vectors])] if vectors else []  # one kernel, not one for each
    norms = [_row_norms(rows) for tensor in (*matrices, *together) for rows in _in_rows(tensor)]
    return torch.linalg.vector_norm(torch.cat(norms).double()) if norms else torch.zeros((), dtype=torch.float64)


def _in_rows(tensor: Tensor) -> list[Tensor]:
    """Return a tensor as one or two matrices with short rows. In float32, a long row's norm loses digits."""
    if tensor.dim() > 1:
        return [tensor.flatten(0, -2)]
    flat = tensor.flatten()
    whole = len(flat) // _ROW * _ROW
    return [flat[:whole].view(-1, _ROW), flat[whole:].unsqueeze(0)]


def _row_norms(dense: Tensor) -> Tensor:
    """Return the norms, (..., M), of the rows of ``dense`` (..., M, N), float32."""
    norms: Tensor = torch.linalg.vector_norm(dense, dim=-1, dtype=torch.float32)
    return norms


def _scatter(dense: Tensor, block: UnitBlock, ids: Tensor, values: Tensor) -> None:
    """Add the block's values (B, ..., d) to the rows ids (B, ...) of dense (units, V, d)."""
    row = block.tokens(ids.unsqueeze(-1)).squeeze(-1)  # (units, T)
    # (units, T), as rows of all units' weights one below another.
    row = row + torch.arange(block.units, device=row.device).unsqueeze(1) * dense.shape[1]
    flat = dense.view(-1, dense.shape[-1])
    flat.index_add_(0, row.flatten(), block.tokens(values).flatten(0, 1).float())


def _ghost(
    piece: UnitBlock, products: Sequence[Product], rows: Sequence[Rows], device: torch.device
) -> tuple[Tensor, Tensor]:
    """Return ||sum of left^T right + scattered values||^2 and (sum of tokens' norms)^2, (u,) each, without the sum."""
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
