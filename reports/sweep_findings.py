"""The first page of a sweep's report: the answer, the rule, a row for each variant, the attacker, what to do next."""

from heldin.attacks.statistics import how_aggregated
from heldin.audit.blocks import LEAST_BLOCKS
from heldin.audit.shipping import CandidateResult, Shipping, Tested
from heldin.base.wording import counted
from heldin.record.sweep import SweepResult, VariantResult
from heldin.reports.blocks import Answer, Block, Note, Paragraph, Reference, Signature, Table
from heldin.reports.people import attacker_asks
from heldin.reports.wording import (
    MEASURES,
    SHORT,
    assign_letters,
    breakable,
    describe_intervals,
    format_promise,
    format_summary,
    name_measure,
    percent,
    sentence,
    texts_of,
)
from heldin.words.people import AUDITED

_PREFERRED = {**MEASURES, "auroc": "the largest AUROC of any attack"}
_MOST_NAMED = 4  # violations on page one


def show_answer(result: SweepResult) -> list[Block]:
    """Return the answer, and what must be read before."""
    notes = list_notes(result)
    return [Answer(state_answer(result)), *([Note(" ".join(notes))] if notes else [])]


def state_answer(result: SweepResult) -> str:
    """Return the answer in a sentence."""
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


def list_notes(result: SweepResult) -> list[str]:
    """Return what a reader must know first: violations, then what the comparison rests on."""
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


def show_rule(result: SweepResult) -> list[Block]:
    """Return the rule, with a row for each variant."""
    return [Paragraph(_state_rule(result)), tabulate_variants(result)]


def _state_rule(result: SweepResult) -> str:
    rule = result.rule
    if rule is None:
        return "None: the sweep's file names no decision."
    needs = [name_measure(words) for words in rule.require]
    return (
        f"{'; '.join(needs)}. Of those that pass, the best in {_PREFERRED.get(rule.prefer, rule.prefer)} is shipped."
        f" Candidates: {', '.join(rule.candidates)}. A variant that breaks a limit is recommended with a probability of"
        f" at most {percent(rule.level, 0)}."
    )


def tabulate_variants(result: SweepResult) -> Table:
    """Return a row for each variant."""
    marks = assign_letters(result.variants)
    rows = [
        [
            f"{marks[variant.name]}  {breakable(variant.name)}",
            format_promise(variant),
            format_summary(variant.auroc, digits=2),
            format_summary(variant.named, digits=0),
            "-" if variant.epsilon_at_least is None else f"{variant.epsilon_at_least:.2f}",
            format_summary(variant.gain, signed=True),
            "-" if variant.gradients is None else f"{variant.gradients:,.0f}",
            "-" if variant.seconds is None else f"{variant.seconds:,.0f}",
            _state_outcome(result, variant),
        ]
        for variant in result.variants
    ]
    rate = (
        "" if result.attacker is None else f" where {1000 * result.attacker.fpr:,.0f} of 1,000 others are named wrongly"
    )
    note = sentence(
        f"means over the blocks with 95 % intervals; {describe_intervals(result)}. promise: epsilon (delta) and whom"
        " it protects. AUROC: of the leading attack, 0.5 is guessing."
        f" named of 1,000: held-in users whom it names{rate}. epsilon ≥: the largest of its cells, certified for all"
        " cells at once. loss gained: over the base model, on held-out users' test texts, nats per token. s: seconds of"
        " one cell, with attack and report"
    )
    head = ("defense", "promise", "AUROC", "named of 1,000", "epsilon ≥", "loss gained", "gradients", "s", "result")
    return Table(head, rows, note, numeric=(4, 6, 7), widths=(1.1, *(None,) * 7, 1), dense=True)


def _state_outcome(result: SweepResult, variant: VariantResult) -> str:
    """Return whether a variant passes, or why not; and the marks of variants that beat it."""
    marks = assign_letters(result.variants)
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


def describe_attacker(result: SweepResult) -> str:
    """Return who attacks, with what, and what being named means."""
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


def advise(result: SweepResult) -> str:
    """Return what to do next."""
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


def refer_to_annex(result: SweepResult) -> list[Block]:
    """Return the sentence that points to the annex, and the lines to sign."""
    text = "What was tested and what was not, for which release, and the risk that is left stand in the annex"
    return [Reference(text, "annex"), Signature(f"this page and sweep {result.sweep[:16]}")]
