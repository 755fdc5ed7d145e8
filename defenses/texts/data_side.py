"""Heuristic defenses on the data side: fewer copies, fewer records of a user, no names. None is a DP guarantee.

They act on training records after the set-asides, in the order given, report what they removed or changed, and declare
what they look at (docs/theory.md#rules-of-the-data). Kandpal et al. (2024), section 4.2.

De-identification replaces mentions of entities by the name of their category (the baseline of Lai et al. 2021): a name
that the source of mentions misses stays.
"""

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Literal, TypeAlias, assert_never

from pydantic import ConfigDict, Field

from heldin.base.coins import keyed_order, seed_key
from heldin.base.errors import InputError
from heldin.base.progress import Reporter, SilentReporter
from heldin.base.section import Count, Few
from heldin.base.wording import counted
from heldin.corpus.document import Document, Spans
from heldin.corpus.entities.config import EntitySourceConfig
from heldin.corpus.entities.spans import CATEGORIES, Category, Span, Text
from heldin.defenses.choices import Choice, DataStep, RecordSelection
from heldin.defenses.texts.near_duplicates import first_of_similar
from heldin.words.data_steps import DataStepText
from heldin.words.statement import Statement


class Deduplicate(Choice):
    """Keep the first of every set of similar texts."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    kind: Literal["deduplicate"] = "deduplicate"
    scope: Literal["user", "corpus"] = "user"
    """Compare a user's texts with each other ("user"), or everybody's texts ("corpus", which voids a user-level
    epsilon)."""
    threshold: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Smallest estimated Jaccard similarity of n-grams at which two texts count as alike; 1: equal texts only."""
    ngram: Few = 5
    """Words in an n-gram."""


CapSelection: TypeAlias = Literal["random", "longest", "shortest", "highest_perplexity", "lowest_perplexity"]


class Cap(Choice):
    """Train on a limited number of records per user."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    kind: Literal["cap"] = "cap"
    records: Count
    """Most records kept per user."""
    selection: CapSelection = "random"
    """Which records are kept; perplexity is that of the base model."""


class DeIdentify(Choice):
    """Replace mentions of people and things by the names of their categories."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    kind: Literal["deidentify"] = "deidentify"
    entities: EntitySourceConfig
    """What finds mentions; a name that it misses stays."""
    categories: Annotated[tuple[Category, ...], Field(min_length=1)] = CATEGORIES
    """Categories of Lai et al. (2021), Table I, that are replaced."""


DataDefense: TypeAlias = Annotated[Deduplicate | Cap | DeIdentify, Field(discriminator="kind")]


@dataclass(frozen=True)
class TrainingRecord:
    """The view of a record that a data-side defense gets.

    Attributes:
        row: row number in the corpus.
        user: who wrote the text.
        id: unique id.
        document: the text, with the parts that count.
    """

    row: int
    user: str
    id: str
    document: Document

    @property
    def text(self) -> str:
        """Return all of the text."""
        return self.document.text


@dataclass(frozen=True)
class Removal:
    """The records that a step removed or changed.

    Attributes:
        users: users who lost records, or whose texts changed.
        changed: records whose text it changed; None for a step that removes records.
    """

    name: Statement
    before: int
    removed: int
    users: int
    changed: int | None = None

    def line(self) -> str:
        """Describe the step's effect, for the terminal."""
        number, did = (self.removed, "left out") if self.changed is None else (self.changed, "changed")
        records, users = counted(self.before, "training record"), counted(self.users, "user")
        return f"{self.name}: {number:,} of {records} {did}, of {users}"


Measure = Callable[[Sequence[Document]], Sequence[float]]

SILENT = SilentReporter()


def declared(defense: DataDefense) -> DataStep:
    """The step as a plan lists it: what it looks at."""
    match defense:
        # The first two are not record-local: without a record its copy stays, or another takes its place.
        case Deduplicate(scope=scope):
            # Across users the first of two copies stays: whether one user's does depends on who else is there.
            return DataStep(name=named(defense), user_local=scope == "user", record_local=False)
        case Cap(selection=selection):
            by_slots = selection == "random"  # by id; every other rule ranks a user's texts
            return DataStep(name=named(defense), user_local=True, record_local=False, slots_only=by_slots)
        case DeIdentify():
            # What is found in a text is a function of that text (corpus.entities.spans.EntitySource).
            return DataStep(name=named(defense), user_local=True, record_local=True)
        case _:
            assert_never(defense)


def named(defense: DataDefense) -> Statement:
    """The step as a plan and a record state it."""
    match defense:
        case Deduplicate(scope=scope, threshold=threshold, ngram=ngram):
            within = DataStepText.DEDUPLICATED_USERS if scope == "user" else DataStepText.DEDUPLICATED_CORPUS
            equal = threshold == 1.0
            return within(
                alike=DataStepText.EQUAL() if equal else DataStepText.SIMILAR(ngram=ngram, threshold=threshold)
            )
        case Cap(records=records, selection=selection):
            return DataStepText.CAPPED(records=records, selection=selection)
        case DeIdentify(entities=entities, categories=categories):
            return DataStepText.DEIDENTIFIED(entities=entities_named(entities.kind, categories))
        case _:
            assert_never(defense)


