"""Page one of a sweep's report, and the comparison for the terminal."""

import shlex
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from heldin.attacks.protocol import how_aggregated
from heldin.audit.blocks import LEAST_BLOCKS, Summary
from heldin.audit.decision import Answer
from heldin.audit.shipping import LEAST_BLOCKS as LEAST_OF_RULE
from heldin.audit.shipping import CandidateResult, Shipping, Tested
from heldin.base.wording import counted
from heldin.bounds.verdict import describe_outcome
from heldin.record.compare import fitted
from heldin.record.release import release_of
from heldin.record.sweep import Rule, SweepResult, VariantResult
from heldin.reports.blocks import Banner, Block, FactList, FramedNote, Paragraph, Signature, Table
from heldin.reports.page_one import describe_auditor, state_release, written, written_date
from heldin.reports.wording import (
    MEASURES,
    SHORT,
    assign_letters,
    attacker_asks,
    format_fit,
    format_promise,
    format_summary,
    name_measure,
    percent,
    sentence,
    texts_of,
)
from heldin.words.page_one import NotTested
from heldin.words.people import AUDITED
from heldin.words.statement import Statement
from heldin.words.sweep_page import Chosen, Compared, SweepAdvice, SweepLabel

_PREFERRED = {**MEASURES, "auroc": "the largest AUROC of any attack"}
_LARGE_DELTA = 0.1  # times users, from which delta is too large for comfort
_MOST_NAMED = 4  # violations, and defenses in a list on page one: its table has all
_GRAVEST = (Answer.LEAKS, Answer.NOT_VALID, Answer.INCONCLUSIVE, Answer.NO_LEAK)
_HEAD = (
    "variant",
    "defense",
    "epsilon",
    "AUROC (95 %)",
    "AUROC vs the first",
    "loss",
    "loss vs the first",
    "perplexity",
    "gain over base",
    "of plan",
    "runs",
)


def answer_of(result: SweepResult, variant: str) -> Answer | None:
    """Return the answer for a variant over its repetitions; None if no repetition is done.

    The variant leaks if more than half of its repetitions leak, so a single false alarm does not decide. The answer is
    "no leak found" only if every repetition has this answer.
    """
    return _over_repetitions([cell.answer for cell in result.cells if cell.variant == variant])


def answer_on_canaries(result: SweepResult, variant: str) -> Answer | None:
    """Return the answer for a variant's canary users, by the rule of ``answer_of``; None without canary users."""
    return _over_repetitions([cell.canaries_answer for cell in result.cells if cell.variant == variant])


def _over_repetitions(given: Sequence[str | None]) -> Answer | None:
    answers = [Answer(answer) for answer in given if answer is not None]
    if not answers:
        return None
    if Answer.NOT_VALID in answers:
        return Answer.NOT_VALID
    if 2 * answers.count(Answer.LEAKS) > len(answers):
        return Answer.LEAKS
    return Answer.NO_LEAK if set(answers) == {Answer.NO_LEAK} else Answer.INCONCLUSIVE


def answer_of_sweep(result: SweepResult) -> Answer | None:
    """Return the answer for the selected variant. If no variant is selected, return the most serious answer of any
    variant."""
    if result.shipping is not None and result.shipping.variant is not None:
        return answer_of(result, result.shipping.variant)
    answers = {answer_of(result, variant.name) for variant in result.variants}
    return next((answer for answer in _GRAVEST if answer in answers), None)


def show_answer(result: SweepResult) -> list[Block]:
    """Return the compared variants, and the banner with the answer."""
    done = sum(cell.state == "done" for cell in result.cells)
    release = release_of(result.config)
    facts = FactList(
        [
            (
                "Compared",
                f"{counted(len(result.variants), 'defense')}, {done} of {len(result.cells)} training runs done",
            ),
            *state_release(release),
            ("Sweep", f"{written_date(result.created)}, {describe_auditor(release)}, sweep {result.sweep[:12]}"),
        ]
    )
    answer = answer_of_sweep(result) or Answer.INCONCLUSIVE
    return [facts, Banner(answer.value, title_of(result), written(state_answer(result)))]


