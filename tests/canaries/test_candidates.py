"""Candidates are drawn as marks are: a model that saw neither ranks both alike, and tells other recipes apart."""

import random

import pytest
from scipy import stats

from heldin.base.coins import keyed_digest
from heldin.canaries.high_temperature import high_temperature_users, prefixes
from heldin.canaries.named_person import named_people, people
from heldin.canaries.rare_phrase import phrases, rare_phrase_users
from heldin.canaries.substring import canary_of_user, substrings
from heldin.canaries.unseen_token import rare_tokens, signatures, token_counts, unseen_token_users
from heldin.canaries.users import keyed_dice
from heldin.corpus.document import Document
from heldin.corpus.made_up.synthetic import SyntheticCorpus, generate
from heldin.corpus.store import CorpusRecord
from heldin.models.logprobs import score_texts

RARE = 1e-6
MARKS, CANDIDATES = 150, 1000
NAMES = [f"c{i}" for i in range(MARKS)]


@pytest.fixture(scope="module")
def lm(make_lm):
    return make_lm()


@pytest.fixture(scope="module")
def pool(lm, english):
    counts = token_counts(lm.tokenizer, english)
    return [token for token in rare_tokens(lm.tokenizer, counts) if not counts[token]]


@pytest.fixture(scope="module")
def corpus():
    """Texts of people, by name."""
    found = {}
    for record in generate(SyntheticCorpus(users=300, mean_records=5, min_records=4, seed=3)):
        found.setdefault(record.user, []).append(record.text)
    return found


def marks_of(kind, lm, pool, corpus):
    match kind:
        case "unseen_token":
            made = unseen_token_users(
                lm.tokenizer, NAMES, candidates=pool, documents=1, records=1, signature_tokens=4, tokens=8, seed=0
            )
        case "high_temperature":
            made = high_temperature_users(
                lm, NAMES, documents=1, records=1, prefix_tokens=4, tokens=2, temperature=1.5, seed=0
            )
        case "rare_phrase":
            made = rare_phrase_users(NAMES, documents=1, records=1, phrase_words=3, seed=0)
        case "named_person":
            made = named_people(NAMES, documents=1, records=1, seed=0)
        case _:
            users = sorted(corpus)[:MARKS]
            rows = [
                [CorpusRecord(i, user, str(i), Document.of(text), None) for i, text in enumerate(corpus[user])]
                for user in users
            ]
            options = {"documents": None, "visible_tokens": 48, "visible_characters": 200, "seed": 0}
            made = [canary_of_user(lm.tokenizer, its, length=kind, **options) for its in rows]
    return [its.canary.mark for its in made]


def candidates_of(kind, lm, pool, corpus, *, size=None):
    dice = random.Random(5)
    match kind:
        case "unseen_token":
            return signatures(lm.tokenizer, pool, size or 4, CANDIDATES, dice)
        case "high_temperature":
            return prefixes(lm, size or 4, 1.5, CANDIDATES, dice)
        case "rare_phrase":
            return phrases(size or 3, CANDIDATES, dice)
        case "named_person":
            return [f"{its} {its}" if size else its for its in people(CANDIDATES, dice)]
        case _:
            others = sorted(corpus)[MARKS:]
            return substrings(
                lm.tokenizer,
                others,
                corpus.__getitem__,
                size or kind,
                CANDIDATES,
                lambda u, t: keyed_dice(b"k", str(t), u),
            )


def scores(lm, texts):
    return [its.total for its in score_texts(lm, texts)]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["unseen_token", "high_temperature", "rare_phrase", "named_person", 3, 8])
def test_a_model_that_saw_neither_ranks_marks_and_candidates_alike(kind, lm, pool, corpus):
    marks, candidates = marks_of(kind, lm, pool, corpus), candidates_of(kind, lm, pool, corpus)
    assert len(candidates) == CANDIDATES
    assert stats.ks_2samp(scores(lm, marks), scores(lm, candidates)).pvalue > RARE
    # The same test tells candidates of another recipe apart.
    other = candidates_of(kind, lm, pool, corpus, size=6 if kind in ("unseen_token", "high_temperature", 3, 8) else 5)
    assert stats.ks_2samp(scores(lm, marks), scores(lm, other)).pvalue < RARE


def test_candidates_follow_from_the_key():
    one, again, other = (phrases(3, 20, keyed_dice(key, "marks", "")) for key in (b"a", b"a", b"b"))
    assert one == again != other
    assert (
        keyed_dice(b"a", "marks", "x").random()
        == random.Random(int.from_bytes(keyed_digest(b"a", "marks", "x"), "big")).random()
    )


def test_users_take_turns_and_whoever_has_no_text_long_enough_is_passed_over(lm):
    texts = {"long": ["one two three four five six seven eight nine ten"] * 2, "short": ["hi"]}
    asked = []

    def of(user):
        asked.append(user)
        return texts[user]

    found = substrings(lm.tokenizer, ["short", "long"], of, 4, 7, lambda user, turn: keyed_dice(b"k", str(turn), user))
    assert len(found) == 7
    assert len(set(found)) > 1
    assert asked.count("short") == 1
    assert substrings(lm.tokenizer, ["short"], of, 4, 7, lambda user, turn: keyed_dice(b"k", str(turn), user)) == []
