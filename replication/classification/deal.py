"""Assign labelled texts to public and protected pseudo-users, and to a test set that shares no text with either."""

import itertools
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from heldin.base.coins import keyed_order, seed_key
from heldin.base.errors import InputError
from heldin.base.files import text_sha256, whole_file
from heldin.base.progress import Reporter
from heldin.base.wording import counted
from heldin.corpus.build import build_store
from heldin.corpus.sources.bad_rows import BadRowError, BadRows
from heldin.corpus.sources.json_rows import Json
from heldin.corpus.sources.rows import Columns
from heldin.corpus.store import CorpusStore
from heldin.words.rows import RowFault
from heldin.words.statement import Statement
from replication.classification.config import ClassificationConfig
from replication.pseudo_users import sizes


@dataclass(frozen=True)
class Deal:
    """The assignment of texts.

    Attributes:
        classes: the labels, sorted.
        test: pairs of a text and the number of its class.
        public: texts of public pseudo-users; the study does not use their labels.
        store: the texts of the protected pseudo-users.
        labels: class number of each row of the store.
    """

    classes: tuple[str, ...]
    test: tuple[tuple[str, int], ...]
    public: tuple[str, ...]
    store: CorpusStore
    labels: tuple[int, ...]

    def majority_error(self) -> float:
        """Return the test error of a classifier that always predicts the most frequent training class."""
        most = max(range(len(self.classes)), key=self.labels.count)
        return sum(label != most for _, label in self.test) / len(self.test)


def deal(config: ClassificationConfig, out: Path, reporter: Reporter) -> Deal:
    """Assign the texts by the public seed. heldin writes the protected users' texts to a store under ``out``.

    heldin assigns a text that occurs several times only once, so the test set shares no text with training. Users'
    numbers of texts are normal, as in AG News in Lai et al. (2021), Appendix C.

    Args:
        config: config of the study.
        out: folder of the study.
        reporter: receives the number of texts that were left out.

    Raises:
        InputError: the file is unusable, has fewer than two labels, or has too few texts.
    """
    label_of, several = _labelled(config)
    if several:
        reporter.say(f"texts: left out {counted(several, 'text')} with different labels in different rows")
    classes = tuple(sorted(set(label_of.values())))
    if len(classes) < 2:
        raise InputError(
            f"'{config.data.path}': column '{config.data.label}' has {len(classes)} label(s): give two or more"
        )
    # Under a public seed and by the text alone, after texts of several labels were left out: the file's order decides
    # nothing.
    name_of = {text_sha256(text): text for text in label_of}
    texts = [name_of[name] for name in keyed_order(seed_key(config.seed), "deal", list(name_of))]
    shares = _sizes(config)
    needed = config.test_texts + sum(shares)
    if needed > len(texts):
        raise InputError(
            f"'{config.data.path}' has {len(texts):,} different texts, but {needed:,} are needed: lower test_texts,"
            " public_users, users or texts_per_user"
        )
    number = {label: i for i, label in enumerate(classes)}
    rest = iter(texts[config.test_texts :])
    public = [next(rest) for _ in range(sum(shares[: config.public_users]))]
    store = _store(out, rest, shares[config.public_users :])
    return Deal(
        classes,
        tuple((text, number[label_of[text]]) for text in texts[: config.test_texts]),
        tuple(public),
        store,
        tuple(number[label_of[text]] for text in store.texts()),
    )


def _labelled(config: ClassificationConfig) -> tuple[dict[str, str], int]:
    """Return the label of each text, and the number of texts left out because they occur with different labels."""
    label_of: dict[str, str] = {}
    several = set()
    try:
        for batch in config.data.source().batches(BadRows()):
            for text, label in zip(batch["text"].to_pylist(), batch["user"].to_pylist(), strict=True):
                if label_of.setdefault(text, label) != label:
                    several.add(text)
    except BadRowError as error:
        raise InputError(_of_labels(error.fault)) from error
    except InputError as error:
        raise InputError(
            str(error).replace("(--user, --text, or 'columns' in a config)", "(data.label, data.text)")
        ) from error
    return {text: label for text, label in label_of.items() if text not in several}, len(several)


def _of_labels(row: Statement) -> str:
    """Return a row's fault in this study's terms, in which the label replaces the user."""
    place, fault = row.values["place"], row.values["fault"]
    assert isinstance(fault, Statement)
    if fault.states(RowFault.NO_VALUE):
        fault = RowFault.NO_VALUE(**{**fault.values, "role": "label"})
    return f"{RowFault.AT(place=place, fault=fault)}. Correct the row"


def _sizes(config: ClassificationConfig) -> list[int]:
    """Return the number of texts of each pseudo-user, public users first."""
    people = config.public_users + config.users
    return list(itertools.islice(sizes(config.texts_per_user, config.spread, config.seed), people))


def _store(out: Path, texts: Iterator[str], sizes: Sequence[int]) -> CorpusStore:
    path = out / "texts.jsonl"
    with whole_file(path, private=True) as temporary, temporary.open("w", encoding="utf-8") as file:
        for user, size in enumerate(sizes):
            for i in range(size):
                row = {"user": f"user {user:06}", "id": f"{user}-{i}", "text": next(texts)}
                file.write(json.dumps(row, ensure_ascii=False) + "\n")
    return build_store(Json(path, Columns(id="id")), out / "cache")