def title_of(result: SweepResult) -> str:
    """Return the text of the banner: the model to release, if there is one, or else the most serious answer."""
    advice = recommend(result)
    if advice.states(SweepAdvice.EXPORT):
        return str(Chosen.RELEASE(variant=_selected(result).label))
    if advice.states(SweepAdvice.NONE):
        return str(Chosen.RELEASE_NONE())
    return (answer_of_sweep(result) or Answer.INCONCLUSIVE).value.capitalize()


def _selected(result: SweepResult) -> VariantResult:
    assert result.shipping is not None
    name = result.shipping.variant
    return next(variant for variant in result.variants if variant.name == name)


def state_answer(result: SweepResult) -> list[Statement]:
    """Return the selected variant, its cost, and the results of the other models."""
    shipping = result.shipping
    if not any(variant.cells for variant in result.variants):
        return [Chosen.NOTHING_DONE()]
    if shipping is not None and shipping.variant is not None:
        return [_state_selected(result, shipping), *_state_others(result), *_state_price(result)]
    leaking = [variant.label for variant in result.variants if answer_of(result, variant.name) is Answer.LEAKS]
    values = {"leaking": Chosen.LEAKING(variants=_list(leaking)) if leaking else None}
    if shipping is None:
        return [Chosen.NO_RULE(**values)]
    return [(Chosen.NONE_PASSES if shipping.answer == "none passes" else Chosen.UNDECIDED)(**values)]


def _state_selected(result: SweepResult, shipping: Shipping) -> Statement:
    passing = sum(candidate.passes for candidate in shipping.candidates)
    code = Chosen.ONLY_ONE if passing <= 1 else Chosen.BEST_OF
    if len(shipping.candidates) == 1:
        code = Chosen.ONLY_CANDIDATE
    return code(
        variant=_selected(result).label,
        passing=passing,
        count=len(shipping.candidates),
        although=_although(result, shipping),
    )


def _state_others(result: SweepResult) -> list[Statement]:
    """Return the answers of the variants that were not selected, the most serious first."""
    selected = _selected(result).label
    others = {
        answer: [label for label in labels if label != selected]
        for answer, labels in _by_answer(result, answer_of).items()
    }
    parts = [Chosen[f"OTHER_{answer.name}"](variants=_list(names)) for answer, names in others.items() if names]
    return [Chosen.OTHERS(answers=parts)] if parts else []


def _state_price(result: SweepResult) -> list[Statement]:
    """Return how much of plain training's gain the selected variant keeps, and delta times the number of users."""
    selected = _selected(result)
    plain = next((v for v in result.variants if v.group == selected.group and v.is_plain), None)
    stated = []
    if plain is not None and plain is not selected and plain.gain and selected.gain and plain.gain.value > 0.0:
        stated.append(Chosen.KEEPS(percent=100 * selected.gain.value / plain.gain.value))
    if selected.delta is not None and selected.trained_users:
        product = selected.delta * selected.trained_users
        stated.append((Chosen.DELTA if product < _LARGE_DELTA else Chosen.LARGE_DELTA)(product=product))
    return stated


def _although(result: SweepResult, shipping: Shipping) -> Statement | None:
    """Return findings against the selected variant and its model, as the end of a sentence."""
    variant = shipping.variant or ""
    answers = {cell.block: cell.answer for cell in result.cells if cell.variant == variant and cell.answer is not None}
    reasons = []
    match answer_of(result, variant):
        case Answer.LEAKS:
            reasons.append(Chosen.LEAKS())
        case Answer.INCONCLUSIVE:
            leaking = list(answers.values()).count(Answer.LEAKS.value)
            reasons.append(Chosen.INCONCLUSIVE(leaking=leaking, count=len(answers)))
            if shipping.block is not None and answers.get(shipping.block) == Answer.LEAKS.value:
                reasons.append(Chosen.OWN_LEAK(folder=str(result.cell_folder(shipping.block, variant))))
        case Answer.NOT_VALID:
            reasons.append(Chosen.NOT_VALID())
        case _:
            pass
    if answer_on_canaries(result, variant) is Answer.LEAKS:
        reasons.append(Chosen.CANARIES_LEAK())
    return Chosen.ALTHOUGH(against=reasons) if reasons else None


