"""The answer and its words over a grid of cases, each with the words that are expected."""

import pytest
from pydantic import ValidationError

from heldin.audit import headline as answers
from heldin.audit.decision import Answer, DecisionConfig, Promise, RateEvidence, ScoreEvidence, decide, users_needed
from heldin.words.people import CANARIES, TRAININGS
from tests.made_facts import decision_of, evidence, score, stated

BY = DecisionConfig()


def headline(*given):
    return str(answers.headline(*given))


def notes(*given):
    return [str(note) for note in answers.notes(*given)]


LEAK = score(0.64, adjusted_p=0.001, tpr=0.2)
FLAW = "the two groups differ even without the audited model (bag of words: AUROC 0.90, p = 1e-09)"


@pytest.mark.parametrize(
    ("its", "answer", "said"),
    [
        (
            evidence(LEAK),
            Answer.LEAKS,
            "Leaks: likelihood-ratio (mean over texts) tells held-in from held-out users with AUROC 0.64 (0.59"
            " to 0.69, 95 % interval). Of 1,000 held-in users it would name about 200 (160 to 260) at 5 % false"
            " positives.",
        ),
        (
            evidence(score(0.51), score(0.64, name="loss (max over texts)", adjusted_p=0.03, tpr=0.1)),
            Answer.LEAKS,
            "Leaks: loss (max over texts) tells held-in from held-out users with AUROC 0.64 (0.59 to 0.69,"
            " simultaneous over 2 scores). Of 1,000 held-in users it would name about 100 (60 to 160) at 5 % false"
            " positives.",
        ),
        (
            evidence(LEAK, ceiling=0.69),
            Answer.LEAKS,
            "Leaks, by the estimate within the promise: likelihood-ratio",
        ),
        (evidence(LEAK, ceiling=0.69, violated="certified"), Answer.LEAKS, "Leaks, beyond what was promised: lik"),
        (
            evidence(LEAK, ceiling=0.69, violated="indicative", exact=False),
            Answer.LEAKS,
            "Leaks, beyond what was promised (indicative only: the sides are asserted): likelihood-ratio",
        ),
        (
            evidence(LEAK, ceiling=0.6),
            Answer.LEAKS,
            "Leaks, by the estimate more than was promised, which is not certified: likelihood-ratio",
        ),
        (evidence(LEAK, exact=False), Answer.LEAKS, "Leaks (indicative only: the sides are asserted): likelihood"),
        (
            evidence(score(0.52, at_most=0.58)),
            Answer.NO_LEAK,
            "No leak found, and more than AUROC 0.58 is excluded, as is naming more than 11 % of held-in users at 5 %"
            " false positives (estimates at 95 %, for this score only).",
        ),
        (
            evidence(score(0.52, at_most=0.58), score(0.53, at_most=0.59)),
            Answer.NO_LEAK,
            "No leak found, and more than AUROC 0.59 is excluded, as is naming more than 11 % of held-in users at 5 %"
            " false positives (estimates at 95 %, for these 2 scores only).",
        ),
        (
            evidence(score(0.52, at_most=0.66), users=120),
            Answer.INCONCLUSIVE,
            "Inconclusive: no leak was found, but an AUROC of up to 0.66 is not excluded; about 351 users would settle"
            " it, 120 were there.",
        ),
        (
            evidence(score(0.52, at_most=0.58, tpr=0.12), users=300),
            Answer.INCONCLUSIVE,
            "Inconclusive: no leak was found, but naming up to 18 % of held-in users at 5 % false positives is not"
            " excluded; about 351 users would settle it, 300 were there.",
        ),
        (
            evidence(score(0.52, at_most=0.66), users=5000),
            Answer.INCONCLUSIVE,
            "Inconclusive: no leak was found, but an AUROC of up to 0.66 is not excluded; 5,000 users settle it in most"
            " audits, but did not here: more would.",
        ),
        (
            evidence(score(0.3, at_most=0.55), reversed_p=1e-4),
            Answer.INCONCLUSIVE,
            "Inconclusive: likelihood-ratio (mean over texts) tells held-in from held-out users the wrong way"
            " round (AUROC 0.30): the groups may be swapped, or the model made its users' texts less likely.",
        ),
        (evidence(LEAK, flaws=(stated(FLAW),)), Answer.NOT_VALID, f"The comparison is not valid: {FLAW}."),
        (
            evidence(score(0.5, at_most=0.55), flaws=(stated("one"), stated("two"))),
            Answer.NOT_VALID,
            "The comparison is not valid: one; two.",
        ),
    ],
)
def test_the_headline_says_what_the_evidence_says(its, answer, said):
    decided = decide(its, BY)
    assert decided.answer is answer
    assert headline(its, decided, BY).startswith(said)
    assert (
        headline(its, decided, BY)
        .split(":")[0]
        .lower()
        .startswith({"not valid": "the comparison is not valid"}.get(answer.value, answer.value))
    )


