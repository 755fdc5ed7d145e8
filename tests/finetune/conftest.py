"""Fixtures of the training tests."""

import functools

import pytest

from tests.documents import encode


@pytest.fixture(scope="session")
def make_lm(make_lm):
    """Models of one layer: training asks the model for losses and gradients, whatever it consists of."""
    return functools.partial(make_lm, layers=1)


@pytest.fixture
def sequences(make_lm, english):
    """Token sequences of forty sentences."""
    return encode(make_lm().tokenizer, english[:40], 31)
