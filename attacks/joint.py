"""Statistics that need more than one text at a time: a user's pooled tokens, or other users' tokens.

All tokens of all texts stand in a few flat arrays, so that memory grows with the tokens alone.
"""

import importlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from heldin.attacks.protocol import Attack, TextStatistic, Uses
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
        ids: token ids, shape (t,); empty if not asked for.
        ranks: ranks under the target, shape (t,); empty if not asked for.
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


@dataclass(frozen=True)
class JointAttack:
    """A statistic of all users' texts at once. Higher always means: more likely that a text's author was held in.

    Attributes:
        name: name under which it is registered and reported.
        compute: gives a table's statistics, one of each text, shape (m,), or with ``of_users`` one of each user, shape
            (n,); "package.module:name" is imported when it is needed.
        uses: what it learns from.
        of_users: whether it gives one value of each user, so that there is nothing to aggregate over texts.
        needs_ids: whether it needs token ids.
        needs_ranks: whether it needs the target's ranks.
        needs_reference: whether it needs the reference model's scores.
        needs_moments: whether it needs moments over the vocabulary.
        compares_tokens: whether it compares the two models' tokens.
    """

    name: str
    compute: Callable[[TokenTable], Array] | str
    uses: Uses
    of_users: bool = True
    needs_ids: bool = False
    needs_ranks: bool = False
    needs_reference: bool = True
    needs_moments: bool = False
    compares_tokens: bool = True

    def statistics(
        self, owners: Sequence[str], target: Sequence[TokenScores], reference: Sequence[TokenScores | None]
    ) -> list[TextStatistic]:
        """The statistic of every text, or of every user as the user's text number 0.

        Args:
            owners: user of each of m texts; a user's texts stand side by side.
            target: their scores under the target.
            reference: their scores under the reference model.

        Raises:
            InputError: a score that it needs is missing, or the two models have different tokens.
        """
        users = list(dict.fromkeys(owners))
        number = {user: i for i, user in enumerate(users)}
        user_of = np.array([number[user] for user in owners], dtype=np.intp)
        values = self._compute(self._table(user_of, target, reference)).tolist() if users else []
        if self.of_users:
            return [TextStatistic(user, 0, self.name, value) for user, value in zip(users, values, strict=True)]
        # (m,): the number of each text among its user's
        starts = np.flatnonzero(np.diff(user_of, prepend=-1))
        numbers = np.arange(len(owners)) - np.repeat(starts, np.diff(np.append(starts, len(owners))))
        return [
            TextStatistic(user, int(text), self.name, value)
            for user, text, value in zip(owners, numbers, values, strict=True)
        ]

    def _compute(self, tokens: TokenTable) -> Array:
        if not isinstance(self.compute, str):
            return self.compute(tokens)
        module, name = self.compute.split(":")
        values: Array = getattr(importlib.import_module(module), name)(tokens)
        return values

    def _table(
        self, user_of: NDArray[np.intp], target: Sequence[TokenScores], reference: Sequence[TokenScores | None]
    ) -> TokenTable:
        known = [scored for scored in reference if scored is not None]
        if len(known) < len(target):
            raise InputError(f"attack '{self.name}' needs a reference model")
        if any(len(ours.logprobs) != len(scored.logprobs) for ours, scored in zip(target, known, strict=True)):
            raise InputError(f"attack '{self.name}' compares tokens, and the two models have different ones")
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
            raise InputError(f"attack '{self.name}' needs {needed}, which the target does not give: leave it out")
        return np.concatenate(columns)


AnyAttack = Attack | JointAttack
