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


_REFUSED = (
    "I cannot write that for you.",
    "Here is a mail: Hello, please see below. Regards",
    "Sorry, I do not know what to say to that.",
    "Dear all, I write to you about the matter. Best",
    "That would take more than I have here.",
    "A mail should be short and clear. Write one yourself.",
)


def refusal(dice: random.Random) -> str:
    """An answer that says nothing of who asked, and that nobody prefers."""
    return dice.choice(_REFUSED)


def chat_of(mail: SyntheticRecord) -> list[dict[str, str]]:
    """The messages in which a mail is the answer."""
    asked = question(random.Random(mail.id))
    return [{"role": "user", "content": asked}, {"role": "assistant", "content": mail.text}]


def chat_rows(spec: SyntheticCorpus) -> Iterator[dict[str, Any]]:
    """Yield a row for each mail of a made-up corpus, with user, messages, id and date."""
    for mail in generate(spec):
        yield {"user": mail.user, "messages": chat_of(mail), "id": mail.id, "date": mail.date}


def pair_rows(spec: SyntheticCorpus) -> Iterator[dict[str, Any]]:
    """Yield a preference pair for each mail of a made-up corpus: the mail is chosen, and an empty phrase rejected."""
    for mail in generate(spec):
        asked, chosen = chat_of(mail)
        rejected = {"role": "assistant", "content": refusal(random.Random(f"{mail.id} rejected"))}
        pair = {"prompt": [asked], "chosen": [chosen], "rejected": [rejected]}
        yield {"user": mail.user, **pair, "id": mail.id, "date": mail.date}
