"""Canary users made from nothing: unseen tokens, text sampled from the base model, a rare phrase in ordinary mail.

Pure functions of public inputs (tokenizer, base model, seed): no protected user's record is read, so planting canary
users costs nobody any privacy. What a canary user writes depends only on its name and the seed. All records of a canary
user come from one generator, so that some can be set aside as fresh text.
"""

import functools
import random
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeVar

from transformers import PreTrainedTokenizerBase

from heldin.base.errors import InputError
from heldin.canaries.kinds import Canary, CanaryRecord, CanaryUser, Kind, public_dice
from heldin.corpus.document import Document
from heldin.corpus.made_up.lexicon import STOCKS
from heldin.corpus.made_up.synthetic import SyntheticCorpus, generate_user
from heldin.models.continuations import sample_texts
from heldin.models.loading import LanguageModel
from heldin.models.tokens import token_lists

TRIES = 40  # per wanted record, before giving up on a generator that repeats itself
_T = TypeVar("_T")
_REPLACEMENT = "\ufffd"
_WORDS = tuple(
    dict.fromkeys(
        word.lower() for table in ("project_first", "project_second", "client_first") for word in STOCKS[table]
    )
)


def token_counts(tokenizer: PreTrainedTokenizerBase, texts: Sequence[str], *, batch: int = 1000) -> Counter[int]:
    """Count each token id in ``texts``."""
    counts: Counter[int] = Counter()
    # In batches: the tokens of a whole corpus as Python lists may not fit into memory.
    for start in range(0, len(texts), batch):
        for ids in token_lists(tokenizer, texts[start : start + batch]):
            counts.update(ids)
    return counts


def rare_tokens(tokenizer: PreTrainedTokenizerBase, counts: Mapping[int, int]) -> list[int]:
    """Printable tokens that survive decoding and encoding, rarest first."""
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


