"""Rows of turns: their forms, the text that a template makes of them, and where each turn stands in it."""

import csv
import json
from pathlib import Path

import datasets
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pydantic import ValidationError

from heldin.corpus.build import build_store
from heldin.corpus.chat.columns import TurnColumns
from heldin.corpus.chat.conversation import Conversation, RowFormat, format_of_row
from heldin.corpus.chat.opening import StatedRows, kept_reading, reading_again, reading_of
from heldin.corpus.chat.template import ChatTemplate, MaskFrom
from heldin.corpus.config import CorpusConfig
from heldin.corpus.document import Counting, Document, Turn, TurnLayout
from heldin.corpus.sources.bad_rows import OnBadRows
from heldin.corpus.sources.open import open_source
from heldin.corpus.sources.rows import Columns
from heldin.finetune.batches import Truncation, encode
from heldin.finetune.recipe import Truncate
from heldin.planting.plant_config import parse_plant
from heldin.stages.run_config import PretrainConfig
from tests.chats import CHATML, TEMPLATES, chat, tokenizer_with
from tests.refusals import names, refused

LONG = chat("What is new?", "Nothing is.", "And what else?", "It rains.")
# Written otherwise once another turn follows, as templates of models do that think.
THINKS = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' }}"
    "{% if m['role'] == 'assistant' and loop.last %}{{ '<think>\n\n</think>\n\n' }}{% endif %}"
    "{{ m['content'] + '<|im_end|>\n' }}{% endfor %}"
)
TODAY = "{{ strftime_now('%d') }}{% for m in messages %}{{ m['content'] }}{% endfor %}"
DROPS = "{% for m in messages if m['role'] != 'system' %}{{ m['role'] + ': ' + m['content'] + '\n' }}{% endfor %}"


def template(source=CHATML):
    return ChatTemplate.of(tokenizer_with(source), "a model")


def of_turns(document):
    return [(turn.role, document.text[turn.begin : turn.end]) for turn in document.layout.turns]


def reading(row, **asked):
    return reading_of(row, Columns(), StatedRows(**asked), template)


def read(row, form=RowFormat.MESSAGES, column="messages", counting=Counting.ASSISTANT, source=CHATML):
    written = None if source is None else template(source)
    columns = TurnColumns.of(Columns(), form, column, written, counting)
    return columns.record({"user": "ann", **row})


@pytest.mark.parametrize("name", TEMPLATES)
def test_what_the_assistant_says_and_its_end_are_found_in_the_text_of_each_template(name):
    document = template(TEMPLATES[name]).document(Conversation(LONG))
    ends = {"llama3": "<|eot_id|>", "mistral": "</s>", "gemma": "<end_of_turn>\n", "phi": "<|end|>\n"}
    end = ends.get(name, "<|im_end|>\n")
    said = [text.removeprefix(" ") for role, text in of_turns(document) if role == "assistant"]
    assert said == [f"Nothing is.{end}", f"It rains.{end}"]
    asked = [text for role, text in of_turns(document) if role == "user"]
    assert [text.startswith(words) for text, words in zip(asked, ("What is new?", "And what else?"), strict=True)]
    assert document.is_plain
    assert document.framed


def test_words_that_the_template_writes_too_are_found_where_the_turn_is():
    messages = chat("user", "assistant", "im_end", "<|im_end|>", system="system")
    assert of_turns(template().document(Conversation(messages))) == [
        ("system", "system<|im_end|>\n"),
        ("user", "user<|im_end|>\n"),
        ("assistant", "assistant<|im_end|>\n"),
        ("user", "im_end<|im_end|>\n"),
        ("assistant", "<|im_end|><|im_end|>\n"),
    ]


def test_a_template_that_writes_a_turn_otherwise_where_another_follows():
    document = template(THINKS).document(Conversation(LONG))
    assert of_turns(document) == [
        ("user", "What is new?<|im_end|>\n"),
        ("assistant", "Nothing is.<|im_end|>\n"),
        ("user", "And what else?<|im_end|>\n"),
        ("assistant", "It rains.<|im_end|>\n"),
    ]


