"""The membership ledger: who is a member, the use of each record, and the key of the coins. Only its owner can read it.

The trainer receives the texts of ``training_rows``. The attack receives users and their texts. Neither receives
membership. Scores are joined with membership in ``audit.panels``, and for the training curves in
``stages.train.validation``.

A run in a sweep has one more secret: the cell, with the coins that it shares with the other runs of its block.
"""

import hmac
import itertools
import json
from collections import Counter
from collections.abc import Container, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from heldin.base.artefacts import artefact_file, read_document, require_whole, write_document
from heldin.base.coins import new_key
from heldin.base.errors import InputError
from heldin.base.files import private_directory, text_sha256
from heldin.corpus.row_parts import RowParts, saved_parts
from heldin.corpus.split import Part, Role, SplitRule, assign, assign_canaries, require_both_sides
from heldin.record.facts import CellFacts
from heldin.stages.config_files import first_difference
from heldin.stages.run_config import RunConfig, SplitConfig

if TYPE_CHECKING:
    from heldin.stages.sides.layout import Layout

CELL_FILE = "cell.json"
ROWS = "rows"  # folder of the ledger that says what each row is for


@dataclass(frozen=True)
class Cell:
    """A cell of a sweep.

    Attributes:
        facts: position of the cell in the sweep, for the record.
        coins_key: secret key of the coins, which all cells of the block share.
        config: the config that was fixed before the coins were drawn, in the form of a file.
    """

    facts: CellFacts
    coins_key: bytes
    config: Mapping[str, Any]

    def require(self, config: RunConfig, out: Path) -> None:
        """Raise InputError unless this is the cell's config, because a config may not change after its coins are
        drawn."""
        content = config.model_dump(mode="json")
        changed = first_difference(dict(self.config), content)
        if changed:
            raise InputError(
                f"'{out}' is a cell of a sweep, and its config was changed after its coins were drawn ('{changed}'"
                " differs): use a new run folder"
            )


def write_cell(cell: Cell, folder: Path) -> None:
    """Write the cell to ``folder``, a run's folder of secrets. Only the owner can read the file."""
    content = {"facts": cell.facts.model_dump(), "coins_key": cell.coins_key.hex(), "config": cell.config}
    write_document(private_directory(folder) / CELL_FILE, content)


def read_cell(folder: Path) -> Cell | None:
    """Return the cell in this folder of secrets; None for a run outside of sweeps. Raises InputError if the cell is
    damaged."""
    path = folder / CELL_FILE
    if not path.is_file():
        return None
    content = read_document(path, remedy_of_ledger(folder))
    facts = CellFacts.model_validate(content["facts"])
    return Cell(facts, bytes.fromhex(content["coins_key"]), content["config"])


