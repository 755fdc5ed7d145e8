"""A measure: how often the audited model's first choice is the token that the author wrote."""

from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from heldin.audit.coarse import LEAST_IN_GROUP, significant
from heldin.base.files import cache_directory, text_sha256
from heldin.base.progress import Reporter
from heldin.base.section import Count, Facts
from heldin.record.facts import MeasuredTable
from heldin.stages.measures.measure import Fingerprinted, Measure, MeasuredUsers, MeasureOptions, loaded_here


class FirstChoiceFacts(Facts):
    """The share of tokens that are the model's first choice, as a mean over the users of each group."""

    members: float
    non_members: float
    table: MeasuredTable


class FirstChoice(MeasureOptions):
    """How often the model's first choice is the token that the author wrote."""

    texts_per_user: Count = 5
    """Maximum number of scored texts to read for each user."""

    def measure(self, subjects: MeasuredUsers, models: tuple[Fingerprinted, Fingerprinted]) -> "Shares":
        """Return the measure."""
        texts = subjects.texts.whole()
        # Made-up canary users are no people: a mean over both would be about neither.
        people = {user: texts[user][: self.texts_per_user] for user in texts if user not in subjects.canaries}
        return Shares(people, models[0])


@dataclass(frozen=True)
class Shares(Measure[dict[str, float]]):
    """The share of first choices of each user."""

    texts: Mapping[str, Sequence[str]]
    target: Fingerprinted

    def made_from(self) -> str:
        """Return a hash of the model and the texts."""
        return text_sha256(self.target.fingerprint, repr(sorted(self.texts.items())))

    def compute(self, reporter: Reporter) -> dict[str, float]:
        """Score the texts. Scores that attacks also need come from the cache."""
        from heldin.models.score_cache import ScoreCache

        model, shares = loaded_here(self.target), {}
        with (
            closing(ScoreCache(cache_directory() / "scores")) as cache,
            reporter.track("first choices", len(self.texts), "users") as advance,
        ):
            for user, texts in self.texts.items():
                scored = cache.scores(model, list(texts), ranks=True)
                ranks = np.concatenate([scores.ranks for scores in scored if scores.ranks is not None])
                shares[user] = float((ranks == 0).mean())
                advance(1)
        return shares

    def columns(self, values: dict[str, float]) -> dict[str, Any]:
        """Return one row for each user."""
        return {"user": list(values), "share": list(values.values())}

    def values(self, table: pa.Table) -> dict[str, float]:
        """Return the shares of a table."""
        return dict(zip(table["user"].to_pylist(), table["share"].to_pylist(), strict=True))

    def facts(self, values: dict[str, float], member: Mapping[str, bool]) -> FirstChoiceFacts | None:
        """Return the mean of each group; None if a group has too few users to publish a number about it."""
        sides = [[share for user, share in values.items() if member[user] is side] for side in (True, False)]
        if min(map(len, sides)) < LEAST_IN_GROUP:
            return None
        members, others = (significant(sum(side) / len(side)) for side in sides)
        rows = [["members", f"{100 * members:.3g} %"], ["non-members", f"{100 * others:.3g} %"]]
        table = MeasuredTable(head=["group", "first choices"], rows=rows, note="Mean over users.")
        return FirstChoiceFacts(members=members, non_members=others, table=table)
