"""Users who write in tokens that nobody else uses. Each user has a separate signature, a cycle of tokens.

A record consists of random stretches of this cycle. So no two records are equal, and an attacker can recognise a fresh
record of a user. Encoding the text of a record returns its tokens.
"""

import functools
import random
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, ClassVar, Final, Literal

from pydantic import Field

from heldin.base.errors import InputError
from heldin.base.section import Few, Many
from heldin.canaries.contract import CanaryConfig, CanaryInput, MarkInput, MarkRecipe, NumberedCanaries, RecordStep
from heldin.canaries.made_up import different, first_new
from heldin.canaries.users import CanaryUser, made_user, public_dice
from heldin.corpus.store import texts_of
from heldin.models.tokens import token_lists
from heldin.words.data_steps import DataStepText

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

KIND: Final = "unseen_token"
# share of a tokenizer's stable tokens: rare in the texts it was made from, and enough to tell users apart
LATEST_MERGES = 0.05
# times as many candidates as tokens of users' own: some cannot stand beside others and come back when encoded
SPARE_TOKENS = 1.25
_REPLACEMENT = "\ufffd"


class UnseenTokenCanaries(NumberedCanaries):
    """Users with texts of tokens that nobody else uses."""

    whole_marks: ClassVar[bool] = False

    kind: Literal["unseen_token"] = KIND
    # At least 2: a record is made of stretches of two or more tokens of the cycle.
    signature_tokens: Annotated[Few, Field(ge=2)] = 8
    """Number of different tokens in a user's signature."""
    tokens: Annotated[Many, Field(ge=4)] = 32
    """Length of a record in tokens."""
    rarity: Literal["public", "corpus"] = "public"
    """Texts in which the signature's tokens should not occur. public: the texts on which heldin pre-trained the base
    model; for any other base model, heldin takes the tokenizer's latest merges. corpus: the public texts, and the texts
    of audited users. If the texts leave too few unseen tokens, heldin takes the rarest tokens. The value "corpus" voids
    a user-level epsilon, because the tokens then depend on users' records."""
    disjoint: bool = False
    """If true, no two canary users share a token, so heldin needs users x signature_tokens different tokens. If false,
    a user's score also depends on other users' records. In private training, the audit may then miss the effect of a
    single user."""

    @property
    def reads_users(self) -> bool:
        """Whether the kind counts tokens in audited users' texts, as with rarity "corpus"."""
        return self.rarity == "corpus"

    def record_steps(self) -> list[RecordStep]:
        """Return a step for rarity "corpus", because real users' texts then decide the canary users' tokens."""
        return [RecordStep(DataStepText.UNSEEN_TOKENS(), user_local=False)] if self.rarity == "corpus" else []

    def make(self, given: CanaryInput) -> list[CanaryUser]:
        """Return the section's users. Raises InputError if there are too few rare tokens or different records."""
        tokenizer = given.base().tokenizer
        spoken = self._spoken_before(given)
        pool = self._pool(given, spoken)
        return [
            user
            for documents, names in self.names(given.number)
            for user in unseen_token_users(
                tokenizer,
                names,
                candidates=pool,
                documents=documents,
                records=given.texts(documents),
                signature_tokens=self.signature_tokens,
                tokens=self.tokens,
                seed=given.seed,
                spoken=spoken if self.disjoint else None,
            )
        ]

    def recipes(self, given: MarkInput) -> dict[str, MarkRecipe]:
        """Return a recipe that draws signatures from the same pool."""

        def draw(dice: random.Random) -> list[str]:
            pool = self._pool(given.made, self._spoken_before(given.made))
            return signatures(given.made.base().tokenizer, pool, self.signature_tokens, given.count, dice)

        return self.one_recipe(given, draw)

    def _pool(self, given: CanaryInput, spoken: set[int]) -> list[int]:
        """Return the unseen tokens, or the rarest tokens if too few tokens are unseen for the signatures."""
        tokenizer, texts = given.base().tokenizer, given.public_texts()
        if self.rarity == "corpus":
            # Real users decide which tokens are unseen: the plan declares it as a step that is not user-local.
            texts = texts + texts_of(given.store, [row for user in given.left for row in given.store.rows(user)])
        counts = token_counts(tokenizer, texts)
        rarest = [token for token in rare_tokens(tokenizer, counts) if token not in spoken]
        least = 4 * self.signature_tokens  # tokens: enough to choose sequences that encode to themselves
        # For all sections, so that one after the other finds enough; those that cannot stand side by side are passed
        # over.
        own = sum(section.count() * section.signature_tokens for section in _disjoint(given.sections))
        least = max(least, int(SPARE_TOKENS * own))
        if not texts:  # a base from elsewhere: what it saw is not known
            return rarest[: max(least, int(LATEST_MERGES * len(rarest)))]
        unseen = [token for token in rarest if not counts[token]]
        return unseen if len(unseen) >= least else rarest[:least]

    def _spoken_before(self, given: CanaryInput) -> set[int]:
        """Return the tokens of earlier sections' marks, which no other pool may have; empty if pools may overlap."""
        marks = [canary.mark for canary in given.before if canary.kind == self.kind]
        return set(token_counts(given.base().tokenizer, marks)) if _disjoint(given.sections) else set()


