"""Pages that the site makes from the code: the command line, the public names, the modules of each package."""

import importlib
import inspect
import itertools
import json
import os
import pkgutil
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from enum import Enum
from pathlib import Path
from types import ModuleType, UnionType
from typing import TYPE_CHECKING, Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

if TYPE_CHECKING:
    from sphinx.application import Sphinx

DOCS = Path(__file__).parent
ROOT = DOCS.parent
MADE = DOCS / "_generated"
NOTEBOOKS = DOCS / "notebooks"
PACKAGES = (  # in the order in which they may import
    *("base", "words", "models", "corpus", "canaries", "defenses", "finetune", "attacks", "bounds", "audit", "record"),
    *("stages", "white_box", "jobs", "reports", "planting", "sweeps", "testing", "api", "commands"),
)


def connect(app: "Sphinx") -> None:
    """The pages are written before Sphinx looks for pages; links are resolved as each page is read."""
    app.connect("builder-inited", lambda app: write_pages())
    app.connect("source-read", resolve_links)
    app.connect("env-get-outdated", lambda *_: ["start"])  # Sphinx does not know that it is README.md
    app.connect("autodoc-process-docstring", plain, priority=400)  # before napoleon, at 500


def write_pages() -> None:
    """docs/_generated: cli.md, api.md, one for each package and notebook. A page that is as it was keeps its date."""
    packages = {f"api-{package}": package_page(package) for package in PACKAGES}
    made = {"cli": cli_page(), "api": api_page(), **packages, **notebook_pages()}
    MADE.mkdir(exist_ok=True)
    for old in set(MADE.glob("*.md")) - {MADE / f"{name}.md" for name in made}:
        old.unlink()
    for name, text in made.items():
        page = MADE / f"{name}.md"
        if not page.is_file() or page.read_text(encoding="utf-8") != text:
            page.write_text(text, encoding="utf-8")


def cli_page() -> str:
    """Every command with its arguments and options by panel, as `--help` has them."""
    import typer

    from heldin.commands.cli import app

    return "# Command line\n\n" + "\n".join(_command(typer.main.get_command(app), "heldin", None))


def _command(command: Any, name: str, parent: Any) -> Iterator[str]:
    from heldin.commands.help import describe

    describe(command, name)
    context = command.make_context(name, [], parent=parent, resilient_parsing=True)
    yield f"## `{name}`\n\n{_markdown(inspect.cleandoc(command.help or ''))}\n"
    yield f"```text\n{name} {' '.join(command.collect_usage_pieces(context))}\n```\n"
    panels: dict[str, list[str]] = {}
    for parameter in command.get_params(context):
        if parameter.name != "help" and (record := parameter.get_help_record(context)):
            kind = "Arguments" if parameter.param_type_name == "argument" else "Options"
            panel = getattr(parameter, "rich_help_panel", None) or kind
            panels.setdefault(panel, []).append(f"- `{record[0]}`: {_markdown(record[1])}")
    for panel, lines in panels.items():
        yield f"**{panel}**\n\n" + "\n".join(lines) + "\n"
    if command.epilog:
        yield _epilog(command.epilog)
    for key, child in getattr(command, "commands", {}).items():
        if not child.hidden:
            yield from _command(child, f"{name} {key}", context)


def _epilog(text: str) -> str:
    first, _, examples = text.partition("\n")
    if not first.startswith("Example"):
        return _markdown(text) + "\n"
    return "\n".join([f"**{first.rstrip(':')}**", "", "```text", examples, "```", ""])


def _markdown(text: str) -> str:
    return re.sub(r"([\\*_<>\[\]|])", r"\\\1", text)


