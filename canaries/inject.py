"""Algorithm 1 of Kandpal et al. (2024), Appendix D.2: real users with one shared substring in every document.

A canary user replaces a real user: its records are that user's, each with the same l tokens inserted at a random place.
A canary user depends on that user's records and name and a public seed, and on nobody else.

Two departures from the paper, which inserts tokens into token sequences: texts stay texts here, so that the substring
is inserted between words, and it is inserted where training sees it.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass

from transformers import PreTrainedTokenizerBase

from heldin.base.coins import keyed_digest, seed_key
from heldin.canaries.kinds import Canary, CanaryRecord, CanaryUser, Kind, public_dice
from heldin.corpus.document import Document
from heldin.corpus.store import CorpusRecord

TRIES = 64
NEAR = 40  # characters: about a long word
MARGIN = 0.9  # share of the visible characters that is used, since documents differ in characters per token


@dataclass(frozen=True)
class Substring:
    """A substring of one document.

    Attributes:
        length: its tokens.
        characters_per_token: of that document.
    """

    text: str
    length: int
    characters_per_token: float


def canary_name(seed: int, source: str) -> str:
    """The canary user's name, which hides the real user's and depends on no other user."""
    # The key is public: anyone who has the seed and a list of users can undo it. It keeps names out of tables, no more.
    return f"canary/{Kind.SUBSTRING}/{keyed_digest(seed_key(seed), 'canary name', source).hex()[:16]}"


def has_document_of(tokenizer: PreTrainedTokenizerBase, texts: Sequence[str], length: int) -> bool:
    """Return whether one of the texts has at least ``length`` tokens."""
    if any(len(text.split(maxsplit=length)) >= length for text in texts):  # a word is a token or more
        return True
    # A byte-level token has at least one byte, so that a text of fewer bytes need not be tokenized.
    return any(len(_encode(tokenizer, text)) >= length for text in texts if len(text.encode()) >= length)


def sample_substring(
    tokenizer: PreTrainedTokenizerBase, texts: Sequence[str], length: int, dice: random.Random
) -> Substring | None:
    """A random substring of a random text; None if no text has ``length`` tokens.

    It is redrawn until it encodes to the same tokens between two words; if no such substring is found, the first draw
    is returned.
    """
    spare = None
    # Texts first and then a place in each: a long text is not more likely than a short one to be the source.
    for i in dice.sample(range(len(texts)), len(texts)):
        ids = _encode(tokenizer, texts[i])
        if len(ids) < length:
            continue
        starts = range(len(ids) - length + 1)
        for start in dice.sample(starts, min(TRIES, len(starts))):
            window = ids[start : start + length]
            substring = Substring(_decode(tokenizer, window), length, len(texts[i]) / len(ids))
            if _stands_unchanged(tokenizer, window, substring.text):
                return substring
            # Kept because Algorithm 1 takes any substring: some scripts and tokenizers have none that survives between
            # two words.
            spare = spare or substring
    return spare


def insert_at_random(text: str, substring: str, dice: random.Random, *, within: int) -> tuple[str, int]:
    """Insert a substring before random white space or at the end, within the first characters of a text.

    If there is no such place, it is inserted at the next one if that is near, else (in scripts without white space) at
    a random character.

    Args:
        within: characters from the beginning within which to insert.

    Returns:
        The new text and the position of the insertion, in characters.
    """
    # Trailing blanks are left out: the substring would stand apart from the text.
    body = len(text.rstrip())
    last = min(body, max(within, 1))
    # Draw and reject: uniform over the ends of words, and without a list of all of them, which only a text with few
    # such places needs.
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
    records: Sequence[CorpusRecord],
    *,
    length: int,
    documents: int | None,
    visible_tokens: int,
    visible_characters: int,
    seed: int,
) -> CanaryUser | None:
    """Algorithm 1 for one user; None if no document has ``length`` tokens.

    Args:
        records: all of one real user.
        length: tokens of the shared substring.
        visible_tokens: tokens of a record that training sees.
        visible_characters: characters of a text that the attack sees.
    """
    source = records[0].user
    dice = public_dice(seed, "canary substring", source)
    shared = sample_substring(tokenizer, [record.document.counted for record in records], length, dice)
    if shared is None:
        return None
    name = canary_name(seed, source)
    # In characters, as far as the sampled document's ratio of characters to tokens can tell. A substring past the cut
    # would mark the user without ever being trained on, and the canary would look safe.
    in_training = int((visible_tokens - length) * shared.characters_per_token * MARGIN)
    within = min(in_training, visible_characters - len(shared.text))
    marked = []
    # Into the records that are set aside too: the substring is what the attacker's fresh texts share with those trained
    # on.
    for record in records:
        document, place = _marked(record.document, shared.text, dice, within)
        marked.append(CanaryRecord(f"{name}/{record.id}", document, record.date, place))
    return CanaryUser(Canary(name, Kind.SUBSTRING, length, documents, source, shared.text), tuple(marked))


def _marked(document: Document, substring: str, dice: random.Random, within: int) -> tuple[Document, int | None]:
    """The document with the substring inserted into what counts of it, and the place; None where nothing counts."""
    if document.is_plain:
        text, at = insert_at_random(document.text, substring, dice, within=within)
        return Document.of(text), at
    if not document.counted:
        return document, None
    # In the characters that count, one part after the other, of which fewer are within the limit.
    visible = len(document.cut(within).counted) if within > 0 else 0
    _, at = insert_at_random(document.counted, substring, dice, within=visible)
    place: int | None = None
    spans = []
    for begin, end in document.spans:
        if place is None and at <= end - begin:
            place = begin + at
            spans.append((begin, end + len(substring)))
        else:
            at -= end - begin
            moved = 0 if place is None else len(substring)
            spans.append((begin + moved, end + moved))
    assert place is not None
    return Document(document.text[:place] + substring + document.text[place:], tuple(spans)), place


def _is_boundary(text: str, place: int, body: int) -> bool:
    return not text[place - 1].isspace() and (place == body or text[place].isspace())


def _stands_unchanged(tokenizer: PreTrainedTokenizerBase, window: list[int], text: str) -> bool:
    """Return whether the window's text encodes to the window's tokens between two words."""
    # The substring is inserted into text, and the whole is tokenized again: a tokenizer that merges over its edges
    # would make other tokens of it. Any two words would show that.
    before, after = _encode(tokenizer, "so"), _encode(tokenizer, " so")
    return _encode(tokenizer, f"so{text} so") == [*before, *window, *after]


def _encode(tokenizer: PreTrainedTokenizerBase, text: str) -> list[int]:
    ids: list[int] = tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]
    return ids


def _decode(tokenizer: PreTrainedTokenizerBase, ids: Sequence[int]) -> str:
    text: str = tokenizer.decode(list(ids), clean_up_tokenization_spaces=False)
    return text
