"""The words of the made-up company Northgate, from text files: names, topics and phrase grammar, for ``synthetic``.

A table has a name and phrases, separated by bars. ``{slot}`` in a phrase is filled from the table with that name, or by
the writer. Facts, problems and remarks are clauses that start in lower case. A step is a verb phrase in its base form.
A verb has a base form, a past form (equal to its participle) and a gerund. Every verb of a topic can take everything in
that topic as its object.
"""

from collections.abc import Mapping
from importlib import resources

Tables = Mapping[str, tuple[str, ...]]

DOMAIN = "northgate.example"


def words(name: str) -> str:
    """Return the text of the tables in a file next to this module."""
    return (resources.files(__package__) / f"{name}.txt").read_text(encoding="utf-8")


def tables(text: str) -> dict[str, tuple[str, ...]]:
    """Return the tables by name. A table starts at each line that is not indented."""
    entries = text.strip().replace("\n  ", " ").splitlines()
    named = (entry.split(":", 1) for entry in entries)
    return {name: tuple(phrase.strip() for phrase in phrases.split("|")) for name, phrases in named}


STOCKS: dict[str, tuple[str, ...]] = tables(words("stocks"))
# Numbers come from stocks too, as people write them.
STOCKS |= {
    "letter": tuple("ABCD"),
    "floor": tuple(str(n) for n in range(1, 10)),
    "id": tuple(str(n) for n in range(2, 25)),
    "percent": tuple(str(n) for n in range(2, 39)),
    "thousands": tuple(str(n) for n in range(2, 96)),
    "num_days": tuple(str(5 * n) for n in range(2, 19)),
    "big": tuple(f"{10 * n:,}" for n in range(12, 981)),
    "amount": tuple(f"{n * 10**power:,}" for n in range(11, 100) for power in (1, 2, 3)),
    "clock_24": tuple(f"{hour}:{minute:02d}" for hour in range(8, 18) for minute in (0, 15, 30, 45)),
    "clock_am": tuple(f"{hour}:{minute:02d}" for hour in (8, 9, 10, 11) for minute in (0, 15, 30, 45)),
    "clock_pm": tuple(f"{hour}:{minute:02d}" for hour in (12, 1, 2, 3, 4, 5) for minute in (0, 15, 30, 45)),
}
STOCKS["project"] = tuple(f"{a} {b}" for a in STOCKS["project_first"] for b in STOCKS["project_second"])
STOCKS["client"] = tuple(f"{a} {b}" for a in STOCKS["client_first"] for b in STOCKS["client_second"])

# Long form, short form: a writer's own rate decides between them.
CONTRACTIONS: Tables = tables(words("contractions"))

# What every topic shares. A frame around a {step}, {fact} or {problem} names no {colleague}, {client} or {project},
# since those may do so.
PHRASES: dict[str, tuple[str, ...]] = tables(words("phrases"))
PHRASES["pause"] = (",", ",", " -")
PHRASES["card"] = (
    "{first} {last}\n{title}, {department} | ext {extension}",
    "{first} {last} | {title}\nNorthgate {home}, ext {extension}",
    "{first} {last}, {department}\nNorthgate {home} - phone {extension}",
    "{first} {last}\n{title}, Northgate {home}\n{address}",
)


def _topic(text: str, every_topic: Tables) -> Tables:
    """Return the tables of one topic: its own, with verbs split into forms, and the tables that all topics share."""
    own = tables(text)
    base, past, gerund = zip(*(verb.split() for verb in own.pop("verb")), strict=True)
    return {**every_topic, **own, "step": own["step"] + every_topic["step"], "do": base, "did": past, "doing": gerund}


TOPICS: tuple[Tables, ...] = tuple(_topic(text, PHRASES) for text in words("topics").strip().split("\n\n"))
