"""A bet with a stopping rule: an aggregator that is learned in a rehearsal, another fine-tuning of the same base.

    python benchmarks/rehearsed.py FOLDER [--corpora plays built-in enron] [--coins 0 1 2 3 4 5 6 7]
    python benchmarks/rehearsed.py FOLDER --table

Everything below was fixed and committed before any result.

**The rehearsal.** There is one rehearsal per corpus. It fine-tunes the base with the recipe of `configs/evidence`. Its
people are not audited, pass the same filter, and are as many as the audited people; a fair coin decides whether each of
them is a member. The base was pre-trained on neither these nor the audited people. The built-in corpus has too few
people for this: it has 640 here, and the audited people are a fraction of 0.3 of them.

**The aggregator.** It is a logistic regression with a ridge penalty on 20 features of a user (`features`). All features
use target and reference together; none uses the reference alone. They are five of heldin's statistics, two published
statistics, the mean ratio in bins of difficulty, tails, and the user's extremes. Bins, scales, weights and penalty
(five folds, log loss, 13 values) are learned in the rehearsal. They are applied unchanged to the audited people of
every set of coins.

**The rule.** It uses fresh documents, because on training documents all statistics reach 0.99 and nothing can be
gained; both are printed. The measure is the difference in AUROC from a statistic, over eight sets of coins per corpus,
each a separate training. It is the mean over corpora, with a lower one-sided 95 % limit by Student's t; the corpora's
variances are added, with degrees of freedom by Welch and Satterthwaite. The limit is valid for these rehearsals, not
over rehearsals. `rehearsed` is kept if

1. its gain over `centred` is at least 0.02 and the lower limit above 0, as issue 15 says; and
2. its gain over the present default, `likelihood-ratio`, has a lower limit above 0, because a method that costs a
training and does not beat a free one is no gain.

Otherwise none of its code is released. The same learner on the reference alone is its blind baseline, which must not
separate the groups.
"""

import argparse
import json
import math
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from attack_evidence import CONFIGS, CORPORA, DOCUMENTS, LOW_FPR, SETS
from numpy.typing import NDArray
from scipy import stats
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV

from heldin.attacks.config import Documents
from heldin.attacks.joint import JointAttack, TokenTable
from heldin.attacks.kinds import get_attack
from heldin.attacks.protocol import Uses
from heldin.attacks.scoring import score_attacks
from heldin.base.coins import keyed_order, seed_key
from heldin.base.files import cache_directory, write_text
from heldin.base.progress import LineReporter, Reporter
from heldin.bounds.roc import auroc
from heldin.corpus.user_filter import Selection, select_users
from heldin.finetune.ranks import joined
from heldin.models.opening import load_language_model
from heldin.models.score_cache import ScoreCache
from heldin.stages.run_config import RunConfig, load_config
from heldin.stages.run_folder import take_folder
from heldin.stages.sides.corpus import CorpusData, read_corpus
from heldin.stages.sides.data import prepare_data, texts_under_attack
from heldin.stages.train.models import base_model
from heldin.stages.train.plan import settle_plan
from heldin.stages.train.training import finetune

Array = NDArray[np.float64]

CHANGED = {"built-in": ("corpus.source.parameters.users=640", "corpus.users.fraction=0.3")}
BESIDE = ("likelihood-ratio", "centred", "pooled", "weighted")
LEARNED, BLIND = "rehearsed", "rehearsed, reference alone"
LEAST_GAIN = 0.02
BINS, FOLDS = 5, 5
PENALTIES = np.logspace(-5, 1, 13)
TAIL = 1.0  # nats


