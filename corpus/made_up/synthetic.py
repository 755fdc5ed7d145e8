"""Readable e-mail by made-up people. Mails are drawn from the mixture of users that user inference assumes.

Source: Kandpal et al., "User Inference Attacks on Large Language Models", equation (1): D_task = sum_u alpha_u D_u.
User u has weight alpha_u. D_u differs from the company's common distribution in topics, habits of phrase and
punctuation, correspondents, clients, projects and signature. Each choice in a mail follows either the user's habit or
the company's habit; ``distinctiveness`` sets how often it follows the user's habit. No two users share an address.
"""

import functools
import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from typing import Annotated, ClassVar

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from heldin.base.errors import InputError
from heldin.base.section import DATACLASS_SECTION, Count, Many, Positive, Seed
from heldin.corpus.made_up.lexicon import CONTRACTIONS, DOMAIN, PHRASES, STOCKS, TOPICS, Tables

_SPREAD = 0.75  # standard deviation of a user's log share: a few users write several times as much as the median
_HABIT, _OWN, _SIGN = 0.6, 0.8, 1.0  # at distinctiveness 1: chance of a favourite phrase, an own person, a signature
_SHORTEST, _LONGEST = 26, 86  # words of a body before its closing
_FIRST_DAY, _WEEKS = datetime(2023, 1, 2, tzinfo=UTC), 104  # a Monday
_WEIGHT, _PROFILE, _RECORDS, _NAMES = range(4)  # purposes of the random streams
_NO_REPEAT = frozenset(
    ("opening", "statement", "remark", "ask", "closing", "fact", "problem", "step", "tail", "aside", "finding")
)


@dataclass(frozen=True)
class SyntheticCorpus:
    """Public parameters of a made-up corpus. Equal parameters give equal text under the same version of NumPy.

    A larger number of ``users`` adds users, and does not change the records of the other users; only the other users'
    shares alpha_u shrink. A user has ``mean_records`` records on average, and at least ``min_records``. At
    ``distinctiveness`` 0, no text depends on its user. At 0.5, most of the text is common to all users. At 1, users
    sign every mail, and most of their choices are personal.

    Raises:
        InputError: a parameter is out of range.
    """

    __pydantic_config__: ClassVar = DATACLASS_SECTION

    users: Count = 240
    """Number of made-up users."""
    mean_records: Positive = 30.0
    """Mean number of records per user, at least ``min_records``."""
    min_records: Many = 12
    """Minimum number of records per user."""
    distinctiveness: Annotated[float, Field(ge=0, le=1)] = 0.5
    """How much each user's texts differ from those of others, from 0 (all users write alike) to 1."""
    seed: Seed = 0
    """Seed of the texts; the same seed gives the same texts."""

    def __post_init__(self) -> None:
        at_least = {"users": (self.users, 1), "min_records": (self.min_records, 1), "seed": (self.seed, 0)}
        check_parameters("synthetic", at_least, self.mean_records, self.min_records, self.distinctiveness)


def check_parameters(
    kind: str,
    at_least: Mapping[str, tuple[int, int]],
    mean_records: float,
    min_records: int,
    distinctiveness: float,
) -> None:
    """Refuse parameters that no generated corpus can have.

    Args:
        kind: name of the corpus, for errors.
        at_least: for each parameter, its value and the lowest allowed value.
        distinctiveness: the dial of the corpus, in [0, 1].

    Raises:
        InputError: a parameter is out of range.
    """
    for name, (value, least) in at_least.items():
        if value < least:
            raise InputError(f"{kind} corpus: {name} is {value}, too small a number. Give {least} or more")
    if not min_records <= mean_records < math.inf:
        raise InputError(
            f"{kind} corpus: mean_records is {mean_records}, not a number of at least min_records ({min_records})."
            " Raise mean_records, or lower min_records"
        )
    if not 0 <= distinctiveness <= 1:
        raise InputError(
            f"{kind} corpus: distinctiveness is {distinctiveness}, outside [0, 1]. Give a number from 0 (all users"
            " alike) to 1 (most personal)"
        )


@dataclass(frozen=True)
class SyntheticRecord:
    """One mail.

    Attributes:
        user: the writer's address.
        text: the whole mail.
        date: date of the mail, ISO 8601, UTC.
    """

    user: str
    text: str
    id: str
    date: str


