"""What ``heldin plant`` writes: the rows that coins leave, canary rows like others, and nothing that tells them."""

import json
import shutil
from pathlib import Path

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from sklearn.ensemble import GradientBoostingClassifier
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import cross_val_predict

from heldin.base.errors import InputError
from heldin.base.progress import LineReporter
from heldin.corpus.sources.rows import BadRows
from heldin.corpus.split import Part, Role
from heldin.jobs.planted import plant as engine
from heldin.jobs.planted.config import PlantColumns, PlantConfig, PlantedSplit
from heldin.jobs.planted.data import planted_data
from heldin.jobs.planted.folder import read_planted
from heldin.jobs.planted.plant import plant, said_beforehand
from heldin.jobs.planted.row_text import Chat, Completion, Plain, row_text
from heldin.jobs.planted.training_set import TrainingSet
from heldin.jobs.run.ledger import load_ledger
from heldin.models.loading import load_language_model
from tests.planted_sets import COLUMNS, made_rows, plan, read_lines, save_base, write_lines

QUIET = LineReporter(lambda line: None)
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def base(make_lm, tmp_path_factory):
    return save_base(make_lm(), tmp_path_factory.mktemp("base"))


@pytest.fixture(scope="module")
def rows():
    return made_rows()


@pytest.fixture
def lines(rows, tmp_path):
    return write_lines(rows, tmp_path / "mine.jsonl")


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


def test_parquet_and_saved_datasets_keep_their_columns_and_other_splits(rows, base, tmp_path):
    table = pa.Table.from_pylist(rows)
    pq.write_table(table, tmp_path / "mine.parquet")
    saved = datasets.DatasetDict(
        {"train": datasets.Dataset.from_list(rows), "test": datasets.Dataset.from_list(rows[:3])}
    )
    saved.save_to_disk(str(tmp_path / "saved"))
    for name, split in (("mine.parquet", None), ("saved", "train")):
        out = tmp_path / f"out-{name}"
        manifest = plant(plan(tmp_path / name, base, dataset_split=split), out, QUIET)
        columns = plan(tmp_path / name, base).columns
        written = list(TrainingSet(out / "training" / name, columns, Plain("body"), split).rows(BadRows()))
        assert len(written) == manifest.rows
        assert all(row["kind"].keys() == {"folder"} for _, row in written)
    assert pq.read_schema(tmp_path / "out-mine.parquet" / "training" / "mine.parquet") == table.schema
    again = datasets.load_from_disk(str(tmp_path / "out-saved" / "training" / "saved"))
    assert again["test"].to_list() == rows[:3]
    assert again["train"].features == saved["train"].features


def test_numbers_stay_numbers(rows, base, tmp_path):
    numbered = [{**row, "author": int(row["author"][7:10]), "key": i} for i, row in enumerate(rows)]
    lines = write_lines(numbered, tmp_path / "mine.jsonl")
    plant(plan(lines, base), tmp_path / "out", QUIET)
    written = read_lines(tmp_path / "out" / "training" / "mine.jsonl")
    assert sorted(row["key"] for row in written) == list(range(1, len(written) + 1))
    # In the order of the file, which is keyed: a number says no more than the place does.
    assert [row["key"] for row in written] == list(range(1, len(written) + 1))
    assert all(isinstance(row["author"], int) for row in written)


def _told(rows, marked):
    """How well a classifier tells marked rows from others by form alone, cross-validated."""
    form = np.array(
        [
            [i / len(rows), int(row["key"][:12], 16), int(row["sent"][5:7]), int(row["sent"][8:]), len(row["body"])]
            for i, row in enumerate(rows)
        ],
        dtype=np.float64,
    )
    guess = cross_val_predict(GradientBoostingClassifier(random_state=0), form, marked, cv=5, method="predict_proba")
    return roc_auc_score(marked, guess[:, 1])


def _limit(marked):
    """Five deviations of an AUROC at chance: under 1e-6 on one side."""
    n1, n0 = int(np.sum(marked)), int(np.sum(~marked))
    return 0.5 + 5 * np.sqrt((n1 + n0 + 1) / (12 * n1 * n0))


