"""Commented files to start from: a run under each mechanism, an audit, a training set to plant, a sweep.

The comments are the meanings of the keys (jobs/config_keys.py). The sizes are those of the built-in corpus, which two
CPU cores run in minutes.
"""

import copy
import difflib
import shlex
import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from heldin.base.errors import InputError
from heldin.defenses.mechanisms.kinds import MECHANISMS
from heldin.jobs.config_keys import as_yaml, blocks
from heldin.stages.config_files import merged

BUILT_IN: dict[str, Any] = {
    "name": "demo",
    "corpus": {
        "source": {
            "kind": "synthetic",
            "parameters": {"users": 400, "mean_records": 24, "min_records": 10, "distinctiveness": 0.9},
        },
        "users": {"min_records": 12, "max_users": 200},  # the other users, and nobody audited, pre-train the base model
    },
    "model": {
        "pretrain": {
            "shape": {"vocabulary": 2048, "context": 128, "hidden": 64, "layers": 2, "heads": 4, "window": 64},
            "recipe": {
                "epochs": 3,
                "batch_size": 8,
                "learning_rate": 0.003,
                "warmup_steps": 50,
                "sequence_length": 128,
                "select": "last",
            },
        }
    },
    "finetune": {
        "epochs": 3,
        "batch_size": 8,
        "learning_rate": 0.002,
        "warmup_steps": 50,
        "sequence_length": 128,
        "evaluations": 6,
    },
}


_WIDTH = 100
# The runs of starting files and of ``demo_sweep``, half a minute each on two cores. Plain training
# leaks since it passes five times over about six short records of each user, at a high learning rate; the attacker has
# up to four of a user's training records. The base model has seen few texts, so that there is something left that all
# users teach alike: a user-level defense can learn that and little else. Learning rate and epsilon of the private runs
# were chosen with corpus seed 1; the files have corpus seed 0, and so other users.
MOST_AUROC = 0.65
SMALL: dict[str, Any] = {
    "corpus": {
        "source": {
            "kind": "synthetic",
            "parameters": {"users": 600, "mean_records": 8, "min_records": 6, "distinctiveness": 1.0},
        },
        # Whether a user is kept depends on no other user, so an epsilon per user holds.
        "users": {"min_records": 6, "fraction": 0.6},
    },
    "model": {
        "pretrain": {
            "users": {"min_records": 1, "fraction": 0.1},
            "shape": {"vocabulary": 512, "context": 64, "hidden": 32, "layers": 2, "heads": 4, "window": 32},
            "recipe": {
                "epochs": 1,
                "batch_size": 16,
                "learning_rate": 0.005,
                "warmup_steps": 5,
                "sequence_length": 64,
                "select": "last",
            },
        }
    },
    "finetune": {
        "epochs": 5,
        "batch_size": 16,
        "learning_rate": 0.01,
        "warmup_steps": 20,
        "sequence_length": 64,
        "evaluations": 1,
        "select": "last",
    },
    "attack": {
        "primary": "likelihood-ratio-per-token",
        "documents": ["training"],
        "training_documents": 4,
        "max_characters": 200,
    },
    "decision": {"auroc": MOST_AUROC, "tpr": 0.2},
    # Losses and AUROC during training are a small part of what is shown, and cost as much as the training.
    "audit": {"resamples": 300, "validation_texts": 50, "curve_users": 50, "curve_texts_per_user": 1},
    "release": {
        "access": "log-probabilities",
        "owner": "nobody, since the users are made up",
        "purpose": "to show what heldin reports",
    },
}
_PRIVATE = {"steps": 40, "cohort": 70, "delta": 1e-3, "target_epsilon": 2}


def _private(kind: str, population: int, **keys: Any) -> dict[str, Any]:
    defense = {"kind": kind, "population": population, **_PRIVATE, **keys}
    return {"finetune": {"learning_rate": 0.01, "warmup_steps": 0}, "defense": defense}


