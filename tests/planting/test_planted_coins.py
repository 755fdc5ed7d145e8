"""What is planted against the coins: a coin changes its own user's rows alone, and form tells nobody apart."""

import json
import shutil
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import yaml
from sklearn.ensemble import GradientBoostingClassifier
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import GroupKFold, cross_val_predict

from heldin.base.errors import InputError
from heldin.base.progress import LineReporter
from heldin.canaries.form import LONGEST, Forms, formed
from heldin.corpus.split import Part, Role
from heldin.models.opening import load_language_model
from heldin.planting import plant as engine
from heldin.planting.beforehand import said_beforehand
from heldin.planting.plant import plant, planted_rows
from heldin.planting.plant_data import canary_forms, planted_data, rows_to_train_on
from heldin.planting.records import copied
from heldin.planting.training_set import training_set
from heldin.stages.sides.ledger import load_ledger
from tests.planted_sets import base, made_rows, plan, read_lines, write_lines
from tests.refusals import names, refused

__all__ = ["base"]  # fixtures

QUIET = LineReporter(lambda line: None)
MADE_UP = [
    {"kind": "unseen_token", "users": 12, "documents": [1, 4, 16]},
    {"kind": "rare_phrase", "users": 12, "documents": [1, 4, 16]},
]


def _again(config, out, base):
    lm = load_language_model(str(base))
    source = training_set(config, lm.tokenizer)
    return source, planted_data(config, out, QUIET, lm, source)


def _written_by_user(config, source, data, out):
    """By user the rows that are written, each with its place's key, whatever the order."""
    found = {}
    numbered = copied(out / "ledger").numbered
    for key, row in planted_rows(source, data, numbered=numbered, seed=0):
        found.setdefault(row["author"], set()).add((key, json.dumps(row)))
    return found


@pytest.mark.parametrize(
    ("split", "numbers"), [({}, False), ({}, True), ({"audit_fraction": 0.6}, False), ({"canaries_only": True}, True)]
)
def test_one_coin_changes_the_rows_of_its_own_user_and_no_other_byte(numbers, split, base, tmp_path):
    rows = [{**row, "key": i, "author": i % 40} if numbers else row for i, row in enumerate(made_rows(records=8))]
    # Some rows have no date at all.
    rows = [{name: its for name, its in row.items() if name != "sent" or i % 3} for i, row in enumerate(rows, start=1)]
    lines, out = write_lines(rows, tmp_path / "mine.jsonl"), tmp_path / "out"
    canaries = [
        {"kind": "substring", "lengths": [4], "users": 3},
        {"kind": "unseen_token", "users": 5, "documents": [1, 4]},
    ]
    config = plan(lines, base, canaries=canaries[1:] if "canaries_only" in split else canaries, split=split)
    plant(config, out, QUIET)
    source, data = _again(config, out, base)
    before = _written_by_user(config, source, data, out)
    assert sum(map(len, before.values())) == len(data.training_rows)
    scored = data.ledger.scored_users()
    flipped = [u for u in scored if u not in data.canaries][:3] + [u for u in scored if u in data.canaries]
    assert len(flipped) == (10 if "canaries_only" in split else 16)
    for user in flipped:
        was = data.ledger.roles[user]
        now = Role.HELD_OUT if was is Role.HELD_IN else Role.HELD_IN
        other = replace(data, ledger=replace(data.ledger, roles={**data.ledger.roles, user: now}))
        other = replace(other, training_rows=rows_to_train_on(config, other))
        after = _written_by_user(config, source, other, out)
        differing = {name for name in before | after if before.get(name) != after.get(name)}
        assert len(differing) == 1, user
        mine = (after if now is Role.HELD_IN else before)[differing.pop()]
        assert len(mine) == len(data.ledger.parts[user][Part.TRAIN])