def features(tokens: TokenTable, edges: Array) -> Array:
    """Return the features of every user, shape (n, 20).

    Args:
        tokens: tokens of all users.
        edges: edges of the bins of difficulty, log-probabilities under the reference, shape (BINS - 1,), ascending.
    """
    owner, users = tokens.owner_of, tokens.users
    d, counts = tokens.ratios, np.bincount(owner, minlength=users).astype(np.float64)

    def of_tokens(values: Array) -> Array:
        return np.bincount(owner, values, minlength=users) / counts

    texts = tokens.user_of.size
    sums, lengths = np.bincount(tokens.text_of, d, minlength=texts), np.bincount(tokens.text_of, minlength=texts)
    means, starts = sums / lengths, np.flatnonzero(np.diff(tokens.user_of, prepend=-1))
    number = np.diff(np.append(starts, texts))

    def of_texts(values: Array) -> Array:
        return np.add.reduceat(values, starts) / number

    whole = _values("pooled", tokens)
    bins = np.searchsorted(edges, tokens.reference, "right")
    columns = [
        of_texts(sums),
        of_texts(means),
        of_texts(_values("centred", tokens)),
        whole,
        _values("weighted", tokens),
        whole * np.sqrt(counts),
        np.log(_values("ez", tokens) + 1e-3),
        _values("windows", tokens),
        # What each bin of difficulty adds to the pooled mean.
        *(of_tokens(np.where(bins == i, d, 0.0)) for i in range(BINS)),
        of_tokens(np.maximum(d - TAIL, 0.0)),
        of_tokens(np.maximum(-d - TAIL, 0.0)),
        of_tokens(np.clip(d, -TAIL, TAIL)),
        of_tokens(np.sign(d)),
        np.maximum.reduceat(means, starts),
        np.minimum.reduceat(means, starts),
        np.maximum.reduceat(sums, starts),
    ]
    return np.column_stack(columns)


@dataclass(frozen=True, eq=False)
class Aggregator:
    """The result of a rehearsal: bins of difficulty, scales of the features, and a weight for each feature."""

    edges: Array
    middle: Array
    scale: Array
    weights: Array

    def scores(self, tokens: TokenTable) -> Array:
        """Return the score of every user, shape (n,). A higher score means that the user is more likely a member."""
        found = (features(tokens, self.edges) - self.middle) / self.scale @ self.weights
        return np.asarray(found, dtype=np.float64)


def learned(tokens: TokenTable, member: NDArray[np.bool_]) -> Aggregator:
    """Return the aggregator learned in a rehearsal; ``member`` says which users are members, shape (n,)."""
    edges = np.quantile(tokens.reference, np.linspace(0, 1, BINS + 1)[1:-1])
    found = features(tokens, edges)
    middle, scale = found.mean(axis=0), np.maximum(found.std(axis=0), 1e-12)
    model = GridSearchCV(LogisticRegression(max_iter=10_000), {"C": list(PENALTIES)}, cv=FOLDS, scoring="neg_log_loss")
    model.fit((found - middle) / scale, member)
    return Aggregator(edges, middle, scale, model.best_estimator_.coef_[0])


@dataclass(frozen=True)
class Measured:
    """Tokens of users under one fine-tuned model, by kind of documents; tokens under the reference alone; and
    membership."""

    tokens: Mapping[Documents, TokenTable]
    blind: Mapping[Documents, TokenTable]
    statistics: Mapping[Documents, Mapping[str, Array]]
    member: NDArray[np.bool_]


def people(config: RunConfig, corpus: CorpusData) -> tuple[CorpusData, CorpusData]:
    """Return the corpus with its audited people, and the corpus with the people of the rehearsal in their place.

    No public row belongs to either. The people of the rehearsal pass the filter of the audited people. There are as
    many of them, or as many as exist.
    """
    whole = replace(config.corpus.users, fraction=1.0, max_users=None)
    free = select_users(corpus.store, whole, taken=frozenset(corpus.audited.users), seed=config.seed).users
    chosen = keyed_order(seed_key(config.seed), "rehearsal", list(free))[: len(corpus.audited.users)]
    rows = {row for user in chosen for row in corpus.store.rows(user)}
    kept = tuple(row for row in corpus.public.rows if row not in rows)
    public = replace(corpus, public=replace(corpus.public, rows=kept))
    return public, replace(public, audited=Selection(tuple(sorted(chosen)), 0, 0, 0, 0))


