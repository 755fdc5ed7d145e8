"""Extraction in a report: the people whose texts the model emits, and the number of queries needed."""

from collections.abc import Callable

from heldin.audit.results import Emitted, ExtractionFacts, ExtractionGroup
from heldin.base.wording import counted
from heldin.record.document import Record
from heldin.reports.blocks import Block, Paragraph, Table
from heldin.reports.wording import audited_by

NEITHER = (
    "Membership and extraction are two questions. A model on which membership attacks fail may still write a"
    " training text, and the reverse."
)
_CANARIES = {
    "canary users held in": "canary users that were trained on",
    "canary users held out": "canary users that were not",
}


def extraction_line(record: Record) -> str:
    """Return both groups' results at the largest number of queries, with the reference's; "" without a measurement."""
    facts = record.extraction
    if facts is None:
        return ""
    canaries = record.split.audited == "canaries"
    groups = [facts.of("canary users held in" if canaries else "held in")]
    groups.append(facts.of("canary users held out" if canaries else "held out"))
    sides = [
        f"{_of_group(record, group)} {group.emitted[-1].users:,} of {group.measured:,}" for group in groups if group
    ]
    seen = [group.emitted[-1].reference for group in groups if group]
    # The second control: what any model would write, trained on these people or not.
    also = "" if None in seen else f" Under the reference model: {' and '.join(f'{count:,}' for count in seen)}."
    return (
        f"People with at least one text whose {counted(facts.suffix, 'token')} after {counted(facts.prefix, 'token')}"
        f" of it would be emitted with probability {facts.probability:g} or more within"
        f" {_queries(facts.groups[0].emitted[-1].queries)}: {'; '.join(sides)}.{also}"
    )


def written_out(record: Record) -> str:
    """Return how much training text the model emits, or that this was not tested, for page one."""
    line = extraction_line(record)
    if not line:
        return "Not tested. Results on membership do not limit it."
    return (
        f"{line} A token is a word or a part of one. A low risk of extraction does not imply a low risk of membership"
        " inference, or the reverse."
    )


def most_left(record: Record) -> str:
    """Return the upper limit on the share of affected members at the largest number of queries; "" if not measured."""
    facts = record.extraction
    canaries = record.split.audited == "canaries"
    group = None if facts is None else facts.of("canary users held in" if canaries else "held in")
    if group is None or group.emitted[-1].upper is None:
        return ""
    return (
        f"By these queries, up to {100 * group.emitted[-1].upper:.3g} % of {_of_group(record, group)} may have a text"
        " that the model writes. Other prefixes, near copies and longer attacks were not tried."
    )


def show_extraction(record: Record) -> list[Block]:
    """Return the section on how much training text the model emits; empty if this was not measured."""
    facts = record.extraction
    if facts is None:
        return []
    queries = [emitted.queries for emitted in facts.groups[0].emitted]
    head = ["", "people", "measured", "texts", "too short", *map(_queries, queries)]
    rows = [row for group in facts.groups for row in _extraction_rows(record, group)]
    widths = (2, *(None,) * 4, *(1,) * len(queries))
    table = Table(head, rows, _extraction_note(record, facts), numeric=range(1, len(head)), widths=widths)
    return [Paragraph(_asked(record, facts)), table, Paragraph(NEITHER)]


def _asked(record: Record, facts: ExtractionFacts) -> str:
    draws = "all tokens" if facts.top_k is None else f"the {facts.top_k} likeliest tokens"
    # Fewer than all where ``texts_per_user`` says so.
    where = "texts that training saw or would have seen" if record.kind != "audit" else "texts of the two files"
    return (
        f"Would the model emit texts that it was trained on? One window of {facts.prefix + facts.suffix} tokens a text,"
        f" of {where}: its first {facts.prefix} are given to the model, and a query samples {facts.suffix} more"
        f" (temperature {facts.temperature:g}, among {draws}). Counted are people with at least one text whose own"
        f" tokens follow, all of them, with probability {facts.probability:g} or more within so many queries. The"
        " probability is computed from the model, not sampled."
    )


def _extraction_rows(record: Record, group: ExtractionGroup) -> list[list[str]]:
    numbers = [f"{number:,}" for number in (group.users, group.measured, group.texts, group.too_short)]
    rows = [[_of_group(record, group), *numbers, *map(_share, group.emitted)]]
    more: tuple[tuple[str, Callable[[Emitted], int | None]], ...] = (
        ("by words of nobody else", lambda emitted: emitted.only_theirs),
        ("under the reference", lambda emitted: emitted.reference),
    )
    for name, count in more:
        counts = [count(emitted) for emitted in group.emitted]
        # An empty cell would look like a zero: what was not measured has no row.
        if None not in counts:
            rows.append([f"– {name}", "", "", "", "", *(f"{count:,}" for count in counts)])
    return rows


def _share(emitted: Emitted) -> str:
    if emitted.lower is None or emitted.upper is None:
        return "N/A"
    return f"{emitted.users:,} ({100 * emitted.lower:.4g} to {100 * emitted.upper:.4g}\u00a0%)"


def _extraction_note(record: Record, facts: ExtractionFacts) -> str:
    texts = sum(group.texts for group in facts.groups)
    sentences = [
        "Measured: people with a text long enough, one window of each of these texts. In brackets: exact 95 % limits"
        " of the share among them (Clopper-Pearson). Texts of non-members were not trained on under their names."
        " What the model emits of them is the control, as is what the reference emits."
    ]
    if record.kind == "audit":
        kind = record.scored_texts.kind
        trained_on = {"training": "were trained on", "mixed": "were trained on in part"}
        held_in = trained_on.get(kind, "are not known to have been trained on" if kind == "not known" else "are fresh")
        sentences.append(f"The texts of members {held_in} ({record.scored_texts.known_by}).")
    for name, counts in (
        ("another person's training text", [group.in_others for group in facts.groups]),
        ("a public text", [group.in_public for group in facts.groups]),
    ):
        if None not in counts:
            sentences.append(
                f"Of {counted(texts, 'text')}, the words of {sum(count or 0 for count in counts):,} also occur in"
                f" {name}."
            )
        else:
            sentences.append(f"Whether words also occur in {name} is not known.")
    sentences.append(
        "Only these exact words after these exact prefixes are counted. Other prefixes, paraphrases and near copies"
        " were not tested."
    )
    return " ".join(sentences)


def _of_group(record: Record, group: ExtractionGroup) -> str:
    words = audited_by(record)
    return {"held in": words.member, "held out": words.other}.get(group.group, _CANARIES.get(group.group, ""))


def _queries(number: int) -> str:
    return "1 query" if number == 1 else f"{number:,} queries"