def test_a_leak_at_low_false_positive_rates_alone_is_a_leak_and_said_as_such():
    rate = RateEvidence(0.05, 0.3, 0.2, 0.4, 0.38, 0.002)
    loss = ScoreEvidence("loss (mean over texts)", 0.53, 0.48, 0.58, 0.58, 0.5, (rate,), 0.002)
    its = evidence(loss, tpr_p=0.002)
    decided = decide(its, BY)
    assert (decided.answer, decided.strongest) == (Answer.LEAKS, 0)
    assert (
        "names more held-in users at low false-positive rates than chance allows; its AUROC is 0.53 (0.48 to 0.58"
        in headline(its, decided, BY)
    )


def test_people_are_counted_at_the_lowest_rate_that_lets_five_held_out_users_err():
    def named(held_out):
        rates = tuple(RateEvidence(f, 2 * f, f, 3 * f, 3 * f, None) for f in (0.01, 0.05, 0.1) if f * held_out >= 1)
        its = ScoreEvidence("x", 0.7, 0.6, 0.8, 0.8, 0.001, rates)
        return decide(evidence(its, held_out=held_out, users=2 * held_out), BY).named

    assert [named(n).fpr for n in (15, 60, 120, 499, 500)] == [0.1, 0.1, 0.05, 0.05, 0.01]
    assert named(5) is None
    assert named(500).of_1000 == pytest.approx(20)


def test_a_rate_that_cannot_be_shown_excludes_nothing():
    its = evidence(ScoreEvidence("x", 0.5, 0.45, 0.55, 0.55, 1.0, ()), users=24)
    decided = decide(its, BY)
    assert (decided.answer, decided.excluded_tpr) == (Answer.INCONCLUSIVE, None)
    assert headline(its, decided, BY).startswith(
        "Inconclusive: no leak was found, but whether many held-in users can be named at 5 % false positives cannot be"
        " seen with so few; about "
    )


def test_a_promise_is_compared_with_a_leak_alone_and_a_violated_claim_is_one():
    assert decide(evidence(score(0.5, at_most=0.55), ceiling=0.6), BY).promise is None
    assert decide(evidence(LEAK), BY).promise is None
    broken = evidence(score(0.5, at_most=0.55), score(0.6), ceiling=0.6, violated="certified")
    decided = decide(broken, BY)
    assert (decided.answer, decided.promise, decided.strongest) == (Answer.LEAKS, Promise.BEYOND, 0)
    said = headline(broken, decided, BY)
    assert said == (
        "Leaks, beyond what was promised: the scores certify more than was claimed. The AUROC of likelihood-ratio (mean"
        " over texts) on users is 0.50 (0.45 to 0.55, simultaneous over 2 scores)."
    )
    assert decided.named is None
    asserted = evidence(score(0.5, at_most=0.55), ceiling=0.6, violated="indicative", exact=False)
    assert "the scores point to more than was claimed, which nothing certifies" in headline(
        asserted, decide(asserted, BY), BY
    )