def test_form_tells_neither_canary_rows_nor_audited_users(base, tmp_path, monkeypatch):
    rows = made_rows(users=120, records=16, seed=1)
    lines = write_lines(rows, tmp_path / "mine.jsonl")
    kinds = [
        {"kind": "unseen_token", "users": 12, "documents": [1, 4, 16]},
        {"kind": "rare_phrase", "users": 12, "documents": [1, 4, 16]},
    ]
    config = plan(lines, base, canaries=kinds, split={"audit_fraction": 0.5})
    plant(config, tmp_path / "out", QUIET)
    written = read_lines(tmp_path / "out" / "training" / "mine.jsonl")
    texts = {row["body"]: row["author"] for row in rows}
    canary = np.array([row["body"] not in texts for row in written])
    assert canary.sum() > 150
    assert _told(written, canary) < _limit(canary)
    audited = set(load_ledger(tmp_path / "out" / "ledger").scored_users())
    real = [row for row in written if row["body"] in texts]
    pool = np.array([texts[row["body"]] in audited for row in real])
    assert _told(real, pool) < _limit(pool)
    # With lengths of their own the same test tells them.
    monkeypatch.setattr(
        "heldin.jobs.run.planting.formed", lambda user, records, forms: type(user)(user.canary, user.records[:records])
    )
    plant(config, tmp_path / "plain", QUIET)
    written = read_lines(tmp_path / "plain" / "training" / "mine.jsonl")
    canary = np.array([row["body"] not in texts for row in written])
    assert _told(written, canary) > _limit(canary)


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


def test_a_killed_call_goes_on_with_the_same_coins(lines, base, tmp_path, monkeypatch):
    config, out = plan(lines, base), tmp_path / "out"

    def killed(source, data):
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
        "heldin_manifest",
        "created",
        "plan",
        "ledger",
        "file",
        "sha256",
        "rows",
        "columns",
        "looks",
    }


def test_what_it_costs_and_can_certify_is_said_before_it_is_written(lines, base, tmp_path):
    said = []
    config = plan(lines, base)
    plant(config, tmp_path / "out", LineReporter(said.append))
    price = next(line for line in said if line.startswith("price: "))
    data = planted_data(config, tmp_path / "out", QUIET, load_language_model(str(base)))
    assert said_beforehand(config, data)[0] == price
    kept = sum(row < 480 for row in data.training_rows)
    assert f"{480 - kept:,} of 480 rows are not trained on" in price
    assert said.index(price) < next(i for i, line in enumerate(said) if line.startswith("writing"))
    assert any("40 users by coin can certify" in line for line in said)


def test_bad_rows_are_left_out_when_they_are_skipped(rows, base, tmp_path):
    broken = [*rows[:5], {**rows[5], "body": " "}, *rows[6:]]
    lines = write_lines(broken, tmp_path / "mine.jsonl")
    with pytest.raises(InputError, match="line 6: empty text in column 'body'"):
        plant(plan(lines, base), tmp_path / "out", QUIET)
    # No coin was drawn: the same folder takes the mended config.
    plant(plan(lines, base, skip_bad_lines=True, split={"audit_pool": 20}, canaries=[]), tmp_path / "out", QUIET)
    assert " " not in bodies(tmp_path / "out" / "training" / "mine.jsonl")


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"users": {"min_records": 3}}, "at least 4"),
        ({"attack": {"shadow_models": 4}}, "heldin's own training"),
        ({"attack": {"reference": "gpt2"}}, "the key 'reference'"),
        ({"canaries": [{"kind": "named_person", "users": 3}]}, "audits of entities"),
        ({"split": {"audit_pool": 5, "audit_fraction": 0.5}}, "one of audit_fraction and audit_pool"),
        ({"looks": 0}, "greater than or equal to 1"),
    ],
)
def test_what_cannot_be_planted_is_refused_in_the_config(changes, said, lines, base):
    with pytest.raises(InputError, match=said):
        plan(lines, base, **changes)


