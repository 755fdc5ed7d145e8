"""The theorems of text sampling and of two-level sampling on small random corpora, all coins enumerated."""

import numpy as np
import pytest

from heldin.defenses.accounting.events import PoissonGaussian, TwoLevelGaussian
from heldin.defenses.accounting.loss_pmf import pair_delta
from heldin.defenses.accounting.step_pld import one_step
from heldin.defenses.texts.caps import kept_under_caps
from tests.oracles.enumerated_coins import Text, divergence, text_sampling, two_level

pytestmark = pytest.mark.slow  # a statistical suite, or whole runs: minutes

EPSILONS = (0.0, 0.1, 0.5, 1.0, 2.0, 4.0)
Z = 1.0
CORPORA = 60
QUADRATURE = 1e-4  # relative error of the trapezoid rule where the densities cross


def corpora(seed, most_texts):
    generator = np.random.default_rng(seed)
    for _ in range(CORPORA):
        yield [
            Text(
                int(generator.integers(3)),
                frozenset(f"e{i}" for i in np.flatnonzero(generator.random(3) < 0.4)),
                float(generator.choice([-3.0, -1.0, 1.0, 3.0])),
            )
            for _ in range(int(generator.integers(2, most_texts + 1)))
        ]


def without(texts, user, entity):
    return [t for t in texts if t.author != user and entity not in t.entities]


def excess(with_pair, lacking, event):
    """The largest ratio of true divergence to bound, over both orders and several epsilons."""
    pair = one_step(event, 2.0**-10)
    ratios = []
    for epsilon in EPSILONS:
        bound = pair_delta(pair, epsilon)
        true = max(divergence(a, b, Z, epsilon) for a, b in ((with_pair, lacking), (lacking, with_pair)))
        if true > 1e-7:
            ratios.append(true / bound)
    return max(ratios, default=0.0)


def test_text_sampling_is_bounded_by_the_number_of_texts_and_by_no_smaller_one():
    held, broken = 0.0, 0
    for texts in corpora(1, 7):
        lacking = without(texts, 0, "e0")
        m = len(texts) - len(lacking)
        if not m:
            continue
        laws = text_sampling(texts, 0.3), text_sampling(lacking, 0.3)
        held = max(held, excess(*laws, PoissonGaussian(Z, 0.3, m)))
        if m > 1:
            broken += excess(*laws, PoissonGaussian(Z, 0.3, m - 1)) > 1.0
    assert 0.99 < held <= 1.0 + QUADRATURE
    assert broken > 10, "a bound for fewer texts is no bound"


def most_excess(usable, entity_rate_of_the_bound):
    found = []
    for texts in corpora(2, 5):
        lacking = without(texts, 0, "e0")
        holders = len({t.author for t in texts if "e0" in t.entities} - {0})
        laws = [two_level(some, 0.4, 0.3, 1.0, usable) for some in (texts, lacking)]
        found.append(excess(*laws, TwoLevelGaussian(Z, 0.4, entity_rate_of_the_bound, holders)))
    return max(found)


def test_two_level_sampling_is_bounded_under_rule_all():
    assert 0.5 < most_excess(all, 0.3) <= 1.0 + QUADRATURE


def test_two_level_sampling_is_bounded_under_rule_any_at_entity_rate_one_alone():
    assert 0.5 < most_excess(any, 1.0) <= 1.0 + QUADRATURE
    assert most_excess(any, 0.3) > 1.02


@pytest.mark.parametrize("rate", [0.4, 1.0])
def test_a_missed_name_is_an_entity_of_one_holder_that_is_always_drawn(rate):
    """A user goes, and one text of another, whether or not it names recognised entities."""
    worst, with_little = 0.0, 0.0
    for texts in corpora(3, 5):
        others = [t for t in texts if t.author != 0]
        laws = [two_level(some, 0.4, 0.3, rate) for some in (texts, others[1:])]
        worst = max(worst, excess(*laws, TwoLevelGaussian(Z, 0.4, 1.0, 1)))
        with_little = max(with_little, excess(*laws, TwoLevelGaussian(Z, 0.4, 0.05, 1)))
    assert 0.2 < worst <= 1.0 + QUADRATURE
    assert with_little > 1.02, "the small rate of texts without entity is no bound"


def capped(texts, group_size, entity_cap):
    """The texts that greedy caps keep, in the order given."""
    names = {entity: at for at, entity in enumerate(sorted({e for t in texts for e in t.entities}))}
    lists = [sorted(names[e] for e in t.entities) for t in texts]
    kept = kept_under_caps(
        np.arange(len(texts)),
        np.array([t.author for t in texts], dtype=np.int64),
        np.cumsum([0, *map(len, lists)]),
        np.array([e for some in lists for e in some], dtype=np.int64),
        group_size=group_size,
        entity_cap=entity_cap,
    )
    return [t for t, stays in zip(texts, kept, strict=True) if stays]


def test_caps_give_one_epsilon_to_all_pairs_under_fixed_incidence():
    """The slots are the same in both data sets, and so is the choice; those of the pair are empty in one."""
    worst = {"pair": 0.0, "user": 0.0, "entity": 0.0}
    for texts in corpora(4, 9):
        chosen = capped(texts, 2, 1)
        sides = {
            "pair": (without(chosen, 0, "e0"), 3),
            "user": ([t for t in chosen if t.author != 0], 2),
            "entity": ([t for t in chosen if "e0" not in t.entities], 1),
        }
        for who, (lacking, m) in sides.items():
            laws = text_sampling(chosen, 0.3), text_sampling(lacking, 0.3)
            worst[who] = max(worst[who], excess(*laws, PoissonGaussian(Z, 0.3, m)))
    assert all(0.5 < found <= 1.0 + QUADRATURE for found in worst.values()), worst


def _chain():
    """Each text names an entity of the one before; the first names the first of them and the entity that goes."""
    first = Text(0, frozenset({"gone", "f0"}), 1.0)
    return [first, *(Text(i + 1, frozenset({f"f{i}", f"f{i + 1}"}), 1.0 if i % 2 else -1.0) for i in range(7))]


@pytest.mark.parametrize(
    ("texts", "choose", "gone"),
    [
        # Greedy caps: without the first text the choice of every other one turns.
        (_chain(), lambda texts: capped(texts, 1, 1), {0}),
        # A minimum number of records: without one text the user's others go too.
        (
            [Text(0, frozenset(), 1.0)] * 4,
            lambda texts: texts if len(texts) >= 4 else [],
            {0},
        ),
        # Entities in more than k texts are dropped: without one of the texts the others come back.
        (
            [Text(i, frozenset({"f"}), 1.0 if i else -1.0) for i in range(5)],
            lambda texts: texts if sum("f" in t.entities for t in texts) <= 4 else [],
            {0},
        ),
    ],
    ids=["greedy caps", "minimum number of records", "frequent entities dropped"],
)
def test_what_looks_at_other_texts_breaks_the_bound_under_add_remove(texts, choose, gone):
    """One text goes, and the bound is that of two: what the choice did to the rest is more."""
    lacking = [t for i, t in enumerate(texts) if i not in gone]
    laws = text_sampling(choose(texts), 0.3), text_sampling(choose(lacking), 0.3)
    assert excess(*laws, PoissonGaussian(Z, 0.3, 2)) > 1.02
    # The same texts without any choice keep it.
    laws = text_sampling(texts, 0.3), text_sampling(lacking, 0.3)
    assert excess(*laws, PoissonGaussian(Z, 0.3, 1)) <= 1.0 + QUADRATURE
