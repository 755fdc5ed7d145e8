"""Scores of any tool: what is computed, what is refused and why, and one clear line for every mistake."""

import json

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

from heldin.bounds import judgement as engine
from heldin.bounds.csv_scores import bound_scores, read_scores
from heldin.bounds.design import Design, assignment_named
from heldin.bounds.judgement import PLAN_FAMILY, Judgement
from heldin.bounds.plan_claims import mechanism_claim, parse_claim_of, plan_claim
from heldin.bounds.scores import LabelledScores
from heldin.bounds.verdict import Outcome, Standing, parse_claim
from heldin.defenses.accounting.account import account_example
from heldin.defenses.accounting.events import PoissonGaussian
from heldin.defenses.accounting.guarantees import ceiling_of, epsilon
from heldin.defenses.choices import ConstantDivisor, FlatClip
from heldin.defenses.mechanism import Mechanism
from heldin.defenses.plan_file import write_plan
from heldin.defenses.samplers import PoissonSampler, ShuffledSampler
from heldin.words.evidence import Caution, ClaimLabel, Finding, Flaw, Refusal
from tests.refusals import names, raised_apart, refused
from tests.statements import states, values_of

ONE_RUN = {"one-run", "one-run f-DP"}
TRIALS = {"Clopper-Pearson, split", "ROC band", "DKW band", "AUROC"}


def write(path, mu=1.5, m=1000, seed=0, sign=1, member=None):
    rng = np.random.default_rng(seed)
    member = rng.random(m) < 0.5 if member is None else member
    scores = sign * (rng.standard_normal(m) + mu * member)
    rows = [f"u{i:05d},{float(s)!r},{int(b)}" for i, (s, b) in enumerate(zip(scores, member, strict=True))]
    path.write_text("\n".join(["user,score,member", *rows]) + "\n", encoding="utf-8")
    return path


@pytest.fixture
def scores(tmp_path):
    return write(tmp_path / "scores.csv")


def mechanism(**changed):
    fields = {
        "unit": "user",
        "sampled": "user",
        "sampler": PoissonSampler(rate=16 / 1024),
        "clip": FlatClip(norm=1.0),
        "noise_multiplier": 0.92826,
        "steps": 1000,
        "delta": 1e-6,
        "divisor": ConstantDivisor(value=16),
    }
    return Mechanism(**{**fields, **changed})


def bound(path, *, assignment="unknown", higher_is="member", delta=None, claims=(), thresholds=(), **design):
    given = Design(assignment_named(assignment), coins_stated=True, thresholds=tuple(thresholds), **design)
    return bound_scores(read_scores(path), given, higher_is=higher_is, delta=delta, claims=claims)


def by_name(result: Judgement):
    return {b.name: b for b in result.bounds}, {r.name: r.refusal for r in result.refused}


def test_coins_support_one_run_bounds_and_nothing_else(scores):
    result = bound(scores, assignment="coin", delta=1e-5)
    found, refusals = by_name(result)
    assert set(found) == ONE_RUN
    assert all(b.standing is Standing.CERTIFIED and b.level == 0.95 for b in found.values())
    assert found["one-run"].epsilon_lower > 1.0
    assert set(refusals) >= TRIALS
    assert refusals["ROC band"].states(Refusal.NEEDS_TRAININGS)
    assert refusals["one-run Gaussian"].states(Refusal.NEEDS_GAUSSIAN)
    gaussian, _ = by_name(bound(scores, assignment="coin", delta=1e-5, gaussian=True))
    assert gaussian["one-run Gaussian"].epsilon_lower > found["one-run"].epsilon_lower


def test_independent_trainings_support_the_others(scores):
    result = bound(scores, assignment="fixed", independent_trainings=True, delta=1e-5)
    found, refusals = by_name(result)
    assert set(found) == TRIALS
    assert refusals["one-run"].states(Refusal.NEEDS_COINS)
    assert refusals["Clopper-Pearson, fixed"].states(Refusal.NEEDS_THRESHOLD)
    both, _ = by_name(bound(scores, assignment="coin", independent_trainings=True, delta=1e-5, thresholds=[1.0]))
    assert set(both) == TRIALS | ONE_RUN | {"Clopper-Pearson, fixed", "Bayesian interval"}
    assert both["Bayesian interval"].standing is Standing.ESTIMATE
    assert both["Clopper-Pearson, fixed"].epsilon_lower > 0.5


