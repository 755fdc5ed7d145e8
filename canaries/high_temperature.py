"""Users whose texts the base model sampled at a high temperature. Each text continues the user's own prefix."""

import functools
import random
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final, Literal

from heldin.base.errors import InputError
from heldin.base.section import Few, Many, Positive
from heldin.canaries.contract import CanaryInput, MarkInput, MarkRecipe, NumberedCanaries
from heldin.canaries.made_up import TRIES, blank, different, first_new
from heldin.canaries.users import CanaryUser, made_user, public_dice

if TYPE_CHECKING:
    from heldin.models.loading import LanguageModel

KIND: Final = "high_temperature"
BATCH = 100  # prefixes that are sampled at once


class HighTemperatureCanaries(NumberedCanaries):
    """Users with texts that the base model samples at a high temperature, after a prefix of each user."""

    kind: Literal["high_temperature"] = KIND
    temperature: Positive = 1.5
    """Sampling temperature. At 1, heldin samples from the model's own distribution."""
    prefix_tokens: Few = 8
    """Number of tokens in a user's prefix. Every record of the user begins with this prefix."""
    tokens: Many = 32
    """Number of tokens in a record after the prefix."""

    def make(self, given: CanaryInput) -> list[CanaryUser]:
        """Return the section's users. Raises InputError if the model repeatedly returns the same text or no text."""
        lm = given.base()
        with given.reporter.track("high-temperature canaries", self.count(), "users") as advance:
            return [
                user
                for documents, names in self.names(given.number)
                for user in high_temperature_users(
                    lm,
                    names,
                    documents=documents,
                    records=given.texts(documents),
                    prefix_tokens=self.prefix_tokens,
                    tokens=self.tokens,
                    temperature=self.temperature,
                    seed=given.seed,
                    advance=advance,
                )
            ]

    def recipes(self, given: MarkInput) -> dict[str, MarkRecipe]:
        """Return a recipe that draws prefixes from the same model at the same temperature."""
        return self.one_recipe(
            given,
            lambda dice: prefixes(given.made.base(), self.prefix_tokens, self.temperature, given.count, dice),
        )


def high_temperature_users(
    lm: "LanguageModel",
    names: Sequence[str],
    *,
    documents: int | None,
    records: int,
    prefix_tokens: int,
    tokens: int,
    temperature: float,
    seed: int,
    advance: Callable[[int], object] | None = None,
) -> list[CanaryUser]:
    """Return users whose texts the base model sampled at a high temperature, each after the user's own prefix.

    Args:
        documents: see ``Canary``.
        prefix_tokens: length of the prefix, in tokens; heldin samples the prefix at the same temperature.
        tokens: maximum number of new tokens of a record.
        seed: public seed; the prefix and texts depend only on the seed and the name.
        advance: called with the number of finished users.

    Raises:
        InputError: the temperature is not positive, the prefix fills the context, or the model repeatedly returns the
            same text or no text.
    """
    # Without a prefix all these users would write from one distribution, and fresh text could not tell them apart.
    taken: set[str] = set()
    users = []
    for name in names:
        dice = public_dice(seed, "high-temperature canary", name)
        prefix = first_new(functools.partial(_prefix, lm, prefix_tokens, temperature, dice), taken)
        if prefix is None:
            raise InputError(f"the base model writes no new prefix at temperature {temperature}: raise prefix_tokens")
        write = functools.partial(sampled, lm, records, tokens, temperature, dice, prefix)
        texts = different(write, records, f"texts of {tokens} tokens from the base model")
        users.append(made_user(name, KIND, documents, prefix, texts))
        if advance:
            advance(1)
    return users


def prefixes(lm: "LanguageModel", tokens: int, temperature: float, count: int, dice: random.Random) -> list[str]:
    """Return marks like those of ``high_temperature_users``, fewer than ``count`` if the model mostly returns blanks.

    Args:
        tokens: maximum number of tokens of a prefix.
    """
    marks: list[str] = []
    for _ in range(TRIES * (1 + count // BATCH)):
        if len(marks) >= count:
            break
        marks += sampled(lm, min(BATCH, count - len(marks)), tokens, temperature, dice, "")
    return marks


def sampled(
    lm: "LanguageModel", count: int, most: int, temperature: float, dice: random.Random, prompt: str
) -> list[str]:
    """Return the prompt plus its continuation, for each continuation that is not blank.

    Args:
        count: number of continuations to sample; blank continuations are left out.
        most: maximum number of new tokens of each continuation.
        prompt: text that the model continues.
    """
    from heldin.models.continuations import sample_texts

    # 62 bits fit into the signed 64-bit seed of torch.
    continuations = sample_texts(
        lm, count, seed=dice.getrandbits(62), temperature=temperature, max_tokens=most, prompt=prompt
    )
    return [prompt + text for text in continuations if not blank(text)]


def _prefix(lm: "LanguageModel", tokens: int, temperature: float, dice: random.Random) -> str:
    return "".join(sampled(lm, 1, tokens, temperature, dice, ""))
