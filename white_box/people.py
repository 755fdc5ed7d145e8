"""The people of a white-box audit: writers who differ as much as those of a corpus, and text canaries.

A text is a list of token ids. Writers differ in how many records they have and how long these are; two have the same
texts, two nearly the same name, one repeats itself, one is brief, two write in tokens that nobody else uses. A text
canary repeats one such token, so that the token's embedding row depends on it and on hardly anybody else. Nothing here
depends on a key.
"""

from dataclasses import dataclass

from transformers import PreTrainedTokenizerFast

from heldin.corpus.made_up.synthetic import SyntheticCorpus, generate_user
from heldin.finetune.batches import encode
from heldin.models.tiny import train_tokenizer

Text = list[int]

LONGEST = 24  # maximum tokens of a record after its start token
VOCABULARY = 300  # tokens
SICK = "somebody whose gradient is not finite"
_CANARY_TOKENS = 6  # how often a record of a text canary repeats its token
_MAILS = (1, 2, 3, 6, 2)  # of the writers of ordinary mail
_LENGTHS = (24, 9, 15, 5, 20, 12)  # of their records, in turn
_LOUD_TOKENS = 12  # tokens of one writer that nobody else uses


@dataclass(frozen=True)
class Person:
    """A user: the name, and the records as token ids, each with its start token."""

    name: str
    records: tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class People:
    """Everybody, and the tokens that only some of them use.

    Attributes:
        writers: people who are always in.
        canaries: text canaries, each in by a coin.
        sick: a person whose gradient is made not finite, for the checks that test it.
        sick_token: the token that does so.
        own_tokens: the token of each text canary.
        rare: every token that no ordinary mail contains.
    """

    tokenizer: PreTrainedTokenizerFast
    writers: tuple[Person, ...]
    canaries: tuple[Person, ...]
    sick: Person
    sick_token: int
    own_tokens: tuple[int, ...]
    rare: tuple[int, ...]

    @property
    def everybody(self) -> tuple[Person, ...]:
        """Writers, text canaries, and the sick person."""
        return (*self.writers, *self.canaries, self.sick)


def gather(canaries: int, members: int, seed: int) -> People:
    """Writers and at most ``canaries`` text canaries of ``members`` records each; a public function of the seed."""
    spec = SyntheticCorpus(users=len(_MAILS) + 4, mean_records=max(_MAILS), min_records=max(_MAILS), seed=seed)
    mails = [list(generate_user(spec, user)) for user in range(spec.users)]
    tokenizer = train_tokenizer([mail.text for mailbox in mails for mail in mailbox], VOCABULARY)
    texts = [encode(tokenizer, [mail.text for mail in mailbox], LONGEST) for mailbox in mails]
    start = texts[0][0][0]
    used = {token for records in texts for text in records for token in text}
    rare = [token for token in range(len(tokenizer)) if token not in used and token != start]
    ordinary = [
        _person(mailbox[0].user, [texts[i][j][: _LENGTHS[j % len(_LENGTHS)] + 1] for j in range(_MAILS[i])])
        for i, mailbox in enumerate(mails[: len(_MAILS)])
    ]
    others = texts[len(_MAILS) :]
    # The first for the writers "loud" and "echo" and the sick person, the others for the text canaries, one each.
    special, own = rare[: _LOUD_TOKENS + 2], rare[_LOUD_TOKENS + 2 :]
    writers = (*ordinary, *_unlike(ordinary[1].name, others, start, special))
    sick = _person(SICK, [[start, special[-1], *others[3][0][1:8]]])
    saying = [
        _person(f"text canary {j}", [[start] + [token] * _CANARY_TOKENS] * members)
        for j, token in enumerate(own[:canaries])
    ]
    return People(tokenizer, writers, tuple(saying), sick, special[-1], tuple(own[: len(saying)]), tuple(rare))


def _unlike(name: str, texts: list[list[Text]], start: int, special: list[int]) -> list[Person]:
    """Writers who differ from the others, each in one respect.

    Args:
        name: name of an ordinary writer, from which nearly equal names are made.
        texts: texts of people who are not writers themselves.
        special: tokens that nobody else uses.
    """
    first, second, third, fourth = texts[:4]
    shared = [first[0], first[1][:13]]
    return [
        _person("one text, two names", shared),
        _person("two names, one text", shared),
        _person(name.upper(), [second[0]]),
        _person(f"{name}.uk", [second[1][:11]]),
        _person("one record thrice", [third[0][:17]] * 3),
        _person("one word", [[start, third[1][1]]]),
        _person("loud", [[start, *special[:_LOUD_TOKENS]]]),
        _person("echo", [[start] + [special[_LOUD_TOKENS]] * (LONGEST - 1), fourth[1][:7]]),
    ]


def _person(name: str, records: list[Text]) -> Person:
    return Person(name, tuple(tuple(text) for text in records))
