"""From users' texts to statistics, for attackers who cannot see the log-probabilities of a given text.

As in ``attacks.scoring``, the inputs are users and their documents. Membership and the defense are not inputs.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from heldin.attacks.access import Access
from heldin.attacks.cuts import LEAST_WORDS, TextCut, cuts_of
from heldin.attacks.protocol import REFERENCE_ALONE, Attack, TextStatistic
from heldin.attacks.sampling import SamplingConfig
from heldin.base.errors import InputError
from heldin.models.answers import AnsweringModel, AnswerStore, Prefix, next_logprob
from heldin.models.loading import LanguageModel
from heldin.models.sampling import likeliest, sampled
from heldin.models.token_scores import CutAnswers, TokenScores

if TYPE_CHECKING:
    from heldin.attacks.scoring import AttackTexts
    from heldin.models.score_cache import ScoredModel

Advance = Callable[[int], object]


@dataclass(frozen=True)
class Answering:
    """The requests to models, and the store of their answers."""

    sampling: SamplingConfig
    store: AnswerStore


def cut_texts(
    texts: "AttackTexts", level: Access, sampling: SamplingConfig, models: Sequence["ScoredModel | AnsweringModel"] = ()
) -> list[tuple[str, str, list[TextCut]]]:
    """Return the user, the text and the cuts of every text that can be cut, user by user.

    Args:
        models: models that continue the cuts. At level top-k, a chat is also cut inside its turns if every model can
            continue an answer that has already begun.

    Raises InputError for a user if all texts of the user are too short.
    """
    goes_on = all(not isinstance(model, AnsweringModel) or model.goes_on for model in models)
    inside = goes_on and level is Access.TOP_K
    shares = sampling.cuts if level is Access.TEXT else sampling.places()
    cut = [
        (user, document.counted, cuts)
        for user, _, document in texts.flat()
        if (cuts := cuts_of(document, shares, sampling.tokens, inside=inside))
    ]
    with_cuts = {user for user, _, _ in cut}
    place = next((place for place, user in enumerate(texts.texts, start=1) if user not in with_cuts), None)
    if place is not None:
        raise InputError(
            f"user {place} of {len(texts.texts)} has no text that can be cut and continued: a text needs"
            f" {LEAST_WORDS + 1} words in the first {texts.max_characters:,} characters. Leave such users out"
        )
    return cut


def score_by_answers(
    attacks: Sequence[Attack],
    texts: "AttackTexts",
    target: "ScoredModel",
    reference: "ScoredModel",
    answering: Answering,
    *,
    advance: Advance | None = None,
) -> list[TextStatistic]:
    """Return every attack's statistic of every text that can be cut. All attacks must have the same level.

    Args:
        advance: called with the number of finished (model, cut) pairs.

    Raises:
        InputError: every text of a user is too short, or a model cannot give answers at this level.
    """
    level = attacks[0].access
    cut = cut_texts(texts, level, answering.sampling, (target, reference))
    under = [answers_of(cut, model, level, answering, advance) for model in (target, reference)]
    owners, counted = [user for user, _, _ in cut], [text for _, text, _ in cut]
    return [statistic for attack in attacks for statistic in attack.statistics(owners, counted, under[0], under[1])]


def reference_by_answers(
    attack: Attack, texts: "AttackTexts", reference: "ScoredModel", answering: Answering
) -> list[TextStatistic]:
    """Return the attack's statistic of the reference model alone, as a baseline that never sees the audited model."""
    cut = cut_texts(texts, attack.access, answering.sampling, (reference,))
    answers = answers_of(cut, reference, attack.access, answering)
    # Beside a model that writes nothing, a difference is the reference's own.
    silent = [
        replace(scores, answers=tuple(replace(each, samples=(), next_logprob=0.0) for each in scores.answers or ()))
        for scores in answers
    ]
    owners, counted = [user for user, _, _ in cut], [text for _, text, _ in cut]
    return [replace(each, attack=REFERENCE_ALONE) for each in attack.statistics(owners, counted, answers, silent)]


def answers_of(
    cut: Sequence[tuple[str, str, Sequence[TextCut]]],
    model: "ScoredModel | AnsweringModel",
    level: Access,
    answering: Answering,
    advance: Advance | None = None,
) -> list[TokenScores]:
    """Return a model's answers at the cuts of every text."""
    flat = [each for _, _, cuts in cut for each in cuts]
    prefixes = [each.prefix for each in flat]
    if level is Access.TEXT:
        samples = samples_of(model, prefixes, answering, advance)
        answers = [CutAnswers(each.continuation, of_cut) for each, of_cut in zip(flat, samples, strict=True)]
    else:
        values = _next_logprobs(model, flat, answering, advance)
        answers = [CutAnswers(each.continuation, (), value) for each, value in zip(flat, values, strict=True)]
    ends = np.cumsum([len(cuts) for _, _, cuts in cut])
    nothing = np.empty(0, np.float32)
    return [
        TokenScores(nothing, answers=tuple(answers[end - len(cuts) : end]))
        for (_, _, cuts), end in zip(cut, ends.tolist(), strict=True)
    ]


def samples_of(
    model: "ScoredModel | AnsweringModel", prefixes: Sequence[Prefix], answering: Answering, advance: Advance | None
) -> list[tuple[str, ...]]:
    """Return the continuations of each prefix."""
    asked = answering.sampling.asked()
    if isinstance(model, LanguageModel):
        return sampled(model, prefixes, asked, answering.store, advance)
    return _answering(model).samples(prefixes, asked, answering.store, advance)


def _next_logprobs(
    model: "ScoredModel | AnsweringModel", cuts: Sequence[TextCut], answering: Answering, advance: Advance | None
) -> list[float]:
    asked, prefixes = answering.sampling.asked(), [cut.prefix for cut in cuts]
    if isinstance(model, LanguageModel):
        listed = likeliest(model, prefixes, asked, answering.store, advance)
    else:
        listed = _answering(model).next_tokens(prefixes, asked, answering.store, advance)
    return [next_logprob(tokens, cut.continuation) for tokens, cut in zip(listed, cuts, strict=True)]


def _answering(model: "ScoredModel | AnsweringModel") -> AnsweringModel:
    if not isinstance(model, AnsweringModel):
        raise InputError(
            f"'{model.name}' was opened only to score texts, not to continue texts: give a single level of access"
        )
    return model
