"""The pages of a config's keys: each key is explained once, and refers to that place wherever a section shares keys."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from heldin.jobs.checkpoint.audit_config import CheckpointConfig
from heldin.stages.config_keys import Block, Key, blocks, default_in, without_kind
from heldin.stages.run_config import RunConfig

RUN_PAGE = """\
# Configuration of a run

`heldin run FILE` reads one YAML file. This page lists all keys of the file. `make golden` writes the page from the
code, and a test compares page and code.

- `heldin init run --kind KIND` writes a commented file to start from. `heldin config run SECTION` prints one section of
  this page.
- `heldin run FILE --check` reports every mistake in a file, and the steps of the run, and trains nothing.
- `heldin config run --schema` prints a JSON schema. With this schema, an editor completes keys and shows their
  meanings. For the YAML language server, write `# yaml-language-server: $schema=heldin.schema.json` as the first line
  of a config.
- `--set finetune.epochs=3` replaces one key. The value is YAML, so `--set 'defense={kind: none}'` replaces a whole
  section.
- In paths and in names of models and data sets, `$NAME` and `${NAME}` are environment variables, which must be set.
- Unknown keys and repeated keys are errors. heldin reports all errors at once, with the nearest valid key for each.

Some sections have kinds. A key listed under a kind belongs only to that kind. `[]` after a name marks a list. In the
file, write one item per line, each after a hyphen. A key that several sections share is explained in one section, and
the other sections link to it.
"""
AUDIT_PAGE = """\
# Configuration of an audit

This page lists the keys that `heldin audit --config FILE` reads. Options on the command line override keys in the
file. `make golden` writes this page from the code, and a test checks that the page matches the code. For general
rules, see [configuration.md](configuration.md).
"""


def config_pages() -> dict[str, str]:
    """Return the pages by their names."""
    return {
        "configuration": config_page(blocks(RunConfig), RUN_PAGE),
        "audit-configuration": config_page(blocks(CheckpointConfig), AUDIT_PAGE),
    }


def config_page(blocks: Sequence[Block], introduction: str) -> str:
    """Return the page: introduction and sections. Each key is explained once; other sections that have it link there.

    The place of a key is the least nested of the sections that share it, or the one with the shortest name.
    """
    blocks = list(dict.fromkeys(blocks))
    places = sorted(blocks, key=lambda block: (block.name.count("."), len(block.name)))
    parts, repeated = [introduction], list[str]()
    for block in blocks:
        if any(_within(block.name, name) for name in repeated):
            continue
        same = _same(block.name, blocks, places)
        parts.append(_head(block, whole=same is not None))
        if same is not None:
            repeated.append(block.name)
            parts.append(f"The keys are those of {_link(same, whole=True)}.\n")
        else:
            parts += _tables(block, places)
    return "\n".join(parts).rstrip("\n")


def _within(name: str, outer: str) -> bool:
    return name == outer or name.startswith(f"{outer}.")


def _same(name: str, blocks: Sequence[Block], places: Sequence[Block]) -> Block | None:
    """Return the first block of the section that explains all keys of this one, with these defaults, if it is another.

    Sections below both are the same too.
    """
    wanted = _contents(name, blocks)
    first = next((place for place in places if place.name and _contents(place.name, blocks) == wanted), None)
    return first if first is not None and first.name != name and any(block[2] for block in wanted) else None


def _contents(name: str, blocks: Sequence[Block]) -> list[tuple[Any, ...]]:
    """Return what makes two sections the same, wherever they are."""
    # The words above the keys belong to the place, and the kinds may be those of a section around it.
    return list(
        dict.fromkeys(
            (block.name[len(name) :], len(block.kinds), tuple(replace(key, name=_last(key)) for key in block.keys))
            for block in blocks
            if name and _within(block.name, name)
        )
    )


def _head(block: Block, *, whole: bool) -> str:
    level = "##" if block.name.count(".") == 0 else "###"
    # Above a section that has kinds each kind has words of its own.
    meaning = "" if whole and block.kinds else f"\n{_cell(block.meaning)}\n"
    return f"{level} {_heading(block, whole=whole)}\n{meaning}"


def _heading(block: Block, *, whole: bool) -> str:
    name = f"`{block.name}`" if block.name else "The file"
    kinds = f", kind {' or '.join(f'`{kind}`' for kind in block.kinds)}" if block.kinds and not whole else ""
    return f"{name}{kinds}{f' ({block.standing})' if block.name else ''}"


def _link(block: Block, *, whole: bool) -> str:
    # Of a list of kinds the first says enough in a sentence.
    kind = f", kind `{block.kinds[0]}`" if block.kinds and not whole else ""
    anchor = re.sub(r"[^a-z0-9_ -]", "", _heading(block, whole=False).lower()).replace(" ", "-")
    return f"[`{block.name}`{kind}](#{anchor})"


def _tables(block: Block, places: Sequence[Block]) -> Iterator[str]:
    """Yield the table of the keys that are explained here, and lines that refer to the places of others."""
    own, elsewhere = [], dict[str, list[str]]()
    for key in without_kind(block):
        place, same = next((b, k) for b in places for k in b.keys if _explains(k, key) and _alike(b, block))
        if place == block:
            own.append(key)
            continue
        default = "" if default_in(same, place) == default_in(key, block) else f" (default {default_in(key, block)})"
        elsewhere.setdefault(_link(place, whole=False), []).append(f"`{_last(key)}`{_cell(default)}")
    if own:
        rows = ["| key | allowed | default | meaning |", "|---|---|---|---|"]
        rows += [
            f"| `{_last(key)}` | {_cell(key.allowed)} | {_cell(default_in(key, block))} | {_cell(key.meaning)} |"
            for key in own
        ]
        yield "\n".join(rows) + "\n"
    for link, names in elsewhere.items():
        yield f"As in {link}: {', '.join(names)}.\n"


def _explains(key: Key, other: Key) -> bool:
    return (_last(key), key.allowed, key.meaning) == (_last(other), other.allowed, other.meaning)


def _alike(block: Block, other: Block) -> bool:
    """Return whether a reader would look for keys of one in the other: they share more than one, or all."""
    shared = [key for key in other.keys if any(_explains(own, key) for own in block.keys)]
    return block == other or len(shared) > 1 or len(shared) == len(without_kind(other))


def _cell(text: str) -> str:
    # A bar ends a cell, two asterisks make text bold, and two dollar signs would enclose a formula.
    return re.sub(r"([|*$])", r"\\\1", text)


def _last(key: Key) -> str:
    return key.name.rsplit(".", 1)[-1]


if __name__ == "__main__":
    for name, text in config_pages().items():
        Path(__file__).with_name(f"{name}.md").write_text(text + "\n", encoding="utf-8")
