"""The mechanism as data: what it promises, and what voids it."""

import math

import pytest
from dp_accounting import dp_event
from dp_accounting.pld import PLDAccountant
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from heldin.defenses.choices import BatchClip, DataStep, NoClip, NormalisedClip, RealisedCohortDivisor
from heldin.defenses.guarantee import Guarantee, NoGuarantee
from heldin.defenses.mechanism import Mechanism
from heldin.defenses.samplers import CappedPoissonSampler, PoissonSampler, ShuffledSampler
from heldin.words.data_steps import DataStepText
from heldin.words.guarantee import GuaranteeCondition, GuaranteeText, NoGuaranteeReason
from tests.made_mechanisms import els, example, shuffled, uls
from tests.refusals import names, refused
from tests.statements import states, values_of


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
    "no noise": ({"noise_multiplier": 0.0}, NoGuaranteeReason.NO_NOISE()),
    "no clipping": ({"clip": NoClip()}, NoGuaranteeReason.NO_CLIPPING()),
    "batch clipping": ({"clip": BatchClip(norm=1.0)}, NoGuaranteeReason.BATCH_CLIPPED()),
    "divisor": ({"divisor": RealisedCohortDivisor()}, NoGuaranteeReason.REALISED_COHORT()),
    "validation": ({"checkpoint": "protected_validation"}, NoGuaranteeReason.PROTECTED_VALIDATION()),
    "dedup": (
        {
            "data_steps": (
                DataStep(
                    name=DataStepText.DEDUPLICATED_CORPUS(alike=DataStepText.EQUAL()),
                    user_local=False,
                    record_local=False,
                ),
            )
        },
        NoGuaranteeReason.LOOKS_ACROSS_USERS(steps=[DataStepText.DEDUPLICATED_CORPUS(alike=DataStepText.EQUAL())]),
    ),
    "base model": ({"base_model_saw_protected": True}, NoGuaranteeReason.BASE_SAW_PROTECTED()),
    "tokenizer": ({"tokenizer_saw_protected": True}, NoGuaranteeReason.TOKENIZER_SAW_PROTECTED()),
    "perplexity": (
        {"record_selection": "lowest_perplexity", "base_model_saw_protected": True},
        NoGuaranteeReason.SELECTED_BY_PROTECTED(),
    ),
}


@pytest.mark.parametrize("name", VOIDS)
def test_everything_that_voids_a_guarantee_is_labelled(name):
    changes, reason = VOIDS[name]
    mechanism = uls(**changes)
    promise = mechanism.guarantee()
    assert isinstance(promise, NoGuarantee)
    assert promise.statement.states(GuaranteeText.NO_GUARANTEE)
    assert reason in promise.statement.values["reasons"]
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
    assert states(promise.statement, GuaranteeText.ASSUMED, NoGuaranteeReason.SHUFFLED)
    assert promise.assumed_epsilon == pytest.approx(4.0, rel=1e-3)
    assert promise.fallback is not None
    assert promise.fallback.epsilon == pytest.approx(29.1, rel=2e-3)
    replace = shuffled(adjacency="replace").guarantee()
    assert replace.fallback.epsilon > promise.fallback.epsilon
    assert shuffled(noise_multiplier=4.774).guarantee().fallback.epsilon == pytest.approx(4.0, rel=1e-3)
    grouped = shuffled(sampled="example", group_size=4)
    assert grouped.fallback_event.mu == pytest.approx(4 * shuffled().fallback_event.mu)
    assert shuffled(noise_multiplier=0.0).guarantee().fallback is None
    with refused(by="Mechanism.fallback_event"):
        _ = uls().fallback_event


def test_conditions_and_warnings_are_printed_beside_epsilon():
    cap = DataStep(name=DataStepText.CAPPED(records=2, selection="longest"), user_local=True, record_local=False)
    promise = example(data_steps=(cap,)).guarantee()
    assert values_of(promise.statement, GuaranteeCondition.AFTER_PREPROCESSING) == {"steps": [cap.name]}
    assert states(promise.statement, GuaranteeCondition.NOT_OF_USERS)
    assert not states(uls(data_steps=(cap,)).guarantee().statement, GuaranteeCondition.AFTER_PREPROCESSING)


def _outside(user_local):
    name = DataStepText.OF_PACKAGE(kind="mask", package="outside", version="1", code="0")
    return DataStep(name=name, user_local=user_local, record_local=user_local)


def test_the_guarantee_depends_on_what_a_package_declares_of_its_data_step():
    step = _outside(user_local=True)
    declared = uls(data_steps=(step,)).guarantee()
    assert values_of(declared.statement, GuaranteeCondition.DECLARED_LOCAL)["steps"] == [step.name]
    assert "outside" in str(declared.statement)
    assert not states(uls().guarantee().statement, GuaranteeCondition.DECLARED_LOCAL)


