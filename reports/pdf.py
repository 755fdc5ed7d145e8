"""Typeset a record as PDF with typst: a template beside this file, figures as SVG, the words from findings."""

import json
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

import typst
import yaml

from audit.record import Record, read_record
from audit.record_results import TrialsFacts
from corpus.files import whole_file
from reports.figures import figures
from reports.findings import findings, group_name, percent
from reports.trials_figure import trials_histogram

TEMPLATE = Path(__file__).with_name("report.typ")


def write_report(folder: Path) -> Path:
    """Make ``folder``/report.pdf from ``folder``/record.json. Returns the PDF's path.

    Raises:
        InputError: no readable record in ``folder``.
    """
    record = read_record(folder / "record.json")
    path = folder / "report.pdf"
    with tempfile.TemporaryDirectory() as scratch:
        workplace = Path(scratch)
        for name, svg in _figures(record).items():
            (workplace / f"{name}.svg").write_text(svg, encoding="utf-8")
        (workplace / "report.json").write_text(json.dumps(_content(record)), encoding="utf-8")
        (workplace / "report.typ").write_text(TEMPLATE.read_text(encoding="utf-8"), encoding="utf-8")
        document = typst.compile(str(workplace / "report.typ"), root=scratch)
    with whole_file(path) as temporary:
        temporary.write_bytes(document)
    return path


def _figures(record: Record) -> dict[str, str]:
    """SVG by name; the histogram of independent trainings says that each is a training, not a user."""
    return {**figures(record), **({"histogram": trials_histogram(record)} if record.trials else {})}


def _content(record: Record) -> dict[str, Any]:
    """Everything the template prints, as text: the template lays out, it does not compute."""
    return {
        "name": record.name,
        "kind": record.kind,
        "created": record.created,
        "notice": record.notice,
        "findings": asdict(findings(record)),
        "figures": sorted(_figures(record)),
        "trials": record.trials is not None,
        "attacks": _attack_rows(record),
        "fprs": [percent(t.fpr) for t in record.primary().tpr_at],
        "tprs": _tpr_rows(record),
        "blind": [
            [b.name, f"{b.auroc:.3f}", f"{b.p_value:.2g}", f"{b.level:g}", "yes" if b.separates else "no"]
            for b in record.blind
        ],
        "ceiling": bool(record.training and record.training.ceiling),
        "bounds": [
            [
                f"{b.name}, {b.population}" if record.canaries else b.name,
                f"{b.epsilon_lower:.3f}",
                percent(b.level, 0),
                b.standing,
                "not measured" if b.coverage is None else percent(b.coverage),
            ]
            for b in record.judgement.bounds
        ],
        "refused": _refused(record),
        "canaries": _canary_rows(record),
        "dials": _dial_rows(record),
        "exposed": _exposed_rows(record),
        "correlations": _correlation_rows(record),
        "bound_delta": f"{record.judgement.delta:g}",
        "spearman": _spearman(record),
        "facts": _facts(record),
        "resamples": f"{record.resamples:,}",
        "config": yaml.safe_dump(record.config, sort_keys=False, width=100),
        "command": record.command,
    }


def _attack_rows(record: Record) -> list[list[str]]:
    return [
        [
            r.attack,
            r.aggregation,
            f"{r.auroc.value:.3f}",
            f"{r.auroc.mean:.3f} ± {r.auroc.deviation:.3f}",
            f"{r.auroc.lower:.3f} to {r.auroc.upper:.3f}",
            r.auroc.method,
        ]
        for r in record.attacks
    ]


def _tpr_rows(record: Record) -> list[list[str]]:
    rows = []
    for r in record.attacks:
        cells = ["N/A" if t.estimate is None else percent(t.estimate.value) for t in r.tpr_at]
        rows.append([f"{r.attack}, {r.aggregation}", *cells])
    return rows


