"""Commented files to start from: a run under each mechanism, an audit, a training set to plant, a sweep.

The comments are the meanings of the keys (jobs/config_keys.py). The sizes are those of the built-in corpus, which two
CPU cores run in minutes.
"""

import copy
import difflib
import textwrap
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from heldin.base.errors import InputError
from heldin.jobs.config_keys import as_yaml, blocks

BUILT_IN = {
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
_PRIVATE = {"steps": 60, "delta": 1e-3, "target_epsilon": 8}
_SLOWER = {"learning_rate": 5e-4, "warmup_steps": 10, "select": "last"}
_KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "none": ("Plain fine-tuning, attacked: how well can an attacker tell whose texts the model saw?", {}),
    "uls": (
        "Users are sampled, and 4 records of each at a time: an epsilon per user.",
        {"defense": {"kind": "uls", "population": 100, "cohort": 16, "group_size": 4, **_PRIVATE}},
    ),
    "els": (
        "Records are sampled, of each user at most 16: an epsilon per user.",
        {"defense": {"kind": "els", "population": 1500, "cohort": 64, "group_size": 16, **_PRIVATE}},
    ),
    "group": (
        "Records are sampled, of each user exactly 16: an epsilon per user, by group privacy.",
        {"defense": {"kind": "group", "population": 1600, "cohort": 64, "group_size": 16, **_PRIVATE}},
    ),
    "example": (
        "An epsilon per record, which guarantees nothing finite about a user.",
        {"defense": {"kind": "example", "population": 3000, "cohort": 64, **_PRIVATE, "delta": 1e-5}},
    ),
    "user-entity": (
        "Records are sampled, at most 16 of a user and 4 that name an entity: an epsilon for both of them.",
        {
            "defense": {
                "kind": "user-entity",
                "population": 1500,
                "cohort": 64,
                "group_size": 16,
                "entity_cap": 4,
                "entities": {"kind": "patterns"},
                **_PRIVATE,
            }
        },
    ),
    "uedp": (
        "UeDP-Alg of Lai et al. (2021): what it claims, which is no guarantee, and what holds of it.",
        {
            "defense": {
                "kind": "uedp",
                "population": 100,
                "cohort": 16,
                "steps": 60,
                "delta": 1e-3,
                "noise_multiplier": 2.0,
                "sensitive_share": 0.5,
                "local": {"learning_rate": 0.1},
                "entities": {"kind": "patterns"},
            }
        },
    ),
    "filter": (
        "Asi & Liu's filter: full batches; it may halt and release no model, which is a result.",
        {"defense": {"kind": "filter", "population": 100, "group_size": 4, "tau": 1.0, **_PRIVATE}},
    ),
    "clip": (
        "Clipping without noise: a heuristic without a guarantee.",
        {"defense": {"kind": "clip", "unit": "example", "clip_norm": 1.0}},
    ),
    "canaries": (
        "Plain fine-tuning with planted canary users of three kinds next to the real ones.",
        {
            "canaries": [
                {"kind": "unseen_token", "users": 20, "documents": [20]},
                {"kind": "rare_phrase", "users": 20, "documents": [20]},
                {"kind": "high_temperature", "users": 20, "documents": [20]},
            ]
        },
    ),
    "own": (
        'A corpus of your own: corpus.jsonl, a line for each text, {"author": ..., "body": ...}.'
        " `heldin corpus example --out example` writes one.",
        {},
    ),
}
_COLUMNS = {"user": "author", "text": "body"}
_TEXTS = {"held_in": "example/held_in.jsonl", "held_out": "example/held_out.jsonl", "columns": _COLUMNS}
_DECISION = {"auroc": 0.6, "tpr": 0.15}
_RELEASE = {"access": "weights", "owner": "who is responsible for it", "purpose": "what the model is for"}
_SERVED = {"url": "http://localhost:8000/v1", "tokenizer": "TOKENIZER", "api_key_env": "API_KEY", "concurrency": 4}
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
                "claims": ["epsilon=1,delta=1e-5"],
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
            {"name": "planted", "training": "example/training.jsonl", "columns": _COLUMNS, "reference": "example/base"}
            | {"evidence": "callback", "users": {"min_records": 10}, "split": {"audit_fraction": 0.5}}
            | {"sequence_length": 128, "canaries": [{"kind": "unseen_token", "users": 40, "documents": [4]}]},
        ),
        "canaries": (
            "A training set for somebody else's training: nobody is left out, canary users are added.",
            {"name": "planted", "training": "example/training.jsonl", "columns": _COLUMNS, "reference": "example/base"}
            | {"evidence": "callback", "split": {"canaries_only": True}, "sequence_length": 128}
            | {"canaries": [{"kind": "unseen_token", "users": 100, "documents": [4]}]},
        ),
    },
    "sweep": {
        "defenses": (
            "Defenses compared on the same users. It changes run.yaml, which `heldin init run` writes next to it.",
            {"name": "defenses", "base": "run.yaml"}
            | {
                "variants": {
                    "none": {},
                    "cap": {"data_defenses": [{"kind": "cap", "records": 4}]},
                    "uls": {"defense": {"kind": "uls", "population": 100, "cohort": 16, "group_size": 4, **_PRIVATE}},
                },
                "axes": {"uls": {"defense.target_epsilon": [2, 8]}},
                "blocks": 3,
                "resources": {"workers": 2},
            },
        ),
    },
}
_OTHERWISE = {
    "corpus.source": "Your own: kind jsonl, csv, parquet, mbox, maildir or huggingface"
    " (heldin config run corpus.source).",
    "model": "In place of pretrain a model of your own: base: EleutherAI/gpt-neo-125m",
}


