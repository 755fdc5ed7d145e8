"""Two-turn chats of made-up people: somebody asks for a mail, and the assistant writes it as that person would."""

import random
from collections.abc import Iterator
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
    """A request that says nothing of who makes it."""
    return dice.choice(_ASKED)


def chat_of(mail: SyntheticRecord) -> list[dict[str, str]]:
    """The messages in which a mail is the answer."""
    asked = question(random.Random(mail.id))
    return [{"role": "user", "content": asked}, {"role": "assistant", "content": mail.text}]


def chat_rows(spec: SyntheticCorpus) -> Iterator[dict[str, Any]]:
    """Yield a row for each mail of a made-up corpus, with user, messages, id and date."""
    for mail in generate(spec):
        yield {"user": mail.user, "messages": chat_of(mail), "id": mail.id, "date": mail.date}