def _list(names: list[str]) -> str:
    """Return variant names, in the order of the table. If there are many names, return two names and a count."""
    return ", ".join(names) if len(names) <= _MOST_NAMED else f"{', '.join(names[:2])} and {len(names) - 2} more"


def state_leaks(result: SweepResult) -> list[Statement]:
    """Return the variants by answer, the most serious first; empty if the banner already lists them."""
    if result.shipping is not None and result.shipping.variant is not None:
        return []
    return [
        Compared.ANSWER(answer=answer.value.capitalize(), variants=_list(names))
        for answer, names in _by_answer(result, answer_of).items()
        if names
    ]


def state_people(result: SweepResult) -> list[Statement]:
    """Return how many people are flagged under the first variants and under the selected variant."""
    selected = result.shipping.variant if result.shipping else None
    measured = [v for v in result.variants if v.flagged is not None and v.name not in result.not_valid]
    shown = [v for i, v in enumerate(measured) if len(measured) < _MOST_NAMED or i < 2 or v.name == selected]
    people = [
        Compared.PEOPLE(
            variant=variant.label,
            rate=variant.flagged.value,
            interval=_interval(variant.flagged),
            wrong=variant.wrongly,
        )
        for variant in shown
        if variant.flagged is not None
    ]
    return [Compared.FLAGGED(people=people)] if people else []


def _interval(summary: Summary) -> Statement | None:
    if summary.lower is None or summary.upper is None:
        return None
    return Compared.INTERVAL(lower=summary.lower, upper=summary.upper)


def state_evidence(result: SweepResult) -> list[Statement]:
    """Return the basis of the comparison."""
    if any(cell.tests is not None and not cell.tests.certifiable for cell in result.cells):
        return [Compared.ASSERTED()]
    if result.blocks < LEAST_BLOCKS:
        return [Compared.ONCE(blocks=result.blocks, least=LEAST_BLOCKS)]
    return [Compared.REPEATED(blocks=result.blocks)]


def state_canaries(result: SweepResult) -> list[Statement]:
    """Return the variants by the answer for canary users, the most serious first; empty without canary users."""
    return [
        Compared.CANARIES(answer=answer.value.capitalize(), variants=_list(names))
        for answer, names in _by_answer(result, answer_on_canaries).items()
        if names
    ]


def _by_answer(result: SweepResult, answer: Callable[[SweepResult, str], Answer | None]) -> dict[Answer, list[str]]:
    """Return the labels of variants by answer, the most serious answer first."""
    given = {variant.label: answer(result, variant.name) for variant in result.variants}
    return {each: [label for label, its_answer in given.items() if its_answer is each] for each in _GRAVEST}


def state_learned(result: SweepResult) -> list[Statement]:
    """Return the variants that lowered the loss of non-members."""
    groups: dict[Compared, list[str]] = {}
    for variant in result.variants:
        if not variant.cells:
            continue
        gain = variant.gain
        if gain is None:
            code = Compared.GAIN_NOT_MEASURED
        elif gain.lower is None:
            code = Compared.GAIN_WITHOUT_INTERVAL
        else:
            code = Compared.LEARNED if gain.lower > 0.0 else Compared.LEARNED_NOTHING
        groups.setdefault(code, []).append(variant.label)
    return [code(variants=_list(names)) for code, names in groups.items()]


def state_guarantees(result: SweepResult) -> list[Statement]:
    """Return the guarantees, and the contradicted ones among them."""
    private = [variant for variant in result.variants if variant.epsilon is not None]
    if not private:
        return [Compared.NO_GUARANTEE()]
    certified = [variant.label for variant in private if variant.jointly_contradicted]
    suspected = [
        variant.label
        for variant in private
        if variant.label not in certified
        and any(v.outcome == "contradicted" for c in result.cells if c.variant == variant.name for v in c.verdicts)
    ]
    statements = [Compared.GUARANTEES(variants=_list([variant.label for variant in private]))]
    statements += [Compared.CONTRADICTED(variants=", ".join(certified))] if certified else []
    statements += [Compared.SUSPECTED(variants=", ".join(suspected))] if suspected else []
    return statements if certified or suspected else [*statements, Compared.NOT_CONTRADICTED()]


