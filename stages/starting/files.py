"""Commented files to start from: a run under each mechanism, an audit, a training set to plant, a sweep.

The contents are in the YAML files of this folder. The first line of each YAML file is a title. The file of a kind of
run contains its changes to small.yaml. Comments are the meanings of the keys (stages/config_keys.py).
"""

import difflib
import shlex
import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from heldin.base.errors import InputError
from heldin.base.yaml_files import read_yaml
from heldin.defenses.mechanisms.kinds import MECHANISMS
from heldin.stages.config_files import read_config
from heldin.stages.config_keys import as_yaml, blocks

_FOLDER = Path(__file__).parent
_WIDTH = 100
_CORPUS = "example/corpus.jsonl"
# By command; the first kind is the default.
_KINDS: dict[str, tuple[str, ...]] = {
    "run": (
        *("none", "uls", "banded", "els", "group", "example", "user-entity", "uedp", "filter", "clip"),
        *("canaries", "chat", "preference", "own", "own-chat", "own-preference"),
    ),
    "audit": ("files", "endpoint"),
    "plant": ("users", "canaries"),
    "sweep": ("defenses",),
}
_OTHERWISE = {
    "corpus.source": "Your own: kind jsonl, csv, parquet, mbox, maildir or huggingface"
    " (heldin config run corpus.source). Rows may be texts, messages, or prompts with completions.",
    "model": "To use your own model instead of pretrain: base: EleutherAI/gpt-neo-125m",
}


def contents(name: str) -> dict[str, Any]:
    """Return the content of the YAML file with this name, such as "small" or "sweep-defenses"."""
    return read_config(_FOLDER / f"{name}.yaml")


def changes(kind: str) -> dict[str, Any]:
    """Return the changes to small.yaml for a kind of run."""
    content = read_yaml(_FOLDER / f"run-{kind}.yaml")
    return {key: value for key, value in content.items() if key not in ("name", "extends")}


def kinds(command: str) -> tuple[str, ...]:
    """Return the kinds of starting files for "run", "audit", "plant" or "sweep"; the first kind is the default."""
    return _KINDS[command]


@dataclass(frozen=True)
class Needed:
    """The files that a starting file refers to, and the command that makes examples of them."""

    files: tuple[str, ...]
    command: str

    @property
    def words(self) -> str:
        """Return the names of the files as part of a sentence."""
        *others, last = self.files
        return f"{', '.join(others)} and {last}" if others else last


def needed(command: str, kind: str, folder: Path = Path()) -> Needed | None:
    """Return the files that a starting file in ``folder`` refers to; None if it refers to none."""
    if command == "sweep":
        base = str(folder / "run.yaml")
        return Needed((base,), "heldin init run" + ("" if base == "run.yaml" else f" --out {shlex.quote(base)}"))
    content = contents(f"{command}-{kind}")
    files = tuple(dict.fromkeys(text for text in _texts(content) if text.startswith("example/")))
    option = {"own-chat": "--chat", "own-preference": "--pairs"}.get(kind, "--models")
    return Needed(files, f"heldin corpus example --out example {option}") if files else None


def _texts(content: Any) -> Iterator[str]:
    match content:
        case str():
            yield content
        case dict():
            yield from _texts(list(content.values()))
        case list():
            for part in content:
                yield from _texts(part)


def starting_file(command: str, kind: str, model: type[BaseModel], corpus: str = _CORPUS) -> str:
    """Return a commented file. It loads without changes once the files that it refers to exist.

    Args:
        command: "run", "audit", "plant" or "sweep".
        kind: one of ``kinds(command)``.
        model: config class of such files; its meanings become comments.
        corpus: corpus file for the kinds whose names begin with "own".

    Raises:
        InputError: the kind is unknown.
    """
    if kind not in kinds(command):
        near = difflib.get_close_matches(kind, kinds(command), n=1)
        meant = f"did you mean {near[0]}? " if near else ""
        raise InputError(
            f"there is no starting file '{kind}' for {command}: {meant}choose from {', '.join(kinds(command))}"
        )
    title, content = _title(f"{command}-{kind}"), _whole(command, kind)
    if kind.startswith("own"):
        content["corpus"]["source"]["path"] = corpus
    looked_over = {"audit": "heldin audit --config THIS-FILE reads it"}.get(
        command, f"heldin {command} THIS-FILE --check checks it"
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


def _title(name: str) -> str:
    return (_FOLDER / f"{name}.yaml").read_text(encoding="utf-8").splitlines()[0].removeprefix("# ")


def _whole(command: str, kind: str) -> dict[str, Any]:
    content = contents(f"{command}-{kind}")
    # A mechanism with noise fixes its own steps, draws and divisor: keys of plain batches would only mislead.
    if command == "run" and "defense" in content and MECHANISMS.find(content["defense"]["kind"]).is_private:
        del content["finetune"]["epochs"], content["finetune"]["batch_size"]
    return {"name": content["name"], **content}


class _Meanings:
    """Meanings of keys and sections, stored by name and kind."""

    def __init__(self, model: type[BaseModel]) -> None:
        self._sections: dict[tuple[str, str], str] = {}
        self._keys: dict[tuple[str, str], str] = {}
        for block in blocks(model):
            for kind in ("", *block.kinds):
                self._sections.setdefault((block.name, kind), block.meaning)
                for key in block.keys:
                    self._keys.setdefault((key.name, kind), key.meaning)

    def lines(self, content: Mapping[str, Any], name: str, kind: str) -> Iterator[str]:
        """Yield the content of a section, with the meaning of each key as a comment above the key."""
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
