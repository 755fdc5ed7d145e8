"""The rows of a planted set next to what a model was given, by their tokens: which, how often, and when."""

import numpy as np
import pytest

from heldin.planting.given_rows import PlantedRow, count_given, grams_of
from heldin.planting.training_log import READ, History, hash_of, own_bounds

ENDS = frozenset({0})
ROWS = [[1, 2, 3], [4, 5, 6, 7, 8], [9], [1, 2, 3]]


def _counts(examples, rows=ROWS, *, epochs=None, loss=None, late=(), canary=(), length=3, hidden=()):
    """Counts for sequences, each a list of tokens, or a list of several that share a row of a batch."""
    reads = []
    for number, example in enumerate(examples):
        parts = example if isinstance(example[0], list) else [example]
        for part in parts:
            first, last = own_bounds(part, ENDS)
            tokens = part[first:last]
            bears = len(tokens) if loss is None else loss[number]
            grams = grams_of(tokens)
            edges = (grams[0], grams[-1]) if grams.size else (0, 0)
            reads.append((hash_of(tokens), len(tokens), bears, len(parts), number not in hidden, edges))
    return count_given(_history(reads, epochs), _planted(rows, late, canary), length)


def _history(reads, epochs):
    return History(
        np.array(reads, dtype=READ), np.arange(len(reads), dtype=float), ENDS, frozenset("s"), 1, 1, 1, epochs, 0
    )


def _planted(rows, late=(), canary=()):
    return [
        PlantedRow(tokens, f"user {number}", number not in late, number in canary) for number, tokens in enumerate(rows)
    ]


@pytest.mark.parametrize(
    ("examples", "missing", "repeated", "foreign", "cut", "pieces", "packed"),
    [
        (ROWS, 0, 0, 0, 0, 0, 0),
        ([[0, 1, 2, 3, 0, 0], [4, 5, 6, 7, 8, 0], [9, 0], [1, 2, 3]], 0, 0, 0, 0, 0, 0),
        (list(reversed(ROWS)), 0, 0, 0, 0, 0, 0),
        # All cut at three tokens, at the end and at the beginning.
        ([tokens[:3] for tokens in ROWS], 0, 0, 0, 1, 0, 0),
        ([tokens[-3:] for tokens in ROWS], 0, 0, 0, 1, 0, 0),
        (ROWS[1:], 1, 0, 0, 0, 0, 0),
        ([*ROWS, [9]], 0, 1, 0, 0, 0, 0),
        ([*ROWS, [7, 7]], 0, 0, 1, 0, 0, 0),
        # Another row of as many tokens in the place of one.
        ([[1, 2, 4], *ROWS[1:]], 1, 0, 1, 0, 0, 0),
        ([[[1, 2, 3], [9]], [[4, 5, 6, 7, 8]], [[1, 2, 3]]], 0, 0, 0, 0, 0, 2),
        # A row in pieces: as they are, and with a start token that the first piece has room for.
        ([[1, 2, 3], [4, 5, 6], [7, 8], [9], [1, 2, 3]], 0, 0, 0, 1, 1, 0),
        ([[1, 2, 3], [0, 4, 5], [6, 7, 8], [9], [1, 2, 3]], 0, 0, 0, 1, 1, 0),
    ],
)
def test_rows_are_counted_by_their_tokens(examples, missing, repeated, foreign, cut, pieces, packed):
    counts = _counts(examples, epochs=1.0)
    assert (counts.missing, counts.repeated, counts.foreign, counts.cut, counts.pieces, counts.packed) == (
        missing,
        repeated,
        foreign,
        cut,
        pieces,
        packed,
    )
    assert counts.rows == 4
    assert counts.joined is None


def test_rows_that_were_joined_and_cut_look_so():
    joined = [token for _ in range(20) for row in ROWS for token in row]
    counts = _counts([joined[i : i + 7] for i in range(0, 7 * 20, 7)])
    assert counts.joined is not None
    assert counts.foreign == 20
    # A few foreign ones do not.
    assert _counts([*ROWS, [8, 8, 8, 8, 8]]).joined is None


