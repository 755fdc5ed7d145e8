"""How numbers and names read in a report."""

from heldin.attacks.statistics import is_of_users
from heldin.audit.bootstrap import Estimate
from heldin.audit.canary_groups import CanaryGroup
from heldin.base.wording import counted
from heldin.record.document import Record
from heldin.words.people import AUDITED, Wording

_BREAK = "\u200b"  # a place where a line may end


def audited_by(record: Record) -> Wording:
    """Words for those whose membership was decided."""
    return AUDITED[record.split.audited]


def of_real_rows(record: Record) -> bool:
    """Return whether every canary user consists of real rows; others are made to be found."""
    return record.canaries is not None and {group.kind for group in record.canaries.groups} == {"real_rows"}


def percent(value: float, digits: int = 1) -> str:
    """A share as "12.3 %"."""
    return f"{100 * value:.{digits}f} %"


def interval(estimate: Estimate, digits: int = 3) -> str:
    """An estimate as "0.712 (95 % interval 0.650 to 0.774)"."""
    return f"{estimate.value:.{digits}f} (95 % interval {estimate.lower:.{digits}f} to {estimate.upper:.{digits}f})"


def group_name(group: CanaryGroup) -> str:
    """A group as "substring of 10 tokens, 100 documents"."""
    length = "" if group.length is None else f" of {counted(group.length, 'token')}"
    documents = "all documents" if group.documents is None else counted(group.documents, "document")
    return f"{group.kind.replace('_', ' ')}{length}, {documents}"


def texts_of(kind: str) -> str:
    """What an attacker's texts are, after a comma, by whether they were trained on."""
    return {
        "fresh": "kept out of training",
        "training": "in the training set if that one was held in",
        "mixed": "some of them in the training set if that one was held in",
        "not known": "of which it is not known whether they were trained on",
    }[kind]


def over_texts(attack: str, aggregation: str) -> str:
    """How the values of somebody's texts became one score, for a column or a legend (``how_aggregated`` elsewhere)."""
    return "together" if is_of_users(attack) else aggregation


def sentence(text: str) -> str:
    """The text with a capital letter and a full stop."""
    return f"{text[:1].upper()}{text[1:].rstrip('.')}."


def breakable(text: str) -> str:
    """A name or a path in which lines may break at punctuation, and in any part of more than 24 characters."""
    parts, run = [], 0
    for character in text:
        parts.append(character)
        run = 0 if character.isspace() else run + 1
        # Names without punctuation, such as hashes, must break too: typst would let them run off the page.
        if character in "/-_.,=:" or run >= 24:
            parts.append(_BREAK)
            run = 0
    return "".join(parts)
