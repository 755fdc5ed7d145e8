"""The checks that catch planted bugs: on released models, in the white-box audit, against an oracle, on a corpus.

All give `Check`s of the white-box audit: a p-value (0 or 1 where nothing is random), what was measured, what is stated.
A game is an audit end to end: fair coins, a real training, scores, the verdict of `audit.bound_scores`; its p-value is
the smallest level at which that verdict still rejects the accountant's curve.
"""

import functools
import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import PreTrainedTokenizerFast

from audit.bound_scores import BoundResult, evaluate, mechanism_claim
from audit.labelled import LabelledScores
from audit.verdict import Assignment, Claim, Design, Standing, rejects
from audit.white_box import engine as white_box
from audit.white_box.canaries import Array, set_stage
from audit.white_box.checks import Check
from audit.white_box.power import trainer_mechanism
from audit.white_box.trainers import PrivateStep, Trainer, stepwise
from corpus.aliases import load_aliases
from corpus.build import build_store
from corpus.coins import fair_coin, keyed_digest, seed_key
from corpus.statistics import corpus_statistics
from corpus.synthetic import SyntheticCorpus, generate
from corpus.text_files import JsonLines
from defenses.choices import FlatClip, NoiseGenerator, PoissonSampler
from defenses.mechanism import Mechanism
from finetune.batches import collate, record_losses
from finetune.units import Gradients, PrivateRecords, PrivateTraining, plan_private_training
from models.loading import LanguageModel
from models.shape import TinyModel
from models.tiny import new_tiny_model, train_tokenizer
from tests.oracles.private_step import naive_private_gradient
from tests.planted_bugs.trainers import by_sgd, changed, noise_times

RELEASED = "one-run test of the released model"
TWO_RELEASED = "one-run test of two released models"
WEIGHTS = "one-run test of the released weights"
ORACLE = "distance from one backward per unit"
TWO_NAMES = "texts that stand under two names"
EXACT = ("clip", "divisor", "sensitivity", "sampling: furthest", ORACLE, TWO_NAMES)  # nothing is random in these

DELTA = 1e-5
CANARIES = 300  # users, of whom each writes one token over and over
RECORDS = 16  # of each, of 4 to 19 tokens; the text that the attacker has is longer
STEPS = 2
GAME_LEVEL = 0.05  # of a verdict
AUDIT_LEVEL = 1e-3 / 25  # of one of the audit's checks: its alarm level over more checks than it has
_LONGEST = 20
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

    def result(self) -> BoundResult:
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
def sampled() -> Mechanism:
    """Epsilon 4 for users who enter each step with probability 0.2: for the white-box audit."""
    sampler = PoissonSampler(rate=0.2)
    return trainer_mechanism("uls", sampler, steps=5, delta=DELTA, group_size=4, target_epsilon=4.0)


def released(trainer: Trainer, key: bytes) -> Game:
    """Black-box: how much likelier is a user's fresh text under the released model than under the base model?"""
    member = _coins(key)
    base, model = _base(), _base()
    trainer(model, _training(keyed_digest(key, "run", ""), member), _sequences(member))
    return _game(_beyond_expectation(_losses(base) - _losses(model)), member)


def two_released(trainer: Trainer, key: bytes) -> Game:
    """Black-box, with a second model at hand: a variant trained on nobody of the pool, under a key of its own.

    Under two keys the second model tells nothing of the coins, so that the claim for the first holds for both.
    """
    member, nobody = _coins(key), np.zeros(CANARIES, dtype=np.bool_)
    model, other = _base(), _base()
    trainer(model, _training(keyed_digest(key, "run", "with"), member), _sequences(member))
    trainer(other, _training(keyed_digest(key, "run", "without"), nobody), _sequences(member))
    return _game(_beyond_expectation(_losses(other) - _losses(model)), member)


def released_weights(trainer: Trainer, key: bytes) -> Game:
    """Gradient canaries, and an auditor who sees the final weights only: how far did each one's coordinate move?"""
    stage = set_stage(claimed(), CANARIES, quiet=64)
    member = stage.coins(key)
    base, model = stage.model(), stage.model()
    trainer(model, stage.training(key, member), stage.sequences)
    assert stage.canaries.coordinates is not None
    return _game(-np.abs(_flat(model) - _flat(base))[stage.canaries.coordinates], member)


GAMES = {RELEASED: released, TWO_RELEASED: two_released, WEIGHTS: released_weights}


def game_checks(name: str, trainer: Trainer, key: bytes) -> tuple[Check, ...]:
    """p-value of the verdict, the certified epsilon, and the claimed one."""
    game = GAMES[name](trainer, key)
    certified = max(b.epsilon_lower for b in game.result().bounds if b.standing is Standing.CERTIFIED)
    return (Check(name, game.p_value(), certified, game.claim.epsilon),)


def audit(step: PrivateStep, key: bytes) -> white_box.TrainerAudit:
    """`heldin audit-trainer --seeds 2` with 100 canaries."""
    keys = [keyed_digest(key, "training", str(i)) for i in range(2)]
    return white_box.audit_trainer(sampled(), keys, canaries=100, trainer=stepwise(step))