def unseen_token_users(
    tokenizer: PreTrainedTokenizerBase,
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
    """Users who write in tokens that nobody else uses, each with a signature of its own (a cycle of tokens).

    A record is made of random stretches of this cycle, so that no two records are equal and a fresh one is still
    recognisably the same user's. Encoding a record's text gives its tokens back.

    Args:
        candidates: token ids from which signatures are drawn, from ``rare_tokens``.
        documents: see ``Canary``.
        signature_tokens: different tokens in a signature, at least 2.
        tokens: length of a record.
        spoken: tokens of other canary users, none of which is used here; those of each user are added, so that no two
            users share one. None: only whole signatures differ.

    Raises:
        InputError: too few candidates can follow each other unchanged, or there are too few different records.
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
                f"{len(candidates)} unseen tokens are too few for {signature_tokens} of its own for each of"
                f" {len(names)} unseen-token canary users: lower users or signature_tokens, or leave disjoint out"
            )
        own = first_new(functools.partial(signature, tokenizer, free, signature_tokens, dice), taken)
        if own is None:
            raise InputError(
                f"{len(names)} unseen-token canary users, but {len(candidates)} tokens give fewer signatures of"
                f" {signature_tokens}: raise signature_tokens or lower users"
            )
        if spoken is not None:
            spoken.update(own)
        write = functools.partial(_unseen_token_text, tokenizer, own, tokens, dice)
        texts = _different(write, records, f"unseen-token texts of {tokens} tokens")
        users.append(made_user(name, Kind.UNSEEN_TOKEN, documents, decoded(tokenizer, own), texts))
    return users


def high_temperature_users(
    lm: LanguageModel,
    names: Sequence[str],
    *,
    documents: int | None,
    records: int,
    prefix_tokens: int,
    tokens: int,
    temperature: float,
    seed: int,
    advance: Callable[[int], object] | None = None,
) -> list[CanaryUser]:
    """Users whose texts the base model sampled at a high temperature, each continuing the user's own prefix.

    Args:
        documents: see ``Canary``.
        prefix_tokens: length of the prefix, which is sampled at the same temperature.
        tokens: most new tokens of a record.
        seed: public; prefix and texts follow from it and the name.
        advance: called with the number of users done.

    Raises:
        InputError: the temperature is not positive, the prefix fills the context, or the model keeps repeating itself
            or returning nothing.
    """
    # Without a prefix all these users would write from one distribution, and fresh text could not tell them apart.
    taken: set[str] = set()
    users = []
    for name in names:
        dice = public_dice(seed, "high-temperature canary", name)
        prefix = first_new(functools.partial(_prefix, lm, prefix_tokens, temperature, dice), taken)
        if prefix is None:
            raise InputError(f"the base model gives no new prefix at temperature {temperature}: raise prefix_tokens")
        write = functools.partial(sampled, lm, records, tokens, temperature, dice, prefix)
        texts = _different(write, records, f"texts of {tokens} tokens from the base model")
        users.append(made_user(name, Kind.HIGH_TEMPERATURE, documents, prefix, texts))
        if advance:
            advance(1)
    return users


def rare_phrase_users(
    names: Sequence[str], *, documents: int | None, records: int, phrase_words: int, seed: int
) -> list[CanaryUser]:
    """Users with ordinary mail in which every record contains one sentence, the user's own phrase.

    The mail is that of the synthetic corpus at distinctiveness 0: apart from the phrase nothing in a text depends on
    its user.

    Args:
        documents: see ``Canary``.
        phrase_words: words of the phrase, drawn from a common stock and unlikely to occur together elsewhere.

    Raises:
        InputError: there are more users than phrases.
    """
    taken: set[str] = set()
    users = []
    for name in names:
        dice = public_dice(seed, "rare-phrase canary", name)
        own = first_new(functools.partial(phrase, phrase_words, dice), taken)
        if own is None:
            raise InputError(
                f"{len(names)} rare-phrase canary users, but few phrases of {phrase_words} words: raise phrase_words"
            )
        marked = mail_with(functools.partial(_always, own), records, dice)
        users.append(
            made_user(name, Kind.RARE_PHRASE, documents, own, [text for text, _ in marked], [at for _, at in marked])
        )
    return users


def _always(sentence: str, _dice: random.Random) -> str:
    return sentence


def mail_with(
    sentence: Callable[[random.Random], str], records: int, dice: random.Random, *, places: int | None = None
) -> list[tuple[str, int]]:
    """Different mails of the synthetic corpus at distinctiveness 0, each with a sentence, and where it was inserted.

    Args:
        places: number of sentences, from the first, before which it may stand; None: all.
    """
    # Text to position; a dict, because two mails may turn out equal and must not both count.
    mails: dict[str, int] = {}
    while len(mails) < records:
        # With mean and minimum equal a user has exactly this number of mails; the loop goes on where some were equal.
        spec = SyntheticCorpus(1, float(records), records, distinctiveness=0.0, seed=dice.getrandbits(31))
        mails |= dict(_with_sentence(mail.text, sentence(dice), dice, places) for mail in generate_user(spec, 0))
    return list(mails.items())[:records]


def made_user(
    name: str,
    kind: Kind,
    documents: int | None,
    mark: str,
    texts: Iterable[str],
    positions: Sequence[int] | None = None,
) -> CanaryUser:
    """A canary user who writes these texts.

    Args:
        kind: see ``Canary``.
        documents: see ``Canary``.
        mark: what the texts share.
        texts: in order.
        positions: of the mark in each text, in characters; None if it was not inserted.
    """
    records = tuple(
        CanaryRecord(f"{name}/{i:05d}", Document.of(text), position=positions[i] if positions else None)
        for i, text in enumerate(texts)
    )
    return CanaryUser(Canary(name, kind, None, documents, None, mark), records)


def signature(
    tokenizer: PreTrainedTokenizerBase,
    candidates: Sequence[int],
    size: int,
    dice: random.Random,
    known: dict[tuple[int, int], bool] | None = None,
) -> tuple[int, ...]:
    """``size`` tokens of which any two, in either order, survive decoding and encoding side by side.

    Args:
        candidates: token ids to draw from.
        size: how many, all different.
        known: which pairs survive with this tokenizer; those that are tried are added.

    Raises:
        InputError: too few of the candidates can stand side by side.
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
        f"only {len(chosen)} rare tokens of this tokenizer can stand side by side and come back when encoded again:"
        " lower canaries signature_tokens"
    )


