"""The job of each independent training: the config's training on the config's users, plus a worst-case user by coin."""

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from heldin.base.errors import InputError
from heldin.base.files import text_sha256
from heldin.base.progress import Reporter
from heldin.bounds.trainings import WORST_CASE_USER
from heldin.canaries.unseen_token import UnseenTokenCanaries, rare_tokens, token_counts, unseen_token_users
from heldin.corpus.document import Document
from heldin.corpus.entities.incidence import Incidence
from heldin.corpus.row_parts import RowParts
from heldin.corpus.store import documents_of
from heldin.defenses.mechanisms.plain import NoDefense
from heldin.finetune.batches import encode
from heldin.finetune.holding import plain_clipping
from heldin.finetune.recipe import Recipe
from heldin.finetune.units import PrivateRecords
from heldin.jobs.retraining.runs import TrainingJob
from heldin.models.loading import LanguageModel
from heldin.models.logprobs import score_documents, score_texts
from heldin.models.tokens import Tokens
from heldin.stages.run_config import RunConfig
from heldin.stages.sides.corpus import CorpusData
from heldin.stages.sides.slots import Slots, find_slots
from heldin.stages.train.layers import with_picked_layers
from heldin.stages.train.plan import mechanism_of

Target = Literal["defense", "none"]
PLAIN_DOCUMENTS = 8
_LEAST_TRAINED = 4  # tokens of a worst-case user's document


@dataclass(frozen=True)
class TrainingsAudit:
    """An audit by independent trainings.

    Attributes:
        config: corpus, base model, recipe and defense; its seed also determines the worst-case user's texts.
        target: mechanism of the trainings: the config's defense, or "none" as a control without a defense.
        documents: number of the worst-case user's documents; None: the defense's group size.
        claims: claims (epsilon, delta) to test in addition to the plan's curve.
        threshold: score threshold, fixed before the trainings; None: the first quarter of the trainings determines it.
    """

    config: RunConfig
    runs: int
    target: Target = "defense"
    documents: int | None = None
    claims: tuple[tuple[float, float], ...] = ()
    threshold: float | None = None

    def trained(self) -> RunConfig:
        """Return the config of the trainings.

        Raises InputError for a config that independent trainings do not support; the message names the keys to change.
        """
        config = self.config
        if self.target != "defense":
            config = config.model_copy(update={"defense": NoDefense()})
        defense = config.defense
        _require_supported(config)
        if self.threshold is not None and not math.isfinite(self.threshold):
            raise InputError(f"--threshold is {self.threshold}: give a finite number")
        if (problem := defense.retraining_problem(self.documents)) is not None:
            raise InputError(problem)
        return config

    def worst_case_documents(self) -> int:
        """Return the number of documents of the worst-case user."""
        if self.documents is not None:
            return self.documents
        documents = self.trained().defense.worst_case_documents
        return PLAIN_DOCUMENTS if documents is None else documents

    def options(self) -> dict[str, Any]:
        """Return the options that the folder stores next to the config."""
        return {
            "runs": self.runs,
            "target": self.target,
            # As a number, not None: another default in a later version must not change a folder's audit.
            "documents": self.worst_case_documents(),
            "claims": [list(claim) for claim in self.claims],
            "threshold": self.threshold,
        }


def _require_supported(config: RunConfig) -> None:
    """Raise InputError for a key that independent trainings do not support."""
    # Canary users would be one more difference between trainings, each by a coin of its own.
    if config.canaries:
        raise InputError("independent training runs plant one worst-case user: remove 'canaries', and see --documents")
    if config.data_defenses:
        raise InputError("independent training runs train on unchanged records: remove 'data_defenses'")
    if config.attack.precision != "fp32":
        raise InputError("independent training runs are scored in float32: remove 'attack.precision'")
    if config.measures:
        raise InputError(
            f"independent training runs measure only attacks: remove 'measures' ({', '.join(config.measures)}), or use"
            " heldin run"
        )
    if config.finetune.looks_at_validation:
        raise InputError(
            "independent training runs have no validation users who could choose a checkpoint: set finetune.select to"
            " 'last' and finetune.patience to null"
        )
    if config.finetune.sequence_length < _LEAST_TRAINED:
        raise InputError(f"finetune.sequence_length is too low: give at least {_LEAST_TRAINED}")


def target_of(name: str) -> Target:
    """Return the target for a value of ``--target``. Raises InputError for any other value."""
    match name:
        case "defense":
            return "defense"
        case "none":
            return "none"
    raise InputError(f"--target {name}: choose defense (the config's defense) or none (a control without a defense)")


