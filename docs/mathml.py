"""Formulas of the site as MathML, which browsers draw by themselves: no script, and nothing from a network."""

from typing import TYPE_CHECKING, Any

from latex2mathml.converter import convert

if TYPE_CHECKING:
    from sphinx.application import Sphinx


def setup(app: "Sphinx") -> dict[str, Any]:
    """Register the renderer that conf.py chooses."""
    app.add_html_math_renderer("mathml", inline_renderers=(_inline, None), block_renderers=(_block, None))
    return {"parallel_read_safe": True, "parallel_write_safe": True}


def _inline(writer: Any, node: Any) -> None:
    _write(writer, convert(node.astext(), display="inline"))


def _block(writer: Any, node: Any) -> None:
    # A wide formula scrolls; a theme's rules for scripts that draw formulas do not apply.
    style = "overflow-x: auto; overflow-y: hidden; padding: 0.4rem 0"
    _write(writer, f'<div style="{style}">{convert(node.astext(), display="block")}</div>\n')


def _write(writer: Any, markup: str) -> None:
    from docutils.nodes import SkipNode

    writer.body.append(markup)
    raise SkipNode