def _dial_rows(record: Record) -> list[list[str]]:
    """(dial, setting, AUROC, interval, difference) rows; a dial's name stands at its leading setting."""
    rows = []
    for d in record.dials:
        by = d.difference
        less = ("" if d.leads else "N/A") if by is None else f"{by.value:+.3f} ({by.lower:+.3f} to {by.upper:+.3f})"
        area = [f"{d.auroc.value:.3f}", f"{d.auroc.lower:.3f} to {d.auroc.upper:.3f}"]
        rows.append([d.dial if d.leads else "", d.setting, *area, less])
    return rows


def _exposed_rows(record: Record) -> list[list[str]]:
    """The most exposed users; none for an audit, which knows nothing of training."""
    return [
        [
            u.pseudonym,
            f"{u.score:.3g}",
            f"{100 * u.rank:.0f} %",
            f"{100 * u.share:.2f} %",
            f"{u.reference_loss:.2f}",
            "N/A" if u.reference_divergence is None else f"{u.reference_divergence:.3f}",
            f"{u.divergence:.2f}",
            str(u.near_duplicates),
        ]
        for u in (record.exposure.most_exposed if record.exposure else [])
    ]


def _correlation_rows(record: Record) -> list[list[str]]:
    return [
        [c.name, "N/A" if c.rho is None else f"{c.rho:+.2f}", "N/A" if c.p_value is None else f"{c.p_value:.2g}"]
        for c in (record.exposure.correlations if record.exposure else [])
    ]


def _canary_rows(record: Record) -> list[list[str]]:
    """(group, held in, held out, AUROC, interval) rows, the real users first; none without canary users."""
    if record.canaries is None:
        return []
    area = record.primary().auroc
    sides = [str(record.split.held_in), str(record.split.held_out)]
    rows = [["real users", *sides, f"{area.value:.3f}", f"{area.lower:.3f} to {area.upper:.3f}"]]
    for g in record.canaries.groups:
        cells = (
            ["N/A", ""] if g.auroc is None else [f"{g.auroc.value:.3f}", f"{g.auroc.lower:.3f} to {g.auroc.upper:.3f}"]
        )
        rows.append([group_name(g), str(g.held_in), str(g.held_out), *cells])
    return rows


def _refused(record: Record) -> list[list[str]]:
    """(names, reason): the refused bounds that share a reason stand together."""
    names: dict[str, list[str]] = {}
    whole = record.canaries is not None
    for refused in record.judgement.refused:
        name = f"{refused.name}, {refused.population}" if whole and refused.name == "all bounds" else refused.name
        if name not in (its := names.setdefault(refused.reason, [])):
            its.append(name)
    return [[", ".join(its), reason] for reason, its in names.items()]


def _spearman(record: Record) -> str:
    if record.training is None or record.training.gap_auroc_spearman is None:
        return ""
    return f"{record.training.gap_auroc_spearman:.3f}"


