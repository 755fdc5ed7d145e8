"""What holds for every command: strict JSON, a dozen options at most outside panels, quiet, version, completion."""

import json
import os
import shlex
import shutil
import subprocess
import sys
from argparse import Namespace
from pathlib import Path

import pytest
import typer.main

from heldin.audit.decision import Answer
from heldin.base.errors import ExitCode
from heldin.base.files import strict_json
from heldin.commands import cli
from heldin.commands.finish import exit_code
from heldin.commands.help import EXAMPLES, describe
from heldin.commands.options import fail_on_of
from heldin.record.document import read_record
from heldin.sweeps.load import load_sweep
from tests.refusals import refused

ROOT = Path(__file__).resolve().parents[2]
SLOW = {"white-box", "demo"}
# test_audit_command.py, test_endpoint_audit.py, test_retrain.py and those of planted sets ask them for JSON
ELSEWHERE = ("audit", "audit-endpoint", "retrain", "plant", "audit-planted")
PRIVATE = ["--steps", 10, "--delta", 1e-5, "--noise-multiplier", 2]
UNIT = ["--sampling-rate", 0.1]
TRAINER = ["--kind", "uls", "--users", 20, "--cohort", 5, "--canaries", 200, "--trainings", 1, "--one-process"]


def _leaves(command, name=""):
    for key, below in command.commands.items():
        dotted = f"{name} {key}".strip()
        yield from _leaves(below, dotted) if hasattr(below, "commands") else [(dotted, below)]


COMMANDS = dict(_leaves(typer.main.get_command(cli.app)))
for _name, _command in COMMANDS.items():
    describe(_command, f"heldin {_name}")
CALLED = [
    pytest.param(name, marks=pytest.mark.slow) if name in SLOW else name for name in COMMANDS if name not in ELSEWHERE
]


@pytest.fixture
def arguments(finished, small_config, tmp_path, monkeypatch):
    """By command, how it is called here; run finds a finished run."""
    corpus = tmp_path / "m.jsonl"
    corpus.write_text('{"user": "a", "text": "b"}\n{"user": "a", "text": "b"}\n', encoding="utf-8")
    names = tmp_path / "names.txt"
    names.write_text("b\n", encoding="utf-8")
    scores = tmp_path / "s.csv"
    rows = [f"u{i},{(i * 7919) % 101 / 50 + i % 2},{i % 2}" for i in range(60)]
    scores.write_text("user,score,member\n" + "\n".join(rows) + "\n", encoding="utf-8")
    run = tmp_path / "run"
    shutil.copytree(finished, run)
    tiny = load_sweep(_sweep(tmp_path, small_config))
    monkeypatch.setattr("heldin.sweeps.load.demo_sweep", lambda every, rows: tiny)
    return {
        "demo": ["--out", tmp_path / "demo"],
        "run": [small_config, "--out", run],
        "config": ["run", "finetune"],
        "plugins": [],
        "init": ["plant", "--out", tmp_path / "plant.yaml"],
        "white-box": [*TRAINER, *PRIVATE],
        "report": [run],
        "compare": [run, finished],
        "runs": [tmp_path],
        "verify": [run],
        "export": [run, "--out", tmp_path / "public"],
        "purge": [run, "--yes"],
        "cache": [],
        "bound": [scores, "--assignment", "coin", "--claim", "epsilon=4,delta=1e-6"],
        "power": ["--users", 100, "--auroc", 0.7],
        "corpus build": [corpus],
        "corpus stats": [corpus],
        "corpus entities": [corpus, "--words", names],
        "corpus presets": [],
        "corpus formats": [],
        "corpus example": ["--out", tmp_path / "example", "--users", 20],
        "account": ["uls", *PRIVATE, *UNIT],
        "choose": ["--users", 100, "--budget", 8, "--steps", 10, "--target-epsilon", 4],
        "sweep": [_sweep(tmp_path, small_config), "--check", "--out", tmp_path / "swept"],
    }


def _sweep(folder, base):
    content = {"name": "one", "base": str(base), "variants": {"none": {}}}
    (folder / "sweep.yaml").write_text(json.dumps(content), encoding="utf-8")
    return folder / "sweep.yaml"


@pytest.mark.parametrize("name", CALLED)
def test_every_command_answers_in_strict_json(call, arguments, name, monkeypatch):
    monkeypatch.setattr("heldin.sweeps.check_sweep.SECONDS", 0.0)  # it would time steps for a second
    code, out, err = call(*name.split(), *arguments[name], "--json")
    assert code in (0, 3, 4), err
    answer = json.loads(out, parse_constant=_no_such_token)
    assert isinstance(answer, dict)
    assert answer


def _no_such_token(token):
    raise AssertionError(f"JSON has no {token}")


def test_what_is_not_finite_is_null_at_any_depth():
    assert strict_json({"a": (float("inf"), [float("nan"), {"b": -float("inf")}]), "c": 1.5}) == (
        '{"a": [null, [null, {"b": null}]], "c": 1.5}'
    )


@pytest.mark.parametrize(
    "words",
    [
        ["els", *PRIVATE, *UNIT, "--group-size", 4],
        ["group", *PRIVATE, *UNIT, "--group-size", 4],
        ["user-entity", *PRIVATE, *UNIT],
        ["uedp", "--users", 100, "--cohort", 5, "--steps", 10, "--delta", 1e-5, "--noise-multiplier", 2],
    ],
)
def test_every_mechanism_answers_in_strict_json(call, words):
    code, out, err = call("account", *words, "--json")
    assert code == 0, err
    assert json.loads(out, parse_constant=_no_such_token)


