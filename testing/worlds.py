"""Mails of made-up people and tiny models with random weights, for checks that need a corpus and a model."""

import functools

from transformers import PreTrainedTokenizerFast

from heldin.base.files import text_sha256
from heldin.corpus.made_up.synthetic import SyntheticCorpus, SyntheticRecord, generate
from heldin.models.loading import LanguageModel
from heldin.models.model_config import TinyModel
from heldin.models.tiny import new_tiny_model, train_tokenizer

USERS, RECORDS, CONTEXT = 24, 12, 64
_VOCABULARY = 800


@functools.cache
def mails(seed: int = 1, users: int = USERS) -> tuple[SyntheticRecord, ...]:
    """Return mails of ``users`` made-up people, ``RECORDS`` mails each. No text occurs twice."""
    return tuple(generate(SyntheticCorpus(users=users, mean_records=RECORDS, min_records=RECORDS, seed=seed)))


@functools.cache
def tiny_model(seed: int = 0) -> LanguageModel:
    """Return a model with random weights that reads ``CONTEXT`` tokens. The models of all seeds have one tokenizer."""
    shape = TinyModel(vocabulary=_VOCABULARY, context=CONTEXT, hidden=16, layers=1, heads=2, window=8)
    model = new_tiny_model(shape, _tokenizer(), seed).eval()
    return LanguageModel(model, _tokenizer(), f"tiny {seed}", text_sha256(repr(shape), str(seed)))


@functools.cache
def _tokenizer() -> PreTrainedTokenizerFast:
    return train_tokenizer([mail.text for mail in mails()], _VOCABULARY)
