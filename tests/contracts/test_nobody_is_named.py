"""No error, log line or progress line names a person or quotes a text: a place, a number or a count in its place."""

import ast
import json
from pathlib import Path

import numpy as np
import pytest
import yaml

from heldin.attacks.protocol import TextStatistic, UserScores
from heldin.audit.scored_users import scored_users
from heldin.base.errors import InputError
from heldin.bounds.scores import LabelledScores, join
from heldin.corpus.entities.recognisers import Function
from heldin.corpus.entities.spans import Span, Text
from tests.refusals import names

ROOT = Path(__file__).resolve().parents[2]
PRODUCT = "api attacks audit base bounds canaries commands corpus defenses finetune jobs models record reports stages"
PRODUCT += " planting sweeps white_box words"
# Recognisable, and in no other text.
ANN, BOB, CAT = "ann.zaphodson@mail.example", "Bob Beeblebroxov", "cat-trillianova"
SECRET = "My secret garden is called Magrathea"
MADE_UP = ("zaphodson", "beeblebroxov", "trillianova", "magrathea")


def nobody_in(*outputs):
    for output in outputs:
        assert not [name for name in MADE_UP if name in output.lower()], output


def lines(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def rows(*users, **more):
    return [{"user": user, "text": f"{SECRET} {i}", **more} for user in users for i in range(3)]


SCORES = {
    "both groups": [(ANN, "0.5", "1"), (ANN, "0.7", "0")],
    "two scores": [(ANN, "0.5", "1"), (ANN, "0.7", "1")],
    "no membership": [(BOB, "0.5", "")],
    "no score": [(BOB, "", "1")],
    "another membership": [(BOB, "0.5", ANN)],
    "another score": [(BOB, ANN, "1")],
    "not a number": [(BOB, "nan", "1")],
    "infinite": [(BOB, "inf", "1")],
    "more fields": [(BOB, "0.5", "1", CAT)],
    "several lines": [(f"{BOB}\n{ANN}", "0.5", "1")],
}


@pytest.mark.parametrize("rows_of", SCORES.values(), ids=SCORES)
def test_a_file_of_scores_is_refused_by_row(rows_of, tmp_path, call):
    text = "".join(",".join(f'"{cell}"' if "\n" in cell else cell for cell in row) + "\n" for row in rows_of)
    (tmp_path / "scores.csv").write_text("user,score,member\n" + text, encoding="utf-8")
    code, out, err = call("bound", tmp_path / "scores.csv", "--assignment", "coin", "--delta", "1e-5")
    assert code == 2
    assert names(err, "scores.csv")
    nobody_in(out, err)


AUDITS = {
    "users in both files": (rows(ANN, BOB), rows(CAT, BOB), ("1 user", "record 4", "out.jsonl")),
    "ids in both files": (rows(ANN, BOB, id=None), rows(CAT, "dan"), ("6 ids", "record 1", "out.jsonl")),
    "a name that is no text": ([{"user": {"mail": ANN}, "text": SECRET}], rows(CAT, BOB), ("in.jsonl line 1",)),
    "a number as a name": ([{"user": 1.5, "text": SECRET}, *rows(ANN)], rows(CAT, BOB), ("in.jsonl line 1",)),
    "no text": ([{"user": ANN, "text": " "}], rows(CAT, BOB), ("in.jsonl line 1",)),
    "a list as text": ([{"user": ANN, "text": [SECRET]}], rows(CAT, BOB), ("in.jsonl line 1",)),
    "one user": (rows(ANN), rows(CAT, BOB), ("held-in",)),
    "another column": ([{"author": ANN, "text": SECRET}], rows(CAT, BOB), ("'user'", "author")),
}


@pytest.mark.parametrize(("held_in", "held_out", "naming"), AUDITS.values(), ids=AUDITS)
def test_an_audit_names_files_and_records(held_in, held_out, naming, finished, tmp_path, call):
    ids = held_in[0].get("id", "") is None
    if ids:
        held_in, held_out = (
            [{**row, "id": f"{ANN}-{i}"} for i, row in enumerate(side)] for side in (held_in, held_out)
        )
    files = lines(tmp_path / "in.jsonl", held_in), lines(tmp_path / "out.jsonl", held_out)
    model = finished / "checkpoints" / "final"
    options = ["--model", model, "--reference", model, "--held-in", files[0], "--held-out", files[1]]
    code, out, err = call(
        "audit",
        *options,
        *(["--set", "columns={user: user, text: text, id: id}"] if ids else []),
        "--out",
        tmp_path / "out",
    )
    assert code == 2
    assert names(err, *naming)
    nobody_in(out, err)


@pytest.mark.parametrize("header", [False, True])
def test_a_table_without_a_header_is_not_quoted(header, tmp_path, call):
    text = ("id,name\n" if header else "") + f"{ANN},{SECRET}\n{BOB},{SECRET}\n"
    (tmp_path / "mine.csv").write_text(text, encoding="utf-8")
    code, out, err = call("corpus", "build", tmp_path / "mine.csv")
    assert code == 2
    assert names(err, "mine.csv", *(["id", "name"] if header else ["2 that look"]))
    nobody_in(out, err)


ALIASES = {
    "an alias of two": {ANN: ["a"], BOB: ["a"]},
    "an alias of an alias": {ANN: [BOB], BOB: ["b"]},
    "twice": f"{ANN}: [a]\n{ANN}: [b]\n",
    "broken": f"{ANN}: [a\n{BOB}: b]: {CAT}\n",
    "indented": f"{ANN}:\n  - a\n {BOB}: {CAT}\n",
}


@pytest.mark.parametrize("content", ALIASES.values(), ids=ALIASES)
def test_a_file_of_aliases_is_refused_by_its_place(content, tmp_path, call):
    file = lines(tmp_path / "mine.jsonl", rows(ANN, BOB))
    text = content if isinstance(content, str) else yaml.safe_dump(content, sort_keys=False)
    (tmp_path / "aliases.yaml").write_text(text, encoding="utf-8")
    code, out, err = call("corpus", "build", file, "--aliases", tmp_path / "aliases.yaml")
    assert code == 2
    assert names(err, "aliases.yaml")
    nobody_in(out, err)


def test_ids_that_are_repeated_are_told_by_record(tmp_path, call):
    file = lines(tmp_path / "mine.jsonl", [*rows("dan"), *rows(ANN, BOB, id=f"{ANN}-1")])
    code, out, err = call("corpus", "build", file, "--id", "id")
    assert code == 2
    nobody_in(out, err)


def test_a_name_that_stands_for_a_missing_one_is_counted(tmp_path, call):
    file = lines(tmp_path / "mine.jsonl", rows("NaN", "dan"))
    code, out, err = call("corpus", "build", file)
    assert code == 0
    assert "'NaN'" not in out + err


def test_mail_and_a_dump_are_not_quoted(tmp_path, call):
    (tmp_path / "mine.mbox").write_text(f"To: {ANN}\n\n{SECRET}\n", encoding="utf-8")
    (tmp_path / "Posts.xml").write_text(f"{ANN} {SECRET}", encoding="utf-8")
    (tmp_path / "maildir" / BOB / "inbox").mkdir(parents=True)
    for words in (
        ("build", tmp_path / "mine.mbox"),
        ("build", tmp_path / "Posts.xml", "--preset", "stackoverflow"),
        ("build", tmp_path / "Posts.xml", "--preset", "enron-chua"),
        ("build", tmp_path / "maildir", "--preset", "enron-kandpal"),
    ):
        code, out, err = call("corpus", *words)
        assert code == 2, (words, out, err)
        nobody_in(out, err)


def test_a_config_is_refused_by_line_and_key(tmp_path, call):
    (tmp_path / "run.yaml").write_text(f"corpus: {{users: {{exclude: ['{ANN}', '{BOB}]}}}}\n", encoding="utf-8")
    code, out, err = call("run", tmp_path / "run.yaml", "--check")
    assert code == 2
    nobody_in(out, err)


USERS, NAN = (ANN, BOB), np.array([0.5, np.nan])


@pytest.mark.parametrize(
    "call_",
    [
        lambda: UserScores("loss", USERS, NAN),
        lambda: UserScores("loss", (ANN, ANN), np.zeros(2)),
        lambda: UserScores("loss", USERS, np.zeros(3)),
        lambda: UserScores("loss", USERS, np.zeros(2)).of([CAT]),
        lambda: LabelledScores(NAN, np.array([True, False]), USERS),
        lambda: LabelledScores(np.zeros(2), np.array([True, False]), (ANN, ANN)),
        lambda: join({ANN: 0.1}, {ANN}, {ANN}),
        lambda: join({ANN: 0.1, BOB: 0.2}, {ANN}, set()),
        lambda: join({ANN: 0.1}, {ANN}, {BOB}),
        lambda: scored_users([TextStatistic(ANN, 0, "loss", np.nan)], {ANN: True, BOB: False}).scores("loss"),
        lambda: scored_users([TextStatistic(ANN, 0, "loss", 0.5)], {ANN: True, BOB: False}).scores("loss"),
        lambda: scored_users([TextStatistic(ANN, 0, "loss", 0.5)], {ANN: True, BOB: False}).scores("zlib"),
        lambda: list(Function(lambda text: [Span(0, 999, "PERSON")], "mine").spans([Text(ANN, SECRET)])),
    ],
)
def test_a_score_or_text_is_told_by_its_number(call_):
    with pytest.raises(InputError) as caught:
        call_()
    nobody_in(str(caught.value))


# What is interpolated into a message and may hold a person's name, id or text, unless it is a count.
PERSONAL = {"user", "author", "person", "alias", "owner", "sender", "who", "mention", "record_id", "stray"}
COUNTS = {
    "corpus/made_up/synthetic.py: user",  # a number
    "jobs/export.py: folder / stray",  # a file
}


def _interpolated(tree):
    for node in ast.walk(tree):
        says = (
            isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in ("say", "report")
        )
        if isinstance(node, ast.Raise) or says:
            yield from (part.value for part in ast.walk(node) if isinstance(part, ast.FormattedValue))


def _personal(expression):
    counted = isinstance(expression, ast.Call) and ast.unparse(expression.func) in ("len", "counted")
    words = {part.id for part in ast.walk(expression) if isinstance(part, ast.Name)}
    words |= {part.attr for part in ast.walk(expression) if isinstance(part, ast.Attribute)}
    of_text = isinstance(expression, ast.Attribute) and ast.unparse(expression) in ("text.id", "text.text", "record.id")
    return not counted and (bool(words & PERSONAL) or of_text)


def test_no_message_interpolates_a_person():
    found = set()
    for folder in PRODUCT.split():
        for path in (ROOT / folder).rglob("*.py"):
            for expression in _interpolated(ast.parse(path.read_text(encoding="utf-8"))):
                if _personal(expression):
                    found.add(f"{path.relative_to(ROOT).as_posix()}: {ast.unparse(expression)}")
    assert found == COUNTS


def test_the_look_at_messages_sees_a_person():
    tree = ast.parse(
        "def f(user):\n raise InputError(f'the score of {user} is {len(users)}')\n reporter.say(f'{text.id}')"
    )
    assert [ast.unparse(part) for part in _interpolated(tree) if _personal(part)] == ["user", "text.id"]
