"""The training stage of a run, which trains under the plan and measures the curves."""

import hmac
import math
from collections.abc import Sequence
from contextlib import closing, nullcontext
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from heldin.base.artefacts import State, folder_digest, state_of, write_artefact
from heldin.base.errors import InputError
from heldin.base.files import kept_text, text_sha256
from heldin.base.progress import Reporter
from heldin.base.wording import counted
from heldin.defenses.mechanism import Mechanism
from heldin.finetune.batches import Truncation, encoded
from heldin.finetune.checkpoints import finished_state
from heldin.finetune.holding import PlainClipping, plain_clipping
from heldin.finetune.loop import Log, TrainingResult, train
from heldin.finetune.precision import arithmetic_of
from heldin.finetune.preferences import preference_records
from heldin.finetune.ranks import first_process_first, rank
from heldin.finetune.recipe import Select, Truncate
from heldin.finetune.token_store import Cut, TokenStore, bearing_of, token_store
from heldin.finetune.training import discard_model, job_name
from heldin.finetune.units import PrivateRecords, PrivateTraining, plan_private_training
from heldin.models.loading import LanguageModel
from heldin.models.logprobs import score_documents
from heldin.models.preference import Preference
from heldin.models.tokens import Tokens
from heldin.stages.run_config import RunConfig
from heldin.stages.sides.data import RecordIds, RunData, curve_texts, rows_digest, writers
from heldin.stages.sides.ledger import load_ledger
from heldin.stages.train.layers import LAYERS, with_picked_layers
from heldin.stages.train.objectives import objective_of
from heldin.stages.train.plan import fit_lines, optimizer_lines, plan_fit
from heldin.stages.train.validation import HELD_IN_LOSS, PUBLIC_LOSS, CurveEvaluation

if TYPE_CHECKING:
    from heldin.corpus.entities.incidence import Incidence

TOKENS = Path("checkpoints") / "tokens"  # of a run: what its checkpoints go on from
REFERENCE = Path("checkpoints") / "reference"  # of a run on preference pairs


def finetune(
    config: RunConfig,
    data: RunData,
    base: LanguageModel,
    mechanism: Mechanism,
    out: Path,
    reporter: Reporter,
    log: Log | None = None,
) -> TrainingResult:
    """Train under the mechanism on the records of all users except non-members, and measure the curves during training.

    Training calls ``log`` after each evaluation (see ``finetune.loop.train``).
    """
    _check_length(config, base)
    recipe = with_picked_layers(config, data.corpus, base, reporter, out / LAYERS)
    layout = None
    if recipe.shard is not None:
        from heldin.finetune.sharding import spread

        layout = spread(base.model, recipe)
    # Chunks are cut from a user's whole text in each step: cut here, they could only
    # come from the beginnings of its records.
    length = None if mechanism.record_selection == "random_chunk" else recipe.sequence_length
    sequences = training_records(config, data, base, length, out, reporter)
    private = _private(config, data, base, mechanism, sequences)
    if private:
        reporter.say(f"mechanism: {mechanism.guarantee().label}")
        reporter.say(f"mechanism: noise multiplier {mechanism.noise_multiplier:.4g}, {len(private.units)} units")
        for line in optimizer_lines(config, mechanism):
            reporter.say(line)
        if fit := plan_fit(config, mechanism, data.records_of_users()):
            for line in fit_lines(mechanism, fit):
                reporter.say(line)
        # Before the first step under this key.
        _bind_key(out / "ledger" / "job", job_name(base, sequences, recipe, private))
        write_artefact(out / "ledger" / "plan", plan_commitment(data.ledger.key, mechanism))
    curves = curve_texts(
        data,
        validation_texts=config.audit.validation_texts,
        users=config.audit.curve_users,
        per_user=config.audit.curve_texts_per_user,
        seed=config.seed,
    )
    if recipe.looks_at_validation and recipe.select is not Select.BEST_PUBLIC and not curves.held_in_validation:
        raise InputError(
            "finetune.select or finetune.patience needs validation texts of members, but there are no such texts."
            " Set finetune.select to last and finetune.patience to null, or raise split.evaluation_fraction"
        )
    objective = objective_of(recipe, data.corpus.reading.format)
    evaluate = CurveEvaluation(curves, base, objective, private=private is not None, spread=layout is not None)
    at_end = closing(private.source) if private else nullcontext()
    final = out / "checkpoints" / "final"
    if final.is_dir() and not is_model_of_training(out, data.ledger.key):
        discard_model(final, recipe, reporter.say)
    with at_end, reporter.track("fine-tuning", mechanism.steps, "steps") as advance:
        result = train(
            base,
            sequences,
            recipe,
            out / "checkpoints",
            private=private,
            clipping=plain_clipping(mechanism),
            evaluate=evaluate,
            # Loss of held-in users chooses only where no guarantee is claimed, or where the plan says it is void.
            select_by=PUBLIC_LOSS if recipe.select is Select.BEST_PUBLIC else HELD_IN_LOSS,
            advance=advance,
            say=reporter.say,
            spread=layout,
            log=log,
        )
    if rank() == 0 and not result.halted:
        write_artefact(out / "ledger" / "model", _model_commitment(data.ledger.key, final))
    return result


