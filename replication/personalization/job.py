"""Personalization of a finished sweep's models: train each model further on each non-member's own records.

In Charles et al. (2024), Appendix G.2, four epochs of SGD use half of a test user's records. The authors measure the
loss on the other half before and after, and tune the learning rate. This module tunes it on public users.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from heldin.audit.blocks import Summary, over_blocks
from heldin.audit.coarse import LEAST_IN_GROUP
from heldin.audit.utility import DIGITS, mean_difference
from heldin.base.artefacts import require_not_purged
from heldin.base.coins import keyed_order, seed_key
from heldin.base.errors import InputError
from heldin.base.files import one_process_at_a_time
from heldin.base.progress import Reporter
from heldin.corpus.split import Part, Role
from heldin.corpus.store import Corpus, documents_of
from heldin.finetune.batches import encode
from heldin.models.loading import LanguageModel
from heldin.models.opening import load_language_model
from heldin.record.document import read_record
from heldin.record.sweep import read_sweep
from heldin.stages.run_config import RunConfig
from heldin.stages.sides.corpus import VALIDATION_RECORDS, CorpusData, read_corpus
from heldin.stages.sides.data import RunData, prepare_data
from heldin.stages.train.models import base_model
from heldin.stages.train.plan import read_run_config
from replication.personalization.training import Change, Halves, personalized

LEARNING_RATES = (0.003, 0.01, 0.03, 0.1, 0.3)
_PUBLIC_USERS = 50  # that tune the learning rate
_MODEL = Path("checkpoints") / "final"


@dataclass(frozen=True)
class Options:
    """The settings of personalization.

    Attributes:
        users: maximum number of non-members per cell.
        records: maximum number of training-part records per user, as for public users; training uses half of these
            records.
        epochs: number of passes over the training half.
        learning_rates: learning rates of SGD. Of several learning rates, heldin uses the rate with the least loss of
            public users after training.
    """

    users: int = 200
    records: int = VALIDATION_RECORDS
    epochs: int = 4
    learning_rates: tuple[float, ...] = LEARNING_RATES


@dataclass(frozen=True)
class Personalized:
    """The effect of personalization under a variant. Losses are in nats per token, means over non-members and blocks.

    Attributes:
        variant: name of the variant.
        users: number of users in all blocks.
        learning_rates: the learning rate for each block's model.
        before: loss on the reserved half of each user's records.
        after: loss on the reserved half after further training on the other half.
        gain: ``before`` minus ``after``.
        gain_difference: gain minus the first variant's gain for the same users; None for the first variant and other
            groups.
    """

    variant: str
    users: int
    learning_rates: tuple[float, ...]
    before: Summary
    after: Summary
    gain: Summary
    gain_difference: Summary | None


@dataclass(frozen=True)
class CellChanges:
    """The effect of personalization on a cell's non-members.

    Attributes:
        learning_rate: the learning rate that was used.
        users: change of each user's loss, by name.
        measured: settings that determine the measured tokens. heldin does not compare cells with different settings.
    """

    learning_rate: float
    users: Mapping[str, Change]
    measured: tuple[str, int]


Found = dict[str, dict[int, CellChanges]]  # by variant and block


@dataclass(frozen=True)
class Study:
    """The results for one sweep.

    Attributes:
        sweep: name of the sweep.
        blocks: number of blocks of the sweep.
        options: settings of personalization.
        variants: results of the variants, in the sweep's order.
    """

    sweep: str
    blocks: int
    options: Options
    variants: tuple[Personalized, ...]

    def as_dict(self) -> dict[str, Any]:
        """Return all results as JSON values."""
        found = [
            {name: its.model_dump() if isinstance(its, Summary) else its for name, its in vars(variant).items()}
            for variant in self.variants
        ]
        return {"sweep": self.sweep, "blocks": self.blocks, "options": asdict(self.options), "variants": found}


def personalize(sweep: Path, options: Options, reporter: Reporter) -> Study:
    """Personalize the models of a finished sweep, and return the results.

    Args:
        sweep: folder of the sweep, with ledgers and models.
        options: settings of personalization.
        reporter: receives the progress.

    Raises:
        InputError: the folder lacks a file that the study needs, or a cell has too few users with two records.
    """
    with one_process_at_a_time(sweep):
        return _personalize(sweep, options, reporter)


def _personalize(sweep: Path, options: Options, reporter: Reporter) -> Study:
    found = read_sweep(sweep)
    require_not_purged(sweep)
    cells = [its for its in found.cells if its.state == "done"]
    if not cells:
        raise InputError(f"'{sweep}' has no finished cell: run the sweep first")
    folders = [sweep / "cells" / str(its.block) / its.variant for its in cells]
    # All before the first: a lost ledger would be drawn anew, and those held out would be others.
    for folder in folders:
        require_not_purged(folder)
        if not (folder / _MODEL).is_dir() or not (folder / "ledger" / "ledger.json").is_file():
            raise InputError(f"'{folder}' has no model or no ledger, but personalization needs both: restore both")
    changes: Found = {}
    for cell, folder in zip(cells, folders, strict=True):
        its = _of_cell(folder, f"{cell.block}/{cell.variant}", options, reporter)
        changes.setdefault(cell.variant, {})[cell.block] = its
    groups = {its.name: its.group for its in found.variants}
    return Study(
        found.name,
        found.blocks,
        options,
        tuple(
            _summary(name, of_blocks, changes.get(groups[name]) if groups[name] != name else None)
            for name, of_blocks in changes.items()
        ),
    )


def _of_cell(folder: Path, name: str, options: Options, reporter: Reporter) -> CellChanges:
    config, record = read_run_config(folder), read_record(folder / "record.json")
    corpus = read_corpus(config, reporter)
    data = prepare_data(config, folder, reporter, corpus, base_model(config, corpus, reporter)[1])
    target = load_language_model(str(folder / _MODEL))
    if target.fingerprint != record.target.fingerprint:
        raise InputError(f"'{folder / _MODEL}' is not the model in the record: restore the model")
    public = _public_halves(config, corpus, target, options)
    halves = _held_out_halves(config, data, target, options)
    if len(halves) < LEAST_IN_GROUP:
        raise InputError(
            f"cell {name}: {len(halves)} non-members have two records for training, but {LEAST_IN_GROUP} are"
            " needed. Audit more users"
        )
    rates = options.learning_rates
    if len(rates) > 1 and len(public) < 2:
        raise InputError(
            f"cell {name}: there are fewer than two public users to tune the learning rate. Set"
            " corpus.public_validation, or give one --learning-rate"
        )
    total = (len(rates) * len(public) if len(rates) > 1 else 0) + len(halves)
    with reporter.track(f"cell {name}", total, "users") as advance:

        def trained(its: Halves, rate: float) -> Change:
            advance(1)
            return personalized(target.model, its, epochs=options.epochs, learning_rate=rate)

        after = {
            rate: float(np.mean([trained(its, rate).after for its in public.values()]))
            for rate in rates
            if len(rates) > 1
        }
        # A rate at which training diverges is no choice.
        rate = min(after, key=lambda its: after[its] if math.isfinite(after[its]) else math.inf) if after else rates[0]
        measured = (config.model.model_dump_json(), config.finetune.sequence_length)
        return CellChanges(rate, {user: trained(its, rate) for user, its in halves.items()}, measured)


def _held_out_halves(config: RunConfig, data: RunData, target: LanguageModel, options: Options) -> dict[str, Halves]:
    users = [user for user in data.real(data.ledger.users(Role.HELD_OUT)) if user not in data.ledger.entities]
    chosen = keyed_order(seed_key(config.seed), "personalized users", users)[: options.users]
    # Their training records, which nobody trained on: they are held out.
    rows = {user: data.ledger.parts[user][Part.TRAIN] for user in chosen}
    return _halves(config, data.store, rows, target, options)


def _public_halves(config: RunConfig, corpus: CorpusData, target: LanguageModel, options: Options) -> dict[str, Halves]:
    rows: dict[str, list[int]] = {}
    for row in corpus.validation_rows:
        rows.setdefault(corpus.store.record(row).user, []).append(row)
    chosen = keyed_order(seed_key(config.seed), "personalized public users", list(rows))[:_PUBLIC_USERS]
    return _halves(config, corpus.store, {user: rows[user] for user in chosen}, target, options)


def _halves(
    config: RunConfig, store: Corpus, rows: Mapping[str, Sequence[int]], target: LanguageModel, options: Options
) -> dict[str, Halves]:
    """Return, for each user, the records to train on and the records to measure, chosen by id with a public seed."""
    found: dict[str, Halves] = {}
    for user, its in rows.items():
        by_id = {store.id(row): row for row in its}
        ids = keyed_order(seed_key(config.seed), "personalization", list(by_id))[: options.records]
        if len(ids) >= 2:
            documents = documents_of(store, [by_id[id_] for id_ in ids])
            tokens = encode(target.tokenizer, documents, config.finetune.sequence_length)
            found[user] = (tokens[: len(ids) // 2], tokens[len(ids) // 2 :])
    return found


def _summary(name: str, blocks: Mapping[int, CellChanges], first: Mapping[int, CellChanges] | None) -> Personalized:
    before, after, gains, differences = [], [], [], []
    for block, its in blocks.items():
        before.append(np.array([change.before for change in its.users.values()]))
        after.append(np.array([change.after for change in its.users.values()]))
        gains.append(before[-1] - after[-1])
        other = first.get(block) if first else None
        if other is not None and other.measured == its.measured:
            # The same users and halves: both are chosen by public seeds.
            theirs = np.array([other.users[user].before - other.users[user].after for user in its.users])
            differences.append(gains[-1] - theirs)
    return Personalized(
        name,
        sum(map(len, gains)),
        tuple(its.learning_rate for its in blocks.values()),
        _over(before),
        _over(after),
        _over(gains),
        _over(differences) if len(differences) == len(gains) else None,
    )


def _over(blocks: Sequence[np.ndarray]) -> Summary:
    """Return the mean over users, then over blocks. With one block, the result has Student's t interval over its
    users."""
    spread = mean_difference(np.zeros(len(blocks[0])), blocks[0])
    within = (spread.lower, spread.upper) if spread else None
    return over_blocks([float(its.mean()) for its in blocks], within, digits=DIGITS)


def table(found: Study) -> str:
    """Return the study as plain text."""
    lines = [
        f"loss on half of a non-member's training records, before and after {found.options.epochs} epochs of SGD on"
        " the other half",
        "",
        f"{'variant':<26}{'users':>7}  {'before':<8}{'after':<8}{'gain (95 %)':<28}minus the first",
    ]
    for its in found.variants:
        other = "-" if its.gain_difference is None else _interval(its.gain_difference)
        lines.append(
            f"{its.variant:<26}{its.users:>7,}  {its.before.value:<8.3f}{its.after.value:<8.3f}"
            f"{_interval(its.gain):<28}{other}"
        )
    grid, chosen = found.options.learning_rates, {rate for its in found.variants for rate in its.learning_rates}
    if len(grid) > 1 and chosen & {min(grid), max(grid)}:
        lines.append("note: the chosen learning rate is at an end of the grid: another may give a larger gain")
    over = found.variants[0].gain
    if over.lower is not None:
        lines.append(f"intervals are over {'blocks' if over.over == 'blocks' else 'users of these models'}")
    return "\n".join([*lines, "no epsilon covers a model that was trained further"])


def _interval(its: Summary) -> str:
    if its.lower is None or its.upper is None:
        return f"{its.value:+.3f}"
    return f"{its.value:+.3f} ({its.lower:+.3f} to {its.upper:+.3f})"
