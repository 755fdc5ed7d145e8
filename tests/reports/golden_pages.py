"""Approved texts of one report of each kind: ``make golden`` writes them anew after a change of words.

The wording of reports is here and in no other test. Other tests of reports look at sections, rows and numbers.
"""

import re
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from statistics import NormalDist
from typing import Any

import numpy as np
import pypdfium2 as pdfium
from PIL import Image
from PIL.PngImagePlugin import PngInfo

from heldin.audit.attack_results import Curve
from heldin.record.document import Record, read_record
from heldin.record.facts import Ceiling
from heldin.record.sweep import SweepResult
from heldin.reports.blocks import Attachment, Banner, Beside, Figure, Paragraph, Place, Report, ReportSection, texts
from heldin.reports.record_report import report_record
from heldin.reports.sweep_report import report_sweep
from heldin.reports.typesetting import write_pdf
from heldin.words.answer import ComparisonFlaw
from heldin.words.evidence import ClaimLabel, Finding
from heldin.words.guarantee import GuaranteeText, ModelText, Relation
from heldin.words.split import SplitReason
from tests.drafts import typesetting
from tests.made_facts import (
    attack_result,
    canary_facts,
    changed_record,
    decided_record,
    decision_of,
    evidence,
    score,
)
from tests.made_sweeps import made_sweep, with_extraction
from tests.reports.conftest import GOLDEN_RECORD
from tests.reports.test_annex import KINDS

FOLDER = Path(__file__).parent / "golden"
IMAGES = Path(__file__).resolve().parents[2] / "docs" / "images"
DRAWN = {
    "page-one-audit": "audit: leaks",
    "page-one-planted": "planted audit: canary users leak",
    "page-one-private-run": "private run: beyond its guarantee",
    "page-one-sweep": "sweep: no leak found",
}
RECORDS = {"run": "limits and release", "trainings": "trainings", "planted": "planted"}


def reports() -> dict[str, Report]:
    """A report of each kind, by the name of its page."""
    record = read_record(GOLDEN_RECORD)
    made = {name: report_record(KINDS[kind](record)) for name, kind in RECORDS.items()}
    return {**made, "sweep": report_sweep(with_extraction(made_sweep(shipped="uls", dominated=("cap10",))))}


_TEXT = "page one"
LEAK, CALM, OPEN = (
    score(0.71, adjusted_p=0.001, tpr=0.36),
    score(0.5, at_most=0.55, tpr=0.06),
    score(0.5, at_most=0.7, tpr=0.09),
)
OTHERS = tuple(
    score(0.5 + shift / 100, name=name, at_most=0.55, tpr=0.05 + shift / 100)
    for shift, name in enumerate(("zlib (mean over texts)", "loss (max over texts)", "loss (mean over texts)"))
)
EVIDENCE = {
    "leaks": evidence(LEAK, *OTHERS),
    "no leak found": evidence(CALM, *OTHERS, learned=True),
    "inconclusive": evidence(OPEN, *OTHERS, users=120, held_out=60),
    "not valid": evidence(LEAK, flaws=(ComparisonFlaw.GROUPS_DIFFER(baseline="bag of words", auroc=0.9, p=1e-9),)),
}
LEARNED = {"value": 0.21, "lower": 0.17, "upper": 0.25, "per": "token"}


