"""Write the built-in corpus as files that every command can read: texts, groups, scores, configs, models.

All files, including the coins, follow from a public seed. The files are an example, and audit no real person.
"""

import json
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from heldin.base.coins import fair_coin, keyed_order, seed_key
from heldin.base.errors import InputError
from heldin.base.files import whole_directory
from heldin.base.progress import Reporter
from heldin.base.wording import counted
from heldin.corpus.made_up.chats import MadeUpRows
from heldin.corpus.made_up.synthetic import SyntheticCorpus, SyntheticRecord, generate
from heldin.stages.run_config import RunConfig
from heldin.stages.starting.files import starting_file

COLUMNS, OF_TURNS = "--user author --text body", "--user author"
_OWN = {MadeUpRows.MAILS: "own", MadeUpRows.CHATS: "own-chat", MadeUpRows.PAIRS: "own-preference"}
LEAST_USERS = 20
FRESH = 0.25  # share of a user's texts kept out of training
DISTANCE = 1.0  # between the made-up scores of members and others, in standard deviations


@dataclass(frozen=True)
class ExampleFile:
    """A file or folder of the example.

    Attributes:
        holds: content of the file, in words.
        command: a command to try on the file.
    """

    path: Path
    holds: str
    command: str


@dataclass(frozen=True)
class _Texts:
    """The users and texts in each file. A user is public, or a fair coin makes the user a member or a non-member."""

    everything: Sequence[SyntheticRecord]
    public: Sequence[SyntheticRecord]
    training: Sequence[SyntheticRecord]
    held_in: Sequence[SyntheticRecord]
    held_out: Sequence[SyntheticRecord]


def write_example(
    to: Path,
    *,
    users: int = 400,
    seed: int = 0,
    models: bool = False,
    rows: MadeUpRows = MadeUpRows.MAILS,
    reporter: Reporter,
) -> list[ExampleFile]:
    """Write the example to the new folder ``to``, completely or not at all.

    Args:
        users: number of users; every second user is public.
        seed: seed of texts, coins and scores; equal seeds give equal files.
        models: whether to train a base model on the public users and a model on the members (about two minutes).
        rows: type of the rows.

    Raises:
        InputError: the folder is not empty, or there are too few users for two groups.
    """
    if to.exists() and (not to.is_dir() or any(to.iterdir())):
        raise InputError(f"'{to}' is not empty: name a new folder")
    if users < LEAST_USERS:
        raise InputError(f"{counted(users, 'user')} are too few for two groups: give --users {LEAST_USERS} or more")
    texts = _texts(users, seed)
    files = {
        "corpus.jsonl": texts.everything,
        "public.jsonl": texts.public,
        "training.jsonl": texts.training,
        "held_in.jsonl": texts.held_in,
        "held_out.jsonl": texts.held_out,
    }
    with whole_directory(to) as folder:
        for name, records in files.items():
            _write(folder / name, records, rows)
        (folder / "scores.csv").write_text(_scores(texts, seed), encoding="utf-8")
        # With the final path, not the temporary one: the folder is renamed when all of it is there.
        kind = _OWN[rows]
        run = starting_file("run", kind, RunConfig, corpus=str(to / "corpus.jsonl"))
        (folder / "run.yaml").write_text(run, encoding="utf-8")
        if models:
            # Here, since only --models trains: the other files are written without torch.
            from heldin.jobs.example_models import train_models

            train_models(folder, texts.public, texts.training, reporter, rows)
    return _described(to, files, models, rows)


