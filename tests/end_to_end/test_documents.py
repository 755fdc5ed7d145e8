"""Runs and audits of texts of which parts count, by a column of spans: from the file to the record."""

import json

import numpy as np
import pytest
import yaml

from heldin.base.progress import LineReporter
from heldin.corpus.made_up.synthetic import SyntheticCorpus, generate
from heldin.corpus.split import Part, Role
from heldin.jobs.run import run as perform
from heldin.models.opening import load_language_model
from heldin.record.document import read_record
from heldin.reports.record_report import list_facts
from heldin.stages.measures.tables import read_scores
from heldin.stages.run_config import load_config
from heldin.stages.sides.data import prepare_data
from heldin.words.split import ScoredPart
from tests.conftest import SMALL
from tests.refusals import lacks

LENGTH = 14  # tokens that training predicts of a record: of some, none of those that count


def _rows():
    """A question and an answer; every fifth question of a user is answered as the first was."""
    first: dict[str, str] = {}
    for number, record in enumerate(generate(SyntheticCorpus(users=60, mean_records=9, min_records=8, seed=3))):
        asked = f"Question {number}: {' '.join(record.text.split()[: 1 + number % 7])} "
        answer = first.setdefault(record.user, record.text) if number % 5 == 0 else record.text
        text = asked + answer
        yield {"user": record.user, "id": record.id, "text": text, "spans": [[len(asked), len(text)]]}


@pytest.fixture(scope="module")
def run(make_once):
    """The folder of a finished run, what it said, and its rows by id."""
    rows = {row["id"]: row for row in _rows()}

    def build(folder):
        lines = "".join(json.dumps(row) + "\n" for row in rows.values())
        (folder / "chats.jsonl").write_text(lines, encoding="utf-8")
        config = json.loads(json.dumps(SMALL))
        columns = {"id": "id", "spans": "spans"}
        config["corpus"]["source"] = {"kind": "jsonl", "path": str(folder / "chats.jsonl"), "columns": columns}
        config["corpus"]["users"] = {"min_records": 8, "fraction": 0.5}
        config["finetune"] |= {"sequence_length": LENGTH, "epochs": 1, "select": "last"}
        config["data_defenses"] = [{"kind": "deduplicate"}]
        config["audit"] = {"resamples": 100, "validation_texts": 20}
        (folder / "run.yaml").write_text(yaml.safe_dump(config), encoding="utf-8")
        said: list[str] = []
        perform(load_config(folder / "run.yaml"), folder / "run", LineReporter(said.append), command="heldin run")
        (folder / "said.txt").write_text("\n".join(said), encoding="utf-8")

    folder = make_once("documents", build)
    return folder / "run", (folder / "said.txt").read_text(encoding="utf-8"), rows


def _counted(tokenizer, row, most=None):
    """Whether each token of a row shares a character with the answer, before what is cut."""
    places = tokenizer(row["text"], add_special_tokens=False, return_offsets_mapping=True)["offset_mapping"]
    return [end > row["spans"][0][0] for _, end in places][:most]


def test_training_counts_the_loss_of_answers_and_the_records_that_have_none_in_its_length(run):
    folder, err, rows = run
    record = read_record(folder / "record.json")
    tokenizer = load_language_model(str(folder / "checkpoints" / "final")).tokenizer
    data = prepare_data(load_config(folder / "config.yaml"), folder, LineReporter(lambda line: None))
    trained = [rows[data.store.id(row)] for row in data.training_rows.tolist()]
    empty = sum(not any(_counted(tokenizer, row, LENGTH)) for row in trained)
    assert 0 < empty < len(trained)
    assert (record.training.uncounted, record.training.records) == (empty, len(trained))
    assert record.scoring_rule.values["tokens"].values["part"] == ScoredPart.SPANS(column="spans")
    assert any(not lacks(line, empty, len(trained), "finetune.sequence_length") for line in err.splitlines())
    assert any(str(empty) in value for name, value in list_facts(record).pairs if name == "without a counted token")


def test_copies_and_overlaps_are_those_of_answers(run):
    folder, _, rows = run
    record = read_record(folder / "record.json")
    data = prepare_data(load_config(folder / "config.yaml"), folder, LineReporter(lambda line: None))
    parts = data.ledger.parts
    held_in = data.ledger.users(Role.HELD_IN)

    def answers(user, part):
        return [
            rows[data.store.id(row)]["text"][rows[data.store.id(row)]["spans"][0][0] :] for row in parts[user][part]
        ]

    copies = sum(len(its) - len(set(its)) for its in (answers(user, Part.TRAIN) for user in held_in))
    assert record.training.removals[0].removed == copies > 0
    own = sum(answer in set(answers(user, Part.TRAIN)) for user in held_in for answer in answers(user, Part.ATTACKER))
    assert record.split.overlaps.scored_texts_in_same_users_training.count == own > 0


