"""Checks of a mechanism: its plan follows only from the config, and its step does what the plan states.

The steps are short, on a tiny model, with little randomness. ``heldin white-box`` also checks draws, whole trainings
and the coins of canary users.
"""

import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy import stats
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM, PreTrainedModel

from heldin.base.errors import InputError
from heldin.defenses.choices import NoiseGenerator
from heldin.defenses.gradients.model_parts import trainable
from heldin.defenses.mechanism import Mechanism
from heldin.defenses.mechanisms.contract import DefenseConfig, Given
from heldin.defenses.mechanisms.declared import require_declared
from heldin.defenses.samplers import PoissonSampler, Sampler
from heldin.finetune.declared import declared_defense
from heldin.finetune.passes import Passes
from heldin.finetune.sampled_units import SampledUnit
from heldin.finetune.training import holding_of
from heldin.finetune.units import PrivateRecords, PrivateTraining, plan_private_training
from heldin.models.attention import use_exact_attention
from heldin.models.tokens import Tokens
from heldin.testing.problems import require, tried, watched_files

LEVEL = 1e-9  # probability that a right step fails one of the tests of noise
_GIVEN = Given(plain_steps=7, batch_size=4, clip_norm=1.0, checkpoint="last_step", data_steps=(), assumptions=())
_VOCABULARY, _CONTEXT, _USERS = 53, 16, 2
_STEPS = 5
# How much memory there is, and modules that are imported when they are first needed.
_OF_SYSTEM = ("/proc/", "/sys/", "/dev/", sys.base_prefix, sys.prefix, str(Path(torch.__file__).parents[1]))
_LARGE = 50.0  # norm of a canary's gradient, in clip norms
_NEAR = 1e-3  # relative error of clipped gradients that rounding explains


@dataclass(frozen=True)
class _Stage:
    """The inputs for testing a step: a plan that draws every unit, texts, and an auditor's gradients.

    Attributes:
        drawing: sampler with the plan's own groups of units that draws every unit.
    """

    mechanism: Mechanism
    defense: DefenseConfig
    sequences: Sequence[Tokens]
    records: PrivateRecords
    model: PreTrainedModel
    drawing: Sampler

    def release(
        self, *, noise: float, units: Sequence[int] | None = None, canaries: Sequence[float] = (), **changes: Any
    ) -> np.ndarray[Any, np.dtype[np.float64]]:
        """Return the release of a step, in clip norms of the sum, shape (d,).

        Args:
            noise: noise multiplier.
            units: numbers of the units to use; None: all units.
            canaries: norms of the auditor's gradients, in clip norms. All are along one direction.
            changes: ``step``, ``key``, ``most`` (maximum number of records per pass), and ``sampler``.
        """
        key = bytes([changes.get("key", 7)]) * 32
        sampler = changes.get("sampler", self.mechanism.sampler)
        plan = Mechanism(
            **{**dict(self.mechanism), "noise_multiplier": noise, "target_epsilon": None, "sampler": sampler}
        )
        training = plan_private_training(
            plan,
            key,
            self.records,
            self.defense.noise_generator() or NoiseGenerator.PHILOX,
            chunk=_CONTEXT,
            exactly=self.defense.repeats_records,
        )
        real = [training.units[i] for i in range(len(training.units)) if units is None or i in units]
        made = [SampledUnit(f"canary {i}", (), i) for i in range(len(canaries))]
        training = replace(training, units=[*real, *made], canaries=_Along(self, canaries))
        self._step(training, changes.get("step", 0), changes.get("most", 64))
        assert plan.divisor.constant is not None
        parts = [torch.zeros_like(p) if p.grad is None else p.grad for p in trainable(self.model).values()]
        flat = torch.cat([part.detach().reshape(-1).double() for part in parts])
        return np.asarray(flat.numpy() * plan.divisor.constant / plan.sensitivity)

    def white_noise(
        self, *, noise: float, units: Sequence[int] | None = None, **changes: Any
    ) -> np.ndarray[Any, np.dtype[np.float64]]:
        """Return the fresh noise of a step, in clip norms of the sum, shape (d,), without noise that other steps share.

        Arguments are the same as for ``release``.
        """
        step, sampler = changes.pop("step", 0), self.drawing
        parts = []
        for back, coefficient in enumerate(sampler.coefficients[: step + 1]):
            given = {**changes, "units": units, "step": step - back, "sampler": sampler}
            quiet = self.release(noise=0.0, **given) if units is None else 0.0
            parts.append(coefficient * (self.release(noise=noise, **given) - quiet))
        return np.asarray(sum(parts))

    def _step(self, training: PrivateTraining, step: int, most: int) -> None:
        # A step that adds to ``.grad`` starts from nothing, as in the loop.
        self.model.zero_grad(set_to_none=True)
        holding_of(None, training).private_gradient(self.model, training, step, self.sequences, Passes(most))


