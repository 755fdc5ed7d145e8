"""The attacks by name: heldin's own attacks, and attacks of installed packages."""

import functools

from heldin.attacks.access import Access
from heldin.attacks.direction import scores_the_likelier_higher
from heldin.attacks.protocol import Attack
from heldin.base.errors import InputError
from heldin.base.kinds import Family, in_one_line

_OF_TEXTS = {
    "likelihood-ratio": "heldin.attacks.statistics:LikelihoodRatio",
    "likelihood-ratio-per-token": "heldin.attacks.statistics:PerToken",
    "loss": "heldin.attacks.statistics:Loss",
    "zlib": "heldin.attacks.statistics:Zlib",
    "min-k++": "heldin.attacks.statistics:MinKPlusPlus",
}
_BY_ANSWERS = {
    # The first is primary, by a rule that was fixed before its three models were made: docs/log, 2026-11-29.
    "longest-run": "heldin.attacks.text_statistics:LongestRun",
    "coverage": "heldin.attacks.text_statistics:Coverage",
    "coverage-mean": "heldin.attacks.text_statistics:MeanCoverage",
    "samia": "heldin.attacks.text_statistics:Samia",
}
# What runs unless a config names others: each further score widens the intervals of all.
DEFAULT_ATTACKS = tuple(_OF_TEXTS)
DEFAULT_BY_LEVEL = {
    Access.LOG_PROBABILITIES: DEFAULT_ATTACKS,
    Access.TOP_K: ("next-word",),
    Access.TEXT: tuple(_BY_ANSWERS),
}
ATTACKS = Family[Attack](
    "attacks",
    Attack,
    {
        **_OF_TEXTS,
        **_BY_ANSWERS,
        "next-word": "heldin.attacks.text_statistics:NextWord",
        "centred": "heldin.attacks.joint_statistics:Centred",
        "pooled": "heldin.attacks.joint_statistics:Pooled",
        "weighted": "heldin.attacks.joint_statistics:Weighted",
        "ez": "heldin.attacks.joint_statistics:ErrorZone",
        "windows": "heldin.attacks.joint_statistics:SlidingWindows",
    },
)


@functools.cache
def get_attack(name: str) -> Attack:
    """Return the attack with this name.

    Raises InputError, which lists all attacks, if no attack has this name. Also raises InputError if a package's attack
    cannot be made, or gives likelier texts a lower score.
    """
    kind = ATTACKS.find(name)
    if name in ATTACKS.ours:  # tested here
        return kind(name)
    with in_one_line(f"attack '{name}' on made-up scores", ours=False):
        attack = kind(name)
        right = scores_the_likelier_higher(attack)
    if not right:
        raise InputError(
            f"attack '{name}' does not give a higher score to a text that the model finds more probable. Change the"
            " sign of the score: a higher score must mean that the author is a member"
        )
    return attack


def names_at(level: Access) -> tuple[str, ...]:
    """Return the names of heldin's own attacks at exactly this level, without those of weaker levels."""
    return tuple(name for name in ATTACKS.ours if get_attack(name).access is level)


def per_text(attack: Attack) -> Attack:
    """Return the attack to use if the reference has another tokenizer.

    Sums over a text compare, but single tokens do not.
    """
    # The log-probability of the whole text is over the same characters for both, however they are cut.
    return get_attack("likelihood-ratio") if attack.compares_tokens else attack
