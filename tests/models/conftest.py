"""What tests of endpoints share."""

import pytest


@pytest.fixture
def folder(make_lm, tmp_path):
    """A folder with the tiny models' tokenizer."""
    make_lm().tokenizer.save_pretrained(tmp_path / "tokenizer")
    return str(tmp_path / "tokenizer")
