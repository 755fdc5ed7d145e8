"""A report is a list of sections, and a section is a list of typed blocks.

The tables of contents are ``record_report.SECTIONS`` and ``sweep_report.SECTIONS``. Each entry has a key, and may have
a heading and a function. The function makes the section's content from a record or a sweep, or nothing if the section
does not apply. Two back ends lay out sections: ``typesetting`` as a PDF, ``html`` as a web page. They depend on the
kinds of blocks but not on sections, so a new section needs only one function and its entry. Only a new kind of block
needs a change in both back ends.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from enum import StrEnum
from typing import Any, Generic, TypeVar

Rows = Sequence[Sequence[str]]


@dataclass(frozen=True)
class Banner:
    """The answer of the report, with a colour and an icon, and a sentence or two.

    Attributes:
        answer: value of ``audit.decision.Answer``, which decides colour and icon.
        title: the highlighted text.
    """

    answer: str
    title: str
    text: str


@dataclass(frozen=True)
class FramedNote:
    """A framed note that people should read together with the answer."""

    text: str


@dataclass(frozen=True)
class Paragraph:
    """Running text. A ``lead`` in bold precedes it."""

    text: str
    lead: str = ""


@dataclass(frozen=True)
class Small:
    """Small print."""

    text: str


@dataclass(frozen=True)
class Table:
    """A table with a row of column names, and small print below it.

    Attributes:
        numeric: indices of right-aligned columns.
        widths: for each column, its share of the page's width, or None for its natural width; empty if all are natural.
        dense: whether to use smaller letters, for a table with many columns.
        links: for a web page, the link address of the first cell in each row; "" for a row without a link.
    """

    head: Sequence[str]
    rows: Rows
    note: str = ""
    numeric: Sequence[int] = ()
    widths: Sequence[float | None] = ()
    dense: bool = False
    links: Sequence[str] = ()


@dataclass(frozen=True)
class FactList:
    """Pairs (name, value). An empty value becomes a blank line that people fill in by hand."""

    pairs: Rows


@dataclass(frozen=True)
class Remarks:
    """A bulleted list."""

    lines: Sequence[str]


@dataclass(frozen=True)
class Figure:
    """A figure.

    Attributes:
        name: name for files, unique in the report.
        draw: function that returns the figure as SVG.
        alt: description for readers who cannot see the figure.
        width: width in per cent of the page's width.
    """

    name: str
    draw: Callable[[], str]
    alt: str
    caption: str = ""
    width: int = 100


@dataclass(frozen=True)
class Beside:
    """Figures next to each other; on a narrow screen, such as a phone's, one below the other."""

    figures: Sequence[Figure]


@dataclass(frozen=True)
class Reference:
    """A sentence without full stop that refers to another section by the section's key. A PDF adds the page number."""

    text: str
    section: str


@dataclass(frozen=True)
class Blanks:
    """Two empty lines to write on, below ``label``."""

    label: str


@dataclass(frozen=True)
class Signature:
    """Empty lines for decision, name and date; ``basis`` states the basis of the decision."""

    basis: str


@dataclass(frozen=True)
class Verbatim:
    """Text with its line breaks, such as a command."""

    text: str


@dataclass(frozen=True)
class Attachment:
    """A file that is part of the report: attached to a PDF, folded in a web page."""

    name: str
    text: str
    description: str


Block = (
    Banner
    | FramedNote
    | Paragraph
    | Small
    | Table
    | FactList
    | Remarks
    | Figure
    | Beside
    | Reference
    | Blanks
    | Signature
    | Verbatim
    | Attachment
)
B = TypeVar("B", bound=Block)
S = TypeVar("S")


class Place(StrEnum):
    """The position at which a section begins."""

    FRONT = "front"  # the first page, with small headings
    FLOW = "flow"
    PAGE = "page"  # a new page


@dataclass(frozen=True)
class ReportSection:
    """A heading, and the blocks below it.

    Attributes:
        key: key by which code and tests refer to the section, unique in the report.
        title: heading; empty for a section that continues the previous section.
        level: 1, or 2 for a part of the previous section.
        whole: whether to keep the section on a single page.
    """

    key: str
    title: str
    blocks: Sequence[Block]
    level: int = 1
    place: Place = Place.FLOW
    whole: bool = False

    @property
    def text(self) -> str:
        """Text of all paragraphs."""
        return " ".join(block.text for block in self.blocks if isinstance(block, Paragraph))

    def first(self, kind: type[B]) -> B:
        """Return the first block of this kind. Raises StopIteration if there is none."""
        return next(block for block in self.blocks if isinstance(block, kind))


@dataclass(frozen=True)
class Report:
    """A complete report; a back end can lay it out.

    Attributes:
        title: kind of report, and the name of its subject.
        version: version of heldin that produced the subject.
        notice: text that states who may read the report.
    """

    title: str
    version: str
    notice: str
    sections: Sequence[ReportSection]

    def section(self, key: str) -> ReportSection | None:
        """Return the section with this key; None if the report has none."""
        return next((section for section in self.sections if section.key == key), None)

    @property
    def figures(self) -> dict[str, Figure]:
        """Figures by name."""
        blocks = [block for section in self.sections for block in section.blocks]
        inner = [figure for block in blocks if isinstance(block, Beside) for figure in block.figures]
        return {block.name: block for block in (*blocks, *inner) if isinstance(block, Figure)}


@dataclass(frozen=True)
class Entry(Generic[S]):
    """An entry in the table of contents of a kind of report. Its other fields are those of ``ReportSection``.

    Attributes:
        title: heading, or a function that returns the heading for a subject.
        make: function that returns the text of a paragraph, or blocks; empty if the section does not apply. None: the
            heading only introduces the following sections.
    """

    key: str
    title: str | Callable[[S], str] = ""
    make: Callable[[S], str | Block | Sequence[Block] | None] | None = None
    level: int = 1
    place: Place = Place.FLOW
    whole: bool = False

    def section(self, subject: S) -> ReportSection | None:
        """Return the section for a record or a sweep; None if it does not apply."""
        content = self.make(subject) if self.make else None
        if self.make and not content:
            return None
        blocks = (
            [Paragraph(content)] if isinstance(content, str) else [content] if isinstance(content, Block) else content
        )
        title = self.title if isinstance(self.title, str) else self.title(subject)
        return ReportSection(self.key, title, blocks or (), self.level, self.place, self.whole)


def assemble(subject: S, entries: Iterable[Entry[S]]) -> tuple[ReportSection, ...]:
    """Return the sections that apply to a record or a sweep, in order."""
    return tuple(section for entry in entries if (section := entry.section(subject)) is not None)


def texts(content: Any) -> Iterator[str]:
    """Yield every text in sections or blocks that a reader can see or hear."""
    match content:
        case str() if content:
            yield content
        case ReportSection():
            yield from texts((content.title, content.blocks))
        case list() | tuple():
            for part in content:
                yield from texts(part)
        case (
            Banner()
            | FramedNote()
            | Paragraph()
            | Small()
            | Table()
            | FactList()
            | Remarks()
            | Figure()
            | Beside()
            | Reference()
        ):
            yield from texts(
                [getattr(content, field.name) for field in fields(content) if field.name not in ("name", "links")]
            )
        case Blanks() | Signature() | Verbatim() | Attachment():
            yield from texts([getattr(content, field.name) for field in fields(content)])
