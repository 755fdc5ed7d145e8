"""The answer and its words over a grid of cases, each with the words that are expected."""

import pytest
from pydantic import ValidationError

from heldin.audit.decision import Answer, DecisionConfig, Promise, RateEvidence, ScoreEvidence, decide, users_needed
from heldin.audit.headline import headline, notes
from heldin.words.answer import (
    AurocInterval,
    Headline,
    IndicativeReason,
    LeakFound,
    Left,
    Note,
    Scores,
    Violation,
)
from heldin.words.people import CANARIES, TRAININGS
from tests.made_facts import evidence, score, stated
from tests.refusals import refused
from tests.statements import states, values_of

BY = DecisionConfig()


LEAK = score(0.64, adjusted_p=0.001, tpr=0.2)
FLAW = "a flaw"


RATIO, LOSS = "likelihood-ratio (mean over texts)", "loss (mean over texts)"
PLAIN = {Headline.LEAKS: {"standing": None}}
INTERVAL = {"auroc": 0.64, "lower": 0.59, "upper": 0.69}


@pytest.mark.parametrize(
    ("its", "answer", "expected"),
    [
        (
            evidence(LEAK),
            Answer.LEAKS,
            PLAIN
            | {
                LeakFound.BY_AUROC: {"score": RATIO, "audited": "users"},
                AurocInterval.ALONE: INTERVAL,
            },
        ),
        (
            evidence(score(0.51), score(0.64, name="loss (max over texts)", adjusted_p=0.03, tpr=0.1)),
            Answer.LEAKS,
            PLAIN
            | {
                LeakFound.BY_AUROC: {"score": "loss (max over texts)", "audited": "users"},
                AurocInterval.SIMULTANEOUS: {**INTERVAL, "scores": 2},
            },
        ),
        (
            evidence(LEAK, exact=False),
            Answer.LEAKS,
            {Headline.LEAKS: {}, IndicativeReason.SIDES_ASSERTED: {}},
        ),
        (
            evidence(score(0.52, at_most=0.58)),
            Answer.NO_LEAK,
            {Headline.NO_LEAK: {"auroc": 0.58, "percent": 11.0, "fpr_percent": 5.0}, Scores.ONE: {}},
        ),
        (
            evidence(score(0.52, at_most=0.58), score(0.53, at_most=0.59)),
            Answer.NO_LEAK,
            {Headline.NO_LEAK: {"auroc": 0.59, "percent": 11.0, "fpr_percent": 5.0}, Scores.SEVERAL: {"count": 2}},
        ),
        (
            evidence(score(0.52, at_most=0.66), users=120),
            Answer.INCONCLUSIVE,
            {Headline.INCONCLUSIVE: {}, Left.AUROC: {"auroc": 0.66}, Left.NEEDED: {"needed": 351, "users": 120}},
        ),
        (
            evidence(score(0.52, at_most=0.58, tpr=0.12), users=300),
            Answer.INCONCLUSIVE,
            {
                Headline.INCONCLUSIVE: {},
                Left.RATE: {"percent": 18.0, "fpr_percent": 5.0},
                Left.NEEDED: {"needed": 351, "users": 300},
            },
        ),
        (
            evidence(score(0.52, at_most=0.66), users=5000),
            Answer.INCONCLUSIVE,
            {Headline.INCONCLUSIVE: {}, Left.AUROC: {"auroc": 0.66}, Left.SETTLES_MOSTLY: {"users": 5000}},
        ),
        (
            evidence(score(0.3, at_most=0.55), reversed_p=1e-4),
            Answer.INCONCLUSIVE,
            {Headline.REVERSED: {"score": RATIO, "auroc": 0.3}},
        ),
        (
            evidence(LEAK, flaws=(stated(FLAW),)),
            Answer.NOT_VALID,
            {Headline.NOT_VALID: {"flaws": [stated(FLAW)]}},
        ),
        (
            evidence(score(0.5, at_most=0.55), flaws=(stated("one"), stated("two"))),
            Answer.NOT_VALID,
            {Headline.NOT_VALID: {"flaws": [stated("one"), stated("two")]}},
        ),
    ],
)
def test_the_headline_states_the_evidence(its, answer, expected):
    decided = decide(its, BY)
    assert decided.answer is answer
    statement = headline(its, decided, BY)
    for code, values in expected.items():
        stated_values = values_of(statement, code)
        assert {name: stated_values[name] for name in values} == values, code