ULS = _private("uls", 180)
ELS = _private("els", 720, group_size=4, protected_users=180)
EXAMPLE = _private("example", 1000, delta=1e-5)
DEDUP_CAP = {"data_defenses": [{"kind": "deduplicate"}, {"kind": "cap", "records": 2}]}
# Of a sweep: the rule needs five blocks.
COMPARED: dict[str, Any] = {
    "variants": {"none": {}, "dedup-cap": DEDUP_CAP, "uls": ULS},
    "blocks": 5,
    "decision": {
        "require": [{"of": "auroc", "at_most": MOST_AUROC}, {"of": "loss_gain_over_base", "at_least": 0.05}],
        "prefer": "loss_gain_over_base",
        "candidates": ["none", "dedup-cap", "uls"],
    },
    "resources": {"workers": 2},
}
_ENTITIES = {"entities": {"kind": "patterns"}}
_KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "none": ("Plain fine-tuning, attacked: how well can an attacker tell whose texts the model saw?", {}),
    "uls": ("Users are sampled, and records of each at a time: an epsilon per user.", ULS),
    "els": ("Records are sampled, of each user at most 4: an epsilon per user.", ELS),
    "group": (
        "Records are sampled, of each user exactly 4: an epsilon per user, by group privacy.",
        _private("group", 720, group_size=4),
    ),
    "example": ("An epsilon per record, which guarantees nothing finite about a user.", EXAMPLE),
    "user-entity": (
        "Records are sampled, at most 4 of a user and 4 that name an entity: an epsilon for both of them.",
        _private("user-entity", 720, group_size=4, entity_cap=4, **_ENTITIES),
    ),
    "uedp": (
        "UeDP-Alg of Lai et al. (2021): what it claims, which is no guarantee, and what holds of it.",
        {
            "defense": {
                "kind": "uedp",
                "population": 180,
                "cohort": 16,
                "steps": 40,
                "delta": 1e-3,
                "noise_multiplier": 2.0,
                "sensitive_share": 0.5,
                "local": {"learning_rate": 0.1},
                **_ENTITIES,
            }
        },
    ),
    "filter": (
        "Asi & Liu's filter: full batches; it may halt and release no model, which is a result.",
        {
            "defense": {"kind": "filter", "population": 180, "group_size": 4, "tau": 1.0}
            | {"steps": 40, "delta": 1e-3, "target_epsilon": 8},
        },
    ),
    "clip": (
        "Clipping without noise: a heuristic without a guarantee.",
        {"defense": {"kind": "clip", "unit": "example", "clip_norm": 1.0}},
    ),
    "canaries": (
        "Plain fine-tuning with planted canary users of three kinds next to the real ones.",
        {
            "canaries": [
                {"kind": kind, "users": 20, "documents": [8]}
                for kind in ("unseen_token", "rare_phrase", "high_temperature")
            ]
        },
    ),
    "own": (
        'A corpus of your own, such as a file with a line for each text: {"author": ..., "body": ...}.',
        {},
    ),
}
_COLUMNS = {"user": "author", "text": "body"}
_ROWS = {**_COLUMNS, "id": "id", "date": "date"}
_TEXTS = {"held_in": "example/held_in.jsonl", "held_out": "example/held_out.jsonl", "columns": _COLUMNS}
_DECISION = {"auroc": 0.6, "tpr": 0.15}
_RELEASE = {"access": "weights", "owner": "who is responsible for it", "purpose": "what the model is for"}
_SERVED = {"url": "http://localhost:8000/v1", "tokenizer": "example/base", "api_key_env": "API_KEY", "concurrency": 4}
# By what a file is for, its kinds: a title and the content. The first kind is the default.
_OTHERS: dict[str, dict[str, tuple[str, dict[str, Any]]]] = {
    "audit": {
        "files": (
            "A model that somebody else trained, audited with two files of texts.",
            {
                "name": "audit",
                "model": "example/model",
                "reference": "example/base",
                **_TEXTS,
                "claims": [],
            }
            | {"decision": _DECISION, "release": _RELEASE},
        ),
        "endpoint": (
            "A model behind an OpenAI-compatible endpoint, audited with two files of texts.",
            {"name": "audit", "model": "model", "reference": "endpoint:base", **_TEXTS, "endpoint": _SERVED}
            | {"decision": _DECISION, "release": _RELEASE},
        ),
    },
    "plant": {
        "users": (
            "A training set for somebody else's training: some users are left out by coin, canary users are added.",
            {"name": "planted", "training": "example/training.jsonl", "columns": _ROWS, "reference": "example/base"}
            | {"evidence": "callback", "users": {"min_records": 10}, "split": {"audit_fraction": 0.5}}
            | {"sequence_length": 128, "canaries": [{"kind": "unseen_token", "users": 40, "documents": [4]}]},
        ),
        "canaries": (
            "A training set for somebody else's training: nobody is left out, canary users are added.",
            {"name": "planted", "training": "example/training.jsonl", "columns": _ROWS, "reference": "example/base"}
            | {"evidence": "callback", "split": {"canaries_only": True}, "sequence_length": 128}
            | {"canaries": [{"kind": "unseen_token", "users": 60, "documents": [16]}]},
        ),
    },
    "sweep": {
        "defenses": (
            "Defenses compared on the same users. It changes run.yaml, which is next to it.",
            {"name": "defenses", "base": "run.yaml", **COMPARED},
        ),
    },
}
_OTHERWISE = {
    "corpus.source": "Your own: kind jsonl, csv, parquet, mbox, maildir or huggingface"
    " (heldin config run corpus.source).",
    "model": "In place of pretrain a model of your own: base: EleutherAI/gpt-neo-125m",
}


