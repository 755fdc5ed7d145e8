"""Find the format of a source's rows, which may be turns, from the first row. The format decides which parts count."""

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from heldin.base.errors import InputError
from heldin.corpus.chat.columns import TurnColumns, answered_text, found_format
from heldin.corpus.chat.conversation import Conversation, RowFormat, form_besides, is_of_texts
from heldin.corpus.chat.template import ChatTemplate
from heldin.corpus.document import Counting, Document
from heldin.corpus.sources.rows import Columns
from heldin.words.rows import FileText
from heldin.words.statement import Statement


@dataclass(frozen=True)
class RowReading:
    """How the rows of a source become documents.

    Attributes:
        format: how rows keep their text.
        columns: columns of the source.
        counting: the parts of a stored document that count.
        loss: the parts on which training computes the loss.
        attack: the parts that are scored.
        template: template that writes messages; None if rows have no messages.
        besides: another format that rows also have and that heldin does not read, if nobody chose between the formats.
    """

    format: RowFormat
    columns: Columns
    counting: Counting = Counting.ALL
    loss: Counting = Counting.ALL
    attack: Counting = Counting.ALL
    template: ChatTemplate | None = None
    besides: RowFormat | None = None

    @property
    def has_turns(self) -> bool:
        """Whether rows have turns."""
        return self.format.has_turns

    @property
    def template_source(self) -> str | None:
        """The template in Jinja; None if rows have no messages."""
        return None if self.template is None else self.template.source

    def made(self, asked: str, answered: str, rejected: str) -> Document:
        """Return a made-up row of two turns. Raises ValueError if the template refuses the row.

        Args:
            asked: words of the user.
            answered: words of the assistant.
            rejected: words of the assistant in the rejected answer of a preference pair.
        """
        # Without the system message that rows may begin with: copied from a user's row, it would carry what this user
        # wrote into others' records (docs/theory.md#rules-of-the-data).
        answers = (answered, rejected)[: max(1, len(self.format.answers))]
        if self.template is None:
            return answered_text(f"{asked}\n", *answers).counting(self.counting)
        turns, *other = (
            [{"role": "user", "content": asked}, {"role": "assistant", "content": answer}] for answer in answers
        )
        prompt = 1 if self.format.answers else None
        conversation = Conversation(turns, prompt, other[0] if other else None)
        return self.template.document(conversation).counting(self.counting)

    def lines(self, *, trains: bool) -> list[Statement]:
        """Return lines that state how heldin reads rows; no lines for plain texts.

        Args:
            trains: whether a training follows, so the lines also state the loss; otherwise only scores follow.
        """
        stated = {"format": self.format, "column": self.columns.text}
        besides = [] if self.besides is None else [FileText.BESIDES(**stated, besides=self.besides)]
        if not self.has_turns:
            return besides
        stated |= {"attack": self.attack}
        found_by = "columns" if self.template is None else self.template.mask_from
        if trains:
            return [*besides, FileText.TURNS(**stated, loss=self.loss, found_by=found_by)]
        # Who trained the model is not known here, and TRL may have.
        other = self.template is not None and not self.template.is_as_in_trl
        return [*besides, (FileText.TURNS_NOT_TRL if other else FileText.TURNS_SCORED)(**stated, found_by=found_by)]


@dataclass(frozen=True)
class StatedRows:
    """Statements by the user about the rows of a source. For None, heldin finds the value from the rows.

    Attributes:
        format: how rows keep their text.
        turns: the parts that deduplication, caps, entities and canary users use.
        loss: the parts on which training computes the loss.
        attack: the parts that are scored.
    """

    format: RowFormat | None = None
    turns: Counting | None = None
    loss: Counting | None = None
    attack: Counting | None = None


def kept_reading(reading: RowReading) -> dict[str, Any] | None:
    """Return the reading of rows, for a record. heldin can then read the rows again without any model."""
    if not reading.has_turns:
        return None
    return {
        "format": str(reading.format),
        "column": reading.columns.text,
        "counting": str(reading.counting),
        "template": None if reading.template is None else asdict(reading.template),
    }


def reading_again(kept: Mapping[str, Any] | None, columns: Columns) -> RowReading:
    """Return the reading that ``kept_reading`` stored. Raises KeyError or ValueError for any other value.

    Args:
        kept: the value in the record.
        columns: the named columns.
    """
    if kept is None:
        return RowReading(RowFormat.TEXT, columns)
    form, counting = RowFormat(kept["format"]), Counting(kept["counting"])
    template = None if kept["template"] is None else ChatTemplate(**kept["template"])
    turns = TurnColumns.of(columns, form, kept["column"], template, counting)
    return RowReading(form, turns, counting, counting, counting, template)


TEXTS = RowReading(RowFormat.TEXT, Columns())


def reading_of(
    row: Mapping[str, Any] | None, columns: Columns, asked: StatedRows, template: Callable[[], ChatTemplate]
) -> RowReading:
    """Return how the rows of a source become documents.

    Args:
        row: the first row of the source; None: no row can be looked at.
        columns: the named columns.
        asked: the user's statements about the rows.
        template: function that returns the template that writes messages; it is called only for rows with messages.

    Raises:
        InputError: the requested turns do not exist in rows of this format, or ``template`` raises an InputError.
    """
    form, column = found_format(row, columns, asked.format)
    loss = asked.loss or form.counting
    stored, attack = asked.turns or loss, asked.attack or loss
    stated = {"attack.turns": asked.attack, "finetune.loss_on": asked.loss, "corpus.turns": asked.turns}
    for key, counting in stated.items():
        if counting is not None:
            _require(key, counting, form)
    chosen = row is None or asked.format is not None or columns.text != Columns.text
    besides = None if row is None or chosen else form_besides(row, column)
    if not form.has_turns:
        return RowReading(form, columns, besides=besides)
    if columns.spans is not None:
        raise InputError(f"columns.spans needs rows of texts, but the rows are {form}: leave columns.spans out")
    # Texts need no template.
    of_texts = bool(form.answers) and row is not None and is_of_texts(row, form, column)
    written = None if of_texts else template()
    turns = TurnColumns.of(columns, form, column, written, stored)
    return RowReading(form, turns, stored, loss, attack, written, besides)


# What may count where two answers are compared: of what both have before them nothing is learned.
_OF_ANSWERS = {
    "finetune.loss_on": (Counting.COMPLETION,),
    "attack.turns": (Counting.COMPLETION, Counting.ASSISTANT),
}


def _require(key: str, counting: Counting, form: RowFormat) -> None:
    if not form.has_turns and counting is not Counting.ALL:
        raise InputError(f"{key} is {counting}, but the rows are texts without turns: leave this key out")
    if form.has_pairs and key in _OF_ANSWERS and counting not in _OF_ANSWERS[key]:
        raise InputError(
            f"{key} is {counting}, but the rows are preference pairs, and training compares their answers: leave"
            " this key out"
        )
    if counting is Counting.COMPLETION and not form.answers:
        raise InputError(f"{key} is {counting}, but the rows are {form} without a separate prompt: choose assistant")
