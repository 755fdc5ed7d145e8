"""Damage never becomes a result: bytes of every file of every kind of job are altered, and every command is asked.

Each command must give the answer that it gives for the undamaged folder, or refuse in one line (exit code 2), or, where
it is ``heldin verify``, name the file as changed or as not checked. It must never give another answer.
"""

import json
import random
import shutil
from pathlib import Path

import pytest
import yaml

from heldin.base.artefacts import INDEX
from heldin.base.progress import LineReporter
from heldin.jobs.example import write_example
from heldin.jobs.planted.audit import audit_planted
from heldin.jobs.planted.plant import plant
from heldin.jobs.planted.target import PlantedAudit
from tests.conftest import SMALL, TRIAL
from tests.planted_sets import made_rows, plan, read_lines, save_base, train, write_lines

QUIET = LineReporter(lambda line: None)
SEED = 20261126
_NEW = ("created", "command", "environment", "seconds", "effort", "sha256")  # say when and how, not what
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


def _record(folder):
    """What a record says, or None if it is unreadable."""
    try:
        content = json.loads((folder / "record.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return {name: value for name, value in content.items() if name not in _NEW}


def _same(before, after):
    """Whether two JSON answers say the same but for times and folders."""

    def said(content):
        if isinstance(content, dict):
            return {name: said(value) for name, value in content.items() if name not in (*_NEW, "folder", "report")}
        return [said(value) for value in content] if isinstance(content, list) else content

    return said(before) == said(after)


class _Job:
    """A finished folder, the commands that read it, and the one that made it."""

    def __init__(self, folder, again=None, further=()):
        self.folder, self.again, self.further = folder, again, further

    def questions(self, folder):
        yield "verify", folder, "--json"
        yield "compare", folder, folder, "--json"
        yield "report", folder, "--json"
        for words in self.further:
            yield tuple(folder if word == "FOLDER" else word for word in words)


@pytest.fixture(scope="module")
def jobs(tmp_path_factory):
    """A finished run with canary users, an audit of a checkpoint, a planted audit and independent trainings."""
    from heldin.commands import cli

    root = tmp_path_factory.mktemp("jobs")

    def done(*words):
        with pytest.MonkeyPatch.context() as patch, pytest.raises(SystemExit) as caught:
            patch.setattr("sys.argv", ["heldin", *map(str, words)])
            cli.main()
        assert caught.value.code in (0, 3, 4), words

    canaries = [{"kind": "rare_phrase", "users": 8, "documents": [4]}]
    run = {**SMALL, "canaries": canaries, "extraction": {"prefix": 8, "suffix": 8}}
    (root / "run.yaml").write_text(yaml.safe_dump(run), encoding="utf-8")
    (root / "trial.yaml").write_text(yaml.safe_dump(TRIAL), encoding="utf-8")
    done("run", root / "run.yaml", "--out", root / "run")
    write_example(root / "example", users=60, models=True, reporter=QUIET)
    example = root / "example"
    sides = ("--held-in", example / "held_in.jsonl", "--held-out", example / "held_out.jsonl")
    models = ("--model", example / "model", "--reference", example / "base", "--user", "author", "--text", "body")
    done("audit", *models, *sides, "--out", root / "audit")
    done("audit-training", root / "trial.yaml", "--runs", "12", "--out", root / "trainings")
    _planted(root)
    return {
        "run": _Job(root / "run", ("run", root / "run.yaml", "--out"), [("report", "FOLDER", "--people", "--json")]),
        "audit": _Job(root / "audit"),
        "trainings": _Job(root / "trainings", ("audit-training", root / "trial.yaml", "--runs", "12", "--out")),
        "planted": _Job(root / "planted" / "audits" / "1"),
    }


def _planted(root):
    from heldin.models.shape import TinyModel
    from heldin.models.tiny import new_tiny_model, train_tokenizer

    rows = made_rows(users=30)
    tokenizer = train_tokenizer([row["body"] for row in rows], 300)
    shape = TinyModel(vocabulary=300, context=32, hidden=16, layers=1, heads=2, window=8)

    class _Lm:
        model = new_tiny_model(shape, tokenizer, 0)

    _Lm.tokenizer = tokenizer
    base = save_base(_Lm, root / "planted base")
    plant(
        plan(write_lines(rows, root / "mine.jsonl"), base, extraction={"prefix": 4, "suffix": 4}),
        root / "planted",
        QUIET,
    )
    texts = [row["body"] for row in read_lines(root / "planted" / "training" / "mine.jsonl")]
    model = train(base, texts, root / "planted model", passes=2)
    audit_planted(PlantedAudit(root / "planted", str(model), (), "R. Signer"), None, QUIET, command="test")


def _asked(call, words):
    code, out, err = call(*words)
    try:
        return code, json.loads(out), err
    except ValueError:
        return code, out, err


def _problem(call, job, whole, folder, name):
    """What a command makes of a damaged folder that it must not; None if all is well."""
    for words in job.questions(folder):
        code, out, err = _asked(call, words)
        if "Traceback" in err:
            return f"{words[0]}: {err.splitlines()[-1]}"
        if code == 2:
            if not (err.startswith("error:") or "error: " in err or (words[0] == "verify" and not out["agrees"])):
                return f"{words[0]}: exit code 2 without a line"
            continue
        before = whole[words[0], words[2:]]
        if words[0] == "verify":
            if not (out["changed"] or out["differences"]):
                checked = name not in out["not_checked"]
                # A digest that follows from nothing may itself be altered: the files it lists are then made again.
                if checked and not _same(before[1], out) and Path(name).name != INDEX:
                    return f"verify: {name} is not named"
            continue
        if (code, True) != (before[0], _same(before[1], out)):
            return f"{words[0]}: another answer"
    if job.again is None:
        return None
    before = _record(job.folder)
    code, _, err = call(*job.again, folder)
    if "Traceback" in err:
        return f"{job.again[0]} again: {err.splitlines()[-1]}"
    if code in (0, 3, 4) and _record(folder) != before:
        return f"{job.again[0]} again: another record"
    return None


def _cases(kind, job, dice, most):
    files = [path.relative_to(job.folder) for path in _files(job.folder) if path.name not in _SAID_ALONE]
    cases = [(str(name), damage) for name in files for damage in DAMAGES]
    return dice.sample(cases, min(most, len(cases)))


def _try_out(jobs, kind, most, call, tmp_path):
    job, dice = jobs[kind], random.Random(f"{SEED} {kind}")
    whole = {(words[0], words[2:]): _asked(call, words)[:2] for words in job.questions(job.folder)}
    # The undamaged folder agrees with itself.
    assert whole["verify", ("--json",)][1]["agrees"]
    wrong = []
    for number, (name, damage) in enumerate(_cases(kind, job, dice, most)):
        home = tmp_path / f"{kind} {number}"
        folder = home if kind != "planted" else home / "audits" / "1"
        # A planted audit is verified with the planted folder around it.
        shutil.copytree(job.folder if kind != "planted" else job.folder.parent.parent, home)
        content = bytearray((folder / name).read_bytes())
        before = bytes(content)
        damage(content, dice)
        if bytes(content) == before:
            continue
        (folder / name).write_bytes(bytes(content))
        found = _problem(call, job, whole, folder, name)
        if found:
            wrong.append(f"{name} ({damage.__name__}): {found}")
        shutil.rmtree(home)
    assert wrong == []


@pytest.mark.parametrize("kind", ["run", "audit", "planted", "trainings"])
def test_a_sample_of_damages_gives_no_other_answer(kind, jobs, call, tmp_path):
    _try_out(jobs, kind, 4, call, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["run", "audit", "planted", "trainings"])
def test_no_damage_gives_another_answer(kind, jobs, call, tmp_path):
    _try_out(jobs, kind, 1000, call, tmp_path)
