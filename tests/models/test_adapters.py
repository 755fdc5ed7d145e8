"""An adapter and its base from one copy of the weights score as the two loaded apart."""

import json

import numpy as np
import pytest
import torch
from peft import LoraConfig, get_peft_model

from heldin.base.errors import InputError
from heldin.jobs.run.models import model_facts
from heldin.models.adapters import load_target_and_reference
from heldin.models.loading import fingerprint_of, load_language_model, quiet_transformers
from heldin.models.logprobs import score_texts
from heldin.models.shape import TinyModel
from heldin.models.tiny import new_tiny_model

TEXTS = ["The quick brown fox met 12 people on Tuesday.", "Falcon closes on Friday, said Ms Adams twice."]


@pytest.fixture
def base(make_lm, tmp_path):
    tokenizer = make_lm().tokenizer
    # 64 wide: a block of 4-bit weights has as many.
    shape = TinyModel(vocabulary=400, context=32, hidden=64, layers=2, heads=2, window=8)
    new_tiny_model(shape, tokenizer, 0).save_pretrained(tmp_path / "base")
    tokenizer.save_pretrained(tmp_path / "base")
    return tmp_path / "base"


@pytest.fixture
def adapter(base, tmp_path):
    """An adapter that moves every score."""
    lm = load_language_model(str(base))
    with quiet_transformers():
        adapted = get_peft_model(lm.model, LoraConfig(r=2, target_modules="all-linear", task_type="CAUSAL_LM"))
    for name, parameter in adapted.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, generator=torch.Generator().manual_seed(0))
    adapted.peft_config["default"].base_model_name_or_path = str(base)
    adapted.save_pretrained(tmp_path / "adapter")
    return tmp_path / "adapter"


def scores(lm):
    return np.concatenate([its.logprobs for its in score_texts(lm, TEXTS)])


def test_target_and_reference_are_those_loaded_apart_and_share_every_weight(base, adapter):
    target, reference = load_target_and_reference(str(adapter), str(base))
    alone, merged = load_language_model(str(base)), load_language_model(str(adapter))
    np.testing.assert_array_equal(scores(reference), scores(alone))
    np.testing.assert_allclose(scores(target), scores(merged), atol=1e-4)
    assert np.abs(scores(target) - scores(reference)).max() > 0.01
    # In turns: neither leaves the adapter on or off for the other.
    np.testing.assert_array_equal(scores(reference), scores(alone))
    for one, other, name in ((target, merged, str(adapter)), (reference, alone, str(base))):
        assert model_facts(one, name) == model_facts(other, name)
    held = {p.data_ptr() for p in target.model.parameters()} | {p.data_ptr() for p in reference.model.parameters()}
    extra = 2 * sum("lora_A" in name for name, _ in target.model.named_parameters())
    assert len(held) == len({p.data_ptr() for p in alone.model.parameters()}) + extra


def test_models_that_are_no_adapter_of_the_reference_are_loaded_apart(base, adapter, make_lm, tmp_path):
    other = make_lm(seed=1)
    other.model.save_pretrained(tmp_path / "other")
    other.tokenizer.save_pretrained(tmp_path / "other")
    target, reference = load_target_and_reference(str(adapter), str(tmp_path / "other"))
    np.testing.assert_array_equal(scores(target), scores(load_language_model(str(adapter))))
    np.testing.assert_array_equal(scores(reference), scores(load_language_model(str(tmp_path / "other"))))


def test_an_adapter_that_names_no_base_is_one_line(base, adapter):
    (adapter / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA"}))
    with pytest.raises(InputError, match="does not name a base model"):
        load_target_and_reference(str(adapter), str(base))


def test_the_fingerprint_in_float32_is_told_without_loading(base, adapter):
    assert fingerprint_of(str(base)) == load_language_model(str(base)).fingerprint
    assert fingerprint_of(str(adapter)) == load_language_model(str(adapter)).fingerprint
    assert fingerprint_of(str(base)) != load_language_model(str(base), precision="bf16").fingerprint


@pytest.mark.parametrize("precision", ["bf16", "int8", "nf4"])
def test_coarser_weights_keep_the_adapter_beside_them_and_score_close_by(base, adapter, precision):
    if precision != "bf16":
        pytest.importorskip("bitsandbytes")
    whole = load_target_and_reference(str(adapter), str(base))
    coarse = load_target_and_reference(str(adapter), str(base), precision=precision)
    for exact, its in zip(whole, coarse, strict=True):
        moved = np.abs(scores(its) - scores(exact))
        # Moved, since the precision was used; by little beside what the adapter does.
        assert 0 < moved.mean() < 0.2 * np.abs(scores(whole[0]) - scores(whole[1])).mean()
        assert its.fingerprint != exact.fingerprint
        assert its.parameters() == exact.parameters()
    # The same model alone, and not merged into the coarse weights.
    np.testing.assert_allclose(
        scores(load_language_model(str(adapter), precision=precision)), scores(coarse[0]), atol=1e-5
    )


def test_a_precision_that_needs_a_package_says_which(base, monkeypatch):
    import importlib.util

    found = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *rest: None if name == "bitsandbytes" else found(name, *rest)
    )
    with pytest.raises(InputError, match=r"precision nf4 needs bitsandbytes: pip install 'heldin\[quantized\]'"):
        load_language_model(str(base), precision="nf4")


def test_a_model_that_is_spread_over_devices_scores_the_same(base, monkeypatch):
    whole = scores(load_language_model(str(base)))
    monkeypatch.setenv("HELDIN_DEVICE", "auto")
    np.testing.assert_array_equal(scores(load_language_model(str(base))), whole)