def test_marks_of_the_template_win_over_positions():
    assert template(TEMPLATES["marked"]).mask_from is MaskFrom.MARKS
    assert template().mask_from is MaskFrom.POSITIONS


@pytest.mark.parametrize(
    ("row", "form", "column"),
    [
        ({"text": "one"}, RowFormat.TEXT, "text"),
        ({"text": "one", "messages": LONG}, RowFormat.TEXT, "text"),
        ({"text": LONG}, RowFormat.MESSAGES, "text"),
        ({"messages": LONG}, RowFormat.MESSAGES, "messages"),
        ({"messages": json.dumps(LONG)}, RowFormat.MESSAGES, "messages"),
        ({"conversations": [{"from": "human", "value": "one"}]}, RowFormat.CONVERSATIONS, "conversations"),
        ({"conversations": LONG}, RowFormat.MESSAGES, "conversations"),
        ({"prompt": "one", "completion": "two"}, RowFormat.PROMPT_COMPLETION, "prompt"),
        ({"prompt": LONG[:1], "completion": LONG[1:2]}, RowFormat.PROMPT_COMPLETION, "prompt"),
        ({"body": "one"}, RowFormat.TEXT, "text"),
    ],
)
def test_the_form_of_rows_is_seen_in_one(row, form, column):
    assert format_of_row(row, Columns()) == (form, column)


def test_every_form_of_the_same_conversation_becomes_the_same_document():
    sharegpt = [
        {"from": {"user": "human", "assistant": "gpt"}[message["role"]], "value": message["content"]}
        for message in LONG
    ]
    records = [
        read({"messages": LONG}),
        read({"messages": json.dumps(LONG)}),
        read({"conversations": sharegpt}, RowFormat.CONVERSATIONS, "conversations"),
        # Parquet has every key of any message in each.
        read({"messages": [{**message, "name": None} for message in LONG]}),
        read({"messages": [{**m, "content": [{"type": "text", "text": m["content"]}]} for m in LONG]}),
        read({"prompt": LONG[:3], "completion": LONG[3:]}, RowFormat.PROMPT_COMPLETION, "prompt"),
    ]
    assert [wrong for _, wrong in records] == [None] * len(records)
    first, *others = (record for record, _ in records)
    assert others[:-1] == [first] * 4
    assert others[-1]["text"] == first["text"]
    assert others[-1]["layout"]["turns"] == first["layout"]["turns"]


def test_a_completion_begins_where_the_assistant_is_let_begin():
    row = {"prompt": LONG[:3], "completion": LONG[3:]}
    record, wrong = read(row, RowFormat.PROMPT_COMPLETION, "prompt", Counting.COMPLETION)
    assert wrong is None
    ((begin, end),) = record["spans"]
    assert record["text"][begin:end] == "It rains.<|im_end|>\n"


def test_two_texts_need_no_template():
    found = reading_of({"prompt": "one ", "completion": "two"}, Columns(), StatedRows(), pytest.fail)
    record, wrong = found.columns.record({"user": "ann", "prompt": "one ", "completion": "two"})
    assert (record["text"], record["spans"], wrong) == ("one two", [[4, 7]], None)
    assert not record["layout"]["framed"]


@pytest.mark.parametrize(
    ("row", "source", "data"),
    [
        ({"messages": [{"role": "user"}]}, CHATML, ["user"]),
        ({"messages": [{"content": "one"}]}, CHATML, ["role"]),
        ({"messages": {"role": "user", "content": "one"}}, CHATML, ["messages"]),
        ({"messages": [{"role": "user", "content": [{"type": "image"}]}]}, CHATML, ["image"]),
        ({"messages": [{**LONG[0], "name": "Ann"}, LONG[1]]}, CHATML, ["name"]),
        ({"messages": LONG[:2], "tools": [{"name": "clock"}]}, CHATML, ["tools"]),
        ({"messages": [LONG[1], LONG[0]]}, TEMPLATES["gemma"], ["Roles must alternate"]),
        ({"messages": chat("one", "two", system="three")}, TEMPLATES["mistral"], ["Only user and assistant"]),
        ({"messages": chat("one", "two", system="three")}, DROPS, ["system"]),
    ],
)
def test_a_row_that_no_template_can_write_is_told_with_what_is_wrong(row, source, data):
    _, wrong = read(row, source=source)
    names(str(wrong), *data)


