"""The records that each rule of record selection takes from a corpus: lengths, perplexities, and how many are not cut.

Chua et al. (2024), Table 7.
"""

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from heldin.base.coins import seed_key
from heldin.base.progress import Reporter
from heldin.corpus.document import Document
from heldin.corpus.store import texts_of
from heldin.defenses.choices import RecordSelection
from heldin.defenses.data_side.selection import select_records
from heldin.finetune.batches import encode
from heldin.models.loading import LanguageModel
from heldin.models.logprobs import score_texts
from heldin.stages.run_config import RunConfig
from heldin.stages.sides.corpus import read_corpus
from heldin.stages.train.models import base_model

RULES: tuple[RecordSelection, ...] = ("random", "longest", "shortest", "highest_perplexity", "lowest_perplexity")


@dataclass(frozen=True)
class Selected:
    """The records that one rule takes from all users.

    Attributes:
        rule: rule of record selection.
        records: number of taken records.
        length: mean number of tokens after the cut.
        perplexity: mean over records of the exponential of a record's mean token loss under the base model.
        short: share of records that have fewer than the maximum number of tokens, so they are not cut.
    """

    rule: str
    records: int
    length: float
    perplexity: float
    short: float


@dataclass(frozen=True)
class Measured:
    """A record: id, number of tokens after the cut, and mean loss under the base model in nats per token."""

    id: str
    length: int
    loss: float


def of_config(config: RunConfig, records: int, reporter: Reporter) -> tuple[Selected, ...]:
    """Take ``records`` records from each audited user by each rule. Trains no model.

    Args:
        config: config of a run; only its corpus, base model and sequence length are used.
        records: number of records per user, k; a user with fewer records gives each record once.
    """
    corpus = read_corpus(config, reporter)
    base = base_model(config, corpus, reporter)[1]
    users, most = corpus.audited.users, config.finetune.sequence_length
    with reporter.track("records", len(users), "users") as advance:
        measured = []
        for user in users:
            rows = corpus.store.rows(user)
            measured.append(_measured(base, [corpus.store.id(row) for row in rows], texts_of(corpus.store, rows), most))
            advance(1)
    return selected(measured, records, most, seed_key(config.seed))


def _measured(base: LanguageModel, ids: Sequence[str], texts: Sequence[str], most: int) -> list[Measured]:
    lengths = [
        len(its) - 1 for its in encode(base.tokenizer, map(Document.of, texts), most)
    ]  # predictions: the start token is none
    losses = [-sum(its.logprobs[:most]) / len(its.logprobs[:most]) for its in score_texts(base, texts)]
    return [Measured(*its) for its in zip(ids, lengths, losses, strict=True)]


def selected(users: Sequence[Sequence[Measured]], records: int, most: int, key: bytes) -> tuple[Selected, ...]:
    """Apply every rule to the measured records of each user. ``key`` decides for the rule "random"."""

    def taken(rule: RecordSelection) -> list[Measured]:
        found = []
        for i, own in enumerate(users):
            chosen = select_records(
                rule,
                records,
                ids=[its.id for its in own],
                lengths=[its.length for its in own],
                key=key,
                purpose=f"selected records {i}",
                losses=[its.loss for its in own],
            )
            found += [own[place] for place in chosen]
        return found

    return tuple(_summary(rule, taken(rule), most) for rule in RULES)


def _summary(rule: str, taken: Sequence[Measured], most: int) -> Selected:
    mean: Callable[[list[float]], float] = statistics.fmean
    return Selected(
        rule,
        len(taken),
        mean([float(its.length) for its in taken]),
        mean([math.exp(its.loss) for its in taken]),
        mean([float(its.length < most) for its in taken]),
    )


def table(found: Sequence[Selected]) -> str:
    """Return one line per rule."""
    lines = [f"{'rule':<20}{'records':>9}{'mean tokens':>13}{'mean perplexity':>17}{'below the most':>16}"]
    for its in found:
        lines.append(f"{its.rule:<20}{its.records:>9,}{its.length:>13.2f}{its.perplexity:>17.2f}{its.short:>16.2f}")
    return "\n".join(lines)


def as_dict(found: Sequence[Selected]) -> dict[str, Any]:
    """Return the results of all rules, for JSON."""
    return {"selected": [asdict(its) for its in found]}
