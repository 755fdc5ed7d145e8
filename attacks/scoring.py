"""From users' texts to statistics: run target and reference models over the texts and apply every attack.

The inputs are users and their documents. Membership and the defense are not inputs.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from heldin.attacks.protocol import Attack, TextStatistic
from heldin.base.errors import InputError
from heldin.corpus.document import Document
from heldin.models.logprobs import of_counted, texts_read, token_ids
from heldin.models.score_cache import ScoreCache, ScoredModel
from heldin.models.token_scores import TokenScores

DEFAULT_MAX_CHARACTERS = 4000


@dataclass(frozen=True)
class AttackTexts:
    """The attacker's documents by user, each cut to ``max_characters``.

    Attributes:
        texts: documents of each user; attacks score only the parts that count.
        max_characters: number of characters that heldin reads of each text.
    """

    # Cut by characters and not by tokens, so that models with different tokenizers score the same text.

    texts: Mapping[str, Sequence[Document]]
    max_characters: int = DEFAULT_MAX_CHARACTERS

    def __post_init__(self) -> None:
        if self.max_characters < 1:
            raise InputError(f"attack.max_characters is {self.max_characters}: give at least 1")

    @classmethod
    def of(cls, texts: Mapping[str, Sequence[str]], max_characters: int = DEFAULT_MAX_CHARACTERS) -> "AttackTexts":
        """Return the attacker's documents from plain texts. Attacks score the whole texts."""
        documents = {user: [Document.of(text) for text in user_texts] for user, user_texts in texts.items()}
        return cls(documents, max_characters)

    def flat(self) -> list[tuple[str, int, Document]]:
        """Return (user, number of the text, cut document), user by user.

        The result omits a text if its cut has no counted part.

        Raises InputError for a user without any counted part.
        """
        flat = []
        for place, (user, documents) in enumerate(self.texts.items(), start=1):
            cut = [document.cut(self.max_characters) for document in documents]
            kept = [
                (user, number, document)
                for number, document in enumerate(cut)
                if all(branch.counted for branch in document.branches())
            ]
            if cut and not kept:
                raise InputError(
                    f"user {place} of {len(self.texts)} has nothing to score in the first {self.max_characters:,}"
                    " characters of any text: raise attack.max_characters, or leave such users out"
                )
            flat += kept
        return flat

    def named(self) -> tuple[str, ...]:
        """Return the input of a hash of these documents: the cut texts, and the counted parts if some do not count."""
        flat = self.flat()
        texts = repr([(user, number, document.text) for user, number, document in flat])
        parted = [(user, number, document.spans) for user, number, document in flat if not document.is_plain]
        forks = [(d.layout.completion, d.layout.second) for _, _, d in flat if d.is_pair and d.layout is not None]
        return (texts, *(repr(places) for places in (parted, forks) if places))

    def read(self) -> list[str]:
        """Return the texts that a model reads to score these documents: two texts for a preference pair."""
        return texts_read([document for _, _, document in self.flat()])

    @property
    def are_pairs(self) -> bool:
        """Return whether the documents are preference pairs."""
        return any(document.is_pair for documents in self.texts.values() for document in documents)

    def of_answer(self, number: int) -> "AttackTexts":
        """Return the documents with one answer of each pair. 0 is the chosen answer, 1 the rejected answer."""
        answers = {user: [each.branches()[number] for each in documents] for user, documents in self.texts.items()}
        return replace(self, texts=answers)

    def whole(self) -> dict[str, list[str]]:
        """Return each user's uncut texts, including the parts that do not count."""
        return {user: [document.text for document in documents] for user, documents in self.texts.items()}


def score_attacks(
    attacks: Sequence[Attack],
    texts: AttackTexts,
    target: ScoredModel,
    reference: ScoredModel | None,
    cache: ScoreCache,
    *,
    advance: Callable[[int], object] | None = None,
) -> list[TextStatistic]:
    """Return every attack's statistic of every text, or of every user.

    Args:
        texts: the attacker's texts.
        target: the model under audit.
        reference: a model that was not trained on the audited users; None if no attack needs one.
        advance: called with the number of finished (model, text) pairs.

    Raises:
        InputError: an attack needs a reference and there is none, or needs a score that the target does not give.
    """
    # Before any model runs: a pass over all texts may take hours.
    needing = [attack.name for attack in attacks if attack.needs_reference]
    if needing and reference is None:
        raise InputError(f"attack '{needing[0]}' needs a reference model: give a reference model")
    items = texts.flat()
    # All attacks share one pass of the target. What some need beside log-probabilities is of the target alone.
    target_scores = scores_of(texts, target, cache, attacks, advance=advance)
    # Attacks without a reference are handed None in its place and need no case of their own below.
    reference_scores: Sequence[TokenScores | None] = [None] * len(items)
    if needing and reference is not None:
        reference_scores = scores_of(texts, reference, cache, advance=advance)
    statistics: list[TextStatistic] = []
    owners, counted = [user for user, _, _ in items], [document.counted for _, _, document in items]
    for attack in attacks:
        statistics += attack.statistics(owners, counted, target_scores, reference_scores)
    return statistics


def scores_of(
    texts: AttackTexts,
    model: ScoredModel,
    cache: ScoreCache,
    attacks: Sequence[Attack] = (),
    *,
    advance: Callable[[int], object] | None = None,
) -> list[TokenScores]:
    """Return scores of the counted tokens of every document, in the order of ``flat``.

    The model reads each token after all tokens before it.

    Args:
        texts: the documents.
        cache: cache of token scores, with the scores of whole texts.
        attacks: attacks that need more than log-probabilities, such as ranks or token ids.

    Raises:
        InputError: no token of a document counts, or an attack needs parts of texts or token ids from an endpoint
            without a tokenizer. See also ``ScoreCache.scores``.
    """
    flat = texts.flat()
    documents = [document for _, _, document in flat]
    plain = texts_read(documents)
    moments, ranks = any(attack.needs_moments for attack in attacks), any(attack.needs_ranks for attack in attacks)
    scored = cache.scores(model, plain, moments=moments, ranks=ranks, advance=advance)
    if any(attack.needs_ids for attack in attacks):
        scored = _with_ids(model, plain, scored)
    of_counted_tokens = of_counted(model.tokenizer, documents, scored)
    for (user, number, _), of_document in zip(flat, of_counted_tokens, strict=True):
        if not of_document.is_complete:
            place = list(texts.texts).index(user) + 1
            raise InputError(
                f"user number {place}: the scored part of text {number + 1} has no token under '{model.name}'."
                " Leave this text out"
            )
    return of_counted_tokens


def _with_ids(model: ScoredModel, texts: Sequence[str], scores: Sequence[TokenScores]) -> list[TokenScores]:
    """Return the scores, with the ids of their tokens."""
    if model.tokenizer is None:
        raise InputError(f"model '{model.name}' does not report token ids: give --tokenizer")
    ids = token_ids(model.tokenizer, texts)
    # Another number of tokens would put an id beside another token's score.
    if any(len(ids_of_text) != len(of_text.logprobs) for ids_of_text, of_text in zip(ids, scores, strict=True)):
        raise InputError(
            f"the tokens of the tokenizer for model '{model.name}' differ from the scored tokens: give the model's"
            " own tokenizer"
        )
    return [replace(of_text, ids=ids_of_text) for of_text, ids_of_text in zip(scores, ids, strict=True)]
