"""Statistics of pooled and of other users' tokens: against slow twins, worked examples, and what must not matter."""

import numpy as np
import pytest

from heldin.attacks.joint import JointAttack
from heldin.attacks.joint_statistics import LEAST_FALL
from heldin.attacks.kinds import ATTACKS, get_attack
from heldin.models.token_scores import TokenScores
from tests.made_tokens import made_world, scored, statistics_of
from tests.oracles import attack_statistics as slow
from tests.refusals import raised_apart, refused

JOINT = [its for its in map(get_attack, ATTACKS.ours) if isinstance(its, JointAttack)]
every_joint_attack = pytest.mark.parametrize("attack", JOINT, ids=[its.name for its in JOINT])


def _text(ratios, *, ids=None, ranks=None, reference=-4.0):
    """A text with these ratios, whose reference is always as sure."""
    count = len(ratios)
    ids, ranks = ids or [0] * count, ranks or [1] * count
    return [(i, reference + d, reference, rank) for i, d, rank in zip(ids, ratios, ranks, strict=True)]


@every_joint_attack
@pytest.mark.parametrize("seed", range(4))
def test_it_equals_its_slow_twin(attack, seed):
    world = made_world(np.random.default_rng(seed))
    found = statistics_of(attack, world)
    twin = getattr(slow, attack.name)(world)
    if not attack.of_users:
        twin = {(user, i): value for user, values in twin.items() for i, value in enumerate(values)}
    else:
        twin = {(user, 0): value for user, value in twin.items()}
    assert found == pytest.approx(twin, rel=1e-9, abs=1e-12)
    assert len(set(found.values())) > 3


@every_joint_attack
def test_the_order_of_users_and_of_texts_does_not_matter(attack):
    world = made_world(np.random.default_rng(9))
    turned = {user: world[user][::-1] for user in reversed(world)}
    found, again = statistics_of(attack, world), statistics_of(attack, turned)
    for user, texts in world.items():
        for text in range(1 if attack.of_users else len(texts)):
            there = 0 if attack.of_users else len(texts) - 1 - text
            assert again[user, there] == pytest.approx(found[user, text], rel=1e-9, abs=1e-12)


@every_joint_attack
def test_names_of_users_do_not_matter(attack):
    world = made_world(np.random.default_rng(3))
    renamed = {f"z{100 - i}": texts for i, texts in enumerate(world.values())}
    assert list(statistics_of(attack, renamed).values()) == list(statistics_of(attack, world).values())


@every_joint_attack
def test_what_it_needs_and_does_not_get_is_one_line(attack):
    owners, texts, target, reference = scored(made_world(np.random.default_rng(0)))
    with refused(by="JointAttack._table", naming=f"'{attack.name}'") as without_reference:
        attack.statistics(owners, texts, target, [None] * len(owners))
    shorter = [its.at(np.arange(len(its.logprobs)) > 0) for its in reference]
    with refused(by="JointAttack._table", naming=f"'{attack.name}'") as other_tokens:
        attack.statistics(owners, texts, target, shorter)
    assert raised_apart(without_reference, other_tokens)
    plain = [TokenScores(its.logprobs) for its in target]
    if attack.needs_ids or attack.needs_ranks:
        with refused(by="JointAttack._column", naming=f"'{attack.name}'"):
            attack.statistics(owners, texts, plain, reference)
    else:
        assert attack.statistics(owners, texts, plain, reference) == attack.statistics(owners, texts, target, reference)


@every_joint_attack
def test_of_nobody_there_is_nothing(attack):
    assert attack.statistics([], [], [], []) == []


def test_centred_takes_off_what_a_word_did_to_everybody_else():
    """One word, of one difficulty; the others' mean of it is 1, mixed with itself: 1. Own tokens would move it."""
    centred = get_attack("centred")
    world = {"ann": [_text([3.0, 3.0])], "bob": [_text([0.0, 2.0])], "cid": [_text([1.0])]}
    found = statistics_of(centred, world)
    assert found["ann", 0] == pytest.approx(3 - 1)
    assert found["cid", 0] == pytest.approx(1 - 8 / 4)
    # Her own tokens tell nothing of what is taken off them.
    louder = {**world, "ann": [_text([30.0, 30.0])]}
    assert statistics_of(centred, louder)["ann", 0] - found["ann", 0] == pytest.approx(27)
    # A second text of hers does not either.
    more = {**world, "ann": [_text([3.0, 3.0]), _text([9.0] * 50)]}
    assert statistics_of(centred, more)["ann", 0] == pytest.approx(found["ann", 0])


def test_centred_shrinks_a_rare_word_to_words_as_hard_and_trusts_a_common_one():
    """Word 1 rises by 5 wherever bob writes it; the hundred others stay."""
    centred = get_attack("centred")

    def of_ann(times):
        text = _text([0.0] * 100 + [5.0] * times, ids=[0] * 100 + [1] * times)
        return statistics_of(centred, {"ann": [_text([5.0], ids=[1])], "bob": [text]})["ann", 0]

    everybody = 5 / 101
    once = (5 + 10 * (5 + 10 * everybody + 100 * 0) / (101 + 10)) / 11
    assert of_ann(1) == pytest.approx(5 - once)
    assert of_ann(2000) < 0.2 < 4 < of_ann(1)


def test_centred_needs_a_second_user():
    with refused(by="Centred.values", naming="'centred'"):
        statistics_of(get_attack("centred"), {"ann": [_text([1.0])]})