_CORPUS = Path("example/corpus.jsonl")


def kinds(command: str) -> tuple[str, ...]:
    """Return the kinds of starting files for a "run", "audit", "plant" or "sweep"; the first is the default."""
    return tuple(_KINDS if command == "run" else _OTHERS[command])


@dataclass(frozen=True)
class Needed:
    """Files that a starting file names, and the command that writes them for a first try."""

    files: tuple[str, ...]
    command: str

    @property
    def words(self) -> str:
        """Name the files in a sentence."""
        *others, last = self.files
        return f"{', '.join(others)} and {last}" if others else last


def needed(command: str, kind: str, folder: Path = Path()) -> Needed | None:
    """Return what a starting file in ``folder`` names; None if it names no file."""
    if command == "sweep":
        base = str(folder / "run.yaml")
        return Needed((base,), "heldin init run" + ("" if base == "run.yaml" else f" --out {shlex.quote(base)}"))
    _, content = _run_file(kind, _CORPUS) if command == "run" else _OTHERS[command][kind]
    files = tuple(dict.fromkeys(text for text in _texts(content) if text.startswith("example/")))
    return Needed(files, "heldin corpus example --out example --models") if files else None


def _texts(content: Any) -> Iterator[str]:
    match content:
        case str():
            yield content
        case dict():
            yield from _texts(list(content.values()))
        case list():
            for part in content:
                yield from _texts(part)


def starting_file(command: str, kind: str, model: type[BaseModel], corpus: Path = _CORPUS) -> str:
    """Return a commented file that loads as it is, once the files that it names exist.

    Args:
        command: "run", "audit", "plant" or "sweep".
        kind: one of ``kinds(command)``.
        model: the model of such files, whose meanings become comments.
        corpus: the corpus file of kind "own".

    Raises:
        InputError: an unknown kind.
    """
    if kind not in kinds(command):
        near = difflib.get_close_matches(kind, kinds(command), n=1)
        meant = f"did you mean {near[0]}? " if near else ""
        raise InputError(f"no starting file '{kind}' for {command}: {meant}choose from {', '.join(kinds(command))}")
    title, content = _run_file(kind, corpus) if command == "run" else _OTHERS[command][kind]
    looked_over = {"audit": "heldin audit --config THIS-FILE reads it"}.get(
        command, f"heldin {command} THIS-FILE --check looks it over"
    )
    files = needed(command, kind)
    written = [] if files is None else _comment(f"For a first try, `{files.command}` writes {files.words}.")
    body: list[str] = []
    for line in _Meanings(model).lines(content, "", ""):
        if body and not line.startswith((" ", "#")) and line.endswith(":"):  # a blank line before its comment
            at = next(i for i in range(len(body), -1, -1) if i == 0 or not body[i - 1].startswith("#"))
            body.insert(at, "")
        body.append(line)
    head = [*_comment(title), *written, f"# heldin config {command} lists every key; {looked_over}."]
    return "\n".join([*head, "", *body]) + "\n"


