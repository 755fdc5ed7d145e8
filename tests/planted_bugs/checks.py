"""The checks that catch planted bugs: on released models, in the white-box audit, on a corpus.

All give `Check`s of the white-box audit: a p-value (0 or 1 where nothing is random), what was measured, what is stated.
A game is an audit end to end: fair coins, a real training, scores, the verdict of `bounds.judgement`; its p-value is
the smallest level at which that verdict still rejects the accountant's curve. Of the white-box audit the section is run
that has the check.
"""

import functools
import inspect
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import PreTrainedTokenizerFast

from heldin.base.coins import fair_coin, keyed_digest, seed_key
from heldin.bounds.design import Assignment, Design
from heldin.bounds.judgement import Judgement, evaluate
from heldin.bounds.plan_claims import mechanism_claim
from heldin.bounds.scores import LabelledScores
from heldin.bounds.verdict import Claim, Standing, rejects
from heldin.corpus.build import build_store
from heldin.corpus.made_up.synthetic import SyntheticCorpus, generate
from heldin.corpus.names import load_aliases
from heldin.corpus.sources.json_rows import Json
from heldin.corpus.statistics import corpus_statistics
from heldin.defenses.choices import FlatClip, NoiseGenerator
from heldin.defenses.mechanism import Mechanism
from heldin.defenses.samplers import PoissonSampler
from heldin.finetune.batches import collate
from heldin.finetune.private import private_gradient
from heldin.finetune.units import PrivateRecords, PrivateTraining, plan_private_training
from heldin.models.loading import LanguageModel
from heldin.models.model_config import TinyModel
from heldin.models.objective import LANGUAGE_MODELLING
from heldin.models.tiny import new_tiny_model, train_tokenizer
from heldin.models.tokens import Tokens
from heldin.white_box import engine as white_box
from heldin.white_box.canaries import Array, flat
from heldin.white_box.check import Check, exact
from heldin.white_box.coins import observe
from heldin.white_box.engine import SECTIONS, clip_norms
from heldin.white_box.power import claim_of, quiet_places, trainer_mechanism
from heldin.white_box.processes import Part, jobs, together
from heldin.white_box.processes import checks_of as checks_of_part
from heldin.white_box.stage import Stage, set_stage
from heldin.white_box.trainers import PrivateStep, Trainer, stepwise
from tests.documents import tokens
from tests.planted_bugs.trainers import by_sgd, changed, noise_times

RELEASED = "one-run test of the released model"
TWO_RELEASED = "one-run test of two released models"
WEIGHTS = "one-run test of the released weights"
TWO_NAMES = "texts that stand under two names"

KEY = seed_key(4)
DELTA = 1e-5
CANARIES = 300  # users, of whom each writes one token over and over
RECORDS = 16  # of each, of 4 to 11 tokens; the text that the attacker has is longer
STEPS = 2
GAME_LEVEL = 0.05  # of a verdict
TRAININGS = "trainings"  # the part of an audit that is none of its sections
PROCESSES = "2 processes: "  # how the checks of several processes begin
_LONGEST = 20
_AUDITED = 100  # gradient canaries of a white-box audit
_SMALLEST = 1e-70  # 300 right guesses have probability 2^-300 without any leak


@dataclass(frozen=True)
class Corpus:
    """Who wrote what, (user, text), and which names are known to be one person's."""

    letters: tuple[tuple[str, str], ...]
    aliases: tuple[tuple[str, str], ...] = ()  # (person, other name)


@dataclass(frozen=True)
class Game:
    """Scores of users whom fair coins held in or out, and the claim that they are held against."""

    scores: LabelledScores
    claim: Claim

    def result(self) -> Judgement:
        return evaluate(self.scores, Design(Assignment.COIN), claims=(self.claim,))

    def p_value(self) -> float:
        """Smallest level at which the claim is rejected, to a tenth of its logarithm; 1 if not below 0.5."""
        if not self._rejected(0.5):
            return 1.0
        low, high = math.log(_SMALLEST), math.log(0.5)
        while high - low > 0.1:
            middle = 0.5 * (low + high)
            low, high = (low, middle) if self._rejected(math.exp(middle)) else (middle, high)
        return math.exp(high)

    def _rejected(self, level: float) -> bool:
        return rejects(self.scores, self.claim, Design(Assignment.COIN, alpha=level))


@functools.cache
def claimed() -> Mechanism:
    """Epsilon 1 for users, all of whom enter every step; clip norm so small that sigma * C is below 1."""
    sampler = PoissonSampler(rate=1.0)
    mechanism = trainer_mechanism("uls", sampler, steps=STEPS, delta=DELTA, group_size=RECORDS, target_epsilon=1.0)
    return changed(mechanism, clip=FlatClip(norm=0.005))


