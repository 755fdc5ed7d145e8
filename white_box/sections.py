"""The parts of an audit besides its whole trainings: each runs the trainer briefly and compares."""

from collections.abc import Callable, Mapping

from heldin.white_box.check import Check
from heldin.white_box.coordinate_checks import crowded_checks, empty_checks
from heldin.white_box.draw_checks import draw_checks, odd_draw_checks
from heldin.white_box.stage import Stage
from heldin.white_box.step_checks import canary_checks, norms_of_units, text_checks, unlike_checks
from heldin.white_box.trainers import Trainer

# (stage, trainer, the section's own key, number of steps as a multiple of a short audit's)
Section = Callable[[Stage, Trainer, bytes, int], tuple[Check, ...]]

_BELOW, _ABOVE = 0.1, 10.0  # clip norms, as multiples of the smallest and the largest norm of a unit's gradient


def _empty(stage: Stage, trainer: Trainer, key: bytes, effort: int) -> tuple[Check, ...]:
    return empty_checks(stage, trainer, key)


def _crowded(stage: Stage, trainer: Trainer, key: bytes, effort: int) -> tuple[Check, ...]:
    return crowded_checks(stage, trainer, key, clip_norms(stage, key)[1])


def _canaries(stage: Stage, trainer: Trainer, key: bytes, effort: int) -> tuple[Check, ...]:
    return canary_checks(stage, trainer, key)


def _texts(stage: Stage, trainer: Trainer, key: bytes, effort: int) -> tuple[Check, ...]:
    return text_checks(stage, trainer, key, norms_of_units(stage, key), *clip_norms(stage, key), effort)


def _unlike(stage: Stage, trainer: Trainer, key: bytes, effort: int) -> tuple[Check, ...]:
    return unlike_checks(stage, trainer, key, clip_norms(stage, key)[0])


def _draws(stage: Stage, trainer: Trainer, key: bytes, effort: int) -> tuple[Check, ...]:
    return draw_checks(stage, trainer, key, clip_norms(stage, key)[0], effort)


def _odd_draws(stage: Stage, trainer: Trainer, key: bytes, effort: int) -> tuple[Check, ...]:
    return odd_draw_checks(stage, trainer, key, *clip_norms(stage, key))


def clip_norms(stage: Stage, key: bytes) -> tuple[float, float]:
    """A clip norm far below every unit's gradient, and one far above."""
    norms = norms_of_units(stage, key)
    return _BELOW * float(norms[0]), _ABOVE * float(norms[-1])


SECTIONS: Mapping[str, Section] = {
    "empty steps": _empty,
    "crowded steps": _crowded,
    "canaries' steps": _canaries,
    "texts' steps": _texts,
    "unlike units": _unlike,
    "draws": _draws,
    "odd draws": _odd_draws,
}
