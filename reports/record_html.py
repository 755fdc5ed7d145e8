"""The report of one run or audit as a web page that needs no network and no script: what its PDF says."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from heldin.base.files import write_text
from heldin.record.document import Record, read_record
from heldin.reports import html
from heldin.reports.figures import figures
from heldin.reports.pdf import report_content

FILE = "report.html"
_EXPOSED = (
    "group",
    "people",
    "above held-out",
    "share of training",
    "reference loss",
    "reference divergence",
    "word divergence",
    "near-duplicates",
)
# Title, key of the content, and head of the tables that follow each other; a table without rows is left out.
_TABLES = (
    ("What certified statements rest on", "conditions", ("condition", "known by", "how, or who says so")),
    (
        "How well the attacks separate the groups",
        "attacks",
        ("attack", "over texts", "AUROC", "95 % alone", "95 % all at once", "adjusted p"),
    ),
    (
        "Lower bounds on epsilon",
        "bounds",
        ("bound", "epsilon at least", "level", "standing", "lowest coverage measured"),
    ),
    ("Blind baselines", "blind", ("baseline", "AUROC", "p-value", "alarm below", "separates the groups")),
    (
        "The attacker's dials",
        "dials",
        ("dial", "setting", "AUROC", "95 % interval", "less the leading setting's", "adjusted p"),
    ),
)
_AFTER = (
    ("Who is at risk", "exposed", _EXPOSED),
    ("Rank correlations with the score", "correlations", ("over all held-in ones", "rank correlation", "p-value")),
    ("Canary users", "canaries", ("group", "held in", "held out", "AUROC", "95 % interval")),
)


def write_record_html(folder: Path) -> Path:
    """Make ``folder``/report.html from ``folder``/record.json, whole or not at all, and return its path.

    Raises:
        InputError: no readable record in ``folder``.
    """
    path = folder / FILE
    write_text(path, record_page(read_record(folder / "record.json")))
    return path


def record_page(record: Record) -> str:
    """The page of a record."""
    drawn = figures(record)
    content = report_content(record, drawn)
    body = [
        *_front(content, drawn),
        *_tables(content, _TABLES),
        *_pictures(content, drawn, ("roc", "knowledge", "curves")),
        *_extraction(content),
        *_tables(content, _AFTER),
        *_pictures(content, drawn, ("canaries", "norms")),
        html.heading("Facts"),
        html.terms(content["facts"]),
        html.heading("Words"),
        html.terms(content["glossary"]),
        html.heading("To repeat this"),
        f"<pre>{html.text(content['command'])}</pre>",
        html.annex(content["annex"], content["basis"]),
        html.heading("Configuration"),
        f"<pre>{html.text(content['config'])}</pre>",
    ]
    return html.page(f"heldin report: {record.name}", "\n".join(body))


def _front(content: Mapping[str, Any], drawn: Mapping[str, str]) -> list[str]:
    found, front, what = content["findings"], content["front"], content["what"]
    people = ("", f"of 1,000 {what['member']}", f"of 1,000 {what['other']}")
    return [
        html.note(f"heldin · {content['created']} · {content['notice']}"),
        html.heading("User-inference audit", 1),
        html.paragraph(content["name"]),
        html.paragraph(found["headline"], "answer"),
        html.note(content["in_short"]),
        *(html.paragraph(f"Note. {its}", "note") for its in found["warnings"]),
        html.heading("In people"),
        html.table(people, content["people"]) if content["people"] else "",
        html.paragraph(content["people_note"]),
        html.paragraph(f"Claims and bounds. {content['certified']}"),
        html.paragraph(f"Whoever is hit hardest. {content['worst_off']}"),
        html.paragraph(f"What the model would write out. {content['written_out']}"),
        *_paragraphs(found["paragraphs"][:front]),
        *_pictures(content, drawn, ("histogram",)),
        *_paragraphs(found["paragraphs"][front:]),
    ]


def _paragraphs(pairs: list[tuple[str, str]]) -> list[str]:
    return [part for title, body in pairs for part in (html.heading(title), html.paragraph(body))]


def _tables(content: Mapping[str, Any], which: tuple[tuple[str, str, tuple[str, ...]], ...]) -> list[str]:
    found = []
    for title, key, head in which:
        if content[key]:
            found += [html.heading(title), html.table(head, content[key])]
        if key == "bounds" and content[key]:
            found.append(html.note(content["bounds_note"]))
        if key == "attacks":
            rates = ("attack", *(f"FPR {its}" for its in content["fprs"]))
            found += [html.heading("True-positive rate at fixed false-positive rates", 3)]
            found += [html.table(rates, content["tprs"])]
        if key == "bounds" and (promised := content["promised"]):
            found += [html.heading(promised["title"]), html.table(promised["head"], promised["rows"])]
            found += [html.note(promised["note"])]
    return found


def _extraction(content: Mapping[str, Any]) -> list[str]:
    its, marks, found = content["extraction"], content["marks"], []
    if its:
        found = [html.heading("Extraction"), html.paragraph(its["asked"]), html.table(its["head"], its["rows"])]
        found += [html.note(its["note"]), html.paragraph(content["neither"])]
    if marks:
        found += [html.heading("How far canary users are exposed", 3), html.table(marks["head"], marks["rows"])]
        found += [html.note(marks["note"])]
    return found


def _pictures(content: Mapping[str, Any], drawn: Mapping[str, str], names: tuple[str, ...]) -> list[str]:
    return [html.picture(drawn[name], content["alt"][name]) for name in names if name in drawn]
