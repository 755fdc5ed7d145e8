"""Exposure in the extraction stage: canary users' marks and marks never planted, under target and reference.

The candidates follow from the key of the coins, for another purpose than the coins: whoever trains does not know them,
and they depend on no coin. 1,000 are drawn of each recipe, whatever the number of canary users.
"""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import assert_never

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from heldin.attacks.marks import MarkScores
from heldin.base.artefacts import read_table, write_table
from heldin.base.coins import keyed_order
from heldin.base.errors import InputError
from heldin.base.files import text_sha256
from heldin.base.progress import Reporter
from heldin.canaries.candidates import people, phrases, prefixes, signatures, substrings
from heldin.canaries.config import (
    HighTemperatureCanaries,
    NamedPersonCanaries,
    RarePhraseCanaries,
    RealRowCanaries,
    SubstringCanaries,
    UnseenTokenCanaries,
)
from heldin.canaries.kinds import Kind, keyed_dice
from heldin.corpus.split import Part
from heldin.corpus.store import texts_of
from heldin.jobs.config import RunConfig
from heldin.jobs.run.data import RunData
from heldin.jobs.run.extraction_file import MARKS
from heldin.jobs.run.planting import MadeUp, made_up_names
from heldin.jobs.run.rare_pool import rare_pool, spoken_tokens
from heldin.models.loading import LanguageModel
from heldin.models.logprobs import score_texts

CANDIDATES = 1000
_PURPOSE = "marks never planted"


def measure_marks(
    config: RunConfig,
    data: RunData,
    models: tuple[LanguageModel, LanguageModel],
    base: Callable[[], LanguageModel],
    out: Path,
    reporter: Reporter,
) -> MarkScores | None:
    """Scores of all marks, read from ``marks.parquet`` if they are there; None without canary users.

    Args:
        models: the audited model and the reference.
        base: gives the model with which canary users were made.

    Raises:
        InputError: a model is broken.
    """
    if all(canary.kind is Kind.REAL_ROWS for canary in data.canaries.values()):
        return None
    target, reference = models
    of = _name(data, target.fingerprint, reference.fingerprint)
    found = _read(out / MARKS, of=of, say=reporter.say)
    if found is None:
        drawn = _Recipes(config, data, base()).drawn()
        found = _scored(data, drawn, models, reporter)
        _write(found, out / MARKS, of=of)
    return found


def kept_marks(data: RunData, out: Path, *, target: str, reference: str) -> MarkScores:
    """The scores that a record rests on.

    Raises:
        InputError: the file is missing or damaged, or of other models or canary users.
    """
    found = _read(out / MARKS, of=_name(data, target, reference))
    if found is None:
        raise InputError(
            f"'{out / MARKS}' is missing, damaged, or of other models or canary users than the record names"
        )
    return found


