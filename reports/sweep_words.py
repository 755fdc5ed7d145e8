"""A sweep in words: the answer, what it rests on, what to do next, and the rows of tables. No number is computed."""

import string
from collections.abc import Sequence

import yaml

from heldin.attacks.statistics import how_aggregated
from heldin.audit.blocks import LEAST_BLOCKS, Summary
from heldin.audit.shipping import CandidateResult, Shipping, Tested
from heldin.base.wording import counted
from heldin.bounds.verdict import in_parentheses
from heldin.record.sweep import CellResult, SweepResult, VariantResult
from heldin.reports.people import attacker_asks
from heldin.reports.wording import breakable, percent, sentence, texts_of
from heldin.words.people import AUDITED

SHORT = {"epsilon_per_user": "epsilon", "auroc": "AUROC", "loss": "loss", "loss_gain_over_base": "loss gained"}
MEASURES = {
    "epsilon_per_user": "epsilon per user",
    "auroc": "AUROC of every attack",
    "loss": "loss on held-out users' test texts, nats per token",
    "loss_gain_over_base": "loss gained over the base model, nats per token",
}
_PREFERRED = {**MEASURES, "auroc": "the largest AUROC of any attack"}

_MOST_NAMED = 4  # violations on page one


def letters(variants: Sequence[VariantResult]) -> dict[str, str]:
    """A short mark for each variant: a to z, then aa, ab and so on."""
    single = string.ascii_lowercase
    marks = [*single, *(first + second for first in single for second in single)]
    return {variant.name: mark for variant, mark in zip(variants, marks, strict=False)}


def title(result: SweepResult) -> str:
    """What the report is about."""
    return "Defenses compared" if result.rule is None else "Which defense to ship"


def answer(result: SweepResult) -> str:
    """The answer in a sentence."""
    if result.shipping is not None:
        return sentence(result.shipping.said)
    measured = [variant for variant in result.variants if variant.cells]
    beaten = [variant.name for variant in measured if variant.dominated_by]
    text = f"No variant is named: the sweep's file has no rule. {counted(len(measured), 'variant')} were measured"
    if result.blocks < LEAST_BLOCKS:
        return f"{text}, in {counted(result.blocks, 'block')}: what differs, differs between these models."
    if not beaten:
        return f"{text}, and none is shown to be beaten by another."
    return (
        f"{text}; {', '.join(beaten)} {'is' if len(beaten) == 1 else 'are'} beaten by another, which is better in AUROC"
        " or loss and in nothing worse as measured."
    )


def attacker(result: SweepResult) -> str:
    """Who attacks, with what, and what being named means."""
    attacker = result.attacker
    if attacker is None:
        done = any(cell.state == "done" for cell in result.cells)
        return "Cells are attacked in different ways, as each one's report says." if done else "No cell has a result."
    words = AUDITED[attacker.audited]
    wrongly = f"{1000 * attacker.fpr:,.0f}"
    return (
        f"Somebody who can ask for {attacker_asks(attacker.attack)}, and who has"
        f" texts of theirs, {texts_of(attacker.texts)}. The leading attack is {attacker.attack}"
        f" ({how_aggregated(attacker.attack, attacker.aggregation)})."
        f" Named is whoever scores above the threshold that {wrongly} of 1,000 {words.other} exceed, who are named"
        " wrongly; with a lower threshold more are named, rightly and wrongly."
    )


def next_step(result: SweepResult) -> str:
    """What follows, for whoever decides."""
    shipping = result.shipping
    if shipping is None:
        return (
            "To have a variant named, put a decision rule into the file and run it in a new folder: a rule that is"
            " chosen after looking picks what happened to look well. Until then the table shows what each defense"
            " cost and left."
        )
    if shipping.answer == "ship":
        return (
            f"heldin export OUT/cells/{shipping.block}/{shipping.variant} --to FOLDER writes the model with its card."
            " Its report lies in the same folder. Audit again after any further training on these texts."
        )
    if shipping.answer == "none passes":
        return (
            "Ship none of these. What can change the answer is another defense, more users or records, or limits that"
            " somebody is willing to sign; each in a sweep with a folder, and coins, of its own."
        )
    asked = result.rule.candidates if result.rule else []
    if any(cell.state != "done" for cell in result.cells if cell.variant in asked):
        return (
            "Do not read this as a pass. Run the sweep again: the same command runs the cells that have no result. A"
            " cell that fails again says why."
        )
    return (
        "Do not read this as a pass. Run the same file with more blocks or users in a new folder: blocks that are added"
        " to this one after looking would make its levels wrong."
    )