def kinds(what: str) -> tuple[str, ...]:
    """Return the kinds of starting files for a "run", "audit", "plant" or "sweep"; the first is the default."""
    return tuple(_KINDS if what == "run" else _OTHERS[what])


def starting_file(what: str, kind: str, model: type[BaseModel], corpus: Path = Path("corpus.jsonl")) -> str:
    """Return a commented file that loads as it is, once the files that it names exist.

    Args:
        what: "run", "audit", "plant" or "sweep".
        kind: one of ``kinds(what)``.
        model: the model of such files, whose meanings become comments.
        corpus: the corpus file of kind "own".

    Raises:
        InputError: an unknown kind.
    """
    if kind not in kinds(what):
        near = difflib.get_close_matches(kind, kinds(what), n=1)
        meant = f"did you mean {near[0]}? " if near else ""
        raise InputError(f"no starting file '{kind}' for {what}: {meant}choose from {', '.join(kinds(what))}")
    title, content = _run_file(kind, corpus) if what == "run" else _OTHERS[what][kind]
    looked_over = {"audit": "heldin audit --config THIS-FILE reads it"}.get(
        what, f"heldin {what} THIS-FILE --check looks it over"
    )
    body: list[str] = []
    for line in _Meanings(model).lines(content, "", ""):
        if body and not line.startswith((" ", "#")) and line.endswith(":"):  # a blank line before its comment
            at = next(i for i in range(len(body), -1, -1) if i == 0 or not body[i - 1].startswith("#"))
            body.insert(at, "")
        body.append(line)
    return "\n".join([*_comment(title), f"# heldin config {what} lists every key; {looked_over}.", "", *body]) + "\n"


def _run_file(kind: str, corpus: Path) -> tuple[str, dict[str, Any]]:
    title, changes = _KINDS[kind]
    # Deep: sections are changed below, and BUILT_IN is every other starting file's too.
    content: dict[str, Any] = {**copy.deepcopy(BUILT_IN), "name": f"my-{kind}"}
    # A mechanism with noise fixes its own steps, draws and divisor: keys of plain batches would only mislead.
    if "defense" in changes and changes["defense"]["kind"] != "clip":
        users = content["corpus"]["users"]
        del users["max_users"]
        users["fraction"] = 0.5  # whether a user is kept depends on no other user, so an epsilon per user holds
        del content["finetune"]["epochs"], content["finetune"]["batch_size"]
        content["finetune"] |= _SLOWER
    if kind == "own":
        content["corpus"]["source"] = {"kind": "jsonl", "path": str(corpus), "columns": _COLUMNS}
    return title, {**content, **changes}


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
                yield from (f"  {chosen}: {as_yaml(its)}" for chosen, its in value.items())
            elif isinstance(value, dict):
                yield from self._section(dotted, value, kind)
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
