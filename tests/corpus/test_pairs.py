"""Preference pairs: their forms, the two texts that a model reads of one, and what is refused."""

import itertools
import json

import datasets
import numpy as np
import pytest

from heldin.corpus.build import build_store
from heldin.corpus.chat.columns import TurnColumns, answered_text
from heldin.corpus.chat.conversation import RowFormat, format_of_row
from heldin.corpus.chat.opening import StatedRows, kept_reading, reading_again, reading_of
from heldin.corpus.chat.template import ChatTemplate
from heldin.corpus.document import Counting, Document, TurnLayout, forked
from heldin.corpus.entities.spans import Span
from heldin.corpus.sources.open import open_source
from heldin.corpus.sources.rows import Columns
from heldin.defenses.data_side.deidentify import deidentified
from tests.chats import CHATML, TEMPLATES, chat, tokenizer_with
from tests.refusals import names, refused

ASKED = chat("What is new?")
ANSWERS = [[{"role": "assistant", "content": text}] for text in ("Nothing is.", "It rains.")]
PAIR = {"prompt": ASKED, "chosen": ANSWERS[0], "rejected": ANSWERS[1]}


def template(source=CHATML):
    return ChatTemplate.of(tokenizer_with(source), "a model")


def read(row, source=CHATML, counting=Counting.COMPLETION):
    written = None if source is None else template(source)
    columns = TurnColumns.of(Columns(), RowFormat.PREFERENCE, "chosen", written, counting)
    return columns.record({"user": "ann", **row})


def reading(row, **asked):
    return reading_of(row, Columns(), StatedRows(**asked), template)


def stored(rows, tmp_path, **asked):
    path = tmp_path / "pairs.jsonl"
    path.write_text("\n".join(json.dumps({"user": "ann", **row}) for row in rows) + "\n", encoding="utf-8")
    found = reading(open_source(path, Columns()).first_row(), **asked)
    return build_store(open_source(path, found.columns), tmp_path / "cache")


@pytest.mark.parametrize("name", TEMPLATES)
def test_the_branches_are_what_the_template_writes_of_each_answer(name, tmp_path):
    source = TEMPLATES[name]
    record, wrong = read(PAIR, source)
    assert wrong is None
    tokenizer = tokenizer_with(source)
    document = Document(
        record["text"],
        tuple(map(tuple, record["spans"])),
        TurnLayout((), record["layout"]["completion"], True, record["layout"]["second"]),
    )
    assert document.is_pair
    for branch, answer in zip(document.branches(), ANSWERS, strict=True):
        assert not branch.is_pair
        assert branch.text == tokenizer.apply_chat_template(ASKED + answer, tokenize=False)
        assert answer[0]["content"] in branch.counted
        assert ASKED[0]["content"] not in branch.counted


def test_every_form_of_a_pair_becomes_the_same_document(tmp_path):
    implicit = {"chosen": ASKED + ANSWERS[0], "rejected": ASKED + ANSWERS[1]}
    forms = [
        PAIR,
        implicit,
        {"prompt": ASKED[0]["content"], **implicit},  # as UltraFeedback has it
        {name: json.dumps(value) for name, value in PAIR.items()},
        {name: [{**message, "name": None} for message in value] for name, value in PAIR.items()},
    ]
    records = [read(row) for row in forms]
    assert [wrong for _, wrong in records] == [None] * len(forms)
    assert all(record == records[0][0] for record, _ in records)
    for columns in (Columns(), Columns(text="chosen")):
        assert {format_of_row(row, columns) for row in forms} == {(RowFormat.PREFERENCE, "chosen")}


def test_pairs_of_texts_need_no_template():
    found = reading_of({"prompt": "one ", "chosen": "two", "rejected": "three"}, Columns(), StatedRows(), pytest.fail)
    record, wrong = found.columns.record({"user": "ann", "prompt": "one ", "chosen": "two", "rejected": "three"})
    assert (record["text"], record["spans"], wrong) == ("one two\n\nthree", [[4, 14]], None)
    # Without a prompt, it is what both begin with.
    alone, wrong = read({"chosen": "one two", "rejected": "one four"}, None)
    assert wrong is None
    assert (alone["layout"]["completion"], alone["layout"]["second"]) == (3, 9)


def test_a_store_keeps_pairs_and_their_branches(tmp_path):
    store = stored([PAIR] * 2, tmp_path)
    for document in (store.document(0), *store.documents_at(np.arange(2))):
        chosen, rejected = document.branches()
        assert (chosen.counted, rejected.counted) == ("Nothing is.<|im_end|>\n", "It rains.<|im_end|>\n")
        assert document.counted == f"{chosen.counted}\n\n{rejected.counted}"
        assert [words for words, _ in document.said()] == ["What is new?", "Nothing is.", "It rains."]


def test_data_sets_are_read_as_files_are(tmp_path):
    rows = [{"user": "ann", **PAIR}]
    datasets.Dataset.from_list(rows).save_to_disk(str(tmp_path / "saved"))
    datasets.Dataset.from_list(rows).to_parquet(str(tmp_path / "pairs.parquet"))
    expected = stored([PAIR], tmp_path).document(0)
    for path in (tmp_path / "saved", tmp_path / "pairs.parquet"):
        found = reading(open_source(path, Columns()).first_row())
        store = build_store(open_source(path, found.columns), tmp_path / "cache")
        assert store.document(0) == expected


