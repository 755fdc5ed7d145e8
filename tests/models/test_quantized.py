"""Quantised weights: what a format needs is said before they are loaded, and files without the format are refused."""

import importlib.util
import json
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, BitsAndBytesConfig, LlamaConfig, LlamaForCausalLM

from heldin.models.loading import stored_weights
from heldin.models.logprobs import score_texts
from heldin.models.opening import load_language_model
from heldin.models.reading import quiet_transformers
from heldin.models.stored import Stored
from heldin.stages.measures.measure import model_facts, named_model
from tests.refusals import refused

TEXT = ["The river opens the letter."]
SHAPE = {"hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2}
SECTIONS = {
    "awq": {"quant_method": "awq", "bits": 4, "group_size": 128},
    "compressed-tensors": {"quant_method": "compressed-tensors", "format": "pack-quantized", "config_groups": {}},
    "fp8": {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [128, 128]},
    "gptq": {"quant_method": "gptq", "bits": 4, "group_size": 128},
    "int8": {"quant_method": "bitsandbytes", "load_in_8bit": True},
    "mxfp4": {"quant_method": "mxfp4"},
    "nf4": {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "nf4"},
    "torchao": {"quant_method": "torchao"},
    "a format of tomorrow": {"quant_method": "a format of tomorrow"},
}


@pytest.fixture(scope="module")
def plain(make_lm, make_once):
    """A tiny Llama in float32. Read only."""

    def build(folder):
        torch.manual_seed(0)
        with quiet_transformers():
            config = LlamaConfig(vocab_size=400, num_key_value_heads=2, max_position_embeddings=64, **SHAPE)
            LlamaForCausalLM(config).save_pretrained(folder)
        make_lm().tokenizer.save_pretrained(folder)

    return make_once("plain llama", build)


def total(folder, precision="fp32"):
    return score_texts(load_language_model(str(folder), precision=precision), TEXT)[0].total


def with_section(folder, section, to):
    """A copy of a model with a section quantization_config in its config."""
    shutil.copytree(folder, to)
    config = json.loads((to / "config.json").read_text())
    (to / "config.json").write_text(json.dumps({**config, "quantization_config": section}))
    return to


def with_packed(folder, to, section, dtype=torch.int32):
    """A copy whose config has a section, and whose projections are whole numbers, as packed ones are."""
    with_section(folder, section, to)
    tensors = load_file(to / "model.safetensors")
    packed = {name: tensors[name].to(dtype) if "proj" in name else tensors[name] for name in tensors}
    save_file(packed, to / "model.safetensors", metadata={"format": "pt"})
    return to


@pytest.mark.parametrize("form", SECTIONS)
def test_a_format_that_the_files_do_not_have_is_refused(plain, tmp_path, form):
    """transformers scores such weights of mxfp4, fp8 and unknown formats without a word."""
    folder = with_section(plain, SECTIONS[form], tmp_path / "model")
    with refused(by="format_of", naming=(form, "F32", "quantization_config", "config.json")):
        load_language_model(str(folder))


@pytest.mark.parametrize(
    ("form", "lacking", "install"),
    [
        ("awq", ("gptqmodel",), "pip install gptqmodel"),
        ("compressed-tensors", ("compressed_tensors",), "pip install compressed-tensors"),
        ("gptq", ("optimum", "gptqmodel"), "pip install optimum gptqmodel"),
        ("nf4", ("bitsandbytes",), "'.[quantized]'"),
        ("int8", ("bitsandbytes",), "'.[quantized]'"),
        ("torchao", ("torchao",), "pip install torchao"),
    ],
)
def test_what_a_format_needs_is_named_with_the_extra_that_has_it(plain, tmp_path, monkeypatch, form, lacking, install):
    there = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *rest: None if name in lacking else there(name, *rest)
    )
    folder = with_packed(plain, tmp_path / "model", SECTIONS[form])
    with refused(by="_require_packages", naming=(form, *lacking, install)):
        load_language_model(str(folder))


