"""Draw marks that might have been planted, to compute the exposure of the planted marks.

The candidates are derived from the key of the coins, for a separate purpose. They do not depend on any coin, and
training never sees them. heldin draws 1,000 for each recipe, whatever the number of canary users.
"""

import random
from collections.abc import Callable
from dataclasses import replace

from heldin.base.coins import keyed_order
from heldin.base.progress import SilentReporter
from heldin.canaries.contract import MarkInput
from heldin.canaries.users import Canary, keyed_dice
from heldin.corpus.split import Part
from heldin.corpus.store import texts_of
from heldin.models.loading import LanguageModel
from heldin.stages.measures.measure import Drawn, MeasuredUsers
from heldin.stages.run_config import RunConfig
from heldin.stages.sides.data import RunData
from heldin.stages.sides.planting import canary_input

CANDIDATES = 1000
_PURPOSE = "marks never planted"


def with_marks(
    subjects: MeasuredUsers, config: RunConfig, data: RunData, base: Callable[[], LanguageModel]
) -> MeasuredUsers:
    """Return the users with a function that draws marks that might have been planted.

    Args:
        base: function that returns the model that made the canary users, in float32.
    """
    # The fingerprint of the store covers every canary user; with another key there are other candidates.
    drawn_from = (data.store.fingerprint, str(CANDIDATES), data.ledger.coins_key.hex())
    return replace(subjects, marks=lambda: drawn_of_run(config, data, base()), marks_from=drawn_from)


def drawn_of_run(config: RunConfig, data: RunData, base: LanguageModel) -> Drawn:
    """Return, for each recipe, its canary users, and marks that were drawn in the same way but not planted.

    Args:
        data: corpus and ledger of the run.
        base: the model that made the canary users.
    """
    drawn: Drawn = {}
    before: list[Canary] = []
    canaries, key = list(data.canaries.values()), data.ledger.coins_key
    # Nothing that is drawn here is shown: a reporter would name the steps of planting.
    silent = SilentReporter()

    def dice(recipe: str, identity: str) -> random.Random:
        return keyed_dice(key, f"{_PURPOSE}: {recipe}", identity)

    def waiting(recipe: str) -> list[str]:
        users = sorted(set(data.real(data.ledger.scored_users())) - data.ledger.entities)
        if not users:  # entities are audited: their authors
            users = sorted(set(data.real(data.ledger.parts)) - data.ledger.entities)
        return keyed_order(key, f"{_PURPOSE}: {recipe}", users)

    def aside(user: str) -> list[str]:
        parts = data.ledger.parts[user]
        return texts_of(data.store, [row for part in Part if part is not Part.TRAIN for row in parts[part]])

    for number, spec in enumerate(config.canaries):
        made = canary_input(config, data.corpus, lambda: base, number, tuple(before), silent)
        given = MarkInput(made, canaries, CANDIDATES, dice, waiting, aside)
        for name, recipe in spec.recipes(given).items():
            # One recipe of all sections: a section says who takes part and with how many documents.
            if name not in drawn:
                drawn[name] = (list(recipe.users), recipe.draw())
        before += spec.users_of(number, canaries)
    return drawn
