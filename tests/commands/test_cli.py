"""The command line itself: help, what it does not import, exit codes, one line for every mistake."""

import errno
import inspect
import json
import mailbox
import os
import shutil
import subprocess
import sys
from email.message import EmailMessage
from pathlib import Path

import pytest

from heldin.base.errors import ResumableError
from heldin.commands.audit import audit
from heldin.commands.corpus import stats
from heldin.corpus.chat.template import CHATML
from heldin.corpus.sources.bad_rows import BadRows
from heldin.corpus.sources.open import rows_of_file
from heldin.jobs import run as pipeline
from heldin.planting.plant_config import is_dataset
from tests.refusals import lacks, names, refused

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--help"], ["demo", "run", "audit", "report", "export", "corpus", "account", "bound", "power", "Exit codes"]),
        (["run", "--help"], ["--set", "--out", "run the same command again"]),
        (["audit", "--help"], ["--model", "--reference", "--held-in", "--held-out", "exact half"]),
        (["bound", "--help"], ["--assignment", "not an exact half"]),
        (["power", "--help"], ["--scores", "--exclude-auroc", "--exclude-tpr"]),
        (["corpus", "stats", "--help"], ["--tokenizer", "--aliases", "--skip-bad-rows"]),
    ],
)
def test_the_help_names_what_there_is(call, arguments, words):
    code, out, _ = call(*arguments)
    assert code == 0
    assert all(word in " ".join(out.replace("│", " ").split()) for word in words)


