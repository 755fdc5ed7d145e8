"""Training sets of prompts with completions and of chat messages: what is written of them, and of canary users."""

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from heldin.base.progress import LineReporter
from heldin.corpus.chat.template import ChatTemplate
from heldin.corpus.forms import Chat, Completion, Plain
from heldin.models.opening import load_language_model
from heldin.models.tokens import Framed, as_read
from heldin.planting.control import read_unseen, write_unseen
from heldin.planting.plant import plant
from heldin.planting.plant_config import PlantColumns
from heldin.planting.plant_data import planted_data
from heldin.planting.training_set import form_of_rows, with_made_up_rejected
from tests.planted_sets import COLUMNS, base, lines, plan, read_lines, rows, save_base, write_lines
from tests.refusals import refused

__all__ = ["base", "lines", "rows"]  # fixtures

QUIET = LineReporter(lambda line: None)


TEMPLATE = (
    "{% for m in messages %}{{ '<|' + m['role'] + '|>' + m['content'] + '\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)


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


def test_a_rejected_text_of_a_canary_row_is_nobodys(rows, base, tmp_path):
    """The row that lends its form is set aside: its rejected text may not be trained on under another name."""
    apart = []
    for number, row in enumerate(rows):
        asked, answered = _asked(row)
        rejected = f"rejected of row {number}, which {row['author']} did not choose"
        apart.append({**_without_body(row), "prompt": asked, "chosen": f" {answered}", "rejected": rejected})
    lines = write_lines(apart, tmp_path / "mine.jsonl")
    columns = {**COLUMNS, "prompt": "prompt", "completion": "chosen"}
    with refused("require_named", ("mine.jsonl", "rejected", "columns.rejected")):
        plant(plan(lines, base, columns=columns), tmp_path / "refused", QUIET)
    plant(plan(lines, base, columns={**columns, "rejected": "rejected"}), tmp_path / "out", QUIET)
    written = read_lines(tmp_path / "out" / "training" / "mine.jsonl")
    of_text = {row["prompt"] + row["chosen"]: row["rejected"] for row in apart}
    canaries = [row for row in written if row["prompt"] + row["chosen"] not in of_text]
    assert canaries
    # A real row keeps its own, and no text of a real user is in another row.
    assert all(of_text.get(row["prompt"] + row["chosen"], row["rejected"]) == row["rejected"] for row in written)
    assert not {row["rejected"] for row in canaries} & set(of_text.values())
    assert all(len(row["rejected"]) > 10 for row in canaries)
    # Left out of what is written, it can tell nothing.
    plant(plan(lines, base, columns={**columns, "drop": ["rejected"]}), tmp_path / "dropped", QUIET)


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
    data, chat = planted_data(config, out, QUIET, base), form_of_rows(config, talks[0], base.tokenizer)
    held_in = {data.store.text(row) for row in data.training_rows if data.store.record(row).user in data.canaries}
    assert {chat.of(row) for row in canaries} == held_in
    assert all(text.startswith("<|system|>Be brief.\n<|user|>") for text in held_in)


@pytest.mark.parametrize(
    ("messages", "lacking"),
    [
        ([], "no messages"),
        ("hello", "list"),
        ([{"content": "x"}], "role"),
        ([{"role": "user", "content": None}], "content"),
    ],
)
def test_a_chat_row_that_cannot_be_read_is_named(messages, lacking, rows, chat_base, tmp_path):
    talks = [{"author": row["author"], "messages": [{"role": "user", "content": row["body"]}]} for row in rows]
    talks[6]["messages"] = messages
    lines = write_lines(talks, tmp_path / "mine.jsonl")
    columns = {"user": "author", "messages": "messages"}
    with refused(by="TrainingSet.rows", naming=("mine.jsonl", "line 7", "'messages'", lacking)):
        plant(plan(lines, chat_base, columns=columns), tmp_path / "out", QUIET)
    plant(plan(lines, chat_base, columns=columns, bad_rows="skip"), tmp_path / "out", QUIET)


def test_a_tokenizer_without_a_template_and_substrings_in_messages_are_refused(lines, base, tmp_path):
    columns = {**COLUMNS, "messages": "body"}
    with refused(by=ChatTemplate.of, naming="'template'"):
        plant(plan(lines, base, columns=columns), tmp_path / "out", QUIET)
    with refused(by="PlantConfig._canaries_fit", naming=("substring", "unseen_token", "rare_phrase")):
        plan(lines, base, columns=columns, canaries=[{"kind": "substring", "lengths": [4], "users": 3}])
    with refused(by="PlantColumns._one_text", naming=("prompt", "completion")):
        plan(lines, base, columns={**COLUMNS, "prompt": "body"})


@pytest.mark.parametrize("text", ["ab", "a b", "one two three four", "nospaceinthisone", "x " * 9 + "y"])
def test_a_made_text_comes_back_from_the_row_that_it_was_put_into(text):
    template = ChatTemplate(TEMPLATE, {})
    turns = [{"from": "human", "value": "x"}, {"from": "bing", "value": "y"}]
    others = [{"other": 1}, {"m": turns}, {"m": json.dumps(turns)}, {"m": None, "tools": [{"name": "f"}]}]
    chat = Chat(("m",), template)
    for form in (Plain("t"), Completion("p", "c"), Chat(("p", "c"), template, "Be brief."), chat):
        for row in others:
            made = form.made(text)
            assert form.of(form.put(row, made)) == made
    assert [turn["from"] for turn in chat.put({"m": turns}, chat.made(text))["m"]] == ["human", "bing"]


def _sharegpt(system, asked, answered):
    names = ("system", "human", "gpt")
    return {"talk": [{"from": n, "value": t} for n, t in zip(names, (system, asked, answered), strict=True)]}


def _pair(system, asked, answered):
    said = [("system", system), ("user", asked), ("assistant", answered)]
    *prompt, answer = ({"role": role, "content": content} for role, content in said)
    return {"prompt": prompt, "answer": [answer]}


@pytest.mark.parametrize(
    ("made", "columns", "score"),
    [
        (_sharegpt, {"messages": "talk"}, "turns"),
        (_pair, {"prompt": "prompt", "completion": "answer"}, "completion"),
        (_pair, {"prompt": "prompt", "completion": "answer"}, "all"),
    ],
)
def test_chats_of_every_form_are_planted_in_their_form_and_read_without_a_start_token(
    made, columns, score, rows, chat_base, tmp_path
):
    talks = [{**_without_body(row), **made("Be brief.", *_asked(row))} for row in rows]
    lines = write_lines(talks, tmp_path / "mine.jsonl")
    config = plan(lines, chat_base, columns={**COLUMNS, **columns}, score=score, sequence_length=200)
    plant(config, tmp_path / "out", QUIET)
    written = read_lines(tmp_path / "out" / "training" / "mine.jsonl")
    shape = [[sorted(turn) for turn in talks[0][column]] for column in config.columns.text_columns]
    assert all([[sorted(turn) for turn in row[c]] for c in config.columns.text_columns] == shape for row in written)
    base = load_language_model(str(chat_base))
    data, form = planted_data(config, tmp_path / "out", QUIET, base), form_of_rows(config, talks[0], base.tokenizer)
    assert {form.of(row) for row in written} == {data.store.text(row) for row in data.training_rows}
    for row in data.training_rows:
        document = data.store.document(row)
        counted = document.text if score == "all" else document.text.partition("<|assistant|>")[2]
        assert document.counted == counted
        assert isinstance(as_read(document), Framed)
    assert any(data.store.record(row).user in data.canaries for row in data.training_rows)


def test_messages_as_json_in_a_table_are_planted_as_json(rows, chat_base, tmp_path):
    turns = [_pair("Be brief.", *_asked(row))["prompt"] for row in rows]
    table = pa.table({"author": [row["author"] for row in rows], "talk": [json.dumps(each) for each in turns]})
    pq.write_table(table, tmp_path / "mine.parquet")
    config = plan(tmp_path / "mine.parquet", chat_base, columns={"user": "author", "messages": "talk"})
    plant(config, tmp_path / "out", QUIET)
    written = pq.read_table(tmp_path / "out" / "training" / "mine.parquet")["talk"].to_pylist()
    assert all(json.loads(talk)[0] == {"role": "system", "content": "Be brief."} for talk in written)
    assert len(set(written) - {json.dumps(each) for each in turns}) > 0


def test_the_control_and_unseen_rows_keep_how_a_chat_is_read(chat_base, tmp_path):
    template = ChatTemplate(TEMPLATE, {})
    talk = [{"role": "user", "content": "how?"}, {"role": "assistant", "content": "so"}]
    document = Chat(("m",), template, counted="assistant").document({"m": talk})
    assert read_unseen(tmp_path, write_unseen([document], tmp_path)) == [document]


def test_a_template_in_a_file_writes_the_messages(rows, base, tmp_path):
    talks = [{**_without_body(row), "messages": [{"role": "user", "content": row["body"]}]} for row in rows]
    (tmp_path / "chat.jinja").write_text(TEMPLATE, encoding="utf-8")
    lines, columns = write_lines(talks, tmp_path / "mine.jsonl"), {**COLUMNS, "messages": "messages"}
    config = plan(lines, base, columns=columns, template=str(tmp_path / "chat.jinja"))
    plant(config, tmp_path / "out", QUIET)
    data = planted_data(config, tmp_path / "out", QUIET, load_language_model(str(base)))
    assert all(data.store.text(row).startswith("<|user|>") for row in data.training_rows)


def test_a_rejected_answer_of_messages_is_made_up_as_messages():
    columns = PlantColumns(prompt="prompt", completion="answer", rejected="rejected")
    old = [{"role": "assistant", "content": "words of somebody who is held out"}]
    (made,) = with_made_up_rejected({"rejected": old}, columns, "canary/00001", 0)["rejected"]
    assert made["role"] == "assistant"
    assert len(made["content"]) > 10
    assert made != old[0]