def test_nothing_is_certified_of_a_fixed_or_unknown_split(scores):
    fixed = bound(scores, assignment="fixed", claims=[parse_claim("epsilon=0.1,delta=1e-5")])
    assert fixed.bounds == ()
    assert (fixed.verdict.outcome, fixed.verdict.standing, fixed.exit_code) == (
        Outcome.CONTRADICTED,
        Standing.INDICATIVE,
        4,
    )
    assert states(fixed.verdict.finding, Finding.IF_CONDITIONS_HELD, Flaw.SPLIT_FIXED)
    unknown, _ = by_name(bound(scores, delta=1e-5))
    assert {b.standing for b in unknown.values()} == {Standing.INDICATIVE}


def test_json_has_exactly_these_keys(scores):
    result = bound(scores, assignment="coin", claims=[parse_claim("epsilon=4,delta=1e-6")])
    found = json.loads(json.dumps(result.as_dict()))
    assert list(found) == ["bounds", "refused", "verdict", "verdicts"]
    assert [its["claim"]["values"] for its in found["verdicts"]] == [{"epsilon": 4.0, "delta": 1e-06}]
    assert list(found["bounds"][0]) == ["name", "epsilon_lower", "level", "standing", "coverage"]
    assert list(found["refused"][0]) == ["name", "refusal", "reason"]
    assert list(found["verdict"]) == ["outcome", "standing", "finding", "reason", "max_certifiable_epsilon"]
    assert (found["verdict"]["outcome"], found["verdict"]["standing"]) == ("consistent", "certified")


def test_every_gated_bound_names_its_measured_coverage(scores):
    result = bound(scores, assignment="coin", independent_trainings=True, delta=1e-5, thresholds=[1.0])
    assert all(b.coverage is not None and b.coverage >= 0.93 for b in result.bounds if b.name != "Bayesian interval")


def test_orientation(tmp_path, scores):
    turned = write(tmp_path / "loss.csv", sign=-1)
    right = bound(turned, assignment="coin", higher_is="non-member", delta=1e-5)
    assert right.bounds == bound(scores, assignment="coin", delta=1e-5).bounds
    wrong = bound(turned, assignment="coin", delta=1e-5)
    assert max(b.epsilon_lower for b in wrong.bounds) == 0.0
    own = {"assignment": "fixed", "independent_trainings": True, "delta": 1e-5}
    assert (
        bound(turned, higher_is="non-member", thresholds=[-1.0], **own).bounds
        == bound(scores, thresholds=[1.0], **own).bounds
    )


def test_the_order_of_rows_changes_nothing(tmp_path, scores):
    head, *rows = scores.read_text().splitlines()
    rng = np.random.default_rng(1)
    shuffled = tmp_path / "shuffled.csv"
    shuffled.write_text("\n".join([head, *rng.permutation(rows)]))
    for own in ({"assignment": "coin"}, {"assignment": "fixed", "independent_trainings": True}):
        assert bound(shuffled, delta=1e-5, **own).as_dict() == bound(scores, delta=1e-5, **own).as_dict()


def test_claims_are_paid_for_and_the_gravest_decides(scores):
    low, high = parse_claim("epsilon=0.5,delta=1e-5"), parse_claim("epsilon=20,delta=1e-5")
    result = bound(scores, assignment="coin", claims=[high, low])
    assert [v.outcome for v in result.verdicts] == [Outcome.INCONCLUSIVE, Outcome.CONTRADICTED]
    assert (result.verdict.outcome, result.exit_code) == (Outcome.CONTRADICTED, 3)
    assert values_of(result.verdict.finding, Finding.REJECTED)["level"] == 0.025


def test_a_plan_is_a_claim(tmp_path):
    write_plan(mechanism(), tmp_path / "plan.json")
    claim = plan_claim(tmp_path / "plan.json")
    assert claim.epsilon == pytest.approx(4.0, abs=0.01)
    strong = write(tmp_path / "strong.csv", mu=2.2)
    result = bound(strong, assignment="coin", claims=[claim])
    assert (result.verdict.outcome, result.delta) == (Outcome.CONTRADICTED, 1e-6)
    weak = write(tmp_path / "weak.csv", mu=0.7)
    assert bound(weak, assignment="coin", claims=[claim]).verdict.outcome is Outcome.CONSISTENT


def test_a_plan_bounds_epsilon_if_the_trainer_differs_in_its_noise_alone(tmp_path):
    """Conditional, higher than what is certified of any mechanism, and no ground for a verdict."""
    claim = mechanism_claim(mechanism())
    for mu, least, code in ((0.0, 0.0, 0), (1.0, 2.5, 0), (2.2, 6.0, 3)):
        result = bound(write(tmp_path / f"{mu}.csv", mu=mu), assignment="coin", claims=[claim])
        found, _ = by_name(result)
        its = found[PLAN_FAMILY]
        assert its.standing is Standing.CONDITIONAL
        assert its.epsilon_lower >= least
        assert its.epsilon_lower >= found["one-run"].epsilon_lower
        assert result.exit_code == code
        # the bound is on the far side of the claim exactly where the claim is rejected
        assert (its.epsilon_lower > claim.epsilon * 1.01) == (result.verdict.outcome is Outcome.CONTRADICTED)
    unknown, _ = by_name(bound(tmp_path / "2.2.csv", claims=[claim]))
    assert unknown[PLAN_FAMILY].standing is Standing.CONDITIONAL
    _, refusals = by_name(bound(tmp_path / "2.2.csv", assignment="fixed", claims=[claim]))
    assert refusals[PLAN_FAMILY].states(Refusal.NEEDS_COINS)
    stated, others = by_name(bound(tmp_path / "2.2.csv", assignment="coin", delta=1e-6))
    assert PLAN_FAMILY not in {*stated, *others}


