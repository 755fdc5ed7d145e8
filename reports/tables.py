"""Rows of a report's tables, as text."""

from typing import Any

from heldin.audit.attack_results import AttackResult
from heldin.record.condition_words import control_line, explanation, statement, training_line
from heldin.record.document import Record
from heldin.reports.wording import audited_by, group_name, over_texts, percent

PASSES = "*"  # marks what passes after adjustment
EXACT = "exact for complete separation"


def attack_rows(record: Record) -> list[list[str]]:
    """(attack, aggregation, AUROC, interval alone, interval of all at once, adjusted p) rows."""
    return [
        [
            r.attack,
            over_texts(r.attack, r.aggregation),
            f"{r.auroc.value:.3f}",
            f"{r.auroc.lower:.3f} to {r.auroc.upper:.3f}{' (exact)' if r.auroc.method == EXACT else ''}",
            "" if r.simultaneous is None else f"{r.simultaneous[0]:.3f} to {r.simultaneous[1]:.3f}",
            _adjusted(r, record),
        ]
        for r in record.attacks
    ]


def tpr_rows(record: Record) -> list[list[str]]:
    """True-positive rates, one row per attack with a curve; those that pass after adjustment are marked."""
    level = record.decision.by.tpr_level
    rows = []
    for r in record.attacks:
        # True-positive rates are read off a grouped curve, and only two scores have one (``audit.coarse``).
        if r.curve is None:
            continue
        cells = [
            "N/A"
            if t.estimate is None
            # Against the level of the decision: a rate that passes is part of the answer "leaks".
            else percent(t.estimate.value) + (PASSES if t.adjusted_p is not None and t.adjusted_p <= level else "")
            for t in r.curve.tpr_at
        ]
        rows.append([f"{r.attack}, {over_texts(r.attack, r.aggregation)}", *cells])
    return rows


def dial_rows(record: Record) -> list[list[str]]:
    """(dial, setting, AUROC, interval, difference, adjusted p) rows; only the leading setting's row names the dial."""
    rows = []
    for d in record.dials:
        by = d.difference
        # No difference to itself; N/A where no error can be estimated, as for sides that are separated completely.
        less = ("" if d.leads else "N/A") if by is None else f"{by.value:+.3f} ({by.lower:+.3f} to {by.upper:+.3f})"
        area = [f"{d.auroc.value:.3f}", f"{d.auroc.lower:.3f} to {d.auroc.upper:.3f}"]
        rows.append([d.dial if d.leads else "", d.setting, *area, less, f"{d.adjusted_p:.2g}"])
    return rows


def exposure_sample(record: Record) -> str:
    """Of how many users the groups are, where they are a sample; else empty."""
    exposure = record.exposure
    if exposure is None or exposure.of is None:
        return ""
    return (
        f" A sample of {exposure.users:,} of {exposure.of:,}, drawn by name; words are compared with those of a sample"
        " of others."
    )


def exposure_rows(record: Record) -> list[list[str]]:
    """Groups of held-in users, most exposed first; empty for an audit, which knows nothing about training."""
    return [
        [
            f"{number}",
            f"{g.users}",
            f"{100 * g.above:.0f} %",
            f"{100 * g.share:.2f} %",
            f"{g.reference_loss:.2f}",
            "N/A" if g.reference_divergence is None else f"{g.reference_divergence:.3f}",
            f"{g.word_divergence:.2f}",
            f"{g.near_duplicates:.1f}",
        ]
        # A number in place of names: groups of ten users or more (``audit.exposure``).
        for number, g in enumerate(record.exposure.groups if record.exposure else [], start=1)
    ]


def correlation_rows(record: Record) -> list[list[str]]:
    """(property, rank correlation with the score, p-value) rows."""
    return [
        [c.name, "N/A" if c.rho is None else f"{c.rho:+.2f}", "N/A" if c.p_value is None else f"{c.p_value:.2g}"]
        for c in (record.exposure.correlations if record.exposure else [])
    ]