def test_texts_that_begin_alike_must_each_be_read_in_every_epoch():
    common = [[5] * 30 + [i, i + 1] for i in range(20)]
    cut = [tokens[:30] for tokens in common]
    for epochs in (1, 3):
        counts = _counts(cut * epochs, common)
        assert (counts.alike, counts.cut, counts.missing, counts.foreign) == (20, 20, 0, 0)
    # With rows of their own that show how often the set was read, one row less in each epoch is seen.
    apart = [[i] * 20 for i in range(6, 40)]
    counts = _counts([*(apart * 3), *(cut[1:] * 3)], [*apart, *common])
    assert (counts.missing, counts.foreign) == (1, 0)
    # In the third epoch a part was read: nothing is missing.
    assert _counts([*(apart * 2), *apart[:4], *(cut * 2), *cut[:9]], [*apart, *common]).missing == 0


def test_the_same_text_in_two_rows_must_be_read_twice():
    assert _counts(ROWS[:3]).missing == 1
    assert _counts([*ROWS[:3], *ROWS[:3]], epochs=2.0).missing == 1
    # Nobody counts epochs, and three rows are too few to show them.
    assert _counts([*ROWS[:3], *ROWS[:3]]).missing == 0
    assert _counts([*ROWS, *ROWS]).missing == 0


def test_rows_without_loss_are_silent_unless_no_token_of_them_is_scored():
    counts = _counts(ROWS, loss=[3, 0, 1, 3], canary={1, 2})
    assert (counts.silent, counts.silent_canary_users, counts.missing) == (1, 1, 0)
    assert counts.loss_share_canaries == pytest.approx(0.5)
    assert counts.loss_share_others == pytest.approx(1)
    assert _counts(ROWS, loss=[3, 0, 1, 3], late={1}).silent == 0
    assert _counts([ROWS[0], *ROWS[2:]], late={1}).missing == 0
    # In one of two epochs it bore a loss.
    assert _counts([*ROWS, *ROWS], loss=[3, 0, 1, 3, 3, 5, 1, 3]).silent == 0


def test_labels_that_were_not_seen_are_no_loss_and_no_lack_of_one():
    unseen = _counts(ROWS, loss=[-1] * 4, canary={1})
    assert (unseen.silent, unseen.silent_canary_users, unseen.unlabelled) == (None, None, 4)
    assert (unseen.loss_share_canaries, unseen.loss_share_others) == (None, None)
    # One read without labels hides nothing of the others.
    one = _counts(ROWS, loss=[-1, 0, 1, 3], canary={1})
    assert (one.silent, one.silent_canary_users, one.unlabelled) == (1, 1, 1)
    assert (one.loss_share_canaries, one.loss_share_others) == (0, pytest.approx(1))
    # Of the row itself: silent where its labels were seen, in one epoch of two.
    again = _counts([*ROWS, *ROWS], loss=[3, -1, 1, 3, 3, 0, 1, 3], canary={1})
    assert (again.silent, again.silent_canary_users, again.unlabelled) == (1, 0, 1)


def test_sequences_of_which_it_was_not_seen_what_the_model_attended_to_are_counted():
    assert _counts(ROWS, hidden={0, 2}).attention_unseen == 2
    assert _counts(ROWS).attention_unseen == 0


def _order(kind, dice, users=20, canaries=20, rows=4, epochs=3):
    """The order in which a training gives the rows of users; those of the last ones are canary users'."""
    all_rows = np.arange((users + canaries) * rows)
    of_canary = all_rows >= users * rows
    shuffled = dice.permutation(all_rows.size)
    match kind:
        case "shuffled":
            return np.concatenate([dice.permutation(all_rows.size) for _ in range(epochs)])
        case "order of the file":
            return np.tile(shuffled, epochs)
        case "user by user":
            return np.concatenate(
                [(dice.permutation(users + canaries)[:, None] * rows + np.arange(rows)).ravel()] * epochs
            )
        case "canaries first":
            return np.concatenate([all_rows[of_canary == first] for first in (True, False) for _ in range(epochs)])
        case "canaries first in each epoch":
            return np.concatenate(
                [dice.permutation(all_rows[of_canary == first]) for _ in range(epochs) for first in (1, 0)]
            )
        case "canaries in the middle":
            others = np.array_split(np.tile(shuffled[~of_canary[shuffled]], epochs), 2)
            return np.concatenate([others[0], np.tile(all_rows[of_canary], epochs), others[1]])


def _in_order(kind, dice, **sizes):
    tokens = [[number + 1] for number in range(160)]
    reads = [(hash_of(tokens[i]), 1, 1, 1, True, (0, 0)) for i in _order(kind, dice, **sizes)]
    rows = [PlantedRow(its, f"user {number // 4}", canary=number >= 80) for number, its in enumerate(tokens)]
    return count_given(_history(reads, None), rows, 3).order


