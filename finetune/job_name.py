"""The name of a training job: a hash of everything that affects the weights."""

from collections.abc import Sequence
from dataclasses import asdict

from heldin.base.files import text_sha256
from heldin.finetune.clipping import PlainClipping
from heldin.finetune.recipe import Recipe
from heldin.finetune.sampled_units import Units
from heldin.finetune.token_store import sequences_digest
from heldin.finetune.units import PrivateTraining
from heldin.models.loading import LanguageModel


def job_name(
    base: LanguageModel,
    sequences: Sequence[Sequence[int]],
    recipe: Recipe,
    private: PrivateTraining | None,
    clipping: PlainClipping | None = None,
) -> str:
    """Hash of everything that affects the weights: a checkpoint resumes only the job of the same name.

    Args:
        base: the model to start from.
        recipe: hyperparameters; only ``checkpoint_every``, ``checkpointing`` and ``shard`` do not matter.
        private: the mechanism with its key and units, or None.
        clipping: of plain batches, or None.
    """
    shaping = {k: v for k, v in asdict(recipe).items() if k not in ("checkpoint_every", "checkpointing", "shard")}
    mechanism = repr(clipping) if clipping else ""
    if private:
        units = private.units if isinstance(private.units, Units) else Units.of(private.units)
        plan = private.mechanism.model_dump_json()
        # With the key: a checkpoint that was made under another one belongs to another run.
        parts = [plan, private.key.hex(), private.noise, units.digest(), repr(private.chunk)]
        if private.records.named is not None:
            # Whom a record names decides in which steps it is used.
            parts += private.records.named.parts()
        mechanism = text_sha256(*parts)
    return text_sha256(base.fingerprint, repr(shaping), mechanism, sequences_digest(sequences))