def test_other_folders_and_files_are_refused(lines, base, tmp_path):
    config, out = plan(lines, base), tmp_path / "out"
    plant(config, out, QUIET)
    with pytest.raises(InputError, match=r"planted otherwise \('seed' differs\)"):
        plant(config.model_copy(update={"seed": 1}), out, QUIET)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine.txt").write_text("x", encoding="utf-8")
    with pytest.raises(InputError, match="is not empty and holds no planted training set"):
        plant(config, tmp_path / "full", QUIET)
    with pytest.raises(InputError, match="a training set is a file of JSON lines"):
        plant(plan(tmp_path / "full" / "mine.txt", base), tmp_path / "new", QUIET)
    assert not (tmp_path / "new").exists()
    with pytest.raises(InputError, match="no column 'writer'"):
        plant(plan(lines, base, columns={**COLUMNS, "user": "writer"}), tmp_path / "new", QUIET)


@pytest.mark.parametrize("name", ["manifest.json", "config.yaml"])
def test_a_file_that_was_edited_is_refused(name, lines, base, tmp_path):
    out = tmp_path / "out"
    plant(plan(lines, base), out, QUIET)
    text = (out / name).read_text(encoding="utf-8")
    (out / name).write_text(text.replace("looks: 1", "looks: 2").replace('"looks": 1', '"looks": 2'), encoding="utf-8")
    with pytest.raises(InputError, match=f"{name}' was changed after"):
        read_planted(out)
    shutil.rmtree(out / "ledger")
    with pytest.raises(InputError, match="holds no planted training set"):
        read_planted(out)


def test_the_page_names_every_key_of_the_file():
    page = (ROOT / "docs" / "other-trainings.md").read_text(encoding="utf-8")
    keys = [*PlantConfig.model_fields, *PlantedSplit.model_fields, *PlantColumns.model_fields]
    assert [key for key in keys if f"`{key}`" not in page] == []


def test_the_command_answers_in_json_and_says_where_everything_is(lines, base, tmp_path, call):
    file = tmp_path / "plant.yaml"
    file.write_text(yaml.safe_dump(plan(lines, base).model_dump(mode="json")), encoding="utf-8")
    code, out, _ = call("plant", file, "--out", tmp_path / "out", "--set", "looks=2", "--json")
    found = json.loads(out)
    assert (code, found["looks"], found["training"]) == (0, 2, str(tmp_path / "out" / "training" / "mine.jsonl"))
    code, out, _ = call("plant", file, "--out", tmp_path / "out", "--set", "looks=2")
    assert "heldin audit --planted" in out.splitlines()[-1]
    code, _, err = call("plant", file, "--out", tmp_path / "new", "--set", "lokks=2")
    assert (code, "did you mean 'looks'" in err) == (2, True)


TEMPLATE = "{% for m in messages %}{{ '<|' + m['role'] + '|>' + m['content'] + '\\n' }}{% endfor %}"


@pytest.fixture(scope="module")
def chat_base(make_lm, tmp_path_factory):
    lm = make_lm()
    lm.tokenizer.chat_template = TEMPLATE
    folder = save_base(lm, tmp_path_factory.mktemp("chat"))
    lm.tokenizer.chat_template = None
    return folder


def _without_body(row):
    return {name: its for name, its in row.items() if name != "body"}


def _asked(row):
    first, *rest = row["body"].split()
    return first, " ".join(rest)


def test_prompts_with_completions_keep_both_columns(rows, base, tmp_path):
    apart = [{**_without_body(row), "prompt": _asked(row)[0], "answer": " " + _asked(row)[1]} for row in rows]
    lines, columns = (
        write_lines(apart, tmp_path / "mine.jsonl"),
        {**COLUMNS, "prompt": "prompt", "completion": "answer"},
    )
    manifest = plant(plan(lines, base, columns=columns), tmp_path / "out", QUIET)
    named = {"user": "author", "prompt": "prompt", "completion": "answer", "id": "key", "date": "sent"}
    assert manifest.columns == named
    written = read_lines(tmp_path / "out" / "training" / "mine.jsonl")
    real = {row["body"] for row in rows}
    canaries = [row for row in written if row["prompt"] + row["answer"] not in real]
    assert all(row.keys() == apart[0].keys() for row in written)
    assert len(canaries) > 0
    assert all(row["prompt"] and row["answer"] for row in canaries)


