"""Tiny language models of several kinds, units of records for them, and how their gradients are held together."""

import pytest
import torch
from torch import nn

from heldin.defenses.gradients.per_unit_gradients import UnitBatch, clipped_gradient_sum
from heldin.models.reading import quiet_transformers

V = 61
ENGINES = ["loop", "materialise", "ghost", "stream", "auto"]
SHAPE = {"hidden_size": 16, "max_position_embeddings": 32, "vocab_size": V, "bos_token_id": 0, "eos_token_id": 0}
TWO = {"num_hidden_layers": 2, "num_attention_heads": 4}
TINY_LLAMA = {**SHAPE, **TWO, "num_key_value_heads": 2, "intermediate_size": 24}


def gpt_neo(**changes):
    from transformers import GPTNeoConfig, GPTNeoForCausalLM

    kinds = [[["global", "local"], 1]]
    settings = {**SHAPE, "num_layers": 2, "num_heads": 2, "window_size": 4, "attention_types": kinds, **changes}
    return GPTNeoForCausalLM(GPTNeoConfig(**settings))


def gpt2(**changes):
    from transformers import GPT2Config, GPT2LMHeadModel

    ids = {"vocab_size": V, "bos_token_id": 0, "eos_token_id": 0}
    drop = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
    return GPT2LMHeadModel(
        GPT2Config(**{**ids, **drop, "n_positions": 32, "n_embd": 16, "n_layer": 2, "n_head": 2, **changes})
    )


def opt(**changes):
    from transformers import OPTConfig, OPTForCausalLM

    own = {"ffn_dim": 24, "word_embed_proj_dim": 8, "pad_token_id": 1, "dropout": 0.0}
    return OPTForCausalLM(OPTConfig(**{**SHAPE, **TWO, **own, **changes}))


def pythia():
    from transformers import GPTNeoXConfig, GPTNeoXForCausalLM

    return GPTNeoXForCausalLM(GPTNeoXConfig(**SHAPE, **TWO, intermediate_size=24))


def llama(tied=False):
    from transformers import LlamaConfig, LlamaForCausalLM

    return LlamaForCausalLM(LlamaConfig(**TINY_LLAMA, tie_word_embeddings=tied))


def lora():
    from peft import LoraConfig, get_peft_model

    with quiet_transformers():
        model = get_peft_model(gpt2(), LoraConfig(r=3, target_modules=["c_attn", "c_fc"], fan_in_fan_out=True))
    for name, parameter in model.named_parameters():
        if "lora_B" in name:  # zero at the start, which would leave lora_A without a gradient
            nn.init.normal_(parameter, std=0.1)
    return model


MODELS = {
    "gpt-neo": gpt_neo,
    "gpt-neo untied": lambda: gpt_neo(tie_word_embeddings=False),
    "gpt2": gpt2,
    "opt": opt,
    "pythia": pythia,
    "llama": llama,
    "llama tied": lambda: llama(tied=True),
    "lora": lora,
}


def new_model(name="gpt-neo", seed=0):
    torch.manual_seed(seed)
    model = MODELS[name]()
    for parameter in model.parameters():
        if parameter.dim() == 1:  # biases of zero and scales of one hide mistakes
            parameter.data += 0.02 * torch.randn_like(parameter)
    return model


def record(length, seed):
    ids = torch.randint(0, V, (length + 1,), generator=torch.Generator().manual_seed(seed)).tolist()
    return ids[:-1], ids[1:]


def people():
    """Units of one to three records; one of a single token, one whose gradient is zero, one without records."""
    silent = (record(5, 9)[0], [-100] * 5)
    partly = (record(6, 10)[0], [-100, 3, 4, -100, 5, 6])
    return [
        [record(7, 1), record(12, 2)],
        [record(1, 3)],
        [record(9, 4), partly],
        [silent],
        [record(3, 5), record(16, 6), record(2, 7)],
        [],
        [record(8, 8), silent],
    ]


def batch(units, *, seed=0, padding=0):
    rows = [(u, *r) for u, records in enumerate(units) for r in records]
    rows = [rows[i] for i in torch.randperm(len(rows), generator=torch.Generator().manual_seed(seed))]
    longest = max(len(r[1]) for r in rows) + padding
    inputs = torch.tensor([r[1] + [r[1][0]] * (longest - len(r[1])) for r in rows])
    targets = torch.tensor([r[2] + [-100] * (longest - len(r[2])) for r in rows])
    return UnitBatch(inputs, targets, torch.tensor([r[0] for r in rows]), len(units))


def checkpoint(model, **settings):
    enable = getattr(model, "activation_checkpointing_enable", model.gradient_checkpointing_enable)  # its newer name
    enable(settings or None)


def run(model, units, engine="auto", **settings):
    if engine == "stream":  # what "auto" takes for long units where there is no memory for anything else
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("heldin.defenses.gradients.engine_choice.GRAM", 1e9)
            return clipped_gradient_sum(model, units, engine="auto", memory_budget=0, **settings)
    return clipped_gradient_sum(model, units, engine=engine, **settings)


def worst_error(found, expected, whole):
    """Largest error of a tensor, relative to its own norm or a millionth of the whole gradient's."""
    return max(
        float((found[n].double() - g.double()).norm()) / max(float(g.norm()), 1e-6 * whole, 1e-30)
        for n, g in expected.items()
    )


def assert_same(one, other, tolerance=1e-5):
    for name, gradient in one.gradients.items():
        torch.testing.assert_close(gradient, other.gradients[name], rtol=tolerance, atol=tolerance * 1e-2)
