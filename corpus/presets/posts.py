"""Stack Overflow from the published dump: Posts.xml of archive.org's stackexchange, one <row> per post."""

import re
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pyarrow as pa

from heldin.base.errors import InputError
from heldin.base.files import existing
from heldin.corpus.presets.published import PresetTokens, another_format
from heldin.corpus.sources.bad_rows import BadRows
from heldin.corpus.sources.rows import Columns, batched
from heldin.corpus.sources.text_files import BROKEN, corrupt, first_line, open_binary

POSTS = "the Posts.xml of a Stack Exchange dump (stackoverflow.com-Posts.7z, unpacked)"
QUESTION_OR_ANSWER = ("1", "2")
_COLUMNS = Columns(id="id", date="date")


def stackoverflow(path: Path, _tokens: PresetTokens, bad: BadRows) -> Iterator[pa.RecordBatch]:
    """Yield questions and answers as plain text, with the owner as the user. Posts without an owner are left out."""
    return batched(_posts(path), path.name, "post", _COLUMNS, bad)


def plain_text(html: str) -> str:
    """Return the text of a post's HTML, with separate lines for paragraphs, list items, code blocks and headings."""
    reader = _TextOf()
    reader.feed(html)
    reader.close()
    # Nested blocks each add a line break; more than one blank line says nothing.
    return re.sub(r"\n{3,}", "\n\n", "".join(reader.parts)).strip()


def posts_file(path: Path) -> Path:
    """Return the path. Raises InputError if the path is a folder or does not exist."""
    if path.is_dir():
        raise another_format(path, POSTS, "a folder")
    return existing(path)


def _posts(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    posts_file(path)
    number = 0
    root: ElementTree.Element | None = None
    try:
        with open_binary(path) as stream:
            # The start of the root is needed to empty it below; rows are read at their end, when they are complete.
            for event, element in ElementTree.iterparse(stream, ("start", "end")):
                if root is None:
                    root = element
                    if root.tag != "posts":
                        raise another_format(path, POSTS, f"XML that begins <{root.tag}>")
                if event == "end" and element.tag == "row":
                    number += 1
                    # The dump has other files of <row>s too, such as Comments.xml, without a type of post.
                    if number == 1 and not {"Id", "PostTypeId", "Body"} <= set(element.keys()):
                        raise another_format(path, POSTS, f"rows with {', '.join(element.keys()) or 'nothing in them'}")
                    if element.get("PostTypeId") in QUESTION_OR_ANSWER and element.get("OwnerUserId"):
                        yield number, _post(element)
                    root.clear()  # else the parsed rows would pile up in memory: the dump has 100 GB
    except BROKEN as error:
        raise corrupt(path, f"post {number}", error) from error
    except ElementTree.ParseError as error:
        # Broken after it began as XML: a damaged dump. Broken at once: another file.
        if root is not None:
            raise InputError(
                f"{path.name}: broken XML after post {number} ({first_line(error)}): fetch the file again"
            ) from error
        raise another_format(path, POSTS, "a file that is not XML") from error


def _post(row: ElementTree.Element) -> dict[str, Any]:
    return {
        "user": row.get("OwnerUserId"),
        "text": plain_text(row.get("Body", "")),
        "id": row.get("Id"),
        "date": row.get("CreationDate"),
    }


class _TextOf(HTMLParser):
    """Collects the text between HTML tags."""

    BLOCKS = frozenset({"p", "pre", "li", "ul", "ol", "blockquote", "h1", "h2", "h3", "hr", "br", "div", "table", "tr"})

    def __init__(self) -> None:
        super().__init__()
        self.parts: list[str] = []

    def handle_data(self, data: str) -> None:
        """Add the text."""
        self.parts.append(data)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Begin a block."""
        if tag in self.BLOCKS:
            self.parts.append("\n")

    def handle_endtag(self, tag: str) -> None:
        """End a block."""
        if tag in self.BLOCKS:
            self.parts.append("\n")
