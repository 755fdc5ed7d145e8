"""The mechanism as data: what it promises, and what voids it."""

import math

import pytest
from dp_accounting import dp_event
from dp_accounting.pld import PLDAccountant
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from heldin.base.errors import InputError
from heldin.defenses.choices import (
    BatchClip,
    CappedPoissonSampler,
    DataStep,
    NoClip,
    NormalisedClip,
    PoissonSampler,
    RealisedCohortDivisor,
    ShuffledSampler,
)
from heldin.defenses.guarantee import Guarantee, NoGuarantee
from heldin.defenses.mechanism import Mechanism
from heldin.words.guarantee import GuaranteeText, NoGuaranteeReason
from tests.made_mechanisms import els, example, shuffled, uls


@pytest.fixture(autouse=True)
def _private_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("HELDIN_CACHE_DIR", str(tmp_path / "cache"))


def test_the_three_methods_have_their_epsilon():
    for mechanism, unit in ((uls(), "user"), (els(), "user"), (example(), "example")):
        promise = mechanism.guarantee()
        assert isinstance(promise, Guarantee)
        assert promise.epsilon == mechanism.epsilon() == pytest.approx(4.0, rel=1e-3)
        assert (promise.unit, promise.delta, promise.adjacency) == (unit, 1e-6, "add_remove")
        assert promise.label.startswith(f"epsilon 4, delta 1e-06 per {unit} (add/remove)")
    assert els().epsilon() > els(group_size=1).epsilon()
    assert uls(group_size=1).epsilon() == uls(group_size=99).epsilon()


@pytest.mark.parametrize("mechanism", [uls(), els(group_size=2), example()], ids=["uls", "els", "example"])
def test_the_dp_event_is_what_is_accounted(mechanism):
    accountant = PLDAccountant(value_discretization_interval=2e-4)
    accountant.compose(mechanism.dp_event)
    assert mechanism.epsilon() == pytest.approx(accountant.get_epsilon(1e-6), rel=2e-3)


def test_capped_event():
    mechanism = uls(sampler=CappedPoissonSampler.of(population=1024, cohort=16, cap=48))
    assert mechanism.epsilon() == pytest.approx(4.0, rel=1e-3)
    assert mechanism.dp_event.event.truncated_batch_size == 48


VOIDS = {
    "no noise": ({"noise_multiplier": 0.0}, "noise is missing"),
    "no clipping": ({"clip": NoClip()}, "clipping is missing"),
    "batch clipping": ({"clip": BatchClip(norm=1.0)}, "the batch is clipped as one"),
    "divisor": ({"divisor": RealisedCohortDivisor()}, "the divisor is the realised cohort"),
    "validation": ({"checkpoint": "protected_validation"}, "chosen by validation on protected users"),
    "dedup": (
        {"data_steps": (DataStep(name="dedup across users", user_local=False, record_local=False),)},
        r"preprocessing looks across users \(dedup across users\)",
    ),
    "base model": ({"base_model_saw_protected": True}, "the base model was trained on protected users"),
    "tokenizer": ({"tokenizer_saw_protected": True}, "the tokenizer was trained on protected users"),
    "perplexity": (
        {"record_selection": "lowest_perplexity", "base_model_saw_protected": True},
        "records are selected by the perplexity of a base model that saw protected users",
    ),
}


@pytest.mark.parametrize("name", VOIDS)
def test_everything_that_voids_a_guarantee_is_labelled(name):
    changes, reason = VOIDS[name]
    mechanism = uls(**changes)
    promise = mechanism.guarantee()
    assert isinstance(promise, NoGuarantee)
    assert promise.label.startswith("no DP guarantee: ")
    with pytest.raises(AssertionError, match=reason):
        raise AssertionError(promise.label)
    assert mechanism.epsilon() == math.inf
    assert isinstance(mechanism.dp_event, dp_event.NonPrivateDpEvent)
    assert promise.fallback is None