def notes(result: SweepResult) -> list[str]:
    """What a reader must know first: violations, then what the comparison rests on."""
    violated = [
        f"{cell.block}/{cell.variant} ({verdict.subjects}, {verdict.claim}, {verdict.standing},"
        f" {'and for all cells at once' if verdict.jointly_violated else 'in this cell alone'})"
        for cell in result.cells
        for verdict in cell.verdicts
        if verdict.outcome == "violated"
    ]
    more = f" and {len(violated) - _MOST_NAMED} more" if len(violated) > _MOST_NAMED else ""
    violations = [f"A claim is violated in {'; '.join(violated[:_MOST_NAMED])}{more}."] if violated else []
    return [*violations, *(sentence(note) for note in result.notes)]


def rule(result: SweepResult) -> str:
    """The rule in a sentence or two."""
    rule = result.rule
    if rule is None:
        return "None: the sweep's file names no decision."
    needs = [with_names(words) for words in rule.require]
    return (
        f"{'; '.join(needs)}. Of those that pass, the best in {_PREFERRED.get(rule.prefer, rule.prefer)} is shipped."
        f" Candidates: {', '.join(rule.candidates)}. A variant that breaks a limit is recommended with a probability of"
        f" at most {percent(rule.level, 0)}."
    )


def with_names(words: str) -> str:
    """A requirement in words that begin with what is measured, in place of its key."""
    measure, _, rest = words.partition(" ")
    return f"{MEASURES.get(measure, measure)} {rest}"


def main_rows(result: SweepResult) -> list[list[str]]:
    """A row for each variant: mark and name, promise, leakage, named, bound, utility, gradients, seconds, result."""
    marks = letters(result.variants)
    return [
        [
            f"{marks[variant.name]}  {breakable(variant.name)}",
            promise(variant),
            summary(variant.auroc, digits=2),
            summary(variant.named, digits=0),
            "-" if variant.epsilon_at_least is None else f"{variant.epsilon_at_least:.2f}",
            summary(variant.gain, signed=True),
            *_cost(variant),
            outcome(result, variant),
        ]
        for variant in result.variants
    ]


def promise(variant: VariantResult) -> str:
    """The promise in a few words: epsilon, delta, and whom they protect."""
    if variant.promise is None:
        return "not known"
    if variant.epsilon is None:
        return "none"
    return f"{variant.epsilon:.3g} ({variant.delta:g}), {variant.unit}"


def summary(summary: Summary | None, *, digits: int = 3, signed: bool = False) -> str:
    """A number with its interval."""
    if summary is None:
        return "-"
    sign = "+" if signed else ""
    value = f"{summary.value:{sign}.{digits}f}"
    if summary.lower is None or summary.upper is None:
        return value
    return f"{value} ({summary.lower:{sign}.{digits}f} to {summary.upper:{sign}.{digits}f})"


def _cost(variant: VariantResult) -> tuple[str, str]:
    gradients = "-" if variant.gradients is None else f"{variant.gradients:,.0f}"
    return gradients, "-" if variant.seconds is None else f"{variant.seconds:,.0f}"


def outcome(result: SweepResult, variant: VariantResult) -> str:
    """Passes, or why not; and who beats it, by their marks."""
    marks = letters(result.variants)
    outcomes = ["a claim is violated"] if variant.jointly_violated else []
    if result.shipping is not None:
        mine = next((candidate for candidate in result.shipping.candidates if candidate.name == variant.name), None)
        named = result.rule is not None and variant.name in result.rule.candidates
        # A variant whose cells are all done and that was not judged has a measure that could not be taken.
        waits = "not judged yet" if variant.cells < result.blocks else "cannot be judged"
        outcomes.append(_judged(mine, result.shipping) if mine else waits if named else "not a candidate")
    if variant.dominated_by:
        outcomes.append("beaten by " + ", ".join(marks[name] for name in variant.dominated_by))
    worse = [marks[other.name] for other in result.variants if variant.name in other.dominated_by]
    if worse:
        outcomes.append("beats " + ", ".join(worse))
    if variant.cells < result.blocks:
        outcomes.append(f"{variant.cells} of {counted(result.blocks, 'cell')}")
    return "; ".join(outcomes) or "not told apart"


def _judged(candidate: CandidateResult, shipping: Shipping) -> str:
    if shipping.variant == candidate.name:
        return "ship this one"
    if candidate.passes:
        return "passes"
    if candidate.disqualified:
        return candidate.disqualified

    def names(tests: list[Tested]) -> str:
        return ", ".join(SHORT.get(name, name) for name in (test.requirement.split(" ")[0] for test in tests))

    broken = [test for test in candidate.tests if test.broken]
    missed = [test for test in candidate.tests if test.p_value > shipping.level and not test.broken]
    outcomes = [f"breaks: {names(broken)}"] if broken else []
    outcomes += [f"not shown to keep: {names(missed)}"] if missed else []
    return "; ".join(outcomes) or "not shown, corrected for all candidates"


