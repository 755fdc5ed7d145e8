"""Canary users of real rows, rows that are left out for the control, dropped columns, and what is measured first."""

import json
from collections import Counter

import numpy as np
import pytest
import yaml

import heldin
from heldin.base.files import file_sha256
from heldin.base.progress import LineReporter
from heldin.corpus.split import Part, Role
from heldin.jobs.verify import verify
from heldin.models.opening import load_language_model
from heldin.planting import audit
from heldin.planting.check_plan import check_plan
from heldin.planting.control import ControlSample, read_unseen
from heldin.planting.plant import plant
from heldin.planting.plant_data import control_rows, drawn_data, taken_rows
from heldin.planting.plant_folder import read_form, read_planted
from tests.planted_sets import base, lines, made_rows, plan, read_lines, rows, train, write_lines
from tests.refusals import names, refused

__all__ = ["base", "lines", "rows"]  # fixtures

QUIET = LineReporter(lambda line: None)
REAL = [{"kind": "real_rows", "users": 12, "documents": [1, 3]}]
ALONE = {"canaries_only": True, "control_rows": 30}


def _planted(config, out):
    manifest = plant(config, out, QUIET)
    return drawn_data(config, manifest, out, QUIET, load_language_model(config.reference))


def test_real_rows_are_trained_on_exactly_where_their_canary_user_is_held_in(rows, lines, base, tmp_path):
    config = plan(lines, base, canaries=REAL, split=ALONE)
    data = _planted(config, tmp_path / "out")
    written = {row["body"]: row for row in read_lines(tmp_path / "out" / "training" / "mine.jsonl")}
    original = {row["body"]: row for row in rows}
    assert len(data.canaries) == 24
    for user, canary in data.canaries.items():
        parts = data.ledger.parts[user]
        assert len(parts[Part.TRAIN]) == canary.documents
        for part in Part:
            for row in parts[part]:
                text = data.store.text(row)
                is_in = data.ledger.roles[user] is Role.HELD_IN and part is Part.TRAIN
                assert (text in written) is is_in
                if is_in:  # all other columns are those of the row itself, and the user is a new one
                    same = {name: written[text][name] for name in ("body", "sent", "tags", "kind")}
                    assert same == {name: original[text][name] for name in same}
    # One real user lends all rows of a canary user, and keeps some.
    lenders = [{data.corpus.store.record(row).user for row in _taken(data, user)} for user in data.canaries]
    assert all(len(lender) == 1 for lender in lenders)
    assert len({lender.pop() for lender in lenders}) == 24
    left_out = set(taken_rows(data)) | set(control_rows(config, data))
    assert len(written) == len(rows) - len(left_out) + sum(
        canary.documents for user, canary in data.canaries.items() if data.ledger.roles[user] is Role.HELD_IN
    )
    assert read_form(tmp_path / "out").auroc == pytest.approx(0.5, abs=0.2)


def _taken(data, user):
    return [data.store.lent[row] for row in data.store.rows(user)]


def test_real_rows_come_from_users_who_are_not_audited(lines, base, tmp_path):
    data = _planted(plan(lines, base, canaries=REAL[:1], split={"audit_fraction": 0.3}), tmp_path / "out")
    audited = set(data.real(data.ledger.scored_users()))
    assert audited
    assert not audited & {data.corpus.store.record(row).user for row in taken_rows(data)}
    with refused(by="real_row_users"):
        plant(plan(lines, base, canaries=REAL), tmp_path / "all", QUIET)


def test_made_up_canary_users_are_easily_told_by_text_and_real_rows_are_not(lines, base, tmp_path):
    made_up = [{"kind": "unseen_token", "users": 24, "documents": [2]}]
    areas = []
    for name, canaries in (("made up", made_up), ("real", REAL)):
        _planted(plan(lines, base, canaries=canaries, split=ALONE), tmp_path / name)
        areas.append(read_form(tmp_path / name).auroc)
    assert areas[0] > 0.9
    assert areas[1] < 0.7