@settings(max_examples=60, deadline=None)
@given(chosen=st.sets(st.sampled_from(sorted(VOIDS)), max_size=6), shuffle=st.booleans())
def test_all_reasons_are_collected_and_none_is_invented(chosen, shuffle):
    changes = {}
    for name in sorted(chosen - {"no clipping"}):
        changes |= VOIDS[name][0]
    mechanism = (shuffled if shuffle else uls)(noise_multiplier=changes.pop("noise_multiplier", 50.0), **changes)
    promise = mechanism.guarantee()
    realised = "divisor" in chosen and not shuffle
    expected = len(chosen - {"no clipping", "divisor", "perplexity", "base model"}) + realised + shuffle
    expected += ("perplexity" in chosen) + bool({"perplexity", "base model"} & chosen)
    assert isinstance(promise, Guarantee) == (expected == 0)
    assert len(mechanism.reasons()) == expected


def test_plain_run():
    plain = Mechanism(
        unit="none",
        sampled="user",
        sampler=ShuffledSampler(population=10, cohort=2),
        clip=NoClip(),
        noise_multiplier=0.0,
        steps=5,
        divisor=RealisedCohortDivisor(),
    )
    promise = plain.guarantee()
    assert isinstance(promise, NoGuarantee)
    assert promise.reasons[0].states(NoGuaranteeReason.NO_UNIT)
    assert promise.statement.states(GuaranteeText.NO_PROTECTION)
    assert promise.assumed_epsilon is None
    assert plain.epsilon() == math.inf
    assert plain.sensitivity == math.inf


def test_shuffled_is_no_guarantee_but_has_an_honest_fallback():
    promise = shuffled().guarantee()
    assert isinstance(promise, NoGuarantee)
    assert "shuffled" in promise.label
    assert promise.assumed_epsilon == pytest.approx(4.0, rel=1e-3)
    assert promise.fallback is not None
    assert promise.fallback.epsilon == pytest.approx(29.1, rel=2e-3)
    replace = shuffled(adjacency="replace").guarantee()
    assert replace.fallback.epsilon > promise.fallback.epsilon
    assert shuffled(noise_multiplier=4.774).guarantee().fallback.epsilon == pytest.approx(4.0, rel=1e-3)
    grouped = shuffled(sampled="example", group_size=4)
    assert grouped.fallback_event.mu == pytest.approx(4 * shuffled().fallback_event.mu)
    assert shuffled(noise_multiplier=0.0).guarantee().fallback is None
    with pytest.raises(InputError, match="only shuffled cohorts have a fallback"):
        _ = uls().fallback_event


