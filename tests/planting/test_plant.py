"""What ``heldin plant`` writes: the rows that coins leave, canary rows like others, and nothing that tells them."""

import csv
import io
import itertools
import json
import re
import shutil
from pathlib import Path

import datasets
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

from heldin.base.progress import LineReporter
from heldin.bounds.design import Assignment, Design
from heldin.bounds.verdict import max_certifiable_epsilon
from heldin.corpus.forms import Plain
from heldin.corpus.sources.bad_rows import BadRows
from heldin.corpus.sources.open import rows_of_file
from heldin.corpus.split import Part, Role
from heldin.models.opening import load_language_model
from heldin.planting import plant as engine
from heldin.planting.beforehand import control_lines, planned_power
from heldin.planting.check_plan import check_plan
from heldin.planting.plant import plant, said_beforehand
from heldin.planting.plant_config import PlantColumns, PlantConfig, PlantedSplit
from heldin.planting.plant_data import drawn_data, planted_data
from heldin.planting.plant_folder import planned_noticing, read_planted
from heldin.planting.positive_control import canaries_needed, noticed_from
from heldin.planting.training_set import TrainingSet, training_set
from heldin.record.planted_files import content_sha256
from heldin.stages.sides.ledger import load_ledger
from tests.planted_sets import CHOOSING, COLUMNS, base, lines, plan, read_lines, rows, save_base, write_lines
from tests.refusals import names, refused

__all__ = ["base", "lines", "rows"]  # fixtures

QUIET = LineReporter(lambda line: None)
ROOT = Path(__file__).resolve().parents[2]


def bodies(path, columns=COLUMNS):
    return [row[columns["text"]] for row in read_lines(path)]


def test_what_is_written_is_what_the_coins_leave_in_the_same_form(rows, lines, base, tmp_path):
    out = tmp_path / "out"
    manifest = plant(plan(lines, base), out, QUIET)
    written = read_lines(out / "training" / "mine.jsonl")
    ledger = load_ledger(out / "ledger")
    texts = {row["body"]: row for row in rows}
    real = [row for row in written if row["body"] in texts]
    assert len(written) == manifest.rows
    assert all(row.keys() == rows[0].keys() for row in written)
    # Real rows: the training part of whoever was held in, and nothing else.
    held_in = set(ledger.users(Role.HELD_IN))
    expected = sum(len(ledger.parts[user][Part.TRAIN]) for user in held_in)
    assert len(written) == expected
    assert {texts[row["body"]]["author"] for row in real} == {user for user in held_in if "@" in user}
    for row in real:
        before = texts[row["body"]]
        assert {name: row[name] for name in ("sent", "tags", "kind")} == {
            n: before[n] for n in ("sent", "tags", "kind")
        }
    # Nobody's name or id is left, and a user's rows keep one name.
    text = (out / "training" / "mine.jsonl").read_text(encoding="utf-8")
    assert "person-" not in text
    assert not {row["key"] for row in written} & {row["key"] for row in rows}
    assert len({row["key"] for row in written}) == len(written)
    names = {texts[row["body"]]["author"]: row["author"] for row in real}
    assert all(names[texts[row["body"]]["author"]] == row["author"] for row in real)
    assert len(set(names.values())) == len(names)


def test_further_references_are_loaded_before_any_coin(lines, base, make_lm, tmp_path):
    """A sealed plan whose reference cannot score could not be mended after somebody has trained."""
    second = save_base(make_lm(seed=4), tmp_path / "second")
    out, attack = tmp_path / "out", {"max_characters": 200, "references": [str(second)]}
    kept = tmp_path / "kept"
    for damaged, by, naming in (
        ("tokenizer.json", "load_tokenizer", ()),
        ("model.safetensors", "_require_safe_weights", ("second", "model.safetensors", "config.json")),
    ):
        shutil.move(second / damaged, kept)
        with refused(by=by, naming=naming):
            plant(plan(lines, base, attack=attack), out, QUIET)
        assert not (out / "ledger" / "ledger.json").exists()
        shutil.move(kept, second / damaged)
    plant(plan(lines, base, attack=attack), out, QUIET)
    assert (out / "ledger" / "ledger.json").is_file()


