"""The web page of a report: one file that needs no network. Every text is escaped.

Figures are SVG. Only those that have an interactive chart use scripts, which vl-convert puts into the page (the extra
``html``).
"""

import base64
import json
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from heldin.base.errors import InputError
from heldin.base.files import write_text
from heldin.reports import blocks
from heldin.reports.blocks import Block, Figure, Place, Report, Section
from heldin.reports.wording import breakable

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
@media print { .page { page-break-before: always; } }
"""
_NOT_STATED = '<span>not stated:</span> <span class="line"></span>'


def write_page(report: Report, path: Path) -> Path:
    """Write the page to ``path``, whole or not at all, and return the path.

    Raises:
        InputError: it has charts, and Altair or vl-convert is not installed.
    """
    write_text(path, render(report))
    return path


def render(report: Report) -> str:
    """Return the page. Raises InputError if it has charts and Altair or vl-convert is not installed."""
    top = [
        _small(f"heldin · {report.created} · {report.notice}"),
        f"<h1>{escape(report.title)}</h1>",
        f"<p>{escape(breakable(report.subject))}</p>",
    ]
    charts = {name: figure for name, figure in report.figures.items() if figure.chart}
    body = "\n".join([*top, *map(_section, report.sections), *([_scripts(charts)] if charts else [])])
    head = f'<meta charset="UTF-8"><title>heldin report: {escape(report.subject)}</title><style>{STYLE}</style>'
    return f'<!DOCTYPE html>\n<html lang="en"><head>{head}</head>\n<body><main>{body}</main></body></html>\n'


def load_altair() -> Any:
    """Return Altair. Raises InputError if it or vl-convert is not installed."""
    try:
        import altair
        import vl_convert  # noqa: F401  # needed when the page is written
    except ImportError as error:
        raise InputError("a web page needs Altair and vl-convert: pip install 'heldin[html]'") from error
    return altair


def _section(section: Section) -> str:
    level = section.level + 1
    heading = f"<h{level}>{escape(section.title)}</h{level}>" if section.title else ""
    kind = ' class="page"' if section.place is Place.PAGE else ""
    return f'<section id="{section.key}"{kind}>{heading}{"".join(map(_block, section.blocks))}</section>'


def _block(block: Block) -> str:
    match block:
        case blocks.Answer(text):
            return f'<p class="answer">{escape(text)}</p>'
        case blocks.Note(text):
            return f'<p class="note">Note. {escape(text)}</p>'
        case blocks.Paragraph(text, lead):
            return f"<p>{f'<b>{escape(lead)}</b> ' if lead else ''}{escape(text)}</p>"
        case blocks.Small(text):
            return _small(text)
        case blocks.Table(head, rows, note):
            return _table(head, rows) + (_small(note) if note else "")
        case blocks.Facts(pairs):
            return f'<table class="terms"><tbody>{"".join(map(_pair, pairs))}</tbody></table>'
        case blocks.Remarks(lines):
            return f"<ul>{_each('li', lines)}</ul>"
        case Figure():
            return _figure(block)
        case blocks.Reference(text):
            return f"<p>{escape(text)}.</p>"
        case blocks.Blanks(label):
            return f'<div class="lines"><small>{escape(label)}:</small><div></div><div></div></div>'
        case blocks.Signature(basis):
            places = _each("div", ("decision", "name", "date"))
            return f'{_small(f"Read and decided, on the strength of {basis}:")}<div class="sign">{places}</div>'
        case blocks.Verbatim(text):
            return f"<pre>{escape(text)}</pre>"


def _small(text: str) -> str:
    return f"<p><small>{escape(text)}</small></p>"


def _each(tag: str, texts: Iterable[str]) -> str:
    return "".join(f"<{tag}>{escape(text)}</{tag}>" for text in texts)


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    names = "".join(f'<th scope="col">{escape(name)}</th>' for name in head)
    body = "".join(f"<tr>{_each('td', row)}</tr>" for row in rows)
    return f"<table><thead><tr>{names}</tr></thead><tbody>{body}</tbody></table>"


def _pair(pair: Sequence[str]) -> str:
    name, value = pair
    return f'<tr><th scope="row">{escape(name)}</th><td>{escape(value) if value else _NOT_STATED}</td></tr>'


def _figure(figure: Figure) -> str:
    caption = f"<figcaption>{escape(figure.caption)}</figcaption>" if figure.caption else ""
    if figure.chart:
        return f'<figure><div id="chart-{figure.name}"></div>{caption}</figure>'
    data = base64.b64encode(figure.draw().encode()).decode()
    return f'<figure><img alt="{escape(figure.alt)}" src="data:image/svg+xml;base64,{data}">{caption}</figure>'


def _scripts(charts: Mapping[str, Figure]) -> str:
    """Return the scripts that draw the interactive charts."""
    altair = load_altair()
    import vl_convert

    drawn = []
    for name, figure in charts.items():
        # Vega gives the drawing to screen readers as an image with this description.
        specification = {**(figure.chart() if figure.chart else {}), "description": figure.alt}
        # In a script "<" could end it.
        data = json.dumps(specification).replace("<", "\\u003c")
        drawn.append(f'vegaEmbed("#chart-{name}", {data}, {{"actions": false}});')
    bundle = vl_convert.javascript_bundle(vl_version="_".join(altair.SCHEMA_VERSION.split(".")[:2]))
    return f"<script>{bundle}</script><script>{''.join(drawn)}</script>"
