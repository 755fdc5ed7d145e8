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
    page = (ROOT / "docs" / "replication.md").read_text(encoding="utf-8")
    assert not [name for name in Finding.model_fields if f"`{name}`" not in page]
