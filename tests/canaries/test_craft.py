"""Made-up canary users: texts that survive the tokenizer, users that differ, records that follow from name and seed."""

import itertools
import re

import pytest

from heldin.canaries.high_temperature import high_temperature_users
from heldin.canaries.rare_phrase import rare_phrase_users
from heldin.canaries.unseen_token import rare_tokens, token_counts, unseen_token_users
from tests.refusals import refused

NAMES = [f"c{i}" for i in range(6)]


@pytest.fixture(scope="module")
def tokenizer(make_lm):
    return make_lm().tokenizer


@pytest.fixture(scope="module")
def candidates(tokenizer, english):
    counts = token_counts(tokenizer, english)
    return [token for token in rare_tokens(tokenizer, counts) if not counts[token]]


def _unseen(tokenizer, candidates, names=NAMES, **changes):
    options = {"documents": 3, "records": 8, "signature_tokens": 5, "tokens": 20, "seed": 0, **changes}
    return unseen_token_users(tokenizer, names, candidates=candidates, **options)


def _phrases(names=NAMES, **changes):
    return rare_phrase_users(names, **{"documents": 3, "records": 8, "phrase_words": 3, "seed": 0, **changes})


def _sampled(lm, names=NAMES, **changes):
    options = {"documents": 3, "records": 5, "prefix_tokens": 4, "tokens": 8, "temperature": 2.0, "seed": 0, **changes}
    return high_temperature_users(lm, names, **options)


def _texts(user):
    return [record.text for record in user.records]


def test_rare_tokens_are_ordered_printable_and_come_back(tokenizer, english):
    counts = token_counts(tokenizer, [*english, "~~~~"])
    rarest = rare_tokens(tokenizer, counts)
    assert [counts[t] for t in rarest] == sorted(counts[t] for t in rarest)
    assert counts[rarest[0]] == 0
    assert counts[rarest[-1]] == max(counts[t] for t in rarest) > 100
    tilde = tokenizer("~")["input_ids"][0]
    assert counts[tilde] == 4
    assert counts[rarest[rarest.index(tilde) - 1]] <= 4
    for token in rarest:
        text = tokenizer.decode([token])
        assert text.isprintable()
        assert tokenizer(text, add_special_tokens=False)["input_ids"] == [token]
    assert tokenizer.eos_token_id not in rarest
    broken = tokenizer("é", add_special_tokens=False)["input_ids"]  # two bytes, neither of which is a character
    assert len(broken) == 2
    assert not set(broken) & set(rarest)


def test_unseen_token_texts_hold_their_signatures_tokens_only_and_survive_the_tokenizer(tokenizer, candidates, english):
    seen = set(token_counts(tokenizer, english))
    signatures = set()
    for user in _unseen(tokenizer, candidates):
        signature = tokenizer(user.canary.mark, add_special_tokens=False)["input_ids"]
        assert len(set(signature)) == 5
        assert not set(signature) & seen
        signatures.add(tuple(signature))
        follows = {(signature[i], signature[(i + 1) % 5]) for i in range(5)}
        for text in _texts(user):
            ids = tokenizer(text, add_special_tokens=False)["input_ids"]
            assert len(ids) == 20
            assert set(ids) <= set(signature)
            assert tokenizer.decode(ids) == text
            in_order = sum(pair in follows for pair in itertools.pairwise(ids))
            assert in_order >= 10  # stretches of two at least: every second step follows the cycle
        assert len(set(_texts(user))) == 8
        assert (user.canary.kind, user.canary.documents) == ("unseen_token", 3)
    assert len(signatures) == len(NAMES)


def _tokens(tokenizer, user):
    return set(tokenizer(user.canary.mark, add_special_tokens=False)["input_ids"])


