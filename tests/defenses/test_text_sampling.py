"""Text sampling as a mechanism: whom its epsilon is of, what data steps keep, condition or void it, what it refuses."""

import json
from functools import partial

import pytest

from heldin.bounds.plan_claims import claims_of, mechanism_claim
from heldin.defenses.accounting.account import account_plan
from heldin.defenses.accounting.events import PoissonGaussian
from heldin.defenses.accounting.guarantees import ceiling_of, epsilon
from heldin.defenses.choices import DataStep
from heldin.defenses.guarantee import Guarantee, NoGuarantee
from heldin.defenses.plan_file import read_plan, write_plan
from heldin.defenses.samplers import PoissonSampler, ShuffledSampler
from heldin.words.data_steps import DataStepText
from heldin.words.guarantee import GuaranteeCondition, GuaranteeText, NoGuaranteeReason, Relation
from tests.made_mechanisms import els, uls
from tests.refusals import names, refused, refused_apart
from tests.statements import states, values_of
from tests.theory_tables import numbers

RATE = 50 / 946


def text_sampling(**changes):
    fields = {
        "unit": "user-entity",
        "sampled": "example",
        "adjacency": "zero_out",
        "sampler": PoissonSampler(rate=RATE),
        "group_size": 16,
        "entity_cap": 4,
        "noise_multiplier": 32.0,
        "steps": 50,
        "delta": 1e-5,
        "record_selection": "all",
    }
    return uls(**{**fields, **changes})


def uncapped(**changes):
    return text_sampling(**{"adjacency": "add_remove", "group_size": 1, "entity_cap": None, "exposed": 4} | changes)


def step(name, **looks):
    return DataStep(
        name=DataStepText.OF_PRESET(preset="mine", step=name),
        user_local=looks.pop("user_local", True),
        **{"record_local": False, **looks},
    )


OF_SLOTS = step("minimum", slots_only=True)
OF_EVERYBODYS_SLOTS = step("pool", user_local=False, slots_only=True)
OF_ONE_TEXT = step("truncation", record_local=True)
COMPARES = step("copies out")


def test_epsilon_under_caps_is_of_a_user_and_an_entity_and_stands_beside_each_alone():
    promise = text_sampling().guarantee()
    assert isinstance(promise, Guarantee)
    table = {int(m): e for z, t, m, e in numbers("table-of-exposed-texts") if (z, t) == (32, 50)}
    for exposed in (1, 4, 16, 32):
        assert table[exposed] * (1 - 1e-9) <= promise.exposure.epsilon_at(exposed) <= table[exposed] * 1.002
    assert table[20] <= promise.epsilon <= table[20] * 1.002
    assert promise.epsilon == promise.exposure.epsilon_at(20)
    stated = values_of(promise.statement, GuaranteeText.CAPPED)
    assert (stated["pair"], stated["delta"]) == (promise.epsilon, 1e-5)
    assert (stated["user"], stated["records"]) == (promise.exposure.epsilon_at(16), 16)
    assert (stated["entity"], stated["entities"]) == (promise.exposure.epsilon_at(4), 4)
    assert [round(stated[of], 4) for of in ("pair", "user", "entity")] == [0.8672, 0.6792, 0.1497]
    assert states(promise.statement, Relation.FIXED_INCIDENCE, GuaranteeCondition.SAME_SLOTS)


def test_without_caps_the_promise_is_the_curve():
    promise = uncapped().guarantee()
    assert promise.epsilon == promise.exposure.epsilon_at(4)
    stated = values_of(promise.statement, GuaranteeText.ONE_RECORD)
    assert (round(stated["epsilon"], 5), stated["delta"], stated["records"]) == (0.03256, 1e-5, 1)
    further = {each.values["exposed"]: each.values["epsilon"] for each in stated["further"]}
    assert further[4] == promise.epsilon
    assert round(further[4], 4) == 0.1497
    assert states(promise.statement, Relation.ADD_REMOVE)
    assert not states(promise.statement, Relation.FIXED_INCIDENCE)


def test_calibration_under_caps_is_for_both_together_and_without_for_those_exposed():
    for mechanism, exposed in ((text_sampling(), 20), (uncapped(exposed=7), 7)):
        fitted = mechanism.calibrated(2.0)
        event = PoissonGaussian(fitted.noise_multiplier, RATE, exposed)
        assert 1.99 < epsilon(event, 50, 1e-5) <= 2.0
        assert fitted.guarantee().epsilon == pytest.approx(2.0, rel=1e-3)