def test_a_data_step_of_a_package_that_looks_across_users_voids_the_guarantee():
    step = _outside(user_local=False)
    promise = uls(data_steps=(step,)).guarantee()
    assert isinstance(promise, NoGuarantee)
    assert states(promise.statement, NoGuaranteeReason.LOOKS_ACROSS_USERS)
    assert not states(uls().guarantee().statement, GuaranteeCondition.NOT_OF_USERS)
    for changes, condition in (
        ({"checkpoint": "public_validation"}, GuaranteeCondition.PUBLIC_VALIDATION),
        ({"record_selection": "highest_perplexity"}, GuaranteeCondition.RANKING_MODEL_UNSEEN),
        ({"adjacency": "zero_out", "divisor": RealisedCohortDivisor()}, GuaranteeCondition.NULL_CONTRIBUTIONS),
    ):
        assert states(uls(**changes).guarantee().statement, condition)
        assert not states(uls().guarantee().statement, condition)
    assert values_of(uls(noise_generator="aes").guarantee().statement, GuaranteeCondition.NOISE)["generator"] == "aes"
    assert uls().guarantee().cautions == ()
    (warning,) = uls(delta=0.01, sampler=PoissonSampler.of(population=1024, cohort=1)).guarantee().cautions
    assert warning.values["units"] == 1024
    records = PoissonSampler.of(population=10**7, cohort=64)
    assert els(sampler=records).guarantee().cautions == ()
    assert els(sampler=records, protected_units=2_000_000).guarantee().cautions[0].values["units"] == 2_000_000
    few = els(sampler=PoissonSampler.of(population=10, cohort=5), group_size=3, delta=0.5).guarantee()
    assert few.cautions[0].values["units"] == 4  # ten records of at most three a user: four users at least
    longest = example(record_selection="longest").guarantee().statement
    assert names(values_of(longest, GuaranteeCondition.AFTER_PREPROCESSING)["steps"][0].values["selection"], "longest")


@pytest.mark.parametrize(
    ("build", "by", "naming"),
    [
        (lambda: uls(noise_multiplier=-1.0), "Choice.__init__", ("noise_multiplier", "0", "-1.0")),
        (lambda: uls(steps=10.5), "Choice.__init__", ("steps", "10.5")),
        (lambda: uls(group_size=0), "Choice.__init__", ("group_size", "1")),
        (lambda: uls(delta=None), "Mechanism._check", ("delta", "n^-1.1")),
        (lambda: uls(delta=1e-12), "check_delta", "1e-11"),
        (lambda: uls(delta=1.5), "check_delta", ("1.5", "0", "1")),
        (lambda: uls(steps=-1, clipp=3), "Choice.__init__", ("steps", "-1", "clipp", "clip")),
        (lambda: PoissonSampler.of(population=10, cohort=11), "_rate", ("11", "10")),
        (lambda: shuffled(sampler=ShuffledSampler(population=10, cohort=11)), "_rate", "11"),
        (
            lambda: uls(sampler=CappedPoissonSampler.of(1024, 16, cap=9)),
            "CappedPoissonGaussian.__post_init__",
            ("9", "16"),
        ),
        (
            lambda: uls(sampler=CappedPoissonSampler.of(1024, 16, cap=99), steps=40_000, delta=1e-11),
            "check_rounding",
            ("1e-11", "40000"),
        ),
        (
            lambda: els(sampler=CappedPoissonSampler.of(1024, 16, cap=99)),
            "CappedPoissonSampler.check",
            "32",
        ),
        (lambda: uls(adjacency="replace"), "SamplerKind.check", ("replace", "add_remove")),
        (lambda: shuffled(adjacency="add_remove"), "SamplerKind.check", ("zero_out", "replace")),
        (lambda: example(sampled="user"), "ExampleLevel.check", "user"),
        (lambda: example(group_size=4), "ExampleLevel.check", "4"),
        (
            lambda: uls(data_steps=({"name": DataStepText.MINIMUM(), "user_local": False, "record_local": True},)),
            "DataStep._consistent",
            "minimum number of records",
        ),
        (lambda: uls(sampler={"kind": "poison", "rate": 0.1}), "Choice.__init__", ("sampler", "'poison'")),
        (
            lambda: uls(clip={"kind": "flat", "norm": 1, "nrom": 2}),
            "Choice.__init__",
            ("clip.flat", "nrom", "norm"),
        ),
    ],
)
def test_bad_combinations_get_one_line(build, by, naming):
    with refused(by=by, naming=naming) as caught:
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
    with refused(by="SamplerKind.check", naming=("replace", "add_remove")):
        uls().model_copy(update={"adjacency": "replace"}).guarantee()
    assert uls().model_copy(update={"clip": NoClip()}).epsilon() == math.inf


def test_calibrated():
    mechanism = uls().calibrated(1.0)
    assert mechanism.noise_multiplier == pytest.approx(2.26350, rel=2e-3)
    assert mechanism.target_epsilon == 1.0
    assert mechanism.epsilon() <= 1.0
    assert mechanism.sampler == uls().sampler
    with refused(by="Mechanism.calibrated", naming="delta"):
        uls(unit="none", delta=None).calibrated(1.0)