def test_real_rows_without_a_column_of_users_are_taken_from_all(rows, base, tmp_path):
    nobodys = write_lines([{"body": row["body"]} for row in rows], tmp_path / "mine.jsonl")
    config = plan(nobodys, base, columns={"user": None, "text": "body"}, canaries=REAL, split=ALONE)
    data = _planted(config, tmp_path / "out")
    assert len(taken_rows(data)) == len(set(taken_rows(data))) == sum(len(data.store.rows(u)) for u in data.canaries)


def test_rows_for_the_control_are_left_out_at_random_and_no_user_loses_all(lines, base, tmp_path):
    config = plan(lines, base, split={"canaries_only": True, "control_rows": 40})
    data = _planted(config, tmp_path / "out")
    left_out = control_rows(config, data)
    assert len(left_out) == 40
    written = {row["body"] for row in read_lines(tmp_path / "out" / "training" / "mine.jsonl")}
    assert not written & set(data.corpus.store.texts_at(np.array(left_out)))
    assert set(data.corpus.store.users) == {
        data.corpus.store.record(row).user for row in data.training_rows if row < len(data.corpus.store)
    }
    sample = ControlSample(data, frozenset(), ())
    assert (len(sample.untrained), len(sample.trained)) == (40, 440)
    assert {document.text for document in sample.untrained}.isdisjoint(written)


def test_unseen_rows_stand_for_those_left_out(lines, rows, base, tmp_path):
    others = write_lines([*made_rows(users=10, records=6, seed=5), rows[0]], tmp_path / "test.jsonl")
    config = plan(lines, base, split={"canaries_only": True}, unseen=str(others))
    manifest = plant(config, tmp_path / "out", QUIET)
    data = drawn_data(config, manifest, tmp_path / "out", QUIET, load_language_model(config.reference))
    assert control_rows(config, data) == []
    ledger = tmp_path / "out" / "ledger"
    unseen = read_unseen(ledger, file_sha256(ledger / "unseen.json"))
    assert len(unseen) == 61
    # A text that is in the training set all the same is on neither side.
    assert len(ControlSample(data, frozenset(), unseen).untrained) == 60


def test_columns_that_are_dropped_are_in_no_row(lines, base, tmp_path):
    columns = {"user": "author", "text": "body", "id": "key", "date": "sent", "drop": ["tags", "kind"]}
    plant(plan(lines, base, columns=columns), tmp_path / "out", QUIET)
    written = read_lines(tmp_path / "out" / "training" / "mine.jsonl")
    assert all(row.keys() == {"author", "body", "key", "sent"} for row in written)
    with refused(by="PlantColumns._one_text", naming=("columns.drop", "'key'")):
        plan(lines, base, columns={**columns, "drop": ["key"]})


@pytest.mark.parametrize("ending", [".csv", ".parquet"])
def test_columns_are_dropped_of_typed_files_too(ending, rows, base, tmp_path):
    import pandas

    path = tmp_path / f"mine{ending}"
    table = pandas.DataFrame([{name: row[name] for name in ("author", "body", "key", "sent")} for row in rows])
    table["extra"] = "x"
    table.to_csv(path, index=False) if ending == ".csv" else table.to_parquet(path)
    columns = {"user": "author", "text": "body", "id": "key", "drop": ["extra"]}
    plant(plan(path, base, columns=columns), tmp_path / "out", QUIET)
    written = tmp_path / "out" / "training" / path.name
    kept = pandas.read_csv(written) if ending == ".csv" else pandas.read_parquet(written)
    assert list(kept.columns) == ["author", "body", "key", "sent"]
    with refused(by="TrainingSet.schema", naming=("'none'", "columns.drop")):
        plant(plan(path, base, columns={**columns, "drop": ["none"]}), tmp_path / "other", QUIET)


