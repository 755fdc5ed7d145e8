"""Which attackers page one names: tested, not tested, and one who sees more and finds a leak."""

import pytest

from heldin.attacks.access import Access
from heldin.record.facts import AnswerFacts, EndpointFacts
from heldin.record.release import Release
from heldin.reports.page_one import lines, state_answer, suffices
from heldin.reports.people import describe_people
from heldin.reports.recommendation import recommend
from heldin.words.page_one import Found, Label, Next, WhichAttacker
from tests.made_facts import changed_record, decided_record, decision_of, evidence, score
from tests.statements import values_of

LEAK = evidence(score(0.8, adjusted_p=0.001))
NOTHING = evidence(score(0.5))
OPEN = evidence(score(0.55, at_most=0.7))


def _level(access, its):
    return {"access": access, "primary": "likelihood-ratio", "decision": decision_of(its).model_dump()}


def _by_text(record, its, *, release=None, levels=()):
    stated = None if release is None else {"access": release}
    config = {**record.config, "release": stated}
    gain = {"value": 0.2, "lower": 0.1, "upper": 0.3, "per": "token"}
    return decided_record(record, its, access="text", levels=list(levels), config=config, gain=gain, utility=None)


def _attackers(record):
    return dict(lines(record)).get(Label.ATTACKER, [])


def test_an_audit_by_log_probabilities_alone_has_no_line(plain):
    assert _attackers(decided_record(plain, NOTHING)) == []


def test_a_weak_attacker_is_named_and_that_a_stronger_one_was_not_tested(plain):
    record = _by_text(plain, NOTHING)
    stated = _attackers(record)
    assert [each.code for each in stated] == [WhichAttacker.DECIDES.code, WhichAttacker.NOT_TESTED.code]
    assert state_answer(record)[0].states(Found.NO_LEAK_TO)
    assert state_answer(_by_text(plain, OPEN))[0].states(Found.TOO_FEW_TO)


def test_a_stronger_attacker_who_finds_a_leak_is_in_the_banner(plain):
    levels = [_level("log-probabilities", LEAK), _level("top-k", OPEN)]
    record = _by_text(plain, NOTHING, release="text", levels=levels)
    assert state_answer(record)[-1].states(Found.STRONGER_LEAKS)
    stated = _attackers(record)
    assert [each.code for each in stated] == [
        WhichAttacker.DECIDES.code,
        WhichAttacker.OTHER.code,
        WhichAttacker.OTHER.code,
    ]
    assert values_of(stated, WhichAttacker.OTHER)["auroc"] == pytest.approx(0.8)


def test_below_the_release_the_answer_is_of_a_weaker_attacker_and_the_advice_says_which_to_test(plain):
    record = _by_text(plain, evidence(score(0.5), falls_short=True), release="weights")
    assert state_answer(record)[0].states(Found.WEAKER)
    assert _attackers(record)[0].states(WhichAttacker.DECIDES_TOO_WEAK)
    assert values_of(recommend(record), Next.STRONGER)["access"] == "log-probabilities"


def test_what_an_endpoint_was_like_is_said(plain):
    answers = AnswerFacts(
        top_k=0, seed=True, temperature=False, samples=100, refused=7, repeated=0, other_length=0, same=9, cuts=10,
        changed=False,
    )  # fmt: skip
    served = EndpointFacts(url="http://host/v1", style="chat", tokenizer=None, window=None, drift=0.0, answers=answers)
    target = {**plain.target.model_dump(), "endpoint": served.model_dump()}
    stated = _attackers(changed_record(_by_text(plain, NOTHING), target=target))
    assert values_of(stated, WhichAttacker.REFUSED) == {"count": 7, "samples": 100}
    assert values_of(stated, WhichAttacker.SAME) == {"count": 9, "cuts": 10}


@pytest.mark.parametrize("released", ["weights", "log-probabilities", "top-k", "text"])
def test_who_gets_more_can_run_every_weaker_attack(plain, released):
    asks = plain.primary().asks
    release = Release(access=released)
    order = ["weights", "log-probabilities", "top-k", "text"]
    for access in Access:
        enough = order.index(released) <= order.index(access.value)
        assert suffices(release, asks.model_copy(update={"access": access})) is enough
        results = [{**each.model_dump(), "asks": {**each.asks.model_dump(), "access": access}} for each in
                   plain.attacks]  # fmt: skip
        record = changed_record(plain, attacks=results, config={**plain.config, "release": {"access": released}})
        assert describe_people(record)