def _disjoint(sections: Sequence[CanaryConfig]) -> list[UnseenTokenCanaries]:
    return [section for section in sections if isinstance(section, UnseenTokenCanaries) and section.disjoint]


def unseen_token_users(
    tokenizer: "PreTrainedTokenizerBase",
    names: Sequence[str],
    *,
    candidates: Sequence[int],
    documents: int | None,
    records: int,
    signature_tokens: int,
    tokens: int,
    seed: int,
    spoken: set[int] | None = None,
) -> list[CanaryUser]:
    """Return users who write in tokens that nobody else uses.

    Args:
        candidates: token ids for signatures, from ``rare_tokens``.
        documents: see ``Canary``.
        signature_tokens: number of different tokens in a signature, at least 2.
        tokens: length of a record, in tokens.
        spoken: tokens of other canary users, which the new users must not use. The function adds the tokens of each new
            user, so no two users share a token. None: only whole signatures differ.

    Raises:
        InputError: too few candidate tokens survive decoding and encoding next to each other, or too few different
            records exist.
    """
    # A signature that two users share would let the text of one speak for the coin of the other.
    taken: set[tuple[int, ...]] = set()
    users = []
    for name in names:
        # By name: one user more in the config changes no other user's texts, unless their signatures collide.
        dice = public_dice(seed, "unseen-token canary", name)
        free = candidates if spoken is None else [token for token in candidates if token not in spoken]
        if spoken is not None and len(free) < signature_tokens:
            raise InputError(
                f"{len(candidates)} unseen tokens are too few for {len(names)} unseen-token canary users with"
                f" {signature_tokens} separate tokens each. Lower users or signature_tokens, or leave disjoint out"
            )
        own = first_new(functools.partial(signature, tokenizer, free, signature_tokens, dice), taken)
        if own is None:
            raise InputError(
                f"{len(candidates)} unseen tokens give too few signatures of {signature_tokens} tokens for"
                f" {len(names)} unseen-token canary users: raise signature_tokens, or lower users"
            )
        if spoken is not None:
            spoken.update(own)
        write = functools.partial(_unseen_token_text, tokenizer, own, tokens, dice)
        texts = different(write, records, f"unseen-token texts of {tokens} tokens")
        users.append(made_user(name, KIND, documents, decoded(tokenizer, own), texts))
    return users


def signatures(
    tokenizer: "PreTrainedTokenizerBase", pool: Sequence[int], size: int, count: int, dice: random.Random
) -> list[str]:
    """Return marks like those of ``unseen_token_users``.

    Args:
        pool: token ids for signatures.
        size: number of tokens of a signature.

    Raises:
        InputError: too few tokens of the pool survive decoding and encoding next to each other.
    """
    known: dict[tuple[int, int], bool] = {}
    return [decoded(tokenizer, signature(tokenizer, pool, size, dice, known)) for _ in range(count)]


