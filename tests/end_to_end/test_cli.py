"""The command line itself: help, what it does not import, exit codes, one line for every mistake."""

import mailbox
import os
import shutil
import subprocess
import sys
from email.message import EmailMessage
from pathlib import Path

import pytest

from heldin.base.errors import ResumableError
from heldin.corpus.sources.rows import BadRows
from heldin.corpus.sources.text_files import rows_of_file
from heldin.jobs import run as pipeline
from heldin.jobs.planted.plant_config import is_dataset

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--help"], ["demo", "run", "audit", "report", "export", "corpus", "account", "bound", "power", "Exit codes"]),
        (["run", "--help"], ["--set", "--out", "the same command resumes it"]),
        (["audit", "--help"], ["--model", "--reference", "--held-in", "--held-out", "LoRA", "exact half"]),
        (["bound", "--help"], ["--assignment", "not an exact half"]),
        (["power", "--help"], ["--scores", "--exclude-auroc", "--exclude-tpr"]),
        (["corpus", "stats", "--help"], ["--tokenizer", "--aliases", "--skip-bad-lines"]),
    ],
)
def test_the_help_names_what_there_is(call, arguments, words):
    code, out, _ = call(*arguments)
    assert code == 0
    assert all(word in " ".join(out.replace("│", " ").split()) for word in words)


def test_what_must_start_quickly_imports_nothing_heavy():
    """In one process, in this order: what comes first must not need what a later module may import."""
    heavy = ("torch", "transformers", "numpy", "pyarrow", "pydantic", "matplotlib")
    of_help = ["heldin", "heldin.commands.cli"]
    modules = [
        *of_help,
        "heldin.stages.run_config",
        "heldin.defenses.accounting.guarantees",
        "heldin.reports.record_report",
    ]
    code = f"import importlib, sys\nfor name in {modules}:\n    importlib.import_module(name)\n"
    code += f"    print(name, *[its for its in {heavy} if its in sys.modules])\n"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True)
    imported = {name: set(rest) for name, *rest in map(str.split, found.stdout.splitlines())}
    assert list(imported) == modules
    assert not any(imported[name] for name in of_help)
    assert not any(names & {"torch", "transformers"} for names in imported.values())


def test_a_config_with_errors_is_exit_code_2_and_no_traceback(call, tmp_path):
    path = tmp_path / "c.yaml"
    path.write_text("name: x\ncorpus: {source: {kind: synthetic}}\nmodell: {base: gpt2}\n", encoding="utf-8")
    code, _, err = call("run", path)
    assert code == 2
    assert err.splitlines() == [
        f"error: {path}: 2 errors",
        "  model: this key is required",
        "  modell: unknown key; did you mean 'model'?",
    ]


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (ResumableError("the loss became NaN"), 5, "stopped: the loss became NaN\n"),
        (KeyboardInterrupt(), 130, "interrupted: the same command resumes from the last checkpoint\n"),
        (
            OSError(28, "No space left on device", "/runs/x"),
            5,
            "stopped: No space left on device: '/runs/x'; fix it and run the command again\n",
        ),
    ],
    ids=["diverged", "interrupted", "disk full"],
)
def test_what_can_be_resumed_says_so_by_its_exit_code(call, small_config, tmp_path, monkeypatch, error, code, line):
    def fail(*arguments, **options):
        raise error

    monkeypatch.setattr(pipeline, "read_corpus", fail)
    found, _, err = call("run", small_config, "--out", tmp_path / "run")
    assert (found, err) == (code, line)


def test_a_bug_keeps_its_traceback(small_config, tmp_path, monkeypatch):
    monkeypatch.setattr(pipeline, "read_corpus", lambda *a: 1 / 0)
    monkeypatch.setattr(sys, "argv", ["heldin", "run", str(small_config), "--out", str(tmp_path / "run")])
    from heldin.commands import cli

    with pytest.raises(ZeroDivisionError, match="division by zero"):
        cli.main()


