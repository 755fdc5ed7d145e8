"""Training sets of prompts with completions and of chat messages: what is written of them, and of canary users."""

import pytest

from heldin.base.progress import LineReporter
from heldin.corpus.forms import Chat, Completion, Plain
from heldin.models.opening import load_language_model
from heldin.planting.plant import plant
from heldin.planting.plant_data import planted_data
from heldin.planting.training_set import form_of_rows
from tests.planted_sets import COLUMNS, base, lines, plan, read_lines, rows, save_base, write_lines
from tests.refusals import refused

__all__ = ["base", "lines", "rows"]  # fixtures

QUIET = LineReporter(lambda line: None)


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
    data, chat = planted_data(config, out, QUIET, base), form_of_rows(config.columns, base.tokenizer)
    held_in = {data.store.text(row) for row in data.training_rows if data.store.record(row).user in data.canaries}
    assert {chat.of(row) for row in canaries} == held_in
    assert all(text.startswith("<|system|>Be brief.\n<|user|>") for text in held_in)


@pytest.mark.parametrize(
    ("messages", "lacking"),
    [
        ([], "list"),
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
    with refused(by="Chat._messages", naming=("mine.jsonl", "line 7", "'messages'", lacking)):
        plant(plan(lines, chat_base, columns=columns), tmp_path / "out", QUIET)
    plant(plan(lines, chat_base, columns=columns, bad_rows="skip"), tmp_path / "out", QUIET)


def test_a_tokenizer_without_a_template_and_substrings_in_messages_are_refused(lines, base, tmp_path):
    columns = {**COLUMNS, "messages": "body"}
    with refused(by=form_of_rows):
        plant(plan(lines, base, columns=columns), tmp_path / "out", QUIET)
    with refused(by="PlantConfig._canaries_fit", naming=("substring", "unseen_token", "rare_phrase")):
        plan(lines, base, columns=columns, canaries=[{"kind": "substring", "lengths": [4], "users": 3}])
    with refused(by="PlantColumns._one_text", naming=("prompt", "completion")):
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
