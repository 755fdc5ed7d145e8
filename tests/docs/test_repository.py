"""Files of the repository for people and services: they parse, agree, and name what is there."""

import re
import tomllib
import zipfile

import pytest
import yaml

import heldin
from tests.distributions import contents, missing, wanted
from tests.docs.test_theory import ROOT

WORKFLOW = ROOT / ".github" / "workflows" / "ci.yml"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def _yaml(path):
    return yaml.safe_load(path.read_text(encoding="utf-8"))


def _made(text):
    return set(re.findall(r"^\s*(?:- run: )?make ([\w-]+)", text, re.MULTILINE))


def test_the_workflow_runs_the_targets_of_this_repository_s_own_ci_and_the_site():
    workflow = _yaml(WORKFLOW)
    # YAML reads the word "on" as true.
    assert set(workflow[True]) == {"push", "pull_request"}
    matrix = workflow["jobs"]["test"]["strategy"]["matrix"]
    assert matrix == {"os": ["ubuntu-latest", "macos-latest"], "python": ["3.11", "3.12", "3.13"]}
    for job in workflow["jobs"].values():
        assert all(set(step) <= {"uses", "with", "run"} for step in job["steps"])
        assert job["timeout-minutes"] > 0
    targets = _made(WORKFLOW.read_text(encoding="utf-8"))
    assert targets == _made((ROOT / ".ci" / "run").read_text(encoding="utf-8")) | {"docs"}
    rules = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    assert targets <= rules


@pytest.mark.parametrize("path", sorted((ROOT / ".github").rglob("*.yml")), ids=lambda path: path.name)
def test_yaml_of_the_repository_parses(path):
    content = _yaml(path)
    if path.parent.name == "ISSUE_TEMPLATE" and path.name != "config.yml":
        assert {"name", "description", "body"} <= set(content)
        assert all(part["type"] in ("markdown", "textarea", "input") for part in content["body"])


def test_the_citation_is_that_of_this_version():
    citation = _yaml(ROOT / "CITATION.cff")
    assert citation["cff-version"] == "1.2.0"
    assert (citation["version"], citation["license"]) == (PROJECT["version"], PROJECT["license"])
    assert set(citation["keywords"]) == set(PROJECT["keywords"])
    assert heldin.__version__ == PROJECT["version"]


def test_pages_for_contributors_lead_to_files():
    for name in ("CONTRIBUTING.md", "SECURITY.md", "CODE_OF_CONDUCT.md"):
        text = (ROOT / name).read_text(encoding="utf-8")
        assert [link for link in re.findall(r"\]\(([^)#:]+)\)", text) if not (ROOT / link).is_file()] == []


@pytest.mark.parametrize("path", sorted(ROOT.glob("docs/**/*.md")), ids=lambda its: its.stem)
def test_no_wrapped_line_of_a_paragraph_begins_a_list(path):
    """A line that begins with "+ 2 n" or "1) R" is a list to Markdown, where a formula was wrapped."""
    assert not _lists_within_paragraphs(path.read_text(encoding="utf-8"))


def test_a_list_within_a_paragraph_is_noticed():
    assert _lists_within_paragraphs("The norm is at most C (a\n+ 2 n b).") == ["+ 2 n b)."]
    assert _lists_within_paragraphs("The mean is exp((a -\n1) R).") == ["1) R)."]
    assert not _lists_within_paragraphs("Text.\n\n- one\n- two\n  goes on\n\n1. three\n```\na\n- b\n```\n")


def _lists_within_paragraphs(page):
    found, within = [], None
    for line in re.sub(r"^( *)```.*?```|^\$\$.*?\$\$", "", page, flags=re.DOTALL | re.MULTILINE).splitlines():
        item = re.match(r" *(?:[-+*]|\d+[.)]) ", line)
        if item and within == "paragraph":
            found.append(line)
        if not line.strip():
            within = None if within != "list" else "list"
        elif item or (within == "list" and line.startswith(" ")):
            within = "list"
        else:
            within = "block" if line.lstrip().startswith(("#", "|", "<", ">", ":")) else "paragraph"
    return found


def test_a_wheel_without_a_module_is_noticed(tmp_path):
    files = wanted()
    assert {"heldin/__init__.py", "heldin/py.typed", "heldin/reports/report.typ", "heldin/bounds/one_run.py"} <= set(
        files
    )
    wheel = tmp_path / "heldin-0.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for name, content in files.items():
            if name != "heldin/bounds/one_run.py":
                archive.writestr(name, content)
    assert missing(files, contents(wheel)) == ["heldin/bounds/one_run.py"]
