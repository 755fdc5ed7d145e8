"""The synthetic corpus: reproducible, readable, never templated, and as personal as its dial says."""

import hashlib
import itertools
import os
import re
import subprocess
import sys
from collections import Counter
from datetime import datetime
from pathlib import Path

import numpy as np
import pytest

from heldin.corpus.made_up import synthetic
from heldin.corpus.made_up.lexicon import PHRASES, STOCKS
from heldin.corpus.made_up.synthetic import SyntheticCorpus, expected_records, generate, generate_user
from tests.refusals import refused

SMALL = SyntheticCorpus(users=8, mean_records=6, min_records=3)


def texts(spec):
    return [record.text for record in generate(spec)]


def user_weights(spec):
    """Each user's share of the expected records, alpha_u of equation (1), shape (users,), summing to one."""
    expected = np.array([expected_records(spec, user) for user in range(spec.users)])
    return expected / expected.sum()


@pytest.fixture(scope="module", params=[0.0, 0.5, 1.0])
def company(request):
    """200 users of 30 records, at the extremes of the dial and at its default."""
    return list(generate(SyntheticCorpus(users=200, distinctiveness=request.param)))


def test_equal_parameters_give_equal_records_whatever_the_hash_seed():
    program = (
        "import hashlib; from heldin.corpus.made_up.synthetic import *; "
        f"print(hashlib.sha256(repr(list(generate({SMALL!r}))).encode()).hexdigest())"
    )
    here = hashlib.sha256(repr(list(generate(SMALL))).encode()).hexdigest()
    root = Path(synthetic.__file__).parents[1]
    for hash_seed in ("1", "2"):
        environment = os.environ | {"PYTHONHASHSEED": hash_seed, "PYTHONPATH": f"{root / 'src'}:{root}"}
        run = subprocess.run(
            [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True
        )
        assert run.stdout.strip() == here


def test_another_seed_gives_other_people_and_other_texts():
    one, other = (list(generate(SyntheticCorpus(users=40, seed=seed))) for seed in (0, 1))
    assert not {record.text for record in one} & {record.text for record in other}
    assert (
        len({record.user for record in one} & {record.user for record in other}) < 4
    )  # names are few, so one may recur


def test_more_users_leave_the_first_ones_as_they_were():
    few, many = SyntheticCorpus(users=5, seed=3), SyntheticCorpus(users=12, seed=3)
    first = list(generate(few))
    assert list(generate(many))[: len(first)] == first
    shares = user_weights(many)[:5]
    np.testing.assert_allclose(shares / shares.sum(), user_weights(few), rtol=1e-12)


def test_one_user_can_be_generated_alone():
    alone = list(generate_user(SMALL, 5))
    assert alone
    assert alone == [record for record in generate(SMALL) if record.id.startswith("synthetic-000005-")]


def test_weights_are_a_heavy_tailed_distribution_that_the_counts_follow(company):
    weights = user_weights(SyntheticCorpus(users=200))
    assert weights.shape == (200,)
    assert weights.dtype == np.float64
    assert (weights > 0).all()
    assert weights.sum() == pytest.approx(1, abs=1e-12)
    assert weights.max() > 3 * np.median(weights)
    by_user = Counter(record.id.split("-")[1] for record in company)
    counts = np.array([by_user[f"{user:06d}"] for user in range(200)])
    assert np.abs(counts - weights * counts.sum()).max() < 1.5  # a count is its expectation, rounded by a coin
    assert counts.min() >= 12
    assert abs(counts.mean() - 30) < 5.5  # five standard errors of a mean over 200 users


def test_without_room_above_the_minimum_all_users_have_equally_many_records():
    spec = SyntheticCorpus(users=6, mean_records=4, min_records=4)
    assert set(Counter(record.user for record in generate(spec)).values()) == {4}
    np.testing.assert_allclose(user_weights(spec), np.full(6, 1 / 6))


def test_ids_are_unique_and_dates_are_utc_and_in_order(company):
    assert len({record.id for record in company}) == len(company)
    assert company[0].id == "synthetic-000000-0000"
    assert all(re.fullmatch(r"[a-z.0-9]+@northgate\.example", record.user) for record in company)
    for record, after in itertools.pairwise(company):
        date = datetime.strptime(record.date, "%Y-%m-%dT%H:%M:%S%z")
        assert date.utcoffset().total_seconds() == 0
        assert date.weekday() < 5
        assert record.user != after.user or record.date <= after.date


def test_no_two_of_a_hundred_thousand_users_share_an_address():
    # The private function, since the mail of so many users would take minutes.
    assert len({synthetic._name(seed=0, user=user)[2] for user in range(100_000)}) == 100_000
    pairs = len(STOCKS["person"]) * len(STOCKS["last_name"])
    later = [lap * pairs + place for lap in range(60) for place in range(20)]  # through initials and into numbers
    assert len({synthetic._name(seed=0, user=user)[2] for user in later}) == len(later)


def test_no_sentence_and_no_line_stands_in_more_than_one_percent_of_the_records(company):
    lines, sentences = Counter(), Counter()
    for record in company:
        own_lines = {line for line in record.text.split("\n") if line}
        lines.update(own_lines)
        sentences.update({sentence for line in own_lines for sentence in re.split(r"(?<=[.!?])\s+", line)})
    for counted in (lines, sentences):
        phrase, count = counted.most_common(1)[0]
        assert count <= 0.01 * len(company), phrase


def test_no_two_records_have_the_same_text(company):
    assert len({record.text for record in company}) == len(company)


def test_no_mail_says_the_same_aside_twice(company):
    asides = [aside.lower() for aside in PHRASES["aside"] if "{" not in aside]
    used = [re.findall("|".join(asides), record.text.lower()) for record in company]
    assert {aside for said in used for aside in said} == set(asides)
    assert not [said for said in used if len(set(said)) < len(said)]


def test_mails_vary_in_length_within_their_bounds(company):
    words = np.array([len(record.text.split()) for record in company])
    assert words.min() >= 25
    assert words.max() <= 120
    assert words.std() > 12


@pytest.mark.parametrize(
    ("flaw", "pattern"),
    [
        ("a word twice", r"(?i)\b(\w+) \1\b"),
        ("a for an", r"\b[Aa] [aeiou]"),
        ("an for a", r"\b[Aa]n (?!hour)[^aeiou]"),
        ("a slot left open", r"[{}]"),
        ("a blank before a mark", r" [,.;:!?]"),
        ("two marks", r"[,.;:!?]{2}"),
        ("a sentence in lower case", r"[.!?] +[a-z]"),
        ("two hedges", r"\b(?:about|roughly) (?:about|roughly)\b"),
    ],
)
def test_the_english_is_sound(company, flaw, pattern):
    found = [match.group(0) for record in company for match in re.finditer(pattern, record.text)]
    assert not found, flaw


def test_every_paragraph_starts_with_a_capital_or_a_number_and_ends_with_a_mark(company):
    for record in company:
        for block in record.text.split("\n\n"):
            assert re.match(r"[A-Z0-9$]", block), record.text
            assert len(block.split()) <= 12 or re.search(r"[.!?]$", block), record.text


def test_at_zero_nothing_in_a_text_depends_on_its_user(monkeypatch):
    person = synthetic._person
    original = {dial: texts(SyntheticCorpus(users=8, distinctiveness=dial)) for dial in (0.0, 0.05)}
    monkeypatch.setattr(synthetic, "_person", lambda spec, user: person(spec, 7 - user))
    swapped = {dial: texts(SyntheticCorpus(users=8, distinctiveness=dial)) for dial in (0.0, 0.05)}
    assert swapped[0.0] == original[0.0]
    assert swapped[0.05] != original[0.05]


def test_a_user_writes_about_the_same_projects_again():
    def variety(dial):  # distinct projects per project named, over all users
        named = [
            [name for record in generate_user(spec, user) for name in set(re.findall(projects, record.text))]
            for spec in [SyntheticCorpus(users=30, distinctiveness=dial)]
            for user in range(30)
        ]
        return sum(len(set(names)) for names in named) / sum(len(names) for names in named)

    projects = "|".join(STOCKS["project"])
    assert variety(0.0) > 0.95
    assert variety(1.0) < 0.5


def own_model_advantage(dial, seed=0):
    """How much better a user's texts fit the user's own model than another user's, in nats per bigram: shape (users,).

    A model is a bigram multinomial of every other record, smoothed with all users' counts. All users have equally many
    records, so that at dial 0 own and other models are exchangeable.
    """
    spec = SyntheticCorpus(users=40, mean_records=24, min_records=24, distinctiveness=dial, seed=seed)
    halves = {"fit": [], "test": []}
    for user in range(spec.users):
        words = [re.findall(r"\w+|[^\w\s]", record.text) for record in generate_user(spec, user)]
        for name, chosen in (("fit", words[::2]), ("test", words[1::2])):
            halves[name].append(Counter(pair for text in chosen for pair in itertools.pairwise(text)))
    vocabulary = {
        pair: i for i, pair in enumerate(sorted({pair for half in halves.values() for c in half for pair in c}))
    }
    counts = {name: np.zeros((spec.users, len(vocabulary))) for name in halves}
    for name, half in halves.items():
        for user, counter in enumerate(half):
            counts[name][user, [vocabulary[pair] for pair in counter]] = list(counter.values())
    shared = counts["fit"].sum(axis=0) + 0.5
    smoothed = counts["fit"] + 300 * shared / shared.sum()
    models = np.log(smoothed / smoothed.sum(axis=1, keepdims=True))
    fits = counts["test"] @ models.T / counts["test"].sum(axis=1, keepdims=True)  # (tested user, model)
    own = np.diag(fits)
    return own - (fits.sum(axis=1) - own) / (spec.users - 1)


def z_score(values):
    return values.mean() / (values.std(ddof=1) / np.sqrt(len(values)))


def test_a_user_is_told_apart_by_fresh_texts_the_more_so_the_higher_the_dial():
    dials = (0.0, 0.25, 0.5, 0.75, 1.0)
    advantage = {dial: own_model_advantage(dial) for dial in dials}
    # Student t with 39 degrees of freedom: |z| > 5.8 happens by chance with probability 1e-6.
    assert abs(z_score(advantage[0.0])) < 5.8
    assert all(z_score(advantage[dial]) > 5.8 for dial in dials[1:])
    means = [advantage[dial].mean() for dial in dials]
    assert all(higher > lower + 0.01 for lower, higher in itertools.pairwise(means)), means


@pytest.mark.parametrize(
    ("changed", "naming"),
    [
        ({"users": 0}, ("users", "0", "1")),
        ({"min_records": 0}, ("min_records", "0", "1")),
        ({"seed": -1}, ("seed", "-1", "0")),
        (
            {"mean_records": 11.5},
            ("mean_records", "11.5", "min_records", "12"),
        ),
        ({"mean_records": float("nan")}, ("mean_records", "nan", "min_records")),
        ({"mean_records": float("inf")}, ("mean_records", "inf", "min_records")),
        (
            {"distinctiveness": 1.01},
            ("distinctiveness", "1.01", "[0, 1]"),
        ),
        (
            {"distinctiveness": -0.1},
            ("distinctiveness", "-0.1", "[0, 1]"),
        ),
        ({"distinctiveness": float("nan")}, ("distinctiveness", "nan", "[0, 1]")),
    ],
)
def test_a_parameter_out_of_range_is_named_in_one_line(changed, naming):
    with refused(by="check_parameters", naming=naming) as raised:
        SyntheticCorpus(**changed)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("user", [-1, 8])
def test_a_user_that_the_corpus_lacks_is_refused(user):
    with refused(by="generate_user", naming=(user, "0", "7")):
        list(generate_user(SMALL, user))