def is_model_of_training(run: Path, key: bytes) -> bool:
    """Return whether training wrote the final model, according to its digest and the keyed hash of its digest.

    If a killed call finished the model, there is no keyed hash, and only the digest is checked.
    """
    final, kept = run / "checkpoints" / "final", run / "ledger" / "model"
    if state_of(final) is not State.WHOLE:
        return False
    return kept_text(kept) in (None, _model_commitment(key, final))


def require_model_of_training(run: Path) -> None:
    """Raise InputError unless training wrote the final model."""
    ledger = load_ledger(run / "ledger")
    if ledger is None or not is_model_of_training(run, ledger.key):
        raise InputError(
            f"'{run / 'checkpoints' / 'final'}' is not the model that training wrote: restore the model, or repeat"
            " the run"
        )


def _model_commitment(key: bytes, final: Path) -> str:
    return hmac.digest(key, b"model" + folder_digest(final).encode(), "sha256").hex()


def measured_clip_norm(
    config: RunConfig, data: RunData, base: LanguageModel, out: Path, reporter: Reporter
) -> float | None:
    """Return the smallest gradient norm of a plain run, for a clipping defense without a clip norm (Kandpal et al.,
    D.3).

    The plain run comes first, with a copy of the base model. heldin can resume the plain run like any other run.

    Args:
        base: the model before fine-tuning; it is not changed.

    Returns:
        The norm; None for a defense that does not need it.

    Raises:
        InputError: sequences are longer than the model's context, or a gradient has norm 0.
    """
    unit = config.defense.measured_clip
    if unit is None:
        return None
    _check_length(config, base)
    # All steps and no evaluation: the smallest norm is over the whole run.
    recipe = with_picked_layers(config, data.corpus, base, reporter, out / LAYERS)
    recipe = replace(recipe, select=Select.LAST, patience=None)
    sequences = training_records(config, data, base, recipe.sequence_length, out, reporter)
    # The run proper starts from the unchanged base model.
    copy = replace(base, model=deepcopy(base.model))
    with reporter.track("plain run for the clip norm", recipe.steps(len(sequences)), "steps") as advance:
        measured = train(
            copy,
            sequences,
            recipe,
            out / "checkpoints" / "plain-run",
            # An infinite norm clips nothing, and measures.
            clipping=PlainClipping(unit, math.inf),
            advance=advance,
            say=reporter.say,
        ).smallest_norm
    # A clip norm of 0 would train nothing.
    if not measured:
        raise InputError("the plain run has a gradient of norm 0, which gives no clip norm: give defense.clip_norm")
    reporter.say(f"clip norm: {measured:.4g}, the smallest {unit} gradient norm of a plain run")
    return measured


def training_records(
    config: RunConfig, data: RunData, base: LanguageModel, length: int | None, out: Path, reporter: Reporter
) -> Sequence[Tokens]:
    """Return the records to train on. Preference pairs include the base model's log-probabilities of their answers.

    Args:
        base: the model before training.
        length: see ``training_tokens``.
        out: the run folder.

    Raises:
        InputError: ``training_tokens`` or ``objective_of`` raises.
    """
    recipe, form = config.finetune, data.corpus.reading.format
    objective = objective_of(recipe, form)
    if objective.rows > 1 and length is None:
        raise InputError(
            "record_selection random_chunk trains on parts of texts, but heldin does not cut preference pairs:"
            " choose another record_selection"
        )
    tokens = training_tokens(data, base, length, recipe.truncate, out / TOKENS, reporter)
    if not isinstance(objective, Preference):
        return tokens
    smoothed = f", label smoothing {objective.label_smoothing:g}" if objective.label_smoothing else ""
    compared = ", reference: the base model" if objective.needs_reference else ""
    reporter.say(f"objective: {objective.name}, beta {objective.beta:g}{smoothed}{compared}")
    with reporter.track("reference of the pairs", len(tokens), "pairs") as advance:
        return preference_records(
            base,
            tokens,
            objective,
            arithmetic_of(recipe.precision, base.device),
            out / REFERENCE,
            alone=recipe.shard is None,
            advance=advance,
        )


def training_tokens(
    data: RunData, base: LanguageModel, length: int | None, rule: Truncate, folder: Path, reporter: Reporter
) -> TokenStore:
    """Return the tokens of the training rows. heldin writes the tokens to disk once, and all processes read them.

    Args:
        base: model whose tokenizer makes the tokens.
        length: maximum number of tokens of a record in training; None: all.
        rule: rule for cutting longer records.
        folder: folder for the tokens; only its owner can read it, because it shows the users in training.

    Raises:
        InputError: no record has a token with loss, or ``encode`` or ``token_store`` raises.
    """
    if not data.training_rows.size:
        raise InputError(
            "members have no record left to train on after set-asides, caps and data defenses: loosen one"
            " of these, or add records"
        )
    changed = sorted(data.changed.items())
    rows = rows_digest(data.training_rows)
    reading, truncation = data.corpus.reading, Truncation(rule)
    turns = (reading.loss, rule) if reading.has_turns else ()
    origin = text_sha256(base.fingerprint, data.store.fingerprint, rows, repr(changed), repr(length), *turns)
    # Made by the first process, and mapped by the others.
    with first_process_first(), reporter.track("tokenizing", data.training_rows.size, "records") as advance:
        tokens = token_store(
            folder,
            encoded(base.tokenizer, data.training_documents(), length, truncation),
            origin=origin,
            vocabulary=base.model.get_input_embeddings().num_embeddings,
            verify=rank() == 0,
            advance=advance,
            cut=lambda: Cut(truncation.records, truncation.dropped, truncation.counted),
        )
    _say_cut(tokens, reporter)
    return tokens


