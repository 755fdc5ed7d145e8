"""Algorithm 1 of Kandpal et al. (2024), Appendix D.2: real users with a shared substring in each of their documents.

A canary user replaces a real user. The canary user's records are the real user's records, with l tokens inserted into
each record at a random place. All records get equal tokens. A canary user depends only on the real user's records and
name, and on a public seed.

heldin differs from the paper, which inserts tokens into token sequences, in two ways. It inserts the substring between
the words of a text, and at a place that training sees.
"""

import functools
import random
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar, Final, Literal

from pydantic import Field, model_validator

from heldin.base.coins import keyed_digest, keyed_order, keyed_uniform, seed_key
from heldin.base.errors import InputError
from heldin.base.section import Few, Many
from heldin.canaries.contract import CanaryConfig, CanaryInput, MarkInput, MarkRecipe, RecordStep
from heldin.canaries.users import Canary, CanaryRecord, CanaryUser, public_dice
from heldin.corpus.document import Document, Spans
from heldin.corpus.store import CorpusRecord, texts_of
from heldin.words.data_steps import DataStepText

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

KIND: Final = "substring"
TRIES = 64
NEAR = 40  # characters: about a long word
MARGIN = 0.9  # share of the visible characters that is used, since documents differ in characters per token


class SubstringCanaries(CanaryConfig):
    """Algorithm 1 of Kandpal et al. (2024): a canary user replaces a real user, and has this user's documents, with one
    substring in each.
    """

    replaces_users: ClassVar[bool] = True

    kind: Literal["substring"] = KIND
    lengths: tuple[Annotated[int, Field(ge=1, le=1000)], ...] = Field(min_length=1)
    """Substring lengths in tokens. Each length must be below finetune.sequence_length."""
    users: Many | None = None
    """Number of canary users for each combination of a length and a number of documents. A fixed number voids a
    user-level epsilon, because adding one user to the corpus can change who else is a canary user. Give either
    ``users`` or ``fraction``."""
    fraction: float | None = Field(None, gt=0, le=1)
    """Probability that a user becomes a canary user. For each user, heldin draws separately and publicly whether the
    user becomes a canary user, and draws the length and the number of documents. The draw does not depend on other
    users, so it does not void a user-level epsilon. Give either ``fraction`` or ``users``."""
    documents: tuple[Few | None, ...] = Field((None,), min_length=1)
    """Number of training records per canary user, if the canary user is a member. null: all records except those set
    aside for the attacker and the evaluation."""

    @model_validator(mode="after")
    def _one_of_both(self) -> "SubstringCanaries":
        # Never both: a number and a probability would disagree, and they differ in what they do to user-level epsilon
        # (docs/theory.md#rules-of-the-data).
        if (self.users is None) == (self.fraction is None):
            raise ValueError("give exactly one of users (for each pair of length and documents) and fraction")
        return self

    def groups(self) -> list[tuple[int, int | None]]:
        """Return every distinct (length, documents), longest first."""
        # Any user with a document long enough for a long substring can take a short one too, but not the reverse.
        pairs = {(length, documents) for length in self.lengths for documents in self.documents}
        return sorted(pairs, key=lambda pair: (-pair[0], -(pair[1] or 0)))

    def longest_mark(self) -> int:
        """Length of the longest substring, in tokens."""
        return max(self.lengths)

    def record_steps(self) -> list[RecordStep]:
        """Return the step of Algorithm 1, which changes a user's records with a public seed.

        With ``users``, also return the choice of users.
        """
        changed = RecordStep(DataStepText.SUBSTRING(), user_local=True)
        chosen = RecordStep(DataStepText.CANARY_USERS(), user_local=False)
        return [changed] if self.users is None else [changed, chosen]

    def count(self) -> int | None:
        """Number of users, ``users`` per group; None with ``fraction``, because a separate coin decides each user."""
        return None if self.users is None else self.users * len(self.groups())

    def make(self, given: CanaryInput) -> list[CanaryUser]:
        """Return changed copies of real users. Raises InputError if too few users have long enough documents."""
        return self._by_number(given, self.users) if self.users else self._by_coin(given, self.fraction or 0.0)

    def users_of(self, number: int, canaries: Collection[Canary]) -> list[Canary]:
        """Return the canary users of the section's groups. The group identifies these users, because their names do
        not."""
        groups = set(self.groups())
        return [c for c in canaries if c.kind == self.kind and (c.length, c.documents) in groups]

    def recipes(self, given: MarkInput) -> dict[str, MarkRecipe]:
        """Return recipes that draw substrings of other people's texts, one recipe per length for all sections."""
        lengths = {
            length: [c.user for c in given.canaries if c.kind == self.kind and c.length == length]
            for length in set(self.lengths)
        }
        return {
            f"substring of {length}": MarkRecipe(users, functools.partial(_never_planted, given, length))
            for length, users in lengths.items()
            if users
        }

    def _by_number(self, given: CanaryInput, users: int) -> list[CanaryUser]:
        """Make ``users`` canary users of each length and number of documents, from the real users in random order."""
        waiting = keyed_order(seed_key(given.seed), f"canary source {given.number}", list(given.left))
        made: list[CanaryUser] = []
        for length, documents in self.groups():
            fitting: list[CanaryUser] = []
            for user in waiting:
                # No further: to try a user is to encode that user's texts.
                if len(fitting) == users:
                    break
                if _has_documents(given, user, documents) and (canary := _canary(given, user, length, documents)):
                    fitting.append(canary)
            if len(fitting) < users:
                raise _too_few(given, length, documents, users, len(made))
            chosen = {canary.canary.source for canary in fitting}
            # Users of one group are not taken again; the longest substrings chose first (``SubstringCanaries.groups``).
            waiting = [user for user in waiting if user not in chosen]
            made += fitting
        return made

    def _by_coin(self, given: CanaryInput, fraction: float) -> list[CanaryUser]:
        """Decide each user by a separate coin, in a group that is drawn for the user.

        Users who do not qualify stay real.
        """
        key, groups = seed_key(given.seed), self.groups()
        made = []
        for user in given.left:
            # The coin depends on name and public seed alone, so that the choice is user-local
            # (docs/theory.md#rules-of-the-data).
            if keyed_uniform(key, f"canary coin {given.number}", user) >= fraction:
                continue
            # Drawn whatever the user's texts are: among the groups that fit, short
            # texts would all go to short substrings.
            length, documents = groups[int(keyed_uniform(key, f"canary group {given.number}", user) * len(groups))]
            if _has_documents(given, user, documents) and (canary := _canary(given, user, length, documents)):
                made.append(canary)
        if not made:
            raise InputError(
                f"canaries.{given.number}: no user became a canary user at fraction {fraction}: raise fraction, or"
                " lower lengths and documents"
            )
        return made