def trained(config: RunConfig, corpus: CorpusData, out: Path, reporter: Reporter) -> Measured:
    """Fine-tune the base with fresh coins of the corpus's audited people, and compute the tokens of their texts."""
    take_folder(config, out)
    with joined():
        base_name, base = base_model(config, corpus, reporter)
        data = prepare_data(config, out, reporter, corpus, base)
        result = finetune(config, data, base, settle_plan(config, data, out), out, reporter)
    # From disk: fine-tuning changed the base model in place.
    target, reference = load_language_model(str(result.folder)), load_language_model(base_name)
    seen: list[TokenTable] = []

    class Reader(JointAttack):
        uses = Uses.MODEL
        needs_ids = needs_ranks = True

        def values(self, tokens: TokenTable) -> Array:
            seen.append(tokens)
            return np.zeros(tokens.users)

    reader = Reader("reader")
    member = data.ledger.membership()
    users = list(member)
    tokens, blind, statistics = {}, {}, {}
    cache = ScoreCache(cache_directory() / "scores")
    try:
        for which in DOCUMENTS:
            texts = texts_under_attack(config, data, which)
            assert list(texts.texts) == users
            score_attacks([reader], texts, target, reference, cache)
            tokens[which] = seen.pop()
            # A word's difficulty in the place of its ratio, and no ranks: what texts alone tell of the sides.
            blind[which] = replace(
                tokens[which], ratios=tokens[which].reference, ranks=np.ones_like(tokens[which].ranks)
            )
            statistics[which] = _statistics(texts, target, reference, cache, users)
    finally:
        cache.close()
    shutil.rmtree(out)
    return Measured(tokens, blind, statistics, np.array(list(member.values())))


def _values(name: str, tokens: TokenTable) -> Array:
    attack = get_attack(name)
    assert isinstance(attack, JointAttack)
    return attack.values(tokens)


def _statistics(texts: Any, target: Any, reference: Any, cache: ScoreCache, users: list[str]) -> dict[str, Array]:
    found = score_attacks([get_attack(name) for name in BESIDE], texts, target, reference, cache)
    return {
        name: np.array([np.mean([its.value for its in found if (its.user, its.attack) == (u, name)]) for u in users])
        for name in BESIDE
    }


def measure(corpus_name: str, coins: Sequence[int], folder: Path) -> None:
    """Rehearse once, and apply the result to every set of coins that is not stored yet."""
    config = load_config(CONFIGS / f"{corpus_name}.yaml", CHANGED.get(corpus_name, ()))
    quiet = LineReporter(lambda line: print(line, flush=True))
    audited, rehearsal = people(config, read_corpus(config, quiet))
    path = folder / "rehearsals" / f"{corpus_name}.npz"
    path.parent.mkdir(parents=True, exist_ok=True)
    if not path.is_file():
        its = trained(config, rehearsal, folder / "runs" / f"{corpus_name}-rehearsal", quiet)
        kept: dict[str, Array] = {}
        for which in DOCUMENTS:
            for kind, tokens in (("ratio", its.tokens[which]), ("blind", its.blind[which])):
                kept |= {f"{which} {kind} {name}": value for name, value in vars(learned(tokens, its.member)).items()}
        np.savez(path, **kept)
        print(f"rehearsal: {corpus_name}, {its.member.sum()} of {its.member.size} held in", flush=True)
    with np.load(path) as loaded:
        taught = {
            (which, kind): Aggregator(*(loaded[f"{which} {kind} {name}"] for name in Aggregator.__annotations__))
            for which in DOCUMENTS
            for kind in ("ratio", "blind")
        }
    for number in coins:
        result = folder / "results" / f"{corpus_name}-{number}.json"
        if result.is_file():
            continue
        its = trained(config, audited, folder / "runs" / f"{corpus_name}-{number}", quiet)
        row: dict[str, Any] = {"corpus": corpus_name, "coins": number, "users": its.member.size}
        for which in DOCUMENTS:
            scores = dict(its.statistics[which])
            scores[LEARNED] = taught[which, "ratio"].scores(its.tokens[which])
            scores[BLIND] = taught[which, "blind"].scores(its.blind[which])
            row[which] = {name: _found(values, its.member) for name, values in scores.items()}
        result.parent.mkdir(parents=True, exist_ok=True)
        write_text(result, json.dumps(row) + "\n")
        print(f"done: {result.name}", flush=True)


def _found(scores: Array, member: NDArray[np.bool_]) -> dict[str, float]:
    inside, outside = scores[member], scores[~member]
    return {
        "auroc": auroc(inside, outside),
        "tpr": float((inside > np.quantile(outside, 1 - LOW_FPR)).mean()),
    }