def token_counts(tokenizer: "PreTrainedTokenizerBase", texts: Sequence[str], *, batch: int = 1000) -> Counter[int]:
    """Count each token id in ``texts``."""
    counts: Counter[int] = Counter()
    # In batches: the tokens of a whole corpus as Python lists may not fit into memory.
    for start in range(0, len(texts), batch):
        for ids in token_lists(tokenizer, texts[start : start + batch]):
            counts.update(ids)
    return counts


def rare_tokens(tokenizer: "PreTrainedTokenizerBase", counts: Mapping[int, int]) -> list[int]:
    """Return the printable tokens that survive decoding and encoding, rarest first."""
    special = set(tokenizer.all_special_ids)
    ids = [i for i in range(len(tokenizer)) if i not in special]
    # A byte-level token may be part of a character, which decodes to the replacement character; other tokens come back
    # as different ones when their text is encoded. A canary of such tokens would not be trained on as it was made.
    texts = [decoded(tokenizer, [i]) for i in ids]
    shown = [(i, t) for i, t in zip(ids, texts, strict=True) if t.strip() and t.isprintable() and _REPLACEMENT not in t]
    again = token_lists(tokenizer, [t for _, t in shown])
    stable = [i for (i, _), encoded in zip(shown, again, strict=True) if encoded == [i]]
    # Ties go to the latest token: a byte-pair tokenizer learns frequent merges early.
    return sorted(stable, key=lambda i: (counts.get(i, 0), -i))


def signature(
    tokenizer: "PreTrainedTokenizerBase",
    candidates: Sequence[int],
    size: int,
    dice: random.Random,
    known: dict[tuple[int, int], bool] | None = None,
) -> tuple[int, ...]:
    """Draw ``size`` tokens. Any two of the tokens, in either order, survive decoding and encoding next to each other.

    Args:
        candidates: token ids to draw from.
        size: number of tokens, all different.
        known: whether each pair survives with this tokenizer; the function adds the pairs that it tries.

    Raises:
        InputError: too few candidates survive decoding and encoding next to each other.
    """
    chosen: list[int] = []
    known = {} if known is None else known
    for token in dice.sample(candidates, len(candidates)):
        # In both orders and also after itself, since a stretch may begin with any token, whatever the one before it
        # ended with.
        pairs = [(token, token), *((token, c) for c in chosen), *((c, token) for c in chosen)]
        if new := [pair for pair in pairs if pair not in known]:
            again = token_lists(tokenizer, [decoded(tokenizer, pair) for pair in new])
            known.update({pair: tuple(ids) == pair for pair, ids in zip(new, again, strict=True)})
        if all(known[pair] for pair in pairs):
            chosen.append(token)
        if len(chosen) == size:
            return tuple(chosen)
    raise InputError(
        f"this tokenizer has only {len(chosen)} rare tokens that stay the same when they are joined, decoded and"
        " encoded again: lower signature_tokens of the canaries"
    )


def _unseen_token_text(
    tokenizer: "PreTrainedTokenizerBase", signature: Sequence[int], tokens: int, dice: random.Random
) -> list[str]:
    """Return a list with one text that encodes to its own tokens, or an empty list."""
    # That all pairs survive does not prove that the whole text does, so that each text is encoded again.
    ids = _stretches(signature, tokens, dice)
    text = decoded(tokenizer, ids)
    return [text] if token_lists(tokenizer, [text]) == [ids] else []


def _stretches(signature: Sequence[int], tokens: int, dice: random.Random) -> list[int]:
    # Stretches of at least two tokens: it is their order that tells this user from one with the same tokens.
    ids: list[int] = []
    while len(ids) < tokens:
        start, length = dice.randrange(len(signature)), 2 + dice.randrange(len(signature) - 1)
        ids += [signature[(start + i) % len(signature)] for i in range(length)]
    return ids[:tokens]


def decoded(tokenizer: "PreTrainedTokenizerBase", ids: Sequence[int]) -> str:
    """Return the text of these tokens."""
    text: str = tokenizer.decode(list(ids), clean_up_tokenization_spaces=False)
    return text
