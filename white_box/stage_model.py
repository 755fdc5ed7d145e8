"""The tiny models on which a trainer is audited: GPT-Neo or GPT-2, with tied embeddings or a head of its own."""

from dataclasses import dataclass
from typing import Literal, get_args

import torch
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedModel, PreTrainedTokenizerFast

from heldin.base.errors import InputError
from heldin.models.devices import seed_generators
from heldin.models.model_config import TinyModel
from heldin.models.tiny import new_tiny_model

Architecture = Literal["gpt-neo", "gpt2"]


@dataclass(frozen=True)
class StageModel:
    """The model on which a trainer is audited. Both name their embeddings and positions alike.

    Attributes:
        architecture: "gpt-neo", or "gpt2", whose layers are Conv1D and whose attention is one product.
        tied: the head is the embedding table, as in the released models; False: a copy of it, trained by itself.
    """

    architecture: Architecture = "gpt-neo"
    tied: bool = True

    def __str__(self) -> str:
        """Its name in a finding."""
        name = {"gpt-neo": "GPT-Neo", "gpt2": "GPT-2"}[self.architecture]
        return f"{name} with {'tied embeddings' if self.tied else 'a head of its own'}"

    def new(self, shape: TinyModel, tokenizer: PreTrainedTokenizerFast) -> PreTrainedModel:
        """The model before training, always the same; without dropout. The head of an untied one is still the table."""
        if self.architecture == "gpt-neo":
            return new_tiny_model(shape, tokenizer, seed=0)
        config = GPT2Config(
            vocab_size=len(tokenizer),
            n_positions=shape.context,
            n_embd=shape.hidden,
            n_layer=shape.layers,
            n_head=shape.heads,
            resid_pdrop=0.0,
            embd_pdrop=0.0,
            attn_pdrop=0.0,
            bos_token_id=tokenizer.eos_token_id,
            eos_token_id=tokenizer.eos_token_id,
        )
        state = torch.get_rng_state()
        seed_generators(0, torch.device("cpu"))
        model = GPT2LMHeadModel(config)
        torch.set_rng_state(state)
        return model


TIED_GPT_NEO = StageModel()


def stage_model(architecture: str, *, tied: bool = True) -> StageModel:
    """The model that an option names. Raises InputError, listing the choices, for any other."""
    for name in get_args(Architecture):
        if architecture == name:
            return StageModel(name, tied)
    raise InputError(f"'{architecture}' is no model of the audit: choose from {', '.join(get_args(Architecture))}")


def untie(model: PreTrainedModel) -> None:
    """Give a tied model a head of its own, a copy of its embedding table."""
    model.config.tie_word_embeddings = False
    model.lm_head.weight = torch.nn.Parameter(model.transformer.wte.weight.detach().clone())