@pytest.mark.parametrize("row", [{"messages": []}, {"messages": None}, {"messages": LONG[:1]}])
def test_rows_of_which_nothing_counts_are_skipped_as_rows_without_text(tmp_path, row):
    file = tmp_path / "rows.jsonl"
    rows = [{"user": "ann", "messages": LONG}, {"user": "ben", **row}]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    store = build_store(open_source(file, reading(rows[0]).columns), tmp_path)
    assert store.users == ["ann"]
    assert (store.report.skipped.without_text, store.report.skipped.unusable) == (1, 0)
    with refused("opened_store", "rows.jsonl line 2"):
        build_store(open_source(file, reading(rows[0]).columns), tmp_path, on_bad=OnBadRows.STRICT)


def test_what_is_asked_for_and_rows_have_not_is_refused():
    with refused("_require", ("finetune.loss_on", "completion")):
        reading({"messages": LONG}, loss=Counting.COMPLETION)
    with refused("_require", ("attack.turns", "user")):
        reading({"text": "one"}, attack=Counting.USER)
    with refused("reading_of", "columns.spans"):
        reading_of({"messages": LONG}, Columns(spans="spans"), StatedRows(), template)


def test_a_tokenizer_without_a_template_and_a_template_of_today_are_refused(tmp_path):
    with refused("ChatTemplate.of", ("'a model'", "--template")):
        template(None)
    with refused("ChatTemplate.of", "date_string"):
        template(TODAY)
    ChatTemplate.of(tokenizer_with(TODAY), "a model", options={"date_string": "26 Jul 2024"})
    file = tmp_path / "own.jinja"
    file.write_text(CHATML)
    assert ChatTemplate.of(tokenizer_with(None), "a model", file=file).source == CHATML


def test_a_reading_that_a_record_keeps_reads_the_same():
    found = reading({"messages": LONG})
    again = reading_again(json.loads(json.dumps(kept_reading(found))), Columns())
    row = {"user": "ann", "messages": LONG}
    assert again.columns.record(row) == found.columns.record(row)
    assert repr(again.columns) == repr(found.columns)  # a store is found by it
    assert reading_again(None, Columns()).columns == Columns()


def rows_of(tmp_path, kind):
    rows = [{"user": user, "messages": LONG[:2]} for user in "ab"]
    path = tmp_path / {"json": "rows.json", "jsonl": "rows.jsonl", "parquet": "rows.parquet"}.get(kind, "rows")
    if kind == "parquet":
        pq.write_table(pa.Table.from_pylist(rows), path)
    elif kind == "save_to_disk":
        datasets.Dataset.from_list(rows).save_to_disk(path)
    elif kind == "json":
        path.write_text(json.dumps(rows))
    else:
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.mark.parametrize("kind", ["jsonl", "json", "parquet", "save_to_disk"])
def test_a_store_keeps_turns_and_gives_them_back(tmp_path, kind):
    path = rows_of(tmp_path, kind)
    found = reading(open_source(path, Columns()).first_row())
    store = build_store(open_source(path, found.columns), tmp_path)
    document = store.document(0)
    expected = template().document(Conversation(LONG[:2]))
    assert document == expected.counting(Counting.ASSISTANT)
    assert document.counting(Counting.USER).counted == "What is new?<|im_end|>\n"
    assert store.documents_at(pa.array([1, 0]).to_numpy()) == [document, document]
    assert list(store.counted_texts()) == ["Nothing is.<|im_end|>\n"] * 2


