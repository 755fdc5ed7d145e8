"""The distances between users' gradients: tau over C, the ratio that decides about the filter of Asi & Liu (Chua et al.
2024, 5.3).

The filter continues while four fifths of the ordered pairs of users are within tau (Algorithm 3, lines 8 and 9). So tau
must be at least the 80 % quantile of the distances between two users' mean gradients. Unless C is given, C is the
median norm of these gradients, as in Charles et al. (Appendix F). Unrelated gradients of equal norm have a tau over C
of the square root of 2; equal gradients have 0.

The gradients are un-noised facts about users, so heldin measures only public users.
"""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from heldin.base.coins import keyed_order, seed_key
from heldin.base.errors import InputError
from heldin.base.progress import Reporter
from heldin.corpus.document import Document
from heldin.corpus.store import texts_of
from heldin.defenses.gradients.model_parts import trainable
from heldin.defenses.gradients.per_unit_gradients import clipped_gradient_sum
from heldin.finetune.batches import encode
from heldin.finetune.filtered import FLOATS_A_BLOCK
from heldin.finetune.passes import whole_units
from heldin.models.loading import LanguageModel
from heldin.models.opening import load_language_model
from heldin.models.tokens import Tokens
from heldin.stages.run_config import RunConfig
from heldin.stages.sides.corpus import CorpusData, read_corpus
from heldin.stages.train.models import base_model
from replication.effective_noise import DELTA, PAPERS_LIMIT, PAPERS_MEASURED, break_even_concentration

SHARE = 0.8  # of the pairs of users, which must be within tau
LEAST_USERS = 10
RESAMPLES = 1000
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Concentration:
    """The distances between public users' gradients at one group size.

    Attributes:
        group_size: maximum number of records in a user's mean gradient.
        users: number of users.
        clip_norm: C.
        tau: the 80 % quantile of the distances between two users.
        ratio: tau over C.
        lower: lower end of the ratio's 95 % interval, from resampling users.
        upper: upper end of the ratio's 95 % interval.
    """

    group_size: int
    users: int
    clip_norm: float
    tau: float
    ratio: float
    lower: float
    upper: float


def concentration_of(
    distances: Floats, norms: Floats, group_size: int, clip_norm: float | None = None
) -> Concentration:
    """Return tau over C of users' gradients.

    Only pairs of different users count. A user's distance from itself, 0, would matter only with few users.

    Args:
        distances: distances between users, shape (n, n).
        norms: norms of the users' gradients, shape (n,).
        group_size: group size for the result.
        clip_norm: C; None: the median norm.

    Raises:
        InputError: there are fewer than ten users, or more than half of the gradients are zero.
    """
    users = len(norms)
    if users < LEAST_USERS:
        raise InputError(f"{users} public users with records are too few: {LEAST_USERS} are needed")
    first, second = np.triu_indices(users, k=1)
    order, by_norm = np.argsort(distances[first, second]), np.argsort(norms)
    first, second = first[order], second[order]

    def measured(times: Floats) -> tuple[float, float]:
        """Return tau and C if each user occurs the given number of times."""
        # Copies of one user are no two users: only pairs of different ones count.
        reached = np.cumsum(times[first] * times[second])
        pair = np.searchsorted(reached, SHARE * reached[-1])
        middle = norms[by_norm][np.searchsorted(np.cumsum(times[by_norm]), 0.5 * users)]
        return float(distances[first[pair], second[pair]]), float(middle) if clip_norm is None else clip_norm

    tau, norm = measured(np.ones(users))
    if not norm > 0.0:
        raise InputError(
            "more than half of the users have a gradient of zero, so there is no median norm: give --clip-norm"
        )
    rng = np.random.default_rng(0)
    resampled = [measured(rng.multinomial(users, np.full(users, 1 / users)).astype(float)) for _ in range(RESAMPLES)]
    lower, upper = np.quantile([t / max(c, 1e-300) for t, c in resampled], [0.025, 0.975])
    return Concentration(group_size, users, norm, tau, tau / norm, float(lower), float(upper))