def test_the_primary_attack_is_one_that_length_does_not_drown(lines, base, tmp_path):
    attack = {"documents": ["training"], "max_characters": 200}
    said = []
    plant(plan(lines, base, attack=attack), tmp_path / "out", LineReporter(said.append))
    assert read_planted(tmp_path / "out")[0].attack.primary == "likelihood-ratio-per-token"
    assert any(line.startswith("attack: likelihood-ratio-per-token is the primary attack") for line in said)
    # The same call again has the same one, without measuring.
    said.clear()
    plant(plan(lines, base, attack=attack), tmp_path / "out", LineReporter(said.append))
    assert not any(line.startswith("attack:") for line in said)
    # One that is named is taken.
    plant(plan(lines, base, attack={**attack, "primary": "likelihood-ratio"}), tmp_path / "named", QUIET)
    assert read_planted(tmp_path / "named")[0].attack.primary == "likelihood-ratio"


def test_a_check_names_every_problem_at_once_and_writes_nothing(rows, base, tmp_path, call):
    broken = [{**row, "key": f"{row['author'][7:10]}-{i // 40 % 3}"} for i, row in enumerate(rows)]
    broken[3]["body"] = 5
    for row in broken:
        row["account"] = f"account {row['author']}"
    file = write_lines(broken, tmp_path / "mine.jsonl")
    content = plan(file, base).model_dump(mode="json", exclude={"attack"})
    (tmp_path / "plant.yaml").write_text(yaml.safe_dump(content), encoding="utf-8")
    code, out, _ = call("plant", tmp_path / "plant.yaml", "--check", "--json", "--out", tmp_path / "out")
    checked = json.loads(out)
    assert (code, checked["ok"], len(checked["problems"])) == (2, False, 3)
    bad, telling, repeated = checked["problems"]
    assert names(bad, "1", "mine.jsonl", "line 4")
    assert names(telling, "column 'account'", "drop: [account]")
    ids = Counter(row["key"] for row in broken)
    assert names(repeated, sum(count > 1 for count in ids.values()))
    assert not (tmp_path / "out").exists()
    good = plan(write_lines(rows, tmp_path / "mine.jsonl"), base)
    found = check_plan(good, QUIET)
    assert (found.problems, found.rows, found.audited, found.canaries) == ((), 480, 40, 8)
    assert any(line.startswith("power: ") for line in found.lines)


def _counted(monkeypatch, *names):
    """Count calls of functions by the audit of a planted set."""
    calls = Counter()

    def counting(name, function):
        def call(*arguments, **options):
            calls[name] += 1
            return function(*arguments, **options)

        monkeypatch.setattr(audit, name, call)

    for name in names:
        counting(name, getattr(audit, name))
    return calls


def test_plant_and_audit_from_python(lines, base, tmp_path, monkeypatch):
    content = plan(lines, base).model_dump(mode="json")
    planted = heldin.plant(content, out=tmp_path / "out", overrides=["looks=2"], quiet=True)
    texts = [row["body"] for row in read_lines(planted.training)]
    assert len(texts) == planted.rows
    model = train(base, texts, tmp_path / "model", passes=1)
    calls = _counted(monkeypatch, "read_planted", "audited_run")
    found = heldin.audit_planted(
        planted, model, claims=["epsilon=8,delta=1e-5,unit=user"], declared_by="R. Signer", quiet=True
    )
    assert calls == {"read_planted": 1, "audited_run": 1}
    verify(found.folder, QUIET)
    assert calls == {"read_planted": 2, "audited_run": 2}
    assert found.folder == tmp_path / "out" / "audits" / "1"
    assert (found.record.planted.looks, found.record.planted.declared_by) == (2, "R. Signer")
    with refused(by="checked", naming="evidence"):
        heldin.plant({key: value for key, value in content.items() if key != "evidence"}, out=tmp_path / "x")