def test_chat_messages_are_read_by_the_template_and_canary_users_chat_too(rows, chat_base, tmp_path):
    system = {"role": "system", "content": "Be brief."}
    talks = []
    for row in rows:
        asked, answered = _asked(row)
        turns = [{"role": "user", "content": asked}, {"role": "assistant", "content": answered}]
        talks.append({**_without_body(row), "messages": [system, *turns]})
    lines, columns = write_lines(talks, tmp_path / "mine.jsonl"), {**COLUMNS, "messages": "messages"}
    config, out = plan(lines, chat_base, columns=columns), tmp_path / "out"
    plant(config, out, QUIET)
    written = read_lines(out / "training" / "mine.jsonl")
    own = {row["messages"][1]["content"] for row in talks}
    assert all([m["role"] for m in row["messages"]] == ["system", "user", "assistant"] for row in written)
    assert all(row["messages"][0] == system for row in written)
    canaries = [row for row in written if row["messages"][1]["content"] not in own]
    assert len(canaries) > 0
    # What will be scored of a canary user is what the template makes of its rows.
    base = load_language_model(str(chat_base))
    data, chat = planted_data(config, out, QUIET, base), row_text(config.columns, base.tokenizer)
    held_in = {data.store.text(row) for row in data.training_rows if data.store.record(row).user in data.canaries}
    assert {chat.of(row) for row in canaries} == held_in
    assert all(text.startswith("<|system|>Be brief.\n<|user|>") for text in held_in)


@pytest.mark.parametrize(
    ("messages", "said"),
    [
        ([], "holds no list of messages"),
        ("hello", "holds no list of messages"),
        ([{"content": "x"}], "a message without a role"),
        ([{"role": "user", "content": None}], "a message without text content"),
    ],
)
def test_a_chat_row_that_cannot_be_read_is_named(messages, said, rows, chat_base, tmp_path):
    talks = [{"author": row["author"], "messages": [{"role": "user", "content": row["body"]}]} for row in rows]
    talks[6]["messages"] = messages
    lines = write_lines(talks, tmp_path / "mine.jsonl")
    columns = {"user": "author", "messages": "messages"}
    with pytest.raises(InputError, match=rf"mine.jsonl line 7: .*{said}"):
        plant(plan(lines, chat_base, columns=columns), tmp_path / "out", QUIET)
    plant(plan(lines, chat_base, columns=columns, skip_bad_lines=True), tmp_path / "out", QUIET)


def test_a_tokenizer_without_a_template_and_substrings_in_messages_are_refused(lines, base, tmp_path):
    columns = {**COLUMNS, "messages": "body"}
    with pytest.raises(InputError, match="the reference's tokenizer has no chat template"):
        plant(plan(lines, base, columns=columns), tmp_path / "out", QUIET)
    with pytest.raises(InputError, match="substring is for a column of text"):
        plan(lines, base, columns=columns, canaries=[{"kind": "substring", "lengths": [4], "users": 3}])
    with pytest.raises(InputError, match="prompt and completion go together"):
        plan(lines, base, columns={**COLUMNS, "prompt": "body"})


@pytest.mark.parametrize("text", ["ab", "a b", "one two three four", "nospaceinthisone", "x " * 9 + "y"])
def test_a_made_text_comes_back_from_the_row_that_it_was_put_into(text, make_lm):
    tokenizer = make_lm().tokenizer
    tokenizer.chat_template = TEMPLATE
    try:
        for form in (Plain("t"), Completion("p", "c"), Chat("m", tokenizer), Chat("m", tokenizer, "Be brief.")):
            made = form.made(text)
            assert form.of(form.put({"other": 1}, made)) == made
    finally:
        tokenizer.chat_template = None
