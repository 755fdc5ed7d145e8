"""Marks that might have been planted, for their exposure.

The candidates follow from the key of the coins, for another purpose than the coins: whoever trains does not know them,
and they depend on no coin. 1,000 are drawn of each recipe, whatever the number of canary users.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import assert_never

from heldin.base.coins import keyed_order
from heldin.canaries.candidates import people, phrases, prefixes, signatures, substrings
from heldin.canaries.config import (
    HighTemperatureCanaries,
    NamedPersonCanaries,
    RarePhraseCanaries,
    RealRowCanaries,
    SubstringCanaries,
    UnseenTokenCanaries,
)
from heldin.canaries.kinds import Kind, keyed_dice
from heldin.corpus.split import Part
from heldin.corpus.store import texts_of
from heldin.models.loading import LanguageModel
from heldin.stages.measures.marks import Drawn, Marks
from heldin.stages.measures.measure import Fingerprinted
from heldin.stages.run_config import RunConfig
from heldin.stages.sides.data import RunData
from heldin.stages.sides.planting import MadeUp, made_up_names, rare_pool, spoken_tokens

CANDIDATES = 1000
_PURPOSE = "marks never planted"


def marks_of_run(
    config: RunConfig,
    data: RunData,
    models: tuple[Fingerprinted, Fingerprinted],
    base: Callable[[], LanguageModel],
) -> Marks | None:
    """Return the measure of canary users' marks; None if no canary user has one.

    Args:
        models: the audited model and the reference.
        base: gives the model with which canary users were made, in float32.
    """
    if all(canary.kind is Kind.REAL_ROWS for canary in data.canaries.values()):
        return None
    # The fingerprint of the store covers every canary user; with another key there are other candidates.
    drawn_from = (data.store.fingerprint, str(CANDIDATES), data.ledger.coins_key.hex())
    return Marks(data.canaries, models, lambda: _Recipes(config, data, base()).drawn(), drawn_from)


@dataclass(frozen=True)
class _Recipes:
    """The recipes of a config's canary users.

    Attributes:
        data: corpus and ledger of the run.
        base: the model with which canary users were made.
    """

    config: RunConfig
    data: RunData
    base: LanguageModel

    def drawn(self) -> Drawn:
        """Return by recipe the canary users, and marks that were drawn and not planted."""
        drawn: Drawn = {}
        canaries = self.data.canaries.items()
        for number, spec in enumerate(self.config.canaries):
            if isinstance(spec, SubstringCanaries):
                # One recipe of all sections: a section says who takes part and with how many documents.
                for length in set(spec.lengths):
                    users = [
                        user for user, canary in canaries if canary.kind is Kind.SUBSTRING and canary.length == length
                    ]
                    if users and f"substring of {length}" not in drawn:
                        drawn[f"substring of {length}"] = (users, self._substrings(length))
            elif not isinstance(spec, RealRowCanaries):  # which have no mark
                users = [user for user, _ in canaries if user.startswith(made_up_names(spec, number))]
                drawn[f"{spec.kind} {number}"] = (users, self._made_up(spec, number))
        return drawn

    def _dice(self, recipe: str, identity: str = "") -> random.Random:
        return keyed_dice(self.data.ledger.coins_key, f"{_PURPOSE}: {recipe}", identity)

    def _made_up(self, spec: MadeUp, number: int) -> list[str]:
        dice = self._dice(f"{spec.kind} {number}")
        match spec:
            case UnseenTokenCanaries():
                sections, tokenizer = self.config.canaries, self.base.tokenizer
                spoken = spoken_tokens(sections, tokenizer, self._marks_before(number))
                left = self._left_before(number)
                pool = rare_pool(spec, sections, tokenizer, self.data.corpus, left, spoken)
                return signatures(tokenizer, pool, spec.signature_tokens, CANDIDATES, dice)
            case HighTemperatureCanaries():
                return prefixes(self.base, spec.prefix_tokens, spec.temperature, CANDIDATES, dice)
            case RarePhraseCanaries():
                return phrases(spec.phrase_words, CANDIDATES, dice)
            case NamedPersonCanaries():
                return people(CANDIDATES, dice)
            case _:
                assert_never(spec)

    def _marks_before(self, number: int) -> list[str]:
        """Of the unseen-token users of sections before this one."""
        sections = enumerate(self.config.canaries[:number])
        names = tuple(made_up_names(s, at) for at, s in sections if isinstance(s, UnseenTokenCanaries))
        return [canary.mark for user, canary in self.data.canaries.items() if user.startswith(names)]

    def _left_before(self, number: int) -> list[str]:
        """Audited users whom no section before this one has taken."""
        before = [spec for spec in self.config.canaries[:number] if isinstance(spec, SubstringCanaries)]
        groups = {group for spec in before for group in spec.groups()}
        canaries = self.data.canaries.values()
        taken = {canary.source for canary in canaries if (canary.length, canary.documents) in groups}
        return [user for user in self.data.corpus.audited.users if user not in taken]

    def _substrings(self, length: int) -> list[str]:
        """Of texts that are set aside whatever the coins: nobody's training texts."""
        data, recipe = self.data, f"substring of {length}"
        users = sorted(set(data.real(data.ledger.scored_users())) - data.ledger.entities)
        if not users:  # entities are audited: their authors
            users = sorted(set(data.real(data.ledger.parts)) - data.ledger.entities)

        def texts(user: str) -> list[str]:
            parts = data.ledger.parts[user]
            return texts_of(data.store, [row for part in Part if part is not Part.TRAIN for row in parts[part]])

        order = keyed_order(data.ledger.coins_key, f"{_PURPOSE}: {recipe}", users)
        return substrings(
            self.base.tokenizer,
            order,
            texts,
            length,
            CANDIDATES,
            lambda user, turn: self._dice(recipe, f"{turn} {user}"),
        )