@pytest.mark.parametrize("flaws", [(), (FLAW,)])
def test_a_promise_that_others_of_the_training_break_is_no_all_clear(flaws):
    """Canary users certify a violation; real users are at chance, or not comparable."""
    beside = {"violated": "certified", "violated_by": "unseen-token canary users"}
    its = evidence(score(0.5, at_most=0.55), ceiling=0.6, flaws=flaws, **beside)
    decided = decide(its, BY)
    assert (decided.answer, decided.promise) == (Answer.LEAKS, Promise.BEYOND)
    assert headline(its, decided, BY).startswith(
        "Leaks, beyond what was promised: the scores of unseen-token canary users certify more than was claimed."
    )
    both = evidence(LEAK, ceiling=0.6, **beside)
    assert notes(both, BY, [0.0])[0] == (
        "A promise is broken: the scores of unseen-token canary users certify more than was claimed."
    )


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
    assert (decided.answer, decided.strongest, decided.named) == (Answer.LEAKS, 1, None)
    assert headline(its, decided, BY).startswith(
        "Leaks: per token names more held-in users at low false-positive rates"
    )
    assert (
        "per token tells held-in from held-out users (adjusted p = 0.004 of its true-positive rates)"
        in (notes(its, BY, [0.0, 0.0])[0])
    )


@pytest.mark.parametrize(
    ("limit", "threshold", "said"),
    [(0.60042, 0.6004, "an AUROC of up to 0.60 is not"), (0.5998, 0.6, "naming up to 18 % of held-in users")],
)
def test_what_is_open_is_decided_by_the_limits_as_they_are_not_as_they_are_rounded(limit, threshold, said):
    by, tpr = DecisionConfig(auroc=threshold), 0.05 if limit > threshold else 0.12
    its = evidence(score(0.52, at_most=limit, tpr=tpr))
    assert headline(its, decide(its, by), by).startswith(f"Inconclusive: no leak was found, but {said}")


def test_the_attack_that_disagrees_is_the_one_that_the_headline_names():
    rate = RateEvidence(0.05, 0.3, 0.2, 0.4, 0.38, 0.002)
    by_rate = ScoreEvidence("zlib (mean over texts)", 0.66, 0.55, 0.7, 0.7, 0.5, (rate,), 0.002)
    its = evidence(score(0.51), score(0.64, name="loss (mean over texts)", adjusted_p=0.03), by_rate)
    assert headline(its, decide(its, BY), BY).startswith("Leaks: loss (mean")
    assert notes(its, BY, [None] * 3)[0].startswith("The attacks disagree: loss (mean")


def test_attacks_that_disagree_are_said_first_with_length_where_it_is_the_cause():
    its = evidence(score(0.51), score(0.64, name="per token", adjusted_p=0.001))
    (said,) = notes(its, BY, [-0.8, -0.1])
    assert said == (
        "The attacks disagree: per token tells held-in from held-out users (adjusted p = 0.001), the leading attack,"
        " likelihood-ratio (mean over texts), does not (AUROC 0.51). The leading score goes with the length of"
        " a user's texts (rank correlation -0.80; -0.10 in the other): length drowns what membership adds."
    )
    for correlations in ([-0.8, -0.7], [0.2, 0.1], [None, 0.1]):
        assert "length" not in notes(its, BY, correlations)[0]
    assert notes(evidence(LEAK, score(0.5)), BY, [0.0, 0.0]) == []
    assert notes(evidence(score(), score()), BY, [0.9, 0.0]) == []


def test_canary_users_and_trainings_have_words_of_their_own():
    canaries = decision_of(evidence(LEAK), what=CANARIES).headline
    assert "tells canary users that were held in from those that were not" in canaries
    trainings = decision_of(evidence(score(0.5, at_most=0.9), users=20), what=TRAININGS).headline
    assert "about 351 trainings would settle it" in trainings


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
    ("changes", "said"),
    [
        ({"redraws": 20}, "20 redraws cannot reach auroc_level 0.04: give at least 24"),
        ({"redraws": 50}, "50 redraws cannot reach tpr_level 0.01: give at least 99"),
        ({"auroc": 0.5}, "greater than 0.5"),
        ({"auroc": 1.0}, "less than 1"),
        ({"tpr": 0.04}, "tpr 0.04 is not above fpr 0.05: guessing alone reaches it"),
        ({"fpr": 0.2}, "less than or equal to 0.1"),
    ],
)
def test_thresholds_that_cannot_be_are_refused(changes, said):
    with pytest.raises(ValidationError, match=said):
        DecisionConfig(**changes)