def _say_cut(tokens: TokenStore, reporter: Reporter) -> None:
    silent = int((tokens.bearing == 0).sum())
    if tokens.cut.records and rank() == 0:
        reporter.say(
            f"tokens: {counted(tokens.cut.records, 'record')} longer than finetune.sequence_length lose"
            f" {tokens.cut.dropped:,} tokens. The loss would count {tokens.cut.counted:,} of these tokens"
        )
    if silent == len(tokens):
        raise InputError(
            "no record has a token that counts in the loss within finetune.sequence_length: raise"
            " finetune.sequence_length, or change finetune.loss_on"
        )


def _check_length(config: RunConfig, base: LanguageModel) -> None:
    if config.finetune.sequence_length > base.context:
        raise InputError(
            f"finetune.sequence_length is {config.finetune.sequence_length}, but '{base.name}' takes at most"
            f" {base.context} tokens: lower finetune.sequence_length"
        )


def _bind_key(path: Path, job: str) -> None:
    """Bind a run's key to one job. Raises InputError if the key is bound to another job."""
    # two models under one key would differ by un-noised data, even if the first one's checkpoints are gone
    kept = kept_text(path)
    if kept is None:
        write_artefact(path, job)
    elif kept != job:
        raise InputError(
            f"'{path.parent}' has the key of another private job (other corpus, membership, base model, mechanism"
            " or recipe). One key serves one job: use a new run folder"
        )


def plan_commitment(key: bytes, mechanism: Mechanism) -> str:
    """Return a keyed hash of a training's plan. The hash reveals a joint change of plan, config and record."""
    # Keyed: whoever edits plan and record together cannot make the hash that fits without the key.
    return hmac.digest(key, b"plan" + mechanism.model_dump_json().encode(), "sha256").hex()


def require_trained_under(run: Path, plan: Mechanism) -> None:
    """Raise InputError unless the run was trained under this plan, according to the hash that training wrote."""
    ledger, kept = load_ledger(run / "ledger"), run / "ledger" / "plan"
    # A plain run leaves no hash; a plain plan beside a hash is a private run whose plan was exchanged.
    if not plan.protects and not kept.exists():
        return
    if ledger is None or kept_text(kept) != plan_commitment(ledger.key, plan):
        raise InputError(f"'{run / 'plan.json'}' is not the plan of the model's training: restore this file")


def _named(data: RunData) -> "Incidence":
    """Return the entities that each training record names, in the order of ``data.training_rows``."""
    assert data.slots is not None
    assert data.slots.named is not None
    return data.slots.named.of_records(data.training_rows)


def finished_training(folder: Path, config: RunConfig) -> TrainingResult:
    """Return the training result of a finished run, from its last checkpoint. Raises InputError if there is no such
    checkpoint."""
    state = finished_state(folder / "checkpoints" / "resume")
    chosen = state.best_step if config.finetune.keeps_best else state.step
    history = tuple(state.history)
    return TrainingResult(
        folder / "checkpoints" / "final",
        chosen,
        state.step,
        history,
        state.seconds,
        state.smallest_norm,
        state.gradients,
        state.uncounted,
        effort=state.effort,
    )


def _private(
    config: RunConfig, data: RunData, base: LanguageModel, mechanism: Mechanism, sequences: Sequence[Tokens]
) -> PrivateTraining | None:
    defense = config.defense
    noise = defense.noise_generator()
    if noise is None:
        return None
    losses = None
    if mechanism.ranks_by_losses:
        # Per token, or the longest records would have the highest perplexity.
        scored = (score_documents(base, documents) for documents in data.training_documents())
        losses = [scores.mean_loss for batch in scored for scores in batch]
    records = PrivateRecords(
        ids=RecordIds(data.store, data.training_rows),
        users=writers(data.store, data.training_rows),
        lengths=bearing_of(sequences),
        losses=losses,
        named=_named(data) if mechanism.two_level is not None else None,
    )
    return plan_private_training(
        mechanism,
        data.ledger.key,
        records,
        noise,
        micro_records=defense.pass_records,
        # L predictions take L + 1 tokens: the first is only an input.
        chunk=config.finetune.sequence_length + 1,
        # Group privacy is accounted for exactly k records of each user: with fewer they are repeated.
        exactly=defense.repeats_records,
    )
