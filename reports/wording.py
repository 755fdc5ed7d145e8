"""How numbers and names read in a report, and the glossary of its terms."""

import string
from collections.abc import Sequence
from typing import TYPE_CHECKING

from heldin.attacks.statistics import is_of_users
from heldin.audit.bootstrap import Estimate
from heldin.audit.results import CanaryGroup
from heldin.base.wording import counted
from heldin.record.document import Record
from heldin.reports.blocks import Facts, Section, texts
from heldin.words.people import AUDITED, Wording

if TYPE_CHECKING:
    from heldin.audit.blocks import Summary
    from heldin.record.sweep import SweepResult, VariantResult

_BREAK = "\u200b"  # a place where a line may end
SHORT = {"epsilon_per_user": "epsilon", "auroc": "AUROC", "loss": "loss", "loss_gain_over_base": "loss gained"}
MEASURES = {
    "epsilon_per_user": "epsilon per user",
    "auroc": "AUROC of every attack",
    "loss": "loss on held-out users' test texts, nats per token",
    "loss_gain_over_base": "loss gained over the base model, nats per token",
}
# At most twenty terms.
TERMS = {
    "leaks": "guessing would reach these scores with a probability of at most 5 %, or a guarantee is contradicted.",
    "no leak found": "not that, the upper limits of all scores are below the size that was fixed beforehand, and the"
    " model did not fail to learn.",
    "inconclusive, not valid": "none of these; or the comparison does not test the model, because the two groups differ"
    " without it.",
    "member, non-member": "a person whose data was used for training, and a comparable one whose data was not. Tables"
    " also say held in and held out.",
    "held in, held out": "those whose texts (of entities: texts that name them) the model was trained on, and"
    " comparable ones that it was not trained on.",
    "AUROC": "how often one who is held in scores above one who is held out: 0.5 is guessing, 1 is certainty.",
    "true-positive rate (TPR) at a false-positive rate (FPR)": "the share of those held in who are named where that"
    " share of those held out is named wrongly, read off a curve of groups of ten or more.",
    "adjusted p-value": "how often redrawing who is held in, with the scores as they are, gives a result at least as"
    " large, corrected for every score that was tried.",
    "simultaneous, all at once": "95 % intervals of all scores together: they stay valid if the largest is picked"
    " afterwards.",
    "epsilon, delta": "the privacy-loss bound of differential privacy (DP): whatever an attacker sees is at most"
    " e^epsilon times as likely with one person's texts as without, plus a probability of delta.",
    "ceiling": "the largest expected AUROC, or TPR, that a DP guarantee leaves to any attack.",
    "certified, indicative, estimate": "valid at the stated level under conditions that heldin checked, or that a"
    " person named in the report declared; the same number where a condition is only asserted, or not met; a number"
    " without such a level.",
    "one-run bounds": "lower limits of epsilon from guessing the fair coins of many people in one training (Steinke et"
    " al. 2023; the f-DP form by Mahloujifar et al. 2024).",
    "Clopper-Pearson, DKW, ROC band": "lower limits of epsilon from many independent trainings: by exact binomial"
    " limits at one threshold, or by a band around the whole curve.",
    "DeLong": "the usual large-sample covariance of AUROCs on the same people.",
    "nat": "the unit of a natural logarithm of a probability; 1 nat is 1.44 bits.",
    "commitment": "a hash that fixes a secret without revealing it: whoever reveals the secret later can be checked.",
    "canary user": "a made-up or altered user, planted by the auditor, each held in by its own fair coin.",
    "token": "a word or a part of one: what a model reads and writes at a time.",
    "mark, exposure": "what all texts of a canary user share; how far its rank, among marks that were drawn alike and"
    " never planted, is above the last one, in powers of two (bits).",
}
# Terms that a report explains only if it has one of these words.
_NEEDED_BY: dict[str, tuple[str, ...]] = {
    "epsilon, delta": ("epsilon",),
    "ceiling": ("ceiling",),
    "certified, indicative, estimate": ("certified", "indicative", "estimate"),
    "one-run bounds": ("one-run",),
    "Clopper-Pearson, DKW, ROC band": ("Clopper-Pearson", "DKW", "ROC band"),
    "DeLong": ("DeLong",),
    "commitment": ("commitment",),
    "canary user": ("canary users",),
    "token": ("token",),
    "mark, exposure": ("Exposure of canary users",),
}


def audited_by(record: Record) -> Wording:
    """Return the words for those whose membership was decided."""
    return AUDITED[record.split.audited]


