"""The annex of a sweep for the people who sign it, and its section on extraction. Uses only the sweep's document."""

from collections.abc import Iterator, Sequence

from heldin.audit.blocks import LEAST_BLOCKS
from heldin.audit.decision import Answer
from heldin.audit.results import ExtractionFacts, ExtractionGroup, MarkGroup
from heldin.base.wording import counted
from heldin.record.release import Release, release_of
from heldin.record.sweep import CellResult, CellTests, SweepResult, VariantResult
from heldin.reports import annex_parts as parts
from heldin.reports.annex_parts import Scenario
from heldin.reports.blocks import Block, FactList, Remarks, Table
from heldin.reports.wording import assign_letters, format_summary, percent, texts_of
from heldin.words.people import AUDITED, Wording
from heldin.words.split import SplitReason

LEGEND = "(Letters: the variants, as in the table of page one.)"
VARIES = "Variants state different releases: each cell's own report has its own."


def state_release(result: SweepResult) -> FactList:
    """Return the intended release."""
    if _releases_vary(result):
        return FactList([("of all variants", VARIES)])
    # Which other attacks a cell ran stands in its own report.
    leading = {result.attacker.attack: result.attacker.asks} if result.attacker else {}
    called = "The primary attack" if leading else "The tests of membership"
    return parts.state_release(release_of(result.config), leading, called)


def list_scenarios(result: SweepResult) -> list[Scenario]:
    """Return all kinds of attack that readers ask about, tested kinds first."""
    return [*_membership(result), _extraction(result), *parts.OUT_OF_SCOPE]


def tabulate_extraction(result: SweepResult) -> Table | None:
    """Return the table of training text that the models emit; None if no training run measured it."""
    asked = list(dict.fromkeys(_asked(facts) for _, facts in _extractions(result)))
    if not asked:
        return None
    note = (
        "People with a text that the model would emit, of those with a text long enough, summed over repetitions:"
        f" {asked[0]}.{'' if len(asked) == 1 else ' Training runs ask in different ways, as their own reports say.'}"
        " Exposed: canary users whose mark is likelier than 99 % of 1,000 that were drawn alike and never planted."
        " The report of each training run has all queries, words that occur elsewhere, and the reference."
    )
    head = (
        "variant",
        "runs",
        ("members"),
        ("non-members"),
        "exposed canary users trained on",
        "not trained on",
    )
    return Table(head, count_extracted(result), note, numeric=range(1, 6), widths=(1.4, None, 1, 1, 1, 1))


def count_extracted(result: SweepResult) -> list[list[str]]:
    """Return rows at the largest number of queries: variant, training runs, groups of real users, canary users'
    marks."""
    rows, marks = [], assign_letters(result.variants)
    for variant in result.variants:
        extracted = [facts for cell, facts in _extractions(result) if cell.variant == variant.name]
        if not extracted:
            continue
        sides = [_emitted([facts.of(group) for facts in extracted]) for group in ("held in", "held out")]
        groups = [
            group
            for cell in _done(result)
            if cell.variant == variant.name and cell.tests and cell.tests.marks
            for group in cell.tests.marks.groups
        ]
        exposed = [_first_percent(groups, side) for side in ("held_in", "held_out")]
        rows.append(
            [
                f"{marks[variant.name]}  {variant.label}",
                f"{len(extracted)} of {result.blocks}",
                *sides,
                *exposed,
            ]
        )
    return rows


def _asked(facts: ExtractionFacts) -> str:
    draws = "all tokens" if facts.top_k is None else f"the {facts.top_k} likeliest tokens"
    queries = facts.groups[0].emitted[-1].queries
    within = "1 query" if queries == 1 else f"{queries:,} queries"
    return (
        f"{counted(facts.suffix, 'token')} after {counted(facts.prefix, 'token')} of it, with probability"
        f" {facts.probability:g} or more within {within} (temperature {facts.temperature:g}, among {draws})"
    )


def _emitted(groups: Sequence[ExtractionGroup | None]) -> str:
    known = [group for group in groups if group is not None]
    if not known:
        return "-"
    return f"{sum(group.emitted[-1].users for group in known):,} of {sum(group.measured for group in known):,}"


def _first_percent(groups: Sequence[MarkGroup], side: str) -> str:
    sides = [getattr(group, side) for group in groups if group.candidates]
    if not sides:
        return "-"
    first = sum(ranked.target.first_percent for ranked in sides)
    return f"{first:,} of {sum(ranked.users for ranked in sides):,}"


def _done(result: SweepResult) -> list[CellResult]:
    return [cell for cell in result.cells if cell.state == "done"]


def _tests(result: SweepResult) -> list[CellTests]:
    return [cell.tests for cell in _done(result) if cell.tests is not None]


def _extractions(result: SweepResult) -> Iterator[tuple[CellResult, ExtractionFacts]]:
    return ((cell, cell.tests.extraction) for cell in _done(result) if cell.tests and cell.tests.extraction)


def _what(result: SweepResult) -> Wording:
    return AUDITED["users" if result.attacker is None else result.attacker.audited]