@dataclass(frozen=True)
class Ledger:
    """Roles and parts of the users and audited entities of one corpus. The ledger is secret, and is never in a record
    or a report.

    Attributes:
        coins_key: secret key of the coins, which all cells of a sweep's block share.
        key: secret key of cohorts and noise, which only this run uses.
        corpus: fingerprint of the corpus.
        split: hash of the options and users of the split.
        assignment: how membership was decided.
        roles: role of each user and each audited entity.
        parts: rows of each user, by use; for an audited entity, the rows that name it.
        entities: the audited entities in ``roles``.
        drawn_from: hash of the inputs that determine ``parts``.
    """

    coins_key: bytes
    key: bytes
    corpus: str
    split: str
    assignment: SplitRule
    roles: Mapping[str, Role]
    parts: RowParts
    entities: frozenset[str] = frozenset()
    drawn_from: str = field(default="", compare=False)

    def users(self, role: Role) -> list[str]:
        """Return the users and entities with a role, sorted."""
        return sorted(user for user, user_role in self.roles.items() if user_role is role)

    def scored_users(self) -> list[str]:
        """Return the users and entities whose membership a coin decided, sorted by name."""
        # By name, so that their order tells nothing about sides.
        return sorted(user for user, user_role in self.roles.items() if user_role is not Role.ALWAYS_IN)

    def membership(self, without: Container[str] = ()) -> dict[str, bool]:
        """Return whether each of ``scored_users`` is a member. Omits the names in ``without`` (canary users)."""
        return {user: self.roles[user] is Role.HELD_IN for user in self.scored_users() if user not in without}

    def training_rows(self) -> npt.NDArray[np.integer]:
        """Return the sorted rows to train on: the training rows of all users except non-members, without rows that name
        a non-member entity."""
        out = {name for name, role in self.roles.items() if role is Role.HELD_OUT}
        trained = [name for name in self.parts if name not in out and name not in self.entities]
        rows = self.parts.rows_of(Part.TRAIN, trained)
        # A record is in iff all its audited attributes are (docs/theory.md#audits-of-entities).
        empty = self.parts.rows_of(Part.TRAIN, [name for name in self.entities if name in out])
        rows = rows[~np.isin(rows, empty)] if empty.size else rows
        rows.sort()
        return rows

    def owners(self) -> dict[int, str]:
        """Return the audited entity that each training row names. A row without an entry in the result belongs to its
        author."""
        return {row: entity for entity in self.entities for row in self.parts[entity][Part.TRAIN]}

    def key_commitment(self) -> str:
        """Return a hash of the key of cohorts and noise, for the record."""
        return text_sha256("key", self.key.hex())

    def commitment(self) -> str:
        """Return a keyed hash of the roles, for the record. A plain hash of so few bits could be reversed by trial."""
        roles = json.dumps({user: role.value for user, role in sorted(self.roles.items())})
        return hmac.digest(self.coins_key, b"ledger" + roles.encode(), "sha256").hex()

    def count(self, without: Container[str] = ()) -> Mapping[Role, int]:
        """Return the number of users and entities with each role. Omits the names in ``without`` (canary users)."""
        return Counter(role for user, role in self.roles.items() if user not in without)


@dataclass(frozen=True)
class Keys:
    """The secret keys of a run.

    Attributes:
        run: key of cohorts and noise, which no other run uses.
    """

    coins: bytes
    run: bytes


def draw_ledger(layout: "Layout", split: SplitConfig, *, seed: int, keys: Keys) -> Ledger:
    """Draw the membership coins with their secret key.

    Args:
        split: the config section that sets how membership is decided; each canary user always has a fair coin.
        seed: public seed of the layout.

    Raises:
        InputError: ``assign`` raises.
    """
    # Where canary users alone are audited, it is their coins that must not all fall on one side.
    decided = assign(layout.pool.names, assignment=split.assignment, key=keys.coins) if layout.pool.names else {}
    roles = {user: decided.get(user, Role.ALWAYS_IN) for user in layout.users}
    roles |= {entity: decided[entity] for entity in layout.pool.entities}
    # Fair coins for canary users even where the real ones are an exact half: their bounds can be certified.
    planted_roles = assign_canaries(list(layout.planted), key=keys.coins)
    if not decided:
        require_both_sides(planted_roles)
    roles |= planted_roles
    fractions = (split.attacker_fraction, split.evaluation_fraction)
    # Into the ledger's ``split``: with other options or another pool the same key draws other sides.
    pool = (split.audited.value, split.audit_pool, split.audit_fraction, split.seed)
    options = repr((split.assignment.value, *pool, *fractions, seed))
    whose = (repr(sorted(layout.planted.items())), repr(layout.pool.names), *layout.users)
    return Ledger(
        coins_key=keys.coins,
        key=keys.run,
        corpus=layout.corpus,
        split=text_sha256(options, *whose),
        assignment=split.assignment,
        roles=roles,
        parts=layout.parts.joined(RowParts.of(layout.pool.entities)),
        entities=frozenset(layout.pool.entities),
        drawn_from=layout.drawn_from,
    )