def of_real_rows(record: Record) -> bool:
    """Return whether every canary user consists of real rows; others are made to be found."""
    return record.canaries is not None and {group.kind for group in record.canaries.groups} == {"real_rows"}


def percent(value: float, digits: int = 1) -> str:
    """Return a share as "12.3 %"."""
    return f"{100 * value:.{digits}f} %"


def interval(estimate: Estimate, digits: int = 3) -> str:
    """Return an estimate as "0.712 (95 % interval 0.650 to 0.774)"."""
    return f"{estimate.value:.{digits}f} (95 % interval {estimate.lower:.{digits}f} to {estimate.upper:.{digits}f})"


def group_name(group: CanaryGroup) -> str:
    """Return a group as "substring of 10 tokens, 100 documents"."""
    length = "" if group.length is None else f" of {counted(group.length, 'token')}"
    documents = "all documents" if group.documents is None else counted(group.documents, "document")
    return f"{group.kind.replace('_', ' ')}{length}, {documents}"


def texts_of(kind: str) -> str:
    """Return whether an attacker's texts were trained on, to follow a comma."""
    return {
        "fresh": "kept out of training",
        "training": "in the training set if that one was held in",
        "mixed": "some of them in the training set if that one was held in",
        "not known": "of which it is not known whether they were trained on",
    }[kind]


def over_texts(attack: str, aggregation: str) -> str:
    """Return how the values of a user's texts became one score, for a column or a legend."""
    return "together" if is_of_users(attack) else aggregation


def sentence(text: str) -> str:
    """Return the text with a capital letter and a full stop."""
    return f"{text[:1].upper()}{text[1:].rstrip('.')}."


def breakable(text: str) -> str:
    """Return a name or a path in which lines may break at punctuation, and in any part of more than 24 characters."""
    parts, run = [], 0
    for character in text:
        parts.append(character)
        run = 0 if character.isspace() else run + 1
        # Names without punctuation, such as hashes, must break too: typst would let them run off the page.
        if character in "/-_.,=:" or run >= 24:
            parts.append(_BREAK)
            run = 0
    return "".join(parts)


def name_measure(words: str) -> str:
    """Return a requirement whose key of a measure is replaced by the name of the measure."""
    measure, _, rest = words.partition(" ")
    return f"{MEASURES.get(measure, measure)} {rest}"


def assign_letters(variants: "Sequence[VariantResult]") -> dict[str, str]:
    """Return a short mark for each variant: a to z, then aa, ab and so on."""
    single = string.ascii_lowercase
    marks = [*single, *(first + second for first in single for second in single)]
    return {variant.name: mark for variant, mark in zip(variants, marks, strict=False)}


def format_summary(summary: "Summary | None", *, digits: int = 3, signed: bool = False) -> str:
    """Return a number with its interval."""
    if summary is None:
        return "-"
    sign = "+" if signed else ""
    value = f"{summary.value:{sign}.{digits}f}"
    if summary.lower is None or summary.upper is None:
        return value
    return f"{value} ({summary.lower:{sign}.{digits}f} to {summary.upper:{sign}.{digits}f})"


def format_promise(variant: "VariantResult") -> str:
    """Return epsilon, delta, and whom they protect."""
    if variant.promise is None:
        return "not known"
    if variant.epsilon is None:
        return "none"
    return f"{variant.epsilon:.3g} ({variant.delta:g}), {variant.unit}"


def describe_intervals(result: "SweepResult") -> str:
    """Return what the intervals of a sweep are over."""
    from heldin.audit.blocks import LEAST_BLOCKS

    finished = {variant.cells for variant in result.variants if variant.cells}
    if finished - {result.blocks}:
        return (
            "training runs are missing: intervals are over the repetitions that a variant has, if these are three or"
            " more, or over the users of its only one"
        )
    if result.blocks >= LEAST_BLOCKS:
        return f"intervals over {result.blocks} repetitions, each with new coin flips, seeds and training runs"
    if result.blocks == 1:
        return "intervals over the users of one repetition; another training run would give another model"
    return "two repetitions give no interval"


def explain_terms(sections: Sequence[Section], level: int = 1) -> Section:
    """Make the section of the terms that occur in other sections."""
    text = "\n".join(texts(sections))
    # Substrings of the text, not whole words: a report with "one-run bound" needs the entry for "one-run".
    left_out = [term for term, words in _NEEDED_BY.items() if not any(word in text for word in words)]
    pairs = [(term, meaning) for term, meaning in TERMS.items() if term not in left_out]
    return Section("glossary", "Words", (Facts(pairs),), level)
