"""The PDF report of a record: figures as SVG, the words from findings, laid out by report.typ."""

import json
from collections.abc import Collection
from dataclasses import asdict
from pathlib import Path
from typing import Any

import yaml

from heldin.record.document import Record, read_record
from heldin.reports.annex import annex
from heldin.reports.certified import certified
from heldin.reports.extraction import NEITHER, extraction_table, written_out
from heldin.reports.facts import facts
from heldin.reports.figures import alternatives, canary_caption, figures, shown_curves
from heldin.reports.findings import FRONT, findings
from heldin.reports.marks import marks_table
from heldin.reports.next_steps import glossary
from heldin.reports.people import in_short, people_note, people_rows, worst_off
from heldin.reports.tables import (
    BOUNDS_NOTE,
    attack_rows,
    blind_rows,
    bound_rows,
    canary_rows,
    condition_rows,
    correlation_rows,
    dial_rows,
    exposure_rows,
    exposure_sample,
    promise_table,
    refused_rows,
    tpr_rows,
)
from heldin.reports.typesetting import write_pdf
from heldin.reports.wording import audited_by, breakable, percent


def write_report(folder: Path) -> Path:
    """Make ``folder``/report.pdf from ``folder``/record.json, and return its path.

    Raises:
        InputError: no readable record in ``folder``.
    """
    return typeset(read_record(folder / "record.json"), folder / "report.pdf")


def typeset(record: Record, path: Path) -> Path:
    """Write the PDF report of a record to ``path``, whole or not at all, and return the path."""
    drawn = figures(record)
    return write_pdf("report.typ", report_content(record, drawn), drawn, path)


def report_content(record: Record, drawn: Collection[str]) -> dict[str, Any]:
    """Everything a report prints, as text: PDF and web page only lay it out and compute nothing.

    Args:
        record: the record.
        drawn: names of the figures.
    """
    content = {
        "name": breakable(record.name),
        "kind": record.kind,
        "created": record.created,
        "notice": record.notice,
        "findings": asdict(findings(record)),
        "front": len(FRONT),
        "certified": certified(record),
        "people": people_rows(record),
        "people_note": people_note(record),
        "worst_off": worst_off(record),
        "in_short": in_short(record),
        "written_out": written_out(record),
        "annex": annex(record),
        "basis": f"made {record.created}, of the model {record.target.fingerprint[:16]}",
        "what": {name: str(word) for name, word in vars(audited_by(record)).items()},
        "figures": sorted(drawn),
        "alt": alternatives(record, drawn),
        "shown": shown_curves(record),
        "trainings": record.trainings is not None,
        "attacks": attack_rows(record),
        "fprs": [percent(t.fpr) for t in record.curve().tpr_at],
        "tprs": tpr_rows(record),
        "blind": blind_rows(record),
        "ceiling": record.ceiling() is not None,
        "bounds": bound_rows(record),
        "bounds_note": BOUNDS_NOTE,
        "refused": refused_rows(record),
        "promised": promise_table(record),
        "conditions": condition_rows(record),
        "canaries": canary_rows(record),
        "canary_caption": canary_caption(record),
        "dials": dial_rows(record),
        "extraction": extraction_table(record),
        "marks": marks_table(record),
        "neither": NEITHER,
        "exposed": exposure_rows(record),
        "exposed_sample": exposure_sample(record),
        "correlations": correlation_rows(record),
        "bound_delta": f"{record.judgement.delta:g}",
        "spearman": _spearman(record),
        "facts": facts(record),
        "config": yaml.safe_dump(record.config, sort_keys=False, width=100),
        "command": breakable(record.command),
    }
    # Of values alone: the keys of this dictionary, "ceiling" among them, are not words of the report.
    return {**content, "glossary": [list(pair) for pair in glossary(json.dumps(list(content.values())))]}


def _spearman(record: Record) -> str:
    if record.training is None or record.training.gap_auroc_spearman is None:
        return ""
    return f"{record.training.gap_auroc_spearman:.3f}"