def test_where_all_counts_a_store_keeps_turns_without_parts(tmp_path):
    path = rows_of(tmp_path, "jsonl")
    found = reading(open_source(path, Columns()).first_row(), turns=Counting.ALL)
    store = build_store(open_source(path, found.columns), tmp_path)
    assert not store.has_spans
    assert store.document(0) == template().document(Conversation(LONG[:2]))


def test_turns_stay_where_they_are_in_a_cut_text():
    document = template().document(Conversation(LONG)).counting(Counting.ASSISTANT)
    cut = document.cut(document.layout.turns[1].end - 3)
    assert [turn.role for turn in cut.layout.turns] == ["user", "assistant"]
    assert cut.counting(Counting.ASSISTANT) == cut


def test_a_document_without_turns_has_none_to_count():
    with pytest.raises(ValueError, match="turns"):
        Document.of("one").counting(Counting.USER)
    with pytest.raises(ValueError, match="prompt"):
        Document("one", ((0, 3),), TurnLayout((Turn("user", 0, 3),))).counting(Counting.COMPLETION)


def test_a_chat_is_trained_on_as_the_template_wrote_it():
    tokenizer = tokenizer_with(CHATML)
    document = template().document(Conversation(LONG))
    (plain,) = encode(tokenizer, [document], None)
    assert list(plain.ids) == tokenizer.apply_chat_template(LONG, tokenize=True, return_dict=False)
    (masked,) = encode(tokenizer, [document.counting(Counting.ASSISTANT)], None)
    assert tokenizer.decode(masked.counted_ids) == "Nothing is.<|im_end|>\nIt rains.<|im_end|>\n"
    # As a text of its own, start and end token are put around it.
    (text,) = encode(tokenizer, [Document.of(document.text)], None)
    assert list(text.ids) == [tokenizer.bos_token_id, *plain.ids, tokenizer.eos_token_id]


@pytest.mark.parametrize("rule", Truncate)
def test_a_chat_that_is_too_long_is_cut(rule):
    tokenizer = tokenizer_with(CHATML)
    document = template().document(Conversation(LONG)).counting(Counting.ASSISTANT)
    (whole,) = encode(tokenizer, [document], None)
    (first,) = encode(tokenizer, [document.cut(document.layout.turns[1].end)], None)
    for most in range(2, len(whole) + 2):
        truncation = Truncation(rule)
        (cut,) = encode(tokenizer, [document], most - 1, truncation=truncation)
        assert list(cut.ids) == list(whole.ids[: len(cut)])
        assert len(cut) <= most
        assert truncation.dropped == len(whole) - len(cut)
        assert truncation.counted == whole.bearing - cut.bearing
        if rule is Truncate.TOKENS or most < len(first):
            assert len(cut) == min(most, len(whole))
        elif most < len(whole):
            # Behind the first answer, or behind the question that follows it.
            assert tokenizer.decode(cut.ids).endswith(("Nothing is.<|im_end|>\n", "And what else?<|im_end|>\n"))


def test_a_table_may_hold_messages_as_json(tmp_path):
    path = tmp_path / "chats.csv"
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerows([("user", "messages"), *((user, json.dumps(LONG)) for user in "ab")])
    found = reading(open_source(path, Columns()).first_row())
    store = build_store(open_source(path, found.columns), tmp_path)
    assert store.document(0).counting(Counting.ALL) == template().document(Conversation(LONG))


def test_what_one_row_says_is_in_no_canary_row():
    """The first row tells the form of all; nothing of what it says goes further."""
    found = reading({"messages": chat("a secret", "another secret", system="a third secret")})
    made = found.made("asked", "answered", "rejected")
    assert "secret" not in made.text
    assert made.counted == "answered<|im_end|>\n"


def test_a_source_of_texts_alone_has_no_turns(tmp_path):
    corpus = {"source": {"kind": "mbox", "path": str(tmp_path / "a.mbox")}, "format": "messages"}
    stated = StatedRows(RowFormat.MESSAGES)
    found = reading_of(None, Columns(), stated, template)
    with refused("SourceConfig.reading", ("'mbox'", "corpus.format")):
        CorpusConfig(**corpus).opened(found)