@dataclass(frozen=True)
class _Along:
    """Gradients of an auditor's canaries, all along one direction."""

    stage: _Stage
    norms: Sequence[float]

    def gradient(self, number: int) -> Mapping[str, torch.Tensor]:
        """Return a gradient of this many clip norms, on the first coordinates of each parameter."""
        named = trainable(self.stage.model)
        norm = self.norms[number] * self.stage.mechanism.clip.of_units().norm / math.sqrt(len(named))
        made = {name: torch.zeros(p.shape) for name, p in named.items()}
        for tensor in made.values():
            tensor.view(-1)[0] = norm
        return made


def check_mechanism(defense: DefenseConfig) -> None:
    """Check that a mechanism's plan follows only from the config, and that its step does what the plan states.

    The plan depends on no private number. The step makes a finite gradient, and does not change the weights. The step
    depends only on its key and number, and opens no file. It clips each unit separately, however records are divided
    into passes, and divides by the plan's constant. It adds the stated noise once. The noise is new in every step,
    including steps without a unit.

    For a mechanism without noise, only the plan is checked. The same applies to a mechanism that uses all users or
    named entities at once, because no single step can show its effect.

    Args:
        defense: defense with the settings to test.

    Raises:
        AssertionError: lists all faults, one per line.
    """
    require(broken_promises(defense), f"mechanism '{defense.kind}'")


def broken_promises(defense: DefenseConfig) -> list[str]:
    """Return a line for each fault of a mechanism."""
    problems: list[str] = []
    plan = tried(lambda: _plan(defense, _GIVEN), "its plan", problems)
    if plan is None:
        return problems
    if not plan.protects:
        return [*problems, *(["it is private, but its plan protects nobody"] if defense.is_private else [])]
    other = _plan(defense, replace(_GIVEN, plain_steps=70, batch_size=40, clip_norm=0.3))
    if other != plan:
        problems.append("its plan depends on the number of records, or on measurements of a plain run on them")
    promise = tried(plan.guarantee, "its guarantee", problems)
    if promise is None or plan.clip.unit_norm is None or plan.two_level is not None:
        return problems
    try:
        stage = _stage(defense, plan)
    except InputError as error:
        return [*problems, f"no tiny model can test it: {error}"]
    tried(lambda: problems.extend(_wrong_steps(stage)), "its step", problems)
    return problems


def _plan(defense: DefenseConfig, given: Given) -> Mechanism:
    plan = Mechanism(**defense.plan(given))
    require_declared(defense, plan)
    return plan if defense.calibrated_to is None else plan.calibrated(defense.calibrated_to)


def _stage(defense: DefenseConfig, plan: Mechanism) -> _Stage:
    generator = np.random.default_rng(3)
    texts = [[1, *generator.integers(2, _VOCABULARY, 5 + i % 4).tolist()] for i in range(2 * _USERS)]
    sequences = [Tokens(text) for text in texts]
    records = PrivateRecords(
        ids=[f"record {i}" for i in range(len(texts))],
        users=[f"user {i // 2}" for i in range(len(texts))],
        lengths=[tokens.bearing for tokens in sequences],
        losses=[1.0 + i / 10 for i in range(len(texts))],
    )
    clip = plan.clip.of_units()
    # Of a plan by which everybody takes part in each of few steps, as far as its sampler allows.
    steps = max(_STEPS, plan.sampler.groups)
    everybody = Mechanism(
        **{**dict(plan), "clip": clip.with_norm(0.1), "sampler": PoissonSampler(rate=1.0), "steps": steps}
    )
    return _Stage(everybody, defense, sequences, records, _model(defense), plan.sampler.at_rate(1.0))


def _model(defense: DefenseConfig) -> PreTrainedModel:
    """Return the first tiny model that a mechanism accepts: with tied embeddings and positions, or else without."""
    torch.manual_seed(0)
    drop = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
    ids = {"vocab_size": _VOCABULARY, "bos_token_id": 1, "eos_token_id": 1}
    tied = GPT2LMHeadModel(GPT2Config(n_positions=_CONTEXT, n_embd=16, n_layer=1, n_head=2, **drop, **ids))
    llama = LlamaConfig(
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=_CONTEXT,
        tie_word_embeddings=False,
        **ids,
    )
    refusal = InputError("it refuses every tiny model")
    for model in (tied, LlamaForCausalLM(llama)):
        use_exact_attention(model)
        try:
            defense.require_model(model)
        except InputError as error:
            refusal = error
        else:
            return model.train()
    raise refusal