def distances_of(gradients: torch.Tensor) -> tuple[Floats, Floats]:
    """Return the distances between rows, shape (n, n), and the norms of the rows, shape (n,)."""
    products = torch.zeros(len(gradients), len(gradients), dtype=torch.float64)
    # In blocks of columns: a float64 copy of all gradients would take twice their memory.
    for part in torch.split(gradients, max(1, FLOATS_A_BLOCK // max(1, len(gradients))), dim=1):
        products += (part.double() @ part.double().T).cpu()
    squares = products.diagonal()
    between = (squares[:, None] + squares[None, :] - 2.0 * products).clamp_min(0.0)
    return between.sqrt().numpy(), squares.sqrt().numpy()


def user_gradients(
    lm: LanguageModel, users: Sequence[Sequence[Tokens]], advance: Callable[[int], object] = lambda _: None
) -> torch.Tensor:
    """Return each user's mean gradient, shape (n, d), float32. All gradients are in memory at the same time.

    Args:
        lm: the model.
        users: tokens of each user's records.
        advance: called with 1 after every user.
    """
    names = list(trainable(lm.model))
    size = sum(parameter.numel() for parameter in trainable(lm.model).values())
    gradients = torch.zeros(len(users), size, device=lm.model.device)
    for row, records in enumerate(users):
        its = clipped_gradient_sum(lm.model, whole_units([list(records)]), clip_norm=float("inf")).gradients
        gradients[row] = torch.cat([its[name].flatten() for name in names])
        advance(1)
    return gradients


def measure(
    config: RunConfig,
    reporter: Reporter,
    *,
    group_sizes: Sequence[int],
    most_users: int,
    model: str | None = None,
    clip_norm: float | None = None,
) -> tuple[str, list[Concentration]]:
    """Measure public users of a run's corpus, at the run's base model or at another model.

    Args:
        config: config of a run; the run need not exist.
        reporter: receives the progress.
        group_sizes: numbers of records in a user's gradient.
        most_users: maximum number of users.
        model: name or folder of the model; None: the base model.
        clip_norm: C; None: the median norm at each group size.

    Returns:
        A description of the public users, and a row for each group size.

    Raises:
        InputError: the corpus has fewer than ten public users, or the model is unusable.
    """
    corpus = read_corpus(config, reporter)
    lm = load_language_model(model) if model else base_model(config, corpus, reporter)[1]
    who, texts = _public_texts(corpus)
    key = seed_key(config.seed)
    most = min(config.finetune.sequence_length, lm.stated_context or config.finetune.sequence_length)
    users = []
    for user in keyed_order(key, "concentration", list(texts))[:most_users]:
        order = keyed_order(key, f"records of {user}", [str(place) for place in range(len(texts[user]))])
        # As many as the largest group needs: those of smaller groups are among them.
        chosen = [Document.of(texts[user][int(place)]) for place in order[: max(group_sizes)]]
        users.append(encode(lm.tokenizer, chosen, most))
    rows = []
    for size in group_sizes:
        with reporter.track(f"gradients at group size {size}", len(users), "users") as advance:
            gradients = user_gradients(lm, [records[:size] for records in users], advance)
        rows.append(concentration_of(*distances_of(gradients), size, clip_norm))
    return who, rows


def _public_texts(corpus: CorpusData) -> tuple[str, dict[str, list[str]]]:
    """Return a description of the users, and their texts."""
    if corpus.validation_rows:
        rows, store, who = corpus.validation_rows, corpus.store, "public users on whom nothing was trained"
    else:
        rows, store = corpus.public.rows, corpus.public.store
        who = "public users, on whose texts the base model was pre-trained"
    if not rows:
        raise InputError("the config has no public users: set corpus.public_validation")
    by_user: dict[str, list[int]] = {}
    for row in rows:
        by_user.setdefault(store.record(row).user, []).append(row)
    return who, {user: texts_of(store, its) for user, its in by_user.items()}


def as_dict(who: str, rows: Sequence[Concentration]) -> dict[str, Any]:
    """Return every number, including the paper's."""
    papers = {"papers_limit": PAPERS_LIMIT, "papers_measured": PAPERS_MEASURED}
    return {"users": who, "needed_full_batch": needed(), **papers, "rows": [asdict(row) for row in rows]}


def needed() -> float:
    """Return tau over C below which the filter adds less noise than full batches of users, for any number of users."""
    return break_even_concentration(1024, 1024, 1000, 3.0, DELTA)


def table(who: str, rows: Sequence[Concentration]) -> str:
    """Return the rows as plain text, with the value that the filter would need."""
    lines = [
        f"distances between the mean gradients of {rows[0].users} {who}",
        f"{'group size':>10}{'C':>11}{'tau':>11}{'tau / C':>10}  95 % interval over users",
    ]
    lines += [
        f"{row.group_size:>10}{row.clip_norm:>11.4g}{row.tau:>11.4g}{row.ratio:>10.3f}"
        f"  {row.lower:.3f} to {row.upper:.3f}"
        for row in rows
    ]
    return "\n".join(
        [
            *lines,
            f"{2**0.5:.3f} is expected of gradients of one norm with nothing in common, 0 of equal ones",
            f"Chua et al.: around {PAPERS_MEASURED:g}, where the filter needs less than {PAPERS_LIMIT:g}; with full"
            f" batches, epsilon 3, delta {DELTA:g} and 1,000 steps it needs less than {needed():.2g}",
        ]
    )