def save_ledger(ledger: Ledger, folder: Path) -> None:
    """Write the ledger to ``folder``, readable by its owner only. ``ledger.json`` is written last, as a mark of
    completion."""
    private_directory(folder)
    users = [(user, role.value) for user, role in ledger.roles.items()]
    ledger.parts.save(folder / ROWS, origin=ledger.drawn_from)
    with artefact_file(folder / "users.parquet") as temporary:
        table: dict[str, list[Any]] = {"user": [u for u, _ in users], "role": [r for _, r in users]}
        if ledger.entities:
            table["entity"] = [user in ledger.entities for user, _ in users]
        pq.write_table(pa.table(table), temporary)
    content = {
        "coins_key": ledger.coins_key.hex(),
        "key": ledger.key.hex(),
        "corpus": ledger.corpus,
        "split": ledger.split,
        "assignment": ledger.assignment.value,
    }
    write_document(folder / "ledger.json", content)


def load_ledger(folder: Path) -> Ledger | None:
    """Return the ledger in ``folder``; None if the folder has no finished ledger.

    Raises InputError if a file of the ledger is missing or was changed.
    """
    # Without the last file the coins of an interrupted call are as if never drawn: nothing was trained by them.
    if not (folder / "ledger.json").is_file():
        return None
    remedy = remedy_of_ledger(folder)
    content = read_document(folder / "ledger.json", remedy)
    require_whole(folder / "users.parquet", remedy=remedy)
    try:
        users = pq.read_table(folder / "users.parquet").to_pydict()
        entities = frozenset(itertools.compress(users["user"], users.get("entity", [])))
        drawn_from, parts = saved_parts(folder / ROWS)
        return Ledger(
            coins_key=bytes.fromhex(content["coins_key"]),
            key=bytes.fromhex(content["key"]),
            corpus=content["corpus"],
            split=content["split"],
            assignment=SplitRule(content["assignment"]),
            roles={user: Role(role) for user, role in zip(users["user"], users["role"], strict=True)},
            parts=parts,
            entities=entities,
            drawn_from=drawn_from,
        )
    except (OSError, ValueError, KeyError, pa.ArrowException) as error:
        raise InputError(f"the ledger '{folder}' is damaged: {remedy}") from error


def remedy_of_ledger(folder: Path) -> str:
    """Return a remedy for a damaged ledger in ``folder``. Only a backup has the ledger's keys."""
    if (folder / CELL_FILE).is_file():
        return (
            f"restore the ledger from a backup, or remove the folder '{folder.parent}' and run the sweep again to"
            " repeat the training of this cell"
        )
    return "restore the ledger from a backup, or start again in a new folder"


def ledger_of_run(
    folder: Path, layout: "Layout", split: SplitConfig, *, seed: int, kept: Ledger | None, coins: bytes | None = None
) -> Ledger:
    """Return the run's ledger, drawn with the keys of the stored ledger. Without one, draw new keys and save the
    ledger.

    Args:
        folder: the run's folder of secrets.
        split: see ``draw_ledger``.
        seed: see ``draw_ledger``.
        kept: the ledger in ``folder``; None if there is none.
        coins: key of the coins of a sweep's block; None: draw a new key for this run.

    Raises:
        InputError: the stored ledger belongs to another corpus, split or membership; or ``folder`` has a ledger other
            than ``kept``, whose keys would be lost.
    """
    if kept is None and (folder / "ledger.json").is_file():
        raise InputError(
            f"another process wrote a ledger to '{folder}' while this run was prepared: start the run again"
        )
    # The key of cohorts and noise is never shared, whatever the coins: two models under one would differ by un-noised
    # data (docs/theory.md#keys-and-coins).
    keys = Keys(coins or (kept.coins_key if kept else new_key()), kept.key if kept else new_key())
    drawn = draw_ledger(layout, split, seed=seed, keys=keys)
    if kept is None:
        save_ledger(drawn, folder)
        return drawn
    # Every role is compared, not only the key: an edited file of roles is found.
    if kept != drawn:
        names = ("coins_key", "corpus", "split", "assignment", "roles", "parts", "entities")
        differing = ", ".join(name for name in names if getattr(kept, name) != getattr(drawn, name))
        raise InputError(
            f"'{folder}' is the ledger of another run, because {differing} differ: use a new folder, or restore the"
            " ledger if it was changed"
        )
    return kept