def test_branches_put_together_are_the_pair():
    document = answered_text("one ", "two", "three")
    for counting in (Counting.ALL, Counting.COMPLETION, Counting.ASSISTANT):
        counted = document.counting(counting)
        assert forked(*counted.branches()).branches() == counted.branches()
        assert counted.cut(100).branches() == counted.branches()
        assert counted.cut(100).text == document.text
    cut = document.cut(6)
    assert [branch.text for branch in cut.branches()] == ["one tw", "one th"]
    assert [branch.text for branch in document.cut(3).branches()] == ["one", "one"]
    with pytest.raises(ValueError, match="different texts"):
        forked(answered_text("one ", "two"), answered_text("two ", "two"))


def test_a_changed_text_keeps_its_answers_apart():
    document = answered_text("Ann asks ", "Ann says", "Ben says").counting(Counting.COMPLETION)
    names_at = (document.text.index(word, begin) for word, begin in (("Ann", 0), ("Ann", 3), ("Ben", 0)))
    changed = deidentified(document, [Span(begin, begin + 3, "person") for begin in names_at])
    assert [branch.text for branch in changed.branches()] == ["[PERSON] asks [PERSON] says"] * 2
    assert [branch.counted for branch in changed.branches()] == ["[PERSON] says"] * 2
    # A finder may take both answers for one name.
    both = deidentified(document, [Span(document.text.index("says"), document.text.index("Ben") + 3, "person")])
    assert [branch.text for branch in both.branches()] == ["Ann asks Ann ", "Ann asks [PERSON] says"]


def test_every_counting_of_a_pair_is_that_of_its_branches(tmp_path):
    document = stored([PAIR], tmp_path).document(0)
    for counting in Counting:
        of_branches = [branch.counting(counting) for branch in document.branches()]
        assert list(document.counting(counting).branches()) == of_branches


def test_a_record_says_how_pairs_were_read():
    found = reading(PAIR)
    assert (found.loss, found.attack, found.counting) == (Counting.COMPLETION,) * 3
    again = reading_again(kept_reading(found), Columns())
    assert again.columns.record({"user": "ann", **PAIR}) == found.columns.record({"user": "ann", **PAIR})


def test_a_made_up_pair_has_nothing_of_a_row():
    made = reading({**PAIR, "prompt": chat("a secret", system="another secret")}).made("asked", "answered", "refused")
    assert [branch.counted for branch in made.branches()] == ["answered<|im_end|>\n", "refused<|im_end|>\n"]
    assert "secret" not in made.text


WRONG = {
    "the same answers": ({**PAIR, "rejected": ANSWERS[0]}, ("'chosen'", "'rejected'", "same")),
    "no chosen answer": ({**PAIR, "chosen": []}, ("chosen",)),
    "texts beside messages": ({**PAIR, "rejected": "It rains."}, ("rejected",)),
    "a prompt of text that is not in the answers": ({**PAIR, "prompt": "What else?"}, ("one form",)),
    "one answer is the other's beginning": ({"chosen": ASKED, "rejected": ASKED + ANSWERS[1]}, ("chosen",)),
    "another image": (
        {**PAIR, "chosen": [{"role": "assistant", "content": [{"type": "image"}]}]},
        ("'chosen'", "'image'"),
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_pair_that_is_none_is_a_bad_row(case):
    row, told = WRONG[case]
    _, wrong = read(row)
    assert wrong is not None
    assert names(str(wrong), *told)


@pytest.mark.parametrize(
    ("asked", "key"),
    [
        ({"loss": Counting.ALL}, "finetune.loss_on"),
        ({"loss": Counting.USER}, "finetune.loss_on"),
        ({"attack": Counting.USER}, "attack.turns"),
        ({"attack": Counting.ALL}, "attack.turns"),
    ],
)
def test_turns_that_both_answers_follow_are_not_compared(asked, key):
    with refused(by="_require", naming=(key, "pairs")):
        reading(PAIR, **asked)


def test_pairs_differ_from_the_prompts_with_completions_that_they_contain(tmp_path):
    completions = reading({"prompt": ASKED, "completion": ANSWERS[0]})
    one, _ = completions.columns.record({"user": "ann", "prompt": ASKED, "completion": ANSWERS[0]})
    chosen = stored([PAIR], tmp_path).document(0).branches()[0]
    assert (one["text"], one["spans"]) == (chosen.text, [list(part) for part in chosen.spans])


def test_all_turns_of_long_pairs_are_found():
    long = {
        "prompt": chat("What is new?", "Nothing is.", "And what else?", system="You help."),
        "chosen": ANSWERS[0],
        "rejected": ANSWERS[1],
    }
    record, wrong = read(long)
    assert wrong is None
    places = [(turn["begin"], turn["end"]) for turn in record["layout"]["turns"]]
    assert all(before[1] <= after[0] for before, after in itertools.pairwise(places))
    assert [turn["role"] for turn in record["layout"]["turns"]] == ["system", *("user", "assistant") * 2, "assistant"]
