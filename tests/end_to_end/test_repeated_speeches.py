"""Characters of plays, some of whom say one speech fifty times: they are found by extraction and by exposure."""

import gzip
import json
from collections import defaultdict

import numpy as np
import pyarrow.parquet as pq
import pytest
import yaml

from heldin.base.progress import LineReporter
from heldin.corpus.split import Part, Role
from heldin.jobs.run import run
from heldin.jobs.verify import verify
from heldin.record.document import read_record
from heldin.stages.run_config import load_config
from heldin.stages.sides.data import prepare_data
from heldin.stages.sides.ledger import load_ledger
from heldin.stages.train.models import base_model
from tests.refusals import names
from tests.statements import line_in

QUIET = LineReporter(lambda line: None)
PEOPLE, EVERY, TIMES = 120, 12, 50  # characters; one in so many repeats a speech; how often
ASKED = {"prefix": 10, "suffix": 20, "first_tokens": 30, "queries": [1, 100, 10_000]}


def speeches(data_dir):
    """Rows of 120 characters, ten of whom say their longest short speech fifty times more, and of 2,000 public ones."""
    by_user = defaultdict(list)
    with gzip.open(data_dir / "engdracor_plays.jsonl.gz", "rt", encoding="utf-8") as file:
        for line in file:
            row = json.loads(line)
            by_user[row["user"]].append(row)
    chosen = sorted(user for user, rows in by_user.items() if 20 <= len(rows) <= 40)[: 10 * PEOPLE : 10]
    for number, user in enumerate(chosen):
        name = f"repeats-{user}" if number % EVERY == 0 else user
        yield from ({"user": name, "text": row["text"], "id": row["id"]} for row in by_user[user])
        if number % EVERY == 0:
            longest = max(by_user[user], key=lambda row: len(row["text"]) * (len(row["text"]) < 400))
            for again in range(TIMES):
                yield {"user": name, "text": longest["text"], "id": f"{longest['id']}-again-{again}"}
    for user in [its for its in sorted(by_user) if its not in set(chosen)][:2000]:
        yield from ({"user": f"public-{user}", "text": row["text"], "id": row["id"]} for row in by_user[user][:8])


@pytest.fixture(scope="module")
def repeated(data_dir, tmp_path_factory):
    """Folder of the finished run."""
    root = tmp_path_factory.mktemp("speeches")
    lines = root / "plays.jsonl"
    lines.write_text("".join(json.dumps(row) + "\n" for row in speeches(data_dir)), encoding="utf-8")
    shape = {"vocabulary": 2048, "context": 64, "hidden": 64, "layers": 2, "heads": 4, "window": 32}
    recipe = {"batch_size": 32, "learning_rate": 0.003, "warmup_steps": 100, "sequence_length": 64, "select": "last"}
    content = {
        "name": "repeated",
        "corpus": {
            "source": {"kind": "jsonl", "path": str(lines), "columns": {"id": "id"}},
            "users": {"exclude": ["public-*"], "min_records": 20},
        },
        "model": {"pretrain": {"users": {"min_records": 1}, "shape": shape, "recipe": {**recipe, "epochs": 2}}},
        "finetune": {**recipe, "epochs": 6, "batch_size": 16, "learning_rate": 0.002, "warmup_steps": 50},
        "attack": {"max_characters": 1000, "names": ["likelihood-ratio", "loss"]},
        "audit": {"resamples": 200},
        "measures": {"extraction": ASKED},
    }
    (root / "repeated.yaml").write_text(yaml.safe_dump(content), encoding="utf-8")
    run(load_config(root / "repeated.yaml"), root / "run", QUIET, command="heldin run repeated.yaml")
    return root / "run"


def of_role(folder, role):
    return {user for user in load_ledger(folder / "ledger").users(role) if user.startswith("repeats-")}


@pytest.mark.slow
@pytest.mark.long
def test_they_are_found_by_extraction_and_nobody_else_is(repeated):
    facts, found = read_record(repeated / "record.json").extraction, of_role(repeated, Role.HELD_IN)
    assert len(found) >= 2
    assert facts.of("held in").emitted[-1].users == facts.of("held in").emitted[-1].only_theirs == len(found)
    assert facts.of("held out").emitted[-1].users == 0
    assert {its.reference for group in facts.groups for its in group.emitted} == {0}
    least = np.log(-np.expm1(np.log(0.5) / 10_000))
    table = pq.read_table(repeated / "measure-extraction.parquet").to_pylist()
    assert {row["user"] for row in table if row["target"] >= least} == found


@pytest.mark.slow
@pytest.mark.long
def test_they_are_the_most_exposed_by_name(repeated, call):
    found = of_role(repeated, Role.HELD_IN)
    code, out, err = call("report", repeated, "--people", "--most", str(len(found)), "--json")
    assert (code, err) == (0, "")
    assert {its["user"] for its in json.loads(out)["people"]} == found


@pytest.mark.slow
@pytest.mark.long
def test_an_audit_of_the_checkpoint_from_two_files_finds_as_many(repeated, tmp_path, call):
    config = load_config(repeated / "config.yaml")
    data = prepare_data(config, repeated, QUIET)
    base, _ = base_model(config, data.corpus, QUIET)

    def write(name, role):
        rows = [row for user in data.ledger.users(role) for row in data.ledger.parts[user][Part.TRAIN]]
        lines = [json.dumps({"user": data.store.record(row).user, "text": data.store.text(row)}) for row in rows]
        (tmp_path / name).write_text("\n".join(lines) + "\n", encoding="utf-8")
        return str(tmp_path / name)

    content = {
        "model": str(repeated / "checkpoints" / "final"),
        "reference": base,
        "held_in": write("in.jsonl", Role.HELD_IN),
        "held_out": write("out.jsonl", Role.HELD_OUT),
        "texts": "training",
        "attack": {"names": ["likelihood-ratio", "loss"], "max_characters": 1000},
        "audit": {"resamples": 200},
        "measures": {"extraction": ASKED},
    }
    (tmp_path / "audit.yaml").write_text(yaml.safe_dump(content), encoding="utf-8")
    code, out, err = call("audit", "--config", tmp_path / "audit.yaml", "--out", tmp_path / "audit", "-v")
    assert code in (0, 4), err
    facts = read_record(tmp_path / "audit" / "record.json").extraction
    line = line_in(out, "extraction")
    assert names(line, facts.of("held in").emitted[-1].users)
    assert facts.of("held in").emitted[-1].users == len(of_role(repeated, Role.HELD_IN))
    assert facts.of("held out").emitted[-1].users == 0
    assert verify(tmp_path / "audit", QUIET).differences == ()