def _run_file(kind: str, corpus: Path) -> tuple[str, dict[str, Any]]:
    title, changes = _KINDS[kind]
    if kind == "own":
        source = {"kind": "jsonl", "path": str(corpus), "columns": _COLUMNS}
        return title, {**BUILT_IN, "name": "my-own", "corpus": {**BUILT_IN["corpus"], "source": source}}
    content = merged({"name": f"my-{kind}", **copy.deepcopy(SMALL)}, copy.deepcopy(changes))
    # A mechanism with noise fixes its own steps, draws and divisor: keys of plain batches would only mislead.
    if "defense" in changes and MECHANISMS.find(changes["defense"]["kind"]).is_private:
        del content["finetune"]["epochs"], content["finetune"]["batch_size"]
    return title, content


class _Meanings:
    """Meanings of keys and sections, by name and kind."""

    def __init__(self, model: type[BaseModel]) -> None:
        self._sections: dict[tuple[str, str], str] = {}
        self._keys: dict[tuple[str, str], str] = {}
        for block in blocks(model):
            for kind in ("", *block.kinds):
                self._sections.setdefault((block.name, kind), block.meaning)
                for key in block.keys:
                    self._keys.setdefault((key.name, kind), key.meaning)

    def lines(self, content: Mapping[str, Any], name: str, kind: str) -> Iterator[str]:
        """Return a section's content, each key after a comment with its meaning."""
        kind = str(content.get("kind", kind))
        for key, value in content.items():
            dotted = f"{name}.{key}" if name else key
            if isinstance(value, dict) and (dotted, kind) in self._keys:  # by names that the file chooses
                yield from _comment(self._keys[dotted, kind])
                yield f"{key}:"
                yield from (f"  {chosen}: {as_yaml(content)}" for chosen, content in value.items())
            elif isinstance(value, dict):
                yield from self._section(dotted, value, kind)
            elif isinstance(value, list) and value and isinstance(value[0], dict) and "kind" not in value[0]:
                yield from (*_comment(self._sections[f"{dotted}[]", ""]), f"{key}:")
                yield from (f"  - {as_yaml(item)}" for item in value)
            elif isinstance(value, list) and value and isinstance(value[0], dict):
                yield f"{key}:"
                for item in value:
                    yield from (f"  {line}" for line in _comment(self._sections[f"{dotted}[]", str(item["kind"])]))
                    first, *others = self.lines(item, f"{dotted}[]", "")  # the kind comes first, without a comment
                    yield from (f"  - {first}", *(f"    {line}" for line in others))
            else:
                if key != "kind":
                    yield from _comment(self._keys[dotted, kind])
                yield f"{key}: {as_yaml(value)}"

    def _section(self, name: str, content: Mapping[str, Any], kind: str) -> Iterator[str]:
        yield from _comment(self._sections[name, str(content.get("kind", kind))])
        if name in _OTHERWISE and content.get("path") is None:
            yield from _comment(_OTHERWISE[name])
        yield f"{name.rsplit('.', 1)[-1]}:"
        yield from (f"  {line}" for line in self.lines(content, name, kind))


def _comment(text: str) -> list[str]:
    return textwrap.wrap(text, _WIDTH, initial_indent="# ", subsequent_indent="# ")