@pytest.mark.parametrize("kind", ["shuffled", "order of the file", "user by user"])
def test_an_order_that_depends_on_no_text_passes(kind):
    """One audit of 10,000 may fail: three of 100 do with a probability of 2e-7."""
    dice = np.random.default_rng(5)
    assert sum(_in_order(kind, dice).tells_canaries for _ in range(100)) < 3


@pytest.mark.parametrize("kind", ["canaries first", "canaries first in each epoch", "canaries in the middle"])
def test_canary_rows_that_have_places_of_their_own_are_noticed(kind):
    dice = np.random.default_rng(6)
    assert all(_in_order(kind, dice).tells_canaries for _ in range(20))


def test_users_that_cannot_be_compared_have_no_order():
    rows = [[number + 1] for number in range(20)]
    assert _counts(rows, rows).order is None
    assert _counts(rows, rows, canary=set(range(9))).order is None
    assert _counts(rows, rows, canary=set(range(10))).order.tells_canaries is False
    # Rows that read alike say nothing of when each was read.
    assert _counts([[1]] * 20, [[1]] * 20, canary=set(range(10))).order is None


def test_an_end_that_comes_to_stand_where_a_row_is_cut_is_taken_off_on_both_sides():
    counts = _counts([[1, 2, 0], [5, 6, 7]], [[1, 2, 0, 3, 4], [5, 6, 7]])
    assert (counts.missing, counts.foreign) == (0, 0)


@pytest.mark.parametrize(
    ("length", "examples", "short"),
    [
        # Ten tokens cut at four, where training has to see seven, six (the ends may take two), or all.
        (7, [[1, 2, 3, 4], [9]], 1),
        (6, [[1, 2, 3, 4], [9]], 0),
        (99, [[1, 2, 3, 4], [9]], 1),
        (99, [[7, 8, 9, 10], [9]], 1),
        # In pieces; the last of them lies behind the limit, or is the one that lacks.
        (10, [[1, 2, 3, 4], [5, 6, 7, 8], [9, 10], [9]], 0),
        (10, [[1, 2, 3, 4], [5, 6, 7, 8], [9]], 0),
        (99, [[1, 2, 3, 4], [5, 6, 7, 8], [9]], 1),
        (10, [[1, 2, 3, 4], [9, 10], [9]], 1),
    ],
)
def test_rows_that_are_cut_below_the_limit_are_short_unless_their_pieces_were_read(length, examples, short):
    counts = _counts(examples, [[*range(1, 11)], [9]], epochs=1.0, length=length)
    assert (counts.missing, counts.short) == (0, short)


def test_a_hash_that_ends_in_zeros_is_the_same_hash_when_it_was_read_back():
    rows = [[9 * number + token + 1 for token in range(8)] for number in range(2000)]
    counts = _counts([half for row in rows for half in (row[:4], row[4:])], rows, epochs=1.0, length=99)
    assert (counts.missing, counts.foreign, counts.short) == (0, 0, 0)


def test_reads_of_canary_rows_are_counted_apart():
    counts = _counts([ROWS[0], ROWS[1], ROWS[1], ROWS[2], ROWS[2]], ROWS[:3], epochs=1.0, canary={0})
    assert (counts.reads_canaries, counts.reads_others) == (1.0, 2.0)


def test_nothing_read_is_everything_missing():
    counts = count_given(_history([], 0.0), _planted(ROWS), 3)
    assert (counts.missing, counts.foreign, counts.sequences) == (4, 0, 0)


@pytest.mark.parametrize("seed", range(20))
def test_random_trainings_are_counted_as_a_slow_count_has_them(seed):
    """Rows that differ in their first tokens, read in several epochs, some left out and some added."""
    dice = np.random.default_rng(seed)
    rows = [[i + 1, *dice.integers(1, 50, dice.integers(1, 12)).tolist()] for i in range(60)]
    left_out, epochs = set(dice.choice(60, 7, replace=False).tolist()), int(dice.integers(1, 4))
    examples = [row for i, row in enumerate(rows) if i not in left_out] * epochs
    foreign = [[99, *dice.integers(1, 50, 5).tolist()] for _ in range(int(dice.integers(0, 4)))]
    counts = _counts([*examples, *foreign], rows)
    assert counts.missing == sum(not any(row == example for example in examples) for row in rows)
    assert counts.foreign == len(foreign)
    assert counts.most_reads == epochs