@functools.cache
def sampled(kind: str = "uls", group_size: int = 4) -> Mechanism:
    """Epsilon 4 for units that enter each step with probability 0.2: for the white-box audit."""
    sampler = PoissonSampler(rate=0.2)
    return trainer_mechanism(kind, sampler, steps=5, delta=DELTA, group_size=group_size, target_epsilon=4.0)


def released(trainer: Trainer, key: bytes) -> Game:
    """Black-box: how much likelier is a user's fresh text under the released model than under the base model?"""
    member = coins_of(key)
    base, model = base_model(), base_model()
    trainer(model, training_of(keyed_digest(key, "run", ""), member), sequences_of(member))
    return _game(_beyond_expectation(_losses(base) - _losses(model)), member)


def two_released(trainer: Trainer, key: bytes) -> Game:
    """Black-box, with a second model at hand: a variant trained on nobody of the pool, under a key of its own.

    Under two keys the second model tells nothing of the coins, so that the claim for the first holds for both.
    """
    member, nobody = coins_of(key), np.zeros(CANARIES, dtype=np.bool_)
    model, other = base_model(), base_model()
    trainer(model, training_of(keyed_digest(key, "run", "with"), member), sequences_of(member))
    trainer(other, training_of(keyed_digest(key, "run", "without"), nobody), sequences_of(member))
    return _game(_beyond_expectation(_losses(other) - _losses(model)), member)


def released_weights(trainer: Trainer, key: bytes) -> Game:
    """Gradient canaries, and an auditor who sees the final weights only: how far did each one's coordinate move?"""
    there = set_stage(claimed(), CANARIES, quiet=64)
    member = there.coins(key)
    base, model = there.model(), there.model()
    trainer(model, there.training(key, member), there.sequences)
    assert there.canaries.coordinates is not None
    return _game(-np.abs(flat(model) - flat(base))[there.canaries.coordinates], member)


GAMES = {RELEASED: released, TWO_RELEASED: two_released, WEIGHTS: released_weights}


def game_of(name: str, planted: PrivateStep | Trainer, key: bytes) -> Game:
    """Play the game of that name with a trainer."""
    return GAMES[name](as_trainer(planted) if name == WEIGHTS else by_sgd(planted), key)


def game_checks(name: str, game: Game) -> tuple[Check, ...]:
    """p-value of the verdict, the certified epsilon, and the claimed one."""
    certified = max(b.epsilon_lower for b in game.result().bounds if b.standing is Standing.CERTIFIED)
    return (Check(name, "canaries", game.p_value(), certified, game.claim.epsilon, math.nan, "", GAME_LEVEL),)


def as_trainer(planted: PrivateStep | Trainer) -> Trainer:
    """Steps take a model, a training, a number and sequences; trainers all but the number."""
    return planted if len(inspect.signature(planted).parameters) == 3 else stepwise(planted)


def audit(planted: PrivateStep | Trainer, key: bytes, mechanism: Mechanism | None = None) -> white_box.TrainerAudit:
    """`heldin white-box --trainings 2` with 100 canaries, as short as an audit can be."""
    trainer, trained = as_trainer(planted), mechanism or sampled()
    return white_box.audit_trainer(trained, _keys(key), canaries=_AUDITED, trainer=trainer, effort=1)


@functools.cache
def stage() -> Stage:
    """Of a white-box audit."""
    mechanism = sampled()
    return set_stage(mechanism, _AUDITED, quiet=quiet_places(mechanism.steps, 2))


def section_checks(section: str, planted: PrivateStep | Trainer, key: bytes) -> tuple[Check, ...]:
    """One part of a white-box audit."""
    trainer = as_trainer(planted)
    if section != TRAININGS:
        return SECTIONS[section](stage(), trainer, keyed_digest(key, "section", section), 1)
    claim, _ = claim_of(sampled())
    seen = [observe(stage(), each, trainer) for each in _keys(key)]
    return tuple(white_box.training_checks(seen, claim.ceiling.auroc))


@functools.cache
def section_of_the_correct(section: str) -> tuple[Check, ...]:
    """What one part says of heldin's own step."""
    return section_checks(section, private_gradient, KEY)


def section_of(name: str) -> str:
    """The part that has the check whose name begins so; parts after it, of which the last takes longest, do not run."""
    parts = (TRAININGS, *SECTIONS)
    return next(part for part in parts if any(c.name.startswith(name) for c in section_of_the_correct(part)))


def part_of(name: str) -> Part:
    """The part of the checks of several processes that has the check whose name begins so."""
    what = name.removeprefix(PROCESSES)
    return "texts" if what == "texts" else "draws" if what.startswith("sampling") else "noise"


def low_clip_norm() -> float:
    """Below the gradient of every unit of the stage."""
    return clip_norms(stage(), seed_key(0))[0]