def test_a_folder_with_other_things_in_it_is_not_taken(call, small_config, tmp_path):
    (tmp_path / "notes.txt").write_text("mine", encoding="utf-8")
    code, _, err = call("run", small_config, "--out", tmp_path)
    assert (code, err) == (2, f"error: '{tmp_path}' is not empty and holds no such run: choose another --out\n")
    code, _, err = call("run", small_config, "--out", tmp_path / "notes.txt")
    assert code == 2
    assert "notes.txt' is a file, and no folder for a run: choose another --out" in err


def test_too_few_users_say_how_many_passed_and_why_the_others_did_not(call, small_config, tmp_path):
    code, _, err = call("run", small_config, "--out", tmp_path / "r", "--set", "corpus.users.min_records=500")
    assert code == 2
    assert "0 of 60 users pass corpus.users (60 with fewer than 500 records)" in err
    code, _, err = call("run", small_config, "--out", tmp_path / "r", "--set", "corpus.users.fraction=1e-9")
    assert code == 2
    assert "users pass corpus.users (" in err
    assert "not drawn by fraction or max_users): an audit needs at least 2 users" in err


def test_corpus_build_and_stats(call, tmp_path):
    path = tmp_path / "m.csv"
    path.write_text("user,text\nann,hello you\nann,hello you\nbob,\n", encoding="utf-8")
    code, _, err = call("corpus", "build", path)
    assert (code, err) == (
        2,
        "error: m.csv line 4: empty text in column 'text'; correct the row or pass --skip-bad-lines (skip_bad_lines:"
        " true in a config) to count and skip such rows\n",
    )
    code, out, _ = call("corpus", "build", path, "--skip-bad-lines")
    assert code == 0
    assert out.startswith("1 user, 2 records: ")
    assert "1 row skipped, the first: m.csv line 4: empty text" in out
    code, out, _ = call("corpus", "stats", path, "--skip-bad-lines")
    assert "duplicates within users      1" in out


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
        code, out, _ = call("corpus", "build", mail, "--to", tmp_path / name)
        assert (code, out.strip()) == (0, f"2 users, 8 records: {tmp_path / name}")
        rows = [row for _, row in rows_of_file(tmp_path / name, ("user", "text", "id", "date"), BadRows())]
        assert {tuple(row) for row in rows} == {("user", "text", "id", "date")}
        found[name] = rows
    assert found["mail.parquet"] == found["mail.jsonl"]
    assert sorted(row["text"] for row in found["mail.jsonl"]) == [f"Good morning, number {i}.\n" for i in range(8)]
    assert not is_dataset(tmp_path / "mail.parquet")
    for name, said in (("mail.txt", "ends in .parquet or .jsonl"), ("mail.jsonl", "there is one already")):
        code, _, err = call("corpus", "build", mail, "--to", tmp_path / name)
        assert (code, said in err, err.count("\n")) == (2, True, 1)


@pytest.mark.parametrize("command", ["build", "stats"])
def test_a_user_named_nan_is_warned_of_where_a_corpus_is_looked_at(call, command, tmp_path):
    path = tmp_path / "m.csv"
    path.write_text("user,text\nann,hello you\nNaN,hello him\n", encoding="utf-8")
    code, _, err = call("corpus", command, path)
    assert code == 0
    assert "warning: 1 user named 'NaN': rows without a user may stand under that name" in err


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
        file = name == "data.jsonl"
        assert line.startswith("'data.jsonl' is a file of texts" if file else f"no such model folder: '{name}'")


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
    assert (code, err) == (
        2,
        f"error: no record at '{tmp_path / 'record.json'}': name the folder of a finished run or audit\n",
    )
    for content, words in (
        ("{", "is damaged"),
        ('{"schema_version": 1, "auroc": NaN}', "is damaged"),
        ('{"schema_version": 99, "heldin": "7.0"}', "written by heldin 7.0 with schema version 99"),
        ('{"schema_version": 1}', "is not as it was written"),
    ):
        (tmp_path / "record.json").write_text(content, encoding="utf-8")
        code, _, err = call("report", tmp_path)
        assert code == 2
        assert words in err
        assert not (tmp_path / "report.pdf").exists()


