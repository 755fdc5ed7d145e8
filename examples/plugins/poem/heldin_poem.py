"""Canary users who write poems with a first line of their own."""

import random

from heldin.base.section import Few
from heldin.canaries.contract import CanaryInput, MarkInput, MarkRecipe, NumberedCanaries
from heldin.canaries.users import CanaryUser, made_user, public_dice

WORDS = ("moon", "rain", "stone", "river", "leaf", "wind", "snow", "lamp", "door", "road", "bird", "sand")


class Poem(NumberedCanaries):
    """Users who write poems with a first line of their own."""

    lines: Few = 2
    """Lines of a poem after the first."""

    def make(self, given: CanaryInput) -> list[CanaryUser]:
        """Return the poets."""
        return [self._poet(name, documents, given) for documents, names in self.names(given.number) for name in names]

    def _poet(self, name: str, documents: int, given: CanaryInput) -> CanaryUser:
        # By name and public seed: one poet more changes nobody's poems, and no coin is asked.
        dice = public_dice(given.seed, "poem", name)
        first = line(dice)
        poems = ["\n".join([first, *(line(dice) for _ in range(self.lines))]) for _ in range(given.texts(documents))]
        return made_user(name, self.kind, documents, first, poems)

    def recipes(self, given: MarkInput) -> dict[str, MarkRecipe]:
        """Return a recipe that draws first lines of poems that nobody wrote, for exposure."""
        return self.one_recipe(given, lambda dice: [line(dice) for _ in range(given.count)])


def line(dice: random.Random) -> str:
    """Return a line of nine words."""
    return " ".join(dice.choice(WORDS) for _ in range(9))