def _membership(result: SweepResult) -> list[Scenario]:
    words, done, marks = _what(result), _done(result), assign_letters(result.variants)
    void = [cell for cell in done if cell.answer == Answer.NOT_VALID.value]
    texts = f"texts of this {words.singular}" + (f", {texts_of(result.attacker.texts)}" if result.attacker else "")
    outcome = "No training run has a result."
    if done:
        areas = [
            f"{marks[variant.name]} {format_summary(variant.auroc)}" for variant in result.variants if variant.auroc
        ]
        outcome = f"AUROC of the primary attack: {'; '.join(areas)}."
        outcome += f" {LEGEND}"
    if void:
        outcome += f" The comparison is not valid in {len(void)} of {counted(len(done), 'training run')}."
    rows = [
        Scenario(
            f"Membership of {words.unit}: was this {words.singular} in training?",
            "not run" if not done else "run, not valid" if len(void) == len(done) else "run",
            f"probabilities of texts under the model and a reference model; {texts}",
            outcome,
        )
    ]
    if any(variant.canaries for variant in result.variants):
        best = [
            f"{marks[variant.name]} {max(point.auroc.value for point in variant.canaries):.3f}"
            for variant in result.variants
            if variant.canaries
        ]
        rows.append(
            Scenario(
                "Membership of canary users",
                "run",
                "the same",
                f"the highest AUROC of a group: {'; '.join(best)}.",
            )
        )
    return rows


def _extraction(result: SweepResult) -> Scenario:
    rows, done = count_extracted(result), _done(result)
    if not rows:
        return parts.EXTRACTION_NOT_RUN
    measured = sum(1 for _ in _extractions(result))
    some = "" if measured == len(done) else f"Tested in {measured} of {counted(len(done), 'training run')}. "
    people = "; ".join(f"{row[0].split()[0]} {row[2]} members and {row[3]} non-members" for row in rows)
    return Scenario(
        parts.EXTRACTION,
        "run",
        "the beginning of a text, and as many answers of the model as are stated",
        f"{some}People with a text that would be emitted: {people} (table Extraction). {parts.NO_BOUND}",
    )


def _release(result: SweepResult) -> Release | None:
    return None if _releases_vary(result) else release_of(result.config)


def _releases_vary(result: SweepResult) -> bool:
    return any(key == "release" or key.startswith("release.") for variant in result.variants for key in variant.differs)


def explain_promises(result: SweepResult) -> FactList:
    """Return the guarantees of the variants, with one entry for all variants that have the same guarantee."""
    unit, by_words, marks = _what(result).singular, dict[str, list[str]](), assign_letters(result.variants)
    for variant in result.variants:
        by_words.setdefault(_promise(variant, unit), []).append(f"{marks[variant.name]}  {variant.label}")
    return FactList([[", ".join(names), words] for words, names in by_words.items()])


def _promise(variant: VariantResult, unit: str) -> str:
    if variant.promise is None or variant.privacy_unit is None:
        return "Not known: no training run has a result."
    if variant.epsilon is None:
        return parts.explain_promise(_promised(variant), unit)[0][1]
    return " ".join(words for _, words in parts.explain_promise(_promised(variant), unit))


def _promised(variant: VariantResult) -> parts.Promised:
    return parts.Promised(
        variant.promise,
        variant.privacy_unit or "none",
        variant.unit or "",
        variant.epsilon,
        variant.delta,
        variant.trained_users,
    )


def list_other_models(result: SweepResult) -> list[str]:
    """Return other models of the same people."""
    done = _done(result)
    lines = [
        f"{counted(len(done), 'model')} of this sweep were trained on the same people, and those of one repetition"
        " have the same members. Anyone who gets several of these models learns more than from one."
    ]
    composed = result.composed
    if composed is not None:
        value = (
            "cannot be stated" if composed.epsilon is None else f"is {composed.epsilon:.3g} at delta {composed.delta:g}"
        )
        whose = (
            "one private training run"
            if composed.private == 1
            else f"{composed.private:,} private training runs together"
        )
        lines.append(f"The epsilon of the {whose} {value}.")
        if composed.others:
            lines.append(
                f"{counted(composed.others, 'training run')} without a guarantee for users may have used the same"
                " users."
            )
    if result.tried:
        lines.append("Models that only tuned settings are from other repetitions; they are in the folder tuning.")
    lines.append("heldin purge removes the models that are not released. Until then they count.")
    return lines


def state_quality(result: SweepResult) -> FactList:
    """Return how many users, texts and attacks the sweep tested, and how well."""
    words, done, tests = _what(result), _done(result), _tests(result)
    cells = f"{len(done)} of {counted(len(result.cells), 'training run')}, in {counted(result.blocks, 'repetition')}"
    rows = [["how many models", cells]]
    if not done or not tests:
        return FactList(rows)
    first = done[0]
    rows.append(
        [
            "how many were tested in a repetition",
            f"{first.held_in or 0:,} {words.member} and {first.held_out or 0:,} {words.other} in the first",
        ]
    )
    much = [f"{test.texts:,} texts; {test.scores} scores of {counted(test.attacks, 'attack')}" for test in tests]
    rows.append(["with how much", _spread(much)])
    rows.append(["who is a member", _spread([_sides(test) for test in tests])])
    rows.append(["by chance alone", _spread([_false_alarms(t) for t in tests])])
    rows.append(["controls", _spread([parts.describe_controls(t.baselines, t.separating) for t in tests])])
    return FactList(rows)


