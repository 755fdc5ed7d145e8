"""Plain texts and bare lists of token ids as the values that the product passes on."""

from collections.abc import Iterable, Mapping, Sequence

from heldin.corpus.document import Document
from heldin.finetune import batches
from heldin.models.tokens import Tokens


def documents(texts: Iterable[str]) -> list[Document]:
    """Each text as a document, of which all counts."""
    return [Document.of(text) for text in texts]


def by_user(texts: Mapping[str, Sequence[str]]) -> dict[str, list[Document]]:
    """Each user's texts as documents."""
    return {user: documents(of) for user, of in texts.items()}


def tokens(records: Iterable[Sequence[int]]) -> list[Tokens]:
    """Each list of ids as a record, of which every token counts."""
    return [Tokens(list(ids)) for ids in records]


def ids(records: Iterable[Tokens]) -> list[list[int]]:
    """The ids of each record."""
    return [[int(token) for token in record.ids] for record in records]


def encode(tokenizer, texts: Iterable[str], sequence_length: int | None) -> list[Tokens]:
    """The tokens of plain texts."""
    return batches.encode(tokenizer, documents(texts), sequence_length)


def record_losses(model, inputs, targets, **options):
    """The losses of records that are tensors already."""
    return batches.TokenBatch.of(inputs, targets).losses(model, **options)
