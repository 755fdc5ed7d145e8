"""The stage of a white-box audit: a tiny model, some people who write, and canary users with chosen gradients.

What makes the audit tight. A sequence of n tokens has positions 0 .. n - 1, so that the rows of the position embedding
above the longest sequence have gradient exactly zero for every real user: whatever moves in those coordinates is a
canary or noise. A canary along one such coordinate sees, in units of the sensitivity, N(Binom(G, q), s^2) in each step
if it is in and N(0, s^2) if it is out: the dominating pair of Charles et al. (2024), Theorem 1, itself, with no other
user and no other canary in the way. Nothing has to be subtracted. The rows are ordinary parameters to the trainer:
clipped, noised and updated by the same code as every other tensor. Random directions over all parameters (Andrew et
al. 2024) are disturbed by real users and by each other, which costs tightness and never validity.
"""

import functools
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import PreTrainedTokenizerFast

from corpus.coins import fair_coin, keyed_digest
from corpus.errors import InputError
from corpus.files import text_sha256
from corpus.synthetic import SyntheticCorpus, generate
from defenses.choices import FlatClip, NoiseGenerator, NormalisedClip, PoissonSampler
from defenses.mechanism import Mechanism
from finetune.batches import encode
from finetune.units import Gradients, PrivateRecords, PrivateTraining, SampledUnit, plan_private_training
from models.loading import LanguageModel
from models.shape import TinyModel
from models.tiny import new_tiny_model, train_tokenizer

Directions = Literal["coordinate", "random"]
Array = NDArray[np.float64]
Index = NDArray[np.int64]

POSITIONS = "transformer.wpe.weight"  # of GPT-Neo
OVERSIZE = 10.0  # norm of a canary's gradient in clip norms: it is the clip that bounds it
WRITERS, RECORDS = 12, 4  # real users who train along, and records of each
_TOKENS = 24  # of a record
_SHAPE = TinyModel(vocabulary=300, context=_TOKENS, hidden=16, layers=1, heads=2, window=_TOKENS)
_ROOM = 50  # coordinates for each random direction, half of which are in: k / d = 0.01 (accounting.md section 4f)
_LARGEST_CONTEXT = 8_192  # GPT-Neo keeps a mask of context x context


@dataclass(frozen=True)
class Canaries:
    """m canary users with gradients of norm `norm` along unit directions; a public function of (seed, number).

    Attributes:
        count: m.
        norm: of a canary's gradient before clipping.
        shapes: of every trainable tensor, in the model's order; together d coordinates.
        coordinates: the own coordinate of each canary, shape (m,), as a place among the d; None for random directions.
        quiet: places that no canary may touch, shape (p,), where only noise is left.
        seed: public, of random directions.
    """

    count: int
    norm: float
    shapes: Mapping[str, torch.Size]
    coordinates: Index | None
    quiet: Index
    seed: int = 0

    @functools.cached_property
    def offsets(self) -> dict[str, int]:
        """Where each tensor begins among the d coordinates."""
        sizes = [shape.numel() for shape in self.shapes.values()]
        return dict(zip(self.shapes, np.cumsum([0, *sizes[:-1]]).tolist(), strict=True))

    @property
    def dimension(self) -> int:
        """d, the number of trainable parameters."""
        return sum(shape.numel() for shape in self.shapes.values())

    def direction(self, number: int) -> NDArray[np.float32]:
        """Random unit vector of canary `number`, (d,), zero in the quiet places; made on demand, never stored."""
        philox = np.random.Philox(key=np.array([self.seed, number], dtype=np.uint64))
        values = np.random.Generator(philox).standard_normal(self.dimension, dtype=np.float32)
        values[self.quiet] = 0.0
        return np.asarray(values / np.linalg.norm(values.astype(np.float64)), dtype=np.float32)

    def gradient(self, number: int) -> Gradients:
        """The full gradient of canary `number` before clipping; tensors that it does not touch are left out."""
        if self.coordinates is None:
            whole = torch.from_numpy(self.direction(number) * np.float32(self.norm))
            return {
                name: whole[self.offsets[name] :][: shape.numel()].view(shape) for name, shape in self.shapes.items()
            }
        own = torch.zeros(self.shapes[POSITIONS])
        own.view(-1)[int(self.coordinates[number]) - self.offsets[POSITIONS]] = self.norm
        return {POSITIONS: own}

    @property
    def watched(self) -> Index:
        """Places that an observer must keep of each step to project on the canaries, shape (k,)."""
        return np.arange(self.dimension) if self.coordinates is None else self.coordinates

    def projections(self, stream: NDArray[np.float32]) -> Array:
        """Steps at the watched places, shape (T, k), to their projections on each canary's direction, (T, m)."""
        if self.coordinates is not None:
            return stream.astype(np.float64)
        return np.stack([stream @ self.direction(j) for j in range(self.count)], axis=1).astype(np.float64)