def api_page() -> str:
    """The public names, by `heldin.__all__`, then the packages."""
    import heldin

    names = [name for name in getattr(heldin, "__all__", ()) if not name.startswith("__")]
    packages = "\n".join(f"api-{package}" for package in PACKAGES)
    blocks = [f"### `heldin.{name}`\n\n{_public(f'heldin.{name}', getattr(heldin, name))}" for name in names]
    return "\n\n".join(
        [
            "# Python API",
            inspect.cleandoc(heldin.__doc__ or ""),
            *(["## Public names", *blocks] if blocks else []),
            "## Modules\n\nImports point upstream only: a package uses those above it.",
            f"```{{toctree}}\n:maxdepth: 1\n\n{packages}\n```\n",
        ]
    )


def _public(name: str, thing: Any) -> str:
    """One public name. Its entry in the index is that of the module that it comes from."""
    if isinstance(thing, ModuleType):
        if (names := getattr(thing, "__all__", None)) is None:
            return _rest("automodule", thing.__name__, "no-index:")
        blocks = [_public(f"{name}.{child}", getattr(thing, child)) for child in names]
        return "\n\n".join([inspect.cleandoc(thing.__doc__ or ""), *blocks])
    kind = "autoclass" if inspect.isclass(thing) else "autofunction" if callable(thing) else "autodata"
    return _rest(kind, name, "no-index:")


def _rest(kind: str, name: str, *options: str) -> str:
    lines = [f".. {kind}:: {name}", *(f"   :{option}" for option in options)]
    return "```{eval-rst}\n" + "\n".join(lines) + "\n```"


def package_page(package: str) -> str:
    """The public modules of a package, each with its docstrings."""
    module = importlib.import_module(f"heldin.{package}")
    modules = [module.__name__] if module.__doc__ else []
    modules += [m.name for m in pkgutil.walk_packages(module.__path__, f"{module.__name__}.")]
    public = [name for name in modules if not any(part.startswith("_") for part in name.split("."))]
    return f"# `heldin.{package}`\n\n" + "\n\n".join(f"## `{n}`\n\n{_rest('automodule', n)}" for n in public) + "\n"


def notebook_pages() -> dict[str, str]:
    """The page of each notebook, by its name in ``_generated``, which is as deep as the notebooks' folder.

    The outputs are those that are stored. myst-nb would show them too, and needs Jupyter for it.
    """
    return {_page_name(path): "\n".join(_notebook_page(path)) for path in sorted(NOTEBOOKS.glob("*.ipynb"))}


def _page_name(path: Path) -> str:
    return f"notebook-{path.stem}"


def _notebook_page(path: Path) -> Iterator[str]:
    for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            for other in NOTEBOOKS.glob("*.ipynb"):
                source = source.replace(f"]({other.name})", f"]({_page_name(other)}.md)")
            yield f"{source}\n"
        else:
            yield from _code(source)
            for output in cell["outputs"]:
                yield _output(output)


def _code(source: str) -> Iterator[str]:
    """A cell; its lines that begin with an exclamation mark are commands of a shell."""
    for is_command, lines in itertools.groupby(source.splitlines(), key=lambda line: line.startswith("!")):
        text = "\n".join(line.removeprefix("!") for line in lines).strip("\n")
        if text:
            yield f"```{'sh' if is_command else 'python'}\n{text}\n```\n"


def _output(output: Mapping[str, Any]) -> str:
    data = output.get("data", {})
    if "image/png" in data:
        return _raw(f'<img alt="Figure that the cell draws" src="data:image/png;base64,{data["image/png"]}">')
    if "text/html" in data:
        return _raw("".join(data["text/html"]))
    return f"```text\n{''.join(data.get('text/plain', output.get('text', ()))).rstrip()}\n```\n"


def _raw(html: str) -> str:
    return f'`````{{raw}} html\n<div class="cell-output">\n{html}\n</div>\n`````\n'