def entities_named(kind: str, categories: Sequence[Category]) -> str:
    """Describe the entities: the source's kind, and the categories unless all count."""
    return kind if set(categories) == set(CATEGORIES) else f"{kind}: {', '.join(categories)}"


def apply_defenses(
    defenses: Sequence[DataDefense],
    records: Sequence[TrainingRecord],
    *,
    lengths: Measure,
    losses: Measure,
    seed: int,
    reporter: Reporter = SILENT,
) -> tuple[list[TrainingRecord], list[Removal]]:
    """The remaining records, in order, with the texts that are trained on, and what each step did.

    Args:
        defenses: steps, in order.
        records: of all users; the records of a user are adjacent.
        lengths: documents to numbers of counted tokens, for caps that rank by length.
        losses: documents to mean losses of these under the base model, for caps that rank by perplexity.
        seed: public seed of random caps.
    """
    left, removals = list(records), []
    for defense in defenses:
        match defense:
            case Deduplicate():
                kept = _without_copies(defense, left)
            case Cap():
                kept = _capped(defense, left, lengths, losses, seed)
            case DeIdentify():
                kept = _deidentified(defense, left, reporter)
            case _:
                assert_never(defense)
        removals.append(_difference(named(defense), left, kept, rewrites=isinstance(defense, DeIdentify)))
        left = kept
    return left, removals


def as_trained(defenses: Sequence[DataDefense], documents: Mapping[str, Document]) -> list[Document]:
    """The documents as they would be trained on: what steps that change texts make of them, and no record left out.

    Args:
        defenses: steps, in order.
        documents: by record id.
    """
    for defense in defenses:
        if isinstance(defense, DeIdentify):
            changed = _all_deidentified(defense, documents, SILENT)
            documents = dict(zip(documents, changed, strict=True))
    return list(documents.values())


def _difference(
    name: Statement, before: Sequence[TrainingRecord], after: Sequence[TrainingRecord], *, rewrites: bool
) -> Removal:
    documents = {record.row: record.document for record in after}
    gone = [record for record in before if record.row not in documents]
    changed = [record for record in before if documents.get(record.row, record.document) != record.document]
    users = len({record.user for record in [*gone, *changed]})
    return Removal(name, len(before), len(gone), users, len(changed) if rewrites else None)


def _deidentified(defense: DeIdentify, records: Sequence[TrainingRecord], reporter: Reporter) -> list[TrainingRecord]:
    replaced = _all_deidentified(defense, {record.id: record.document for record in records}, reporter)
    return [replace(record, document=document) for record, document in zip(records, replaced, strict=True)]


def shingles(text: str, ngram: int) -> list[str]:
    """The word n-grams of a text; the whole text if it has fewer words."""
    words = text.split()
    return [" ".join(words[i : i + ngram]) for i in range(max(1, len(words) - ngram + 1))]


def _without_copies(defense: Deduplicate, records: Sequence[TrainingRecord]) -> list[TrainingRecord]:
    groups = by_user(records).values() if defense.scope == "user" else [list(records)]
    first = _first_of_equal if defense.threshold == 1.0 else _first_of_similar
    return [record for group in groups for record in first(defense, group)]


def _first_of_equal(_defense: Deduplicate, records: Sequence[TrainingRecord]) -> Iterable[TrainingRecord]:
    seen: set[bytes] = set()
    for record in records:
        digest = hashlib.blake2b(record.document.counted.encode(), digest_size=16).digest()
        if digest not in seen:
            seen.add(digest)
            yield record


def _first_of_similar(defense: Deduplicate, records: Sequence[TrainingRecord]) -> Iterable[TrainingRecord]:
    sets = (shingles(record.document.counted, defense.ngram) for record in records)
    stays = first_of_similar(sets, defense.threshold)
    return [record for record, it_stays in zip(records, stays, strict=True) if it_stays]


def _capped(
    defense: Cap, records: Sequence[TrainingRecord], lengths: Measure, losses: Measure, seed: int
) -> list[TrainingRecord]:
    kept = []
    for user, own in by_user(records).items():
        if len(own) <= defense.records:
            kept += own
            continue
        documents = [record.document for record in own]
        perplexity = defense.selection in ("highest_perplexity", "lowest_perplexity")
        ranked = defense.selection in ("longest", "shortest")
        chosen = select_records(
            defense.selection,
            defense.records,
            ids=[record.id for record in own],
            # Lengths and losses take a tokenizer or a model, so they are computed only for the rules that rank by them.
            lengths=[int(n) for n in lengths(documents)] if ranked else [0] * len(own),
            # A public seed and a purpose of the user's own: the choice looks at nobody else, and needs no secret.
            key=seed_key(seed),
            purpose=f"cap of {user}",
            losses=losses(documents) if perplexity else None,
        )
        kept += [own[i] for i in chosen[: defense.records]]
    return kept


