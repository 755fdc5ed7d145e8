"""Losses of chats are the oracle's, and mistakes that trainers make with masks are seen by the same comparison."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from heldin.corpus.chat.conversation import Conversation
from heldin.corpus.chat.template import ChatTemplate
from heldin.corpus.document import Counting
from heldin.finetune.batches import collate, encode
from heldin.models.loading import LanguageModel
from heldin.models.logprobs import score_documents
from heldin.models.objective import LANGUAGE_MODELLING, TokenBatch
from heldin.models.tokens import IGNORED, Tokens
from tests.chats import TEMPLATES, chat, chat_model, tokenizer_with
from tests.oracles.chat_loss import chat_loss

CHATS = [
    chat("What is new?", "Nothing is."),
    chat("And what else?", "It rains.", "Fine, then.", "a longer answer here, which goes on"),
    chat("Nothing is.", "What is new? What else?", "a longer answer here", "no"),
]
CPU = torch.device("cpu")


def documents(tokenizer, counting=Counting.ASSISTANT):
    template = ChatTemplate.of(tokenizer, "a model")
    return [template.document(Conversation(messages)).counting(counting) for messages in CHATS]


def losses(model, records):
    with torch.no_grad():
        return LANGUAGE_MODELLING.losses(model, collate(records, CPU)).tolist()


def expected(model, tokenizer):
    return [chat_loss(model, tokenizer, messages) for messages in CHATS]


@pytest.mark.parametrize("name", ["chatml", "llama3", "gemma", "phi"])
def test_losses_are_those_of_the_oracle(name):
    tokenizer, model = tokenizer_with(TEMPLATES[name]), chat_model()
    records = encode(tokenizer, documents(tokenizer), None)
    assert losses(model, records) == pytest.approx(expected(model, tokenizer), abs=1e-5)


@pytest.mark.parametrize("name", ["chatml", "llama3"])
def test_scores_are_those_of_the_same_tokens(name):
    tokenizer, model = tokenizer_with(TEMPLATES[name]), chat_model()
    lm = LanguageModel(model, tokenizer, "a chat model", "")
    scored = [scores.mean_loss for scores in score_documents(lm, documents(tokenizer))]
    assert scored == pytest.approx(expected(model, tokenizer), abs=1e-5)
    # Where all counts, all tokens but the first have a score.
    whole = score_documents(lm, documents(tokenizer, Counting.ALL))
    lengths = [len(tokens) for tokens in encode(tokenizer, documents(tokenizer, Counting.ALL), None)]
    assert [len(scores.logprobs) for scores in whole] == [length - 1 for length in lengths]


def shifted(records):
    return [Tokens(r.ids, np.roll(r.counted, 1)) for r in records]


def on_user_turns(tokenizer):
    return encode(tokenizer, documents(tokenizer, Counting.USER), None)


def mask_lost(records):
    return [Tokens(r.ids) for r in records]


def without_ends(records):
    """The token that ends a turn is left out: the model never learns to stop."""
    kept = []
    for r in records:
        after = np.append(r.counted[1:], False)
        kept.append(Tokens(r.ids, r.counted & after))
    return kept


def counting_padding(records):
    batch = collate(records, CPU)
    return TokenBatch.of(batch.inputs, torch.where(batch.targets == IGNORED, batch.inputs, batch.targets))


BUGS = {
    "shifted by one token": lambda model, tokenizer, records: losses(model, shifted(records)),
    "user turns trained on": lambda model, tokenizer, records: losses(model, on_user_turns(tokenizer)),
    "mask lost": lambda model, tokenizer, records: losses(model, mask_lost(records)),
    "ends of turns left out": lambda model, tokenizer, records: losses(model, without_ends(records)),
    "padding and prompts counted": lambda model, tokenizer, records: LANGUAGE_MODELLING.losses(
        model, counting_padding(records)
    ).tolist(),
    "mean over the batch's tokens": lambda model, tokenizer, records: _batch_means(model, records),
    "a second start token": lambda model, tokenizer, records: losses(
        model, [Tokens([0, *r.ids], np.append(False, r.counted)) for r in records]
    ),
}


def _batch_means(model, records):
    """Each record's share of the batch's mean, times the number of records: what a trainer's mean makes of it."""
    bearing = [int(r.counted[1:].sum()) for r in records]
    own = losses(model, records)
    return [loss * n * len(records) / sum(bearing) for loss, n in zip(own, bearing, strict=True)]


@pytest.mark.parametrize("bug", BUGS)
def test_a_mistake_with_masks_is_seen(bug):
    tokenizer, model = tokenizer_with(TEMPLATES["chatml"]), chat_model()
    records = encode(tokenizer, documents(tokenizer), None)
    wrong = BUGS[bug](model, tokenizer, records)
    assert wrong != pytest.approx(expected(model, tokenizer), abs=1e-3)


def test_a_mask_that_truncation_loses_is_seen():
    tokenizer, model = tokenizer_with(TEMPLATES["chatml"]), chat_model()
    (whole,) = encode(tokenizer, documents(tokenizer)[1:2], None)
    # Cut as the product cuts, within the last turn: what is left of the mask is that of the same tokens.
    most = len(whole) - 4
    (cut,) = encode(tokenizer, documents(tokenizer)[1:2], most - 1)
    assert list(cut.counted) == list(whole.counted[: len(cut)])
    lost = replace(cut, counted=None)
    assert losses(model, [lost]) != pytest.approx(losses(model, [cut]), abs=1e-3)
