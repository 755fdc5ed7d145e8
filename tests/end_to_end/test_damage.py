"""Damage never becomes a result: bytes of every file of every kind of job are altered, and every command is asked.

Each command must give the answer that it gives for the undamaged folder, or refuse in one line (exit code 2), or, where
it is ``heldin verify``, name the file as changed or as not checked. It must never give another answer.
"""

import json
import random
import shutil
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
import yaml
from safetensors.torch import load_file, save_file

import heldin.sweeps.processes as processes
from heldin.base.files import file_sha256
from heldin.base.progress import LineReporter
from heldin.jobs.example import write_example
from heldin.planting.audit import audit_planted
from heldin.planting.plant import plant
from heldin.planting.target import PlantedAudit
from tests.conftest import SMALL, TRIAL
from tests.planted_sets import made_rows, plan, read_lines, save_base, train, write_lines
from tests.tiny_sweeps import in_process

QUIET = LineReporter(lambda line: None)
SEED = 20261126
_NEW = (
    "created",
    "command",
    "environment",
    "seconds",
    "effort",
    "sha256",
    "folder",
    "report",
)  # say when and how, not what
# Without numbers that a command reads: times of stages, and what was printed.
_SAID_ALONE = ("log.txt", "seconds.json", "report.pdf")


def _flip(content, dice):
    place = dice.randrange(len(content))
    content[place] ^= 1 << dice.randrange(8)


def _blank(content, dice):
    place = dice.randrange(max(1, len(content) - 64))
    content[place : place + 64] = bytes(min(64, len(content) - place))