def _has_documents(given: CanaryInput, user: str, documents: int | None) -> bool:
    # Training documents are what is left after the set-asides.
    return documents is None or given.in_training(given.store.count(user)) >= documents


def _canary(given: CanaryInput, user: str, length: int, documents: int | None) -> CanaryUser | None:
    return canary_of_user(
        given.base().tokenizer,
        [given.store.record(row) for row in given.store.rows(user)],
        length=length,
        documents=documents,
        visible_tokens=given.visible_tokens,
        visible_characters=given.visible_characters,
        seed=given.seed,
    )


def _too_few(given: CanaryInput, length: int, documents: int | None, users: int, used: int) -> InputError:
    tokenizer, audited = given.base().tokenizer, given.left
    enough = [user for user in audited if _has_documents(given, user, documents)]
    # Counted only for the message: the limit that is in the way is named.
    fitting = sum(has_document_of(tokenizer, texts_of(given.store, given.store.rows(u)), length) for u in enough)
    why = f"too few users have a document of {length} tokens"
    many = ""
    if documents is not None:
        many = f" and {documents} training documents"
        if len(enough) < users:
            why = f"too few users have {documents} training documents ({len(enough)} do)"
    return InputError(
        f"canaries.{given.number}: {why}. {fitting} of {len(audited)} users have a document of {length} tokens"
        f"{many}, {used} of these {len(audited)} went to other groups, and {users} are needed: lower lengths,"
        " documents or users"
    )


def _never_planted(given: MarkInput, length: int) -> list[str]:
    recipe = f"substring of {length}"
    return substrings(
        given.made.base().tokenizer,
        given.waiting(recipe),
        given.aside,
        length,
        given.count,
        lambda user, turn: given.dice(recipe, f"{turn} {user}"),
    )


@dataclass(frozen=True)
class Substring:
    """A substring of one document.

    Attributes:
        length: number of its tokens.
        characters_per_token: average number of characters per token in the document.
    """

    text: str
    length: int
    characters_per_token: float


def canary_name(seed: int, source: str) -> str:
    """Return the canary user's name. It hides the real user's name, and does not depend on other users."""
    # The key is public: anyone who has the seed and a list of users can undo it. It keeps names out of tables, no more.
    return f"canary/{KIND}/{keyed_digest(seed_key(seed), 'canary name', source).hex()[:16]}"