def test_a_leak_at_low_false_positive_rates_alone_is_a_leak_and_said_as_such():
    rate = RateEvidence(0.05, 0.3, 0.2, 0.4, 0.38, 0.002)
    loss = ScoreEvidence(LOSS, 0.53, 0.48, 0.58, 0.58, 0.5, (rate,), 0.002)
    its = evidence(loss, tpr_p=0.002)
    decided = decide(its, BY)
    assert (decided.answer, decided.strongest) == (Answer.LEAKS, 0)
    statement = headline(its, decided, BY)
    assert values_of(statement, LeakFound.BY_RATES)["score"] == LOSS
    assert values_of(statement, AurocInterval.ALONE) == {"auroc": 0.53, "lower": 0.48, "upper": 0.58}


@pytest.mark.parametrize(
    ("ceiling", "contradicted", "promise"),
    [(None, None, None), (0.69, None, Promise.WITHIN), (0.6, None, Promise.ABOVE), (0.69, "certified", Promise.BEYOND),
     (0.69, "indicative", Promise.BEYOND)],
)  # fmt: skip
def test_a_leak_is_a_leak_whatever_was_claimed(ceiling, contradicted, promise):
    """How it compares with a claim is on a line of its own: no word of the answer says "within"."""
    its = evidence(LEAK, ceiling=ceiling, contradicted=contradicted)
    decided = decide(its, BY)
    assert (decided.answer, decided.promise) == (Answer.LEAKS, promise)
    assert headline(its, decided, BY) == headline(evidence(LEAK), decide(evidence(LEAK), BY), BY)


def test_a_model_that_learned_nothing_is_not_called_free_of_leaks():
    calm = score(0.5, at_most=0.55)
    decided = decide(evidence(calm, learned=False), BY)
    assert (decided.answer, decided.unlearned) == (Answer.INCONCLUSIVE, True)
    assert headline(evidence(calm, learned=False), decided, BY).states(Headline.UNLEARNED)
    for learned in (True, None):
        assert decide(evidence(calm, learned=learned), BY).answer is Answer.NO_LEAK
    # A leak is a leak, and too few users are too few, whatever was learned.
    assert decide(evidence(LEAK, learned=False), BY).answer is Answer.LEAKS
    assert not decide(evidence(score(0.52, at_most=0.66), learned=False), BY).unlearned


def test_a_rate_that_cannot_be_shown_excludes_nothing():
    its = evidence(ScoreEvidence("x", 0.5, 0.45, 0.55, 0.55, 1.0, ()), users=24)
    decided = decide(its, BY)
    assert (decided.answer, decided.excluded_tpr) == (Answer.INCONCLUSIVE, None)
    statement = headline(its, decided, BY)
    assert statement.states(Headline.INCONCLUSIVE)
    assert values_of(statement, Left.TOO_FEW_FOR_RATE)["fpr_percent"] == 5
    assert states(statement, Left.NEEDED)


def test_a_promise_is_compared_with_a_leak_alone_and_a_violated_claim_is_one():
    assert decide(evidence(score(0.5, at_most=0.55), ceiling=0.6), BY).promise is None
    assert decide(evidence(LEAK), BY).promise is None
    broken = evidence(score(0.5, at_most=0.55), score(0.6), ceiling=0.6, contradicted="certified")
    decided = decide(broken, BY)
    assert (decided.answer, decided.promise, decided.strongest) == (Answer.LEAKS, Promise.BEYOND, 0)
    statement = headline(broken, decided, BY)
    assert states(statement, LeakFound.BY_CLAIM, Violation.CERTIFIED)
    interval = {"auroc": 0.5, "lower": 0.45, "upper": 0.55, "scores": 2}
    assert values_of(statement, AurocInterval.SIMULTANEOUS) == interval
    assert not decided.separates
    asserted = evidence(score(0.5, at_most=0.55), ceiling=0.6, contradicted="indicative", exact=False)
    assert states(headline(asserted, decide(asserted, BY), BY), Violation.INDICATED)