def oracle_checks(step: PrivateStep, key: bytes) -> tuple[Check, ...]:
    """One step without noise and with everybody, against tests/oracles/private_step.py."""
    stage = set_stage(sampled(), 2, quiet=64)
    mechanism = changed(sampled(), noise_multiplier=0.0, steps=1, sampler=PoissonSampler(rate=1.0))
    training = plan_private_training(mechanism, key, stage.records, NoiseGenerator.PHILOX)
    expected = naive_private_gradient(stage.model(), training, 0, stage.sequences)
    seen: dict[str, torch.Tensor] = {}

    def watch(step: int, gradients: Gradients) -> None:
        seen.update({name: g.detach().clone() for name, g in gradients.items()})

    stepwise(step)(stage.model(), replace(training, watch=watch), stage.sequences)
    apart, whole = (_norm([seen[n] - g for n, g in expected.items()]), _norm(expected.values()))
    return (Check(ORACLE, float(apart <= 1e-3 * whole), apart / whole, 0.0),)


def corpus_checks(corpus: Corpus) -> tuple[Check, ...]:
    """`heldin corpus stats`: records whose text stands under another user as well, known aliases merged first."""
    with TemporaryDirectory() as folder:
        path, names = Path(folder) / "letters.jsonl", Path(folder) / "aliases.json"
        path.write_text("".join(json.dumps({"user": u, "text": t}) + "\n" for u, t in corpus.letters), encoding="utf-8")
        names.write_text(json.dumps({person: [alias] for person, alias in corpus.aliases}), encoding="utf-8")
        store = build_store(JsonLines(path), Path(folder) / "cache", aliases=load_aliases(names))
        across = corpus_statistics(store).duplicates_across_users
    return (Check(TWO_NAMES, float(across == 0), across, 0.0),)


def checks_of(name: str, planted: PrivateStep | Trainer | Corpus, key: bytes) -> tuple[Check, ...]:
    """Run the check whose name begins so on a step (on a `Trainer` for the weights, on a corpus for names)."""
    if name == TWO_NAMES:
        return corpus_checks(planted)
    if name == ORACLE:
        return oracle_checks(planted, key)
    if name == WEIGHTS:
        return game_checks(name, planted, key)
    if name in GAMES:
        return game_checks(name, by_sgd(planted), key)
    return audit(planted, key).checks


def the_check(name: str, checks: Sequence[Check]) -> Check:
    """The one of that name; where several begin so, the first."""
    return next(check for check in checks if check.name.startswith(name))


def level_of(name: str) -> float:
    """Below which a check has caught what it was run on."""
    return GAME_LEVEL if name in GAMES else AUDIT_LEVEL


def _beyond_expectation(gains: Array) -> Array:
    """What a user's gain is above the line through all users' gains against those of the auditor's own model.

    Texts gain from others' training too, each by its own amount; that model, trained on the whole pool alike, knows it.
    """
    expected = _expected_gains()
    return gains - np.polynomial.Polynomial.fit(expected, gains, 1)(expected)


@functools.cache
def _expected_gains() -> Array:
    everyone = np.ones(CANARIES, dtype=np.bool_)
    base, model = _base(), _base()
    by_sgd(noise_times(0.0))(model, _training(seed_key(0), everyone), _sequences(everyone))
    return _losses(base) - _losses(model)


def _game(scores: Array, member: NDArray[np.bool_]) -> Game:
    return Game(LabelledScores(scores, member), _claim())


@functools.cache
def _claim() -> Claim:
    return mechanism_claim(claimed())


def _coins(key: bytes) -> NDArray[np.bool_]:
    return np.array([fair_coin(key, "coin", f"user {u}") for u in range(CANARIES)])


def _base() -> LanguageModel:
    """A GPT-Neo of random weights; its tokens are the end of a text, 0, and one for each user of the pool."""
    tokenizer = _tokenizer()
    shape = TinyModel(vocabulary=CANARIES + 1, context=_LONGEST + 1, hidden=64, layers=1, heads=2, window=_LONGEST)
    return LanguageModel(new_tiny_model(shape, tokenizer, seed=0), tokenizer, "planted bugs", "planted bugs")


@functools.cache
def _tokenizer() -> PreTrainedTokenizerFast:
    tokenizer = train_tokenizer([letter.text for letter in generate(SyntheticCorpus(users=40, seed=0))], CANARIES + 1)
    assert len(tokenizer) == CANARIES + 1
    return tokenizer


def _training(key: bytes, member: NDArray[np.bool_]) -> PrivateTraining:
    users = [f"user {u}" for u in np.flatnonzero(member) for _ in range(RECORDS)]
    ids = [f"record {i}" for i in range(len(users))]
    records = PrivateRecords(ids, users, [_LONGEST] * len(users))
    return plan_private_training(claimed(), key, records, NoiseGenerator.PHILOX, micro_records=2 * CANARIES)


def _sequences(member: NDArray[np.bool_]) -> list[list[int]]:
    return [[0] + [int(u) + 1] * (4 + i) for u in np.flatnonzero(member) for i in range(RECORDS)]


def _losses(lm: LanguageModel) -> Array:
    """Of a text of each user of the pool that nobody trained on, (m,)."""
    inputs, targets = collate([[0] + [u + 1] * _LONGEST for u in range(CANARIES)], torch.device("cpu"))
    with torch.no_grad():
        return np.asarray(record_losses(lm.model.eval(), inputs, targets).double().numpy())


def _flat(lm: LanguageModel) -> Array:
    return np.concatenate([p.detach().double().numpy().ravel() for p in lm.model.parameters()])


def _norm(tensors: Iterable[torch.Tensor]) -> float:
    return math.sqrt(sum(float(t.double().square().sum()) for t in tensors))
