"""Overlaps by a query equal those of the slow twin, for users and entities, where many texts are repeated."""

import json
import random
from dataclasses import replace

import pytest

from heldin.corpus.split import Part, Role
from heldin.stages.sides.data import prepare_data
from heldin.stages.sides.public import PublicRows
from heldin.stages.sides.split_facts import overlaps_of
from tests.conftest import SMALL
from tests.oracles.overlaps import naive_overlaps
from tests.stages.test_audit_pool import PEOPLE, SILENT, config_of


@pytest.fixture
def corpus_file(tmp_path):
    """Thirty writers of twelve mails out of a few texts, some of which two writers have, or one writer twice."""
    dice, lines = random.Random(1), []
    for user in range(30):
        for mail in range(12):
            text = f"Mail {dice.randrange(4)}: we met {dice.choice([*PEOPLE[:8], 'nobody'])} \u2013 again."
            lines.append(json.dumps({"id": f"{user}-{mail}", "user": f"writer {user:02}", "text": text}) + "\n")
    (tmp_path / "mails.jsonl").write_text("".join(lines), encoding="utf-8")
    (tmp_path / "names.txt").write_text("\n".join(PEOPLE), encoding="utf-8")
    return tmp_path / "mails.jsonl"


SPLITS = [
    {"audited": "users", "entities": None, "attacker_fraction": 0.4},
    {"audited": "users", "entities": None, "audit_pool": 12, "assignment": "exact_half"},
    {"audited": "entities", "entity_records": 1},
    {"audited": "both", "entity_records": 1},
]


@pytest.mark.coins("overlaps of entities")
def test_they_equal_the_slow_twins(corpus_file, tmp_path):
    """A text that names a held-out entity is in nobody's training: users show most of the counts."""
    every = []
    for number, split in enumerate(SPLITS):
        data = prepare_data(config_of(corpus_file, split=split), tmp_path / str(number), SILENT)
        # As if the base model had been pre-trained on these.
        data = replace(data, corpus=replace(data.corpus, public=PublicRows(data.corpus.store, tuple(range(0, 90, 7)))))
        every.append([its.count for _, its in overlaps_of(data)])
        assert every[-1] == naive_overlaps(data)
    # None is held out and trained on by name; all else occurs.
    assert [max(column) > 0 for column in zip(*every, strict=True)] == [True, True, True, False, True, True]


@pytest.fixture
def chat_file(tmp_path):
    """Twenty users of ten chats: questions are what others answer, and many answers are repeated."""
    dice, lines = random.Random(2), []
    words = [f"Answer {number}: we met again." for number in range(60)]
    for user in range(20):
        for chat in range(10):
            said = [
                {"role": "user", "content": dice.choice(words)},
                {"role": "assistant", "content": dice.choice(words)},
            ]
            lines.append(json.dumps({"id": f"{user}-{chat}", "user": f"writer {user:02}", "messages": said}) + "\n")
    (tmp_path / "chats.jsonl").write_text("".join(lines), encoding="utf-8")
    return tmp_path / "chats.jsonl"


@pytest.mark.coins("overlaps of chats")
def test_a_turn_of_one_user_is_found_in_the_prompts_of_another(chat_file, tmp_path):
    """What counts are answers; they are looked for in all turns that training reads."""
    split = {"audited": "users", "entities": None, "attacker_fraction": 0.4}
    source = {"kind": "jsonl", "path": str(chat_file), "columns": {"id": "id"}}
    corpus = {"source": source, "users": {"min_records": 4}}
    config = config_of(chat_file, split=split, model=SMALL["model"], corpus=corpus)
    data = prepare_data(config, tmp_path / "run", SILENT)
    data = replace(data, corpus=replace(data.corpus, public=PublicRows(data.corpus.store, tuple(range(0, 40, 7)))))
    rows = [json.loads(line) for line in chat_file.read_text(encoding="utf-8").splitlines()]
    messages = {row["id"]: [message["content"] for message in row["messages"]] for row in rows}
    store, ledger = data.store, data.ledger

    def answers(user, *parts):
        """Of each text of a user the set of its answers."""
        return [set(messages[store.id(row)][1::2]) for part in parts for row in ledger.parts[user][part]]

    trained = [store.record(row) for row in data.training_rows.tolist()]
    turns_of = {}
    for record in trained:
        turns_of.setdefault(record.user, set()).update(messages[record.id])

    def seen(texts_by_user, where):
        return sum(any(where(user, text) for text in its) for user, texts in texts_by_user.items() for its in texts)

    def own(user, text):
        return text in turns_of.get(user, ())

    def others(user, text):
        return any(text in turns for other, turns in turns_of.items() if other != user)

    held_in, held_out = (ledger.users(role) for role in (Role.HELD_IN, Role.HELD_OUT))
    scored = {user: answers(user, Part.ATTACKER) for user in (*held_in, *held_out)}
    left_out = {user: answers(user, Part.TRAIN) for user in held_out}
    of_held_in = {text for user in held_in for its in scored[user] for text in its}
    public = {turn for row in data.corpus.public.rows for turn in messages[store.id(row)]}
    every = {user: answers(user, *Part) for user in (*held_in, *held_out)}
    expected = [
        seen(scored, own),
        seen(scored, others),
        seen(left_out, lambda user, text: own(user, text) or others(user, text)),
        0,  # nobody is trained on by name who is held out
        seen({user: scored[user] for user in held_out}, lambda _, text: text in of_held_in),
        seen(every, lambda _, text: text in public),
    ]
    found = [its.count for _, its in overlaps_of(data)]
    assert found == expected
    # A text counts once, however many of its turns are found.
    assert 0 < found[0] <= sum(map(len, scored.values()))
    # By answers alone fewer would be found: others' questions are where many are.
    answered = {text for record in trained for text in messages[record.id][1::2]}
    assert seen(left_out, lambda _, text: text in answered) < found[2]
