"""The PDF report of a sweep, from its document alone: page one answers, the rest says why."""

import json
from pathlib import Path
from typing import Any

import yaml

from heldin.audit.blocks import LEAST_BLOCKS
from heldin.base.wording import counted
from heldin.record.sweep import CanaryPoint, SweepResult, VariantResult
from heldin.reports import sweep_words as words
from heldin.reports.next_steps import glossary
from heldin.reports.sweep_annex import EXTRACTION_HEAD, extraction_note, extraction_rows, sweep_annex
from heldin.reports.sweep_figures import sweep_figures
from heldin.reports.typesetting import write_pdf
from heldin.reports.wording import breakable

FILE = "report.pdf"
_COLUMNS = 3  # of canary users in one table
_KEPT = (
    "Every cell's folder keeps its model, scores and ledger, which say who was held in, and the key of its coins and"
    " noise, all readable by their owner only. heldin purge removes them and says what can no longer be verified"
    " without; this report and comparison.json name nobody."
)


def typeset_sweep(result: SweepResult, path: Path) -> Path:
    """Write the PDF of a sweep to ``path``, whole or not at all, and return the path."""
    drawn = sweep_figures(result)
    return write_pdf("sweep.typ", _content(result, sorted(drawn)), drawn, path)


def _content(result: SweepResult, figures: list[str]) -> dict[str, Any]:
    panels = {(point.kind, point.documents) for variant in result.variants for point in variant.canaries}
    content = {
        "title": words.title(result),
        "name": breakable(result.name),
        "created": result.created,
        "notice": result.notice,
        "version": result.version,
        "answer": words.answer(result),
        "notes": words.notes(result),
        "rule": words.rule(result),
        "main": words.main_rows(result),
        "main_note": words.main_note(result),
        "attacker": words.attacker(result),
        "next": words.next_step(result),
        "sweep": result.sweep,
        "sweep_short": result.sweep[:16],
        "figures": figures,
        "alt": {name: _alternative(name, result) for name in figures},
        "over": words.over(result),
        "planted": any(variant.canaries for variant in result.variants),
        "candidates": words.candidate_rows(result),
        "differences": words.difference_rows(result),
        "canaries": _canary_tables(result),
        "canary_width": 100 if len(panels) > 1 else 55,
        "cells": words.cell_rows(result),
        "extraction": extraction_rows(result),
        "extraction_head": EXTRACTION_HEAD,
        "extraction_note": extraction_note(result),
        "annex": sweep_annex(result),
        "tests": _tests(result),
        "tried": words.tried_rows(result),
        "settings": words.setting_rows(result),
        "commitments": words.commitment_rows(result),
        "kept": _KEPT,
        "command": breakable(result.command),
        "config": yaml.safe_dump(result.config, sort_keys=False, width=100),
    }
    return {**content, "glossary": [list(pair) for pair in glossary(json.dumps(list(content.values())))]}


def _canary_tables(result: SweepResult) -> list[dict[str, Any]]:
    """A row for each variant and a column for each kind of canary users, a few columns at a time."""
    kinds = list(dict.fromkeys(_kind(point) for variant in result.variants for point in variant.canaries))
    tables = []
    for first in range(0, len(kinds), _COLUMNS):
        part = kinds[first : first + _COLUMNS]
        rows = []
        for variant in result.variants:
            areas = {_kind(point): point.auroc for point in variant.canaries}
            if areas:
                rows.append([breakable(variant.name), *(words.summary(areas.get(kind), digits=2) for kind in part)])
        tables.append({"head": ["variant", *part], "rows": rows})
    return tables


def _kind(point: CanaryPoint) -> str:
    length = "" if point.length is None else f" of {counted(point.length, 'token')}"
    documents = "" if point.documents is None else f", {counted(point.documents, 'document')}"
    return f"{point.kind.replace('_', ' ')}{length}{documents}"


def _tests(result: SweepResult) -> list[str]:
    """What each statement rests on, with the coverage that simulations measured."""
    lines = [
        "Intervals over three blocks or more: Student's t on one number a block; of 2,000 simulated sweeps 94 to 96 %"
        " covered the truth at three and at five blocks.",
        "Verdicts of all cells: Holm over all planned cells and groups of people, which holds under any dependence of"
        " the cells. Bounds: each at 5 % divided by the number of planned cells.",
        "Beaten by another: no worse by what was measured in promise, AUROC, canary users, loss and gradients, and"
        f" better in AUROC or loss by paired t tests over at least {LEAST_BLOCKS} blocks, Holm over all pairs of a"
        " group. Of 2,000 simulated sweeps of variants that are all alike at most 5 % named one.",
    ]
    if result.rule is not None:
        lines.append(
            "The rule: one-sided t tests over the blocks, all of a candidate's must reject (intersection-union), Holm"
            " over the candidates. Of 2,000 simulated sweeps whose candidates barely break a limit at most 5 % shipped"
            " one."
        )
    return lines


def _alternative(name: str, result: SweepResult) -> str:
    """What a figure shows, for whoever cannot see it."""
    done = [variant for variant in result.variants if variant.auroc is not None]
    if name == "frontier":
        points = "; ".join(_point(variant) for variant in done)
        return f"Scatter plots of promise, AUROC, utility and compute. {points}."
    if name.startswith("roc"):
        return "A panel of ROC curves for each variant; their AUROCs stand in the table on page one."
    if name == "canaries":
        return "AUROC of canary users by substring length for each variant; the table below has the same numbers."
    if name == "exposure":
        thirds = "; ".join(
            f"{variant.name} {', '.join(f'{band.above:.2f}' for band in variant.bands)}" for variant in done
        )
        return f"Mean share of held-out users with a lower score, thirds by records and then by words: {thirds}."
    return "Held-out users' validation loss and AUROC over the training of each variant's model."


def _point(variant: VariantResult) -> str:
    gain = "not measured" if variant.gain is None else f"{variant.gain.value:+.3f}"
    area = "-" if variant.auroc is None else f"{variant.auroc.value:.2f}"
    return f"{variant.name}: {words.promise(variant)}, AUROC {area}, gain {gain}"
