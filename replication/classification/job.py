"""Pre-train an encoder on public texts, train a classifier with each mechanism, and count test errors."""

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from pydantic import ValidationError
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from heldin.base.coins import new_key
from heldin.base.errors import InputError, ResumableError
from heldin.base.files import private_directory, text_sha256
from heldin.base.progress import Reporter
from heldin.base.wording import counted
from heldin.corpus.config import CorpusConfig
from heldin.corpus.entities.incidence import Incidence
from heldin.corpus.row_parts import RowParts
from heldin.corpus.sources.files import FileCorpus
from heldin.defenses.data_side.apply import apply_defenses
from heldin.defenses.data_side.contract import TrainingRecord
from heldin.defenses.guarantee import Guarantee
from heldin.defenses.mechanism import Mechanism
from heldin.defenses.mechanisms.clipped import ClippingDefense
from heldin.finetune.batches import Asked, collate
from heldin.finetune.holding import PlainClipping
from heldin.finetune.loop import train
from heldin.finetune.recipe import Recipe, Select
from heldin.finetune.units import PrivateRecords, PrivateTraining, plan_private_training
from heldin.jobs.check.check_run import try_source
from heldin.models.devices import default_device
from heldin.models.loading import LanguageModel
from heldin.models.tokens import IGNORED
from heldin.stages.run_config import ModelConfig, PretrainConfig, RunConfig
from heldin.stages.sides.slots import Slots, find_slots
from heldin.stages.train.plan import mechanism_of
from heldin.words.data_steps import DataStepText
from heldin.words.statement import Code
from replication.classification.config import ClassificationConfig, Contender
from replication.classification.deal import Deal, deal
from replication.classification.encoder import encoder_tokenizer, load_classifier, new_masked_model, pretrained_encoder
from replication.classification.encoding import MaskedTexts, encoded, with_label

_AT_ONCE = 64  # texts tested in one pass


# What holds beside any mechanism here: other labels would be another head, and another deal another data set.
class PseudoUsers(Code):
    """The assumptions behind the guarantees of this study."""

    PUBLIC = (
        "for the protected pseudo-users only: labels, test texts and the encoder's pre-training texts count as public,"
        " and data sets are compared after texts are assigned"
    )


_OF_RUNS = (DataStepText.MINIMUM, DataStepText.SET_ASIDES)  # data steps that this study does not have


@dataclass(frozen=True)
class Outcome:
    """The result of a classifier that was trained with one mechanism.

    Attributes:
        name: name of the contender.
        promise: the mechanism's guarantee, or the reason why there is no guarantee.
        epsilon: epsilon of the guarantee; None without a guarantee.
        delta: delta of the guarantee; None for plain training.
        test_error: share of the test texts with a wrong prediction.
        texts: number of training texts.
        users: number of pseudo-users who wrote the training texts.
        changed: number of training texts that a data defense changed.
        naming: share of all labelled texts that name a recognised entity; None for a mechanism without entities.
        steps: number of optimizer steps.
        seconds: duration of the training.
        warnings: warnings, for printing with the guarantee.
    """

    name: str
    promise: str
    epsilon: float | None
    delta: float | None
    test_error: float
    texts: int
    users: int
    changed: int
    naming: float | None
    steps: int
    seconds: float
    warnings: tuple[str, ...]


@dataclass(frozen=True)
class Comparison:
    """The results of all mechanisms.

    Attributes:
        classes: number of labels.
        test_texts: number of test texts.
        public_texts: number of texts that pre-trained the encoder.
        majority_error: test error of always predicting the most frequent training class.
        outcomes: results of the contenders, in the order of the config.
    """

    classes: int
    test_texts: int
    public_texts: int
    majority_error: float
    outcomes: tuple[Outcome, ...]

    def as_dict(self) -> dict[str, Any]:
        """Return the fields by name, for JSON."""
        return asdict(self)


def compare_classifiers(
    config: ClassificationConfig, out: Path, reporter: Reporter, *, keep: Callable[[Comparison], object]
) -> Comparison:
    """Run the study in a new folder. Return the results of all mechanisms.

    Args:
        config: config of the study.
        out: a new folder, which receives the protected users' texts and the encoder.
        reporter: receives the progress.
        keep: function that receives all results so far after each contender.

    Raises:
        InputError: ``out`` is not empty, the texts are unsuitable, a mechanism is impossible, or a training diverged.
    """
    # Before the folder and the work: a mechanism that cannot be, or a missing list of names, leaves nothing behind.
    for name, contender in config.contenders.items():
        with _about(name):
            _mechanism(config, contender, out, texts=1)
            for where, source in _as_run(config, contender, out).entity_sources():
                try_source(where, source)
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise InputError(f"'{out}' is not empty: give a new folder with --out")
    private_directory(out)
    dealt = deal(config, out, reporter)
    reporter.say(
        f"texts: {counted(len(dealt.test), 'test text')}, {counted(len(dealt.public), 'public text')},"
        f" {counted(len(dealt.store), 'text')} of {counted(len(dealt.store.users), 'pseudo-user')},"
        f" {len(dealt.classes)} labels"
    )
    if config.encoder.base:
        tokenizer = pretrained_encoder(config.encoder.base, config.encoder.context)
    else:
        tokenizer = _pretrained(config, dealt, out / "encoder", reporter)
    study = _Study(config, dealt, tokenizer, out, reporter)
    found = Comparison(len(dealt.classes), len(dealt.test), len(dealt.public), dealt.majority_error(), ())
    for name, contender in config.contenders.items():
        with _about(name):
            found = replace(found, outcomes=(*found.outcomes, study.outcome(name, contender)))
            keep(found)
    return found


