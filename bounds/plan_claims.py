"""Claims that the accountant computes: the curve of a plan, or of a mechanism that a person states."""

import dataclasses
import functools
import math
from dataclasses import dataclass, replace
from pathlib import Path

from heldin.base.arguments import number_in, whole_number_in
from heldin.base.errors import InputError
from heldin.bounds import verdict
from heldin.bounds.noise_family import NoiseFamily
from heldin.bounds.one_run import InverseRoc, curve_inverse
from heldin.bounds.verdict import Claim, parse_claim
from heldin.defenses.accounting import guarantees as accounting
from heldin.defenses.accounting.events import Event, PoissonGaussian
from heldin.defenses.accounting.guarantees import ceiling_of
from heldin.defenses.guarantee import Guarantee
from heldin.defenses.mechanism import Mechanism
from heldin.defenses.plan_file import read_plan
from heldin.words.evidence import ClaimLabel

UNITS = ("user", "example")


@dataclass(frozen=True)
class UnitClaim:
    """A claim and its unit.

    Attributes:
        unit: "user", or "example": one training example.
        claim: the guarantee for the unit.
        event: one step of the mechanism, if the claim states a mechanism instead of an epsilon.
    """

    unit: str
    claim: Claim
    event: PoissonGaussian | None = None
    steps: int = 0

    @property
    def of_examples(self) -> bool:
        """Whether the claim is about single examples, and not about users."""
        return self.unit == "example"

    def of_group(self, examples: int) -> Claim | None:
        """Return the claim about users with at most ``examples`` examples; None if only an epsilon is stated.

        The curve is from Charles et al. (2024), Theorem 1: a separate coin samples each example.
        """
        if not self.of_examples or self.event is None:
            return None
        event = replace(self.event, group_size=examples)
        claim = _claim(event, accounting.epsilon(event, self.steps, self.claim.delta), self.steps, self.claim.delta)
        label = ClaimLabel.OF_ONE_EXAMPLE if examples == 1 else ClaimLabel.OF_EXAMPLES
        return replace(claim, label=label(claim=claim.label, examples=examples))


def parse_claim_of(text: str) -> UnitClaim:
    """Read a claim such as "epsilon=8,delta=1e-6,unit=user".

    The other form, "noise_multiplier=1.2,sampling_rate=0.01,steps=800,delta=1e-6,unit=example", is the accountant's
    curve of Poisson-sampled DP-SGD. The unit is user or example.

    Raises InputError for any other form, because a claim about single examples implies nothing finite about users who
    have several.
    """
    pairs = [(name.strip(), value.strip()) for name, _, value in (part.partition("=") for part in text.split(","))]
    fields = dict(pairs)
    unit = fields.pop("unit", None)
    if unit is None and fields:
        raise InputError(f"claim '{text}' has no unit: add ,unit=user (people) or ,unit=example (training examples)")
    if unit not in UNITS or len(pairs) != len(fields) + 1:
        raise InputError(
            f"claim '{text}' is malformed: write epsilon=8,delta=1e-6,unit=user or epsilon=8,delta=1e-6,unit=example"
        )
    if "noise_multiplier" not in fields:
        claim = parse_claim(",".join(f"{name}={value}" for name, value in fields.items()))
        return UnitClaim(
            unit, claim if unit == "user" else replace(claim, label=ClaimLabel.PER_EXAMPLE(claim=claim.label))
        )
    if sorted(fields) != ["delta", "noise_multiplier", "sampling_rate", "steps"]:
        raise InputError(
            f"claim '{text}' is malformed: write"
            f" noise_multiplier=1.2,sampling_rate=0.01,steps=800,delta=1e-6,unit={unit}"
        )
    try:
        noise, rate, delta = (number_in(fields[name]) for name in ("noise_multiplier", "sampling_rate", "delta"))
        steps = whole_number_in(fields["steps"])
    except ValueError:
        raise InputError(
            f"claim '{text}' contains a value that is not a number: give numbers for noise_multiplier,"
            " sampling_rate, steps and delta"
        ) from None
    if noise == 0.0:
        raise InputError(
            f"claim '{text}' has no noise, so there is no guarantee to test: give a noise_multiplier above 0"
        )
    event = PoissonGaussian(noise, rate)
    epsilon = accounting.epsilon(event, steps, delta)
    if not math.isfinite(epsilon):
        raise InputError(
            f"claim '{text}' has an infinite epsilon, so there is no guarantee to test: raise noise_multiplier"
        )
    claim = _claim(event, epsilon, steps, delta)
    label = claim.label if unit == "user" else ClaimLabel.PER_EXAMPLE(claim=claim.label)
    return UnitClaim(unit, replace(claim, label=label), event, steps)