def resolve_links(app: "Sphinx", page: str, source: list[str]) -> None:
    """`start` is README.md, with links as from here; a link to a page or folder outside of docs/ is its name."""
    here = DOCS / f"{page}.md"
    if page == "index" and not (DOCS / "configuration.md").is_file():
        source[0] = source[0].replace("\nconfiguration\n", "\n")
    if page == "start":
        # Badges are pictures from the network, which the site does without.
        readme = re.sub(
            r"^!\[[^]]*\]\(https://[^)]*\)\n", "", (ROOT / "README.md").read_text("utf-8"), flags=re.MULTILINE
        )
        here, source[0] = ROOT / "README.md", readme.replace('src="docs/', 'src="')

    def resolved(link: re.Match[str]) -> str:
        text, path, anchor = link.groups(default="")
        target = (here.parent / path).resolve()
        if not target.exists():
            return link[0]  # elsewhere, or wrong: Sphinx says so
        if target.suffix == ".ipynb":
            target = MADE / f"{_page_name(target)}.md"
        if target.is_dir() or (target.suffix == ".md" and target != ROOT / "README.md" and DOCS not in target.parents):
            return text
        return f"[{text}]({_relative(target, DOCS / Path(page).parent)}{anchor})"

    source[0] = re.sub(r"(?<!`)\[([^\]\n]*(?:\n[^\]\n]*)?)\]\(([^)\s#:]+)(#[^)\s]*)?\)", resolved, source[0])


def _relative(target: Path, folder: Path) -> str:
    return Path(os.path.relpath(target, folder)).as_posix()


