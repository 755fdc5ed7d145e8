"""Shadow models: repetitions of the run's training with coins of the attacker (Kandpal et al. 2024, Appendix B).

The attacker here is ideal: it has the base model, the recipe and every user's records, and lacks only the coins. The
result is an upper limit for attackers who cannot train such models. No verdict depends on this result.
"""

import shutil
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from heldin.attacks.kinds import get_attack
from heldin.attacks.protocol import Dial, TextStatistic, user_scores
from heldin.attacks.scoring import AttackTexts, score_attacks
from heldin.attacks.shadow import shadow_likelihood_ratio
from heldin.base.artefacts import read_table, write_table
from heldin.base.coins import keyed_digest, keyed_order, seed_key
from heldin.base.files import cache_directory, private_directory
from heldin.base.progress import LineReporter, Reporter, SilentReporter
from heldin.corpus.split import Role
from heldin.defenses.mechanism import Mechanism
from heldin.models.opening import load_language_model
from heldin.models.score_cache import ScoreCache, ScoredModel
from heldin.stages.measures.tables import SHADOW, columns_of, statistics_of
from heldin.stages.run_config import RunConfig
from heldin.stages.sides.data import RunData, defended
from heldin.stages.train.training import finetune

DIAL = "shadow models"


@dataclass(frozen=True)
class Shadows:
    """The users and texts that train and score the shadow models.

    Attributes:
        data: corpus and ledger of the run; its roles of audited users are not used.
        base_name: name for loading the base model.
        reference: the primary reference model.
        texts: the scored texts of each user.
    """

    config: RunConfig
    data: RunData
    base_name: str
    reference: ScoredModel
    mechanism: Mechanism
    texts: AttackTexts

    def statistics(
        self, leading: Sequence[TextStatistic], out: Path, reporter: Reporter, *, made_from: str
    ) -> list[TextStatistic]:
        """Return one statistic per scored user from ``attack.shadow_models`` trainings. Stores the scores of each
        training.

        Args:
            leading: statistics of the texts under the target.
            out: the run folder. Scores go to ``out``/shadow; the models are deleted.
            made_from: hash of the run's scores, which use the same texts and reference.
        """
        config = self.config
        users = self.data.ledger.scored_users()
        included = _included(users, config.attack.shadow_models, config.seed)  # (K, n)
        attack, aggregation = config.attack.primary, config.attack.aggregations[0]
        folder = private_directory(out / SHADOW)
        scores = []
        with reporter.track(DIAL, len(included), "models") as advance:
            for number, members in enumerate(included):
                # A table for each, so that a run that is killed trains only the one it was at again.
                path = folder / f"{number:03}.parquet"
                table = read_table(path, made_from=made_from, say=reporter.say)
                if table is None:
                    shadow = _shadow_run(config, self.data, self.base_name, users, members, number)
                    kept = self._trained_and_scored(shadow, path)
                    write_table(columns_of(kept), path, made_from=made_from)
                else:
                    kept = statistics_of(table)
                shutil.rmtree(_work(path), ignore_errors=True)  # also after a kill between writing and removing
                scores.append(user_scores(kept, attack, aggregation).of(users))
                advance(1)
        target = user_scores(leading, attack, aggregation).of(users)
        values = shadow_likelihood_ratio(target, np.array(scores), included)
        dial = Dial(DIAL, str(len(included)))
        return [TextStatistic(user, 0, attack, float(value), dial) for user, value in zip(users, values, strict=True)]

    def _trained_and_scored(self, shadow: RunData, path: Path) -> list[TextStatistic]:
        config, work = self.config, private_directory(_work(path))
        # Loaded for each: training changes weights in place.
        base = load_language_model(self.base_name, revision=config.model.revision)
        result = finetune(config, shadow, base, self.mechanism, work, LineReporter(lambda _: None))
        with closing(ScoreCache(cache_directory() / "scores")) as cache:
            target = load_language_model(str(result.folder), precision=config.attack.precision)
            return score_attacks([get_attack(config.attack.primary)], self.texts, target, self.reference, cache)


def _included(users: Sequence[str], models: int, seed: int) -> NDArray[np.bool_]:
    """Return whether each shadow model is trained on each user, shape (models, users). Each user is in half of the
    models."""
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
    """Return the data of a run with the attacker's coins. The key of this run has no other use."""
    # Only the roles of those whom chance decides: users who are always in are known to the attacker to be in.
    roles = {user: Role.HELD_IN if member else Role.HELD_OUT for user, member in zip(users, members, strict=True)}
    # Not the run's own key: two models under one key differ by un-noised data (docs/theory.md#keys-and-coins).
    key = keyed_digest(data.ledger.key, DIAL, str(number))
    ledger = replace(data.ledger, key=key, roles={**data.ledger.roles, **roles})
    base = load_language_model(base_name, revision=config.model.revision) if config.data_defenses else None
    # Defenses anew, as they depend on who is in: deduplication across users keeps other copies.
    # In silence: the bar of the shadow models is shown around it.
    rows, removals, changed = defended(config, data.store, ledger, base, SilentReporter(), data.slots)
    return replace(data, ledger=ledger, training_rows=rows, removals=removals, changed=changed)


def _work(path: Path) -> Path:
    """Return the folder for training a shadow model. It exists only until the scores are written."""
    return path.with_suffix(".work")