@dataclass(frozen=True)
class _Recipes:
    """The recipes of a config's canary users.

    Attributes:
        config: config of the run.
        data: corpus and ledger of the run.
        base: the model with which canary users were made.
    """

    config: RunConfig
    data: RunData
    base: LanguageModel

    def drawn(self) -> dict[str, tuple[list[str], list[str]]]:
        """By recipe its canary users, and marks that were drawn and not planted."""
        found: dict[str, tuple[list[str], list[str]]] = {}
        canaries = self.data.canaries.items()
        for number, spec in enumerate(self.config.canaries):
            if isinstance(spec, SubstringCanaries):
                # One recipe of all sections: a section says who takes part and with how many documents.
                for length in set(spec.lengths):
                    users = [user for user, its in canaries if its.kind is Kind.SUBSTRING and its.length == length]
                    if users and f"substring of {length}" not in found:
                        found[f"substring of {length}"] = (users, self._substrings(length))
            elif not isinstance(spec, RealRowCanaries):  # which have no mark
                users = [user for user, _ in canaries if user.startswith(made_up_names(spec, number))]
                found[f"{spec.kind} {number}"] = (users, self._made_up(spec, number))
        return found

    def _dice(self, recipe: str, identity: str = "") -> random.Random:
        return keyed_dice(self.data.ledger.coins_key, f"{_PURPOSE}: {recipe}", identity)

    def _made_up(self, spec: MadeUp, number: int) -> list[str]:
        dice = self._dice(f"{spec.kind} {number}")
        match spec:
            case UnseenTokenCanaries():
                sections, tokenizer = self.config.canaries, self.base.tokenizer
                spoken = spoken_tokens(sections, tokenizer, self._marks_before(number))
                left = self._left_before(number)
                pool = rare_pool(spec, sections, tokenizer, self.data.corpus, left, spoken)
                return signatures(tokenizer, pool, spec.signature_tokens, CANDIDATES, dice)
            case HighTemperatureCanaries():
                return prefixes(self.base, spec.prefix_tokens, spec.temperature, CANDIDATES, dice)
            case RarePhraseCanaries():
                return phrases(spec.phrase_words, CANDIDATES, dice)
            case NamedPersonCanaries():
                return people(CANDIDATES, dice)
            case _:
                assert_never(spec)

    def _marks_before(self, number: int) -> list[str]:
        """Of the unseen-token users of sections before this one."""
        sections = enumerate(self.config.canaries[:number])
        names = tuple(made_up_names(s, at) for at, s in sections if isinstance(s, UnseenTokenCanaries))
        return [canary.mark for user, canary in self.data.canaries.items() if user.startswith(names)]

    def _left_before(self, number: int) -> list[str]:
        """Audited users whom no section before this one has taken."""
        before = [spec for spec in self.config.canaries[:number] if isinstance(spec, SubstringCanaries)]
        groups = {group for spec in before for group in spec.groups()}
        its = self.data.canaries.values()
        taken = {canary.source for canary in its if (canary.length, canary.documents) in groups}
        return [user for user in self.data.corpus.audited.users if user not in taken]

    def _substrings(self, length: int) -> list[str]:
        """Of texts that are set aside whatever the coins: nobody's training texts."""
        data, recipe = self.data, f"substring of {length}"
        users = sorted(set(data.real(data.ledger.scored_users())) - data.ledger.entities)
        if not users:  # entities are audited: their authors
            users = sorted(set(data.real(data.ledger.parts)) - data.ledger.entities)

        def texts(user: str) -> list[str]:
            parts = data.ledger.parts[user]
            return texts_of(data.store, [row for part in Part if part is not Part.TRAIN for row in parts[part]])

        order = keyed_order(data.ledger.coins_key, f"{_PURPOSE}: {recipe}", users)
        return substrings(
            self.base.tokenizer,
            order,
            texts,
            length,
            CANDIDATES,
            lambda user, turn: self._dice(recipe, f"{turn} {user}"),
        )


def _scored(
    data: RunData,
    drawn: dict[str, tuple[list[str], list[str]]],
    models: tuple[LanguageModel, LanguageModel],
    reporter: Reporter,
) -> MarkScores:
    marks = {canary.mark for canary in data.canaries.values()}
    rows: list[tuple[str, str | None, str]] = [
        (recipe, user, data.canaries[user].mark) for recipe, (users, _) in drawn.items() for user in users
    ]
    rows += [(recipe, None, text) for recipe, (_, candidates) in drawn.items() for text in candidates]
    # Each text once: the same text in another batch may differ by rounding, and would not tie with itself.
    texts = list(dict.fromkeys(text for _, _, text in rows))
    with reporter.track("exposure of marks", len(models) * len(texts), "marks") as advance:
        scores = [_logprobs(model, texts, advance) for model in models]
    at = {text: i for i, text in enumerate(texts)}
    where = np.array([at[text] for _, _, text in rows], dtype=np.intp)
    planted = np.array([text in marks for _, _, text in rows], dtype=np.bool_)
    users = [user for _, user, _ in rows]
    return MarkScores([recipe for recipe, _, _ in rows], users, planted, *(its[where] for its in scores))


def _logprobs(model: LanguageModel, texts: Sequence[str], advance: Callable[[int], object]) -> NDArray[np.float64]:
    """Log-probability of each text after a start token, nats, shape (n,)."""
    found = np.array([its.total for its in score_texts(model, texts)], dtype=np.float64)
    advance(len(texts))
    return found


def _name(data: RunData, target: str, reference: str) -> str:
    # The fingerprint of the store covers every canary user; with another key there are other candidates.
    return text_sha256(target, reference, data.store.fingerprint, str(CANDIDATES), data.ledger.coins_key.hex())


def _write(found: MarkScores, path: Path, *, of: str) -> None:
    columns = {
        "recipe": pa.array(list(found.recipes), pa.string()),
        "user": pa.array(list(found.users), pa.string()),
        "planted": pa.array(found.planted, pa.bool_()),
        "target": pa.array(found.target, pa.float64()),
        "reference": pa.array(found.reference, pa.float64()),
    }
    write_table(columns, path, made_from=of)


def _read(path: Path, *, of: str, say: Callable[[str], object] = lambda _: None) -> MarkScores | None:
    """What ``_write`` wrote; None if there is nothing, or scores of other models or canary users."""
    kept = read_table(path, made_from=of, say=say)
    if kept is None:
        return None
    columns = {name: np.asarray(kept[name]) for name in ("planted", "target", "reference")}
    return MarkScores(kept["recipe"].to_pylist(), kept["user"].to_pylist(), **columns)
