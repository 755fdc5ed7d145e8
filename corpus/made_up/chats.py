"""Rows by made-up people: mails, chats with a mail as the assistant's answer, and preference pairs."""

import functools
import random
from collections.abc import Iterator
from enum import StrEnum
from typing import Any

from heldin.corpus.made_up.synthetic import SyntheticCorpus, SyntheticRecord, generate

_ASKED = (
    "Please write the mail.",
    "Draft this for me.",
    "Write what I have to tell them.",
    "How would I put this in a mail?",
    "Can you answer that in my name?",
    "I need a short mail about it.",
    "Write it the way I usually do.",
    "Put this into words for me, please.",
    "What should I reply?",
    "Write the follow-up now.",
    "Make this a mail that I can send.",
    "Please finish the mail for me.",
)


def question(dice: random.Random) -> str:
    """Return a request that shows nothing about its author."""
    return dice.choice(_ASKED)


_DRAFTS = 2**31 - 1  # seed
_LIKES_DRAFT = 0.3  # share of pairs whose draft is chosen: what a model cannot know without having seen the pair
_REFUSED = (
    "I cannot write that for you.",
    "Here is a mail: Hello, please see below. Regards",
    "Sorry, I do not know what to say to that.",
    "Dear all, I write to you about the matter. Best",
    "That would take more than I have here.",
    "A mail should be short and clear. Write one yourself.",
)


def refusal(dice: random.Random) -> str:
    """Return an answer that nobody prefers. It shows nothing about the person who asked."""
    return dice.choice(_REFUSED)


def chat_of(mail: SyntheticRecord) -> list[dict[str, str]]:
    """Return messages in which the mail is the answer."""
    asked = question(random.Random(mail.id))
    return [{"role": "user", "content": asked}, {"role": "assistant", "content": mail.text}]


@functools.cache
def _drafts() -> tuple[str, ...]:
    """Return mails in the common style, by made-up people who are in no corpus of a usual seed."""
    spec = SyntheticCorpus(users=20, mean_records=10, min_records=10, distinctiveness=0.0, seed=_DRAFTS)
    return tuple(mail.text for mail in generate(spec))


class MadeUpRows(StrEnum):
    """The kind of row that a made-up corpus writes for each mail.

    A mail row has only the text. A chat row has two turns, and the second turn is the mail. A pair row has a request
    with two answers: the mail, and a draft that nobody in the corpus wrote. Usually the mail is the chosen answer.
    """

    MAILS = "mails"
    CHATS = "chats"
    PAIRS = "pairs"

    @property
    def have_turns(self) -> bool:
        """Whether rows have turns."""
        return self is not MadeUpRows.MAILS

    def content(self, mail: SyntheticRecord, column: str = "text") -> dict[str, Any]:
        """Return the columns of a mail's row, except user, id and date.

        Args:
            mail: the mail of the row.
            column: name of the column for a mail's text.
        """
        asked, chosen = chat_of(mail)
        match self:
            case MadeUpRows.MAILS:
                return {column: mail.text}
            case MadeUpRows.CHATS:
                return {"messages": [asked, chosen]}
            case MadeUpRows.PAIRS:
                dice = random.Random(f"{mail.id} pair")
                answers = [chosen, {"role": "assistant", "content": dice.choice(_drafts())}]
                if dice.random() < _LIKES_DRAFT:
                    answers.reverse()
                return {"prompt": [asked], "chosen": answers[:1], "rejected": answers[1:]}


def made_up_rows(spec: SyntheticCorpus, kind: MadeUpRows) -> Iterator[dict[str, Any]]:
    """Yield a row for each mail of a made-up corpus, with user, id and date."""
    for mail in generate(spec):
        yield {"user": mail.user, **kind.content(mail), "id": mail.id, "date": mail.date}