def test_conditions_and_warnings_are_printed_beside_epsilon():
    cap = DataStep(name="cap that refills", user_local=True, record_local=False)
    promise = example(data_steps=(cap,)).guarantee()
    assert "adjacency after preprocessing (cap that refills)" in promise.label
    assert "says nothing finite about a user" in promise.label
    assert "adjacency after preprocessing" not in uls(data_steps=(cap,)).guarantee().label
    assert "epsilon is at the last step" in uls(checkpoint="public_validation").guarantee().label
    assert "ranks records saw no protected user" in uls(record_selection="highest_perplexity").guarantee().label
    zero_out = uls(adjacency="zero_out", divisor=RealisedCohortDivisor()).guarantee()
    assert "null contributions" in zero_out.label
    assert "noise by aes" in uls(noise_generator="aes").guarantee().label
    assert uls().guarantee().cautions == ()
    (warning,) = uls(delta=0.01, sampler=PoissonSampler.of(population=1024, cohort=1)).guarantee().cautions
    assert warning.values["units"] == 1024
    records = PoissonSampler.of(population=10**7, cohort=64)
    assert els(sampler=records).guarantee().cautions == ()
    assert els(sampler=records, protected_units=2_000_000).guarantee().cautions[0].values["units"] == 2_000_000
    few = els(sampler=PoissonSampler.of(population=10, cohort=5), group_size=3, delta=0.5).guarantee()
    assert few.cautions[0].values["units"] == 4  # ten records of at most three a user: four users at least
    assert "record selection: longest" in example(record_selection="longest").guarantee().label


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: uls(noise_multiplier=-1.0), "noise_multiplier: .*greater than or equal to 0, got -1.0"),
        (lambda: uls(steps=10.5), "steps: .*integer"),
        (lambda: uls(group_size=0), "group_size: .*greater than or equal to 1"),
        (lambda: uls(delta=None), "delta is missing"),
        (lambda: uls(delta=1e-12), "below 1e-11"),
        (lambda: uls(delta=1.5), r"outside \(0, 1\)"),
        (lambda: uls(steps=-1, clipp=3), r"steps: .*; unknown key clipp \(did you mean clip\?\)"),
        (lambda: PoissonSampler.of(population=10, cohort=11), "cohort 11 is larger than the population 10"),
        (lambda: shuffled(sampler=ShuffledSampler(population=10, cohort=11)), "cohort 11 is larger"),
        (lambda: uls(sampler=CappedPoissonSampler.of(1024, 16, cap=9)), "cap 9 is below the expected cohort 16"),
        (
            lambda: uls(sampler=CappedPoissonSampler.of(1024, 16, cap=99), steps=40_000, delta=1e-11),
            "delta 1e-11 is too small for 40000 steps with a hard cohort cap",
        ),
        (
            lambda: els(sampler=CappedPoissonSampler.of(1024, 16, cap=99)),
            "a hard cohort cap with group size 32 has no accountant",
        ),
        (lambda: uls(adjacency="replace"), "replace adjacency has no accountant under Poisson"),
        (lambda: shuffled(adjacency="add_remove"), "use zero_out or replace"),
        (lambda: example(sampled="user"), "user sampling has no example-level accountant"),
        (lambda: example(group_size=4), "group size 4 with unit example"),
        (lambda: uls(data_steps=({"name": "x", "user_local": False, "record_local": True},)), "which cannot be"),
        (lambda: uls(sampler={"kind": "poison", "rate": 0.1}), "sampler: .*poison"),
        (
            lambda: uls(clip={"kind": "flat", "norm": 1, "nrom": 2}),
            r"clip.flat: .*unknown key nrom \(did you mean norm\?\)",
        ),
    ],
)
def test_bad_combinations_get_one_line(build, message):
    with pytest.raises(InputError, match=message) as caught:
        build()
    assert "\n" not in str(caught.value)


def test_immutable_and_derived():
    mechanism = uls()
    with pytest.raises(ValidationError, match="frozen"):
        mechanism.steps = 3  # type: ignore[misc]
    assert uls() == mechanism
    assert mechanism.sensitivity == 0.5
    assert uls(clip=NormalisedClip(norm=0.5)).sensitivity == 1.0
    assert uls(clip=NormalisedClip(norm=0.5)).epsilon() == mechanism.epsilon()
    assert (mechanism.members, els().members, example().members) == (1, 32, 1)


def test_a_copy_that_skips_validation_gets_no_guarantee():
    with pytest.raises(InputError, match="replace adjacency has no accountant"):
        uls().model_copy(update={"adjacency": "replace"}).guarantee()
    assert uls().model_copy(update={"clip": NoClip()}).epsilon() == math.inf


def test_calibrated():
    mechanism = uls().calibrated(1.0)
    assert mechanism.noise_multiplier == pytest.approx(2.26350, rel=2e-3)
    assert mechanism.target_epsilon == 1.0
    assert mechanism.epsilon() <= 1.0
    assert mechanism.sampler == uls().sampler
    with pytest.raises(InputError, match="nothing to calibrate to"):
        uls(unit="none", delta=None).calibrated(1.0)