def process_checks(wanted: Sequence[tuple[Trainer, Part, bytes]]) -> list[tuple[Check, ...]]:
    """The checks of each trainer and part under a key, all run by the same two processes one after the other."""
    low = low_clip_norm()
    work = [jobs(part, stage(), trainer, key, low) for trainer, part, key in wanted]
    seen = iter(together([job for its in work for job in its]))
    return [
        checks_of_part(part, stage(), [next(seen) for _ in its]) for (_, part, _), its in zip(wanted, work, strict=True)
    ]


def corpus_checks(corpus: Corpus) -> tuple[Check, ...]:
    """`heldin corpus stats`: records whose text stands under another user as well, known aliases merged first."""
    with TemporaryDirectory() as folder:
        path, names = Path(folder) / "letters.jsonl", Path(folder) / "aliases.json"
        path.write_text("".join(json.dumps({"user": u, "text": t}) + "\n" for u, t in corpus.letters), encoding="utf-8")
        names.write_text(json.dumps({person: [alias] for person, alias in corpus.aliases}), encoding="utf-8")
        store = build_store(Json(path), Path(folder) / "cache", aliases=load_aliases(names))
        across = corpus_statistics(store).duplicates_across_users
    return (exact(TWO_NAMES, "unlike units", across, 0.0, "a text under two names"),)


def checks_of(name: str, planted: PrivateStep | Trainer | Corpus, key: bytes) -> tuple[Check, ...]:
    """Run what has the check whose name begins so."""
    if name == TWO_NAMES:
        return corpus_checks(planted)
    if name in GAMES:
        return game_checks(name, game_of(name, planted, key))
    if name.startswith(PROCESSES):
        return process_checks([(as_trainer(planted), part_of(name), key)])[0]
    return section_checks(section_of(name), planted, key)


def the_check(name: str, checks: Sequence[Check]) -> Check:
    """The one of that name; where several begin so, the first."""
    return next(check for check in checks if check.name.startswith(name))


def _keys(key: bytes) -> list[bytes]:
    return [keyed_digest(key, "training", str(i)) for i in range(2)]


def _beyond_expectation(gains: Array) -> Array:
    """What a user's gain is above the line through all users' gains against those of the auditor's own model.

    Texts gain from others' training too, each by its own amount; that model, trained on the whole pool alike, knows it.
    """
    expected = _expected_gains()
    return gains - np.polynomial.Polynomial.fit(expected, gains, 1)(expected)


@functools.cache
def _expected_gains() -> Array:
    everyone = np.ones(CANARIES, dtype=np.bool_)
    base, model = base_model(), base_model()
    by_sgd(noise_times(0.0))(model, training_of(seed_key(0), everyone), sequences_of(everyone))
    return _losses(base) - _losses(model)


def _game(scores: Array, member: NDArray[np.bool_]) -> Game:
    return Game(LabelledScores(scores, member), _claim())


@functools.cache
def _claim() -> Claim:
    return mechanism_claim(claimed())


def coins_of(key: bytes) -> NDArray[np.bool_]:
    return np.array([fair_coin(key, "coin", f"user {u}") for u in range(CANARIES)])


def base_model() -> LanguageModel:
    """A GPT-Neo of random weights; its tokens are the end of a text, 0, and one for each user of the pool."""
    tokenizer = _tokenizer()
    shape = TinyModel(vocabulary=CANARIES + 1, context=_LONGEST + 1, hidden=64, layers=1, heads=2, window=_LONGEST)
    return LanguageModel(new_tiny_model(shape, tokenizer, seed=0), tokenizer, "planted bugs", "planted bugs")


@functools.cache
def _tokenizer() -> PreTrainedTokenizerFast:
    tokenizer = train_tokenizer([letter.text for letter in generate(SyntheticCorpus(users=40, seed=0))], CANARIES + 1)
    assert len(tokenizer) == CANARIES + 1
    return tokenizer


def training_of(key: bytes, member: NDArray[np.bool_]) -> PrivateTraining:
    users = [f"user {u}" for u in np.flatnonzero(member) for _ in range(RECORDS)]
    ids = [f"record {i}" for i in range(len(users))]
    records = PrivateRecords(ids, users, [_LONGEST] * len(users))
    return plan_private_training(claimed(), key, records, NoiseGenerator.PHILOX, micro_records=2 * CANARIES)


def sequences_of(member: NDArray[np.bool_]) -> list[Tokens]:
    return tokens([0] + [int(u) + 1] * (4 + i % 8) for u in np.flatnonzero(member) for i in range(RECORDS))


def _losses(lm: LanguageModel) -> Array:
    """Of a text of each user of the pool that nobody trained on, (m,)."""
    batch = collate(tokens([0] + [u + 1] * _LONGEST for u in range(CANARIES)), torch.device("cpu"))
    with torch.no_grad():
        return np.asarray(LANGUAGE_MODELLING.losses(lm.model.eval(), batch).double().numpy())