def test_a_plan_without_a_promise_to_users_is_refused():
    shuffled = mechanism(sampler=ShuffledSampler(population=1024, cohort=16), adjacency="zero_out")
    with refused(by=mechanism_claim, naming=("plan", "DP")):
        mechanism_claim(shuffled)
    with refused(by=mechanism_claim, naming="plan"):
        mechanism_claim(mechanism(unit="example", sampled="example"))


def test_table(scores):
    result = bound(scores, assignment="coin", claims=[parse_claim("epsilon=4,delta=1e-6")])
    text = engine.table(result)
    assert text.startswith("NOT CONTRADICTED: ")
    assert result.verdict.reason in text.splitlines()[0]
    assert names(text, "1e-06", "1000", *(r.name for r in result.refused), *(r.reason for r in result.refused))
    none = bound(scores, assignment="fixed", delta=1e-5)
    assert none.bounds == ()
    assert engine.table(none).startswith("OUT OF REACH (INDICATIVE): ")
    assert str(Flaw.SPLIT_FIXED()) in engine.table(none)


def test_a_user_named_nan_is_warned_of(tmp_path):
    path = tmp_path / "scores.csv"
    path.write_text(
        "user,score,member\nnan,1,1\n" + "".join(f"u{i},{i},{i % 2}\n" for i in range(2, 12)), encoding="utf-8"
    )
    cautions = bound(path, assignment="coin", delta=1e-5).verdict.cautions
    assert Caution.MISSING_NAMES(names="'nan'") in cautions


BAD = {
    "user,score\nal,1\n": ("'member'",),
    "user,score,member\nal,nan,1\nbo,1,0\n": ("row 2", "nan"),
    "user,score,member\nal,inf,1\nbo,1,0\n": ("row 2", "inf"),
    "user,score,member\nal,x,1\n": ("row 2",),
    "user,score,member\nal,1,1\nal,1,0\n": ("row 3",),
    "user,score,member\nal,1,1\nal,2,1\n": ("row 3",),
    "user,score,member\nal,1,\n": ("row 2",),
    "user,score,member\nal,,1\n": ("row 2",),
    "user,score,member\nal,1,maybe\n": ("row 2",),
    "user,score,member\n,1,1\n": ("row 2",),
    "user,score,member\nal,1,1\nbo,1,0\n": ("2", "1"),
    "user,score,member\nal,1,1\nbo,2,1\n": (),
    "user,score,member\n": (),
    "": ("'user'",),
    "user,score,score,member\nal,1,2,1\nbo,3,4,0\n": ("'score'",),
}


def test_bad_files(tmp_path):
    """Each fault is found by a check of its own, but for the two columns that are missing, and nan and infinity."""
    path, caught = tmp_path / "bad.csv", []
    for text, naming in BAD.items():
        path.write_text(text)
        with refused(naming=("bad.csv", *naming)) as error:
            read_scores(path)
        assert str(error.value).startswith(str(path)), text
        assert "\n" not in str(error.value), text
        caught.append(error)
    columns, infinite = caught.pop(13), caught.pop(2)
    assert not raised_apart(columns, caught[0])
    assert not raised_apart(infinite, caught[1])
    assert raised_apart(*caught)


def test_unreadable_files(tmp_path):
    with refused(by=read_scores, naming="absent.csv"):
        read_scores(tmp_path / "absent.csv")
    binary = tmp_path / "scores.csv"
    binary.write_bytes(b"\xff\xfe\x00\x81")
    with refused(by=read_scores, naming="UTF-8"):
        read_scores(binary)


def test_spellings_of_a_good_file(tmp_path):
    path = tmp_path / "ok.csv"
    path.write_text("\ufeffid, Score,score , user,member\n1,9,0.5, al ,TRUE\n2,9,-1e3,bo,out\n", encoding="utf-8")
    found = read_scores(path)
    assert (found.users, found.scores.tolist(), found.member.tolist()) == (("al", "bo"), [0.5, -1000.0], [True, False])