def test_a_user_is_claimed_at_the_users_cap_and_not_at_that_of_the_pair():
    mechanism = text_sampling(noise_multiplier=8.0)
    (claim,) = claims_of(mechanism)
    user = PoissonGaussian(8.0, RATE, 16)
    assert claim.epsilon == epsilon(user, 50, 1e-5) < mechanism.guarantee().epsilon
    assert claim.ceiling.auroc == ceiling_of(user, 50, 1e-5).auroc
    assert claim.family.epsilon(8.0, 1e-5) == claim.epsilon
    row = account_plan(mechanism)
    assert (row.epsilon, row.group_size) == (mechanism.guarantee().epsilon, 16)
    assert row.auroc_bound == claim.ceiling.auroc


def test_the_warning_about_delta_knows_how_many_records_a_user_has_at_most():
    population = PoissonSampler.of(300, 30)
    # A person with four records, as the uncapped epsilon covers, leaves at least 300 / 4 people.
    for made, units in ((text_sampling, 19), (uncapped, 75), (partial(uncapped, exposed=1), 300)):
        warnings = made(sampler=population, delta=0.06).guarantee().cautions
        assert warnings[0].values["units"] == units
        assert not made(sampler=population, delta=0.9 / units).guarantee().cautions


def test_without_caps_nothing_finite_is_claimed_about_a_user():
    assert claims_of(uncapped()) == []
    with refused(by=mechanism_claim):
        mechanism_claim(uncapped())
    assert account_plan(uncapped()).auroc_bound is None


@pytest.mark.parametrize("made", [text_sampling, uncapped])
def test_what_compares_texts_voids_it(made):
    promise = made(data_steps=(OF_SLOTS, COMPARES)).guarantee()
    assert isinstance(promise, NoGuarantee)
    assert promise.reasons == (NoGuaranteeReason.COMPARES_TEXTS(steps=[COMPARES.name]),)
    assert promise.assumed_epsilon == made().epsilon()


def test_what_looks_at_one_text_keeps_it_and_what_looks_at_slots_needs_the_same_slots():
    for steps in ((OF_ONE_TEXT,), (OF_ONE_TEXT, OF_SLOTS, OF_EVERYBODYS_SLOTS)):
        assert text_sampling(data_steps=steps).guarantee() == text_sampling().guarantee()
    assert uncapped(data_steps=(OF_ONE_TEXT,)).guarantee() == uncapped().guarantee()
    promise = uncapped(data_steps=(OF_ONE_TEXT, OF_SLOTS, OF_EVERYBODYS_SLOTS)).guarantee()
    assert values_of(promise.statement, GuaranteeCondition.AFTER_PREPROCESSING) == {
        "steps": [OF_SLOTS.name, OF_EVERYBODYS_SLOTS.name]
    }


def test_what_no_theorem_covers_is_refused():
    for fields_of_another_unit in (lambda: uls(entity_cap=4), lambda: els(exposed=4)):
        with refused(by="Level.check", naming="user-entity"):
            fields_of_another_unit()
    caught = refused_apart(
        "TextLevel.check",
        [
            lambda: text_sampling(sampled="user"),
            lambda: text_sampling(sampler=ShuffledSampler(population=946, cohort=50)),
        ],
        [lambda: text_sampling(record_selection="longest")],
        [lambda: text_sampling(adjacency="add_remove"), lambda: uncapped(adjacency="zero_out")],
        [
            lambda: text_sampling(exposed=4),
            lambda: text_sampling(entity_cap=None),
            lambda: uncapped(group_size=16),
        ],
    )
    assert all(names(str(error.value), "user-entity") for k in (0, 1, 3) for error in caught[k])
    assert all(names(str(error.value), "zero_out", "add_remove") for error in caught[2])


@pytest.mark.parametrize("made", [text_sampling, uncapped])
def test_a_plan_holds_the_curve_and_reads_back(made, tmp_path):
    path = tmp_path / "plan.json"
    write_plan(made(), path)
    assert read_plan(path) == made()
    document = json.loads(path.read_text())
    assert [p["exposed"] for p in document["guarantee"]["exposure"]["curve"]] == made().exposure_marks()

    def changed(change):
        edited = json.loads(json.dumps(document))
        change(edited["guarantee"]["exposure"])
        path.write_text(json.dumps(edited))

    # Another accountant's last digits are accepted; another promise is not.
    changed(lambda its: its["curve"][0].update(epsilon=its["curve"][0]["epsilon"] * 1.000001))
    assert read_plan(path) == made()
    for change in (
        lambda its: its["curve"][0].update(epsilon=its["curve"][0]["epsilon"] / 2),
        lambda its: its["curve"][0].update(epsilon="0"),
        lambda its: its["curve"].pop(),
        lambda its: its.update(exposed=1),
        lambda its: its.update(curve=None),
        lambda its: its.update(curve=5),
        lambda its: its["curve"][0].update(exposed=[1]),
    ):
        changed(change)
        with refused(by="_require_same", naming="guarantee.exposure"):
            read_plan(path)
