"""Two-level sampling as a mechanism: what the paper claims, what holds of the same algorithm, and who is told which."""

import pytest

from heldin.bounds.plan_claims import claims_of
from heldin.defenses.accounting.events import PoissonGaussian
from heldin.defenses.accounting.guarantees import ceiling_of, epsilon
from heldin.defenses.choices import DataStep, LocalUpdates, TwoLevel, WeightCaps
from heldin.defenses.guarantee import Guarantee, NoGuarantee
from heldin.defenses.plan_file import read_plan, write_plan
from heldin.defenses.samplers import PoissonSampler, ShuffledSampler
from heldin.words.data_steps import DataStepText
from heldin.words.guarantee import GuaranteeCondition, GuaranteeText, NoGuaranteeReason
from tests.made_mechanisms import els, uls
from tests.refusals import refused, refused_apart
from tests.statements import values_of
from tests.theory_tables import numbers

TABLE = {(t, z, q, k): e for t, z, q, c, k, e in numbers("table-of-two-level-epsilons") if c == 2}
SHARE = 11_132 / 14_041  # of CoNLL's sentences


def uedp(two_level=None, **changes):
    its = {"entity_rate": 0.5, "extended_rate": 1.0, "rule": "all", "holders": 946}
    its |= {"claimed_noise": 2.0, "sensitive_share": SHARE}
    fields = {
        "unit": "user-entity",
        "sampled": "user",
        "sampler": PoissonSampler.of(946, 50),
        "noise_multiplier": 102.0,
        "steps": 50,
        "delta": 1e-5,
        "record_selection": "all",
        "group_size": 1,
        "two_level": TwoLevel(**{**its, **(two_level or {})}),
    }
    return uls(**{**fields, **changes})


def strict(two_level=None, **changes):
    return uedp({"claimed_noise": None, "sensitive_share": None, **(two_level or {})}, **changes)


def test_the_papers_claim_is_assumed_and_what_holds_stands_beside_it():
    promise = uedp().guarantee()
    assert isinstance(promise, NoGuarantee)
    assert promise.reasons == (NoGuaranteeReason.RANDOM_RECORD_RATE(),)
    assert abs(promise.assumed_epsilon - 0.52) < 0.01
    held = promise.fallback
    for holders in (1, 4, 16, 64, 946):
        exact = TABLE.get((50, 102, 0.5, holders))
        if exact:
            assert exact * (1 - 1e-9) <= held.exposure.epsilon_at(holders) <= exact * 1.002
    assert held.epsilon == held.exposure.epsilon_at(946)
    stated = values_of(promise.statement, GuaranteeText.HOLDERS)
    assert (stated["epsilon"], stated["delta"], stated["holders"]) == (held.epsilon, 1e-5, 946)
    assert stated["alone"] == pytest.approx(0.0088, abs=5e-5)
    # Nobody is promised the claim: an audit tests it only where somebody states it.
    assert claims_of(uedp()) == []


def test_records_without_an_entity_left_out_leave_the_claim_of_the_other_estimator():
    claim = uedp({"extended_rate": 0.0, "sensitive_share": None}).guarantee().assumed_epsilon
    assert abs(claim - 0.62) < 0.01


def test_rule_any_has_no_credit_for_entity_coins():
    held = uedp({"rule": "any"}).guarantee().fallback
    for holders in (29, 64):
        its = uedp({"rule": "any", "holders": holders}).guarantee().fallback.epsilon
        exact = TABLE[(50, 102, 1.0, holders)]
        assert exact * (1 - 1e-9) <= its <= exact * 1.002
    assert held.epsilon > 2 * uedp().guarantee().fallback.epsilon


def test_weights_that_count_records_leave_nothing():
    caps = {"weight_caps": WeightCaps(user=20, entity=5)}
    promise = uedp(caps, local=LocalUpdates(learning_rate=0.1)).guarantee()
    assert len(promise.reasons) == 2
    assert promise.fallback is None
    assert isinstance(strict(caps, local=LocalUpdates(learning_rate=0.1)).guarantee(), NoGuarantee)


def test_the_strict_account_is_a_guarantee_and_users_are_claimed_without_entities():
    mechanism = strict({"holders": 4}, noise_multiplier=8.0)
    promise = mechanism.guarantee()
    assert isinstance(promise, Guarantee)
    assert promise.epsilon == promise.exposure.epsilon_at(4)
    assert [p.exposed for p in promise.exposure.curve] == [0, 1, 2, 4]
    (claim,) = claims_of(mechanism)
    user = PoissonGaussian(8.0, 50 / 946)
    assert claim.epsilon == epsilon(user, 50, 1e-5) == promise.exposure.epsilon_at(0)
    assert claim.ceiling.auroc == ceiling_of(user, 50, 1e-5).auroc
    # A name that was missed in one other text costs as much as an entity without a coin.
    assert promise.exposure.epsilon_at(1) == epsilon_of_missed()


def epsilon_of_missed():
    return strict({"holders": 1, "entity_rate": 1.0}, noise_multiplier=8.0).guarantee().epsilon


@pytest.mark.parametrize("made", [uedp, strict])
def test_a_plan_reads_back(made, tmp_path):
    mechanism = made(local=LocalUpdates(learning_rate=0.1, batch_size=4, epochs=2))
    write_plan(mechanism, tmp_path / "plan.json")
    assert read_plan(tmp_path / "plan.json") == mechanism


def test_what_compares_texts_voids_both():
    compares = DataStep(
        name=DataStepText.DEDUPLICATED_USERS(alike=DataStepText.EQUAL()), user_local=True, record_local=False
    )
    assert isinstance(strict(data_steps=(compares,)).guarantee(), NoGuarantee)
    assert uedp(data_steps=(compares,)).guarantee().fallback is None
    counts = DataStep(name=DataStepText.MINIMUM(), user_local=True, record_local=False, slots_only=True)
    promise = strict(data_steps=(counts,)).guarantee()
    assert values_of(promise.statement, GuaranteeCondition.AFTER_PREPROCESSING) == {"steps": [counts.name]}


def test_users_who_train_locally_have_the_guarantee_of_users_who_give_a_gradient():
    local = uls(local=LocalUpdates(learning_rate=0.1))
    assert local.guarantee() == uls().guarantee()
    assert local.user_event == uls().user_event


def test_what_has_no_account_is_refused():
    with refused(by="Level.check", naming="user-entity"):
        uls(two_level=uedp().two_level)
    with refused(by="Mechanism._check", naming=("local", "user")):
        els(local=LocalUpdates(learning_rate=0.1))
    refused_apart(
        "PairLevel.check",
        [
            lambda: uedp(sampled="example"),
            lambda: uedp(adjacency="zero_out"),
            lambda: uedp(sampler=ShuffledSampler(population=946, cohort=50), adjacency="zero_out"),
        ],
        [lambda: uedp(entity_cap=4), lambda: uedp(record_selection="longest")],
        [lambda: uedp({"weight_caps": WeightCaps(user=2, entity=2)})],
    )
    with refused(by="TwoLevel._claim_is_whole", naming="sensitive_share"):
        uedp({"sensitive_share": None})
    with refused(by="Mechanism.calibrated", naming="uedp"):
        uedp().calibrated(1.0)