def test_bad_arguments(scores, tmp_path):
    for changed, by, naming in [
        ({}, "evaluate", "--delta"),
        ({"delta": 0.0}, "check_delta", ("delta", "0.0", "(0, 1)")),
        ({"delta": 1e-5, "higher_is": "better"}, bound_scores, ("higher-is", "'better'", "non-member")),
        ({"delta": 1e-5, "assignment": "time"}, assignment_named, ("assignment", "'time'", "coin, fixed, unknown")),
        ({"delta": 1e-5, "assignment": "coin", "guesses": 2000}, "paid_tries", ("2000", "1000")),
        ({"delta": 1e-5, "independent_trainings": True, "thresholds": [float("nan")]}, "evaluate", ()),
        ({"delta": 1e-5, "alpha": 0.0}, "check_alpha", ("0.0", "(0, 1)")),
    ]:
        with refused(by=by, naming=naming):
            bound(scores, **changed)
    tiny = write(tmp_path / "tiny.csv", member=np.array([True, False, True, False]), m=4)
    with refused(by="paid_tries", naming="4"):
        bound(tiny, assignment="coin", delta=1e-5)


@pytest.mark.parametrize(
    ("text", "by", "naming"),
    [
        ("epsilon=4", parse_claim, ("'epsilon=4'", "delta=1e-6")),
        ("delta=1e-6", parse_claim, ("'delta=1e-6'", "epsilon=4,delta=1e-6")),
        ("epsilon=4,delta=1e-6,epsilon=5", parse_claim, ("'epsilon=4,delta=1e-6,epsilon=5'", "epsilon=4,delta=1e-6")),
        ("4,1e-6", parse_claim, ("'4,1e-6'", "epsilon=4,delta=1e-6")),
        ("epsilon=four,delta=1e-6", "number_in", "'epsilon=four,delta=1e-6'"),
        ("epsilon=4,delta=0", "stated_claim", ("delta 0.0", "(0, 1)")),
        ("epsilon=nan,delta=0.1", "stated_claim", "epsilon nan"),
    ],
)
def test_bad_claims(text, by, naming):
    with refused(by=by, naming=naming):
        parse_claim(text)
    assert parse_claim(" delta = 1e-6 , epsilon = 4 ").label == ClaimLabel.STATED(epsilon=4.0, delta=1e-6)


def test_a_mechanism_that_a_claim_states_has_the_accountants_curve_also_of_a_group():
    text = "noise_multiplier=2.4,sampling_rate=0.25,steps=16,delta=1e-5,unit=example"
    stated = parse_claim_of(text)
    whole = account_example(
        steps=16, delta=1e-5, examples=None, batch=None, sampling_rate=0.25, group_size=16, noise_multiplier=2.4,
        target_epsilon=None,
    )  # fmt: skip
    assert stated.claim.epsilon == pytest.approx(whole.epsilon, rel=1e-6)
    group = stated.of_group(16)
    exact = epsilon(PoissonGaussian(2.4, 0.25, 16), 16, 1e-5)
    assert group.epsilon == pytest.approx(exact, rel=1e-6)
    assert group.epsilon > 5 * stated.claim.epsilon
    assert group.ceiling.auroc == pytest.approx(ceiling_of(PoissonGaussian(2.4, 0.25, 16), 16, 1e-5).auroc)
    assert stated.of_group(1).ceiling.auroc == pytest.approx(stated.claim.ceiling.auroc)
    # An epsilon alone says nothing of a group, and a promise to users needs none.
    assert parse_claim_of("epsilon=2,delta=1e-5,unit=example").of_group(16) is None
    assert parse_claim_of(text.replace("=example", "=user")).of_group(16) is None


def test_scores_that_speak_for_the_other_side_are_told():
    """Losses that were taken for scores: nothing is rejected, and that must not pass for a promise that holds."""
    rng = np.random.default_rng(3)
    member = rng.random(400) < 0.5
    losses = LabelledScores(rng.normal(size=400) - 1.5 * member, member)
    claims = [parse_claim("epsilon=1,delta=1e-6")]

    def judged(scores, higher_is="member"):
        return bound_scores(scores, Design(assignment_named("coin")), higher_is=higher_is, claims=claims)

    wrong = judged(losses)
    assert wrong.verdict.outcome == Outcome.CONSISTENT
    area = roc_auc_score(member, losses.scores)
    assert any(f"(AUROC {area:.2f})" in text and "--higher-is non-member" in text for text in wrong.notes())
    right = judged(losses, "non-member")
    assert right.verdict.outcome == Outcome.CONTRADICTED
    assert not any("higher-is" in text for text in right.notes())
    chance = LabelledScores(rng.normal(size=400), member)
    assert not any("higher-is" in text for text in judged(chance).notes())