@pytest.mark.parametrize("flaws", [(), (FLAW,)])
def test_a_promise_that_others_of_the_training_break_is_no_all_clear(flaws):
    """Canary users certify a violation; real users are at chance, or not comparable."""
    beside = {"contradicted": "certified", "contradicted_by": "unseen-token canary users"}
    its = evidence(score(0.5, at_most=0.55), ceiling=0.6, flaws=flaws, **beside)
    decided = decide(its, BY)
    assert (decided.answer, decided.promise) == (Answer.LEAKS, Promise.BEYOND)
    statement = headline(its, decided, BY)
    assert states(statement, Headline.LEAKS, LeakFound.BY_CLAIM)
    assert str(values_of(statement, Violation.CERTIFIED_BY)["subjects"]) == beside["contradicted_by"]
    both = evidence(LEAK, ceiling=0.6, **beside)
    note = notes(both, BY, [0.0])[0]
    assert note.states(Note.PROMISE_BROKEN)
    assert str(values_of(note, Violation.CERTIFIED_BY)["subjects"]) == beside["contradicted_by"]


def test_more_people_named_than_promised_is_not_within_it():
    """An AUROC below its ceiling, and 200 of 1,000 named where the curve allows 100."""
    assert decide(evidence(LEAK, ceiling=0.69, ceiling_rates=((0.05, 0.1),)), BY).promise is Promise.ABOVE
    assert decide(evidence(LEAK, ceiling=0.69, ceiling_rates=((0.05, 0.3),)), BY).promise is Promise.WITHIN
    weak = score(0.6, name="loss", adjusted_p=0.9, tpr=0.2)  # does not pass: chance
    its = evidence(score(0.64, adjusted_p=0.001), weak, ceiling=0.69, ceiling_rates=((0.05, 0.1),))
    assert decide(its, BY).promise is Promise.WITHIN


def test_a_rate_that_rejects_but_cannot_be_shown_is_of_the_score_that_passes():
    others = ScoreEvidence("per token", 0.52, 0.47, 0.57, 0.57, 0.4, (), 0.004)
    its = evidence(score(0.49), others, tpr_p=0.004)
    decided = decide(its, BY)
    assert (decided.answer, decided.strongest, decided.separates) == (Answer.LEAKS, 1, True)
    assert values_of(headline(its, decided, BY), LeakFound.BY_RATES)["score"] == "per token"
    values = values_of(notes(its, BY, [0.0, 0.0])[0], Note.DISAGREE_BY_RATES)
    assert (values["score"], values["p"]) == ("per token", 0.004)


@pytest.mark.parametrize(
    ("limit", "threshold", "left"),
    [(0.60042, 0.6004, Left.AUROC(auroc=0.6)), (0.5998, 0.6, Left.RATE(percent=18.0, fpr_percent=5.0))],
)
def test_what_is_open_is_decided_by_the_limits_as_they_are_not_as_they_are_rounded(limit, threshold, left):
    by, tpr = DecisionConfig(auroc=threshold), 0.05 if limit > threshold else 0.12
    its = evidence(score(0.52, at_most=limit, tpr=tpr))
    stated_left = values_of(headline(its, decide(its, by), by), Headline.INCONCLUSIVE)["left"]
    assert stated_left.code == left.code
    assert {name: stated_left.values[name] for name in left.values} == left.values