def state_beaten(result: SweepResult) -> list[Statement]:
    """Return the variants that another variant dominates."""
    beaten = [variant.label for variant in result.variants if variant.dominated_by]
    return [Compared.BEATEN(variants=_list(beaten))] if beaten else []


def recommend(result: SweepResult) -> Statement:
    """Return the recommended next step."""
    shipping, contradicted = result.shipping, [v.label for v in result.variants if v.jointly_contradicted]
    if contradicted:
        return SweepAdvice.BEYOND(variants=", ".join(contradicted), next=_advise(result, shipping))
    return _advise(result, shipping)


def _advise(result: SweepResult, shipping: Shipping | None) -> Statement:
    asked = result.rule.candidates if result.rule else [variant.name for variant in result.variants]
    missing = {cell.state for cell in result.cells if cell.variant in asked and cell.missing}
    if missing:
        return SweepAdvice.CORRECT() if "refused" in missing else SweepAdvice.RUN_AGAIN()
    if shipping is None:
        advice = SweepAdvice.SET_RULE(blocks=LEAST_OF_RULE)
        leaking = _by_answer(result, answer_of)[Answer.LEAKS]
        return SweepAdvice.LEAKING(variants=_list(leaking), next=advice) if leaking else advice
    if shipping.variant is not None:
        folder = str(result.cell_folder(shipping.block, shipping.variant))
        if answer_of(result, shipping.variant) is Answer.NOT_VALID:
            return SweepAdvice.NOT_VALID(variant=shipping.variant, folder=folder)
        return SweepAdvice.EXPORT(
            variant=shipping.variant, folder=folder, quoted=shlex.quote(folder), although=_although(result, shipping)
        )
    if shipping.answer == "none passes":
        return SweepAdvice.NONE()
    needed = [candidate.blocks_needed for candidate in shipping.candidates if candidate.blocks_needed is not None]
    return SweepAdvice.MORE_BLOCKS(blocks=min(needed)) if needed else SweepAdvice.MORE_USERS()


def state_not_tested(result: SweepResult) -> list[Statement]:
    """Return the facts that no test checked."""
    extracted = any(cell.tests is not None and cell.tests.extraction is not None for cell in result.cells)
    kinds = [NotTested.WEIGHTS(), NotTested.ATTRIBUTES(), NotTested.RECONSTRUCTION()]
    return [NotTested.ALL(kinds=kinds if extracted else [NotTested.EXTRACTION(), *kinds])]


_LINES = (
    (SweepLabel.LEAKS, state_leaks),
    (SweepLabel.PEOPLE, state_people),
    (SweepLabel.EVIDENCE, state_evidence),
    (SweepLabel.CANARIES, state_canaries),
    (SweepLabel.LEARNED, state_learned),
    (SweepLabel.GUARANTEE, state_guarantees),
    (SweepLabel.BEATEN, state_beaten),
    (SweepLabel.RECOMMENDATION, lambda result: [recommend(result)]),
    (SweepLabel.NOT_TESTED, state_not_tested),
)


def lines(result: SweepResult) -> Iterator[tuple[SweepLabel, list[Statement]]]:
    """Yield the lines of page one that apply, each as a label and its statements."""
    for label, state in _LINES:
        if statements := state(result):
            yield label, statements


def summary_lines(result: SweepResult) -> Iterator[tuple[str, str]]:
    """Yield (label, text) of page one for a terminal; the answer comes first."""
    yield "answer", f"{title_of(result)}. {written(state_answer(result))}"
    for label, statements in lines(result):
        yield label.sentence.lower(), written(statements)