def test_keys_that_would_do_nothing_are_refused():
    plant = {"training": "a.jsonl", "reference": "b", "evidence": "callback", "attack": {"turns": "user"}}
    with refused("PlantConfig._attack_can_be_done", "attack.turns"):
        parse_plant(plant, "plant.yaml")
    with refused("PretrainConfig._pretrains", "loss_on", kind=ValidationError):
        PretrainConfig(recipe={"loss_on": "assistant"})
    for recipe in ({"objective": "dpo"}, {"beta": 0.2}, {"label_smoothing": 0.1}, {"report_to": ["tensorboard"]}):
        with refused("PretrainConfig._pretrains", next(iter(recipe)), kind=ValidationError):
            PretrainConfig(recipe=recipe)


def test_private_characters_of_a_text_are_no_mark():
    messages = chat("a\ue000", "b", "c", "d\ue001")
    for source in (CHATML, TEMPLATES["marked"], TEMPLATES["mistral"], THINKS):
        document = template(source).document(Conversation(messages)).counting(Counting.USER)
        assert [words for words, counts in document.said() if counts] == ["a\ue000", "c"]


def test_a_field_is_written_if_the_text_differs_without_it():
    named = [{**LONG[0], "name": "bob"}, LONG[1]]
    # The template speaks of a name, and of another one.
    source = "{% for tool in tools or [] %}{{ tool.name }}{% endfor %}" + CHATML
    names(str(read({"messages": named}, source=source)[1]), "'name'")
    writes = CHATML.replace("m['role'] + '\n'", "m['role'] + (m.get('name') or '') + '\n'")
    assert read({"messages": named}, source=writes)[1] is None
    assert read({"messages": LONG[:2], "tools": [{"name": "clock"}]}, source=source)[1] is None


def test_objects_of_parquet_are_as_they_were_written(tmp_path):
    calls = [{"name": "f", "arguments": {"a": 1}}, {"name": "g", "arguments": {"b": 2}}]
    messages = [LONG[0], {"role": "assistant", "content": "", "tool_calls": calls}]
    source = CHATML.replace("m['content'] +", "m['content'] + (m.get('tool_calls') or '') | string +")
    pq.write_table(pa.Table.from_pylist([{"user": "ann", "messages": messages}]), tmp_path / "a.parquet")
    (row,) = pq.read_table(tmp_path / "a.parquet").to_pylist()
    assert row["messages"] != messages  # with nulls
    kept = [read({"messages": its}, source=source)[0]["text"] for its in (messages, row["messages"])]
    assert kept[0] == kept[1]


@pytest.mark.parametrize(
    ("row", "data"),
    [
        ({"messages": chat("one", "  ")}, ["assistant", "user"]),
        ({"messages": [{"role": "human", "content": "a"}, {"role": "gpt", "content": "b"}]}, ["human, gpt"]),
        ({"messages": LONG, "chat_template_kwargs": {"add_generation_prompt": True}}, ["add_generation_prompt"]),
        ({"messages": LONG, "chat_template_kwargs": []}, None),
    ],
)
def test_what_a_row_lacks_is_named(row, data):
    _, wrong = read(row)
    assert (wrong is None) if data is None else names(str(wrong), *data)


def test_contents_of_several_texts_are_joined():
    messages = [{**LONG[0], "content": ["What is ", {"type": "text", "text": "new?"}]}, LONG[1]]
    assert read({"messages": messages}) == read({"messages": LONG[:2]})


def test_marks_around_nothing_and_texts_among_messages_are_refused():
    commented = "{# {% generation %} #}" + CHATML
    names(str(read({"messages": LONG}, source=commented)[1]), "generation marks")
    mixed = {"prompt": "one ", "completion": "two"}
    names(str(read(mixed, RowFormat.PROMPT_COMPLETION, "prompt", Counting.COMPLETION)[1]), "one form")


