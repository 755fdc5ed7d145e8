"""Preference pairs as training records, with stored log-probabilities of their answers under the untrained model.

The reference of direct preference optimisation is the model with which training begins: the base model with its
adapters off. heldin computes its log-probabilities of a pair once. These log-probabilities depend only on the pair and
the base model.
"""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from heldin.base.artefacts import State, artefact_folder, state_of
from heldin.base.errors import InputError
from heldin.base.files import kept_text
from heldin.finetune.batches import collate
from heldin.finetune.precision import Arithmetic, autocast
from heldin.finetune.ranks import first_process_first, rank
from heldin.finetune.sampled_units import MadeSequence
from heldin.finetune.token_store import SizedRecords, bearing_of, lengths_of, sequences_digest
from heldin.models.loading import LanguageModel
from heldin.models.logprobs import batches_by_length, tokens_per_batch
from heldin.models.objective import Objective, row_losses
from heldin.models.tokens import Pair, Tokens

_VALUES, _ABOUT = "reference.bin", "about.txt"


@dataclass(frozen=True, eq=False)
class PreferenceRecords(MadeSequence[Tokens], SizedRecords):
    """Pairs with the objective that compares their answers.

    Attributes:
        pairs: tokens of the pairs.
        objective: objective of the training.
        reference: log-probabilities in nats of both answers of each pair under the model before training, (pairs, 2),
            float32.
    """

    pairs: Sequence[Tokens]
    objective: Objective
    reference: NDArray[np.float32]

    def __len__(self) -> int:
        return len(self.pairs)

    def one(self, number: int) -> Tokens:
        """Return the pair with this number."""
        pair = self.pairs[number]
        assert isinstance(pair, Pair)
        chosen, rejected = self.reference[number].tolist()
        return replace(pair, reference=(chosen, rejected), objective=self.objective)

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Return the number of tokens of each pair."""
        return lengths_of(self.pairs)

    @property
    def bearing(self) -> NDArray[np.int64]:
        """Return the number of counted tokens of each pair."""
        return bearing_of(self.pairs)

    @property
    def digest(self) -> str:
        """Return a hash of pairs, objective and reference."""
        about = f"{sequences_digest(self.pairs)} {self.objective!r}"
        return hashlib.sha256(about.encode() + self.reference.tobytes()).hexdigest()


def preference_records(
    lm: LanguageModel,
    pairs: Sequence[Tokens],
    objective: Objective,
    arithmetic: Arithmetic,
    folder: Path | None = None,
    *,
    alone: bool = True,
    advance: Callable[[int], object] = lambda _: None,
) -> PreferenceRecords:
    """Return pairs as records for a training that begins with this model.

    Args:
        lm: the model before training, without adapters.
        arithmetic: arithmetic of the passes, as in training.
        folder: owner-only folder that stores the reference; None: heldin does not store the reference.
        alone: whether a single process can run the model; if false, all processes make each pass together.
        advance: called with the number of finished pairs.

    Raises:
        InputError: the folder is damaged, or belongs to other pairs or another model.
    """
    if not objective.needs_reference:
        return PreferenceRecords(pairs, objective, np.zeros((len(pairs), 2), dtype=np.float32))
    if folder is None:
        return PreferenceRecords(pairs, objective, reference_of(lm, pairs, arithmetic, advance))
    origin = f"{sequences_digest(pairs)} {lm.fingerprint} {arithmetic}"
    if alone:
        with first_process_first():
            return PreferenceRecords(pairs, objective, _kept(lm, pairs, arithmetic, folder, origin, advance))
    return PreferenceRecords(pairs, objective, _kept(lm, pairs, arithmetic, folder, origin, advance))


def _kept(
    lm: LanguageModel,
    pairs: Sequence[Tokens],
    arithmetic: Arithmetic,
    folder: Path,
    origin: str,
    advance: Callable[[int], object],
) -> NDArray[np.float32]:
    if folder.is_dir():
        if state_of(folder) is not State.WHOLE:
            raise InputError(
                f"'{folder}' is damaged or was changed: remove this folder, and heldin computes the reference again"
            )
        if kept_text(folder / _ABOUT) != origin:
            raise InputError(f"'{folder}' is for other pairs or another base model: use a new run folder")
        return np.fromfile(folder / _VALUES, dtype=np.float32).reshape(-1, 2)
    values = reference_of(lm, pairs, arithmetic, advance)
    if rank() == 0:
        with artefact_folder(folder) as temporary:
            (temporary / _VALUES).write_bytes(values.tobytes())
            (temporary / _ABOUT).write_text(origin, encoding="utf-8")
    return values


@torch.no_grad()
def reference_of(
    lm: LanguageModel, pairs: Sequence[Tokens], arithmetic: Arithmetic, advance: Callable[[int], object]
) -> NDArray[np.float32]:
    """Return the log-probability in nats of the counted tokens of each answer, (pairs, 2).

    Values that are not finite stay in the result, because a unit with a loss that is not finite contributes zero.
    """
    values = np.zeros((len(pairs), 2), dtype=np.float32)
    training = lm.model.training
    lm.model.eval()
    try:
        with autocast(arithmetic, lm.device):
            for batch in batches_by_length(lengths_of(pairs).tolist(), max_tokens=tokens_per_batch(lm.model)):
                rows = collate([row for i in batch for row in pairs[i].rows()], lm.device)
                losses = row_losses(lm.model, rows, once=True)
                values[batch] = -losses.float().cpu().numpy().reshape(-1, 2)
                advance(len(batch))
    finally:
        lm.model.train(training)
    return values
