"""What the repository says of its theory, and of its own files, is there: anchors, tables, links."""

import functools
import re
import subprocess
from pathlib import Path

import pytest

from tests.theory_tables import PAGE, anchors, numbers, rows

ROOT = Path(__file__).parents[2]
PAGES = [
    ROOT / "README.md",
    *sorted(page for page in (ROOT / "docs").rglob("*.md") if not page.is_relative_to(ROOT / "docs" / "_generated")),
]
OUTSIDE = re.compile(rf"(?:\b(?:{'|'.join(('accounting', 'design', 'style', 'peers', 'field'))})\.md|\.\./shared)\b")


@functools.cache
def texts() -> dict[str, str]:
    """Path and text of every tracked text file; links to folders are no files."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True)
    if listed.returncode:
        pytest.skip("not a git checkout")
    found = {}
    for name in filter(None, listed.stdout.split("\0")):
        path = ROOT / name
        if path.is_file() and b"\0" not in (content := path.read_bytes()):
            found[name] = content.decode()
    return found


def test_every_citation_of_the_theory_has_its_heading():
    cited = {(name, a) for name, text in texts().items() for a in re.findall(r"\btheory\.md#([\w-]+)", text)}
    assert {name for name, _ in cited} > {"bounds/one_run.py", "defenses/mechanism.py", "base/coins.py"}
    assert [(name, anchor) for name, anchor in sorted(cited) if anchor not in anchors(PAGE)] == []


def test_headings_of_a_page_have_anchors_of_their_own():
    for page in PAGES:
        assert len(set(anchors(page))) == len(anchors(page)), page.name


def test_no_file_refers_to_a_file_outside_of_the_repository():
    assert [name for name, text in texts().items() if OUTSIDE.search(text)] == []
    assert [name for name, text in texts().items() if re.search(r'/ ["\']shared["\']', text)] == ["tests/conftest.py"]
    outside = ("/".join(("..", "shared", "data")), ".".join(("style", "md")))
    assert all(OUTSIDE.search(f"see {name}") for name in outside)


def test_documents_that_code_and_pages_name_are_there():
    named = {(name, page) for name, text in texts().items() for page in re.findall(r"\bdocs/[\w/-]+\.md\b", text)}
    assert len(named) > 50
    assert [(name, page) for name, page in sorted(named) if not (ROOT / page).is_file()] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_relative_links_lead_somewhere(page):
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    for link in re.findall(r"\]\(([^)\s]+)\)", text):
        if re.match(r"[a-z]+:|_generated/", link):  # pages that `make docs` writes are checked by Sphinx
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), link
        assert target.is_relative_to(ROOT), link
        assert not anchor or anchor in anchors(target), link


def test_every_table_of_the_page_is_read_by_a_test():
    tables = [anchor for anchor in anchors(PAGE) if anchor.startswith("table-of-")]
    assert len(tables) > 8
    tests = "".join(text for name, text in texts().items() if name.startswith("tests/"))
    assert [anchor for anchor in tables if not re.search(rf'\b(?:numbers|rows)\("{anchor}"\)', tests)] == []
    assert all(rows(anchor) for anchor in tables)


def test_a_table_is_the_first_one_under_its_heading():
    first, *_, last = numbers("table-of-noise-ratios")
    assert (first[0], last[0]) == (1.0, 16.0)
    with pytest.raises(ValueError, match="gaussian-mechanism"):
        rows("gaussian-mechanism")
    with pytest.raises(ValueError, match="nowhere"):
        rows("nowhere")