def promise_table(record: Record) -> dict[str, Any]:
    """Title, head, rows and note of a table of what is promised by how exposed somebody is; empty without one."""
    training = record.training
    if training is None or training.by_exposure is None:
        return {}
    promise = training.by_exposure
    if promise.counted == "holders":
        claim = f" Claimed for this run: epsilon {promise.claimed:.4g}." if promise.claimed is not None else ""
        return {
            "title": f"What holds for a user and an entity, at delta {training.delta:g}",
            "head": ["other users who may name the entity", "epsilon"],
            "rows": [[f"{p.exposed:,}" if p.exposed else "a user alone", _epsilon(p.epsilon)] for p in promise.curve],
            "note": "By the theorem of two-level sampling; a name missed in one text of one other user is counted"
            f" in.{claim}",
        }
    table: dict[str, Any] = {
        "title": f"What is promised to whom, at delta {training.delta:g}",
        "head": ["records, written or named in", "epsilon"],
        "rows": [[f"{p.exposed:,}", _epsilon(p.epsilon)] for p in training.exposed or promise.curve],
        "note": "epsilon of a person who wrote, or is named in, so many of the records trained on, whether the"
        " name was recognised or not.",
    }
    # Independent trainings state the curve alone: nobody's exposure was counted.
    if training.exposed:
        table["note"] += (
            " The shares were counted in these records: they are facts about private people and stay with this report."
        )
        shares = {"users with at most that many": [at.users for at in training.exposed]}
        if all(at.entities is not None for at in training.exposed):
            shares["entities in at most that many"] = [at.entities or 0.0 for at in training.exposed]
        for name, column in shares.items():
            table["head"].append(name)
            for row, share in zip(table["rows"], column, strict=True):
                row.append(f"{100 * share:.1f} %")
    return table


def _epsilon(value: float | None) -> str:
    return "above 1,000" if value is None else f"{value:.4g}"


def canary_rows(record: Record) -> list[list[str]]:
    """(group, held in, held out, AUROC, interval) rows, the real users first; empty without canary users."""
    if record.canaries is None:
        return []
    area = record.primary().auroc
    sides = [str(record.split.held_in), str(record.split.held_out)]
    rows = [[str(audited_by(record).subjects), *sides, f"{area.value:.3f}", f"{area.lower:.3f} to {area.upper:.3f}"]]
    for g in record.canaries.groups:
        cells = (
            ["N/A", ""] if g.auroc is None else [f"{g.auroc.value:.3f}", f"{g.auroc.lower:.3f} to {g.auroc.upper:.3f}"]
        )
        rows.append([group_name(g), str(g.held_in), str(g.held_out), *cells])
    return rows


def blind_rows(record: Record) -> list[list[str]]:
    """(baseline, AUROC, p-value, alarm level, whether it separates) rows."""
    return [
        [b.name, f"{b.auroc:.3f}", f"{b.p_value:.2g}", f"{b.level:g}", "yes" if b.separates else "no"]
        for b in record.blind
    ]


def bound_rows(record: Record) -> list[list[str]]:
    """(bound, epsilon, level, standing, coverage) rows."""
    return [
        [
            # Whom a bound is about is only in question where canary users are judged beside real ones.
            f"{b.name}, {b.subjects}" if record.canaries else b.name,
            f"{b.epsilon_lower:.3f}",
            percent(b.level, 0),
            b.standing,
            "not measured" if b.coverage is None else percent(b.coverage),
        ]
        for b in record.judgement.bounds
    ]


BOUNDS_NOTE = (
    "Coverage: how often such a bound was right on simulated mechanisms of known epsilon, where it was right least"
    " often; a bound of exactly its level is seen a little above or below it. Conditional: right only if what the"
    " bound's name assumes holds, which nobody checks."
)


def refused_rows(record: Record) -> list[list[str]]:
    """(names, reason) rows: refused bounds with the same reason share a row."""
    names: dict[str, list[str]] = {}
    whole = record.canaries is not None
    for refused in record.judgement.refused:
        name = f"{refused.name}, {refused.subjects}" if whole and refused.name == "all bounds" else refused.name
        if name not in (same_reason := names.setdefault(refused.reason, [])):
            same_reason.append(name)
    return [[", ".join(same_reason), reason] for reason, same_reason in names.items()]


def _adjusted(result: AttackResult, record: Record) -> str:
    if result.adjusted_p is None:
        return ""
    return f"{result.adjusted_p:.2g}{PASSES if result.adjusted_p <= record.decision.by.auroc_level else ''}"


def condition_rows(record: Record) -> list[list[str]]:
    """(condition, how it is known, how it was checked or who declared it) of an audit of a planted training set."""
    if record.planted is None:
        return []
    facts = record.planted
    rows = [[str(statement(c)), c.known_by.value, explanation(c, facts)] for c in facts.conditions]
    if facts.training is not None:
        rows.append(["what the model was given", "measured", training_line(facts.training)])
    if facts.control is not None:
        rows.append(["positive control", "measured", control_line(facts.control)])
    return rows