def training_job(
    audit: TrainingsAudit, corpus: CorpusData, name: str, base: LanguageModel, key: bytes, reporter: Reporter
) -> TrainingJob:
    """Return the job that all trainings share: all records of the config's users and of the worst-case user.

    Args:
        audit: the audit, with a supported config.
        corpus: corpus; every training uses all records of its audited users.
        name: name from which each process loads ``base``.
        base: the model with which all trainings start.
        reporter: shows the progress of the search for entities.

    Raises:
        InputError: a user has the worst-case user's name, there are too few tokens for the worst-case user's signature,
            or sequences are longer than the model's context.
    """
    config = audit.trained()
    if corpus.reading.format.has_pairs:
        raise InputError(
            "independent training runs plant a worst-case user with texts, but the rows are preference pairs: use"
            " heldin run with canaries"
        )
    defense, store = config.defense, corpus.store
    recipe = with_picked_layers(config, corpus, base, reporter)
    _require_room(recipe, base, store.users)
    # All records of everybody else, with no set-asides: there is no held-out side that would need fresh texts.
    by_user = {user: store.rows(user) for user in corpus.audited.users}
    # The worst-case user's texts are made of tokens that nobody writes: they name nobody, and take nobody's place.
    slots = find_slots(config, store, store, RowParts.training(by_user), reporter)
    rows = [row for rows_of_user in by_user.values() for row in rows_of_user if slots is None or slots.kept[row]]
    others = documents_of(store, rows)
    # The public texts too: a base model that was pre-trained here has seen their tokens.
    worst = _worst_case_user(audit, base, [*(document.text for document in others), *corpus.public_texts()])
    # The worst-case user's records last: a training without that user takes the first rows.
    documents = [*others, *(Document.of(text) for _, text in worst)]
    # One plan for all trainings, with and without the user: neighbours run the same mechanism.
    mechanism = mechanism_of(config, plain_steps=recipe.steps(len(documents)))
    whole = mechanism.record_selection == "random_chunk"
    sequences = encode(base.tokenizer, documents, None if whole else recipe.sequence_length)
    ranked = score_documents(base, documents) if mechanism.ranks_by_losses else None
    own = tuple(text for _, text in worst)
    records = PrivateRecords(
        ids=[*(store.id(row) for row in rows), *(id_ for id_, _ in worst)],
        users=[*(store.record(row).user for row in rows), *([WORST_CASE_USER] * len(worst))],
        lengths=[tokens.bearing for tokens in sequences],
        losses=None if ranked is None else [scores.mean_loss for scores in ranked],
        named=_named(slots, rows, len(worst)) if mechanism.two_level is not None else None,
    )
    noise = defense.noise_generator()
    # Everything that affects a training but its number and key: results of another job do not pass for this one's.
    shared = (base.fingerprint, repr(recipe), mechanism.model_dump_json(), repr(noise), repr(defense), *own)
    return TrainingJob(
        base=name,
        revision=config.model.revision,
        mechanism=mechanism,
        recipe=recipe,
        sequences=tuple(sequences),
        records=records,
        texts=own,
        # Once for all trainings: the base model and the user's texts are the same in each.
        base_scores=tuple(score.total for score in score_texts(base, own)),
        noise=noise,
        micro_records=defense.pass_records,
        chunk=recipe.sequence_length + 1,
        exactly=defense.repeats_records,
        clipping=plain_clipping(mechanism),
        identity=text_sha256(*shared, repr(records), *_parts_of(sequences), *_named_parts(records)),
        key=key,
    )


def _require_room(recipe: Recipe, base: LanguageModel, users: Collection[str]) -> None:
    """Raise InputError if sequences are longer than the model's context, or a user has the worst-case user's name."""
    if recipe.sequence_length > base.context:
        raise InputError(
            f"finetune.sequence_length is above the {base.context} tokens that '{base.name}' takes: lower"
            " finetune.sequence_length"
        )
    if WORST_CASE_USER in users:
        raise InputError(
            f"the corpus has a user named '{WORST_CASE_USER}', but heldin needs this name: rename this user"
        )


def _parts_of(sequences: Sequence[Tokens]) -> list[str]:
    """Return the values of sequences for a hash: their ids, and which tokens count unless all tokens count."""
    masks = [tokens.counted.tobytes().hex() for tokens in sequences if tokens.counted is not None]
    return [repr([tokens.ids for tokens in sequences]), *masks]


def _named_parts(records: PrivateRecords) -> list[str]:
    return [] if records.named is None else list(records.named.parts())


def _named(slots: Slots | None, rows: Sequence[int], documents: int) -> Incidence:
    """Return the entities that each record names; the worst-case user's documents name none."""
    assert slots is not None
    assert slots.named is not None
    return slots.named.of_records(rows).with_records_that_name_nobody(documents)


def _worst_case_user(audit: TrainingsAudit, base: LanguageModel, seen: Sequence[str]) -> list[tuple[str, str]]:
    """Return (id, text) of each document of the worst-case user, in tokens that occur in none of the ``seen`` texts."""
    defaults = UnseenTokenCanaries(kind="unseen_token", users=1)
    counts = token_counts(base.tokenizer, seen)
    rarest = rare_tokens(base.tokenizer, counts)
    unseen = [token for token in rarest if not counts[token]]
    # Enough tokens for a signature whose tokens can follow each other unchanged when they are encoded again.
    least = 4 * defaults.signature_tokens
    many = audit.worst_case_documents()
    (user,) = unseen_token_users(
        base.tokenizer,
        [WORST_CASE_USER],
        candidates=unseen if len(unseen) >= least else rarest[:least],
        documents=many,
        records=many,
        signature_tokens=defaults.signature_tokens,
        # Start and end token take two of the L + 1 places of a sequence: the whole document is trained on.
        tokens=min(defaults.tokens, audit.config.finetune.sequence_length - 1),
        seed=audit.config.seed,
    )
    return [(record.id, record.text) for record in user.records]
