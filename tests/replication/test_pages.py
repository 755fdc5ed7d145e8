"""What README and documents say of the replications: names, options and files exist, and every name is documented."""

import re
import shlex

import pytest
import typer

from replication.__main__ import app
from replication.experiments import FOLDER
from replication.sweep_findings import Finding
from tests.docs.test_commands import HERE, ROOT, code

PAGES = [*HERE, *FOLDER.glob("configs/*/README.md")]
DOCS = ROOT / "docs"
# By paper what it numbers, and how many there are.
ITEMS = {
    "kandpal": {"Figure": 14, "Table": 7, "Algorithm": 1, "Proposition": 2},
    "charles": {"Figure": 18, "Table": 2, "Algorithm": 3, "Theorem": 3, "Lemma": 3, "Conjecture": 1},
    "chua": {"Figure": 7, "Table": 12, "Algorithm": 3},
    "lai": {"Figure": 9, "Table": 2, "Algorithm": 1, "Definition": 3, "Lemma": 2, "Theorem": 1},
}
ROMAN = {"I": 1, "II": 2}
CALL = "python -m replication "
COMMANDS = typer.main.get_command(app).commands


def wrong_in(command):
    """What of a command line does not exist: its name, or an option."""
    name, *words = shlex.split(command.removeprefix(CALL), comments=True) or ["NAME"]
    if name == "NAME":
        return []
    if name not in COMMANDS:
        return [name]
    known = {"--help", *(option for parameter in COMMANDS[name].params for option in parameter.opts)}
    return [word for word in words if word.startswith("--") and word not in known]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_names_options_and_files_exist(page):
    lines = code(page.read_text(encoding="utf-8"))
    commands = [line[line.index(CALL) :] for line in lines if CALL in line]
    assert [(command, wrong) for command in commands if (wrong := wrong_in(command.strip()))] == []
    paths = {path for line in lines for path in re.findall(r"(?<![\w/.-])replication/[\w./*-]*\w", line)}
    assert sorted(path for path in paths if not list(ROOT.glob(path))) == []


def test_what_does_not_exist_is_found():
    assert wrong_in(f"{CALL}nothing") == ["nothing"]
    assert wrong_in(f"{CALL}kandpal-enron --only-table --nothing 3  # --no") == ["--nothing"]


def test_every_name_is_in_a_page():
    text = "\n".join(page.read_text(encoding="utf-8") for page in PAGES)
    assert [name for name in COMMANDS if not re.search(rf"{name}\b", text)] == []


def test_every_key_of_a_finding_is_named_in_its_page():
    page = (DOCS / "replication.md").read_text(encoding="utf-8")
    assert not [name for name in Finding.model_fields if f"`{name}`" not in page]


def rows_of(paper):
    """The first table of a paper's page, as lists of cells."""
    text = (DOCS / "replication" / f"{paper}.md").read_text(encoding="utf-8")
    table = re.search(r"^\| of the paper .*?\n\n", text, re.MULTILINE | re.DOTALL).group()
    return [[cell.strip() for cell in line[1:-1].split("|")] for line in table.strip().splitlines()[2:]]


def numbers_of(item, what):
    """The numbers that the name of a row has of figures, or of tables: "Figures 4, 11 and 12", "Table II", "1 to 3"."""
    found = set()
    for listed in re.findall(rf"{what}s?\s((?:(?:\d+|I+)[a-z]?(?:, | and | to )?)+)", item):
        first_to_last = re.fullmatch(r"(\d+) to (\d+)", listed)
        if first_to_last:
            found |= set(range(int(first_to_last[1]), int(first_to_last[2]) + 1))
        else:
            found |= {ROMAN[its] if its in ROMAN else int(its) for its in re.findall(r"\d+|I+", listed)}
    return found


@pytest.mark.parametrize("paper", ITEMS)
def test_every_numbered_item_of_a_paper_has_a_row_with_a_status(paper):
    rows = rows_of(paper)
    for what, count in ITEMS[paper].items():
        numbers = set().union(*(numbers_of(row[0], what) for row in rows if not row[0].startswith("Appendix")))
        assert set(range(1, count + 1)) <= numbers, what
    words = (DOCS / "replication.md").read_text(encoding="utf-8").split("## Status words")[1].split("\n## ")[0]
    known = [
        word for line in words.splitlines() if line.startswith("| ") for word in line.split("|")[1].strip().split(", ")
    ]
    assert [row for row in rows if len(row) != 5 or not row[2].startswith(tuple(known))] == []
    # A number of ours, or why there is none.
    silent = [
        row for row in rows if row[2].startswith(("at tiny scale", "needs", "in work", "not begun")) and not row[3]
    ]
    assert silent == []
