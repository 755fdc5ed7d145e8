"""Where texts are cut: by words, at fixed shares; chats before a turn that counts."""

import pytest

from heldin.attacks.cuts import LEAST_WORDS, cuts_of
from heldin.corpus.document import Document, Turn, TurnLayout

SHARES = (0.25, 0.5, 0.75)


def test_a_text_is_cut_at_shares_of_its_words():
    text = " ".join(f"w{i}" for i in range(16))
    cuts = cuts_of(Document.of(text), SHARES, 32)
    assert [(cut.prefix.text, cut.continuation) for cut in cuts] == [
        (" ".join(f"w{i}" for i in range(at)), " " + " ".join(f"w{i}" for i in range(at, 16))) for at in (4, 8, 12)
    ]
    assert cuts_of(Document.of(text), (0.5,), 5)[0].continuation == " w8 w9 w10 w11 w12"


@pytest.mark.parametrize(("words", "expected"), [(LEAST_WORDS, 0), (LEAST_WORDS + 1, 1), (LEAST_WORDS + 3, 2)])
def test_a_short_text_has_fewer_cuts_or_none(words, expected):
    cuts = cuts_of(Document.of(" ".join(["word"] * words)), SHARES, 32)
    assert len(cuts) == expected
    assert all(cut.prefix.text and len(cut.continuation.split()) >= LEAST_WORDS for cut in cuts)


def test_a_completion_is_cut_behind_its_prompt_too():
    prompt, first, second = "Say it:", " one two three four", " five six seven eight"
    text = prompt + first + second
    cuts = cuts_of(Document(text, ((8, len(text)),)), (0.01, 0.5), 32)
    assert [cut.prefix.text for cut in cuts] == [prompt, prompt + first]


@pytest.fixture
def chat():
    """A text of four turns, of which the assistant's count."""
    question, answer = "how are you", "well and a bit tired"
    parts = [("user", question), ("assistant", answer), ("user", "why"), ("assistant", "no idea")]
    text, turns = "", []
    for role, words in parts:
        text += f"<|{role}|>"
        turns.append(Turn(role, len(text), len(text) + len(words) + 5))
        text += f"{words}<|e|>"
    layout = TurnLayout(tuple(turns))
    spans = tuple((turn.begin, turn.end) for turn in turns if turn.role == "assistant")
    return Document(text, spans, layout)


def test_a_chat_is_cut_before_its_turns_that_count(chat):
    answer, begin = "well and a bit tired", chat.layout.turns[1].begin
    (cut,) = cuts_of(chat, SHARES, 32)  # the last answer has two words
    assert (cut.prefix.text, cut.continuation) == (chat.text[:begin], answer)
    assert (cut.prefix.turns, cut.prefix.begun) == ((("user", "how are you"),), False)
    assert cuts_of(chat, SHARES, 4)[0].continuation == answer.removesuffix(" tired")


def test_for_next_tokens_a_chat_is_cut_inside_its_turns_too(chat):
    begin = chat.layout.turns[1].begin
    cuts = cuts_of(chat, [i / 17 for i in range(1, 17)], 32, inside=True)
    assert [cut.prefix.text for cut in cuts] == [chat.text[:begin], f"{chat.text[:begin]}well"]
    assert [cut.continuation.split()[:2] for cut in cuts] == [["well", "and"], ["and", "a"]]
    assert [cut.prefix.turns[1:] for cut in cuts] == [(), (("assistant", "well"),)]
    assert [cut.prefix.begun for cut in cuts] == [False, True]