def table(found: Comparison) -> str:
    """Return the comparison as plain text."""
    lines = [
        f"{found.test_texts:,} test texts of {found.classes} classes; the most frequent class alone errs in"
        f" {found.majority_error:.1%}",
        "",
        f"{'mechanism':<24}{'test error':>11}{'epsilon':>10}{'texts':>9}{'steps':>8}",
    ]
    for its in found.outcomes:
        epsilon = "-" if its.epsilon is None else f"{its.epsilon:.4g}"
        lines.append(f"{its.name:<24}{its.test_error:>11.1%}{epsilon:>10}{its.texts:>9,}{its.steps:>8,}")
    lines += ["", *(f"{its.name}: {its.promise}" for its in found.outcomes)]
    for its in found.outcomes:
        lines += [f"{its.name}: warning: {said}" for said in its.warnings]
        if its.changed:
            lines.append(f"{its.name}: data defenses changed {its.changed:,} of {its.texts:,} texts")
        if its.naming is not None:
            lines.append(f"{its.name}: {its.naming:.1%} of the labelled texts name a recognised entity")
    return "\n".join(lines)


@dataclass(frozen=True)
class _Study:
    config: ClassificationConfig
    dealt: Deal
    tokenizer: PreTrainedTokenizerFast
    out: Path
    reporter: Reporter

    def outcome(self, name: str, contender: Contender) -> Outcome:
        """Train with a mechanism, from the encoder and head that all mechanisms share, and test the classifier."""
        config, store, reporter = self.config, self.dealt.store, self.reporter
        run = _as_run(config, contender, self.out)
        parts = RowParts.training({user: store.rows(user) for user in store.users})
        slots = find_slots(run, store, store, parts, reporter)
        records, changed = self._records(contender, slots)
        if not records:
            raise InputError("caps and data defenses leave no text to train on: loosen a cap or remove a data defense")
        recipe = contender.finetune or config.finetune
        mechanism = _mechanism(config, contender, self.out, texts=len(records))
        reporter.say(f"{name}: {mechanism.guarantee().label}")
        inputs = encoded(self.tokenizer, [record.text for record in records], config.encoder.context)
        asked = [with_label(ids, self.dealt.labels[r.row]) for ids, r in zip(inputs, records, strict=True)]
        model = load_classifier(
            self.config.encoder.base or self.out / "encoder", len(self.dealt.classes), config.seed
        ).to(default_device())
        base = LanguageModel(model, self.tokenizer, name, text_sha256(name))
        work = self.out / "work"
        with reporter.track(name, mechanism.steps, "steps") as advance:
            result = train(
                base,
                asked,
                recipe,
                work,
                private=_private(contender, mechanism, records, asked, slots),
                clipping=_clipping(contender),
                advance=advance,
                say=reporter.say,
            )
        # The next one is another training under another key.
        shutil.rmtree(work)
        promise = mechanism.guarantee()
        return Outcome(
            name=name,
            promise=promise.label,
            epsilon=promise.epsilon if isinstance(promise, Guarantee) else None,
            delta=mechanism.delta,
            test_error=self._test_error(model),
            texts=len(records),
            users=len({record.user for record in records}),
            changed=changed,
            naming=_naming(slots.named) if slots and slots.named else None,
            steps=result.steps,
            seconds=round(result.seconds, 1),
            warnings=tuple(map(str, promise.cautions)) if isinstance(promise, Guarantee) else (),
        )

    def _records(self, contender: Contender, slots: Slots | None) -> tuple[list[TrainingRecord], int]:
        """Return the training texts after caps and data defenses, and how many of them data defenses changed."""
        records = [
            TrainingRecord(record.row, record.user, record.id, record.document)
            for record in map(self.dealt.store.record, range(len(self.dealt.store)))
            if slots is None or slots.kept[record.row]
        ]

        def ranked(_texts: object) -> list[float]:
            raise AssertionError("a config with caps by rank is refused")

        left, removals = apply_defenses(
            contender.data_defenses,
            records,
            lengths=ranked,
            losses=ranked,
            seed=self.config.seed,
            reporter=self.reporter,
        )
        for removal in removals:
            self.reporter.say(removal.line())
        given = {record.row: record.text for record in records}
        return left, sum(record.text != given[record.row] for record in left)

    def _test_error(self, model: PreTrainedModel) -> float:
        test = self.dealt.test
        inputs = encoded(self.tokenizer, [text for text, _ in test], self.config.encoder.context)
        wrong = 0
        model.eval()
        for at in range(0, len(test), _AT_ONCE):
            labels = [label for _, label in test[at : at + _AT_ONCE]]
            asked = [with_label(ids, label) for ids, label in zip(inputs[at : at + _AT_ONCE], labels, strict=True)]
            ids, targets, _ = collate(asked, model.device).tensors
            with torch.no_grad():
                logits = model(input_ids=ids).logits  # (B, L, classes)
            # One target of each text, at its [CLS].
            told = logits[targets != IGNORED].argmax(-1).tolist()
            wrong += sum(a != b for a, b in zip(told, labels, strict=True))
        return wrong / len(test)