def _wrong_steps(stage: _Stage) -> list[str]:
    problems: list[str] = []
    before = {name: p.detach().clone() for name, p in stage.model.named_parameters()}
    if stage.mechanism.declared is not None:
        declared_defense(stage.mechanism)  # hashes the package's files, once
    with watched_files() as opened:
        clipped = stage.release(noise=0.0)
    if read := [name for name in opened if not name.startswith(_OF_SYSTEM)]:
        problems.append(f"its step reads '{read[0]}', but may use only its arguments")
    if any(not torch.equal(p.detach(), before[name]) for name, p in stage.model.named_parameters()):
        problems.append("its step changes the weights, which only the optimizer may do")
        stage.model.load_state_dict(before, strict=False)
    if not np.isfinite(clipped).all():
        return [*problems, "its step leaves a gradient that is not finite"]
    if not np.array_equal(clipped, stage.release(noise=0.0)):
        problems.append(
            "its step is not deterministic: without noise, one key and step number give two different gradients"
        )
    if not np.array_equal(stage.release(noise=1.0), stage.release(noise=1.0)):
        problems.append(
            "its step is not deterministic: one key and step number give different noise, which also affects"
            " resumed training runs"
        )
    return [*problems, *_wrong_sums(stage, clipped), *_wrong_noise(stage)]


def _wrong_sums(stage: _Stage, clipped: np.ndarray[Any, np.dtype[np.float64]]) -> list[str]:
    problems: list[str] = []
    nobody = stage.release(noise=0.0, units=[])
    if nobody.any():
        problems.append("a step without a unit releases something other than noise")
    norms = [float(np.linalg.norm(stage.release(noise=0.0, units=[i]))) for i in range(2)]
    if max(norms) > 1.0 + _NEAR:
        problems.append(f"one unit alone adds {max(norms):.3g} clip norms to the sum")
    # A canary of many clip norms adds one, two add two, and opposite ones nothing: each is clipped by itself.
    for canaries, wanted in (((_LARGE,), 1.0), ((_LARGE, _LARGE), 2.0), ((_LARGE, -_LARGE), 0.0), ((0.5,), 0.5)):
        measured = float(np.linalg.norm(stage.release(noise=0.0, units=[], canaries=canaries)))
        if abs(measured - wanted) > 2 * _NEAR * max(1.0, wanted):
            sizes = " and ".join(f"{norm:g}" for norm in canaries)
            problems.append(f"gradients of {sizes} clip norms add {measured:.4g} clip norms to the sum, not {wanted:g}")
    for most in (1, 2):
        again = stage.release(noise=0.0, most=most)
        if float(np.linalg.norm(again - clipped)) > _NEAR * max(1.0, float(np.linalg.norm(clipped))):
            problems.append(f"passes of {most} records give another sum than a single pass")
    return problems


def _wrong_noise(stage: _Stage) -> list[str]:
    stated = stage.mechanism.noise_multiplier
    if stated == 0.0:
        return []
    problems: list[str] = []
    nobody = stage.white_noise(noise=stated, units=[])
    parts = {
        "a step without a unit": nobody,
        "a step of all units": stage.white_noise(noise=stated),
        "a step in passes of one record": stage.white_noise(noise=stated, most=1),
        "a later step": stage.white_noise(noise=stated, units=[], step=_STEPS - 1),
    }
    for where, noise in parts.items():
        # The sum of d squares of standard normal numbers.
        square = float(np.sum((noise / stated) ** 2))
        low, high = (float(stats.chi2.ppf(level, noise.size)) for level in (LEVEL / 2, 1 - LEVEL / 2))
        if not low <= square <= high:
            measured = stated * math.sqrt(square / noise.size)
            problems.append(f"{where} adds noise of multiplier {measured:.4g}, but the plan states {stated:.4g}")
    others = {"another step": stage.white_noise(noise=stated, units=[], step=1)}
    others["another key"] = stage.white_noise(noise=stated, units=[], key=8)
    for where, noise in others.items():
        # The correlation of independent noise is normal with deviation 1 / sqrt(d).
        both = float(nobody @ noise) / max(1e-30, float(np.linalg.norm(nobody) * np.linalg.norm(noise)))
        if abs(both) * math.sqrt(noise.size) > stats.norm.isf(LEVEL / 2):
            problems.append(f"the noise of {where} is not independent (correlation {both:.2g})")
    return problems