def made_cases() -> dict[str, Record | SweepResult]:
    """Records and sweeps of named cases: each answer of each kind, and what else page one can say."""
    golden = read_record(GOLDEN_RECORD)
    attacks = [attack_result(0.71, 0.65, 0.77).model_dump()]
    base = changed_record(golden, attacks=attacks, dials=[], gain=LEARNED, canaries=None)
    unprotected = base.training.model_copy(
        update={"defense": "none", "promise": GuaranteeText.NO_PROTECTION(), "unit": "none", "cautions": []}
    )
    run = changed_record(base, training=unprotected.model_dump())
    split = run.split.model_copy(update={"certifiable": False, "reason": SplitReason.ASSERTED_BY_FILES()})
    target = run.target.model_copy(update={"name": ModelText.NAMED(name="checkpoint")}).model_dump()
    claim = _claim(8.0, "inconclusive")
    audit = changed_record(run, kind="audit", training=None, split=split.model_dump(), target=target, **claim)
    planted = changed_record(KINDS["planted"](golden), attacks=attacks, dials=[], gain=LEARNED, canaries=None)
    cases: dict[str, Record | SweepResult] = {}
    for kind, record in (("run", run), ("audit", audit), ("planted audit", planted)):
        for answer, its in EVIDENCE.items():
            given = its if kind != "audit" else replace(its, exact=False)
            cases[f"{kind}: {answer}"] = decided_record(_flagging(record, answer), given)
        flawed = cases[f"{kind}: not valid"]
        separating = [
            baseline.model_copy(update={"separates": i == 0}).model_dump() for i, baseline in enumerate(flawed.blind)
        ]
        cases[f"{kind}: not valid"] = changed_record(flawed, blind=separating)
    for answer in EVIDENCE:
        sweep = made_sweep(shipped="uls")
        cells = [cell.model_copy(update={"answer": answer}) if cell.variant == "uls" else cell for cell in sweep.cells]
        cases[f"sweep: {answer}"] = sweep.model_copy(update={"cells": cells})
    open_one = decided_record(_flagging(planted, "inconclusive"), EVIDENCE["inconclusive"])
    canaries = canary_facts([], decision=decision_of(evidence(LEAK))).model_dump()
    # With a claim, the most that page one says.
    cases["planted audit: canary users leak"] = changed_record(open_one, canaries=canaries, **claim)
    nothing = {**LEARNED, "value": 0.004, "lower": -0.01, "upper": 0.02}
    cases["run: learned nothing"] = decided_record(
        changed_record(_flagging(run, "no leak found"), gain=nothing), evidence(CALM, learned=False)
    )
    leaking = decided_record(_flagging(run, "leaks"), evidence(LEAK))
    decision = leaking.decision.model_dump()
    limit = {"of": "auroc", "at_most": 0.6}
    cases["run: broken limit"] = changed_record(
        leaking, decision={**decision, "by": {**decision["by"], "require": [limit]}}
    )
    needs_more = attack_result(0.9, 0.85, 0.94, attack="min-k++").model_copy(update={"curve": _curve(run)})
    vocabulary = score(0.9, name="min-k++ (mean over texts)", adjusted_p=0.001, tpr=0.56)
    released = {"access": "text", "owner": "R. Owner", "purpose": "drafts of mails", "auditor": "R. Auditor"}
    cases["audit: leaks, released as text"] = decided_record(
        changed_record(
            _flagging(audit, "leaks"),
            attacks=[_flagging(audit, "inconclusive").attacks[0].model_dump(), needs_more.model_dump()],
            config={**audit.config, "release": released},
            **_claim(8.0, "inconclusive"),
        ),
        evidence(score(0.6, tpr=0.09), vocabulary, *OTHERS, exact=False),
    )
    few = audit.split.model_copy(update={"held_in": 10, "held_out": 10})
    cases["audit: few users"] = decided_record(
        changed_record(_flagging(audit, "inconclusive"), split=few.model_dump()),
        evidence(score(0.5, at_most=0.73, tpr=0.1), score(0.73, name="zlib (max over texts)", tpr=0.5, at_most=0.9),
                 users=20, held_out=10, exact=False),
    )  # fmt: skip
    ceiling = Ceiling(auroc=0.8, fpr=[0.0, 0.05, 1.0], tpr=[0.0, 0.4, 1.0])
    promise = GuaranteeText.EPSILON(epsilon=2.0, delta=1e-5, unit="user", relation=Relation.ADD_REMOVE())
    update = {"epsilon": 2.0, "delta": 1e-5, "unit": "user", "defense": "uls", "promise": promise, "ceiling": ceiling}
    private = run.training.model_copy(update=update).model_dump()
    within = changed_record(_flagging(run, "no leak found"), training=private, **_claim(2.0, "consistent"))
    cases["private run: within its guarantee"] = decided_record(within, evidence(CALM, ceiling=0.8, learned=True))
    beyond = changed_record(_flagging(run, "leaks"), training=private, **_claim(2.0, "contradicted"))
    cases["private run: beyond its guarantee"] = decided_record(
        beyond, evidence(LEAK, ceiling=0.8, contradicted="certified")
    )
    cases["sweep: no decision rule"] = made_sweep()
    cases["sweep: one repetition"] = made_sweep(blocks=1)
    return cases


RATES = {"leaks": 0.36, "no leak found": 0.06, "inconclusive": 0.09}


def _flagging(record: Record, answer: str) -> Record:
    """The record with scores of the primary attack as is usual for an answer."""
    result = record.attacks[0]
    histogram = _histogram(RATES.get(answer, RATES["leaks"]))
    curve = Curve.model_validate({**result.curve.model_dump(), "histogram": histogram})
    return changed_record(record, attacks=[result.model_copy(update={"curve": curve}).model_dump()])