def generate(spec: SyntheticCorpus) -> Iterator[SyntheticRecord]:
    """Yield the records user by user. Each user's records are sorted by date."""
    for user in range(spec.users):
        yield from generate_user(spec, user)


def generate_user(spec: SyntheticCorpus, user: int) -> Iterator[SyntheticRecord]:
    """Yield the records of the user with this index (from 0), as in ``generate``, without other users' records.

    Raises InputError if the corpus has no such user.
    """
    if not 0 <= user < spec.users:
        raise InputError(f"synthetic corpus: there is no user {user}. Choose one from 0 to {spec.users - 1}")
    person, dice = _person(spec, user), _Dice(spec.seed, _RECORDS, user)
    # Random rounding, so that a user's expected number of records is exact.
    count = math.floor(expected_records(spec, user) + dice.roll())
    for number, sent in enumerate(sorted(_working_time(dice) for _ in range(count))):
        name, date = f"synthetic-{user:06d}-{number:04d}", f"{sent:%Y-%m-%dT%H:%M:%SZ}"
        yield SyntheticRecord(user=person.facts["address"], text=_Mail(person, sent, dice).write(), id=name, date=date)


class _Dice:
    """Draws from a random stream, which depends only on a seed, a purpose and a user index."""

    def __init__(self, seed: int, purpose: int, user: int = 0) -> None:
        self.rng = np.random.Generator(np.random.Philox(np.random.SeedSequence(seed, spawn_key=(purpose, user))))
        self._pool: list[float] = []

    def roll(self) -> float:
        """Return a uniform number in [0, 1)."""
        # Drawn in blocks: one at a time takes ten times as long.
        if not self._pool:
            self._pool = self.rng.random(512).tolist()
        return self._pool.pop()

    def pick(self, options: tuple[str, ...]) -> str:
        return options[int(self.roll() * len(options))]

    def between(self, low: int, high: int) -> int:
        return low + int(self.roll() * (high - low + 1))


def expected_records(spec: SyntheticCorpus, user: int) -> float:
    """Return ``min_records`` plus a log-normal number with mean ``mean_records - min_records``."""
    normal = _Dice(spec.seed, _WEIGHT, user).rng.standard_normal()
    # exp(s z) has mean exp(s^2 / 2) for a standard normal z; the second term divides by it.
    return spec.min_records + (spec.mean_records - spec.min_records) * math.exp(_SPREAD * normal - _SPREAD**2 / 2)


def _working_time(dice: _Dice) -> datetime:
    day = timedelta(weeks=dice.between(0, _WEEKS - 1), days=dice.between(0, 4))
    return _FIRST_DAY + day + timedelta(hours=7, seconds=dice.between(0, 12 * 3600 - 1))


@dataclass(frozen=True)
class _Style:
    """Probabilities per mail or sentence, and the factor ``length`` on body length. The defaults are the company's."""

    contraction: float = 0.5
    aside: float = 0.2
    question: float = 0.25
    remark: float = 0.25
    greeting: float = 0.8
    closing: float = 0.7
    card: float = 0.35
    postscript: float = 0.05
    paragraph: float = 0.2
    exclamation: float = 0.08
    spelled_number: float = 0.5
    wide_space: float = 0.2
    typo: float = 0.04
    length: float = 1.0


@dataclass(frozen=True)
class _Person:
    """The traits that distinguish one user. At ``distinctiveness`` 0 the traits have no effect; their effect grows with
    ``distinctiveness``."""

    facts: Mapping[str, str]  # name, address, signature
    topics: tuple[float, ...]  # cumulative chances, shape (topics,)
    style: _Style
    own: Tables  # own persons, clients, projects, sites
    favourites: tuple[Tables, ...]  # per topic
    dial: float