def has_document_of(tokenizer: "PreTrainedTokenizerBase", texts: Sequence[str], length: int) -> bool:
    """Return whether one of the texts has at least ``length`` tokens."""
    if any(len(text.split(maxsplit=length)) >= length for text in texts):  # a word is a token or more
        return True
    # A byte-level token has at least one byte, so that a text of fewer bytes need not be tokenized.
    return any(len(_encode(tokenizer, text)) >= length for text in texts if len(text.encode()) >= length)


def sample_substring(
    tokenizer: "PreTrainedTokenizerBase", texts: Sequence[str], length: int, dice: random.Random
) -> Substring | None:
    """Return a random substring of a random text; None if no text has ``length`` tokens.

    heldin draws again until the substring encodes to the same tokens between two words. If no draw does, the function
    returns the first draw.
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
    """Insert a substring at random white space or at the end, within the first characters of a text.

    If the first characters have no white space, the function uses the next white space if it is near. Otherwise, as in
    scripts without white space, the place is at a random character.

    Args:
        within: number of first characters that may contain the place.

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
    tokenizer: "PreTrainedTokenizerBase",
    records: Sequence[CorpusRecord],
    *,
    length: int,
    documents: int | None,
    visible_tokens: int,
    visible_characters: int,
    seed: int,
) -> CanaryUser | None:
    """Apply Algorithm 1 to one user; None if no document has ``length`` tokens.

    Args:
        records: all records of one real user.
        length: number of tokens of the shared substring.
        visible_tokens: number of tokens of a record that training sees.
        visible_characters: number of characters of a text that the attack sees.
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
    return CanaryUser(Canary(name, KIND, length, documents, source, shared.text), tuple(marked))


def _marked(document: Document, substring: str, dice: random.Random, within: int) -> tuple[Document, int | None]:
    """Insert the substring into the counted part of the document, and return the place; None if nothing counts."""
    if document.is_plain:
        text, at = insert_at_random(document.text, substring, dice, within=within)
        return Document.of(text), at
    if not document.counted:
        return document, None
    # In the characters that count, one part after the other, of which fewer are within the limit.
    visible = len(document.cut(within).counted) if within > 0 else 0
    _, at = insert_at_random(document.counted, substring, dice, within=visible)
    for begin, end in document.spans:
        if begin < end and at <= end - begin:
            break
        at -= end - begin
    place, longer = begin + at, len(substring)

    def moved(parts: Spans) -> Spans:
        # The part grows that it was inserted into, and what holds that part; those behind it move.
        after = (longer if first >= end else 0 for first, _ in parts)
        return tuple(
            (first + by, last + (longer if first <= begin and last >= end else by))
            for (first, last), by in zip(parts, after, strict=True)
        )

    layout = document.layout
    if layout is not None:
        layout = layout.moved(moved, lambda first: first + (longer if first >= end else 0))
    return Document(f"{document.text[:place]}{substring}{document.text[place:]}", moved(document.spans), layout), place


def _is_boundary(text: str, place: int, body: int) -> bool:
    return not text[place - 1].isspace() and (place == body or text[place].isspace())


def _stands_unchanged(tokenizer: "PreTrainedTokenizerBase", window: list[int], text: str) -> bool:
    """Return whether the window's text encodes to the window's tokens between two words."""
    # The substring is inserted into text, and the whole is tokenized again: a tokenizer that merges over its edges
    # would make other tokens of it. Any two words would show that.
    before, after = _encode(tokenizer, "so"), _encode(tokenizer, " so")
    return _encode(tokenizer, f"so{text} so") == [*before, *window, *after]


def _encode(tokenizer: "PreTrainedTokenizerBase", text: str) -> list[int]:
    ids: list[int] = tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]
    return ids


def _decode(tokenizer: "PreTrainedTokenizerBase", ids: Sequence[int]) -> str:
    text: str = tokenizer.decode(list(ids), clean_up_tokenization_spaces=False)
    return text


def substrings(
    tokenizer: "PreTrainedTokenizerBase",
    users: Sequence[str],
    texts: Callable[[str], Sequence[str]],
    length: int,
    count: int,
    dice: Callable[[str, int], random.Random],
) -> list[str]:
    """Return marks like those of ``canary_of_user``, from one user after another.

    The list is empty if no text has ``length`` tokens.

    Args:
        users: users, in the order of their turns.
        length: number of tokens of a substring.
        dice: function that returns a source of randomness for a user and the number of the turn.
    """
    marks: list[str] = []
    turn, left = 0, list(users)
    while left and len(marks) < count:
        able = []
        for user in left:
            drawn = sample_substring(tokenizer, texts(user), length, dice(user, turn))
            if drawn is not None:
                marks.append(drawn.text)
                able.append(user)
            if len(marks) == count:
                break
        # Whose texts are all too short is not asked again.
        turn, left = turn + 1, able
    return marks
