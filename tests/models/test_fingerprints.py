"""What a model computes, as hashes: the same from memory and from its folder, and another one for every change."""

import copy

import pytest
import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file, save_file
from transformers import (
    AutoModelForCausalLM,
    GPT2Config,
    GPTNeoXConfig,
    LlamaConfig,
    MixtralConfig,
    OPTConfig,
)

from heldin.models.fingerprints import fingerprint_in_folder, fingerprint_of_model, tokens_of
from heldin.models.tiny import train_tokenizer

_LLAMA = {
    "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2, "vocab_size": 300,
    "num_key_value_heads": 2,
}  # fmt: skip
CONFIGS = {
    "tied": GPT2Config(n_layer=2, n_embd=32, n_head=2, vocab_size=300, n_positions=64),
    "not tied": LlamaConfig(**_LLAMA),
    "other names in files": GPTNeoXConfig(
        hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2, vocab_size=300
    ),
    "other shapes in files": MixtralConfig(**_LLAMA, num_local_experts=4),
    "tied elsewhere": OPTConfig(
        hidden_size=32, word_embed_proj_dim=32, ffn_dim=64, num_hidden_layers=2, num_attention_heads=2, vocab_size=300
    ),
}


@pytest.fixture(scope="module")
def tokenizer():
    return train_tokenizer(["hello world this is a text", "another one"] * 50, 300)


def _model(name="tied", seed=0):
    torch.manual_seed(seed)
    return AutoModelForCausalLM.from_config(copy.deepcopy(CONFIGS[name]))


def _saved(model, tokenizer, to):
    model.save_pretrained(to)
    tokenizer.save_pretrained(to)
    return to


def _same(mine, found):
    return mine.has_tensors_of(found), mine.config == found.config, mine.tokenizer == found.tokenizer


@pytest.mark.parametrize("name", CONFIGS)
def test_memory_and_folder_have_one_fingerprint(name, tokenizer, tmp_path):
    model = _model(name)
    logged = fingerprint_of_model(model, tokenizer)
    assert _same(logged, fingerprint_in_folder(_saved(model, tokenizer, tmp_path))) == (True, True, True)
    # As loaded again, which may be where a training went on.
    again = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert _same(logged, fingerprint_of_model(again, tokenizer)) == (True, True, True)
    assert _same(fingerprint_of_model(again, tokenizer), fingerprint_in_folder(tmp_path)) == (True, True, True)


def test_precision_is_no_part_of_it_where_it_is_exact(tokenizer, tmp_path):
    model = _model().bfloat16()
    _saved(model.float(), tokenizer, tmp_path)
    assert _same(fingerprint_of_model(model.bfloat16(), tokenizer), fingerprint_in_folder(tmp_path))[0]


def test_every_tensor_has_its_name(tokenizer, tmp_path):
    model = _model()
    logged = fingerprint_of_model(model, tokenizer)
    file = _saved(model, tokenizer, tmp_path) / "model.safetensors"
    honest = load_file(file)
    one, two = (f"transformer.h.{number}.mlp.c_fc.weight" for number in (0, 1))
    twin = {"lm_head.weight": honest["transformer.wte.weight"].clone()}

    def found(tensors):
        save_file(tensors, file, metadata={"format": "pt"})
        return logged.has_tensors_of(fingerprint_in_folder(tmp_path))

    assert found(honest)
    # A tied tensor may be there twice, if it equals its twin.
    assert found({**honest, **twin})
    assert not found({**honest, "lm_head.weight": twin["lm_head.weight"] + 1})
    # The same tensors under other names are another model.
    assert not found({**honest, one: honest[two], two: honest[one]})
    assert not found({name: tensor for name, tensor in honest.items() if name != one})
    # Another tensor, also under a name that a wrapper may have given, where the right one is there too.
    for name in ("further.weight", f"module.{one}", f"_orig_mod.{one}", f"module.module.{one}"):
        for tensor in (honest[one] + 1, honest[one].clone()):
            assert not found({**honest, name: tensor})
    wrong = {**honest, f"_orig_mod.{one}": honest[one].clone(), one: honest[one] + 1}
    assert not found(wrong)


def test_every_key_of_the_config_counts_but_harmless_ones(tokenizer):
    logged = fingerprint_of_model(_model(), tokenizer)
    for key, value in {"layer_norm_epsilon": 1e-4, "n_head": 4, "a_key_that_nobody_knows": 1}.items():
        changed = _model()
        setattr(changed.config, key, value)
        assert fingerprint_of_model(changed, tokenizer).config != logged.config, key
    harmless = _model()
    harmless.config.use_cache, harmless.config.architectures = False, ["Another"]
    assert fingerprint_of_model(harmless, tokenizer).config == logged.config
    assert fingerprint_of_model(torch.nn.Linear(2, 2), None).config == {}


def test_tokenizers_are_compared_by_how_they_cut(tokenizer):
    own = tokens_of(tokenizer)
    padded = copy.deepcopy(tokenizer)
    padded.add_special_tokens({"pad_token": "<pad>"})
    padded(["hello"], padding="max_length", truncation=True, max_length=4)
    assert tokens_of(padded) == own
    more = copy.deepcopy(tokenizer)
    more.add_tokens(["hello world"])
    started = copy.deepcopy(tokenizer)
    started.add_special_tokens({"bos_token": "<odd>"})
    other = train_tokenizer(["quite another text altogether"] * 50, 300)
    assert len({own, tokens_of(more), tokens_of(started), tokens_of(other)}) == 4
    assert tokens_of(None) is None


@pytest.mark.filterwarnings("ignore::FutureWarning")  # of PEFT itself
def test_an_adapter_has_its_own_tensors_and_config(tokenizer, tmp_path):
    options = {"r": 4, "task_type": "CAUSAL_LM", "target_modules": ["c_attn"], "fan_in_fan_out": True}
    base = _saved(_model(), tokenizer, tmp_path / "base")

    def adapted(**changes):
        torch.manual_seed(1)
        return get_peft_model(
            AutoModelForCausalLM.from_pretrained(base), LoraConfig(**{**options, "init_lora_weights": False, **changes})
        )

    model = adapted()
    logged = fingerprint_of_model(torch.compile(model, backend="eager"), tokenizer)
    model.save_pretrained(tmp_path / "adapter")
    assert _same(logged, fingerprint_in_folder(tmp_path / "adapter")) == (True, True, True)
    adapted(lora_alpha=1).save_pretrained(tmp_path / "weaker")
    assert _same(logged, fingerprint_in_folder(tmp_path / "weaker")) == (True, False, True)


def test_tensors_that_are_spread_have_no_fingerprint(tokenizer):
    model = _model()
    model.transformer.h[0].ln_1.weight.data = torch.zeros(0)
    assert fingerprint_of_model(model, tokenizer) is None
