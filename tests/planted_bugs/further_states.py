"""Planted bugs of state that is carried from step to step, and of several processes."""

from functools import partial

from heldin.white_box.trainers import Trainer, stepwise
from heldin.white_box.weight_checks import GIVEN, RECOMPUTED
from tests.planted_bugs import wrong_states
from tests.planted_bugs.bugs import Bug
from tests.planted_bugs.optimizers import wrong
from tests.planted_bugs.wrong_ranks import Mistake, Ranked

CARRIED = "texts: what earlier steps leave"

STATES = (
    Bug(
        "error feedback",
        "state",
        "what was clipped away of a unit's gradient is added to its next one, as in compressed training",
        "a unit's contribution depends on its past: at most C a step, and beyond the accountant's independence",
        CARRIED,
        "white-box",
        wrong_states.error_feedback,
        (),
        "caught",
    ),
    Bug(
        "momentum of clean gradients",
        "state",
        "a moving average of the sums before noise is mixed into what is released",
        "a unit moves every later step too, by a tenth in all: 4 to 5.0",
        CARRIED,
        "white-box",
        wrong_states.clean_momentum,
        ("sampling: furthest from whole units",),
        "caught",
        slow=True,
    ),
    Bug(
        "clip norm that adapts",
        "state",
        "the clip norm follows the median norm of who was drawn, without noise; the noise stays as stated",
        "the norms are released without noise; sensitivity at most as stated here",
        CARRIED,
        "white-box",
        wrong_states.adaptive_norm,
        (),
        "missed",
        slow=True,
    ),
    Bug(
        "last cohort again",
        "state",
        "the gradient buffer is scaled and not zeroed: a tenth of the last step's sum stays",
        "a unit moves the next step too, by a tenth: 4 to 5.0",
        CARRIED,
        "white-box",
        wrong_states.last_cohort_again,
        ("sampling: furthest from whole units",),
        "caught",
        slow=True,
    ),
    Bug(
        "stale gradients",
        "state",
        "an asynchronous worker: what is released is the gradient at the weights of one step before",
        "none by itself; the steps are not those that are stated",
        CARRIED,
        "white-box",
        wrong_states.stale_gradients,
        (),
        "written later",
        slow=True,
    ),
    Bug(
        "jumps skipped",
        "state",
        "a step whose sum is three times the last one's is left out as a spike",
        "one user decides over everybody's step",
        "sampling: changed by what units write",
        "white-box",
        wrong_states.quiet_after_a_jump,
        (),
        "missed",
        slow=True,
    ),
)


def _ranked(mistake: Mistake) -> Trainer:
    return stepwise(Ranked(mistake))


# mistake, name, who makes it, what it does to epsilon, the check
_RANKS: tuple[tuple[Mistake, str, str, str, str], ...] = (
    (
        "noise on every rank",
        "full noise on every rank",
        "each rank adds its own full noise to its share",
        "none; the model pays",
        "noise in empty steps: the most deviant tensor",
    ),
    (
        "noise over ranks",
        "noise over the ranks",
        "each of W ranks adds s / W to its share, in place of s / sqrt(W)",
        "noise 1 / sqrt(W) of the stated: 4 to 9.8 (W = 2)",
        "noise in empty steps: the most deviant tensor",
    ),
    (
        "same noise summed",
        "the same noise, summed",
        "each rank adds the noise that the key gives to its share, and the sum has it W times",
        "none; the model pays",
        "noise in empty steps: the most deviant tensor",
    ),
    (
        "first rank only",
        "noise on the first rank",
        "rank 0 adds noise after the sum; the others go on without",
        "infinite for who gets another rank's weights",
        "releases, apart",
    ),
    (
        "split users",
        "users split over ranks",
        "a sampler over records: a user's records go to several ranks, and each piece is clipped",
        "sensitivity of as many ranks as a user is on: 4 to 27.9 (W = 2)",
        "texts",
    ),
    (
        "shard coins",
        "coins by place in the shard",
        "each rank draws from its own shard by position, under the seed that all share",
        "users of one position are drawn together: 4 up to 36.9",
        "sampling: two of canaries together",
    ),
)

_QUICK: tuple[Mistake, ...] = ("noise over ranks", "split users")

RANKS = tuple(
    Bug(
        name,
        "processes",
        mistake,
        effect,
        f"2 processes: {check}",
        "two processes",
        partial(_ranked, kind),
        first="missed",
        slow=kind not in _QUICK,
    )
    for kind, name, mistake, effect, check in _RANKS
)


def _of_weights(name, mistake, effect, slow=True):
    plant = partial(wrong, name, stated=True)
    return Bug(name, "weights", mistake, effect, GIVEN, "white-box", plant, (RECOMPUTED,), "written later", slow)


WEIGHTS = (
    _of_weights(
        "momentum before the noise",
        "an optimizer's hook keeps a moving average of gradients and runs before the hook that adds noise",
        "no bound: a tenth of the average without noise moves every coordinate",
        slow=False,
    ),
    _of_weights(
        "weights without noise mixed in",
        "a model that was trained without noise, for comparison, is averaged into the released one",
        "infinite: a tenth of the released weights has no noise",
        slow=False,
    ),
    _of_weights(
        "slower when the loss rises",
        "ReduceLROnPlateau on the training loss",
        "no bound: each halving tells the loss without noise",
    ),
    _of_weights(
        "stopped when the loss rises",
        "early stopping by the training loss, while the ledger counts all steps",
        "no bound: the step at which the weights stop tells the loss without noise",
    ),
    _of_weights(
        "weight decay by the loss",
        "regularisation that follows the training loss",
        "no bound: the decay tells the loss without noise",
    ),
    _of_weights(
        "a step without noise first",
        "a look ahead along the batch's own gradient, which is never undone",
        "infinite: every step adds the sum without noise",
    ),
)