def summary_facts(result: SweepResult) -> dict[str, Any]:
    """Return page one as JSON values: the answer, the recommendation, and the codes and numbers of each line."""
    return {
        "answer": (answer_of_sweep(result) or Answer.INCONCLUSIVE).value,
        "recommendation": str(recommend(result)),
        "page_one": {
            "answer": [each.model_dump(mode="json") for each in state_answer(result)],
            **{
                label.name.lower(): [each.model_dump(mode="json") for each in statements]
                for label, statements in lines(result)
            },
        },
    }


def show_lines(result: SweepResult) -> list[Block]:
    """Return the lines of page one, the table of defenses, and a line for the signature."""
    paragraphs = [Paragraph(written(statements), lead=f"{label.sentence}.") for label, statements in lines(result)]
    return [*paragraphs, tabulate_defenses(result), Signature("this page")]


def tabulate_defenses(result: SweepResult) -> Table:
    """Return the table of defenses: guarantee, flagged people, gain in utility, cost and answer."""
    marks = assign_letters(result.variants)
    rows = []
    for variant in result.variants:
        answer = answer_of(result, variant.name)
        rows.append(
            [
                f"{marks[variant.name]}  {variant.label}",
                format_promise(variant),
                _flagged(result, variant),
                format_summary(variant.gain, signed=True),
                "-" if variant.seconds is None else f"{variant.seconds:,.0f} s",
                "no result" if answer is None else answer.value.capitalize() + _count_done(result, variant),
            ]
        )
    note = sentence(
        f"means with 95 % intervals: {describe_intervals(result)}. Flagged: of every 100 members / wrongly of every 100"
        " non-members. Gain: loss below the base model's on non-members, nats per token (of preference pairs, per pair)"
        ". Cost: seconds of one training run with its audit"
    )
    head = ("defense", "guarantee: epsilon (delta), unit", "flagged of 100 / wrongly", "gain", "cost", "answer")
    return Table(head, rows, note, numeric=(4,), widths=(1.3, 1.3, None, None, None, None), dense=True)


def _count_done(result: SweepResult, variant: VariantResult) -> str:
    return "" if variant.cells == result.blocks else f" ({variant.cells} of {result.blocks} repetitions)"


def _flagged(result: SweepResult, variant: VariantResult) -> str:
    if variant.flagged is None or variant.name in result.not_valid:
        return "-"
    return f"{format_summary(variant.flagged, digits=0)} / {variant.wrongly:.0f}"


def list_notes(result: SweepResult) -> list[Block]:
    """Return notes for the reader: first contradicted claims, then what the comparison is based on."""
    contradicted = [
        f"{cell.block}/{cell.variant} ({verdict.subjects}, {verdict.claim}, {verdict.standing},"
        f" {'and for all training runs at once' if verdict.jointly_contradicted else 'in this training run alone'})"
        for cell in result.cells
        for verdict in cell.verdicts
        if verdict.outcome == "contradicted"
    ]
    more = f" and {len(contradicted) - _MOST_NAMED} more" if len(contradicted) > _MOST_NAMED else ""
    violations = [f"A claim is contradicted in {'; '.join(contradicted[:_MOST_NAMED])}{more}."] if contradicted else []
    reasons = [] if result.shipping is None else [Paragraph(str(result.shipping.reason))]
    return [*reasons, *map(FramedNote, [*violations, *map(str, result.notes)])]


def show_rule(result: SweepResult) -> list[Block]:
    """Return the decision rule, and its result for each variant; empty without a rule."""
    if result.rule is None:
        return []
    rows = [[variant.label, _state_outcome(result, variant)] for variant in result.variants]
    return [Paragraph(_state_rule(result.rule)), Table(("defense", "result"), rows, widths=(1, 2))]


def _state_rule(rule: Rule) -> str:
    needs = [name_measure(words) for words in rule.require]
    return (
        f"{'; '.join(needs)}. Of the candidates that keep these limits, the rule selects the best in"
        f" {_PREFERRED.get(rule.prefer, rule.prefer)}. Candidates: {', '.join(rule.candidates)}. The probability that"
        f" the rule selects a variant that breaks a limit is at most {percent(rule.level, 0)}."
    )


