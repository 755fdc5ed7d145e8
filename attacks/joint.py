"""Statistics that need more than one text at a time: all tokens of a user, or the tokens of other users.

A few flat arrays contain all tokens of all texts, so memory grows only with the number of tokens.
"""

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from heldin.attacks.protocol import Attack, TextStatistic, places_of
from heldin.base.errors import InputError
from heldin.models.token_scores import TokenScores

Array = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class TokenTable:
    """The t tokens of m texts of n users, text by text.

    Attributes:
        ratios: log p_target - log p_reference of each token, shape (t,), nats.
        reference: log p_reference of each token, shape (t,), nats.
        text_of: each token's text, shape (t,), ascending.
        user_of: each text's user, shape (m,).
        ids: token ids, shape (t,); empty if no attack needs them.
        ranks: ranks of the tokens under the target, shape (t,); empty if no attack needs them.
    """

    ratios: Array
    reference: Array
    text_of: NDArray[np.intp]
    user_of: NDArray[np.intp]
    ids: NDArray[np.int32]
    ranks: NDArray[np.int32]

    @property
    def users(self) -> int:
        """Number of users."""
        return int(self.user_of.max(initial=-1)) + 1

    @property
    def owner_of(self) -> NDArray[np.intp]:
        """Each token's user, shape (t,)."""
        return self.user_of[self.text_of]


class JointAttack(Attack):
    """A statistic of all users' texts at once."""

    needs_reference: ClassVar[bool] = True
    compares_tokens: ClassVar[bool] = True
    of_users: ClassVar[bool] = True

    @abstractmethod
    def values(self, tokens: TokenTable) -> Array:
        """Return one value per user, shape (n,), or per text, shape (m,), if ``of_users`` is false."""

    def statistics(
        self,
        owners: Sequence[str],
        texts: Sequence[str],
        target: Sequence[TokenScores],
        reference: Sequence[TokenScores | None],
    ) -> list[TextStatistic]:
        """Return the statistic of every text. A statistic of a whole user is returned as the user's text number 0."""
        users = list(dict.fromkeys(owners))
        number = {user: i for i, user in enumerate(users)}
        user_of = np.array([number[user] for user in owners], dtype=np.intp)
        values: list[float] = []
        if users:
            computed = self.values(self._table(user_of, target, reference))
            values = self._checked(computed, len(users) if self.of_users else len(owners))
        rows = (
            zip(users, [0] * len(users), values, strict=True)
            if self.of_users
            else zip(owners, places_of(owners), values, strict=True)
        )
        return [TextStatistic(user, text, self.name, value) for user, text, value in rows]

    def _checked(self, values: Array, wanted: int) -> list[float]:
        if np.shape(values) != (wanted,):
            of_what = "user" if self.of_users else "text"
            raise InputError(
                f"attack '{self.name}': values returned no array of {wanted} numbers: return one number for each"
                f" {of_what}"
            )
        return [float(value) for value in values]

    def _table(
        self, user_of: NDArray[np.intp], target: Sequence[TokenScores], reference: Sequence[TokenScores | None]
    ) -> TokenTable:
        known = [scored for scored in reference if scored is not None]
        if len(known) < len(target):
            raise InputError(f"attack '{self.name}' needs a reference model: give a reference model")
        if any(len(ours.logprobs) != len(scored.logprobs) for ours, scored in zip(target, known, strict=True)):
            raise InputError(
                f"attack '{self.name}' compares tokens, but the two models split the texts into different tokens:"
                " give a reference model with the target's tokenizer"
            )
        logprobs = np.concatenate([scored.logprobs for scored in known]).astype(np.float64)
        return TokenTable(
            np.concatenate([scored.logprobs for scored in target]).astype(np.float64) - logprobs,
            logprobs,
            np.repeat(np.arange(len(target)), [len(scored.logprobs) for scored in target]),
            user_of,
            self._column("ids", "token ids", target) if self.needs_ids else np.empty(0, np.int32),
            self._column("ranks", "ranks of tokens", target) if self.needs_ranks else np.empty(0, np.int32),
        )

    def _column(self, name: str, needed: str, scores: Sequence[TokenScores]) -> NDArray[np.int32]:
        columns = [column for scored in scores if (column := getattr(scored, name)) is not None]
        if len(columns) < len(scores):
            raise InputError(f"attack '{self.name}' needs {needed}, but the target gives none: leave this attack out")
        return np.concatenate(columns)