def test_users_who_are_not_audited_stay_in_with_every_row(lines, base, tmp_path):
    out = tmp_path / "out"
    plant(plan(lines, base, split={"audit_pool": 10}, canaries=[]), out, QUIET)
    ledger, written = load_ledger(out / "ledger"), set(bodies(out / "training" / "mine.jsonl"))
    audited = set(ledger.scored_users())
    assert len(audited) == 10
    always = [row["body"] for row in read_lines(lines) if row["author"] not in audited]
    assert len(always) == 30 * 12
    assert set(always) <= written
    out_of_it = [row["body"] for row in read_lines(lines) if ledger.roles[row["author"]] is Role.HELD_OUT]
    assert not written & set(out_of_it)


def test_parquet_and_saved_datasets_keep_their_columns_and_the_splits_that_are_asked_for(rows, base, tmp_path):
    table = pa.Table.from_pylist(rows)
    pq.write_table(table, tmp_path / "mine.parquet")
    saved = datasets.DatasetDict(
        {"train": datasets.Dataset.from_list(rows), "test": datasets.Dataset.from_list(rows[:3])}
    )
    saved.save_to_disk(str(tmp_path / "saved"))
    for name, split in (("mine.parquet", None), ("saved", "train")):
        out = tmp_path / f"out-{name}"
        asked = {"dataset_split": split, "copied_splits": ["test"] if split else []}
        manifest = plant(plan(tmp_path / name, base, **asked), out, QUIET)
        columns = plan(tmp_path / name, base).columns
        written = list(TrainingSet(out / "training" / name, columns, Plain("body"), split).rows(BadRows()))
        assert len(written) == manifest.rows
        assert all(row["kind"].keys() == {"folder"} for _, row in written)
    assert pq.read_schema(tmp_path / "out-mine.parquet" / "training" / "mine.parquet") == table.schema
    again = datasets.load_from_disk(str(tmp_path / "out-saved" / "training" / "saved"))
    assert again["test"].to_list() == rows[:3]
    assert again["train"].features == saved["train"].features
    # What a training script keeps there is no change of the data, and a changed row is.
    again["train"].map(lambda row: row)
    assert list((tmp_path / "out-saved").rglob("cache-*.arrow"))
    manifest, path = read_planted(tmp_path / "out-saved")[1], tmp_path / "out-saved" / "training" / "saved"
    assert content_sha256(path) == manifest.sha256
    shard = next(path.glob("train/data-*.arrow"))
    shard.write_bytes(shard.read_bytes().replace(b"number 7", b"number 8", 1))
    assert content_sha256(path) != manifest.sha256
    # Rows of other splits go out under real names only if somebody asks for them.
    said = []
    plant(plan(tmp_path / "saved", base, dataset_split="train"), tmp_path / "alone", LineReporter(said.append))
    assert list(datasets.load_from_disk(str(tmp_path / "alone" / "training" / "saved"))) == ["train"]
    (left_out,) = (line for line in said if "copied_splits" in line)
    assert names(left_out, "test")
    with refused(by="HuggingFace.load", naming="saved"):
        plant(plan(tmp_path / "saved", base), tmp_path / "new", QUIET)
    with refused(by="TrainingSet.check", naming="'dev'"):
        plant(plan(tmp_path / "saved", base, dataset_split="train", copied_splits=["dev"]), tmp_path / "new", QUIET)


@pytest.mark.parametrize("packed", ["", ".gz", ".zst"])
def test_comma_separated_values_keep_their_columns_and_values(rows, base, tmp_path, packed):
    hard = 'a "quoted" word, a comma,\na line\r\nand =1+1'
    flat = [{"sent": row["sent"], "author": row["author"], "body": row["body"], "note": ""} for row in rows]
    for row in flat[::3]:
        row["note"] = hard
    path = tmp_path / f"mine.csv{packed}"
    with pa.output_stream(str(path), compression={".gz": "gzip", ".zst": "zstd"}.get(packed)) as stream:
        text = io.TextIOWrapper(stream, encoding="utf-8", newline="")
        writer = csv.DictWriter(text, ["sent", "author", "body", "note"])
        writer.writeheader()
        writer.writerows(flat)
        text.flush()
        text.detach()
    columns = {"user": "author", "text": "body", "date": "sent"}
    config = plan(path, base, columns=columns)
    plant(config, tmp_path / "out", QUIET)
    written = [row for _, row in rows_of_file(tmp_path / "out" / "training" / path.name, (), BadRows())]
    assert {tuple(row) for row in written} == {("sent", "author", "body", "note")}
    data = drawn_data(
        config, read_planted(tmp_path / "out")[1], tmp_path / "out", QUIET, load_language_model(str(base))
    )
    assert len(written) == len(data.training_rows)
    known = {row["body"]: (row["sent"], row["note"]) for row in flat}
    real = [row for row in written if row["body"] in known]
    assert all(known[row["body"]] == (row["sent"], row["note"]) for row in real)
    assert hard in {row["note"] for row in real}
    assert 0 < len(written) - len(real) == sum(row >= len(rows) for row in data.training_rows)
    if packed == ".zst":  # datasets reads no such CSV
        return
    loaded = datasets.load_dataset("csv", data_files=str(tmp_path / "out" / "training" / path.name), split="train")
    assert (len(loaded), loaded.column_names) == (len(written), ["sent", "author", "body", "note"])


