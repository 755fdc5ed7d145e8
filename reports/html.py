"""The parts of a web page: tables, terms, figures, lines to sign, and the annex. What is printed is escaped."""

import base64
import html
from collections.abc import Iterable, Sequence
from typing import Any

STYLE = """
body { font-family: Georgia, serif; max-width: 64em; margin: 2em auto; padding: 0 1em; color: #111; }
.answer { border-left: 4px solid #0072B2; background: #f2f6f9; padding: .7em 1em; font-size: 1.2em; font-weight: bold; }
.note { border-left: 4px solid #000; background: #f0f0f0; padding: .4em 1em; margin: .4em 0; }
table { border-collapse: collapse; font-size: .85em; margin: .6em 0; }
td, th { text-align: left; vertical-align: top; padding: .2em .6em; }
thead { border-bottom: 1px solid; border-top: 1px solid; } tbody { border-bottom: 1px solid; }
.terms th { font-weight: normal; color: #5a5a5a; width: 33%; } .terms tbody { border: 0; }
small, figcaption { color: #5a5a5a; } figure { margin: 1em 0; } img { max-width: 100%; }
.line { border-bottom: 1px solid; display: inline-block; min-width: 15em; }
.lines div { border-bottom: 1px solid; height: 2em; } .sign { display: flex; gap: 1em; margin-top: 2.5em; }
.sign div { border-top: 1px solid; flex: 1; color: #5a5a5a; }
pre { white-space: pre-wrap; font-size: .8em; }
@media print { .annex { page-break-before: always; } }
"""
_NOT_STATED = '<span>not stated:</span> <span class="line"></span>'


def page(title: str, body: str) -> str:
    """A whole page without scripts."""
    head = f'<meta charset="UTF-8"><title>{text(title)}</title><style>{STYLE}</style>'
    return f'<!DOCTYPE html>\n<html lang="en"><head>{head}</head>\n<body><main>{body}</main></body></html>\n'


def text(said: object) -> str:
    """Text as the page has it."""
    return html.escape(str(said))


def paragraph(said: str, kind: str = "") -> str:
    """A paragraph; nothing for an empty one."""
    return f"<p{_class(kind)}>{text(said)}</p>" if said else ""


def note(said: str) -> str:
    """Small print below a table."""
    return f"<p><small>{text(said)}</small></p>" if said else ""


def heading(said: str, level: int = 2) -> str:
    """A heading of level 1 to 3."""
    return f"<h{level}>{text(said)}</h{level}>"


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table whose first row names the columns."""
    cells = "".join(f'<th scope="col">{text(its)}</th>' for its in head)
    body = "".join(f"<tr>{''.join(f'<td>{text(its)}</td>' for its in row)}</tr>" for row in rows)
    return f"<table><thead><tr>{cells}</tr></thead><tbody>{body}</tbody></table>"


def terms(items: Iterable[Sequence[str]]) -> str:
    """Terms and what belongs to them; an empty one is a line to fill in."""
    rows = "".join(
        f'<tr><th scope="row">{text(what)}</th><td>{text(its) if its else _NOT_STATED}</td></tr>' for what, its in items
    )
    return f'<table class="terms"><tbody>{rows}</tbody></table>'


def points(said: Iterable[str]) -> str:
    """A list."""
    return f"<ul>{''.join(f'<li>{text(its)}</li>' for its in said)}</ul>"


def lines(what: str) -> str:
    """Two lines to write on, under what belongs there."""
    return f'<div class="lines"><small>{text(what)}:</small><div></div><div></div></div>'


def signed(basis: str) -> str:
    """The lines below a decision."""
    places = "".join(f"<div>{its}</div>" for its in ("decision", "name", "date"))
    return f'{note(f"Read and decided, on the strength of {basis}:")}<div class="sign">{places}</div>'


def picture(svg: str, words: str, caption: str = "") -> str:
    """A figure within the page, and in words what it shows."""
    data = base64.b64encode(svg.encode()).decode()
    below = f"<figcaption>{text(caption)}</figcaption>" if caption else ""
    return f'<figure><img alt="{text(words)}" src="data:image/svg+xml;base64,{data}">{below}</figure>'


def annex(its: dict[str, Any], of: str) -> str:
    """The annex, in the words and the order of the PDF.

    Args:
        its: what ``reports.annex`` or ``reports.sweep_annex`` computed.
        of: what the signature is about.
    """
    limits = ""
    if its["limits"]:
        limits = heading("The organisation's own limits", 3)
        limits += table(("limit", "value", "end of the 95 % interval", "outcome"), its["limits"])
        limits += note(its["limits_note"])
    return "\n".join(
        [
            '<section class="annex">',
            heading("Annex for those who sign"),
            heading("What was tested, and what was not", 3),
            table(("attack", "here", "what the attacker has", "what was found"), its["tests"]),
            note(its["tests_note"]),
            limits,
            heading("To whom the model will be given", 3),
            terms(its["release"]),
            heading("What the promise means", 3),
            terms(its["promise"]),
            heading("Other releases about the same people", 3),
            points(its["others"]),
            lines("Known to those who sign: other models, statistics or data about these people"),
            heading("How much was tested, and how well", 3),
            terms(its["quality"]),
            heading("When to test again", 3),
            points(its["repeat"]),
            heading("EDPB Opinion 28/2024, row by row", 3),
            table(("paragraph", "what it asks", "in this report"), its["opinion"]),
            note(its["opinion_note"]),
            heading("The risk that is left", 3),
            points(its["residual"]),
            lines("Accepted, and why; the advice of the data-protection officer"),
            paragraph(its["not_anonymity"]),
            signed(f"this report, {of}"),
            "</section>",
        ]
    )


def _class(kind: str) -> str:
    return f' class="{kind}"' if kind else ""