@dataclass(frozen=True)
class Stage:
    """Everything of an audit that is public: the mechanism, the writers' records, the canaries, the model's shape."""

    mechanism: Mechanism
    sequences: list[list[int]]
    records: PrivateRecords
    canaries: Canaries
    tokenizer: PreTrainedTokenizerFast
    shape: TinyModel

    @property
    def clip_norm(self) -> float:
        """C."""
        return self.canaries.norm / OVERSIZE

    def model(self) -> LanguageModel:
        """The model before training, the same every time."""
        model = new_tiny_model(self.shape, self.tokenizer, seed=0)
        return LanguageModel(model, self.tokenizer, "white-box audit", text_sha256(repr(self.shape)))

    def coins(self, key: bytes) -> NDArray[np.bool_]:
        """Who is in: an independent fair coin for each canary user under the secret `key`, shape (m,)."""
        return np.array([fair_coin(key, "white-box coin", f"canary {j}") for j in range(self.canaries.count)])

    def training(self, key: bytes, included: NDArray[np.bool_]) -> PrivateTraining:
        """The run with the writers and the included canary users, each G units if examples are sampled for users.

        Args:
            key: secret; the run's own key is derived from it, so that coins and noise share nothing.
            included: shape (m,).
        """
        run_key = keyed_digest(key, "white-box run", "")
        chunk = _TOKENS if self.mechanism.record_selection == "random_chunk" else None
        writers = plan_private_training(self.mechanism, run_key, self.records, NoiseGenerator.PHILOX, chunk=chunk)
        members = range(self.mechanism.members)
        units = [
            SampledUnit(f"canary {j} example {i}", (), canary=int(j)) for j in np.flatnonzero(included) for i in members
        ]
        return replace(writers, units=(*writers.units, *units), canaries=self.canaries)


def set_stage(
    mechanism: Mechanism, canaries: int, *, directions: Directions = "coordinate", quiet: int = 2000, seed: int = 0
) -> Stage:
    """Lay out an audit of `mechanism`: a model with room for the canaries, writers from the synthetic corpus.

    Args:
        mechanism: Poisson-sampled, with noise, with a guarantee.
        canaries: m, users whose coins are flipped; at least two.
        directions: each canary its own coordinate (tight), or a random direction over all parameters.
        quiet: coordinates kept free of canaries for the noise test.
        seed: public, of texts and of random directions.

    Raises:
        InputError: a mechanism that is not tested here, or more canaries than the tiny model has room for.
    """
    check_auditable(mechanism)
    if canaries < 2:
        raise InputError(f"{canaries} canaries: a white-box audit needs at least two")
    columns = _SHAPE.hidden
    own = canaries if directions == "coordinate" else 0
    room = own or _ROOM * canaries  # random directions disturb each other by included canaries / d of their variance
    context = _TOKENS + 1 + -(-(room + quiet) // columns)
    if context > _LARGEST_CONTEXT:
        most = ((_LARGEST_CONTEXT - _TOKENS - 1) * columns - quiet) // (1 if own else _ROOM)
        raise InputError(f"{canaries} canaries do not fit: at most {most} in one training; use more seeds instead")
    spec = SyntheticCorpus(users=WRITERS, mean_records=RECORDS, min_records=RECORDS, seed=seed)
    mails = list(generate(spec))
    tokenizer = train_tokenizer([mail.text for mail in mails], _SHAPE.vocabulary)
    sequences = encode(tokenizer, [mail.text for mail in mails], _TOKENS)
    shape = TinyModel(_SHAPE.vocabulary, context, columns, _SHAPE.layers, _SHAPE.heads, _SHAPE.window)
    lengths = [len(s) for s in sequences]
    records = PrivateRecords([m.id for m in mails], [m.user for m in mails], lengths, [0.0] * len(mails))
    model = new_tiny_model(shape, tokenizer, seed=0)
    shapes = {name: p.shape for name, p in model.named_parameters() if p.requires_grad}
    first = sum(p.numel() for p in list(model.parameters())[: list(shapes).index(POSITIONS)])
    free = first + max(lengths) * columns + np.arange((context - max(lengths)) * columns)
    canary = Canaries(
        canaries, OVERSIZE * _clip_norm(mechanism), shapes, free[:own] if own else None, free[own : own + quiet], seed
    )
    return Stage(mechanism, sequences, records, canary, tokenizer, shape)


def check_auditable(mechanism: Mechanism) -> None:
    """Raises InputError unless the mechanism is Poisson-sampled, clips every unit and has a guarantee to test."""
    if not isinstance(mechanism.sampler, PoissonSampler):
        raise InputError(
            f"the white-box audit follows Poisson sampling; this plan's sampler is {mechanism.sampler.kind}: its canary"
            " users would crowd the others out"
        )
    if mechanism.unit == "none" or mechanism.reasons():
        raise InputError(f"the white-box audit needs a guarantee to test: {mechanism.guarantee().label}")


def _clip_norm(mechanism: Mechanism) -> float:
    assert isinstance(mechanism.clip, FlatClip | NormalisedClip)
    return mechanism.clip.norm