def _state_outcome(result: SweepResult, variant: VariantResult) -> str:
    """Return whether a variant passes, or the reasons why not, and the marks of variants that dominate it."""
    marks = assign_letters(result.variants)
    outcomes = ["a claim is contradicted"] if variant.jointly_contradicted else []
    if result.shipping is not None:
        mine = next((candidate for candidate in result.shipping.candidates if candidate.name == variant.name), None)
        named = result.rule is not None and variant.name in result.rule.candidates
        # A variant whose cells are all done and that was not judged has a measure that could not be taken.
        waits = "not judged yet" if variant.cells < result.blocks else "cannot be judged"
        outcomes.append(_judged(mine, result.shipping) if mine else waits if named else "not a candidate")
    if variant.dominated_by:
        outcomes.append("dominated by " + ", ".join(marks[name] for name in variant.dominated_by))
    worse = [marks[other.name] for other in result.variants if variant.name in other.dominated_by]
    if worse:
        outcomes.append("dominates " + ", ".join(worse))
    if variant.cells < result.blocks:
        outcomes.append(f"{variant.cells} of {counted(result.blocks, 'training run')}")
    return "; ".join(outcomes) or "not distinguished"


def _judged(candidate: CandidateResult, shipping: Shipping) -> str:
    if shipping.variant == candidate.name:
        return "selected"
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
    """Return the attacker, the attacker's inputs, and what it means to be flagged."""
    attacker = result.attacker
    if attacker is None:
        done = any(cell.state == "done" for cell in result.cells)
        return (
            ("Training runs are attacked in different ways, as their reports say.")
            if done
            else ("No training run has a result.")
        )
    words = AUDITED[attacker.audited]
    wrongly = f"{1000 * attacker.fpr:,.0f}"
    return (
        f"The attacker can ask for {attacker_asks(attacker.asks)}. The attacker has texts of each {words.singular},"
        f" {texts_of(attacker.texts)}. The primary attack is {attacker.attack}"
        f" ({how_aggregated(attacker.aggregation)}). The attack flags everyone above a score"
        f" threshold. This threshold wrongly flags {wrongly} of every 1,000 {words.other}."
    )


def comparison_text(result: SweepResult, width: int) -> str:
    """Return the comparison as plain text without notes. Table lines have at most ``width`` characters."""
    rows = []
    for variant in result.variants:
        rows.append(
            [
                variant.label,
                variant.defense,
                "-" if variant.epsilon is None else f"{variant.epsilon:.3g} per {variant.unit}",
                format_summary(variant.auroc),
                format_summary(variant.auroc_difference, signed=True),
                format_summary(variant.loss),
                format_summary(variant.loss_difference, signed=True),
                format_summary(variant.perplexity, digits=2),
                format_summary(variant.gain, signed=True),
                format_fit(variant),
                f"{variant.cells}/{result.blocks}",
            ]
        )
    # Lines with paths and remedies stay whole, to be copied.
    return "\n".join([*fitted(_HEAD, rows, width), *_list_failed(result), *_list_tuned(result)])


def _list_failed(result: SweepResult) -> Iterator[str]:
    """Yield the training runs without a result, and the training runs that contradict a claim."""
    for cell in result.cells:
        name = f"run {cell.block}/{cell.variant}"
        if cell.state != "done":
            yield f"{name}: {cell.state}{f': {cell.reason}' if cell.reason else ''}"
        for verdict in cell.verdicts:
            if verdict.outcome == "contradicted":
                jointly = "also jointly" if verdict.jointly_contradicted else "not jointly"
                outcome = describe_outcome(verdict.outcome, verdict.standing)
                yield f"{name}: {verdict.subjects}: {verdict.claim} is {outcome}, {jointly}"


def _list_tuned(result: SweepResult) -> Iterator[str]:
    for tried in result.tried:
        if tried.chosen:
            values = ", ".join(f"{key} {value}" for key, value in tried.values.items())
            loss = "no model" if tried.public_loss is None else f"public users' loss {tried.public_loss:.4f}"
            yield f"tuned: {tried.variant}: {values} ({loss})"


def describe_intervals(result: SweepResult) -> str:
    """Return whether a sweep's intervals cover repetitions or users."""
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
