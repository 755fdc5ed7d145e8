"""`make docs`: every page is there, and nothing on the way is a warning."""

import ast
import importlib.util
import json
import re
import subprocess
import sys
import types
from pathlib import Path

import pytest

import heldin
from docs import architecture
from heldin.words.glossary import FURTHER, TERMS
from tests.reports.conftest import GOLDEN_RECORD

ROOT = Path(__file__).parents[2]
SITE_NEEDS = ("sphinx", "myst_parser", "furo", "latex2mathml")


@pytest.fixture(scope="module")
def made_pages():
    spec = importlib.util.spec_from_file_location("made_pages", ROOT / "docs" / "made_pages.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.long
@pytest.mark.slow
def test_the_site_is_built_without_a_warning(tmp_path):
    missing = [name for name in SITE_NEEDS if importlib.util.find_spec(name) is None]
    if missing:
        pytest.skip(f"{', '.join(missing)} not installed: pip install -e '.[docs]'")
    command = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", "-d", str(tmp_path / "doctrees")]
    built = subprocess.run([*command, "docs", str(tmp_path / "site")], cwd=ROOT, capture_output=True, text=True)
    assert built.returncode == 0, built.stderr[-4000:]
    for page in (ROOT / "docs").glob("*.md"):
        assert (tmp_path / "site" / f"{page.stem}.html").is_file(), page.name

    def text(name):
        return (tmp_path / "site" / f"{name}.html").read_text(encoding="utf-8")

    assert "heldin.bounds.one_run.one_run_p_value" in text("_generated/api-bounds")
    assert "--target-epsilon" in text("_generated/cli")
    assert 'href="answer.html"' in text("start")
    assert 'href="#conditions-of-one-run"' in text("theory")
    assert "<math" in text("theory")
    site = "".join(page.read_text(encoding="utf-8") for page in (tmp_path / "site").rglob("*.html"))
    assert "Type<span" not in site, "napoleon took words of a docstring for a type"
    assert re.findall(r'<(?:script|link|img)[^>]+(?:src|href)="https?://', site) == [], "the site needs no network"


def test_every_package_has_a_page(made_pages):
    links = {path.name for path in (ROOT / "src" / "heldin").iterdir() if path.is_dir() and path.name[0] not in "_."}
    assert set(made_pages.PACKAGES) == links
    page = made_pages.package_page("bounds")
    assert page.startswith("# `heldin.bounds`\n")
    assert ".. automodule:: heldin.bounds.one_run" in page


def test_every_field_of_a_record_has_a_meaning_and_the_page_is_the_code_s(made_pages):
    page = made_pages.record_page()
    assert page == (ROOT / "docs" / "record.md").read_text(encoding="utf-8"), "make golden writes it again"
    rows = [line.split(" | ") for line in page.splitlines() if line.startswith("| `")]
    assert len(rows) > 200
    assert [row for row in rows if row[-1].strip(" |") == ""] == []
    targets = {link for row in rows for link in re.findall(r"\]\(#(\w+)\)", row[1])}
    assert targets <= {line[3:].lower() for line in page.splitlines() if line.startswith("## ")}
    # What a record is made of is found whole: every key of a real one is on the page.
    record = json.loads(GOLDEN_RECORD.read_text(encoding="utf-8"))
    fields = {row[0].strip("| `") for row in rows}
    assert set(record) - fields - {"sha256"} == {"schema_version"}
    assert set(record["decision"]["decision"]) | set(record["attacks"][0]["curve"]["histogram"]) <= fields


def test_the_glossary_has_the_terms_of_reports_and_each_once(made_pages):
    page = made_pages.glossary_page()
    assert page == (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8"), "make golden writes it again"
    headings = re.findall(r"^## (.+)$", page, re.MULTILINE)
    assert {heading.lower() for heading in headings} == {term.lower() for term in (*TERMS, *FURTHER)}
    assert len(headings) == len(TERMS) + len(FURTHER)


def test_every_command_is_on_the_page(made_pages):
    page = made_pages.cli_page()
    for heading in ("## `heldin run`", "## `heldin audit-endpoint`", "## `heldin corpus build`"):
        assert heading in page
    assert "- `--claim" in page
    assert re.search(r"^\*\*Examples?\*\*\n\n```text\nheldin audit --model", page, re.MULTILINE)
    assert "--help" not in page


def test_public_names_are_those_of_the_package(made_pages, monkeypatch):
    names = {"bound": len, "Claim": dict, "account": types.ModuleType("heldin.elsewhere"), "LEVEL": 0.05}
    for name, thing in names.items():
        monkeypatch.setattr(heldin, name, thing, raising=False)
    monkeypatch.setattr(heldin, "__all__", ["__version__", *names], raising=False)
    page = made_pages.api_page()
    for line in ("autofunction:: heldin.bound", "autoclass:: heldin.Claim", "automodule:: heldin.elsewhere"):
        assert f".. {line}\n" in page
    assert ".. autodata:: heldin.LEVEL\n" in page
    names["account"].__all__, names["account"].uls = ["uls"], len
    assert ".. autofunction:: heldin.account.uls\n" in made_pages.api_page()
    assert "__version__" not in page
    monkeypatch.delattr(heldin, "__all__")
    assert "## Public names" not in made_pages.api_page()


def test_the_picture_of_the_architecture_is_the_code_s():
    assert architecture.PICTURE.read_text(encoding="utf-8") == architecture.picture(), "make golden writes it again"
    named = {name for _, packages, _ in architecture.STEPS for name in packages.split(", ")}
    assert {name for name in named if not (ROOT / "src" / "heldin" / name).is_dir()} == set()


@pytest.mark.parametrize("what", ["attribute", "data", "property"])
def test_a_colon_in_the_docstring_of_an_attribute_makes_no_type(made_pages, what):
    napoleon = pytest.importorskip("sphinx.ext.napoleon", reason="Sphinx is not installed: pip install -e '.[docs]'")

    core = pytest.importorskip("docutils.core")

    def rendered(lines):
        return str(napoleon.GoogleDocstring(lines, napoleon.Config(napoleon_use_ivar=True), what=what, name="answer"))

    written = ["Return one of two answers: leaks, or no leak found.", "", "A second paragraph."]
    assert ":type:" in rendered(list(written))
    lines = list(written)
    made_pages.plain(None, what, "answer", None, None, lines)
    assert ":type:" not in rendered(lines)
    assert core.publish_doctree(rendered(lines)).astext().split() == " ".join(written).split()


def test_links_out_of_the_documents_are_mended(made_pages):
    def resolved(page, text):
        source = [text]
        made_pages.resolve_links(None, page, source)
        return source[0]

    assert (
        resolved("method", "[a](verdict.md#guesses), [b](https://x.y)") == "[a](verdict.md#guesses), [b](https://x.y)"
    )
    assert resolved("method", "see [`configs/sweeps`](../configs/sweeps)") == "see `configs/sweeps`"
    assert resolved("decisions/0009", "[a](../verdict.md)") == "[a](../verdict.md)"
    assert resolved("method", "[a](nowhere.md)") == "[a](nowhere.md)"
    assert resolved("method", "[the results](../benchmarks/RESULTS.md)") == "the results"
    start = resolved("start", "")
    assert "[guide](ci.md)" in start
    assert "](docs/" not in start
    assert '<img src="images/' in start
    assert resolved("python", "[a](notebooks/audit.ipynb)") == "[a](_generated/notebook-audit.md)"


def test_no_docstring_has_a_section_from_which_sphinx_would_make_a_type(made_pages):
    seen = 0
    for package in made_pages.PACKAGES:
        for path in (ROOT / package).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and (text := ast.get_docstring(node)):
                    lines = text.splitlines()
                    made_pages.plain(None, "function", "f", None, None, lines)
                    assert not [line for line in lines if re.fullmatch(r"\s*(Returns|Yields):", line)], path
                    seen += "Returns:" in text
    assert seen > 10


def test_docstrings_are_prose(made_pages):
    def plain(*lines):
        found = list(lines)
        made_pages.plain(None, "module", "m", None, None, found)
        return found

    assert plain("D_-u of `a_b_` and ``c|d``: |x| * 2") == [r"D\_-u of ``a_b_`` and ``c|d``: \|x\| \* 2", ""]
    assert plain("* a bullet") == ["* a bullet", ""]
    assert plain(">>> heldin.x * 2", "|3|", "", "a|b") == [">>> heldin.x * 2", "|3|", "", r"a\|b", ""]
    # A colon in what is returned makes no type of what is before it.
    returns = plain("Do.", "", "Returns:", "    One: two.", "    Three.", "", "Raises:", "    E: no.")
    assert returns == ["Do.", "", ":returns: One: two.", "          Three.", "", "Raises:", "    E: no.", ""]
    table = plain("| a | b |", "|---|---|", "| 1 | `x` |")
    head = ["", ".. list-table::", "   :header-rows: 1", ""]
    assert table == [*head, "   * - a", "     - b", "   * - 1", "     - ``x``", ""]
