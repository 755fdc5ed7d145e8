"""The annex of a sweep's report, for whoever signs: it follows from the sweep's document, and from nothing else."""

from collections.abc import Iterator, Sequence
from typing import Any

from heldin.audit.blocks import LEAST_BLOCKS
from heldin.audit.decision import Answer
from heldin.audit.extraction import ExtractionFacts, ExtractionGroup
from heldin.audit.marks import MarkGroup
from heldin.base.wording import counted
from heldin.record.release import Release, release_of
from heldin.record.sweep import CellResult, CellTests, SweepResult, VariantResult
from heldin.reports import annex_parts as parts
from heldin.reports.annex_parts import Scenario
from heldin.reports.promise_words import Promised, in_words
from heldin.reports.sweep_words import letters, summary
from heldin.reports.wording import breakable, percent, texts_of
from heldin.words.people import AUDITED, Wording

EXTRACTION_HEAD = (
    "variant",
    "cells",
    "held-in people",
    "held-out people",
    "held-in canary users exposed",
    "held-out ones",
)
LEGEND = "(Letters: the variants, as in the table of page one.)"
VARIES = "Variants state different releases: each cell's own report has its own."


def sweep_annex(result: SweepResult) -> dict[str, Any]:
    """Everything that the annex prints, as text."""
    release, tests = _release(result), scenarios(result)
    return {
        "tests": parts.rows_of_tests(tests),
        "tests_note": parts.TESTS_NOTE,
        "limits": [],  # of a sweep they are the rule, and stand with the candidates
        "release": [["of all variants", VARIES]] if _releases_vary(result) else _release_pairs(result, release),
        "promise": _promises(result),
        "others": _others(result),
        "quality": _quality(result),
        "repeat": _repeat(result, release),
        "opinion": parts.opinion_rows(
            tests,
            release,
            each_person=_each_person(result),
            documents=f"settings and commitments (plan {result.sweep[:8]}); the fingerprints in each cell's record",
        ),
        "opinion_note": parts.OPINION,
        "residual": _residual(result, tests),
        "not_anonymity": parts.NOT_ANONYMITY,
    }


def scenarios(result: SweepResult) -> list[Scenario]:
    """Every kind of attack that a reader may ask for, the tested ones first."""
    return [*_membership(result), _extraction(result), *parts.OUT_OF_SCOPE]


def extraction_rows(result: SweepResult) -> list[list[str]]:
    """(variant, cells, sides of real users, sides of canary users' marks) at the largest number of queries."""
    rows, marks = [], letters(result.variants)
    for its in result.variants:
        found = [facts for cell, facts in _extractions(result) if cell.variant == its.name]
        if not found:
            continue
        sides = [_emitted([facts.of(group) for facts in found]) for group in ("held in", "held out")]
        groups = [
            group
            for cell in _done(result)
            if cell.variant == its.name and cell.tests and cell.tests.marks
            for group in cell.tests.marks.groups
        ]
        exposed = [_first_percent(groups, side) for side in ("held_in", "held_out")]
        rows.append([f"{marks[its.name]}  {breakable(its.name)}", f"{len(found)} of {result.blocks}", *sides, *exposed])
    return rows


def extraction_note(result: SweepResult) -> str:
    """What the rows of extraction count; empty where none was asked for."""
    asked = list(dict.fromkeys(_asked(facts) for _, facts in _extractions(result)))
    if not asked:
        return ""
    return (
        f"People with a text that would be emitted, of those with a text long enough, summed over blocks: {asked[0]}."
        f"{'' if len(asked) == 1 else ' Cells ask in different ways: their own reports say how.'} Exposed: canary users"
        " whose mark is likelier than 99 % of 1,000 that were drawn alike and never planted. Each cell's own report has"
        " all queries, words that stand elsewhere, and the reference."
    )


def _asked(its: ExtractionFacts) -> str:
    draws = "all tokens" if its.top_k is None else f"the {its.top_k} likeliest tokens"
    queries = its.groups[0].emitted[-1].queries
    within = "1 query" if queries == 1 else f"{queries:,} queries"
    return (
        f"{counted(its.suffix, 'token')} after {counted(its.prefix, 'token')} of it, with probability"
        f" {its.probability:g} or more within {within} (temperature {its.temperature:g}, among {draws})"
    )


def _emitted(groups: Sequence[ExtractionGroup | None]) -> str:
    known = [its for its in groups if its is not None]
    if not known:
        return "-"
    return f"{sum(its.emitted[-1].users for its in known):,} of {sum(its.measured for its in known):,}"


def _first_percent(groups: Sequence[MarkGroup], side: str) -> str:
    sides = [getattr(group, side) for group in groups if group.candidates]
    if not sides:
        return "-"
    return f"{sum(its.target.first_percent for its in sides):,} of {sum(its.users for its in sides):,}"


