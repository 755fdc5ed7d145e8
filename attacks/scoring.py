"""From users' texts to statistics: run target and reference models over the texts and apply every attack.

The inputs are users and their texts, without membership and without the defense.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from heldin.attacks.joint import AnyAttack, JointAttack
from heldin.attacks.table import TextStatistic
from heldin.base.errors import InputError
from heldin.models.logprobs import token_ids
from heldin.models.score_cache import ScoreCache, ScoredModel
from heldin.models.token_scores import TokenScores

DEFAULT_MAX_CHARACTERS = 4000


@dataclass(frozen=True)
class AttackTexts:
    """The attacker's texts by user, each cut to ``max_characters``."""

    # Cut by characters and not by tokens, so that models with different tokenizers score the same text.

    texts: Mapping[str, Sequence[str]]
    max_characters: int = DEFAULT_MAX_CHARACTERS

    def __post_init__(self) -> None:
        if self.max_characters < 1:
            raise InputError(f"attack.max_characters is {self.max_characters}: it must be at least 1")

    def flat(self) -> list[tuple[str, int, str]]:
        """(user, number of the text, cut text), user by user."""
        return [
            (user, i, text[: self.max_characters]) for user, texts in self.texts.items() for i, text in enumerate(texts)
        ]


def score_attacks(
    attacks: Sequence[AnyAttack],
    texts: AttackTexts,
    target: ScoredModel,
    reference: ScoredModel | None,
    cache: ScoreCache,
    *,
    advance: Callable[[int], object] | None = None,
) -> list[TextStatistic]:
    """Every attack's statistic of every text, or of every user.

    Args:
        attacks: which attacks.
        texts: the attacker's texts.
        target: the model under audit.
        reference: a model that was not trained on the audited users; None if no attack needs one.
        cache: of token scores.
        advance: called with the number of (model, text) pairs done.

    Raises:
        InputError: an attack needs a reference and there is none, or what the target does not give.
    """
    # Before any model runs: a pass over all texts may take hours.
    needing = [attack.name for attack in attacks if attack.needs_reference]
    if needing and reference is None:
        raise InputError(f"attack '{needing[0]}' needs a reference model: name one")
    items = texts.flat()
    plain = [text for _, _, text in items]
    # All attacks share one pass of the target. Moments are of the target only: no attack asks for the reference's.
    moments = any(attack.needs_moments for attack in attacks)
    joint = [attack for attack in attacks if isinstance(attack, JointAttack)]
    ranks = any(attack.needs_ranks for attack in joint)
    target_scores = cache.scores(target, plain, moments=moments, ranks=ranks, advance=advance)
    if any(attack.needs_ids for attack in joint):
        target_scores = _with_ids(target, plain, target_scores)
    # Attacks without a reference are handed None in its place and need no case of their own below.
    reference_scores: Sequence[TokenScores | None] = [None] * len(items)
    if needing and reference is not None:
        reference_scores = cache.scores(reference, plain, advance=advance)
    found: list[TextStatistic] = []
    for attack in attacks:
        if isinstance(attack, JointAttack):
            found += attack.statistics([user for user, _, _ in items], target_scores, reference_scores)
        else:
            found += [
                TextStatistic(user, number, attack.name, attack.statistic(text, of_target, of_reference))
                for (user, number, text), of_target, of_reference in zip(
                    items, target_scores, reference_scores, strict=True
                )
            ]
    return found


def _with_ids(model: ScoredModel, texts: Sequence[str], scores: Sequence[TokenScores]) -> list[TokenScores]:
    """The scores with the ids of their tokens."""
    if model.tokenizer is None:
        raise InputError(f"the token ids of model '{model.name}' are not known: give --tokenizer")
    ids = token_ids(model.tokenizer, texts)
    # Another number of tokens would put an id beside another token's score.
    if any(len(its) != len(of_text.logprobs) for its, of_text in zip(ids, scores, strict=True)):
        raise InputError(f"the tokenizer of model '{model.name}' makes other tokens than were scored")
    return [replace(of_text, ids=its) for of_text, its in zip(scores, ids, strict=True)]
