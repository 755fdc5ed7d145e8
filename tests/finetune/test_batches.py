"""Sequences, batches and losses: a record a sequence, every record once an epoch, no loss touched by other records."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from heldin.finetune import batches
from heldin.finetune.batches import ShuffledBatches, collate
from heldin.models.tokens import IGNORED
from tests.documents import encode, ids, record_losses, tokens
from tests.refusals import refused


def test_a_sequence_is_start_text_end_cut_to_its_length(make_lm):
    tokenizer = make_lm().tokenizer
    text = "The river opens the letter on day 7."
    own = tokenizer(text, add_special_tokens=False)["input_ids"]
    end = tokenizer.eos_token_id
    assert ids(encode(tokenizer, [text], 100)) == [[end, *own, end]]
    assert ids(encode(tokenizer, [text], 5)) == [[end, *own[:5]]]
    with refused(by=batches.encode, naming="2"):
        encode(tokenizer, [text, ""], 5)


@settings(max_examples=60, deadline=None)
@given(
    lengths=st.lists(st.integers(2, 60), min_size=1, max_size=200),
    batch=st.integers(1, 17),
    seed=st.integers(0, 1000),
    grouped=st.booleans(),
)
def test_every_epoch_holds_every_record_once(lengths, batch, seed, grouped):
    drawn = ShuffledBatches(lengths, batch, seed, group_by_length=grouped)
    for epoch in range(2):
        rows = [drawn.rows(epoch * drawn.per_epoch + i) for i in range(drawn.per_epoch)]
        assert sorted(row for rs in rows for row in rs) == list(range(len(lengths)))
        assert all(0 < len(rs) <= batch for rs in rows)


def test_batches_are_a_function_of_seed_and_step_and_differ_by_epoch():
    lengths = list(range(2, 102))
    one, two = (ShuffledBatches(lengths, 8, 0, group_by_length=True) for _ in range(2))
    assert [one.rows(s) for s in (20, 3, 14)] == [two.rows(s) for s in (20, 3, 14)]
    assert one.rows(0) != one.rows(one.per_epoch)
    assert one.rows(0) != ShuffledBatches(lengths, 8, 1, group_by_length=True).rows(0)


def test_grouping_by_length_saves_padding():
    lengths = np.random.default_rng(0).integers(2, 200, 2000)

    def padded(grouped):
        drawn = ShuffledBatches(lengths, 8, 0, group_by_length=grouped)
        return sum(max(lengths[drawn.rows(s)]) * 8 for s in range(drawn.per_epoch))

    assert padded(True) < 1.1 * lengths.sum()
    assert padded(False) > 1.5 * lengths.sum()


def test_the_loss_of_a_record_is_its_own_mean_whatever_the_batch(make_lm):
    lm = make_lm()
    texts = ["The river.", "The market counts the story on day 7.", "x"]
    sequences = encode(lm.tokenizer, texts, 32)
    with torch.no_grad():
        together = record_losses(lm.model, *collate(sequences, lm.device).tensors[:2])
        for i, own in enumerate(ids(sequences)):
            tensor = torch.tensor([own])
            loss = lm.model(input_ids=tensor, labels=tensor).loss  # the library's own mean over one record's tokens
            assert together[i].item() == pytest.approx(loss.item(), abs=1e-5)


def test_padding_is_ignored():
    inputs, targets, _ = collate(tokens([[1, 2, 3, 4], [1, 5]]), torch.device("cpu")).tensors
    assert inputs.tolist() == [[1, 2, 3], [1, 1, 1]]
    assert targets.tolist() == [[2, 3, 4], [5, IGNORED, IGNORED]]