def test_a_format_that_needs_a_gpu_says_so(plain, tmp_path, monkeypatch):
    there = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *rest: there("json" if "fbgemm" in name else name))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    folder = with_packed(plain, tmp_path / "model", {"quant_method": "fbgemm_fp8"}, torch.int8)
    with refused(by="_require_packages", naming=("fbgemm_fp8", "GPU")):
        load_language_model(str(folder))


@pytest.fixture(scope="module")
def quantized(plain, make_once):
    """Returns the folder of the model as bitsandbytes saves it, in 4 or 8 bits. Read only."""
    pytest.importorskip("bitsandbytes")

    def make(form):
        def build(folder):
            settings = {"int8": {"load_in_8bit": True}, "nf4": {"load_in_4bit": True, "bnb_4bit_quant_type": "nf4"}}
            with quiet_transformers():
                model = AutoModelForCausalLM.from_pretrained(
                    plain, quantization_config=BitsAndBytesConfig(**settings[form]), device_map={"": "cpu"}
                )
                model.save_pretrained(folder)
            for file in plain.glob("tokenizer*"):
                shutil.copy(file, folder)

        return make_once(f"{form} llama", build)

    return make


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("form", ["int8", "nf4"])
def test_weights_of_bitsandbytes_are_scored_on_a_cpu_as_they_are_stored(plain, quantized, form):
    folder = quantized(form)
    lm = load_language_model(str(folder))
    assert (lm.stored.format, lm.stored.own) == (form, form)
    assert model_facts(lm, named_model("x")).stored == form
    assert score_texts(lm, TEXT)[0].total == total(folder, form)
    assert 0 < abs(total(folder) - total(plain)) < 0.2
    # Whatever it is asked for, transformers leaves them as they are: a record would name another precision.
    for other in ("bf16", "fp16", {"int8": "nf4", "nf4": "int8"}[form]):
        with refused(by="fixed_options", naming=(other, form, "--dtype")):
            load_language_model(str(folder), precision=other)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_fp8_is_scored_in_the_type_of_the_other_weights(plain, tmp_path, dtype):
    """transformers leaves them as they are and multiplies nothing of two types: most checkpoints have bfloat16."""
    folder = with_section(plain, SECTIONS["fp8"], tmp_path / "model")
    packed = {}
    for name, tensor in load_file(folder / "model.safetensors").items():
        packed[name] = tensor.to(dtype)
        if "proj" in name:
            scale = tensor.abs().max() / 448
            packed[name] = (tensor / scale).to(torch.float8_e4m3fn)
            packed[f"{name}_scale_inv"] = scale.reshape(1, 1)
    save_file(packed, folder / "model.safetensors", metadata={"format": "pt"})
    lm = load_language_model(str(folder))
    own = {torch.float32: "fp32", torch.bfloat16: "bf16"}[dtype]
    assert (lm.stored.format, lm.stored.own) == ("fp8", own)
    assert next(lm.model.parameters()).dtype == dtype
    assert 0 < abs(score_texts(lm, TEXT)[0].total - total(plain)) < 0.2
    assert score_texts(lm, TEXT)[0].total == total(folder, own)


def test_how_weights_are_stored_is_read_from_files_and_not_from_a_config(plain, tmp_path):
    name, stored = stored_weights(str(plain))
    size = (plain / "model.safetensors").stat().st_size
    assert name == str(plain)
    assert (stored.precision, stored.format, stored.size) == ("fp32", None, size)
    assert stored.numbers == load_language_model(str(plain)).parameters()
    shutil.copytree(plain, tmp_path / "half")
    tensors = load_file(plain / "model.safetensors")
    # Norms stay in float32 in many checkpoints.
    half = {key: value.half() if value.dim() > 1 else value for key, value in tensors.items()}
    save_file(half, tmp_path / "half" / "model.safetensors", metadata={"format": "pt"})
    halved = stored_weights(str(tmp_path / "half"))[1]
    assert (halved.precision, halved.own, halved.numbers) == ("fp16", "fp16", stored.numbers)
    assert [halved.bytes_in(precision) // stored.numbers for precision in ("fp32", "bf16", "int8")] == [4, 2, 1]
    assert abs(total(tmp_path / "half", "fp16") - total(plain)) < 0.1
    assert Stored().own == "fp32"