def candidate_rows(result: SweepResult) -> list[list[str]]:
    """A row for each requirement of each candidate: value, limit, p-value, and Holm's over the candidates."""
    rows = []
    for candidate in result.shipping.candidates if result.shipping else []:
        for tested in candidate.tests:
            rows.append(
                [
                    breakable(candidate.name),
                    with_names(tested.requirement),
                    "-" if tested.value is None else f"{tested.value:.4g}",
                    "-" if tested.limit is None else f"{tested.limit:.4g}",
                    f"{tested.p_value:.3f}",
                    f"{candidate.adjusted:.3f}",
                ]
            )
    return rows


def tried_rows(result: SweepResult) -> list[list[str]]:
    """A row for each combination that tuning tried."""
    return [
        [
            breakable(trial.variant),
            "; ".join(f"{breakable(key)}: {breakable(_value(value))}" for key, value in trial.values.items()),
            "no model" if trial.public_loss is None else f"{trial.public_loss:.4f}",
            "chosen" if trial.chosen else "",
        ]
        for trial in result.tried
    ]


def difference_rows(result: SweepResult) -> list[list[str]]:
    """Each variant against the first of its group."""
    return [
        [
            breakable(variant.name),
            breakable(variant.group),
            summary(variant.auroc_difference, signed=True),
            summary(variant.loss_difference, digits=4, signed=True),
            summary(variant.loss, digits=4),
        ]
        for variant in result.variants
        if variant.name != variant.group
    ]


def cell_rows(result: SweepResult) -> list[list[str]]:
    """A row for each cell."""
    return [_cell_row(cell) for cell in result.cells]


def _cell_row(cell: CellResult) -> list[str]:
    verdicts = [
        f"{verdict.subjects}: {verdict.outcome}{in_parentheses(verdict.outcome, verdict.standing)}"
        + ("" if verdict.adjusted is None else f", joint p {verdict.adjusted:.3f}")
        for verdict in cell.verdicts
    ]
    return [
        str(cell.block),
        breakable(cell.variant),
        cell.state if not cell.said else f"{cell.state}: {breakable(cell.said)}",
        *("-" if value is None else f"{value:.{digits}f}" for value, digits in ((cell.auroc, 3), (cell.loss, 4))),
        "-" if cell.epsilon_at_least is None else f"{cell.epsilon_at_least:.2f}",
        "; ".join(verdicts) or "-",
        f"{cell.seconds:,.0f}",
    ]


def setting_rows(result: SweepResult) -> list[list[str]]:
    """What each variant changes of the first one's config."""
    return [
        [
            breakable(variant.name),
            "; ".join(f"{breakable(key)}: {breakable(_value(value))}" for key, value in variant.differs.items()) or "-",
        ]
        for variant in result.variants[1:]
    ]


def _value(value: object) -> str:
    return yaml.safe_dump(value, default_flow_style=True, width=1000).replace("\n...", "").strip()


def commitment_rows(result: SweepResult) -> list[list[str]]:
    """The hash that fixes who was held in, for each block and group of variants."""
    groups = {variant.name: variant.group for variant in result.variants}
    ledgers: dict[tuple[int, str], str] = {}
    for cell in result.cells:
        if cell.ledger_commitment is not None:
            ledgers.setdefault((cell.block, groups[cell.variant]), cell.ledger_commitment)
    return [[str(block), breakable(group), breakable(ledger)] for (block, group), ledger in ledgers.items()]


def over(result: SweepResult) -> str:
    """What the intervals are over."""
    finished = {variant.cells for variant in result.variants if variant.cells}
    if finished - {result.blocks}:
        return (
            "cells are missing: intervals are over the blocks that a variant has, if these are three or more, or over"
            " the users of its only one"
        )
    if result.blocks >= LEAST_BLOCKS:
        return f"intervals over {result.blocks} blocks, which hold over coins, seeds and trainings"
    if result.blocks == 1:
        return "intervals over the users of one block, which leave out that another training gives another model"
    return "two blocks give no interval"


def main_note(result: SweepResult) -> str:
    """How the columns of the main table are to be read."""
    rate = (
        "" if result.attacker is None else f" where {1000 * result.attacker.fpr:,.0f} of 1,000 others are named wrongly"
    )
    return sentence(
        f"means over the blocks with 95 % intervals; {over(result)}. promise: epsilon (delta) and whom"
        " it protects. AUROC: of the leading attack, 0.5 is guessing."
        f" named of 1,000: held-in users whom it names{rate}. epsilon ≥: the largest of its cells, certified for all"
        " cells at once. loss gained: over the base model, on held-out users' test texts, nats per token. s: seconds of"
        " one cell, with attack and report"
    )
