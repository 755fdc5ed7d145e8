"""The commands that README and documents print: their options exist, and the files of the repository that they name."""

import functools
import re
import shlex

import pytest
import typer

from heldin.base.errors import ExitCode
from heldin.commands.cli import app
from heldin.defenses.accounting.account import account_uls
from tests.docs.test_theory import PAGES, ROOT

HERE = [page for page in PAGES if page.parent.name not in ("decisions", "log")]  # these name what was there once
FOLDERS = "|".join(sorted(path.name for path in (ROOT / "src" / "heldin").iterdir() if path.is_dir()))
PATHS = re.compile(rf"(?<![\w/.-])(?:(?:{FOLDERS}|configs|benchmarks|tests|docs)/[\w./*-]*\w)")


def code(text):
    """The lines of fenced blocks of code, continued lines joined, and the spans of code in the prose."""
    blocks = re.findall(r"^```\w*\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    # What a command prints is English and no command.
    blocks = [block for block in blocks if not block.startswith("answer:")]
    lines = [line for block in blocks for line in block.replace("\\\n", " ").splitlines()]
    prose = re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
    return lines + [span.replace("\n", " ") for span in re.findall(r"(?<!`)`([^`]+)`(?!`)", prose)]


@functools.cache
def _command_tree():
    return typer.main.get_command(app)


def wrong_in(command):
    """What of a command line does not exist: a subcommand, an option."""
    words = shlex.split(command, comments=True)
    found = _command_tree()
    for at, word in enumerate(words[1:], 1):
        children = getattr(found, "commands", None)
        if children is None or word.startswith("-"):
            break
        if word not in children:
            if at == 1:
                return [word]
            break  # an argument, as in `heldin account PLAN`
        found = children[word]
    options = {"--help"} | {name for parameter in found.params for name in parameter.opts}
    return [word for word in words if re.match(r"--\w", word) and word.split("=")[0] not in options]


@pytest.mark.parametrize("page", HERE, ids=lambda page: page.name)
def test_commands_and_their_options_exist(page):
    lines = code(page.read_text(encoding="utf-8"))
    commands = [line[at.start() :] for line in lines if (at := re.search(r"(?:^|[\s(])heldin [a-z-]", line))]
    assert [(c, wrong) for c in commands if (wrong := wrong_in(c.strip(" (").split(";")[0].split(" or ")[0]))] == []


@pytest.mark.parametrize("page", HERE, ids=lambda page: page.name)
def test_files_of_the_repository_are_there(page):
    paths = {path for line in code(page.read_text(encoding="utf-8")) for path in PATHS.findall(line)}
    assert sorted(path for path in paths if not list(ROOT.glob(path))) == []


def test_what_does_not_exist_is_found():
    assert wrong_in("heldin run configs/enron-tiny.yaml --set a=1  # --no") == []
    assert wrong_in("heldin run x --nothing 3") == ["--nothing"]
    assert wrong_in("heldin account uls --users 3 --sequel 4") == ["--sequel"]
    assert wrong_in("heldin account plan.json --nothing") == ["--nothing"]
    assert wrong_in("heldin nothing") == ["nothing"]
    assert code("a `b` c\n```\nheldin x \\\n  --y\n```\n") == ["heldin x    --y", "b"]


def test_the_attacks_that_an_epsilon_allows_are_those_of_the_accountant():
    page = " ".join((ROOT / "docs" / "defenses.md").read_text(encoding="utf-8").split())
    (said,) = re.findall(r"an AUROC of ([\d.]+) at epsilon 1, ([\d.]+) at 2, ([\d.]+) at 4 and ([\d.]+) at 8", page)
    (noise,) = re.findall(r"noise multipliers of ([\d.]+), ([\d.]+), ([\d.]+) and ([\d.]+)\.", page)
    for epsilon, auroc, multiplier in zip((1, 2, 4, 8), said, noise, strict=True):
        row = account_uls(steps=500, delta=1e-5, users=5000, cohort=100, target_epsilon=epsilon)
        assert f"{row.auroc_bound:.2f}" == auroc
        assert f"{row.noise_multiplier:.2f}" == multiplier.rstrip(".")


def test_the_page_has_the_exit_codes_of_the_command_line():
    rows = re.findall(r"^\| (\d+) \| ([^|]+) \|", (ROOT / "docs" / "ci.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert [(int(code), meaning) for code, meaning in rows] == [(int(code), code.meaning) for code in ExitCode]
