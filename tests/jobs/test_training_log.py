"""The rows of a training set beside a trainer's examples, by their tokens, and weights by their values."""

import pytest
import torch

from heldin.jobs.planted.training_log import seen_rows, tensor_hashes

ENDS = frozenset({0})
ROWS = [[1, 2, 3], [4, 5, 6, 7, 8], [9], [1, 2, 3]]


def _seen(examples, rows=ROWS):
    return seen_rows([its if isinstance(its[0], list) else [its] for its in examples], rows, ends=ENDS)


@pytest.mark.parametrize(
    ("examples", "missing", "repeated", "foreign", "cut", "packed"),
    [
        (ROWS, 0, 0, 0, 0, 0),
        ([[0, 1, 2, 3, 0, 0], [4, 5, 6, 7, 8, 0], [9, 0], [1, 2, 3]], 0, 0, 0, 0, 0),
        (list(reversed(ROWS)), 0, 0, 0, 0, 0),
        # all cut at three tokens
        ([its[:3] for its in ROWS], 0, 0, 0, 1, 0),
        (ROWS[1:], 1, 0, 0, 0, 0),
        ([*ROWS, [9]], 0, 1, 0, 0, 0),
        ([*ROWS, [7, 7]], 0, 0, 1, 0, 0),
        # another row of as many tokens in the place of one
        ([[1, 2, 4], *ROWS[1:]], 1, 0, 1, 0, 0),
        ([[[1, 2, 3], [9]], [[4, 5, 6, 7, 8]], [[1, 2, 3]]], 0, 0, 0, 0, 1),
        # packed without a word on where rows end: nothing is recognised
        ([[1, 2, 3, 4, 5], [6, 7, 8, 9, 1], [2, 3]], 4, 0, 3, 0, 0),
        # a row cut into two examples
        ([[1, 2, 3], [4, 5, 6], [7, 8], [9], [1, 2, 3]], 0, 0, 1, 1, 0),
    ],
)
def test_rows_are_counted_by_their_tokens(examples, missing, repeated, foreign, cut, packed):
    seen = _seen(examples)
    assert (seen.missing, seen.repeated, seen.foreign, seen.cut, seen.packed) == (
        missing,
        repeated,
        foreign,
        cut,
        packed,
    )
    assert (seen.examples, seen.rows) == (len(examples), 4)
    assert seen.all_and_no_other is (not (missing or foreign))
    assert seen.recognised is (missing < 4)


def test_tensors_are_known_by_their_values_in_every_precision():
    tensors = [torch.arange(6.0).reshape(2, 3), torch.zeros(2), torch.arange(3)]
    assert tensor_hashes(tensors) == tensor_hashes([its.to(torch.bfloat16) for its in tensors[:2]])
    assert tensor_hashes([torch.arange(6.0).reshape(3, 2)]) != tensor_hashes(tensors[:1])
    assert len(tensor_hashes(tensors)) == 2  # of numbers that are trained


def test_texts_that_begin_alike_and_are_cut_are_declared():
    common = [[5] * 30 + [i, i + 1] for i in range(20)]
    seen = _seen([its[:30] for its in common], common)
    assert (seen.unclear, seen.cut, seen.all_and_no_other) == (20, 20, False)
    # One more that begins like a row may be anybody's.
    apart = [[i] * 40 for i in range(1, 20)]
    assert _seen([its[:30] for its in [*apart, apart[3]]], apart).unclear == 1
    assert _seen([its[:30] for its in apart], apart).all_and_no_other
    # The same text twice is no other text.
    assert _seen([its[:30] for its in [*apart, apart[3]]], [*apart, apart[3]]).all_and_no_other


def test_an_end_that_comes_to_stand_where_a_row_is_cut_is_taken_off_on_both_sides():
    rows = [[1, 2, 0, 3, 4], [5, 6, 7]]
    assert seen_rows([[[1, 2, 0]], [[5, 6, 7]]], rows, ends=ENDS).all_and_no_other