def test_a_canary_row_takes_length_date_and_columns_of_one_row_that_is_never_written(base, tmp_path):
    rows = made_rows(users=60, records=30, seed=3)
    lines, out = write_lines(rows, tmp_path / "mine.jsonl"), tmp_path / "out"
    config = plan(lines, base, canaries=MADE_UP, split={"audit_fraction": 0.7})
    plant(config, out, QUIET)
    _, data = _again(config, out, base)
    forms, real = canary_forms(data), len(rows)
    assert not set(forms.values()) & {row for row in data.training_rows if row < real}
    written = read_lines(out / "training" / "mine.jsonl")
    # ``tags`` is another in each row: no two rows share it, canary rows included, while there are rows to lend.
    lent = Counter(forms[row] for row in data.training_rows if row >= real)
    tags = Counter(json.dumps(row["tags"]) for row in written)
    assert max(tags.values()) == max(lent.values())
    for row, like in forms.items():
        record, its = data.store.record(row), data.corpus.store.record(like)
        assert (len(record.text), record.date) == (min(max(len(its.text), 2), LONGEST), its.date)


class _Store:
    def __init__(self, counts):
        self._counts = counts

    def count(self, user):
        return self._counts[user]


def test_rows_are_lent_by_one_user_where_one_has_enough_and_twice_only_when_all_were():
    spare = {f"u{i}": list(range(10 * i, 10 * i + 2 + (i % 5))) for i in range(20)}
    forms = Forms(
        _Store(dict.fromkeys(spare, 30)), lambda replaced: {u: r for u, r in spare.items() if u not in replaced}, 7
    )
    found = forms.rows({"a": 6, "b": 1, "c": 4, "d": 9}, frozenset({"u4"}))
    taken = [row for rows in found.values() for row in rows]
    assert len(taken) == len(set(taken)) == 20
    assert not {40, 41} & set(taken)
    assert {len({row // 10 for row in found[name]}) for name in "abc"} == {1}
    # Seventy rows are there, and the next user has none left of its own.
    many = forms.rows({"x": 50, "y": 50}, frozenset())
    assert max(Counter(many["x"]).values()) == 1
    assert max(Counter([*many["x"], *many["y"]]).values()) == 2
    # Whoever has more rows comes sooner: of two users, in proportion.
    first = 0
    for seed in range(400):
        two = Forms(_Store({"small": 10, "large": 30}), lambda _: {"small": [1], "large": [2]}, seed)
        first += two.rows({"a": 1}, frozenset())["a"] == [2]
    assert abs(first - 300) < 5 * np.sqrt(400 * 0.75 * 0.25)


def _told(rows, marked, *, counts):
    """How well a classifier tells marked rows from others by form alone, cross-validated."""
    by_user, by_date = Counter(row["author"] for row in rows), Counter(row["sent"] for row in rows)
    folders = {}
    for row in rows:
        folders.setdefault(row["author"], set()).add(row["kind"]["folder"])
    tags = Counter(json.dumps(row["tags"]) for row in rows)
    form = np.array(
        [
            [
                i / len(rows),
                int(row["key"][:12], 16),
                int(row["sent"][5:7]),
                int(row["sent"][8:]),
                len(row["body"]),
                by_date[row["sent"]],
                tags[json.dumps(row["tags"])],
                int(row["tags"][1]),
                # What rows of one user have in common is seen only where there are several.
                *([by_user[row["author"]], len(folders[row["author"]])] if counts else []),
            ]
            for i, row in enumerate(rows)
        ],
        dtype=np.float64,
    )
    # Users whole, so that what rows of one user share tells nothing unless other users share it.
    folds, users = GroupKFold(5), [row["author"] for row in rows]
    trees = GradientBoostingClassifier(random_state=0)
    guess = cross_val_predict(trees, form, marked, groups=users, cv=folds, method="predict_proba")
    return roc_auc_score(marked, guess[:, 1])


def _limit(marked):
    """Five deviations of an AUROC at chance: under 1e-6 on one side."""
    n1, n0 = int(np.sum(marked)), int(np.sum(~marked))
    return 0.5 + 5 * np.sqrt((n1 + n0 + 1) / (12 * n1 * n0))


@pytest.mark.slow
def test_form_tells_neither_canary_rows_nor_audited_users(base, tmp_path, monkeypatch):
    # ``kind`` is one for a user, ``tags`` another for each row; enough rows are set aside to lend each once.
    rows = made_rows(users=150, records=60, seed=1)
    lines = write_lines(rows, tmp_path / "mine.jsonl")
    config = plan(lines, base, canaries=MADE_UP, split={"audit_fraction": 0.7})
    said = []
    plant(config, tmp_path / "out", LineReporter(said.append))
    written = read_lines(tmp_path / "out" / "training" / "mine.jsonl")
    texts = {row["body"]: row["author"] for row in rows}
    canary = np.array([row["body"] not in texts for row in written])
    assert canary.sum() > 150
    assert _told(written, canary, counts=False) < _limit(canary)
    audited = set(load_ledger(tmp_path / "out" / "ledger").scored_users())
    real = [row for row in written if row["body"] in texts]
    pool = np.array([texts[row["body"]] in audited for row in real])
    assert _told(real, pool, counts=False) < _limit(pool)
    # The number of a user's rows tells them, as it was asked for, and that is said beforehand.
    assert _told(written, canary, counts=True) > _limit(canary)
    assert any(line.startswith("form: no real user has 1 or 4 or 16 rows") for line in said)
    assert not any("lend" in line for line in said)

    # With lengths of their own the same test tells them.
    def of_own_length(user, rows, forms):
        made = formed(user, rows, forms)
        records = [
            replace(record, document=own.document) for record, own in zip(made.records, user.records, strict=False)
        ]
        return replace(made, records=records)

    monkeypatch.setattr("heldin.stages.sides.planting.formed", of_own_length)
    plant(config, tmp_path / "plain", QUIET)
    written = read_lines(tmp_path / "plain" / "training" / "mine.jsonl")
    canary = np.array([row["body"] not in texts for row in written])
    assert _told(written, canary, counts=False) > _limit(canary)


def test_what_form_tells_all_the_same_is_said_beforehand(base, tmp_path):
    lines = write_lines(made_rows(users=12, records=8), tmp_path / "mine.jsonl")
    config = plan(lines, base, canaries=MADE_UP)
    said = []
    plant(config, tmp_path / "out", LineReporter(said.append))
    lent = next(line for line in said if "lend" in line)
    source, data = _again(config, tmp_path / "out", base)
    assert lent in said_beforehand(config, data, source, 0, None)
    assert names(lent, 12 * 3, 24 * 21)


def _stopped(*_, **__):
    yield from []
    raise KeyboardInterrupt


def test_a_training_set_that_changed_since_the_coins_is_refused_and_before_them_it_is_read_again(
    base, tmp_path, monkeypatch
):
    rows, out = made_rows(), tmp_path / "out"
    # Two rows of one id: found after the records were copied, and before any coin.
    lines = write_lines([{**rows[0], "key": rows[1]["key"]}, *rows[1:]], tmp_path / "mine.jsonl")
    config = plan(lines, base)
    with refused(by="refuse_repeated_ids", naming=("1 record id", "2", "record 2")):
        plant(config, out, QUIET)
    write_lines(rows, lines)
    with monkeypatch.context() as patch:
        patch.setattr(engine, "planted_rows", _stopped)
        with pytest.raises(KeyboardInterrupt):
            plant(config, out, QUIET)
    write_lines([{**rows[0], "body": "something else entirely"}, *rows[1:]], lines)
    with refused(by="_copied_before", naming="mine.jsonl"):
        plant(config, out, QUIET)
    assert not (out / "manifest.json").exists()
    write_lines(rows, lines)
    plant(config, out, QUIET)
    assert {row["body"] for row in read_lines(out / "training" / "mine.jsonl")} & {row["body"] for row in rows}


def test_a_training_set_that_changes_while_it_is_read_is_refused(base, tmp_path, monkeypatch):
    rows, out = made_rows(), tmp_path / "out"
    lines = write_lines(rows, tmp_path / "mine.jsonl")

    def changed(source, data, *more, **named):
        yield from planted_rows(source, data, *more, **named)
        write_lines(rows[1:], lines)

    monkeypatch.setattr(engine, "planted_rows", changed)
    with refused(by="_write_training_set"):
        plant(plan(lines, base), out, QUIET)
    assert not (out / "training").exists()


def test_a_call_that_was_killed_before_its_hash_was_kept_goes_on(base, tmp_path, monkeypatch):
    config = plan(write_lines(made_rows(), tmp_path / "mine.jsonl"), base)
    stopped = 0
    for name in ("_write_seal", "write_text"):
        folder = tmp_path / name

        def killed(*_, **__):
            raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr(f"heldin.planting.plant_folder.{name}", killed)
            with pytest.raises(KeyboardInterrupt):
                plant(config, folder, QUIET)
        stopped += (folder / "ledger").is_dir()
        assert plant(config, folder, QUIET).rows > 0
    assert stopped == 2
    # A folder of something else with a config of its own is left as it is.
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.yaml").write_text("name: mine\n", encoding="utf-8")
    with pytest.raises(InputError):
        plant(config, tmp_path / "run", QUIET)
    assert (tmp_path / "run" / "config.yaml").read_text(encoding="utf-8") == "name: mine\n"
    # Nor is anything in a folder where somebody keeps the set and the plan.
    mine = tmp_path / "mine"
    (mine / "training").mkdir(parents=True)
    lines = write_lines(made_rows(), mine / "training" / "mine.jsonl")
    text = yaml.safe_dump(plan(lines, base).model_dump(mode="json"))
    (mine / "config.yaml").write_text(text, encoding="utf-8")
    for kept in (plan(lines, base), plan(tmp_path / "mine.jsonl", base)):
        with refused(by="_take_folder", naming="--out"):
            plant(kept, mine, QUIET)
    assert sorted(its.name for its in mine.iterdir()) == ["config.yaml", "training"]
    assert len(read_lines(lines)) == 480


def test_nobody_can_foretell_names_ids_or_order_without_the_key(base, tmp_path):
    rows = made_rows()
    config = plan(write_lines(rows, tmp_path / "mine.jsonl"), base, split={"audit_pool": 20})
    written = []
    for name in ("one", "two"):
        plant(config, tmp_path / name, QUIET)
        written.append(read_lines(tmp_path / name / "training" / "mine.jsonl"))
    one, two = written
    for column in ("author", "key"):
        assert not {row[column] for row in one} & {row[column] for row in two}
    both = {row["body"] for row in one} & {row["body"] for row in two}
    orders = [[row["body"] for row in its if row["body"] in both] for its in written]
    places = {text: i for i, text in enumerate(orders[1])}
    assert len(both) > 200
    assert abs(np.corrcoef(np.arange(len(both)), [places[text] for text in orders[0]])[0, 1]) < 5 / np.sqrt(len(both))


def test_a_call_that_goes_on_with_another_reference_is_refused(base, make_lm, tmp_path, monkeypatch):
    shutil.copytree(base, tmp_path / "base")
    config, out = plan(write_lines(made_rows(), tmp_path / "mine.jsonl"), tmp_path / "base"), tmp_path / "out"
    with monkeypatch.context() as patch:
        patch.setattr(engine, "planted_rows", _stopped)
        with pytest.raises(KeyboardInterrupt):
            plant(config, out, QUIET)
    make_lm(seed=4).model.save_pretrained(tmp_path / "base")
    with refused(by="require_models"):
        plant(config, out, QUIET)


def test_a_finished_folder_without_its_training_set_or_of_another_one_is_no_answer(base, tmp_path):
    lines, out = write_lines(made_rows(), tmp_path / "mine.jsonl"), tmp_path / "out"
    config = plan(lines, base)
    done = plant(config, out, QUIET)
    assert plant(config, out, QUIET) == done
    write_lines(made_rows(seed=5), lines)
    with refused(by="_take_folder", naming="mine.jsonl"):
        plant(config, out, QUIET)
    shutil.rmtree(out / "training")
    with refused(by="_take_folder", naming="training"):
        plant(config, out, QUIET)