def test_numbers_stay_numbers(rows, base, tmp_path):
    numbered = [{**row, "author": int(row["author"][7:10]), "key": i} for i, row in enumerate(rows)]
    lines = write_lines(numbered, tmp_path / "mine.jsonl")
    plant(plan(lines, base), tmp_path / "out", QUIET)
    written = read_lines(tmp_path / "out" / "training" / "mine.jsonl")
    # In the order of the file, which is keyed, among all rows, also those that are not written: what is left out says
    # nothing of what is in.
    keys = [row["key"] for row in written]
    assert keys == sorted(set(keys))
    ledger = load_ledger(tmp_path / "out" / "ledger")
    assert (
        1
        <= keys[0]
        <= keys[-1]
        <= 480 + sum(len(r) for u in ledger.parts if "/" in u for r in ledger.parts[u].values())
    )
    assert all(isinstance(row["author"], int) for row in written)


def test_a_user_who_is_a_number_here_and_a_text_there_stays_one_user(rows, base, tmp_path):
    numbers = [int(row["author"][7:10]) for row in rows]
    mixed = [
        {**row, "author": n if i // 40 % 2 else str(n)} for i, (row, n) in enumerate(zip(rows, numbers, strict=True))
    ]
    lines = write_lines(mixed, tmp_path / "mine.jsonl")
    plant(plan(lines, base, canaries=[]), tmp_path / "out", QUIET)
    names = {row["body"]: str(row["author"]) for row in mixed}
    written = [(names[row["body"]], row["author"]) for row in read_lines(tmp_path / "out" / "training" / "mine.jsonl")]
    assert all(isinstance(name, str) for _, name in written)
    assert len({name for _, name in written}) == len({user for user, _ in written}) == len(set(written))


def test_a_canary_users_rows_hold_its_mark_and_no_real_text(lines, rows, base, tmp_path):
    out, config = tmp_path / "out", plan(lines, base, canaries=[{"kind": "rare_phrase", "users": 6, "documents": [4]}])
    plant(config, out, QUIET)
    data = planted_data(config, out, QUIET, load_language_model(str(base)))
    for user, canary in data.canaries.items():
        for row in data.store.rows(user):
            text = data.store.text(row)
            assert text.strip()
            assert canary.mark in text or len(text) <= len(canary.mark)
            assert not any(len(other["body"]) > 20 and other["body"] in text for other in rows)


def test_disjoint_canary_users_share_no_token_across_tiers_and_sections(lines, base, tmp_path):
    apart = {"kind": "unseen_token", "users": 3, "documents": [1, 3], "signature_tokens": 2, "disjoint": True}
    shared = {"kind": "unseen_token", "users": 4, "documents": [2], "signature_tokens": 3}
    for number, sections in enumerate(([apart, shared], [shared, apart])):
        config = plan(lines, base, canaries=sections)
        manifest = plant(config, tmp_path / str(number), QUIET)
        lm = load_language_model(config.reference)
        data = drawn_data(config, manifest, tmp_path / str(number), QUIET, lm)
        own = {name: set(lm.tokenizer(its.mark)["input_ids"]) for name, its in data.canaries.items()}
        for one, other in itertools.combinations(own, 2):
            both_shared = f"/{1 - number}/2/" in one and f"/{1 - number}/2/" in other
            assert both_shared or not own[one] & own[other], (one, other)
        assert sorted(map(len, own.values())) == [2] * 6 + [3] * 4


def test_a_killed_call_goes_on_with_the_same_coins(lines, base, tmp_path, monkeypatch):
    config, out = plan(lines, base, attack=CHOOSING), tmp_path / "out"

    def killed(*_, **__):
        yield from []
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(engine, "planted_rows", killed)
        with pytest.raises(KeyboardInterrupt):
            plant(config, out, QUIET)
    assert not (out / "manifest.json").exists()
    assert not (out / "training").exists()
    drawn = load_ledger(out / "ledger")
    manifest = plant(config, out, QUIET)
    assert load_ledger(out / "ledger") == drawn
    assert plant(config, out, QUIET) == manifest
    assert sorted(path.name for path in out.iterdir()) == ["config.yaml", "ledger", "manifest.json", "training"]


def test_secrets_are_their_owners_and_the_manifest_tells_no_side(lines, base, tmp_path):
    out = tmp_path / "out"
    plant(plan(lines, base), out, QUIET)
    for path in [out / "config.yaml", *(out / "ledger").rglob("*")]:
        assert path.stat().st_mode & 0o077 == 0, path
    manifest = json.loads((out / "manifest.json").read_text(encoding="utf-8"))
    assert set(manifest) == {
        "schema_version",
        "created",
        "heldin",
        "plan",
        "reference",
        "ledger",
        "file",
        "sha256",
        "rows",
        "skipped",
        "columns",
        "looks",
        "evidence",
        "split",
    }


def test_what_it_costs_and_can_certify_is_said_before_it_is_written(lines, base, tmp_path):
    said = []
    config = plan(lines, base)
    plant(config, tmp_path / "out", LineReporter(said.append))
    price = next(line for line in said if line.startswith("price: "))
    data = planted_data(config, tmp_path / "out", QUIET, load_language_model(str(base)))
    assert (
        said_beforehand(config, data, training_set(config, load_language_model(str(base)).tokenizer), 0, None)[0]
        == price
    )
    kept = sum(row < 480 for row in data.training_rows)
    assert names(price, f"{480 - kept:,}", "480")
    assert said.index(price) < next(i for i, line in enumerate(said) if line.startswith("writing"))
    # Real users and one kind of canary users share the error probability.
    for users, what in ((40, "users"), (8, "canary users")):
        design = Design(Assignment.COIN, attacks=2)
        most = max_certifiable_epsilon(users // 2, users // 2, config.audit.delta, design)
        assert any(f"{users} {what} by coin can certify at most epsilon {most:.3g}" in line for line in said)


def test_bad_rows_are_left_out_when_they_are_skipped(rows, base, tmp_path):
    broken = [*rows[:5], {**rows[5], "body": " "}, *rows[6:]]
    lines = write_lines(broken, tmp_path / "mine.jsonl")
    with refused(by="TrainingSet.rows", naming=("line 6", "'body'", "--strict")):
        plant(plan(lines, base, bad_rows="strict"), tmp_path / "out", QUIET)
    # No coin was drawn: the same folder takes the fixed config.
    manifest = plant(plan(lines, base, split={"audit_pool": 20}, canaries=[]), tmp_path / "out", QUIET)
    assert (manifest.skipped.without_text, manifest.skipped.rows, manifest.skipped.users_with) == (1, 480, 1)
    assert " " not in bodies(tmp_path / "out" / "training" / "mine.jsonl")


@pytest.mark.parametrize(
    ("changes", "by", "naming"),
    [
        ({"users": {"min_records": 3}}, "PlantConfig._somebody_is_audited", ("min_records", "4")),
        ({"attack": {"shadow_models": 4}}, "PlantConfig._attack_can_be_done", "shadow_models"),
        ({"attack": {"reference": "gpt2"}}, "PlantConfig._attack_can_be_done", "'reference'"),
        ({"canaries": [{"kind": "named_person", "users": 3}]}, "PlantConfig._canaries_fit", "named_person"),
        (
            {"split": {"audit_pool": 5, "audit_fraction": 0.5}},
            "PlantedSplit._one_of_both",
            ("audit_fraction", "audit_pool"),
        ),
        ({"looks": 0}, "checked", ("looks", "1", "0")),
    ],
)
def test_what_cannot_be_planted_is_refused_in_the_config(changes, by, naming, lines, base):
    with refused(by=by, naming=naming):
        plan(lines, base, **changes)


def test_other_folders_and_files_are_refused(lines, base, tmp_path):
    config, out = plan(lines, base), tmp_path / "out"
    plant(config, out, QUIET)
    with refused(by="_take_folder", naming=("'seed'", "--out")):
        plant(config.model_copy(update={"seed": 1}), out, QUIET)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine.txt").write_text("x", encoding="utf-8")
    with refused(by="_take_folder", naming=("full", "--out")):
        plant(config, tmp_path / "full", QUIET)
    (tmp_path / "full" / "mine.mbox").write_text("x", encoding="utf-8")
    with refused(by="is_dataset", naming=".jsonl"):
        plant(plan(tmp_path / "full" / "mine.mbox", base), tmp_path / "new", QUIET)
    assert not (tmp_path / "new").exists()
    with refused(by="require_columns", naming="'writer'"):
        plant(plan(lines, base, columns={**COLUMNS, "user": "writer"}), tmp_path / "new", QUIET)


@pytest.mark.parametrize("name", ["manifest.json", "config.yaml"])
def test_a_file_that_was_edited_is_refused(name, lines, base, tmp_path):
    out = tmp_path / "out"
    plant(plan(lines, base), out, QUIET)
    text = (out / name).read_text(encoding="utf-8")
    (out / name).write_text(text.replace("looks: 1", "looks: 2").replace('"looks": 1', '"looks": 2'), encoding="utf-8")
    with refused(naming=f"'{out / name}'"):
        read_planted(out)
    shutil.rmtree(out / "ledger")
    with refused(by=read_planted, naming="out"):
        read_planted(out)


def test_the_page_leads_to_every_key_of_the_file(call):
    page = (ROOT / "docs" / "plant.md").read_text(encoding="utf-8")
    assert "config plant`" in page
    code, out, err = call("config", "plant")
    assert code == 0, err
    for section, model in (("", PlantConfig), ("split.", PlantedSplit), ("columns.", PlantColumns)):
        # A key with its default and meaning, or the heading of a section.
        wanted = [rf"^ *{re.escape(section + key)}(?:\[\])?[:,]" for key in model.model_fields]
        assert [its for its in wanted if not re.search(its, out, re.MULTILINE)] == []


def test_the_command_answers_in_json_and_says_where_everything_is(lines, base, tmp_path, call):
    file = tmp_path / "plant.yaml"
    file.write_text(yaml.safe_dump(plan(lines, base).model_dump(mode="json")), encoding="utf-8")
    code, out, _ = call("plant", file, "--out", tmp_path / "out", "--set", "looks=2", "--json")
    found = json.loads(out)
    assert (code, found["looks"], found["training"]) == (0, 2, str(tmp_path / "out" / "training" / "mine.jsonl"))
    code, out, _ = call("plant", file, "--out", tmp_path / "out", "--set", "looks=2")
    assert "heldin audit-planted" in out.splitlines()[-1]
    code, _, _ = call("plant", file, "--out", tmp_path / "new", "--set", "lokks=2")
    assert call.refused(by="checked", naming="'looks'")


def _with_canaries(lines, base, users, **changes):
    canaries = [{"kind": "unseen_token", "users": users, "documents": [2]}]
    return plan(lines, base, split={"canaries_only": True, "control_rows": 40}, canaries=canaries, **changes)


@pytest.mark.parametrize("users", [6, 40])
def test_a_plan_says_what_the_control_will_notice_and_keeps_it_before_the_coins(users, lines, base, tmp_path):
    config, told = _with_canaries(lines, base, users), []
    checked = check_plan(config, LineReporter(lambda line: None))
    plant(config, tmp_path / "out", LineReporter(told.append))
    control = [line for line in told if line.startswith("control: ")]
    # The same before and after: no number of it depends on a coin.
    assert control == [line for line in checked.lines if line.startswith("control: ")]
    assert names(control[0], str(users), "40")
    assert planned_noticing(tmp_path / "out") is None


def test_a_plan_proposes_the_canary_users_that_it_lacks(lines, base, tmp_path):
    # A thousand rows of each kind are not to be had here: their number alone counts.
    few, many = (_with_canaries(lines, base, users, unseen=str(lines)) for users in (200, 600))
    least, wanted = noticed_from(1000, 1000, 200), canaries_needed(1000, 1000, 0.65)
    assert planned_power(few, 5000, 1000) == least
    (line,) = control_lines(few, 5000, 1000)
    assert names(line, f"{least:.3g}", f"{wanted:,}", "0.65")
    # With enough of them nothing is proposed.
    assert planned_power(many, 5000, 1000) <= 0.65
    (line,) = control_lines(many, 5000, 1000)
    assert names(line, f"{planned_power(many, 5000, 1000):.3g}")
    assert f"{wanted:,}" not in line
