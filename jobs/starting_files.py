"""Commented configs to start from, one for each mechanism, and one for a corpus of one's own.

The comments are the meanings of the keys (jobs/config_keys.py). The sizes are those of the built-in corpus, which two
CPU cores run in minutes.
"""

import copy
import difflib
import textwrap
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

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
        "An epsilon per record, which promises nothing finite about a user.",
        {"defense": {"kind": "example", "population": 3000, "cohort": 64, **_PRIVATE, "delta": 1e-5}},
    ),
    "user_entity": (
        "Records are sampled, at most 16 of a user and 4 that name an entity: an epsilon for both of them.",
        {
            "defense": {
                "kind": "user_entity",
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
        "Clipping without noise: a heuristic that promises nothing.",
        {"defense": {"kind": "clip", "unit": "example", "clip_norm": 1.0}},
    ),
    "canaries": (
        "Plain fine-tuning with planted canary users of three kinds beside the real ones.",
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
        " `heldin corpus example --to .` writes one.",
        {},
    ),
}
_OTHERWISE = {
    "corpus.source": "Your own: kind jsonl, csv, parquet, mbox, maildir or huggingface (heldin config corpus.source).",
    "model": "In place of pretrain a model of your own: base: EleutherAI/gpt-neo-125m",
}


def kinds() -> tuple[str, ...]:
    """Return the kinds of starting files."""
    return tuple(_KINDS)


def starting_file(kind: str, corpus: Path = Path("corpus.jsonl")) -> str:
    """Return a commented config that loads as it is; ``corpus`` is the corpus file in kind "own".

    Raises:
        InputError: an unknown kind.
    """
    if kind not in _KINDS:
        near = difflib.get_close_matches(kind, _KINDS, n=1)
        raise InputError(f"no starting file '{kind}': " + (f"did you mean {near[0]}? " if near else "") + _choices())
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
        content["corpus"]["source"] = {
            "kind": "jsonl",
            "path": str(corpus),
            "columns": {"user": "author", "text": "body"},
        }
    meanings = _Meanings()
    head = [*_comment(title), "# heldin config lists every key; heldin run THIS-FILE --check looks it over.", ""]
    body: list[str] = []
    for line in meanings.lines({**content, **changes}, "", ""):
        if body and not line.startswith((" ", "#")) and line.endswith(":"):  # a blank line before its comment
            at = next(i for i in range(len(body), -1, -1) if i == 0 or not body[i - 1].startswith("#"))
            body.insert(at, "")
        body.append(line)
    return "\n".join([*head, *body]) + "\n"


def _choices() -> str:
    return f"choose from {', '.join(_KINDS)}"


class _Meanings:
    """Meanings of keys and sections, by name and kind."""

    def __init__(self) -> None:
        self._sections: dict[tuple[str, str], str] = {}
        self._keys: dict[tuple[str, str], str] = {}
        for block in blocks():
            for kind in ("", *block.kinds):
                self._sections.setdefault((block.name, kind), block.meaning)
                for key in block.keys:
                    self._keys.setdefault((key.name, kind), key.meaning)

    def lines(self, content: Mapping[str, Any], name: str, kind: str) -> Iterator[str]:
        """Return a section's content, each key after a comment with the meaning."""
        kind = str(content.get("kind", kind))
        for key, value in content.items():
            dotted = f"{name}.{key}" if name else key
            if isinstance(value, dict):
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