def plain(app: "Sphinx", what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """Docstrings are prose with Markdown's code spans and tables: the same in reStructuredText."""
    found: list[str] = []
    example = False
    for line in _returns_as_fields(lines):
        example = bool(line.strip()) and (example or line.lstrip().startswith(">>> "))
        cells = None if example else re.fullmatch(r"(\s*)\|(.*)\|", line)
        if cells is None:
            found.append(line if example else _escaped(line))
        elif re.fullmatch(r"[\s|:-]+", cells[2]):
            found[-1:-1] = ["", f"{cells[1]}.. list-table::", f"{cells[1]}   :header-rows: 1", ""]
        else:
            # the rows of a table end at the blank line that every table here is followed by, or at the docstring's end
            row = [_escaped(cell.strip()) for cell in cells[2].split("|")]
            found.append("\n".join(f"{cells[1]}   {'  -' if i else '* -'} {cell}" for i, cell in enumerate(row)))
    # Of an attribute, napoleon takes what is before a colon in the first line for its type: an empty comment is first.
    first = ["..", ""] if what in ("attribute", "data", "property") and any(lines) else []
    lines[:] = "\n".join([*first, *found, ""]).split("\n")


def _returns_as_fields(lines: list[str]) -> Iterator[str]:
    """Returns and Yields as fields of reStructuredText: napoleon takes what is before a colon for a type."""
    section = first = None
    for line in lines:
        indent = len(line) - len(line.lstrip())
        if header := re.fullmatch(r"(\s*)(Returns|Yields):", line):
            section, first = len(header[1]), f":{header[2].lower()}: "
            continue
        if section is not None and line.strip() and indent <= section:
            section = None
        if section is None or not line.strip():
            yield line
        else:
            yield " " * section + (first or " " * len(":returns: ")) + line.strip()
            first = None


def _escaped(text: str) -> str:
    bullet, text = re.fullmatch(r"(\s*(?:\* )?)(.*)", text).groups()
    parts = re.split(r"(``[^`]+``|`[^`]+`)", text)
    code = [f"``{part.strip('`')}``" for part in parts[1::2]]
    prose = [re.sub(r"[*|\\`]|_(?!\w)", r"\\\g<0>", part) for part in parts[::2]]
    return bullet + "".join(a + b for a, b in zip(prose, [*code, ""], strict=True))


_RECORD = """\
# record.json

Every run and every audit writes `record.json`, a JSON object with all facts of its report. This page lists every field.
`make golden` writes this page from the code, and a test compares page and code.

A record is internal: it contains exact statistics about private users. It contains no user names, no texts and no
scores of single users. `heldin verify` recomputes the record from the other files of the folder. A record stores
statements instead of sentences. A statement is a code with its values, and reports write sentences from it.

The file begins with `sha256` and `schema_version`. heldin refuses a damaged file and a file of another schema version.
`heldin` is the version of heldin that wrote the file.
"""


def record_page() -> str:
    """Every type that a record contains with its fields, from `Record` on, each where it is first needed."""
    from heldin.record.document import MEASURES, Record

    todo: list[Any] = [Record]
    parts = [_RECORD]
    for kind in todo:
        hints, meanings, rows = get_type_hints(kind), _meanings(kind), []
        for name in _fields(kind):
            allowed = " or ".join(f"[{m.__name__}](#{m.__name__.lower()}) (`{key}`)" for key, m in MEASURES.items())
            if (kind, name) != (Record, "measures"):
                allowed = _allowed(hints[name], todo)
            rows.append(f"| `{name}` | {allowed} | {meanings.get(name, '')} |")
        todo += [measure for measure in MEASURES.values() if kind is Record and measure not in todo]
        first = inspect.cleandoc(kind.__doc__ or "").split("\n\n")[0]
        parts.append("\n".join([f"## {kind.__name__}", "", _cell(first), "", _HEAD, *rows, ""]))
    return "\n".join(parts)


_HEAD = "| field | value | meaning |\n|---|---|---|"


def _fields(kind: Any) -> list[str]:
    return list(kind.model_fields) if hasattr(kind, "model_fields") else [field.name for field in fields(kind)]


def _meanings(kind: Any) -> dict[str, str]:
    """The entries below "Attributes:" of a type's docstring and its bases', by the name of the field."""
    described = getattr(kind, "model_fields", {}).items()
    found = {name: _cell((field.description or "").split("\n\n")[0]) for name, field in described}
    for base in reversed(kind.__mro__):
        _, _, listed = inspect.cleandoc(vars(base).get("__doc__") or "").partition("\nAttributes:\n")
        for names, meaning in re.findall(r"^    (\w[\w, ]*): ((?:.|\n {8})+)", listed, re.MULTILINE):
            found.update(dict.fromkeys(names.split(", "), _cell(meaning)))
    return found


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("``", "`").replace("|", "\\|")


def _allowed(hint: Any, todo: list[Any]) -> str:
    """What a field may hold, with links; types that have fields of their own are appended to `todo`."""
    origin, inner = get_origin(hint), [h for h in get_args(hint) if h is not Ellipsis]
    if hint is type(None):
        return "null"
    if origin is Annotated:
        return _allowed(inner[0], todo)
    if origin in (Union, UnionType):
        return " or ".join(_allowed(each, todo) for each in inner)
    if origin is Literal:
        return " or ".join(f"`{value}`" for value in inner)
    if origin in (list, tuple, Sequence):
        several = dict.fromkeys(_allowed(each, todo) for each in inner)
        return f"list of {' and '.join(several)}"
    if origin in (dict, Mapping):
        return f"object of {_allowed(inner[1], todo)} by {_allowed(inner[0], todo)}"
    if isinstance(hint, type) and issubclass(hint, Enum):
        return " or ".join(f"`{member.value}`" for member in hint)
    if hasattr(hint, "model_fields") or is_dataclass(hint):
        if hint not in todo:
            todo.append(hint)
        return f"[{hint.__name__}](#{hint.__name__.lower()})"
    return {str: "text", float: "number", int: "integer", bool: "true or false"}.get(hint, "any value")


_GLOSSARY = """\
# Glossary

This page explains the terms of reports and of this documentation. Reports use the same explanations, which are in
`words/glossary.py`. To generate this page again, run `make golden`.
"""


def glossary_page() -> str:
    """Every term under a heading, in alphabetical order."""
    from heldin.words.glossary import FURTHER, TERMS

    terms = sorted({**TERMS, **FURTHER}.items(), key=lambda pair: pair[0].lower())
    return "\n".join([_GLOSSARY, *(f"## {_capital(term)}\n\n{_capital(meaning)}\n" for term, meaning in terms)])


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


if __name__ == "__main__":
    for page, text in (("record", record_page()), ("glossary", glossary_page())):
        (DOCS / f"{page}.md").write_text(text, encoding="utf-8")