def _person(spec: SyntheticCorpus, user: int) -> _Person:
    # The same draws at every dial: a user keeps names, habits and people, and the dial only says how much they weigh.
    dice, dial = _Dice(spec.seed, _PROFILE, user), spec.distinctiveness
    first, last, address = _name(spec.seed, user)
    topics = dice.rng.dirichlet(np.full(len(TOPICS), 0.3))
    shared = asdict(_Style())
    # Beta(2m, 2 - 2m) has mean m and is wide: some users never do a thing, some mostly do.
    style = {name: dice.rng.beta(2 * mean, 2 - 2 * mean) for name, mean in shared.items() if name != "length"}
    style["length"] = 0.6 + 0.8 * dice.roll()
    sizes = {"person": 6, "client": 3, "project": 3, "site": 2}
    own = {name: tuple(dice.pick(STOCKS[name]) for _ in range(size)) for name, size in sizes.items()}
    facts = {"first": first, "last": last, "f": first[0], "l": last[0], "address": address, "home": own["site"][0]}
    facts |= {"title": dice.pick(STOCKS["title"]), "extension": str(dice.between(2000, 9899))}
    facts["department"] = TOPICS[int(topics.argmax())]["team"][0].removeprefix("the ").capitalize()
    return _Person(
        facts=facts,
        topics=tuple(np.cumsum((1 - dial) / len(topics) + dial * topics).tolist()),
        style=_Style(**{name: float(mean + dial * (style[name] - mean)) for name, mean in shared.items()}),
        own=own,
        favourites=_habits(dice) if dial else TOPICS,  # at dial 0 nothing is chosen by habit
        dial=dial,
    )


def _habits(dice: _Dice) -> tuple[Tables, ...]:
    common = {name: _favourites(dice, table) for name, table in PHRASES.items()}
    return tuple(
        common | {name: _favourites(dice, table) for name, table in topic.items() if table is not PHRASES.get(name)}
        for topic in TOPICS
    )


