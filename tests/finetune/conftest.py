"""Fixtures of the training tests."""

import pytest

from heldin.finetune.batches import encode


@pytest.fixture
def sequences(make_lm, english):
    """Token sequences of forty sentences."""
    return encode(make_lm().tokenizer, english[:40], 31)
