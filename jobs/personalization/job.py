"""Personalization over a finished sweep: each model, trained further on every held-out user's own records.

Charles et al. (2024), Appendix G.2: four epochs of SGD on half of a test user's records, the loss on the other half
before and after, a learning rate that is tuned. Here it is tuned on public users.
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
from heldin.base.coins import keyed_order, seed_key
from heldin.base.errors import InputError
from heldin.base.progress import Reporter
from heldin.corpus.split import Part, Role
from heldin.corpus.store import Corpus, texts_of
from heldin.finetune.batches import encode
from heldin.jobs.config import RunConfig
from heldin.jobs.personalization.training import Change, Halves, personalized
from heldin.jobs.run.corpus import CorpusData, read_corpus
from heldin.jobs.run.data import RunData, prepare_data
from heldin.jobs.run.models import base_model
from heldin.jobs.run.plan import read_run_config
from heldin.models.loading import LanguageModel, load_language_model
from heldin.record.sweep import read_sweep

LEARNING_RATES = (0.003, 0.01, 0.03, 0.1, 0.3)
_PUBLIC_USERS = 50  # that tune the learning rate
_MODEL = Path("checkpoints") / "final"


@dataclass(frozen=True)
class Options:
    """How models are personalized.

    Attributes:
        users: held-out users of each cell, at most.
        records: records of each, at most; half of them are trained on.
        epochs: passes over these.
        learning_rates: of SGD; of several the one with the least loss of public users after training.
    """

    users: int = 200
    records: int = 40
    epochs: int = 4
    learning_rates: tuple[float, ...] = LEARNING_RATES


@dataclass(frozen=True)
class Personalized:
    """What personalization gives under a variant; losses in nats per token, means over held-out users and blocks.

    Attributes:
        variant: its name.
        users: number of users, all blocks together.
        learning_rates: the learning rate of each block's model.
        before: loss on the reserved half of each user's records.
        after: the same after further training on the other half.
        gain: before minus after.
        gain_difference: gain minus the first variant's, of the same users; None for the first and other groups.
    """

    variant: str
    users: int
    learning_rates: tuple[float, ...]
    before: Summary
    after: Summary
    gain: Summary
    gain_difference: Summary | None


@dataclass(frozen=True)
class Study:
    """The study of a sweep.

    Attributes:
        sweep: name of the sweep.
        blocks: number of its blocks.
        options: how models were personalized.
        variants: what was found, in the sweep's order.
    """

    sweep: str
    blocks: int
    options: Options
    variants: tuple[Personalized, ...]

    def as_dict(self) -> dict[str, Any]:
        """Everything as JSON takes it."""
        found = [
            {name: its.model_dump() if isinstance(its, Summary) else its for name, its in vars(variant).items()}
            for variant in self.variants
        ]
        return {"sweep": self.sweep, "blocks": self.blocks, "options": asdict(self.options), "variants": found}


def personalize(sweep: Path, options: Options, reporter: Reporter) -> Study:
    """Personalize the models of a finished sweep.

    Args:
        sweep: its folder, with ledgers and models.
        options: how.
        reporter: receives the progress.

    Raises:
        InputError: the folder lacks what the study needs, or a cell has too few users with two records.
    """
    found = read_sweep(sweep)
    cells = [its for its in found.cells if its.state == "done"]
    if not cells:
        raise InputError(f"'{sweep}' has no finished cell: run the sweep first")
    changes: dict[str, dict[int, tuple[float, dict[str, Change]]]] = {}
    for cell in cells:
        folder = sweep / "cells" / str(cell.block) / cell.variant
        if not (folder / _MODEL).is_dir():
            raise InputError(f"'{folder}' has no model any more: personalization starts from it")
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


def _of_cell(folder: Path, name: str, options: Options, reporter: Reporter) -> tuple[float, dict[str, Change]]:
    config = read_run_config(folder)
    corpus = read_corpus(config, reporter)
    data = prepare_data(config, folder, reporter, corpus, base_model(config, corpus, reporter)[1])
    target = load_language_model(str(folder / _MODEL))
    public = _public_halves(config, corpus, target, options)
    halves = _held_out_halves(config, data, target, options)
    if len(halves) < LEAST_IN_GROUP:
        raise InputError(
            f"cell {name}: {len(halves)} held-out users have two records for training: {LEAST_IN_GROUP} are needed"
        )
    rates = options.learning_rates
    if len(rates) > 1 and len(public) < 2:
        raise InputError(
            f"cell {name}: no two public users to tune the learning rate on: set corpus.public_validation, or give one"
            " --learning-rate"
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
        return rate, {user: trained(its, rate) for user, its in halves.items()}


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
    chosen = dict(list(rows.items())[:_PUBLIC_USERS])
    return _halves(config, corpus.store, chosen, target, options)


def _halves(
    config: RunConfig, store: Corpus, rows: Mapping[str, Sequence[int]], target: LanguageModel, options: Options
) -> dict[str, Halves]:
    """By user the records to train on and those to measure on, chosen by id under a public seed."""
    found: dict[str, Halves] = {}
    for user, its in rows.items():
        by_id = {store.id(row): row for row in its}
        ids = keyed_order(seed_key(config.seed), "personalization", list(by_id))[: options.records]
        if len(ids) >= 2:
            texts = texts_of(store, [by_id[id_] for id_ in ids])
            tokens = encode(target.tokenizer, texts, config.finetune.sequence_length)
            found[user] = (tokens[: len(ids) // 2], tokens[len(ids) // 2 :])
    return found


def _summary(
    name: str,
    blocks: Mapping[int, tuple[float, dict[str, Change]]],
    first: Mapping[int, tuple[float, dict[str, Change]]] | None,
) -> Personalized:
    before, after, gains = [], [], []
    for _, changes in blocks.values():
        before.append(np.array([its.before for its in changes.values()]))
        after.append(np.array([its.after for its in changes.values()]))
        gains.append(before[-1] - after[-1])
    differences = []
    for block, (_, changes) in blocks.items():
        if first is not None and block in first:
            others = first[block][1]
            same = [user for user in changes if user in others]
            differences.append(
                np.array(
                    [
                        changes[user].before - changes[user].after - (others[user].before - others[user].after)
                        for user in same
                    ]
                )
            )
    return Personalized(
        name,
        sum(map(len, gains)),
        tuple(rate for rate, _ in blocks.values()),
        _over(before),
        _over(after),
        _over(gains),
        _over(differences) if differences else None,
    )


def _over(blocks: Sequence[np.ndarray]) -> Summary:
    """Mean over users, then over blocks; in one block with Student's t interval over its users."""
    spread = mean_difference(np.zeros(len(blocks[0])), blocks[0])
    within = (spread.lower, spread.upper) if spread else None
    return over_blocks([float(its.mean()) for its in blocks], within, digits=DIGITS)


def table(found: Study) -> str:
    """The study as plain text."""
    lines = [
        f"loss on half of a held-out user's records, before and after {found.options.epochs} epochs of SGD on the"
        " other half",
        "",
        f"{'variant':<26}{'users':>7}  {'before':<8}{'after':<8}{'gain (95 %)':<28}less the first",
    ]
    for its in found.variants:
        other = "-" if its.gain_difference is None else _interval(its.gain_difference)
        lines.append(
            f"{its.variant:<26}{its.users:>7,}  {its.before.value:<8.3f}{its.after.value:<8.3f}"
            f"{_interval(its.gain):<28}{other}"
        )
    over = "blocks" if found.variants[0].gain.over == "blocks" else "users of these models"
    return "\n".join([*lines, "", f"intervals are over {over}; no epsilon covers a model that was trained further"])


def _interval(its: Summary) -> str:
    if its.lower is None or its.upper is None:
        return f"{its.value:+.3f}"
    return f"{its.value:+.3f} ({its.lower:+.3f} to {its.upper:+.3f})"