def by_user(records: Iterable[TrainingRecord]) -> Mapping[str, list[TrainingRecord]]:
    """Records by user, both in the order given."""
    records_of: dict[str, list[TrainingRecord]] = {}
    for record in records:
        records_of.setdefault(record.user, []).append(record)
    return records_of


def deidentified(document: Document, mentions: Iterable[Span]) -> Document:
    """The document with every mention replaced, such as "[PERSON] called"; a mention counts if any of it did.

    Mentions that overlap are replaced as one, by the category of the longest: nothing of either is left. What does not
    count is searched too, since a model reads it.
    """
    merged = _merged(mentions)
    pieces, at = [], 0
    for start, end, category in merged:
        pieces += [document.text[at:start], f"[{category.upper()}]"]
        at = end
    text = "".join([*pieces, document.text[at:]])
    return Document.of(text) if document.is_plain else Document(text, _moved(document.spans, merged))


def _moved(spans: Spans, mentions: Sequence[tuple[int, int, Category]]) -> Spans:
    """The parts that count, where mentions were replaced; a mention on an edge is the earlier part's."""
    moved, before = [], 0
    for begin, end in spans:
        first, last = begin, end
        for start, stop, category in mentions:
            longer = len(f"[{category.upper()}]") - (stop - start)
            # An edge inside of a mention moves to the mention's own: before its first character, or behind its last.
            first += longer if stop <= begin else min(0, start - begin)
            last += longer + max(0, stop - end) if start < end else 0
        if max(first, before) < last:
            moved.append((max(first, before), last))
            before = last
    return tuple(moved)


def _all_deidentified(defense: DeIdentify, documents: Mapping[str, Document], reporter: Reporter) -> list[Document]:
    """Each document without the mentions that the source finds in it. Raises InputError for an unusable source."""
    texts = [Text(id_, document.text) for id_, document in documents.items()]
    cleaned = []
    with reporter.track("de-identification", len(texts), "texts") as advance:
        mentions = defense.entities.source().spans(texts)
        for document, spans in zip(documents.values(), mentions, strict=True):
            cleaned.append(deidentified(document, (span for span in spans if span.category in defense.categories)))
            advance(1)
    return cleaned


def _merged(spans: Iterable[Span]) -> list[tuple[int, int, Category]]:
    """Spans that overlap as one, by start."""
    groups: list[list[Span]] = []
    end = -1
    for span in sorted(spans):
        if span.start < end:
            groups[-1].append(span)
        else:
            groups.append([span])
        end = max(end, span.end)
    return [
        (
            group[0].start,
            max(span.end for span in group),
            max(group, key=lambda span: (span.end - span.start, -span.start)).category,
        )
        for group in groups
    ]


# Only "random" is also a trainer's own choice, drawn again in each step (``finetune.units.choose_records``). Every rule
# looks only at one user's records, so it is user-local; a rule that ranks records is not record-local
# (docs/theory.md#rules-of-the-data).
def select_records(
    rule: RecordSelection,
    count: int,
    *,
    ids: Sequence[str],
    lengths: Sequence[int],
    key: bytes,
    purpose: str,
    losses: Sequence[float] | None = None,
) -> list[int]:
    """Positions of at most ``count`` of one user's records, increasing.

    Args:
        rule: "all" (``count`` is ignored), "random" (by a keyed hash of the record ids), "longest", "shortest" (by
            tokens), "highest_perplexity", "lowest_perplexity" (under the base model).
        ids: of the user's records.
        lengths: tokens of each record.
        key: for "random".
        purpose: for "random"; another purpose gives another choice.
        losses: mean token loss of each record under the base model, for the perplexity rules.

    Raises:
        InputError: the count is below 1, a perplexity rule has no losses, or the rule is "random_chunk".
    """
    if count < 1:
        raise InputError(f"records per user is {count}: it must be at least 1")
    order = list(range(len(ids)))
    match rule:
        case "all":
            return order
        case "random":
            position = {name: i for i, name in enumerate(ids)}
            order = [position[name] for name in keyed_order(key, purpose, list(ids))]
        case "longest":
            # Ties by id and not by place, which depends on other users' records (docs/theory.md#rules-of-the-data).
            order.sort(key=lambda i: (-lengths[i], ids[i]))
        case "shortest":
            order.sort(key=lambda i: (lengths[i], ids[i]))
        case "highest_perplexity" | "lowest_perplexity":
            if losses is None:
                raise InputError(f"record selection '{rule}' needs the base model's losses")
            sign = -1.0 if rule == "highest_perplexity" else 1.0
            order.sort(key=lambda i: (sign * losses[i], ids[i]))
        case "random_chunk":
            raise InputError("record selection 'random_chunk' cuts a user's text anew and is not a choice of records")
    return sorted(order[:count])  # back in the order of the file: only which, not in which order, is the rule's