def test_the_attack_that_disagrees_is_the_one_that_the_headline_names():
    rate = RateEvidence(0.05, 0.3, 0.2, 0.4, 0.38, 0.002)
    by_rate = ScoreEvidence("zlib (mean over texts)", 0.66, 0.55, 0.7, 0.7, 0.5, (rate,), 0.002)
    its = evidence(score(0.51), score(0.64, name=LOSS, adjusted_p=0.03), by_rate)
    assert values_of(headline(its, decide(its, BY), BY), LeakFound.BY_AUROC)["score"] == LOSS
    assert values_of(notes(its, BY, [None] * 3)[0], Note.DISAGREE)["score"] == LOSS


def test_attacks_that_disagree_are_said_first_with_length_where_it_is_the_cause():
    its = evidence(score(0.51), score(0.64, name="per token", adjusted_p=0.001))
    (note,) = notes(its, BY, [-0.8, -0.1])
    values = values_of(note, Note.DISAGREE)
    assert {name: values[name] for name in ("score", "p", "leading", "auroc")} == {
        "score": "per token",
        "p": 0.001,
        "leading": RATIO,
        "auroc": 0.51,
    }
    assert values_of(note, Note.LENGTH_DROWNS) == {"leading": -0.8, "other": -0.1}
    for correlations in ([-0.8, -0.7], [0.2, 0.1], [None, 0.1]):
        assert not states(notes(its, BY, correlations)[0], Note.LENGTH_DROWNS)
    assert notes(evidence(LEAK, score(0.5)), BY, [0.0, 0.0]) == []
    assert notes(evidence(score(), score()), BY, [0.9, 0.0]) == []


def test_canary_users_and_trainings_have_words_of_their_own():
    canaries, trainings = (
        headline(its, decide(its, BY), BY, wording)
        for its, wording in ((evidence(LEAK), CANARIES), (evidence(score(0.5, at_most=0.9), users=20), TRAININGS))
    )
    assert values_of(canaries, LeakFound.BY_AUROC)["audited"] == "canaries"
    values = values_of(trainings, Left.NEEDED)
    assert (values["needed"], values["audited"]) == (351, "trainings")


def test_thresholds_of_the_config_move_the_answer():
    its = evidence(score(0.55, at_most=0.63))
    assert decide(its, BY).answer is Answer.INCONCLUSIVE
    assert decide(its, DecisionConfig(auroc=0.65)).answer is Answer.NO_LEAK
    assert decide(its, DecisionConfig(auroc=0.65, tpr=0.1)).answer is Answer.INCONCLUSIVE
    weak = evidence(score(0.6, adjusted_p=0.045))
    assert decide(weak, BY).answer is not Answer.LEAKS
    assert decide(weak, DecisionConfig(auroc_level=0.05)).answer is Answer.LEAKS


def test_fewer_users_are_needed_for_looser_thresholds():
    assert users_needed(BY, 1.54, 1.54) > users_needed(DecisionConfig(auroc=0.65, tpr=0.2), 1.54, 1.54)
    assert users_needed(DecisionConfig(tpr=0.9), 1.54, 1.54) == 339  # docs/theory.md#randomisation-test: by AUROC alone
    assert users_needed(BY, 1.54, None) == users_needed(BY, 1.54, 1.54)


@pytest.mark.parametrize(
    ("changes", "by", "naming"),
    [
        ({"redraws": 20}, "DecisionConfig._possible", ("20", "auroc_level", "0.04", "24")),
        ({"redraws": 50}, "DecisionConfig._possible", ("50", "tpr_level", "0.01", "99")),
        ({"auroc": 0.5}, None, ("auroc", "0.5")),
        ({"auroc": 1.0}, None, ("auroc", "1")),
        ({"tpr": 0.04}, "DecisionConfig._possible", ("tpr", "0.04", "fpr", "0.05")),
        ({"fpr": 0.2}, None, ("fpr", "0.1")),
    ],
)
def test_thresholds_that_cannot_be_are_refused(changes, by, naming):
    with refused(by=by, naming=naming, kind=ValidationError):
        DecisionConfig(**changes)