def _cut(content, dice):
    del content[len(content) // 2 :]


DAMAGES = (_flip, _blank, _cut)


def _files(folder):
    return sorted(path for path in folder.rglob("*") if path.is_file() and path.stat().st_size)


def _result(folder):
    """What a record or comparison says, or None if it is unreadable."""
    try:
        return _without_new(json.loads(folder.read_text(encoding="utf-8")))
    except (OSError, ValueError):
        return None


def _without_new(content):
    """A JSON answer without times and folders."""
    if isinstance(content, dict):
        return {name: _without_new(value) for name, value in content.items() if name not in _NEW}
    return [_without_new(value) for value in content] if isinstance(content, list) else content


VERIFY = ("verify", "FOLDER", "--json")
COMPARE = ("compare", "FOLDER", "FOLDER", "--json")
REPORT = ("report", "FOLDER", "--json")
PEOPLE = ("report", "FOLDER", "--people", "--json")
EXPORT = ("export", "FOLDER", "--out", "EXPORTED", "--json")


@dataclass(frozen=True)
class _Job:
    """A finished folder and what is asked of it.

    Attributes:
        folder: of the job.
        questions: commands, by name.
        again: the command that made it, without its last argument, the folder; None: it is not called again.
        result: the file that it writes again.
        copied: the folder that is copied for each damage; None: ``folder``.
        skipped: parts of the folder that are damaged in another kind of job.
    """

    folder: Path
    questions: dict[str, tuple[str, ...]]
    again: tuple | None = None
    result: str = "record.json"
    copied: Path | None = None
    skipped: tuple[str, ...] = ()


@pytest.fixture(scope="module")
def jobs(make_once):
    """A finished run with canary users, an audit of a checkpoint, a planted audit and independent trainings."""
    root = make_once("jobs", _finish_jobs)
    trainings = (*_TRAININGS[:1], root / "trial.yaml", *_TRAININGS[1:])
    asked = {"verify": VERIFY, "compare": COMPARE, "report": REPORT}
    audit = ("audit-planted", "--model", root / "planted model", "--declared-by", "R. Signer")
    return {
        "run": _Job(root / "run", {**asked, "people": PEOPLE, "export": EXPORT}, ("run", root / "run.yaml", "--out")),
        "audit": _Job(root / "audit", asked),
        "trainings": _Job(root / "trainings", asked, trainings),
        # A planted audit is verified with the planted folder around it.
        "planted": _Job(root / "planted" / "audits" / "1", asked, copied=root / "planted"),
        "planted set": _Job(root / "unaudited", {}, audit, "audits/1/record.json"),
        "sweep": _Job(
            root / "sweep",
            {"compare": ("compare", "FOLDER", "--json"), "report": REPORT},
            ("sweep", root / "sweep.yaml", "--out"),
            "comparison.json",
            skipped=("cells/1/many",),
        ),
        "cell": _Job(root / "sweep" / "cells" / "1" / "few", {"verify": VERIFY}),
    }


_TRAININGS = ("retrain", "--trainings", "24", "--documents", "2", "--processes", "1", "--out")


def _finish_jobs(root):
    from heldin.commands import cli

    def done(*words):
        monkeypatch = pytest.MonkeyPatch()
        monkeypatch.setattr("sys.argv", ["heldin", *map(str, words)])
        with pytest.raises(SystemExit) as caught:
            cli.main()
        monkeypatch.undo()
        assert caught.value.code in (0, 3, 4), words

    canaries = [{"kind": "rare_phrase", "users": 8, "documents": [4]}]
    run = {**SMALL, "canaries": canaries, "measures": {"extraction": {"prefix": 8, "suffix": 8}, "marks": {}}}
    (root / "run.yaml").write_text(yaml.safe_dump(run), encoding="utf-8")
    trial = {**TRIAL, "defense": {**TRIAL["defense"], "steps": 2}}
    (root / "trial.yaml").write_text(yaml.safe_dump(trial), encoding="utf-8")
    done("run", root / "run.yaml", "--out", root / "run")
    write_example(root / "example", users=40, reporter=QUIET)
    example, model = root / "example", root / "run" / "checkpoints" / "final"
    _moved(model, root / "reference")
    sides = ("--held-in", example / "held_in.jsonl", "--held-out", example / "held_out.jsonl")
    models = ("--model", model, "--reference", root / "reference", "--user", "author", "--text", "body")
    done("audit", *models, *sides, "--out", root / "audit")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("heldin.jobs.retraining.engine.new_key", lambda: b"\x22" * 32)
        done(_TRAININGS[0], root / "trial.yaml", *_TRAININGS[1:], root / "trainings")
    _planted(root)
    (root / "small.yaml").write_text(yaml.safe_dump(SMALL), encoding="utf-8")
    sweep = {"name": "two", "base": "small.yaml", "variants": {"few": {"finetune": {"epochs": 1}}, "many": None}}
    (root / "sweep.yaml").write_text(yaml.safe_dump(sweep), encoding="utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(processes, "run_process", in_process)
        done("sweep", root / "sweep.yaml", "--out", root / "sweep")


def _moved(model, to):
    """A copy of a model whose weights all differ."""
    shutil.copytree(model, to)
    weights = load_file(to / "model.safetensors")
    torch.manual_seed(0)
    weights = {name: its + 0.02 * torch.randn_like(its) for name, its in weights.items()}
    save_file(weights, to / "model.safetensors", metadata={"format": "pt"})


def _planted(root):
    from heldin.models.model_config import TinyModel
    from heldin.models.tiny import new_tiny_model, train_tokenizer

    rows = made_rows(users=30)
    tokenizer = train_tokenizer([row["body"] for row in rows], 300)
    shape = TinyModel(vocabulary=300, context=32, hidden=16, layers=1, heads=2, window=8)

    class _Lm:
        model = new_tiny_model(shape, tokenizer, 0)

    _Lm.tokenizer = tokenizer
    base = save_base(_Lm, root / "planted base")
    plant(
        plan(
            write_lines(rows, root / "mine.jsonl"),
            base,
            measures={"extraction": {"prefix": 4, "suffix": 4}, "marks": {}},
            evidence="callback",
        ),
        root / "planted",
        QUIET,
    )
    texts = [row["body"] for row in read_lines(root / "planted" / "training" / "mine.jsonl")]
    model = train(base, texts, root / "planted model", passes=2, planted=root / "planted")
    shutil.copytree(root / "planted", root / "unaudited")
    audit_planted(PlantedAudit(root / "planted", str(model), (), "R. Signer"), None, QUIET, command="test")


def _ask(call, question, folder):
    """Exit code, JSON answer or text, and the error stream of a command."""
    exported = folder.parent / "exported"
    places = {"FOLDER": folder, "EXPORTED": exported}
    code, out, err = call(*(places.get(word, word) for word in question))
    out = out.replace(str(folder), "FOLDER")
    if exported.is_dir():
        out = json.dumps({path.name: file_sha256(path) for path in _files(exported)})
        shutil.rmtree(exported)
    try:
        return code, json.loads(out), err
    except ValueError:
        return code, out, err


def _problem(call, job, whole, folder, name):
    """What a command makes of a damaged folder that it must not; None if all is well."""
    for command, question in job.questions.items():
        code, out, err = _ask(call, question, folder)
        if "Traceback" in err:
            return f"{command}: {err.splitlines()[-1]}"
        if code == 2 and not isinstance(out, dict):
            if "error: " not in err:
                return f"{command}: exit code 2 without a line"
            continue
        if command == "verify":
            if not (out["changed"] or out["differences"] or str(name) in out["not_checked"]):
                return f"verify: {name} is not named"
            continue
        if code != whole[command][0] or _without_new(whole[command][1]) != _without_new(out):
            return f"{command}: another answer"
    if job.again is None:
        return None
    code, _, err = call(*job.again, folder)
    if "Traceback" in err:
        return f"{job.again[0]} again: {err.splitlines()[-1]}"
    result = _result(folder / job.result)
    if code in (0, 3, 4) and result != whole["again"] and not _refuses(result):
        return f"{job.again[0]} again: another result"
    return None


def _refuses(result):
    """Whether a result says itself that it rests on something damaged: a condition that is not met, a failed cell."""
    conditions = (result.get("planted") or {}).get("conditions", [])
    return any(condition["known_by"] == "not met" for condition in conditions) or any(
        cell["state"] != "done" for cell in result.get("cells", [])
    )


def _cases(job, dice, most):
    names = [path.relative_to(job.folder) for path in _files(job.folder) if path.name not in _SAID_ALONE]
    files = [str(name) for name in names if not str(name).startswith(job.skipped)]
    cases = [(name, damage) for name in files for damage in DAMAGES]
    return dice.sample(cases, min(most, len(cases)))


def _try_out(jobs, kind, most, call, tmp_path):
    job, dice = jobs[kind], random.Random(f"{SEED} {kind} {most}")
    copied = job.copied or job.folder

    def copy(home):
        shutil.copytree(copied, home / copied.name)
        return home / job.folder.relative_to(copied.parent)

    whole = {name: _ask(call, question, copy(tmp_path / name))[:2] for name, question in job.questions.items()}
    if "verify" in whole:
        verified = whole["verify"][1]
        assert verified["agrees"], str(verified)
        listed = [name for which in ("by_digest", "changed", "not_checked") for name in verified[which]]
        there = [path for path in job.folder.rglob("*") if path.is_file()]
        assert sorted(listed) == sorted(path.relative_to(job.folder).as_posix() for path in there)
        assert set(verified["not_checked"]) <= {*_SAID_ALONE, "report.html", "ledger/origin"}
    if job.again is not None:
        folder = copy(tmp_path / "again")
        assert call(*job.again, folder)[0] in (0, 3, 4)
        whole["again"] = _result(folder / job.result)
        assert not _refuses(whole["again"])
    wrong = []
    for number, (name, damage) in enumerate(_cases(job, dice, most)):
        folder = copy(tmp_path / str(number))
        content = bytearray((folder / name).read_bytes())
        before = bytes(content)
        damage(content, dice)
        if bytes(content) != before:
            (folder / name).write_bytes(bytes(content))
            problem = _problem(call, job, whole, folder, name)
            if problem:
                wrong.append(f"{name} ({damage.__name__}): {problem}")
        shutil.rmtree(tmp_path / str(number))
    assert not wrong, "\n".join(wrong)


KINDS = ("run", "audit", "planted", "planted set", "trainings", "sweep")


@pytest.fixture(autouse=True)
def _cells_in_this_process(monkeypatch):
    monkeypatch.setattr(processes, "run_process", in_process)


@pytest.mark.parametrize("kind", KINDS)
def test_a_sample_of_damages_gives_no_other_answer(kind, jobs, call, tmp_path):
    _try_out(jobs, kind, 3, call, tmp_path)


def test_the_json_of_a_command_has_what_its_record_measured(jobs, call, tmp_path):
    job = jobs["run"]
    shutil.copytree(job.folder, tmp_path / "run")
    code, out, err = call(*job.again, tmp_path / "run", "--json")
    assert code == 0, err
    answer, record = json.loads(out), json.loads((job.folder / "record.json").read_text(encoding="utf-8"))
    assert answer["measures"] == record["measures"]
    assert {"extraction", "marks", "utility"} <= answer["measures"].keys()
    assert (answer["decision"], answer["judgement"]) == (record["decision"], record["judgement"])
    assert answer["planted"] is None


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["run", "audit", "planted", "trainings", "cell"])
def test_a_flipped_bit_in_any_file_is_reported_by_verify_or_the_file_is_listed_as_not_checked(
    kind, jobs, call, tmp_path
):
    job, dice, wrong = jobs[kind], random.Random(f"{SEED} {kind}"), []
    copied = job.copied or job.folder
    for name in (path.relative_to(job.folder) for path in _files(job.folder)):
        folder = tmp_path / copied.name / job.folder.relative_to(copied)
        shutil.copytree(copied, tmp_path / copied.name)
        content = bytearray((folder / name).read_bytes())
        _flip(content, dice)
        (folder / name).write_bytes(content)
        code, out, err = _ask(call, VERIFY, folder)
        if isinstance(out, dict):
            reported = out["changed"] or out["differences"]
            if bool(reported) != (code == 2) or not (reported or name.as_posix() in out["not_checked"]):
                wrong.append(f"{name}: {code}")
        elif code != 2 or "error: " not in err:
            wrong.append(f"{name}: {err}")
        shutil.rmtree(tmp_path / copied.name)
    assert not wrong, "\n".join(wrong)


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS)
def test_no_damage_gives_another_answer(kind, jobs, call, tmp_path):
    _try_out(jobs, kind, 1000, call, tmp_path)