@pytest.mark.parametrize("value", [[], None])
def test_an_empty_first_row_is_of_the_form_of_its_column(value):
    assert format_of_row({"user": "ann", "messages": value}, Columns()) == (RowFormat.MESSAGES, "messages")


def test_a_template_of_which_trl_trains_on_another_text_is_said():
    trl = pytest.importorskip("trl")
    folder = Path(trl.__file__).parent / "chat_templates"
    for name, same in (("qwen3", False), ("qwen2_5", True)):
        written = template((folder / f"{name}.jinja").read_text(encoding="utf-8"))
        assert written.is_as_in_trl is same
        assert written.mask_from is (MaskFrom.VARIANT if same else MaskFrom.POSITIONS)
        found = reading_of({"messages": LONG}, Columns(), StatedRows(), lambda its=written: its)
        (line,) = map(str, found.lines(trains=False))
        assert ("--template" in line) is not same
        # Of heldin's own training it says what bears the loss.
        found = reading_of({"messages": LONG}, Columns(), StatedRows(), lambda its=written: its)
        assert found.lines(trains=True)[0].values["loss"] == Counting.ASSISTANT


BOTH = {"user": "ann", "text": "of day seven", "messages": LONG}


@pytest.mark.parametrize(
    ("row", "stated", "read", "besides"),
    [
        (BOTH, None, (RowFormat.TEXT, "text"), RowFormat.MESSAGES),
        (BOTH, RowFormat.TEXT, (RowFormat.TEXT, "text"), None),
        (BOTH, RowFormat.MESSAGES, (RowFormat.MESSAGES, "messages"), None),
        ({"text": "a", "prompt": "b", "completion": "c"}, None, (RowFormat.TEXT, "text"), RowFormat.PROMPT_COMPLETION),
        ({"text": "a", "messages": "none yet"}, None, (RowFormat.TEXT, "text"), None),
        ({"prompt": "b", "completion": "c"}, None, (RowFormat.PROMPT_COMPLETION, "prompt"), None),
    ],
)
def test_of_two_forms_in_a_row_one_is_read_and_the_other_is_named(row, stated, read, besides):
    reading = reading_of(row, Columns(), StatedRows(stated), template)
    assert (reading.format, reading.columns.text, reading.besides) == (*read, besides)
    lines = [str(line) for line in reading.lines(trains=True)]
    assert len(lines) == (besides is not None) + reading.has_turns
    assert besides is None or names(lines[0], "format text", f"corpus.format: {besides}")


def test_a_cell_with_a_list_of_python_is_said_to_be_no_json(tmp_path):
    for name, talk in (
        ("messages", LONG),
        ("conversations", [{"from": "human", "value": "it's"}, {"from": "gpt", "value": "so"}]),
    ):
        path = tmp_path / f"{name}.csv"
        with path.open("w", newline="") as file:
            csv.writer(file).writerows([("user", name), ("ann", str(talk))])
        found = reading(open_source(path, Columns()).first_row())
        assert found.format == name
        with refused("batched", (f"{name}.csv", "line 2", f"'{name}'", "not JSON", "json.dumps")):
            build_store(open_source(path, found.columns), tmp_path)


def test_prompts_with_completions_of_messages_may_be_json_in_cells(tmp_path):
    path = tmp_path / "pairs.csv"
    with path.open("w", newline="") as file:
        cells = ("ann", json.dumps(LONG[:1]), json.dumps(LONG[1:2]))
        csv.writer(file).writerows([("user", "prompt", "completion"), cells])
    found = reading(open_source(path, Columns()).first_row())
    document = build_store(open_source(path, found.columns), tmp_path).document(0)
    assert document.counted == "Nothing is.<|im_end|>\n"
    assert document.framed
    # Texts that look like a list are texts.
    listed = {"user": "ann", "prompt": "[1, 2]", "completion": "[3]"}
    assert reading(listed).columns.record(listed)[0]["text"] == "[1, 2][3]"
