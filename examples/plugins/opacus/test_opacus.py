import pytest
import torch
from heldin_opacus import Example
from transformers import GPT2Config, GPT2LMHeadModel

from heldin.base.errors import InputError
from heldin.testing import check_mechanism

OPACUS = Example(kind="heldin_opacus:Example", population=60, cohort=6, steps=5, delta=1e-3, noise=1.3, clip_norm=1.0)


def test_its_step_is_the_one_that_its_event_states():
    check_mechanism(OPACUS)


def test_a_model_that_opacus_gets_wrong_is_refused():
    config = GPT2Config(vocab_size=53, n_positions=16, n_embd=16, n_layer=1, n_head=2)
    model = GPT2LMHeadModel(config)
    for tied in (True, False):
        if not tied:
            model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight.detach().clone())
        with pytest.raises(InputError, match="tied embeddings"):
            OPACUS.require_model(model)