@dataclass(frozen=True)
class PooledGain:
    """The mean over corpora of mean differences over sets of coins, with its lower one-sided 95 % limit."""

    mean: float
    lower: float


def pooled_gain(by_corpus: Sequence[Sequence[float]]) -> PooledGain:
    """Return the gain from differences by corpus. If a corpus has fewer than two, the limit is minus infinity."""
    values = [np.array(its) for its in by_corpus]
    mean = float(np.mean([its.mean() for its in values]))
    if any(its.size < 2 for its in values):
        return PooledGain(mean, -math.inf)
    parts = np.array([its.var(ddof=1) / its.size for its in values]) / len(values) ** 2
    if not parts.any():
        return PooledGain(mean, mean)
    freedom = parts.sum() ** 2 / sum(part**2 / (its.size - 1) for part, its in zip(parts, values, strict=True))
    return PooledGain(mean, mean - float(stats.t.ppf(0.95, freedom)) * math.sqrt(parts.sum()))


def differences(results: Sequence[Mapping[str, Any]], which: str, than: str) -> list[list[float]]:
    """Return the AUROC of ``rehearsed`` minus a statistic's, by corpus and set of coins."""
    return [
        [
            row[which][LEARNED]["auroc"] - row[which][than]["auroc"]
            for row in sorted(results, key=lambda its: its["coins"])
            if row["corpus"] == corpus
        ]
        for corpus in CORPORA
    ]


def kept_by_the_rule(results: Sequence[Mapping[str, Any]]) -> bool | None:
    """Return whether the rule keeps ``rehearsed``; None if a corpus has too few sets of coins to decide."""
    over = {than: differences(results, "fresh", than) for than in ("centred", "likelihood-ratio")}
    if any(len(its) < SETS for by_corpus in over.values() for its in by_corpus):
        return None
    first, second = (pooled_gain(over[than]) for than in ("centred", "likelihood-ratio"))
    return first.mean >= LEAST_GAIN and first.lower > 0 and second.lower > 0


def table(results: Sequence[Mapping[str, Any]]) -> str:
    """Return a Markdown table by corpus and statistic, the pooled gains, and the result of the rule."""
    names = (*BESIDE, LEARNED, BLIND)
    lines = [
        "| corpus | statistic | sets | " + " | ".join(f"{its}: AUROC | TPR at 5 % FPR" for its in DOCUMENTS) + " |"
    ]
    lines.append("|---" * (3 + 2 * len(DOCUMENTS)) + "|")
    for corpus in CORPORA:
        rows = [its for its in results if its["corpus"] == corpus]
        for name in names if rows else ():
            cells = [f"{np.mean([row[w][name][k] for row in rows]):.3f}" for w in DOCUMENTS for k in ("auroc", "tpr")]
            lines.append(f"| {corpus} | {name} | {len(rows)} | {' | '.join(cells)} |")
    lines.append("")
    for which in DOCUMENTS:
        for than in BESIDE:
            by_corpus = differences(results, which, than)
            if all(by_corpus):
                its = pooled_gain(by_corpus)
                each = ", ".join(f"{np.mean(d):+.3f}" for d in by_corpus)
                lines.append(f"{which}: {LEARNED} less {than}: {its.mean:+.4f} (limit {its.lower:+.4f}); {each}")
    said = {None: f"not decided: {SETS} sets of coins on every corpus are needed", True: "kept", False: "not kept"}
    return "\n".join([*lines, f"By the rule: {said[kept_by_the_rule(results)]}."])


def main() -> None:
    """Measure the requested sets that are not stored yet. Then print the table of all stored sets."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--corpora", nargs="+", default=CORPORA, choices=CORPORA)
    parser.add_argument("--coins", nargs="+", type=int, default=range(SETS))
    parser.add_argument("--table", action="store_true", help="measure nothing")
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    for corpus in () if chosen.table else chosen.corpora:
        measure(corpus, chosen.coins, chosen.folder)
    kept = sorted((chosen.folder / "results").glob("*.json"))
    print(table([json.loads(path.read_text(encoding="utf-8")) for path in kept]))


if __name__ == "__main__":
    main()
