"""Shadow models: the run's own training, repeated under the attacker's coins (Kandpal et al. 2024, Appendix B).

The attacker of this stage is ideal: it has the base model, the recipe and the records of every user, and lacks only the
coins. It shows what an attacker who cannot train could at most hope for; no verdict depends on it.
"""

import shutil
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from heldin.attacks.protocol import Dial, TextStatistic, user_scores
from heldin.attacks.scoring import score_attacks
from heldin.attacks.shadow import shadow_likelihood_ratio
from heldin.attacks.statistics import get_attack
from heldin.base.coins import keyed_digest, keyed_order, seed_key
from heldin.base.files import cache_directory, private_directory
from heldin.base.progress import LineReporter, Reporter, SilentReporter
from heldin.corpus.split import Role
from heldin.jobs.config import RunConfig
from heldin.jobs.run.data import RunData, defended
from heldin.jobs.run.score_file import SHADOW, read_scores, write_scores
from heldin.jobs.run.texts import Scoring
from heldin.jobs.run.training import finetune
from heldin.models.loading import load_language_model
from heldin.models.score_cache import ScoreCache

DIAL = "shadow models"


def shadow_statistics(
    its: Scoring, statistics: Sequence[TextStatistic], out: Path, reporter: Reporter
) -> list[TextStatistic]:
    """One statistic per scored user from ``attack.shadow_models`` trainings; the scores of each are kept when done.

    Args:
        its: what the models are trained by and scored on.
        statistics: statistics of the texts under the target.
        out: the run folder; scores go to ``out``/shadow, models are thrown away.
    """
    config, data = its.config, its.data
    users = data.ledger.scored_users()
    included = _included(users, config.attack.shadow_models, config.seed)  # (K, n)
    attack, aggregation = config.attack.primary, config.attack.aggregations[0]
    folder = private_directory(out / SHADOW)
    scores = []
    with reporter.track(DIAL, len(included), "models") as advance:
        for number, members in enumerate(included):
            # A file for each, so that a run that is killed trains only the one it was at again.
            path = folder / f"{number:03}.parquet"
            kept = read_scores(path, of=its.of, say=reporter.say)
            if kept is None:
                shadow = _shadow_run(config, data, its.models.base_name, users, members, number)
                kept = _trained_and_scored(its, shadow, path)
                write_scores(kept, path, of=its.of)
            shutil.rmtree(_work(path), ignore_errors=True)  # also after a kill between writing and removing
            scores.append(user_scores(kept, attack, aggregation).of(users))
            advance(1)
    target = user_scores(statistics, attack, aggregation).of(users)
    values = shadow_likelihood_ratio(target, np.array(scores), included)
    dial = Dial(DIAL, str(len(included)))
    return [TextStatistic(user, 0, attack, float(value), dial) for user, value in zip(users, values, strict=True)]


def _included(users: Sequence[str], models: int, seed: int) -> NDArray[np.bool_]:
    """Which users each shadow model is trained on, shape (models, users); each user is in half of the models."""
    included = np.zeros((models, len(users)), dtype=np.bool_)
    numbers = [str(number) for number in range(models)]
    for column, user in enumerate(users):
        # Half by a shuffle of each user's own, not of each model's: every user is in equally many models, and pairs of
        # users are not tied to each other.
        chosen = keyed_order(seed_key(seed), f"shadow models of {user}", numbers)[: models // 2]
        included[[int(number) for number in chosen], column] = True
    return included


def _shadow_run(
    config: RunConfig, data: RunData, base_name: str, users: Sequence[str], members: NDArray[np.bool_], number: int
) -> RunData:
    """The data of a run with the attacker's coins, under a key that nothing else uses."""
    # Only the roles of those whom chance decides: users who are always in are known to the attacker to be in.
    roles = {user: Role.HELD_IN if its else Role.HELD_OUT for user, its in zip(users, members, strict=True)}
    # Not the run's own key: two models under one key differ by un-noised data (docs/theory.md#keys-and-coins).
    key = keyed_digest(data.ledger.key, DIAL, str(number))
    ledger = replace(data.ledger, key=key, roles={**data.ledger.roles, **roles})
    base = load_language_model(base_name, revision=config.model.revision) if config.data_defenses else None
    # Defenses anew, as they depend on who is in: deduplication across users keeps other copies.
    # In silence: the bar of the shadow models is shown around it.
    rows, removals, changed = defended(config, data.store, ledger, base, SilentReporter(), data.slots)
    return replace(data, ledger=ledger, training_rows=rows, removals=removals, changed_texts=changed)


def _trained_and_scored(its: Scoring, shadow: RunData, path: Path) -> list[TextStatistic]:
    config, work = its.config, private_directory(_work(path))
    assert its.mechanism is not None  # a shadow model is trained as the run's own
    # Loaded for each: training changes weights in place.
    base = load_language_model(its.models.base_name, revision=config.model.revision)
    result = finetune(config, shadow, base, its.mechanism, work, LineReporter(lambda _: None))
    with closing(ScoreCache(cache_directory() / "scores")) as cache:
        target = load_language_model(str(result.folder), precision=config.attack.precision)
        return score_attacks([get_attack(config.attack.primary)], its.texts, target, its.models.reference, cache)


def _work(path: Path) -> Path:
    """Where a shadow model is trained, until its scores are written."""
    return path.with_suffix(".work")
