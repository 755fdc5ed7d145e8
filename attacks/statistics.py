"""The attacks: statistics of one text, registered by name. ``protocol.Attack`` documents what all of them have."""

import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from heldin.attacks.joint import AnyAttack, JointAttack
from heldin.attacks.protocol import Dial, Uses
from heldin.base.errors import InputError
from heldin.models.token_scores import TokenScores


class Scale(StrEnum):
    """Log-probabilities summed over the text (as in the paper) or averaged over its tokens."""

    SEQUENCE = "sequence"
    TOKEN = "token"


def _log_likelihood(scores: TokenScores, scale: Scale) -> float:
    # A sum gives long texts more weight in a user's mean; a mean over tokens does not, but depends on the tokenizer.
    return scores.total if scale is Scale.SEQUENCE else scores.total / len(scores.logprobs)


@dataclass(frozen=True)
class LikelihoodRatio:
    """log p_theta(x) - log p_ref(x): the user-inference statistic (Kandpal et al. 2024, equation 4).

    Attributes:
        scale: per text or per token.
    """

    scale: Scale = Scale.SEQUENCE
    name: str = "likelihood-ratio"
    needs_reference: bool = True
    needs_moments: bool = False
    uses: Uses = Uses.MODEL

    @property
    def compares_tokens(self) -> bool:
        """Means over tokens of two tokenizers do not compare; sums over the text do."""
        return self.scale is Scale.TOKEN

    def statistic(self, text: str, target: TokenScores, reference: TokenScores | None) -> float:
        """The log-likelihood ratio in nats, per text or per token of each model."""
        if reference is None:
            raise InputError(f"attack '{self.name}' needs a reference model")
        # Per token, each model divides by its own number of tokens: with two tokenizers these differ, and the
        # difference is no likelihood ratio of the text. ``per_text`` is for that case.
        return _log_likelihood(target, self.scale) - _log_likelihood(reference, self.scale)


@dataclass(frozen=True)
class Loss:
    """The negative loss, log p_theta(x) per token, with no reference (Yeom et al. 2018)."""

    name: str = "loss"
    needs_reference: bool = False
    needs_moments: bool = False
    compares_tokens: bool = False
    uses: Uses = Uses.MODEL

    def statistic(self, text: str, target: TokenScores, reference: TokenScores | None) -> float:
        """Mean token log-probability, nats."""
        return _log_likelihood(target, Scale.TOKEN)


@dataclass(frozen=True)
class Zlib:
    """log p_theta(x) over the text's zlib-compressed size in bits (Carlini et al. 2021, section 5.1)."""

    name: str = "zlib"
    needs_reference: bool = False
    needs_moments: bool = False
    compares_tokens: bool = False
    uses: Uses = Uses.MODEL

    def statistic(self, text: str, target: TokenScores, reference: TokenScores | None) -> float:
        """Log-probability in nats per compressed bit; never positive."""
        # zlib writes a header even for one character, so the size is never 0. Numerator and denominator both grow with
        # the text, so that its length cancels.
        return target.total / (8 * len(zlib.compress(text.encode("utf-8"))))


@dataclass(frozen=True)
class MinKPlusPlus:
    """Mean of the lowest ``fraction`` of z-scored token log-probabilities (Zhang et al. 2025, Min-K%++, equation 3).

    Attributes:
        fraction: share of the tokens, in (0, 1].
    """

    fraction: float = 0.2
    name: str = "min-k++"
    needs_reference: bool = False
    needs_moments: bool = True
    compares_tokens: bool = False
    uses: Uses = Uses.MODEL

    def __post_init__(self) -> None:
        if not 0 < self.fraction <= 1:
            raise InputError(f"min-k++ takes a fraction in (0, 1], not {self.fraction}")

    def statistic(self, text: str, target: TokenScores, reference: TokenScores | None) -> float:
        """Mean z-score of the least likely tokens, at least one."""
        if target.means is None or target.deviations is None:
            raise InputError(f"attack '{self.name}' needs mean and deviation over the vocabulary")
        # A deviation of zero means that the model is certain: the log-probability then equals its mean.
        # The root of the smallest float32, because an unlikely token's difference divided by the smallest one itself
        # would be minus infinity.
        scale = np.maximum(target.deviations, np.finfo(np.float32).tiny ** 0.5)
        # (tokens,), least likely first
        z = np.sort((target.logprobs - target.means) / scale)
        # A text of fewer tokens than 1 / fraction still has one that is least likely.
        return float(z[: max(1, int(self.fraction * len(z)))].mean(dtype=np.float64))