def test_attacks_score_answers_and_verify_agrees(run, call):
    folder, _, rows = run
    config = load_config(folder / "config.yaml")
    data = prepare_data(config, folder, LineReporter(lambda line: None))
    lm = load_language_model(str(folder / "checkpoints" / "final"))
    found = {(s.user, s.text): s.value for s in read_scores(folder) if s.attack == "loss" and s.dial is None}
    from heldin.models.logprobs import score_texts

    for user in data.ledger.scored_users()[:5]:
        for number, place in enumerate(data.ledger.parts[user][Part.ATTACKER]):
            row = rows[data.store.id(place)]
            cut = {**row, "text": row["text"][: config.attack.max_characters]}
            (scores,) = score_texts(lm, [cut["text"]])
            expected = scores.logprobs[np.array(_counted(lm.tokenizer, cut))].mean(dtype=np.float64)
            assert found[user, number] == pytest.approx(expected, abs=1e-5)
    code, out, _ = call("verify", folder)
    assert code == 0, out


def test_an_audit_of_two_files_scores_answers_and_refuses_a_text_without_one(run, call, tmp_path):
    folder, _, rows = run
    data = prepare_data(load_config(folder / "config.yaml"), folder, LineReporter(lambda line: None))
    ledger, files = data.ledger, {}
    for name, role in (("held-in", Role.HELD_IN), ("held-out", Role.HELD_OUT)):
        some = list(ledger.users(role))[:10]
        files[name] = [rows[data.store.id(row)] for user in some for row in ledger.parts[user][Part.ATTACKER]]
    files["training"] = [rows[data.store.id(row)] for row in data.training_rows.tolist()]

    def audit(out):
        for name, its in files.items():
            (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in its), encoding="utf-8")
        target = folder / "checkpoints" / "final"
        paths = ["--held-in", tmp_path / "held-in.jsonl", "--held-out", tmp_path / "held-out.jsonl"]
        models = ["--model", target, "--reference", tmp_path / "base"]
        columns = ["--set", "columns.spans=spans", "--set", "columns.id=id", "--training", tmp_path / "training.jsonl"]
        return call("audit", *models, *paths, *columns, "--out", tmp_path / out)

    from tests.planted_sets import save_base

    save_base(load_language_model(str(folder / "checkpoints" / "final")), tmp_path / "base")
    from safetensors.torch import load_file, save_file

    weights = tmp_path / "base" / "model.safetensors"
    save_file({name: tensor * 1.01 for name, tensor in load_file(weights).items()}, weights, {"format": "pt"})
    code, _, err = audit("audit")
    assert code in (0, 3, 4), err
    record = read_record(tmp_path / "audit" / "record.json")
    trained = {row["text"][row["spans"][0][0] :] for row in files["training"]}
    there = sum(row["text"][row["spans"][0][0] :] in trained for row in files["held-in"])
    assert record.split.training_file.texts_there == there > 0
    assert record.scoring_rule.values["tokens"].values["part"] == ScoredPart.SPANS(column="spans")
    whole = {row["text"] for row in files["training"]}
    assert sum(row["text"] in whole for row in files["held-in"]) == 0
    files["held-out"][3] = {**files["held-out"][3], "spans": []}
    code, _, err = audit("refused")
    assert code == 2
    assert not lacks(err, "nothing to score", "attack.max_characters")


def test_a_run_whose_texts_cannot_be_scored_stops_before_training(run, call, tmp_path):
    folder, _, rows = run
    config = yaml.safe_load((folder / "config.yaml").read_text(encoding="utf-8"))
    none = [{**row, "spans": []} for row in rows.values()]
    (tmp_path / "none.jsonl").write_text("".join(json.dumps(row) + "\n" for row in none), encoding="utf-8")
    config["corpus"]["source"]["path"] = str(tmp_path / "none.jsonl")
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(config), encoding="utf-8")
    code, _, err = call("run", tmp_path / "run.yaml", "--out", tmp_path / "run")
    assert code == 2
    assert not lacks(err, "nothing to score")
    assert not (tmp_path / "run" / "checkpoints").exists()