def test_pooled_lets_a_long_text_count_more():
    world = {"ann": [_text([1.0]), _text([0.0, 0.0, 0.0])]}
    assert statistics_of(get_attack("pooled"), world) == {("ann", 0): pytest.approx(0.25)}


def test_weighted_trusts_a_mean_by_its_number_of_tokens():
    """Two users with the same mean above the others': the one of whom much is known scores higher."""
    rng = np.random.default_rng(0)

    def user(mean, texts):
        noise = rng.normal(0, 1, (texts, 20))
        return [_text((row - noise.mean() + mean).tolist()) for row in noise]

    world = {"much": user(0.3, 60), "little": user(0.3, 2)}
    world |= {f"other {i}": user(float(rng.normal(0, 0.1)), 10) for i in range(40)}
    found = statistics_of(get_attack("weighted"), world)
    assert found["much", 0] > 2 * found["little", 0] > 0
    pooled = statistics_of(get_attack("pooled"), world)
    assert pooled["much", 0] == pytest.approx(pooled["little", 0], abs=1e-6)


@pytest.mark.parametrize("ratios", [[[1.0], [2.0], [4.0]], [[1.0, 1.0], [2.0, 2.0], [4.0]]])
def test_weighted_counts_users_alike_where_nothing_varies_within_them(ratios):
    found = statistics_of(get_attack("weighted"), {str(i): [_text(its)] for i, its in enumerate(ratios)})
    assert list(found.values()) == pytest.approx([1 - 7 / 3, 2 - 7 / 3, 4 - 7 / 3])


def test_ez_is_rise_over_fall_among_tokens_that_the_target_gets_wrong():
    ez = get_attack("ez")
    first = _text([2.0, -1.0, 9.0], ranks=[3, 1, 0])
    assert statistics_of(ez, {"ann": [first]})["ann", 0] == pytest.approx(2 / 1)
    # Pooled before the ratio is taken: (2 + 4) / (1 + 0.5), and no mean of 2 and 8.
    second = _text([4.0, -0.5], ranks=[2, 2])
    assert statistics_of(ez, {"ann": [first, second]})["ann", 0] == pytest.approx(6 / 1.5)


@pytest.mark.parametrize(
    ("ratios", "ranks", "expected"),
    [
        ([5.0], [4], 0.0),  # one token
        ([5.0, -1.0, 3.0], [0, 0, 7], 0.0),  # one error token: fewer than two
        ([5.0, -1.0], [0, 0], 0.0),  # none
        ([-1.0, -2.0], [1, 1], 0.0),  # nothing rose
        ([0.0, 0.0], [1, 1], 0.0),  # ties
        ([1.0, 0.0], [1, 1], 1 / LEAST_FALL),  # nothing fell: first, where the authors' code puts it last
    ],
)
def test_ez_at_its_edges(ratios, ranks, expected):
    world = {"ann": [_text(ratios, ranks=ranks)], "bob": [_text([1.0, -1.0])]}
    assert statistics_of(get_attack("ez"), world)["ann", 0] == pytest.approx(expected)


def test_windows_counts_those_in_which_the_target_is_the_surer():
    """Three tokens: windows of two, then of three for every larger size, since no text is shorter than its window."""
    windows = get_attack("windows")
    of_two, of_three = [0.5 + 0.25, 0.25 - 1], [0.5 + 0.25 - 1]
    expected = (np.mean([its > 0 for its in of_two]) + 9 * np.mean([its > 0 for its in of_three])) / 10
    assert statistics_of(windows, {"ann": [_text([0.5, 0.25, -1.0])]})["ann", 0] == pytest.approx(expected) == 0.05
    # Windows of all texts are counted together, and no window crosses from one text to the next.
    both = statistics_of(windows, {"ann": [_text([0.5, 0.25, -1.0]), _text([1.0, 1.0])]})["ann", 0]
    assert both == pytest.approx((2 / 3 + 9 * 1 / 2) / 10)


@pytest.mark.parametrize(("ratios", "expected"), [([1.0], 1.0), ([-1.0], 0.0), ([0.0], 0.0), ([1.0, -1.0], 0.0)])
def test_windows_at_its_edges(ratios, expected):
    assert statistics_of(get_attack("windows"), {"ann": [_text(ratios)]})["ann", 0] == expected


def test_a_tie_is_no_vote_whatever_stands_before_it():
    """Sums of 3.8e-9 after -8: differences of running sums would make the last window of three a vote by rounding."""
    small = float(np.float32(3.8e-9))
    running = np.cumsum([-8.0, small, small, -2 * small])
    assert running[3] - running[0] > 0
    text = _text([-8.0, small, small, -2 * small], reference=0.0)
    # Of ten sizes only two has a vote, in one window of three.
    assert statistics_of(get_attack("windows"), {"ann": [text]})["ann", 0] == pytest.approx(1 / 3 / 10)


def test_no_table_of_users_by_words_is_made():
    """A thousand users and the ids of a large vocabulary: arrays stay as long as the tokens, or as the vocabulary."""
    import tracemalloc

    rng = np.random.default_rng(0)
    users, tokens, words = 1000, 40, 200_000
    owners = [str(user) for user in range(users)]
    target = [
        TokenScores(rng.normal(-3, 1, tokens).astype(np.float32), ids=rng.integers(0, words, tokens).astype(np.int32))
        for _ in owners
    ]
    reference = [TokenScores(rng.normal(-3, 1, tokens).astype(np.float32)) for _ in owners]
    tracemalloc.start()
    get_attack("centred").statistics(owners, ["words"] * users, target, reference)
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert most < 60e6 < users * words