def _pretrained(config: ClassificationConfig, dealt: Deal, folder: Path, reporter: Reporter) -> PreTrainedTokenizerFast:
    """Pre-train the encoder on public texts, write it to ``folder``, and return its tokenizer."""
    shape, recipe = config.encoder, config.pretraining
    tokenizer = encoder_tokenizer(dealt.public, shape.vocabulary)
    model = new_masked_model(shape, tokenizer, config.seed).to(default_device())
    texts = MaskedTexts(tokenizer, encoded(tokenizer, dealt.public, shape.context), int(recipe.epochs), config.seed)
    fresh = LanguageModel(model, tokenizer, "the encoder", text_sha256(repr(shape), str(config.seed)))
    work = folder.with_name("pretraining")
    # Each text is there once per epoch already, masked otherwise each time.
    once = replace(recipe, epochs=1.0)
    with reporter.track("pre-training the encoder", once.steps(len(texts)), "steps") as advance:
        train(fresh, texts, once, work, advance=advance, say=reporter.say).folder.rename(folder)
    shutil.rmtree(work)
    return tokenizer


def _as_run(config: ClassificationConfig, contender: Contender, out: Path) -> RunConfig:
    """Return the contender as a run on the protected users' texts, so mechanism and caps are the same as in a run."""
    return RunConfig(
        name=config.name,
        seed=config.seed,
        corpus=CorpusConfig(source=FileCorpus(kind="jsonl", path=out / "texts.jsonl")),
        model=ModelConfig(pretrain=PretrainConfig()),
        finetune=Recipe(
            epochs=(contender.finetune or config.finetune).epochs,
            batch_size=(contender.finetune or config.finetune).batch_size,
            select=Select.LAST,
            sequence_length=1,
        ),
        defense=contender.defense,
        data_defenses=contender.data_defenses,
    )


def _mechanism(config: ClassificationConfig, contender: Contender, out: Path, *, texts: int) -> Mechanism:
    run = _as_run(config, contender, out)
    mechanism = mechanism_of(run, plain_steps=run.finetune.steps(texts))
    steps = tuple(step for step in mechanism.data_steps if not any(map(step.name.states, _OF_RUNS)))
    # The first of a run is about users who pre-trained its base model.
    said = (PseudoUsers.PUBLIC(), *mechanism.assumptions[1:]) if mechanism.assumptions else ()
    return mechanism.model_copy(update={"data_steps": steps, "assumptions": said})


def _naming(named: Incidence) -> float:
    """Return the share of the texts that name an entity."""
    return float((np.diff(named.starts) > 0).mean())


def _private(
    contender: Contender,
    mechanism: Mechanism,
    records: list[TrainingRecord],
    asked: list[Asked],
    slots: Slots | None,
) -> PrivateTraining | None:
    defense = contender.defense
    noise = defense.noise_generator()
    if noise is None:
        return None
    named = slots.named if slots and mechanism.two_level is not None else None
    return plan_private_training(
        mechanism,
        # Of this training alone: two models under one key differ by un-noised data (docs/theory.md#keys-and-coins).
        new_key(),
        PrivateRecords(
            ids=[record.id for record in records],
            users=[record.user for record in records],
            lengths=[len(its) for its in asked],
            named=named.of_records([record.row for record in records]) if named else None,
        ),
        noise,
        micro_records=defense.pass_records,
        exactly=defense.repeats_records,
    )


def _clipping(contender: Contender) -> PlainClipping | None:
    defense = contender.defense
    if not isinstance(defense, ClippingDefense):
        return None
    assert defense.clip_norm is not None
    return PlainClipping(defense.unit, defense.clip_norm)


@contextmanager
def _about(name: str) -> Iterator[None]:
    """Add the name of the contender to the errors in this block."""
    try:
        yield
    except InputError as error:
        raise InputError(f"contenders.{name}: {error}") from error
    except ValidationError as error:
        # What a run would refuse; the place is that of a run's config.
        raise InputError(f"contenders.{name}: {error.errors()[0]['msg'].removeprefix('Value error, ')}") from error
    except ResumableError as error:
        # A study does not resume: what comes after a diverged training is another config.
        raise InputError(
            f"contenders.{name}: {str(error).split(';')[0]}. Change finetune or defense of this contender"
        ) from error