def _texts(users: int, seed: int) -> _Texts:
    # The parameters of the starting files, whose recipe ``_train`` takes.
    everything = list(generate(SyntheticCorpus(users, 24, 10, distinctiveness=0.9, seed=seed)))
    key = seed_key(seed)
    names = list(dict.fromkeys(record.user for record in everything))
    # Every other user, and no coin: the groups below are what is drawn.
    public = set(names[1::2])
    member = {name: fair_coin(key, "example", name) for name in names[::2]}
    by_user: dict[str, list[SyntheticRecord]] = {}
    for record in everything:
        by_user.setdefault(record.user, []).append(record)
    training, fresh = [], []
    # Both sides by one rule that knows no coin (docs/theory.md#conditions-of-one-run, 4); held-out users' other records
    # are in no file but corpus.jsonl.
    for user in member:
        by_id = {record.id: record for record in by_user[user]}
        order = keyed_order(key, "example fresh", list(by_id))
        count = max(1, round(FRESH * len(order)))
        fresh += [by_id[name] for name in sorted(order[:count])]
        training += [by_id[name] for name in sorted(order[count:]) if member[user]]
    return _Texts(
        everything,
        [record for record in everything if record.user in public],
        training,
        [record for record in fresh if member[record.user]],
        [record for record in fresh if not member[record.user]],
    )


def _write(path: Path, records: Iterable[SyntheticRecord], rows: MadeUpRows) -> None:
    made = ({"author": r.user, **rows.content(r, "body"), "id": r.id, "date": r.date} for r in records)
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in made), encoding="utf-8")


def _scores(texts: _Texts, seed: int) -> str:
    """Return one made-up score for each user in the two groups, in the format of another tool's scores."""
    rng = np.random.default_rng(seed)
    groups = ((texts.held_in, 1), (texts.held_out, 0))
    sides = {record.user: side for records, side in groups for record in records}
    drawn = rng.standard_normal(len(sides))
    rows = [
        f"{user},{score + DISTANCE * sides[user]:.4f},{sides[user]}"
        # By name: in the order of the groups, the position of a row would tell its side.
        for user, score in zip(sorted(sides), drawn, strict=True)
    ]
    return "\n".join(["user,score,member", *rows]) + "\n"


def _described(
    to: Path, files: Mapping[str, Sequence[SyntheticRecord]], models: bool, rows: MadeUpRows
) -> list[ExampleFile]:
    """Return each file with a description and an example command."""

    def holds(name: str, content: str) -> str:
        users = len({record.user for record in files[name]})
        return f"{content}: {counted(users, 'user')}, {counted(len(files[name]), 'text')}"

    def at(name: str) -> str:
        return shlex.quote(str(to / name))

    columns = OF_TURNS if rows.have_turns else COLUMNS
    model, base = (at("model"), at("base")) if models else ("MODEL", "BASE")
    audit = (
        f"heldin audit --model {model} --reference {base} --held-in {at('held_in.jsonl')} --held-out"
        f" {at('held_out.jsonl')} --training {at('training.jsonl')} {columns} --assignment coin"
    )
    if not models:
        audit += " (MODEL: fine-tune BASE on training.jsonl yourself, or let --models train a small one)"
    clip = "heldin choose --users 200 --budget 64 --steps 200 --target-epsilon 4 --public-texts"
    described = [
        ("corpus.jsonl", holds("corpus.jsonl", "everybody"), f"heldin corpus stats {at('corpus.jsonl')} {columns}"),
        ("run.yaml", "a run on corpus.jsonl, from split to report", f"heldin run {at('run.yaml')} --check"),
        (
            "public.jsonl",
            holds("public.jsonl", "users who are not protected"),
            f"heldin corpus stats {at('public.jsonl')} {columns}"
            if rows.have_turns
            else f"{clip} {at('public.jsonl')} --model {base} {columns}",
        ),
        ("training.jsonl", holds("training.jsonl", "what a model may be fine-tuned on"), audit),
        ("held_in.jsonl", holds("held_in.jsonl", "fresh texts of the users in training.jsonl"), "(the same command)"),
        ("held_out.jsonl", holds("held_out.jsonl", "fresh texts of users who are not"), "(the same command)"),
        (
            "scores.csv",
            "made-up scores of these users, as another tool might give them",
            f"heldin bound {at('scores.csv')} --assignment coin --claim epsilon=1,delta=1e-5",
        ),
    ]
    return [ExampleFile(to / name, content, command) for name, content, command in described]


def lines(files: Sequence[ExampleFile]) -> list[str]:
    """Return lines for a terminal: each file with its content, and its command on the next line."""
    return [line for file in files for line in (f"{file.path}: {file.holds}", f"    {file.command}")]