def test_a_damaged_plan_is_not_exported(call, finished, tmp_path):
    run = tmp_path / "run"
    shutil.copytree(finished, run)
    whole = (run / "plan.json").read_text(encoding="utf-8")
    (run / "plan.json").write_text(whole[: len(whole) // 2], encoding="utf-8")
    code, _, err = call("export", run, "--to", tmp_path / "public")
    assert (code, err.count("\n")) == (2, 1)
    assert "plan.json: not JSON" in err
    assert not (tmp_path / "public").exists()


@pytest.mark.parametrize("command", ["export", "run"])
def test_a_folder_below_a_file_is_bad_input(call, finished, small_config, tmp_path, command):
    (tmp_path / "file").write_text("x", encoding="utf-8")
    below = tmp_path / "file" / "folder"
    arguments = {
        "export": ("export", finished, "--to", below),
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
        code, _, err = call("run", small_config, "--out", run)
    assert code == 2
    assert f"another process works in '{run}'" in err


def test_a_wrong_option_or_command_is_one_line_too(call):
    for arguments, said in (
        (["audit", "--foo"], "error: No such option: --foo"),
        (["nonsense"], "error: No such command 'nonsense' (see heldin --help)"),
        (["power"], "error: Missing option '--users' (see heldin power --help)"),
        (
            ["account", "mail.jsonl"],
            "error: 'mail.jsonl' is no plan: heldin account takes the plan.json of a run folder",
        ),
    ):
        code, out, err = call(*arguments)
        assert (code, out, len(err.splitlines())) == (2, "", 1)
        assert err.startswith(said)


def test_paragraphs_of_the_help_break_where_the_terminal_does():
    environment = {**os.environ, "COLUMNS": "200", "TERMINAL_WIDTH": "200"}
    arguments = [sys.executable, "-m", "heldin", "audit", "--help"]
    shown = subprocess.run(arguments, capture_output=True, text=True, cwd=ROOT, check=True, env=environment).stdout
    # Across ends of lines in the docstring, in paragraphs after the first.
    assert "the same command resumes. Exit code 4 if a claim is violated;" in shown
    assert "Needs --model; a --claim states its unit," in shown


def test_no_help_text_is_cut_or_eaten_on_80_columns():
    commands = ["", "run", "audit", "bound", "power", "audit-trainer", "compare", "verify", "report", "export", "demo"]
    commands += [
        "config",
        "corpus stats",
        "corpus build",
        "corpus presets",
        "account uls",
        "account choose",
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
    assert "YAML file that lists each person's aliases" in " ".join(shown["corpus stats"].split())


def test_an_interruption_before_anything_is_done_has_a_word_too(call, monkeypatch):
    def interrupted(*arguments, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr("heldin.bounds.power.power", interrupted)
    code, _, err = call("power", "--users", 100, "--auroc", 0.7)
    assert (code, err) == (130, "interrupted\n")


def test_a_full_disk_without_a_name_leaves_no_hole_in_the_line(call, small_config, tmp_path, monkeypatch):
    def full(*arguments, **options):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(pipeline, "read_corpus", full)
    code, _, err = call("run", small_config, "--out", tmp_path / "run")
    assert (code, err) == (5, "stopped: No space left on device; fix it and run the command again\n")


def test_a_plan_that_cannot_be_is_refused_before_anything_is_read(call, small_config, tmp_path, monkeypatch):
    monkeypatch.setattr(pipeline, "read_corpus", lambda *a: 1 / 0)
    defense = "defense={kind: uls, population: 20, cohort: 50, steps: 10, delta: 1.0e-3, target_epsilon: 8}"
    code, _, err = call("run", small_config, "--out", tmp_path / "run", "--set", defense)
    assert code == 2
    assert "cohort" in err
    assert len(err.splitlines()) == 1
    assert not (tmp_path / "run").exists()