def test_what_must_start_quickly_imports_nothing_heavy():
    """In one process, in this order: what comes first must not need what a later module may import."""
    heavy = ("torch", "transformers", "numpy", "pyarrow", "pydantic", "matplotlib", "pandas", "sklearn")
    of_help = ["heldin", "heldin.commands.cli"]
    light = [
        "heldin.defenses.mechanism",
        "heldin.defenses.plan_file",
        *(f"heldin.defenses.accounting.{n}" for n in ("account", "guarantees", "heuristics")),
        *(f"heldin.bounds.{n}" for n in ("bands", "csv_scores", "estimates", "power", "thresholds", "trainings")),
    ]
    modules = [
        *light,
        "heldin.stages.run_config",
        "heldin.reports.record_report",
        "heldin.sweeps.driver",  # its seconds are a batch's overhead: cells load torch themselves
    ]
    script = f"""
import importlib, json, sys
found = {{}}
def look(name):
    found[name] = [its for its in {heavy} if its in sys.modules]
def take(names):
    for name in names:
        importlib.import_module(name)
        look(name)
take({of_help})
from heldin.commands import cli
for what in ("run", "audit", "plant", "sweep"):
    sys.argv = ["heldin", "config", what]
    try:
        cli.main()
    except SystemExit as end:
        assert not end.code
look("heldin config")
take({modules})
print(json.dumps(found))
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=ROOT, check=True)
    imported = {name: set(rest) for name, rest in json.loads(done.stdout.splitlines()[-1]).items()}
    assert list(imported) == [*of_help, "heldin config", *modules]
    assert not any(imported[name] for name in of_help)
    assert not any({"matplotlib", "pandas", "sklearn"} & imported[name] for name in ("heldin config", *light))
    assert not any(names & {"torch", "transformers"} for names in imported.values())


def test_a_config_with_errors_is_exit_code_2_and_no_traceback(call, tmp_path):
    path = tmp_path / "c.yaml"
    path.write_text("name: x\ncorpus: {source: {kind: synthetic}}\nmodell: {base: gpt2}\n", encoding="utf-8")
    _, _, err = call("run", path)
    assert call.refused(by="checked", naming=(path, "2 errors", "'model'"))
    assert [line.split(":")[0] for line in err.splitlines()] == ["error", "  model", "  modell"]


@pytest.mark.parametrize(
    ("error", "code", "start"),
    [
        (ResumableError("NaN at step 7"), 5, "stopped: NaN at step 7"),
        (KeyboardInterrupt(), 130, "interrupted: "),
        (
            OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "/runs/x"),
            5,
            f"stopped: {os.strerror(errno.ENOSPC)}: '/runs/x'; ",
        ),
    ],
    ids=["diverged", "interrupted", "disk full"],
)
def test_what_can_be_resumed_says_so_by_its_exit_code(call, small_config, tmp_path, monkeypatch, error, code, start):
    def fail(*arguments, **options):
        raise error

    monkeypatch.setattr(pipeline, "read_corpus", fail)
    found, _, err = call("run", small_config, "--out", tmp_path / "run")
    assert (found, err.count("\n")) == (code, 1)
    assert err.startswith(start)


def test_a_bug_keeps_its_traceback(small_config, tmp_path, monkeypatch):
    monkeypatch.setattr(pipeline, "read_corpus", lambda *a: 1 / 0)
    monkeypatch.setattr(sys, "argv", ["heldin", "run", str(small_config), "--out", str(tmp_path / "run")])
    from heldin.commands import cli

    with refused(by="_train", kind=ZeroDivisionError):
        cli.main()


def test_a_folder_with_other_things_in_it_is_not_taken(call, small_config, tmp_path):
    (tmp_path / "notes.txt").write_text("mine", encoding="utf-8")
    code, _, err = call("run", small_config, "--out", tmp_path)
    assert call.refused(by="_require_empty", naming=(f"'{tmp_path}'", "--out"))
    assert err.count("\n") == 1
    code, _, err = call("run", small_config, "--out", tmp_path / "notes.txt")
    assert code == 2
    assert call.refused(naming=("notes.txt'", "--out"))


def test_too_few_users_say_how_many_passed_and_why_the_others_did_not(call, small_config, tmp_path):
    code, _, _ = call("run", small_config, "--out", tmp_path / "r", "--set", "corpus.users.min_records=500")
    assert code == 2
    assert call.refused(by="read_corpus", naming=("0", "60", "corpus.users", "500"))
    code, _, _ = call("run", small_config, "--out", tmp_path / "r", "--set", "corpus.users.fraction=1e-9")
    assert code == 2
    assert call.refused(by="read_corpus", naming=("corpus.users", "fraction", "max_users", "2"))


def test_corpus_build_and_stats(call, tmp_path):
    path = tmp_path / "m.csv"
    path.write_text("user,text\nann,hello you\nann,hello you\nbob,\n", encoding="utf-8")
    code, _, err = call("corpus", "build", path, "--strict")
    assert call.refused(by="batched", naming=("m.csv", "line 4", "'text'", "--strict"))
    assert err.count("\n") == 1
    code, out, _ = call("corpus", "build", path)
    assert code == 0
    assert out.startswith("1 user, 2 records: ")
    assert names(out, "1 without text of 3 rows", "m.csv line 4", "users left without any text: 1")
    code, _, _ = call("corpus", "build", path, "--strict", "--skip-bad-rows")
    assert call.refused(by="rows_rule", naming=("--strict", "--skip-bad-rows"))
    code, out, _ = call("corpus", "stats", path)
    assert ["duplicates", "1"] in [[line.split()[0], line.split()[-1]] for line in out.splitlines() if line.strip()]


@pytest.mark.parametrize("command", ["stats", "build"])
def test_a_template_in_a_file_writes_the_tools_of_chats(command, call, tmp_path):
    talk = [{"role": "user", "content": "which day?"}, {"role": "assistant", "content": "sunday"}]
    row = {"user": "ann", "messages": talk, "tools": [{"name": "calendar"}]}
    path, template = tmp_path / "chats.jsonl", tmp_path / "tools.jinja"
    path.write_text(json.dumps(row) + "\n", encoding="utf-8")
    template.write_text("{% for t in tools or [] %}{{ t.name }}{% endfor %}" + CHATML, encoding="utf-8")
    assert call("corpus", command, path)[0] == 2
    assert call.refused(by="batched", naming=("'tools'", "--template"))
    code, out, _ = call("corpus", command, path, "--template", template, "--json")
    assert (code, json.loads(out)["records"]) == (0, 1)


def test_rows_of_two_forms_are_named_with_how_to_choose(call, tmp_path):
    talk = [{"role": "user", "content": "which day?"}, {"role": "assistant", "content": "sunday"}]
    path = tmp_path / "both.jsonl"
    path.write_text(json.dumps({"user": "ann", "text": "of day seven", "messages": talk}) + "\n", encoding="utf-8")
    code, _, err = call("corpus", "build", path)
    assert code == 0
    assert names(err, "format text", "'text'", "messages", "corpus.format", "--text")
    _, _, err = call("corpus", "build", path, "--text", "messages")
    assert names(err, "format messages")
    assert "corpus.format" not in err


def test_a_corpus_is_written_as_one_file_that_can_be_planted(call, tmp_path):
    mail = tmp_path / "mail.mbox"
    box = mailbox.mbox(mail)
    for i in range(8):
        message = EmailMessage()
        message["From"], message["Date"] = f"p{i % 2}@example.org", "Mon, 1 Jan 2001 10:00:00 +0000"
        message.set_content(f"Good morning, number {i}.\n")
        box.add(message)
    box.close()
    found = {}
    for name in ("mail.parquet", "mail.jsonl"):
        code, out, _ = call("corpus", "build", mail, "--out", tmp_path / name)
        assert (code, out.strip()) == (0, f"2 users, 8 records: {tmp_path / name}")
        rows = [row for _, row in rows_of_file(tmp_path / name, ("user", "text", "id", "date"), BadRows())]
        assert {tuple(row) for row in rows} == {("user", "text", "id", "date")}
        found[name] = rows
    assert found["mail.parquet"] == found["mail.jsonl"]
    assert sorted(row["text"] for row in found["mail.jsonl"]) == [f"Good morning, number {i}.\n" for i in range(8)]
    assert not is_dataset(tmp_path / "mail.parquet")
    for name, naming in (("mail.txt", (".parquet", ".jsonl")), ("mail.jsonl", f"'{tmp_path / 'mail.jsonl'}'")):
        _, _, err = call("corpus", "build", mail, "--out", tmp_path / name)
        assert call.refused(naming=naming)
        assert err.count("\n") == 1


@pytest.mark.parametrize("command", ["build", "stats"])
def test_a_user_named_nan_is_warned_of_where_a_corpus_is_looked_at(call, command, tmp_path):
    path = tmp_path / "m.csv"
    path.write_text("user,text\nann,hello you\nNaN,hello him\n", encoding="utf-8")
    code, _, err = call("corpus", command, path)
    assert code == 0
    (warning,) = (line for line in err.splitlines() if line.startswith("warning: "))
    assert names(warning, "1 user", "corpus.users.exclude")


def test_a_mistyped_model_folder_is_told_before_anything_is_imported(tmp_path):
    names = ["ckk/one/final", "./final", "../final", "~/final", "/ckk/final", "models/nowhere", "data.jsonl"]
    (tmp_path / "models").mkdir()
    for file in ("in.jsonl", "out.jsonl", "data.jsonl"):
        (tmp_path / file).write_text('{"user": "a", "text": "b"}\n', encoding="utf-8")
    script = (
        "import sys; from heldin.commands import audit; from heldin.base.errors import InputError\n"
        "for name in sys.argv[1:]:\n"
        "    try: audit._look_for([name], [])\n"
        "    except InputError as error: print(error)\n"
        "sys.exit(any(m in sys.modules for m in ('torch', 'numpy', 'transformers')))"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    command = [sys.executable, "-c", script, *names]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert len(lines) == len(names)
    for name, line in zip(names, lines, strict=True):
        assert not lacks(line, f"'{name}'")
        assert ("--held-in" in line) == (name == "data.jsonl")


def test_stats_count_tokens_with_a_models_tokenizer(call, make_lm, tmp_path):
    lm = make_lm()
    lm.tokenizer.save_pretrained(tmp_path / "tokenizer")
    path = tmp_path / "m.jsonl"
    path.write_text('{"user": "a", "text": "The river opens."}\n', encoding="utf-8")
    tokens = len(lm.tokenizer("The river opens.", add_special_tokens=False)["input_ids"])
    code, out, _ = call("corpus", "stats", path, "--tokenizer", tmp_path / "tokenizer")
    assert code == 0
    assert f"tokens                       {tokens}" in out


def test_report_of_no_run_and_of_a_damaged_record(call, tmp_path):
    code, _, err = call("report", tmp_path)
    assert call.refused(by="read_record", naming=f"'{tmp_path / 'record.json'}'")
    assert err.count("\n") == 1
    for content, by, naming in (
        ("{", "read_document", "record.json"),
        ('{"schema_version": 1, "auroc": NaN}', "read_document", "record.json"),
        ('{"schema_version": 99, "heldin": "7.0"}', "unstamped", ("7.0", "99")),
        ('{"schema_version": 1}', "read_document", "record.json"),
    ):
        (tmp_path / "record.json").write_text(content, encoding="utf-8")
        code, _, err = call("report", tmp_path)
        assert code == 2
        assert call.refused(by=by, naming=naming)
        assert not (tmp_path / "report.pdf").exists()


def test_a_damaged_plan_is_not_exported(call, finished, tmp_path):
    run = tmp_path / "run"
    shutil.copytree(finished, run)
    whole = (run / "plan.json").read_text(encoding="utf-8")
    (run / "plan.json").write_text(whole[: len(whole) // 2], encoding="utf-8")
    code, _, err = call("export", run, "--out", tmp_path / "public")
    assert (code, err.count("\n")) == (2, 1)
    assert "plan.json' is not JSON" in err
    assert not (tmp_path / "public").exists()


@pytest.mark.parametrize("command", ["export", "run"])
def test_a_folder_below_a_file_is_bad_input(call, finished, small_config, tmp_path, command):
    (tmp_path / "file").write_text("x", encoding="utf-8")
    below = tmp_path / "file" / "folder"
    arguments = {
        "export": ("export", finished, "--out", below),
        "run": ("run", small_config, "--out", below),
    }
    code, _, err = call(*arguments[command])
    assert (code, err.count("\n")) == (2, 1)
    assert "file" in err


def test_two_processes_do_not_share_a_run_folder(call, finished, small_config, tmp_path):
    from heldin.base.files import one_process_at_a_time

    run = tmp_path / "run"
    shutil.copytree(finished, run)
    with one_process_at_a_time(run):
        code, _, _ = call("run", small_config, "--out", run)
    assert code == 2
    assert call.refused(by="one_process_at_a_time", naming=f"'{run}'")


def test_a_wrong_option_or_command_is_one_line_too(call):
    for arguments, naming in (
        (["audit", "--foo"], ("--foo", "heldin audit --help")),
        (["nonsense"], ("'nonsense'", "heldin --help")),
        (["power"], ("'--users'", "heldin power --help")),
        (["account", "mail.jsonl"], ("'mail.jsonl'", "plan.json")),
    ):
        code, out, err = call(*arguments)
        assert (code, out, len(err.splitlines())) == (2, "", 1)
        assert call.refused(naming=naming)


def test_paragraphs_of_the_help_break_where_the_terminal_does():
    environment = {**os.environ, "COLUMNS": "200", "TERMINAL_WIDTH": "200"}
    arguments = [sys.executable, "-m", "heldin", "audit", "--help"]
    shown = subprocess.run(arguments, capture_output=True, text=True, cwd=ROOT, check=True, env=environment).stdout
    # Across ends of lines in the docstring, in paragraphs after the first.
    _, *paragraphs = inspect.getdoc(audit).split("\n\n")
    broken = [paragraph for paragraph in paragraphs if "\n" in paragraph]
    assert broken
    for paragraph in broken:
        assert " ".join(paragraph.split())[:150] in shown


def test_no_help_text_is_cut_or_eaten_on_80_columns():
    commands = ["", "run", "audit", "bound", "power", "white-box", "compare", "verify", "report", "export", "demo"]
    commands += [
        "config",
        "corpus stats",
        "corpus build",
        "corpus presets",
        "account",
        "choose",
        "init",
        "audit-endpoint",
        "audit-planted",
    ]
    # In one process of its own: typer reads the width when it is imported.
    script = (
        "import contextlib, sys; from heldin.commands.cli import main\n"
        "for command in sys.argv[1:]:\n"
        "    sys.argv = ['heldin', *command.split(), '--help']\n"
        "    with contextlib.suppress(SystemExit): main()\n"
        "    print('\\f', end='')"
    )
    environment = {**os.environ, "COLUMNS": "80", "TERMINAL_WIDTH": "80"}
    arguments = [sys.executable, "-c", script, *commands]
    found = subprocess.run(arguments, capture_output=True, text=True, cwd=ROOT, check=True, env=environment)
    shown = dict(zip(commands, found.stdout.split("\f")[:-1], strict=True))
    for command, page in shown.items():
        assert f"Usage: heldin {command}".strip() in page
        assert "…" not in page, command
        assert max(map(len, page.splitlines())) <= 80
    aliases = inspect.signature(stats, eval_str=True).parameters["aliases"].annotation.__metadata__[0].help
    assert aliases in " ".join(shown["corpus stats"].replace("│", " ").split())


def test_an_interruption_before_anything_is_done_has_a_word_too(call, monkeypatch):
    def interrupted(*arguments, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr("heldin.bounds.power.power", interrupted)
    code, _, err = call("power", "--users", 100, "--auroc", 0.7)
    assert (code, err) == (130, "interrupted\n")


def test_a_full_disk_without_a_name_leaves_no_hole_in_the_line(call, small_config, tmp_path, monkeypatch):
    def full(*arguments, **options):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(pipeline, "read_corpus", full)
    code, _, err = call("run", small_config, "--out", tmp_path / "run")
    assert (code, err.count("\n")) == (5, 1)
    assert err.startswith(f"stopped: {os.strerror(errno.ENOSPC)}; ")


def test_a_plan_that_cannot_be_is_refused_before_anything_is_read(call, small_config, tmp_path, monkeypatch):
    monkeypatch.setattr(pipeline, "read_corpus", lambda *a: 1 / 0)
    defense = "defense={kind: uls, population: 20, cohort: 50, steps: 10, delta: 1.0e-3, target_epsilon: 8}"
    code, _, err = call("run", small_config, "--out", tmp_path / "run", "--set", defense)
    assert code == 2
    assert "cohort" in err
    assert len(err.splitlines()) == 1
    assert not (tmp_path / "run").exists()
