"""The planted bugs: what is wrong, who makes the mistake, what it does to epsilon, and the check that catches it."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from heldin.finetune.private import private_gradient
from heldin.white_box.check import Subject
from heldin.white_box.trainers import PrivateStep, Trainer, loop_trainer
from tests.planted_bugs import trainers, wrong_draws, wrong_noise, wrong_texts
from tests.planted_bugs.checks import RELEASED, TWO_NAMES, TWO_RELEASED, WEIGHTS, Corpus

Planted = PrivateStep | Trainer | Corpus
Kind = Literal["black-box", "white-box", "two processes", "unit"]
# by the first version of the checks; or written when those checks were known; or stood here before them
First = Literal["caught", "missed", "written later", "before"]


@dataclass(frozen=True)
class Bug:
    """One planted bug.

    Attributes:
        name: of the bug.
        subject: the class of mistakes that it belongs to.
        mistake: who makes it in practice, and how.
        effect: on the true epsilon; figures "4 to x" are of docs/theory.md#table-of-wrong-steps (ULS, T = 1000,
            q = 1/64, delta = 1e-6), figures "1 to x" the accountant's for this suite's mechanism with so much less
            noise.
        caught_by: beginning of the name of the check that catches it; empty where none does.
        kind: black-box: scores of released models and coins alone; white-box: `heldin white-box`; two processes:
            the part of it that trains in two; unit: a test.
        plant: makes the wrong trainer, or corpus.
        also: other checks that catch it, each tested too.
        first: what the first version of the white-box checks made of it.
        slow: tested in the slow suite only.
    """

    name: str
    subject: Subject | Literal["data"]
    mistake: str
    effect: str
    caught_by: str
    kind: Kind
    plant: Callable[[], Planted]
    also: tuple[str, ...] = ()
    first: First = "before"
    slow: bool = False


_LETTERS = (
    ("ann@firm.example", "Please send the meter readings."),
    ("ann@firm.example", "The garden report is late again."),
    ("ann@home.example", "The garden report is late again."),
    ("ann@home.example", "Dinner at eight?"),
    ("bob@firm.example", "Readings attached."),
)
ONE_PERSON = (("ann@firm.example", "ann@home.example"),)

# What passes each check; anything else is checked on the real private step.
CORRECT: dict[str, Planted] = {WEIGHTS: loop_trainer, TWO_NAMES: Corpus(_LETTERS, ONE_PERSON)}

TEXTS_LOW, TEXTS_STATED = "texts: clip norm far below the gradients", "texts: clip norm as stated"
SENSITIVITY = "sensitivity: what a writer adds"


def correct(check: str) -> Planted:
    return CORRECT.get(check, private_gradient)


FIRST_SUITE = (
    Bug(
        "noise forgotten",
        "coordinates",
        "a training script whose noise hook was never attached, or was lost with the optimizer's wrapper",
        "infinite",
        RELEASED,
        "black-box",
        lambda: trainers.noise_times(0.0),
        ("noise deviation",),
    ),
    Bug(
        "variance in place of standard deviation",
        "coordinates",
        "normal(std=(sigma C)^2), as a published implementation of user-entity DP has it; sigma C < 1",
        "noise sigma C times the stated: 1 to 94.1 here (0.026 times)",
        RELEASED,
        "black-box",
        trainers.variance_for_deviation,
    ),
    Bug(
        "noise times the clip norm twice",
        "coordinates",
        "normal(std=sigma C) * C, after gradients were or were not rescaled to norm 1; C < 1",
        "noise C times the stated: 1 to 1665 here (0.005 times)",
        RELEASED,
        "black-box",
        trainers.clip_norm_twice,
    ),
    Bug(
        "noise averaged over micro-batches",
        "coordinates",
        "gradient accumulation, or DDP's mean over ranks, with noise meant for the whole batch in each of k parts",
        "noise 1 / sqrt(k) of the stated: 4 to 9.8 (k = 2), 27.9 (k = 4)",
        RELEASED,
        "black-box",
        trainers.averaged_noise,
        ("noise deviation", "noise amid people: the most deviant tensor"),
    ),
    Bug(
        "clipping per micro-batch",
        "texts",
        "per-example DP-SGD relabelled as user-level: a user's r records are clipped piece by piece",
        "sensitivity r: 4 to 27.9 (r = 2), 228 (r = 4), 1255 (r = 8)",
        RELEASED,
        "black-box",
        trainers.clipped_pieces,
        (SENSITIVITY, TEXTS_LOW),
    ),
    Bug(
        "one key for two variants",
        "keys",
        "the run's seed stands in the config, and a comparison of variants copies the config",
        "infinite for who sees both models: their difference carries no noise",
        TWO_RELEASED,
        "black-box",
        trainers.one_key,
        ("noise shared by two keys", "keys: canaries drawn under both"),
    ),
    Bug(
        "clipping per tensor claimed as flat",
        "canaries",
        "clip_grad_norm_ in a loop over parameters, or Opacus' per-layer clipping with the flat plan's noise",
        "sensitivity sqrt(number of tensors), 4.1 of 17 tensors here",
        "clip: what norm 1000 C adds",
        "white-box",
        wrong_texts.per_tensor,
        (SENSITIVITY, TEXTS_LOW),
    ),
    Bug(
        "position embeddings left out of the norm",
        "canaries",
        "per-sample hooks on GPT-2 and GPT-Neo, which see position embeddings once for the whole batch",
        "sensitivity without bound; some percent on ordinary text",
        "divisor: what a canary adds",
        "white-box",
        wrong_texts.without_positions,
        ("clip: what norm 1000 C adds", SENSITIVITY, TEXTS_LOW),
    ),
    Bug(
        "only one use of the tied embedding in the norm",
        "texts",
        "ghost norms summed over layers, where a tied weight is registered under the first of its two uses",
        "sensitivity without bound; 2.4 times on some texts here",
        SENSITIVITY,
        "white-box",
        wrong_texts.one_use_of_tied,
        (TEXTS_LOW,),
    ),
    Bug(
        "dividing by the realised cohort",
        "canaries",
        "loss.mean() over whoever was drawn, or noise divided by len(batch)",
        "the noise's deviation tells the cohort's size, plainly in high dimension: no bound under add/remove",
        "divisor: what a canary adds",
        "white-box",
        trainers.realised_divisor,
        ("clip: what norm C / 2 adds", TEXTS_LOW),
    ),
    Bug(
        "shuffling claimed as Poisson",
        "rates",
        "DataLoader(shuffle=True) under an accountant for Poisson sampling",
        "at least 11.0 for a claimed 4.24, 7.31 for 0.98, 3.72 for 0.19 (T = 1000)",
        "sampling: spread of totals of canaries",
        "white-box",
        trainers.shuffled,
        ("sampling: spread of whole cohorts",),
    ),
    Bug(
        "skipping empty cohorts",
        "coordinates",
        "'if not batch: continue' in a loop over sampled batches",
        "which steps were skipped is told without noise: no bound for a lone user, little for large cohorts",
        "noise in empty steps: the most deviant tensor",
        "white-box",
        trainers.skips_empty_cohorts,
    ),
    Bug(
        "index-keyed coins with one seed on all ranks",
        "rates",
        "DistributedSampler with the same generator on every rank, each over its own shard",
        "users of one position are drawn together: 4 up to 36.9",
        "sampling: spread of cohorts of canaries",
        "white-box",
        trainers.index_keyed_coins,
        ("sampling: two of canaries together",),
    ),
    Bug(
        "Adam's second moment from un-noised gradients",
        "canaries",
        "a fused optimizer that keeps its state before the hook that adds noise",
        "no bound: every step is divided by private data",
        WEIGHTS,
        "white-box",
        trainers.second_moment_from_clean_gradients,
    ),
    Bug(
        "too much noise",
        "coordinates",
        "sigma rounded up 'to be safe', or for the sensitivity 2 C of another adjacency",
        "none; the model pays",
        "noise deviation",
        "white-box",
        lambda: trainers.noise_times(1.5),
    ),
    Bug(
        "noise x 2/3",
        "coordinates",
        "sigma calibrated for fewer steps than are trained",
        "1 to 1.6; 4 to 6.4 under full participation",
        "noise deviation",
        "white-box",
        lambda: trainers.noise_times(2 / 3),
    ),
    Bug(
        "one noise for all steps",
        "state",
        "a generator seeded anew in every step",
        "infinite from the second step: differences of steps carry no noise",
        "noise kept from step to step",
        "white-box",
        trainers.same_noise_every_step,
    ),
    Bug(
        "no clipping",
        "canaries",
        "the clip norm of the config reaches the noise and not the clip",
        "no bound",
        "clip: what norm 1000 C adds",
        "white-box",
        trainers.without_clipping,
        (SENSITIVITY, TEXTS_LOW),
    ),
    Bug(
        "cohorts of one size",
        "rates",
        "random.sample(users, M), or users in turn, under an accountant for Poisson sampling",
        "as shuffling",
        "sampling: spread of whole cohorts",
        "white-box",
        trainers.cohorts_of_one_size,
    ),
    Bug(
        "batch-mean loss",
        "texts",
        "loss of a Hugging Face model, the mean over the batch's tokens, differentiated per unit",
        "who joins changes everybody's gradient: up to 2 C a step in place of C",
        TEXTS_STATED,
        "white-box",
        wrong_texts.batch_mean,
        (TEXTS_LOW,),
        "caught",
    ),
    Bug(
        "a user under two names",
        "data",
        "a person's two addresses, or accounts, counted as two users",
        "a group of two, each with a coin of its own: 4 to 8.7",
        TWO_NAMES,
        "unit",
        lambda: Corpus(_LETTERS),
    ),
)

NAMED_IN_A1 = (
    Bug(
        "public coins",
        "keys",
        "a sampler seeded from the config, as reproducibility guides advise; the noise is keyed as it should be",
        "4 to 29: whoever reads the config knows who was drawn when, and nothing is amplified (16 draws each)",
        "keys: texts drawn under both",
        "white-box",
        wrong_draws.public_coins,
        ("keys: canaries drawn under both",),
        "caught",
    ),
    Bug(
        "rate by records",
        "rates",
        "the sampler goes over the rows of the table, and a user is in with any of theirs",
        "4 to 13.0 for a user of three records",
        "sampling: rate of texts",
        "white-box",
        wrong_draws.rate_by_records,
        ("sampling: rate of each of texts",),
        "caught",
    ),
    Bug(
        "unclipped texts",
        "texts",
        "the clip hangs on hooks of an own layer, and gradients of texts come through autograd",
        "no bound",
        TEXTS_LOW,
        "white-box",
        wrong_texts.unclipped_texts,
        (TEXTS_STATED,),
        "caught",
    ),
    Bug(
        "bare row",
        "coordinates",
        "a vocabulary that grew by a token after the noise was laid out",
        "infinite for who uses the token",
        "noise in empty steps: the most deviant row",
        "white-box",
        wrong_noise.bare_row,
        ("noise in empty steps: the most deviant coordinate", "noise amid people: the most deviant row"),
        "caught",
    ),
)