def _sides(test: CellTests) -> str:
    reason = test.sides
    # Training runs of a repetition share its key, which each of them names.
    if reason.states(SplitReason.FAIR_COINS_OF_BLOCK):
        reason = SplitReason.FAIR_COINS(audited=reason.values["audited"])
    return f"{reason} ({'certifiable' if test.certifiable else 'indicative only'})"


def _false_alarms(test: CellTests) -> str:
    if test.false_alarms is None:
        return 'nothing limits how often "leaks" is false: the p-values are indicative'
    return f'a false "leaks" by the attacks in {100 * test.false_alarms:g} % of audits of one training run at most'


def _spread(texts: Sequence[str]) -> str:
    """Return the text that all training runs share, or how many training runs have each text."""
    counts: dict[str, int] = {}
    for text in texts:
        counts[text] = counts.get(text, 0) + 1
    if len(counts) == 1:
        return texts[0]
    most = sorted(counts.items(), key=lambda pair: -pair[1])
    shown = "; ".join(f"in {counted(number, 'training run')} {text}" for text, number in most[:_SHOWN])
    return shown + (
        (f"; and {len(most) - _SHOWN} more (see the reports of the training runs)") if len(most) > _SHOWN else ""
    )


_SHOWN = 3  # in one row


def list_occasions(result: SweepResult) -> Remarks:
    """Return the events after which people should test again."""
    lines = []
    if result.blocks < LEAST_BLOCKS:
        lines.append(
            f"Before variants are distinguished: from {LEAST_BLOCKS} repetitions on, intervals cover coin flips,"
            " seeds and training runs."
        )
    if any(cell.missing for cell in result.cells):
        lines.append("When the missing training runs have a result.")
    return parts.list_occasions(_release(result), more=lines)


def answer_opinion(result: SweepResult) -> Table:
    """Return the table for the opinion of the European Data Protection Board."""
    documents = (
        f"settings and commitments (plan {result.sweep[:8]}); the fingerprints in the record of each training run"
    )
    return parts.answer_opinion(
        list_scenarios(result), _release(result), each_person=_each_person(result), documents=documents
    )


def _each_person(result: SweepResult) -> str:
    marks = assign_letters(result.variants)
    promised = [marks[variant.name] for variant in result.variants if variant.epsilon_per_user is not None]
    by = (
        (f"a guarantee for every user by {', '.join(promised)}")
        if promised
        else ("no variant has a guarantee for each person")
    )
    return f"page one: {by}; measured in groups and thirds of the people, not for single ones"


def state_residual_risk(result: SweepResult) -> list[Block]:
    """Return the residual risk, and the lines to sign."""
    done, marks = _done(result), assign_letters(result.variants)

    def cells(answer: Answer) -> str:
        """Return how many training runs of each variant have this answer, in the order of the variants."""
        counts = [
            (mark, sum(cell.answer == answer.value for cell in done if cell.variant == name), variant.cells)
            for name, mark, variant in ((variant.name, marks[variant.name], variant) for variant in result.variants)
        ]
        return ", ".join(
            (f"{number} of {counted(cells_done, 'training run')} of {mark}")
            for mark, number, cells_done in counts
            if number
        )

    lines = []
    if leaks := cells(Answer.LEAKS):
        lines.append(
            f"The attacker described can identify members in {leaks}. Each training run is tested alone, so one of"
            " several may leak by chance. An attacker who knows more may do better."
        )
    if open_ := cells(Answer.INCONCLUSIVE):
        lines.append(f"Too little was tested to rule out a leak in {open_}.")
    calm = [cell for cell in done if cell.answer == Answer.NO_LEAK.value]
    if calm:
        lines.append(
            f"No leak was found in {len(calm)} of {counted(len(done), 'training run')}; other attacks were not tried."
        )
    if result.shipping is not None and result.rule is not None:
        lines.append(
            f"The rule may select a variant that breaks a limit in {percent(result.rule.level, 0)} of sweeps. It says"
            " nothing beyond its limits."
        )
    lines.append(parts.list_untried(list_scenarios(result)))
    bare = [marks[variant.name] for variant in result.variants if variant.cells and variant.epsilon_per_user is None]
    if len(bare) < sum(bool(variant.cells) for variant in result.variants):
        lines.append(
            "A guarantee depends on its conditions (see the facts of the training run), and on code that nobody"
            " proved right."
        )
    if bare:
        lines.append(f"No guarantee for every user limits attacks that were not tried on: {', '.join(bare)}.")
    return parts.sign(lines, f"sweep {result.sweep[:16]}")


SECTIONS = parts.list_entries(
    tests=list_scenarios,
    release=state_release,
    promise=explain_promises,
    others=list_other_models,
    quality=state_quality,
    repeat=list_occasions,
    opinion=answer_opinion,
    residual=state_residual_risk,
)