def _name(seed: int, user: int) -> tuple[str, str, str]:
    """Return first name, last name and address. Repeated pairs of names get middle initials, then numbers."""
    order, lasts = _name_order(seed), STOCKS["last_name"]
    lap, place = divmod(user, len(order))
    number, initial = divmod(lap, 27)
    first, last = STOCKS["person"][order[place] // len(lasts)], lasts[order[place] % len(lasts)]
    middle = f".{'abcdefghijklmnopqrstuvwxyz'[initial - 1]}" if initial else ""
    return first, last, f"{first}{middle}.{last}{number + 1 if number else ''}@{DOMAIN}".lower()


@functools.lru_cache(maxsize=4)
def _name_order(seed: int) -> NDArray[np.int64]:
    return _Dice(seed, _NAMES).rng.permutation(len(STOCKS["person"]) * len(STOCKS["last_name"]))


def _favourites(dice: _Dice, table: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(dice.pick(table) for _ in range(2 + len(table) // 10))


class _Mail:
    """A mail that is being written. Its topic, people and things stay the same from beginning to end."""

    def __init__(self, person: _Person, sent: datetime, dice: _Dice) -> None:
        self._person, self._style, self._sent, self._dice = person, person.style, sent, dice
        level = dice.roll()
        # The last topic also where the cumulative chances end an ulp below one.
        topic = next((i for i, chance in enumerate(person.topics) if level < chance), len(TOPICS) - 1)
        self._tables, self._favourites = TOPICS[topic], person.favourites[topic]
        self._said: set[str] = set()
        # At dial 0 even never writing to a namesake would tell users apart.
        taken = {person.facts["first"]} if person.dial else set()
        cast = self._distinct(lambda: self._own_or_any("person"), 3, taken)
        thing, other = self._distinct(lambda: self._choose("thing"), 2, set())
        an_other = f"{'an' if other[0] in 'aeiou' else 'a'} {other}"
        self._bound = {**person.facts, "thing": thing, "other": other, "an_other": an_other}
        self._bound |= zip(("to", "person", "colleague"), cast, strict=True)
        self._bound |= {name: self._own_or_any(name) for name in ("client", "project")}

    def write(self) -> str:
        """Return the whole text: greeting, paragraphs, signature and postscript, separated by blank lines."""
        style, chance = self._style, self._chance
        sentences = self._body()
        if chance(style.closing):
            sentences.append(self._sentence("closing"))
        paragraphs = [sentences[:1]]
        for sentence in sentences[1:]:
            if chance(style.paragraph):
                paragraphs.append([])
            paragraphs[-1].append(sentence)
        space = "  " if chance(style.wide_space) else " "
        blocks = [space.join(paragraph) for paragraph in paragraphs]
        if chance(style.greeting):
            blocks.insert(0, self._slot("hello"))
        # At dial 0 no mail is signed: a signature names its writer.
        if chance(_SIGN * self._person.dial):
            blocks.append(self._slot("card") if chance(style.card) else self._fill("{goodbye}, {me}"))
        if chance(style.postscript) and len(" ".join(blocks).split()) < _LONGEST:
            blocks.append(self._sentence("postscript"))
        text = "\n\n".join(blocks)
        return self._mistyped(text) if chance(style.typo) else text

    def _body(self) -> list[str]:
        target = _SHORTEST + self._dice.roll() * 50 * self._style.length
        sentences = [self._sentence("opening")]
        words = len(sentences[0].split())
        while words < target:
            kind = "remark" if self._chance(self._style.remark) else "statement"
            sentence = self._sentence("ask" if self._chance(self._style.question) else kind)
            words += len(sentence.split())
            if words > _LONGEST:
                break
            sentences.append(sentence)
        return sentences

    def _sentence(self, table: str) -> str:
        clause = self._slot(table)
        if table == "statement" and self._chance(self._style.aside):
            clause = f"{self._slot('aside')}, {clause}"
        mark = "" if clause.endswith("?") else "!" if self._chance(self._style.exclamation) else "."
        return clause[0].upper() + clause[1:] + mark

    def _chance(self, probability: float) -> bool:
        return self._dice.roll() < probability

    def _distinct(self, draw: Callable[[], str], size: int, taken: set[str]) -> list[str]:
        chosen: list[str] = []
        while len(chosen) < size:
            value = draw()
            if value not in taken and value not in chosen:
                chosen.append(value)
        return chosen

    def _own_or_any(self, name: str) -> str:
        return self._dice.pick((self._person.own if self._chance(_OWN * self._person.dial) else STOCKS)[name])

    def _choose(self, table: str) -> str:
        """Return a phrase of the table, sometimes by the user's habit.

        A mail seldom repeats phrases of ``_NO_REPEAT``.
        """
        phrase = ""
        for _ in range(6):  # a small table may have nothing new left; then repeat
            tables = self._favourites if self._chance(_HABIT * self._person.dial) else self._tables
            phrase = self._dice.pick(tables[table])
            if phrase not in self._said:
                break
        if table in _NO_REPEAT:
            self._said.add(phrase)
        return phrase

    def _fill(self, phrase: str) -> str:
        parts = list(_parts(phrase))
        parts[1::2] = [self._slot(name) for name in parts[1::2]]
        return "".join(parts)

    def _slot(self, name: str) -> str:
        if name in self._bound:
            return self._bound[name]
        if name in self._tables:
            return self._fill(self._choose(name))
        if name in CONTRACTIONS:
            return CONTRACTIONS[name][self._chance(self._style.contraction)]
        match name:
            case "site":
                return self._own_or_any(name)
            case "num":
                return self._dice.pick(STOCKS["number" if self._chance(self._style.spelled_number) else "id"])
            case "date_past":
                return self._date(-self._dice.between(2, 28))
            case "date_next":
                return self._date(self._dice.between(3, 40))
            case "month_next":
                # A month counts from 1 and the table from 0, so that this is the next month or one of the two after it.
                return STOCKS["month"][(self._sent.month + self._dice.between(0, 2)) % 12]
            case _:
                return self._dice.pick(STOCKS[name])

    def _date(self, days: int) -> str:
        day = self._sent + timedelta(days=days)
        if day.weekday() > 4:
            # Away from the day of sending, so that what is past stays past.
            day += timedelta(days=int(math.copysign(2, days)))
        month, ending = STOCKS["month"][day.month - 1], {1: "st", 2: "nd", 3: "rd"}.get(day.day % 10, "th")
        ordinal = f"{day.day}{'th' if 10 < day.day < 20 else ending}"
        return self._choose("date").format(month_name=month, month_short=month[:3], dom=day.day, ordinal=ordinal)

    def _mistyped(self, text: str) -> str:
        """Swap two inner letters of one lower-case word of the text. Names and addresses stay intact."""
        words = [match.start() for match in re.finditer(r"(?<= )[a-z]{6,}(?= )", text)]
        if not words:
            return text
        at = words[self._dice.between(0, len(words) - 1)] + self._dice.between(1, 3)
        return text[:at] + text[at + 1] + text[at] + text[at + 2 :]


@functools.cache
def _parts(phrase: str) -> tuple[str, ...]:
    """Split a phrase into text, slot, text, slot, ..., text."""
    return tuple(re.split(r"\{(\w+)\}", phrase))