def _facts(record: Record) -> list[list[str]]:
    """(what, value) rows of data, split, models, training and environment."""
    c, s, e = record.corpus, record.split, record.environment
    if record.trials:
        return _trial_facts(record, record.trials)
    facts = [
        ("users in the corpus, records", f"{c.users:,}, {c.records:,} ({c.skipped_rows} unusable rows skipped)"),
        ("records per audited user, P0 / P25 / P50 / P75 / P100", " / ".join(map(str, c.records_per_audited_user))),
        (
            "users not audited",
            f"{c.dropped_by_pattern} by pattern, {c.dropped_by_minimum} with too few and {c.dropped_by_maximum} with"
            f" too many records, {c.dropped_by_sampling} by sampling",
        ),
        ("public users, their records", f"{c.public_users:,}, {c.public_records:,}"),
        ("held in, held out, always in", f"{s.held_in}, {s.held_out}, {s.always_in} users (by {s.assignment})"),
        ("records by part", ", ".join(f"{k} {v:,}" for k, v in s.records_by_part.items())),
        (
            "texts on two sides (exact)",
            f"attacker's in the same user's training {s.overlaps.attacker_texts_in_same_users_training}, in others'"
            f" {s.overlaps.attacker_texts_in_other_users_training}; held-out in training"
            f" {s.overlaps.held_out_texts_in_training}; audited in public {s.overlaps.audited_texts_in_public}",
        ),
        ("what is scored", record.scoring_rule),
        ("target", f"{record.target.name}; {record.target.fingerprint[:16]}"),
        ("reference", f"{record.reference.name}; {record.reference.fingerprint[:16]}"),
        ("corpus fingerprint", c.fingerprint[:16]),
    ]
    if record.canaries:
        k = record.canaries
        facts.append(
            (
                "canary users, held in and held out",
                f"{k.users}, {k.held_in} and {k.held_out}; {k.replaced} in the place of real users; trained on"
                f" {k.trained_on:,} of {k.training_texts:,} of their texts, scored {k.attacker_texts:,}",
            )
        )
    if s.key_commitment and s.ledger_commitment:
        facts.append(("commitments to key and ledger", f"{s.key_commitment[:16]}, {s.ledger_commitment[:16]}"))
    if record.training:
        t = record.training
        facts.append(("fine-tuning", f"{t.steps} steps in {t.seconds:,.0f} s; defense: {t.defense}"))
        facts.append(("guarantee", t.guarantee))
        facts += [
            (r.name, f"left out {r.removed:,} of {r.before:,} training records of {r.users:,} users")
            for r in t.removals
        ]
        if t.defense != "none":
            facts.append(("noise multiplier", f"{t.noise_multiplier:.5g}"))
    facts += [
        (
            "interval",
            f"{record.primary().auroc.method}, {record.resamples:,} resamples of users, an {interval_label(record)}",
        ),
        ("heldin, Python, source", f"{e.heldin}, {e.python}, {e.git_revision or 'not a checkout'}"),
        ("packages", ", ".join(f"{k} {v}" for k, v in e.packages.items())),
        ("device", f"{e.device}, {e.threads} threads"),
    ]
    return [list(pair) for pair in facts]


def _trial_facts(record: Record, trials: TrialsFacts) -> list[list[str]]:
    """(what, value) rows of independent trainings."""
    c, s, e, t = record.corpus, record.split, record.environment, record.training
    assert t is not None
    facts = [
        ("trainings, with and without the user", f"{trials.runs}, {s.held_in} and {s.held_out} (by {s.assignment})"),
        ("users in every training, their records", f"{t.users:,}, {t.records:,}"),
        ("the worst-case user's documents", f"{trials.documents}, trained on and scored"),
        ("public users, their records", f"{c.public_users:,}, {c.public_records:,}"),
        ("what is scored", record.scoring_rule),
        ("base model and reference", f"{record.reference.name}; {record.reference.fingerprint[:16]}"),
        ("the trainings' job", record.target.fingerprint[:16]),
        ("corpus fingerprint", c.fingerprint[:16]),
        ("commitment to the key of the audit", (s.key_commitment or "")[:16]),
        ("fine-tuning", f"{t.steps} steps, {t.seconds:,.0f} s in all; defense: {t.defense}"),
        ("guarantee", t.guarantee),
        ("noise multiplier", f"{t.noise_multiplier:.5g}"),
        ("interval", f"{record.primary().auroc.method}, {record.resamples:,} resamples of trainings"),
        ("heldin, Python, source", f"{e.heldin}, {e.python}, {e.git_revision or 'not a checkout'}"),
        ("packages", ", ".join(f"{k} {v}" for k, v in e.packages.items())),
        ("device", f"{e.device}, one thread a training"),
    ]
    return [list(pair) for pair in facts]


def interval_label(record: Record) -> str:
    """The kind of statement that the primary attack's interval is."""
    return record.primary().auroc.label
