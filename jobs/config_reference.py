"""The reference of all keys, as lines for a terminal and as docs/configuration.md."""

import textwrap
from collections.abc import Sequence

from heldin.jobs.config_keys import Block, Key

WIDTH = 100
RUN_PAGE = """\
# Configuration

A run is one YAML file: `heldin run FILE`. This page lists every key; it is made by `heldin config --markdown`, and a
test holds it to the code.

- `heldin config --init KIND` writes a commented file to start from; `heldin config SECTION` prints a part of this page.
- `heldin run FILE --check` says what is wrong with a file, and what a run would do, before anything is read.
- `heldin config --schema` prints the JSON schema: an editor that knows it completes keys and shows their meanings. For
  the YAML language server write `# yaml-language-server: $schema=heldin.schema.json` as the first line of a config.
- `--set finetune.epochs=3` replaces one key; the value is YAML, so that `--set 'defense={kind: none}'` replaces a
  whole section.
- In paths and in names of models and data sets `$NAME` and `${NAME}` are environment variables, which must be set.
- An unknown key is an error, and so is a key that stands twice. All errors are told at once, with the nearest key.

A key in a section that has kinds belongs to those kinds alone. `[]` follows the name of a list: in the file its items
stand below each other, each after a hyphen.
"""


def lines(blocks: Sequence[Block], width: int = WIDTH) -> list[str]:
    """The sections one after the other: key, allowed values, default, meaning."""
    printed: list[str] = []
    for block in blocks:
        title = textwrap.wrap(_title(block), width, subsequent_indent="    ")
        printed += ["", *title] if printed else title
        printed += textwrap.wrap(block.meaning, width, initial_indent="  ", subsequent_indent="  ")
        for key in _shown(block):
            head = f"{key.name}: {_default(key, block)}   ({key.allowed})"
            printed += textwrap.wrap(head, width, initial_indent="    ", subsequent_indent=" " * 8)
            printed += textwrap.wrap(key.meaning, width, initial_indent=" " * 8, subsequent_indent=" " * 8)
    return printed


AUDIT_PAGE = """\
# Configuration of an audit

`heldin audit --config FILE` reads these keys; options that are given too win. This page lists every key; it is made by
`heldin config --audit --markdown`, and a test holds it to the code. What holds for every file stands in
[configuration.md](configuration.md).
"""


def markdown(blocks: Sequence[Block], introduction: str = RUN_PAGE) -> str:
    """The page, after its introduction."""
    parts = [introduction]
    for block in blocks:
        name = f"`{block.name}`" if block.name else "The file"
        kinds = f", kind {' or '.join(f'`{kind}`' for kind in block.kinds)}" if block.kinds else ""
        standing = f" ({block.standing})" if block.name else ""
        parts.append(f"## {name}{kinds}{standing}\n\n{block.meaning}\n")
        if keys := _shown(block):
            rows = ["| key | allowed | default | meaning |", "|---|---|---|---|"]
            rows += [
                f"| `{key.name.rsplit('.', 1)[-1]}` | {_cell(key.allowed)} | {_cell(_default(key, block))} |"
                f" {_cell(key.meaning)} |"
                for key in keys
            ]
            parts.append("\n".join(rows) + "\n")
    return "\n".join(parts).rstrip("\n")


def _shown(block: Block) -> list[Key]:
    """The keys, without ``kind`` if the title already says it."""
    # Pydantic gives a kind's docstring to the key ``kind`` too: it would stand twice on the page.
    return [key for key in block.keys if key.meaning != block.meaning]


def _title(block: Block) -> str:
    if not block.name:
        return "(the file)"
    kinds = f", kind {' | '.join(block.kinds)}" if block.kinds else ""
    return f"{block.name}{kinds}: {block.standing}"


def _default(key: Key, block: Block) -> str:
    if key.required or key.default is None:
        return "required"
    if key.default_alone is None:
        return key.default
    return f"{key.default}, but {key.default_alone} where {block.name} is given without it"


def _cell(text: str) -> str:
    # A bar ends a cell, two asterisks make text bold: allowed values have the one, default patterns the other.
    return text.replace("|", "\\|").replace("*", "\\*")