def _curve(record: Record) -> Curve:
    """The curve of an attack that flags 56 of 100 members."""
    curve = record.attacks[0].curve
    return Curve.model_validate({**curve.model_dump(), "histogram": _histogram(0.56)})


def _histogram(rate: float) -> dict[str, list[float] | list[int]]:
    """Normal scores of 200 members and 200 non-members, of whom the rate is flagged at an FPR of 5 %."""
    edges, normal = np.linspace(-2.0, 3.5, 12), NormalDist()
    shift = normal.inv_cdf(rate) - normal.inv_cdf(0.05)
    below = [[0.0, *map(NormalDist(mean).cdf, edges[1:-1]), 1.0] for mean in (shift, 0.0)]
    members, others = (np.diff(np.round(200 * np.array(each))).astype(int).tolist() for each in below)
    return {"edges": edges.tolist(), "held_in": members, "held_out": others}


def _claim(epsilon: float, outcome: str) -> dict[str, Any]:
    verdict = {
        "claim": ClaimLabel.STATED(epsilon=epsilon, delta=1e-5),
        "outcome": outcome,
        "standing": "indicative" if outcome == "inconclusive" else "certified",
        "finding": Finding.NO_CLAIM(count=400, units="users", reach=3.8),
        "max_certifiable_epsilon": 3.8,
    }
    return {"judgement": {"users": 400, "delta": 1e-5, "bounds": [], "refused": [], "verdicts": [verdict]}}


def report_of(case: Record | SweepResult) -> Report:
    """The report of a case."""
    return report_sweep(case) if isinstance(case, SweepResult) else report_record(case)


def front_page(case: Record | SweepResult) -> str:
    """All texts of page one, one a line, without the hash of the record: every change of a schema changes it."""
    front = [section for section in report_of(case).sections if section.place is Place.FRONT]
    lines = [line for section in front for line in _lines(section)]
    return re.sub("report [0-9a-f]{12}", "report ID", "\n".join(lines))


def front_pages() -> str:
    """Page one of every case."""
    return "\n".join(f"# {name}\n{front_page(case)}\n" for name, case in made_cases().items())


def page(report: Report) -> str:
    """All texts of a report, one a line, below the key and heading of their section."""
    lines = [report.title, report.notice]
    for section in report.sections:
        lines += ["", f"{'#' * section.level} {section.key}: {section.title}", *_lines(section)]
    return re.sub("report [0-9a-f]{12}", "report ID", "\n".join(lines)) + "\n"


def _lines(section: ReportSection) -> Iterator[str]:
    for block in section.blocks:
        if isinstance(block, Banner):
            yield f"{block.title.upper()}. {block.text}"
        elif isinstance(block, Figure | Beside):
            for figure in block.figures if isinstance(block, Beside) else (block,):
                yield from (f"[{figure.name}] {figure.alt}", figure.caption)
        elif isinstance(block, Paragraph):
            yield f"{block.lead} {block.text}".strip()
        elif isinstance(block, Attachment):
            yield f"[{block.name}] {block.description}"
        elif hasattr(block, "rows"):
            yield from (" | ".join(row) for row in (block.head, *block.rows, *([(block.note,)] if block.note else [])))
        elif hasattr(block, "pairs"):
            yield from (": ".join(pair) for pair in block.pairs)
        else:
            yield from texts(block)


def image_texts(name: str) -> tuple[str | None, str]:
    """The text of page one when an image in the documentation was made, and today's."""
    case = made_cases()[DRAWN[name]]
    with Image.open(IMAGES / f"{name}.png") as image:
        return image.info.get(_TEXT), f"{report_of(case).notice}\n{front_page(case)}"


def draw_image(name: str, text: str) -> None:
    """Write the image of page one of a case, with the text of the page in its metadata."""
    with tempfile.TemporaryDirectory() as scratch, typesetting():
        path = write_pdf(report_of(made_cases()[DRAWN[name]]), Path(scratch) / "report.pdf")
        drawn = pdfium.PdfDocument(path)[0].render(scale=100 / 72).to_pil()
    kept = PngInfo()
    kept.add_itxt(_TEXT, text)
    drawn.quantize(64).save(IMAGES / f"{name}.png", optimize=True, pnginfo=kept)


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for name, report in reports().items():
        (FOLDER / f"{name}.txt").write_text(page(report), encoding="utf-8")
    (FOLDER / "page_one.txt").write_text(front_pages(), encoding="utf-8")
    for name in DRAWN:
        then, now = image_texts(name)
        if then != now:
            draw_image(name, now)
