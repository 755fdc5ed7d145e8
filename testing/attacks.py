"""Checks of an attack."""

import functools
import math
from collections.abc import Callable

from heldin.attacks.direction import MadeTexts, made_texts, scores_the_likelier_higher
from heldin.attacks.protocol import Attack, TextStatistic, Uses
from heldin.testing.problems import require, tried, watched_files

_TURNED = ["direction: a likelier text does not score higher. Reverse the sign of the score"]
_CLOSE = 1e-6  # relative: sums over users are taken in another order


def check_attack(attack: type[Attack], name: str = "attack under test") -> None:
    """Check, on made-up scores, the rules that every attack must follow.

    The class can make the attack from the name alone. A likelier text has a higher score. Every text, or every user,
    has one finite value, even if a model is certain. The value is the same each time, and does not depend on the names
    or the order of users. The computation reads no file. The attack needs only its declared inputs, and declares how
    its scores may be used. If it declares ``Uses.MODEL``, a user's values do not change when another user is missing.

    Args:
        attack: class of the attack.
        name: name of the attack, to make it and for messages.

    Raises:
        AssertionError: lists all faults, one per line. Each line begins with the name of the failed check: made, uses,
            needs, direction, complete, finite, determinism, files, names or order.
    """
    problems: list[str] = []
    made = tried(lambda: attack(name), "made: making it with its name alone", problems)
    if made is None:
        require(problems, name)
    problems += _declarations(made)
    if not problems:
        problems += [line for check in _CHECKS for line in check(made)]
    require(problems, name)


def _declarations(attack: Attack) -> list[str]:
    problems = []
    if not isinstance(getattr(attack, "uses", None), Uses):
        problems.append("uses: the value is not a Uses. Declare which texts and labels the attack learns from")
    elif not attack.uses.certifiable:
        problems.append(f"uses: {attack.uses.stated}. No bound may use such an attack")
    return problems


def _likelier_is_higher(attack: Attack) -> list[str]:
    problems: list[str] = []
    right = tried(lambda: scores_the_likelier_higher(attack), "direction: scoring two texts", problems)
    return _TURNED if right is False else problems


def _everybody_has_a_value(attack: Attack) -> list[str]:
    problems: list[str] = []
    texts = _world()
    statistics = tried(lambda: texts.under(attack), "complete: scoring texts", problems) or []
    wanted = [(user, 0) for user in dict.fromkeys(texts.owners)] if attack.of_users else list(_places(texts))
    if not problems and [(statistic.user, statistic.text) for statistic in statistics] != wanted:
        problems.append(
            f"complete: it gives {len(statistics)} values for {len(wanted)}. Give one value per text or user, in order"
        )
    return problems


def _certain_is_finite(attack: Attack) -> list[str]:
    problems: list[str] = []
    for logprobs in ([0.0], [-4.0] * 5, [-1e-30, -80.0]):
        texts = made_texts([logprobs, [-2.0, -3.0]])
        statistics = tried(functools.partial(texts.under, attack), f"finite: scoring {logprobs}", problems) or []
        if any(not math.isfinite(statistic.value) for statistic in statistics):
            problems.append(f"finite: a text with log-probabilities {logprobs} has a value that is not finite")
    return problems


def _nobody_is_known(attack: Attack) -> list[str]:
    problems: list[str] = []
    texts = _world()
    first = tried(lambda: _values(attack, texts), "complete: scoring texts", problems)
    with watched_files() as opened:
        again = tried(lambda: _values(attack, texts), "determinism: scoring texts again", problems)
    if opened:
        problems.append(f"files: it reads '{opened[0]}' to score a text. An attack may see only texts and token scores")
    if first != again:
        problems.append("determinism: the same texts have other values the second time")
    names = {user: f"member {len(texts.owners) - i}" for i, user in enumerate(dict.fromkeys(texts.owners))}
    renamed = MadeTexts(tuple(names[user] for user in texts.owners), texts.texts, texts.target, texts.reference)
    called = tried(lambda: _values(attack, renamed), "names: scoring users with other names", problems)
    if not problems and not _alike(first, called):
        problems.append("names: its values depend on the names of users")
    turned = tried(lambda: _values(attack, _reversed(texts)), "order: scoring users in another order", problems)
    if not problems and not _alike(sorted(first), sorted(turned)):
        problems.append("order: its values depend on the order of users")
    return problems


def _needs_what_it_says(attack: Attack) -> list[str]:
    """Check that the attack runs without undeclared inputs: without a reference, or without columns of token scores."""
    problems: list[str] = []
    tried(lambda: _world().under(attack), "needs: scoring with only its declared inputs", problems)
    return problems


def _others_do_not_matter(attack: Attack) -> list[str]:
    """Check that an attack with ``Uses.MODEL`` gives a user the same values when another user is missing."""
    if attack.uses is not Uses.MODEL:
        return []
    problems: list[str] = []
    whole = _world()
    kept = [i for i, user in enumerate(whole.owners) if user != whole.owners[-1]]
    columns = (whole.owners, whole.texts, whole.target, whole.reference)
    fewer = MadeTexts(*(tuple(column[i] for i in kept) for column in columns))  # type: ignore[arg-type]
    everybody = tried(lambda: _values(attack, whole), "uses: scoring texts", problems)
    some = tried(lambda: _values(attack, fewer), "uses: scoring fewer users", problems)
    if not problems and not _alike(everybody[: len(some)], some):
        problems.append("uses: its values depend on other users' texts. Declare Uses.OTHER_TEXTS")
    return problems


_CHECKS: tuple[Callable[[Attack], list[str]], ...] = (
    _needs_what_it_says,
    _likelier_is_higher,
    _everybody_has_a_value,
    _certain_is_finite,
    _nobody_is_known,
    _others_do_not_matter,
)


def _world() -> MadeTexts:
    """Return three users who have two, one and three texts of unequal length."""
    made = made_texts(
        [
            [-1.0, -2.5, -4.5, -6.0, -0.5],
            [-3.0, -4.0],
            [-2.0, -2.0, -7.0],
            [-5.0],
            [-4.0, -1.0, -3.5, -3.0],
            [-8.0, -0.25],
        ]
    )
    owners = ("ann", "ann", "bob", "cid", "cid", "cid")
    texts = tuple(f"Text {number} of somebody." for number in range(len(owners)))
    return MadeTexts(owners, texts, made.target, made.reference)


def _reversed(texts: MadeTexts) -> MadeTexts:
    """Return the users in reverse order. Each user's texts keep their order."""
    order = [i for user in reversed(dict.fromkeys(texts.owners)) for i, own in enumerate(texts.owners) if own == user]
    columns = (texts.owners, texts.texts, texts.target, texts.reference)
    return MadeTexts(*(tuple(column[i] for i in order) for column in columns))  # type: ignore[arg-type]


def _places(texts: MadeTexts) -> list[tuple[str, int]]:
    return [(user, texts.owners[:i].count(user)) for i, user in enumerate(texts.owners)]


def _values(attack: Attack, texts: MadeTexts) -> list[float]:
    statistics: list[TextStatistic] = texts.under(attack)
    return [statistic.value for statistic in statistics]


def _alike(first: list[float], second: list[float]) -> bool:
    return len(first) == len(second) and all(
        math.isclose(a, b, rel_tol=_CLOSE, abs_tol=1e-9) for a, b in zip(first, second, strict=True)
    )