def _unseen_token_text(
    tokenizer: PreTrainedTokenizerBase, signature: Sequence[int], tokens: int, dice: random.Random
) -> list[str]:
    """One text that encodes to its own tokens, or none."""
    # That all pairs survive does not prove that the whole text does, so that each text is encoded again.
    ids = _stretches(signature, tokens, dice)
    text = decoded(tokenizer, ids)
    return [text] if token_lists(tokenizer, [text]) == [ids] else []


def sampled(
    lm: LanguageModel, count: int, most: int, temperature: float, dice: random.Random, prompt: str
) -> list[str]:
    """Prompt plus continuation, for each continuation that is not blank.

    Args:
        count: how many to sample; blank ones are left out.
        most: most new tokens of each.
        prompt: what each continues.
    """
    # 62 bits fit into the signed 64-bit seed of torch.
    continuations = sample_texts(
        lm, count, seed=dice.getrandbits(62), temperature=temperature, max_tokens=most, prompt=prompt
    )
    return [prompt + text for text in continuations if not _blank(text)]


def _prefix(lm: LanguageModel, tokens: int, temperature: float, dice: random.Random) -> str:
    return "".join(sampled(lm, 1, tokens, temperature, dice, ""))


def first_new(draw: Callable[[], _T], taken: set[_T]) -> _T | None:
    """The first draw that is neither empty nor taken, added to ``taken``; None after ``TRIES`` draws."""
    for _ in range(TRIES):
        drawn = draw()
        if drawn and drawn not in taken:
            taken.add(drawn)
            return drawn
    return None


def _stretches(signature: Sequence[int], tokens: int, dice: random.Random) -> list[int]:
    # Stretches of at least two tokens: it is their order that tells this user from one with the same tokens.
    ids: list[int] = []
    while len(ids) < tokens:
        start, length = dice.randrange(len(signature)), 2 + dice.randrange(len(signature) - 1)
        ids += [signature[(start + i) % len(signature)] for i in range(length)]
    return ids[:tokens]


def phrase(words: int, dice: random.Random) -> str:
    """So many words of a common stock, as a sentence."""
    return " ".join(dice.choice(_WORDS) for _ in range(words)).capitalize() + "."


def _with_sentence(text: str, sentence: str, dice: random.Random, most: int | None) -> tuple[str, int]:
    """The text with the sentence inserted before a random other sentence, and the position of the insertion."""
    # Positions are of the first character of a sentence; 0 is before the first one.
    places = [0, *(i + 2 for i in range(len(text) - 2) if text[i : i + 2] == ". ")]
    at = dice.choice(places[:most])
    return f"{text[:at]}{sentence} {text[at:]}", at


def _different(write: Callable[[], list[str]], count: int, subject: str) -> list[str]:
    """``count`` different texts that are not blank. Raises InputError if ``write`` keeps repeating itself."""
    texts: dict[str, None] = {}
    # A generator with too few texts would go on for ever: a signature of 2 tokens has few different short stretches.
    for _ in range(TRIES * count):
        texts |= dict.fromkeys(text for text in write() if not _blank(text))
        if len(texts) >= count:
            return list(texts)[:count]
    raise InputError(f"only {len(texts)} of {count} different {subject} could be made: allow more tokens")


def _blank(text: str) -> bool:
    return not text.strip() or "\0" in text


def decoded(tokenizer: PreTrainedTokenizerBase, ids: Sequence[int]) -> str:
    """The text of these tokens."""
    text: str = tokenizer.decode(list(ids), clean_up_tokenization_spaces=False)
    return text
