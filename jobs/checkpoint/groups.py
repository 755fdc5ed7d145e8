"""The users of an audit, read from two files, what training saw of their texts, and the models that score them."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

from heldin.attacks.scoring import AttackTexts
from heldin.base.errors import InputError
from heldin.base.files import cache_directory
from heldin.base.progress import Reporter
from heldin.base.wording import counted
from heldin.corpus.build import build_store
from heldin.corpus.sources.open import open_source
from heldin.corpus.sources.rows import BadRows, Columns
from heldin.corpus.store import CorpusStore, texts_of
from heldin.jobs.checkpoint.audit_config import AT_ENDPOINT
from heldin.jobs.checkpoint.job import CheckpointAudit
from heldin.models.loading import load_language_model, load_target_and_reference
from heldin.models.model_config import ScoringPrecision
from heldin.models.score_cache import ScoredModel
from heldin.record.facts import ModelFacts
from heldin.record.overlaps import Seen, seen_in_training
from heldin.stages.measures.measure import loaded_here, model_facts


@dataclass(frozen=True)
class Groups:
    """The texts of both files.

    Attributes:
        stores: store of each file, by "held-in" and "held-out".
        member: whether each user is held in; sorted by name, so that the order reveals nothing about sides.
        texts: scored texts by user, in the same order.
        seen: what of held-in (True) and held-out (False) users is in the training file; None without one.
    """

    stores: Mapping[str, CorpusStore]
    member: Mapping[str, bool]
    texts: Mapping[str, Sequence[str]]
    seen: Mapping[bool, Seen] | None

    def of_side(self, held_in: bool) -> dict[str, Sequence[str]]:
        """Scored texts of one side's users."""
        return {user: user_texts for user, user_texts in self.texts.items() if self.member[user] is held_in}


def read_groups(job: CheckpointAudit, say: Callable[[str], object] = lambda _: None) -> Groups:
    """Read both files, and the training file if there is one."""
    # Before the stores are built: an empty training file would make every held-in user "absent" after all the work.
    if job.training is not None and next(training_records(job), None) is None:
        raise InputError(
            f"no usable record in '{job.training}', the --training file: name the file that the model was trained on,"
            " or leave --training out"
        )
    stores = {
        side: build_store(open_source(path, job.columns), cache_directory(), skip_bad_rows=job.skip_bad_lines, say=say)
        for side, path in (("held-in", job.held_in), ("held-out", job.held_out))
    }
    _require_disjoint(stores["held-in"], stores["held-out"], ids_are_given=job.columns.id is not None)
    # No user is in both: checked above.
    side_of = {user: side for side, store in stores.items() for user in store.users}
    # Sorted by name over both sides, so that no order of users, texts or scores tells the sides.
    texts = {
        user: texts_of(stores[side], list(stores[side].rows(user))[: job.max_texts_per_user])
        for user, side in sorted(side_of.items())
    }
    groups = Groups(stores, {user: side_of[user] == "held-in" for user in texts}, texts, None)
    if job.training is None:
        return groups
    # The file is read once for each side: it may be larger than memory.
    return replace(
        groups, seen={side: seen_in_training(groups.of_side(side), training_records(job)) for side in (True, False)}
    )


def training_records(job: CheckpointAudit) -> Iterator[tuple[str, str]]:
    """(user, text) of every record of the training file."""
    assert job.training is not None
    # Without ids and dates: a training file need not have those columns.
    source = open_source(job.training, Columns(user=job.columns.user, text=job.columns.text))
    for batch in source.batches(BadRows(skip=job.skip_bad_lines)):
        yield from zip(batch.column("user").to_pylist(), batch.column("text").to_pylist(), strict=True)


def _require_disjoint(held_in: CorpusStore, held_out: CorpusStore, *, ids_are_given: bool) -> None:
    for side, store in (("held-in", held_in), ("held-out", held_out)):
        if len(store.users) < 2:
            raise InputError(
                f"the {side} file has {counted(len(store.users), 'user')}: at least 2 are needed, 100 to say much"
            )
    both = sorted(set(held_in.users) & set(held_out.users))
    if both:
        raise InputError(f"{counted(len(both), 'user')} in both files, such as '{both[0]}': a user is on one side only")
    # Ids that heldin made are made from user and text, and differ between users.
    if ids_are_given:
        ids = {held_in.id(row) for row in range(len(held_in))}
        shared = next((held_out.id(row) for row in range(len(held_out)) if held_out.id(row) in ids), None)
        if shared is not None:
            raise InputError(f"record id '{shared}' stands in both files: a record is on one side only")


@dataclass(frozen=True)
class OpenedModels:
    """The models of an audit, and how they were loaded.

    Attributes:
        context: most tokens of a pass of a model that is loaded here; None: as many as it states.
    """

    context: int | None

    def load(self, name: str, precision: ScoringPrecision) -> ScoredModel:
        """Return the model with this name, in this precision."""
        return load_language_model(name, precision=precision, context=self.context)

    def pair(self, target: str, reference: str, precision: ScoringPrecision) -> tuple[ScoredModel, ScoredModel]:
        """Return target and reference, from one copy of the base if the target is an adapter on the reference."""
        return load_target_and_reference(target, reference, precision=precision, context=self.context)

    def facts_of(self, model: ScoredModel, name: str) -> ModelFacts:
        """Return the record's facts about a model, once scoring has ended."""
        return model_facts(loaded_here(model), name)


@contextmanager
def opened_models(job: CheckpointAudit, texts: AttackTexts, reporter: Reporter) -> Iterator[OpenedModels]:
    """Open the models behind an endpoint, if the audit names one, for the time of scoring.

    Args:
        texts: the texts that each model scores.
        reporter: receives what an endpoint will cost.

    Raises:
        InputError: a reference is behind an endpoint and none is named, or an endpoint gives no log-probabilities.
    """
    if job.remote is None:
        served = next((name for name in job.models() if name.startswith(AT_ENDPOINT)), None)
        if served is not None:
            raise InputError(f"'{served}' is behind an endpoint: give --endpoint")
        yield OpenedModels(job.context)
        return
    # Endpoints are no part of an audit of two files.
    from heldin.jobs.checkpoint.endpoint import reached

    with reached(job.remote, job.models(), texts, reporter, context=job.context) as there:
        yield there