def plan_claim(path: Path) -> Claim:
    """Return the accountant's curve of a plan.json. Raises InputError if the plan has no guarantee for users."""
    return mechanism_claim(read_plan(path), str(path))


def mechanism_claim(mechanism: Mechanism, name: str = "plan") -> Claim:
    """Return the accountant's curve. Raises InputError, naming ``name``, if users have no guarantee."""
    claim = _curve_or_reason(mechanism)
    if isinstance(claim, str):
        raise InputError(f"{name}: {claim}")
    return claim


def claims_of(mechanism: Mechanism) -> list[Claim]:
    """Return the claims for a run's audit: the accountant's curve of the plan if users have a guarantee."""
    claim = _curve_or_reason(mechanism)
    return [] if isinstance(claim, str) else [claim]


def exposed_claims(mechanism: Mechanism, exposed: int) -> list[Claim]:
    """Return claims about people whom up to ``exposed`` records name or have as author; none without a guarantee."""
    promise = mechanism.guarantee()
    event = mechanism.exposed_event(exposed)
    if not isinstance(promise, Guarantee) or event is None:
        return []
    return [_claim(event, mechanism.epsilon_at(exposed), mechanism.steps, promise.delta)]


def _claim(event: Event, epsilon: float, steps: int, delta: float) -> Claim:
    # The whole curve, not its one (epsilon, delta): attackers under it are much weaker than the pair alone allows.
    ceiling = ceiling_of(event, steps, delta)
    return verdict.curve_claim(ceiling, epsilon, delta, noise_family(event, steps, delta))


def _curve_or_reason(mechanism: Mechanism) -> Claim | str:
    """Return the accountant's curve as a claim, or the reason why users have none."""
    promise = mechanism.guarantee()
    if not isinstance(promise, Guarantee):
        return f"{promise.label}. There is no guarantee to test: state an epsilon with --claim instead"
    # Nothing caps a user's records here, and so nothing bounds the user's curve (docs/theory.md#poisson-accounting).
    event = mechanism.user_event
    if event is None:
        protected = "single examples" if mechanism.level.protects_records else "records without a cap on a user's"
        return (
            f"protects {protected}, and gives no finite epsilon for a user: state a user's epsilon with --claim instead"
        )
    # Of a user alone, not of a user and an entity together.
    alone = promise.exposure.user_epsilon if promise.exposure else None
    return _claim(event, promise.epsilon if alone is None else alone, mechanism.rounds, promise.delta)


def noise_family(event: Event, steps: int, delta: float) -> NoiseFamily | None:
    """Return the run at any noise multiplier; None for a hard cap or a filter.

    Args:
        event: one step, for a user.
        steps: number of steps T.
        delta: delta of the guarantee, as in ``ceiling_of``.
    """
    # A hard cap's curves would take long, one per noise multiplier; the filter has only an (epsilon, delta).
    if not isinstance(event, PoissonGaussian) or event.noise_multiplier == 0.0:
        return None

    # A curve is a run of the accountant, and every game of the search asks for the same ones.
    @functools.cache
    def inverse(noise: float) -> InverseRoc:
        # Everything but the noise as planned: the condition on which the whole family rests.
        at_noise = dataclasses.replace(event, noise_multiplier=noise)
        return curve_inverse(ceiling_of(at_noise, steps, delta))

    def epsilon(noise: float, at: float) -> float:
        return accounting.epsilon(dataclasses.replace(event, noise_multiplier=noise), steps, at)

    return NoiseFamily(event.noise_multiplier, inverse, epsilon)
