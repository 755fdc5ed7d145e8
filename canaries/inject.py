"""Algorithm 1 of Kandpal et al. (2024), Appendix D.2: real users whose every document carries one shared substring.

A canary user takes a real user's place: its records are that user's, each with the same l tokens inserted at a random
place. What becomes of a user depends on that user's records, its name and a public seed, and on nobody else's.

Two departures from the paper, which inserts tokens into token sequences. Texts stay texts here, so the substring is one
that stands unchanged between words (its l tokens come back when the text is encoded), and it goes between two words
where the text has any. And it goes where training looks: within the first tokens that a sequence is cut to, as far as
the sampled document's characters per token tell.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass

from transformers import PreTrainedTokenizerBase

from heldin.base.coins import keyed_digest, seed_key
from heldin.canaries.kinds import Canary, CanaryRecord, CanaryUser, Kind, public_dice
from heldin.corpus.store import Record

TRIES = 64
NEAR = 40  # characters: a long word, a short name
MARGIN = 0.9  # of the characters that are taken to be visible, since documents differ in characters per token


@dataclass(frozen=True)
class Substring:
    """A substring of ``length`` tokens of one document, and how many characters a token of that document has."""

    text: str
    length: int
    characters_per_token: float


def canary_name(seed: int, source: str) -> str:
    """The canary user's name: it hides the real user's, and depends on no other user."""
    return f"canary/{Kind.SUBSTRING}/{keyed_digest(seed_key(seed), 'canary name', source).hex()[:16]}"


def has_document_of(tokenizer: PreTrainedTokenizerBase, texts: Sequence[str], length: int) -> bool:
    """Whether one of the texts has at least ``length`` tokens."""
    if any(len(text.split(maxsplit=length)) >= length for text in texts):  # a word is a token or more
        return True
    return any(len(_encode(tokenizer, text)) >= length for text in texts if len(text.encode()) >= length)


def sample_substring(
    tokenizer: PreTrainedTokenizerBase, texts: Sequence[str], length: int, dice: random.Random
) -> Substring | None:
    """A random ``length``-token substring of a random text that has so many tokens; None if no text has.

    Drawn again until it stands unchanged between two words; where no text has such a one, the first that was drawn.
    """
    spare = None
    for i in dice.sample(range(len(texts)), len(texts)):
        ids = _encode(tokenizer, texts[i])
        if len(ids) < length:
            continue
        starts = range(len(ids) - length + 1)
        for start in dice.sample(starts, min(TRIES, len(starts))):
            window = ids[start : start + length]
            found = Substring(_decode(tokenizer, window), length, len(texts[i]) / len(ids))
            if _stands_unchanged(tokenizer, window, found.text):
                return found
            spare = spare or found
    return spare


def insert_at_random(text: str, substring: str, dice: random.Random, *, within: int) -> tuple[str, int]:
    """The text with ``substring`` before a random white space or at the end, in the first ``within`` characters.

    Where no such place is there: at the next one if it is near, else (scripts without white space) at a random
    character. Returns the text and the place, in characters.
    """
    body = len(text.rstrip())
    last = min(body, max(within, 1))
    for _ in range(TRIES):
        place = 1 + int(dice.random() * last)
        if _is_boundary(text, place, body):
            break
    else:
        places = [i for i in range(1, last + 1) if _is_boundary(text, i, body)]
        near = [i for i in range(last + 1, min(body, last + NEAR) + 1) if _is_boundary(text, i, body)][:1]
        places = places or near or list(range(last + 1))
        place = places[int(dice.random() * len(places))]
    return text[:place] + substring + text[place:], place


def canary_of_user(
    tokenizer: PreTrainedTokenizerBase,
    records: Sequence[Record],
    *,
    length: int,
    documents: int | None,
    visible_tokens: int,
    visible_characters: int,
    seed: int,
) -> CanaryUser | None:
    """Algorithm 1 for one user; None where no document has ``length`` tokens.

    Args:
        tokenizer: of the model.
        records: all of one real user.
        length: tokens of the shared substring.
        documents: see ``Canary``.
        visible_tokens: that training sees of a record.
        visible_characters: that the attack sees of a text.
        seed: public.
    """
    source = records[0].user
    dice = public_dice(seed, "canary substring", source)
    shared = sample_substring(tokenizer, [record.text for record in records], length, dice)
    if shared is None:
        return None
    name = canary_name(seed, source)
    in_training = int((visible_tokens - length) * shared.characters_per_token * MARGIN)
    within = min(in_training, visible_characters - len(shared.text))
    marked = []
    for record in records:
        text, place = insert_at_random(record.text, shared.text, dice, within=within)
        marked.append(CanaryRecord(f"{name}/{record.id}", text, record.date, place))
    return CanaryUser(Canary(name, Kind.SUBSTRING, length, documents, source, shared.text), tuple(marked))


def _is_boundary(text: str, place: int, body: int) -> bool:
    return not text[place - 1].isspace() and (place == body or text[place].isspace())


def _stands_unchanged(tokenizer: PreTrainedTokenizerBase, window: list[int], text: str) -> bool:
    """Whether the window's tokens come back between two words."""
    before, after = _encode(tokenizer, "so"), _encode(tokenizer, " so")
    return _encode(tokenizer, f"so{text} so") == [*before, *window, *after]


def _encode(tokenizer: PreTrainedTokenizerBase, text: str) -> list[int]:
    ids: list[int] = tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]
    return ids


def _decode(tokenizer: PreTrainedTokenizerBase, ids: Sequence[int]) -> str:
    text: str = tokenizer.decode(list(ids), clean_up_tokenization_spaces=False)
    return text