def test_disjoint_users_share_no_token_with_each_other_or_with_those_before(tokenizer, candidates):
    before = candidates[::7]
    spoken = set(before)
    users = _unseen(tokenizer, candidates, spoken=spoken, signature_tokens=3)
    own = [_tokens(tokenizer, user) for user in users]
    assert [len(its) for its in own] == [3] * len(NAMES)
    assert len(set().union(*own)) == 3 * len(NAMES)
    assert not set().union(*own) & set(before)
    assert spoken == set(before).union(*own)
    # A further user changes nobody's texts.
    more = _unseen(tokenizer, candidates, [*NAMES, "one more"], spoken=set(before), signature_tokens=3)
    assert [_texts(user) for user in more[:-1]] == [_texts(user) for user in users]
    # Without it, users of so few candidates do share some.
    shared = [_tokens(tokenizer, its) for its in _unseen(tokenizer, candidates[:20], signature_tokens=3)]
    assert len(set().union(*shared)) < 3 * len(NAMES)


def test_a_user_s_texts_follow_from_its_name_and_the_seed(tokenizer, candidates, make_lm):
    lm = make_lm()
    for make in (
        lambda names, seed: _unseen(tokenizer, candidates, names, seed=seed),
        lambda names, seed: _phrases(names, seed=seed),
        lambda names, seed: _sampled(lm, names, seed=seed),
    ):
        users = make(NAMES, 0)
        assert make(NAMES, 0) == users
        assert make(NAMES[2:4], 0) == users[2:4]
        assert all(a.canary.mark != b.canary.mark for a, b in zip(users, make(NAMES, 1), strict=True))
        assert len({text for user in users for text in _texts(user)}) == sum(len(user.records) for user in users)
        assert len({r.id for user in users for r in user.records}) == sum(len(user.records) for user in users)


def test_sampled_users_go_on_from_their_own_prefix(make_lm):
    users = _sampled(make_lm())
    prefixes = [user.canary.mark for user in users]
    assert len(set(prefixes)) == len(users)
    for user in users:
        for text in _texts(user):
            assert text.startswith(user.canary.mark)
            assert text.removeprefix(user.canary.mark).strip()


def test_temperature_makes_sampled_texts_less_like_the_model(make_lm):
    from heldin.models.logprobs import score_texts

    lm = make_lm(seed=4)
    for parameter in lm.model.parameters():
        parameter.data *= 3  # a random model is flat; this one has preferences
    means = []
    for temperature in (0.5, 1.0, 3.0):
        scores = score_texts(lm, [t for user in _sampled(lm, temperature=temperature) for t in _texts(user)])
        means.append(sum(s.total for s in scores) / sum(len(s.logprobs) for s in scores))
    assert means == sorted(means, reverse=True)
    assert means[0] - means[2] > 0.5


def test_the_phrase_stands_once_in_every_mail_at_the_place_that_is_told():
    users = _phrases()
    phrases = [user.canary.mark for user in users]
    assert len(set(phrases)) == len(users)
    for user in users:
        assert len(user.canary.mark.split()) == 3
        for record in user.records:
            assert record.text[record.position :].startswith(user.canary.mark + " ")
            assert record.text.count(user.canary.mark) == 1
            assert not any(other in record.text for other in phrases if other != user.canary.mark)
    assert len({r.position for user in users for r in user.records}) > 5


def test_apart_from_the_phrase_nobody_s_mail_is_its_own():
    """The rest is of one distribution: no name of a writer, no signature."""
    rest = [re.sub(re.escape(u.canary.mark), "", t) for u in _phrases(records=40) for t in _texts(u)]
    assert not any("@northgate.example" in text for text in rest)


def test_what_cannot_be_made_is_one_line(tokenizer, candidates, make_lm):
    with refused(by="signature", naming="signature_tokens"):
        _unseen(tokenizer, candidates[:3])
    with refused(by=unseen_token_users, naming=("6", "2", "signature_tokens")):
        _unseen(tokenizer, candidates[:2], signature_tokens=2)
    with refused(by=unseen_token_users, naming=("20", "5", "6")):
        _unseen(tokenizer, candidates[:20], spoken=set(candidates[4:]))
    with refused(by="different", naming=("500", "4")):
        _unseen(tokenizer, candidates, NAMES[:1], tokens=4, records=500)
    with refused(by=rare_phrase_users, naming=("200", "1", "phrase_words")):
        _phrases([f"c{i}" for i in range(200)], phrase_words=1, records=1)
    with refused(by="sample_texts", naming=("temperature", "0")):
        _sampled(make_lm(), temperature=0)