def _done(result: SweepResult) -> list[CellResult]:
    return [cell for cell in result.cells if cell.state == "done"]


def _tests(result: SweepResult) -> list[CellTests]:
    return [cell.tests for cell in _done(result) if cell.tests is not None]


def _extractions(result: SweepResult) -> Iterator[tuple[CellResult, ExtractionFacts]]:
    return ((cell, cell.tests.extraction) for cell in _done(result) if cell.tests and cell.tests.extraction)


def _what(result: SweepResult) -> Wording:
    return AUDITED["users" if result.attacker is None else result.attacker.audited]


def _release_pairs(result: SweepResult, release: Release | None) -> list[list[str]]:
    # Which other attacks a cell ran stands in its own report.
    leading = [result.attacker.attack] if result.attacker else []
    return parts.release_pairs(release, leading, "The leading attack" if leading else "The tests of membership")


def _membership(result: SweepResult) -> list[Scenario]:
    what, done, marks = _what(result), _done(result), letters(result.variants)
    void = [cell for cell in done if cell.answer == Answer.NOT_VALID.value]
    texts = "texts of theirs" + (f", {texts_of(result.attacker.texts)}" if result.attacker else "")
    found = "No cell has a result."
    if done:
        areas = [f"{marks[its.name]} {summary(its.auroc)}" for its in result.variants if its.auroc]
        found = f"AUROC of the leading attack: {'; '.join(areas)}."
        found += f" {LEGEND}"
    if void:
        found += f" The comparison is not valid in {len(void)} of {counted(len(done), 'cell')}."
    rows = [
        Scenario(
            f"Membership of {what.unit}: was this {what.singular} in training?",
            "not run" if not done else "run, not valid" if len(void) == len(done) else "run",
            f"probabilities of texts under the model and a reference model; {texts}",
            found,
        )
    ]
    if any(its.canaries for its in result.variants):
        best = [
            f"{marks[its.name]} {max(point.auroc.value for point in its.canaries):.3f}"
            for its in result.variants
            if its.canaries
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
    rows, done = extraction_rows(result), _done(result)
    if not rows:
        return parts.EXTRACTION_NOT_RUN
    measured = sum(1 for _ in _extractions(result))
    some = "" if measured == len(done) else f"Asked in {measured} of {counted(len(done), 'cell')}. "
    people = "; ".join(f"{row[0].split()[0]} {row[2]} held in and {row[3]} held out" for row in rows)
    return Scenario(
        parts.EXTRACTION,
        "run",
        "the beginning of a text, and as many answers of the model as are stated",
        f"{some}People with a text that would be emitted: {people} (table Extraction). {parts.NO_BOUND}",
    )


def _release(result: SweepResult) -> Release | None:
    return None if _releases_vary(result) else release_of(result.config)


def _releases_vary(result: SweepResult) -> bool:
    return any(key == "release" or key.startswith("release.") for its in result.variants for key in its.differs)


def _promises(result: SweepResult) -> list[list[str]]:
    """(variants, sentences), once for all variants that promise the same."""
    one, by_words, marks = _what(result).singular, dict[str, list[str]](), letters(result.variants)
    for its in result.variants:
        by_words.setdefault(_promise(its, one), []).append(f"{marks[its.name]}  {breakable(its.name)}")
    return [[", ".join(names), words] for words, names in by_words.items()]


def _promise(its: VariantResult, one: str) -> str:
    if its.promise is None or its.privacy_unit is None:
        return "Not known: no cell has a result."
    if its.epsilon is None:
        return in_words(_promised(its), one)[0][1]
    return " ".join(words for _, words in in_words(_promised(its), one))


def _promised(its: VariantResult) -> Promised:
    return Promised(its.promise, its.privacy_unit or "none", its.unit or "", its.epsilon, its.delta, its.trained_users)


def _others(result: SweepResult) -> list[str]:
    done = _done(result)
    said = [
        f"{counted(len(done), 'model')} of this sweep were trained on the same people, those of a block with the same"
        " held-in ones. Whoever gets several of them knows more than one of them tells."
    ]
    its = result.composed
    if its is not None:
        value = "cannot be stated" if its.epsilon is None else f"is {its.epsilon:.3g} at delta {its.delta:g}"
        whose = "one private training" if its.private == 1 else f"{its.private:,} private trainings together"
        said.append(f"The epsilon of the {whose} {value}.")
        if its.others:
            said.append(f"{counted(its.others, 'training')} without a promise to users may have seen the same users.")
    if result.tried:
        said.append("Models that only tuned settings are of other blocks; they are in the folder tuning.")
    said.append("heldin purge removes the models that are not released; until then they count.")
    return said


def _quality(result: SweepResult) -> list[list[str]]:
    what, done, tests = _what(result), _done(result), _tests(result)
    cells = f"{len(done)} of {counted(len(result.cells), 'cell')}, in {counted(result.blocks, 'block')}"
    rows = [["how many models", cells]]
    if not done or not tests:
        return rows
    first = done[0]
    rows.append(
        [
            "how many were tested in a block",
            f"{first.held_in or 0:,} {what.member} and {first.held_out or 0:,} {what.other} in the first",
        ]
    )
    much = [f"{its.texts:,} texts; {its.scores} scores of {counted(its.attacks, 'attack')}" for its in tests]
    rows.append(["with how much", _spread(much)])
    rows.append(["who is on which side", _spread([_sides(its) for its in tests])])
    rows.append(["by chance alone", _spread([_false_alarms(t) for t in tests])])
    rows.append(["controls", _spread([parts.controls(t.baselines, t.separating) for t in tests])])
    return rows


def _sides(its: CellTests) -> str:
    # Cells of a block share its key, which each of them names.
    said = its.sides.split(", which is that of block")[0]
    return f"{said} ({'certifiable' if its.certifiable else 'indicative only'})"


def _false_alarms(its: CellTests) -> str:
    if its.false_alarms is None:
        return 'nothing bounds how often "leaks" is false: the p-values are indicative'
    return f'a false "leaks" by the attacks in {100 * its.false_alarms:g} % of audits of one cell at most'


def _spread(said: Sequence[str]) -> str:
    """What all cells have alike, or of how many which; sides of different blocks name their block."""
    counts: dict[str, int] = {}
    for its in said:
        counts[its] = counts.get(its, 0) + 1
    if len(counts) == 1:
        return said[0]
    most = sorted(counts.items(), key=lambda pair: -pair[1])
    shown = "; ".join(f"in {counted(number, 'cell')} {its}" for its, number in most[:_SHOWN])
    return shown + (f"; and {len(most) - _SHOWN} more (each cell's own report)" if len(most) > _SHOWN else "")


_SHOWN = 3  # in one row


def _repeat(result: SweepResult, release: Release | None) -> list[str]:
    said = parts.when_to_repeat(release)
    if result.blocks < LEAST_BLOCKS:
        said.append(
            f"Before variants are told apart: from {LEAST_BLOCKS} blocks on intervals hold over coins, seeds and"
            " trainings."
        )
    if any(cell.state in ("failed", "to do") for cell in result.cells):
        said.append("When the cells without a result have one.")
    return said


def _each_person(result: SweepResult) -> str:
    marks = letters(result.variants)
    promised = [marks[its.name] for its in result.variants if its.epsilon_per_user is not None]
    by = f"a promise to every user by {', '.join(promised)}" if promised else "no variant promises it to each person"
    return f"page one: {by}; measured in groups and thirds of the people, not for single ones"


def _residual(result: SweepResult, tests: Sequence[Scenario]) -> list[str]:
    done, marks = _done(result), letters(result.variants)

    def cells(answer: Answer) -> str:
        """How many cells of each variant have this answer, in the order of the variants."""
        counts = [
            (mark, sum(cell.answer == answer.value for cell in done if cell.variant == name), its.cells)
            for name, mark, its in ((its.name, marks[its.name], its) for its in result.variants)
        ]
        return ", ".join(f"{found} of {counted(of, 'cell')} of {mark}" for mark, found, of in counts if found)

    said = []
    if leaks := cells(Answer.LEAKS):
        said.append(
            f"Membership leaks to the attacker described in {leaks}. Each cell is tested by itself: of several,"
            " one may say so by chance. An attacker who knows more may do better."
        )
    if open_ := cells(Answer.INCONCLUSIVE):
        said.append(f"Too little was tested to exclude a leak in {open_}.")
    calm = [cell for cell in done if cell.answer == Answer.NO_LEAK.value]
    if calm:
        said.append(f"No leak was found in {len(calm)} of {counted(len(done), 'cell')}; other attacks were not tried.")
    if result.shipping is not None and result.rule is not None:
        said.append(
            f"The rule may name a variant that breaks a limit in {percent(result.rule.level, 0)} of sweeps; it says"
            " nothing beyond its limits."
        )
    said.append(parts.nothing_known(tests))
    bare = [marks[its.name] for its in result.variants if its.cells and its.epsilon_per_user is None]
    if len(bare) < sum(bool(its.cells) for its in result.variants):
        said.append("A promise rests on its conditions (the cell's facts), and on code that was not proved right.")
    if bare:
        said.append(f"No promise to every user bounds attacks that were not tried on: {', '.join(bare)}.")
    return said
