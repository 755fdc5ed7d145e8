"""How a report writes numbers and names, and the glossary terms that it explains."""

import shlex
import string
from collections.abc import Sequence
from typing import TYPE_CHECKING

from heldin.attacks.access import Access
from heldin.attacks.protocol import AttackFacts, how_aggregated
from heldin.audit.bootstrap import Estimate
from heldin.audit.requirement import Requirement
from heldin.audit.results import CanaryGroup
from heldin.base.wording import counted, kind_words
from heldin.record.document import Record
from heldin.reports.blocks import FactList, Place, ReportSection, texts
from heldin.words.evidence import SUBJECTS
from heldin.words.glossary import TERMS
from heldin.words.page_one import AskedOfModels, Limit
from heldin.words.people import AUDITED, Wording
from heldin.words.statement import Statement

if TYPE_CHECKING:
    from heldin.audit.blocks import Summary
    from heldin.record.sweep import VariantResult

_COMMAND_WIDTH = 76  # characters of a line of a command
SHORT = {"epsilon_per_user": "epsilon", "auroc": "AUROC", "loss": "loss", "loss_gain_over_base": "loss gained"}
MEASURES = {
    "epsilon_per_user": "epsilon per user",
    "auroc": "AUROC of every attack",
    "loss": "loss on non-members' test texts, nats per token",
    "loss_gain_over_base": "loss gained over the base model, nats per token",
}


def audited_by(record: Record) -> Wording:
    """Return the words for the units whose membership a coin decided."""
    return AUDITED[record.split.audited]


def audited_subjects(record: Record) -> Statement:
    """Return the audited people, in the words of verdicts."""
    return SUBJECTS[audited_by(record).audited]


def name_primary(record: Record) -> str:
    """Return the name of the primary attack, and whether another attack decided the answer."""
    primary, decided = record.primary(), record.decision.decision
    name = f"the primary attack, {primary.attack} ({how_aggregated(primary.aggregation)})"
    others = decided.separates and decided.strongest != record.attacks.index(primary)
    return f"{name}, and not the deciding attack of page one" if others else name


def of_real_rows(record: Record) -> bool:
    """Return whether every canary user consists of real rows. Other canary users are made to be found."""
    return record.canaries is not None and record.canaries.of_real_rows == record.canaries.users


def percent(value: float, digits: int = 1) -> str:
    """Return a share as "12.3 %"."""
    return f"{100 * value:.{digits}f} %"


def interval(estimate: Estimate, digits: int = 3) -> str:
    """Return an estimate as text, such as "0.712 (95 % interval 0.650 to 0.774)"."""
    return f"{estimate.value:.{digits}f} (95 % interval {estimate.lower:.{digits}f} to {estimate.upper:.{digits}f})"


def group_name(group: CanaryGroup) -> str:
    """Return the name of a group, such as "substring of 10 tokens, 100 documents"."""
    length = "" if group.length is None else f" of {counted(group.length, 'token')}"
    documents = "all documents" if group.documents is None else counted(group.documents, "document")
    return f"{kind_words(group.kind)}{length}, {documents}"


def texts_of(kind: str) -> str:
    """Return a clause, to follow a comma, about whether the attacker's texts are training texts."""
    return {
        "fresh": "which were not trained on",
        "training": "which were trained on if the user is a member",
        "mixed": "some of which were trained on if the user is a member",
        "not known": "of which nobody stated whether they were trained on",
    }[kind]


def attacker_asks(asks: AttackFacts) -> Statement:
    """Return what an attack asks for, and from which models."""
    models = (AskedOfModels.AND_REFERENCE if asks.needs_reference else AskedOfModels.THIS_MODEL)()
    by_level = {Access.TEXT: AskedOfModels.OF_SAMPLES, Access.TOP_K: AskedOfModels.OF_NEXT_TOKENS}
    of_texts = AskedOfModels.OF_VOCABULARY if asks.needs_vocabulary else AskedOfModels.OF_TEXT
    return by_level.get(asks.access, of_texts)(models=models)


def sentence(text: str) -> str:
    """Return the text with a capital letter at the beginning and a full stop at the end."""
    return f"{text[:1].upper()}{text[1:].rstrip('.')}."


def command_in_lines(command: str) -> str:
    """Return a command with a few words per line; the lines can be copied and pasted."""
    try:
        words = [shlex.quote(word) for word in shlex.split(command)]
    except ValueError:  # a part of it was left out, such as a name
        return command
    lines = [""]
    for word in words:
        if lines[-1] and len(lines[-1]) + len(word) >= _COMMAND_WIDTH:
            lines.append(f"    {word}")
        else:
            lines[-1] += f" {word}" if lines[-1] else word
    return " \\\n".join(lines)


def name_measure(words: str) -> str:
    """Return a requirement as text, with the name of the measure in place of its key."""
    measure, _, rest = words.partition(" ")
    return f"{MEASURES.get(measure, measure)} {rest}"


def name_limit(requirement: Requirement) -> Statement:
    """Return one limit of the organisation as a statement."""
    measure = MEASURES[requirement.measure]
    if requirement.at_most is None:
        return Limit.AT_LEAST(measure=measure, value=requirement.at_least)
    return Limit.AT_MOST(measure=measure, value=requirement.at_most)


def assign_letters(variants: "Sequence[VariantResult]") -> dict[str, str]:
    """Return a short mark for each variant: a to z, then aa, ab, and so on."""
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


def format_fit(variant: "VariantResult") -> str:
    """Return units and gradients in training as shares of the numbers in the plan."""
    shares = [(variant.units_of_plan, "units"), (variant.gradients_of_plan, "gradients")]
    return ", ".join(f"{100 * share:.0f} % {unit}" for share, unit in shares if share is not None) or "-"


def format_promise(variant: "VariantResult") -> str:
    """Return epsilon and delta, and the unit that they protect."""
    if variant.promise is None:
        return "not known"
    if variant.epsilon is None:
        return "none"
    return f"{variant.epsilon:.3g} ({variant.delta:g}), {variant.unit}"


def explain_terms(
    front: Sequence[ReportSection], others: Sequence[ReportSection], level: int = 1
) -> tuple[ReportSection, ReportSection]:
    """Return two sections of terms: the terms on page one, for page two, and the terms that only later pages use."""
    here, later = ("\n".join(texts(sections)).lower() for sections in (front, others))
    first = [pair for pair in TERMS.items() if pair[0].lower() in here]
    rest = [pair for pair in TERMS.items() if pair not in first and pair[0].lower() in later]
    return (
        ReportSection("terms", "Terms on page one", (FactList(first),), place=Place.PAGE),
        ReportSection("glossary", "Further terms", (FactList(rest),), level),
    )