_OF_TEXTS = (
    LikelihoodRatio(),
    LikelihoodRatio(Scale.TOKEN, "likelihood-ratio-per-token"),
    Loss(),
    Zlib(),
    MinKPlusPlus(),
)
# What runs unless a config names others: each further score widens the intervals of all.
DEFAULT_ATTACKS = tuple(attack.name for attack in _OF_TEXTS)
_JOINT = "heldin.attacks.joint_statistics"
ATTACKS: Mapping[str, AnyAttack] = {
    attack.name: attack
    for attack in (
        *_OF_TEXTS,
        JointAttack("centred", f"{_JOINT}:centred", Uses.OTHER_TEXTS, of_users=False, needs_ids=True),
        JointAttack("pooled", f"{_JOINT}:pooled", Uses.MODEL),
        JointAttack("weighted", f"{_JOINT}:weighted", Uses.OTHER_TEXTS),
        JointAttack("ez", f"{_JOINT}:error_zone", Uses.MODEL, needs_ranks=True),
        JointAttack("windows", f"{_JOINT}:windows", Uses.MODEL),
    )
}
# Made for the documents that training saw; on fresh ones their sign and ratio drop what says most.
FOR_TRAINING_DOCUMENTS = frozenset({"ez", "windows"})


def per_text(attack: AnyAttack) -> AnyAttack:
    """The attack to use if the reference has another tokenizer: per text, because the models' tokens differ."""
    # The log-probability of the whole text is over the same characters for both, however they are cut.
    return LikelihoodRatio() if attack.compares_tokens else attack


def get_attack(name: str) -> AnyAttack:
    """The attack registered under ``name``. Raises InputError, listing all attacks, if there is none."""
    if name not in ATTACKS:
        raise InputError(f"unknown attack '{name}': choose from {', '.join(ATTACKS)}")
    return ATTACKS[name]


def is_of_users(name: str) -> bool:
    """Return whether the attack registered under ``name`` gives one value of each user, with nothing to aggregate."""
    attack = ATTACKS.get(name)
    return isinstance(attack, JointAttack) and attack.of_users


def how_aggregated(name: str, aggregation: str) -> str:
    """Name the rule that makes one score of the values of a user's texts, for a sentence."""
    return "all texts together" if is_of_users(name) else f"{aggregation} over texts"


def label_of(attack: str, aggregation: str, dial: Dial | None) -> str:
    """Return the name of a score for readers: attack, aggregation, and the dial that was changed."""
    turned = "" if dial is None else f"; {dial.name}: {dial.setting}"
    return f"{attack} ({how_aggregated(attack, aggregation)}{turned})"


def needs_vocabulary(attack: AnyAttack) -> bool:
    """Return whether the attack needs more of the target than log-probabilities of a text's own tokens."""
    return attack.needs_moments or (isinstance(attack, JointAttack) and attack.needs_ranks)


def asks_for_vocabulary(name: str) -> bool:
    """The same of the attack registered under ``name``; no if there is none."""
    return name in ATTACKS and needs_vocabulary(ATTACKS[name])


def needs_token_ids(attack: AnyAttack) -> bool:
    """Return whether the attack needs to know the tokens of a text."""
    return isinstance(attack, JointAttack) and attack.needs_ids