def test_an_infinite_epsilon_is_null(call):
    arguments = ["example", "--steps", 10, "--delta", 1e-5, "--noise-multiplier", 0, *UNIT]
    code, out, _ = call("account", *arguments, "--json")
    assert (code, json.loads(out)["epsilon"]) == (0, None)
    _, out, _ = call("account", *arguments)
    assert "infinite" in out


@pytest.mark.parametrize("name", COMMANDS)
def test_no_command_has_more_than_a_dozen_options_outside_its_panels(name):
    options = [p for p in COMMANDS[name].params if p.param_type_name == "option"]
    options = [p for p in options if p not in COMMANDS[name].rare and p.name != "help_all"]
    plain = [p.name for p in options if not getattr(p, "rich_help_panel", None)]
    assert len(plain) <= 12, plain


def test_every_help_page_ends_with_examples():
    assert set(EXAMPLES) == set(COMMANDS)
    for name, command in COMMANDS.items():
        _, *shown = command.epilog.splitlines()
        assert max(map(len, shown)) <= 78  # of 80 columns
        joined = "\n".join(shown).replace("\\\n", "").splitlines()  # as a shell does
        assert [shlex.split(part) for part in joined] == [shlex.split(line) for line in EXAMPLES[name]]
        assert all(shlex.split(line)[: 1 + len(name.split())] == ["heldin", *name.split()] for line in EXAMPLES[name])


def test_every_exit_code_has_a_meaning_of_its_own(call):
    assert len({code.meaning for code in ExitCode}) == len(ExitCode)
    _, out, _ = call("--help")
    assert all(f"{code} {code.meaning.split()[0]}" in " ".join(out.split()) for code in ExitCode)


@pytest.mark.parametrize(
    ("given", "answer", "code"),
    [
        (None, "leaks", 0),
        ("leaks", "leaks", 8),
        ("leaks", "no leak found", 0),
        ("leaks", "inconclusive", 0),
        ("leaks,inconclusive", "inconclusive", 8),
        ("inconclusive", "leaks", 8),
        ("leaks", "not valid", 8),  # a gate that got no answer is not passed
        ("contradicted", "leaks", 0),
        (None, "not valid", 0),
    ],
)
def test_a_gate_fails_for_what_it_names_and_for_what_is_not_valid(given, answer, code):
    decision = Namespace(decision=Namespace(answer=Answer(answer)))
    record = Namespace(judgement=Namespace(exit_code=ExitCode.DONE), decision=decision, canaries=None)
    assert exit_code(record, fail_on_of(given)) == code


def test_canary_users_who_leak_fail_a_gate_on_leaks():
    found = {answer: Namespace(decision=Namespace(answer=Answer(answer))) for answer in ("leaks", "inconclusive")}
    canaries = Namespace(decision=found["leaks"])
    judgement = Namespace(exit_code=ExitCode.DONE)
    record = Namespace(judgement=judgement, decision=found["inconclusive"], canaries=canaries)
    assert exit_code(record, fail_on_of("leaks")) == ExitCode.GATED
    assert exit_code(record, fail_on_of("contradicted")) == ExitCode.DONE


def test_a_contradicted_claim_keeps_its_code_behind_a_gate(finished):
    record = read_record(finished / "record.json")
    contradicted = Namespace(exit_code=ExitCode.INDICATIVE)
    its = Namespace(judgement=contradicted, decision=record.decision)
    assert exit_code(its, fail_on_of("leaks,inconclusive,contradicted")) == ExitCode.INDICATIVE
    with refused(by=fail_on_of, naming=("leak", "leaks", "not-valid")):
        fail_on_of("leak")


@pytest.mark.parametrize("where", ["before", "after"])
def test_quiet_says_the_answer_alone(call, finished, small_config, tmp_path, where):
    run = tmp_path / "run"
    shutil.copytree(finished, run)
    before, after = (["--quiet"], []) if where == "before" else ([], ["--quiet"])
    code, out, err = call(*before, "run", small_config, "--out", run, *after)
    assert (code, err) == (0, "")
    assert "answer: " in out
    _, _, err = call("run", small_config, "--out", run)
    assert "corpus: reading" in err  # the next command is not quiet
    code, out, err = call("--quiet", "run", small_config, "--out", tmp_path)
    assert (code, out, err.count("\n")) == (2, "", 1)


def test_the_version_is_printed(call):
    code, out, _ = call("--version")
    assert (code, out) == (0, "heldin 0.1.0\n")


def test_a_shell_completes_commands_and_options():
    for typed, found in (
        ("heldin co", {"config", "compare", "corpus"}),
        ("heldin run --", {"--quiet", "--gpu-memory", "--device"}),
    ):
        environment = {
            **os.environ,
            "PYTHONPATH": str(ROOT / "src"),
            "_HELDIN_COMPLETE": "complete_bash",
            "COMP_WORDS": typed,
            "COMP_CWORD": str(len(typed.split()) - 1),
            "_TYPER_COMPLETE_ARGS": typed,
        }
        done = subprocess.run(
            [sys.executable, "-m", "heldin"], capture_output=True, text=True, env=environment, check=False
        )
        assert found <= set(done.stdout.split()), done.stderr
