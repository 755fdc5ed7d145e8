"""An adapter and its base from one copy of the weights score as the two loaded apart."""

import json
import shutil
from copy import deepcopy
from dataclasses import replace

import numpy as np
import pytest
import torch
from peft import (
    AdaLoraConfig,
    IA3Config,
    LilyConfig,
    LNTuningConfig,
    LoHaConfig,
    LoraConfig,
    OFTConfig,
    PeftModel,
    PolyConfig,
    PrefixTuningConfig,
    PromptEncoderConfig,
    PromptTuningConfig,
    VeraConfig,
    XLoraConfig,
    get_peft_model,
)
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, BitsAndBytesConfig

from heldin.base.errors import InputError
from heldin.models.adapters import require_losses_of
from heldin.models.loading import say_how_loaded
from heldin.models.logprobs import score_texts
from heldin.models.model_config import TinyModel
from heldin.models.model_names import fingerprint_of, require_model
from heldin.models.opening import load_language_model, load_target_and_reference
from heldin.models.reading import quiet_transformers
from heldin.models.score_cache import ScoreCache
from heldin.models.tiny import new_tiny_model
from heldin.stages.measures.measure import model_facts, named_model
from tests.refusals import names, refused

TEXTS = ["The quick brown fox met 12 people on Tuesday.", "Falcon closes on Friday, said Ms Adams twice."]


@pytest.fixture(scope="module")
def base(make_lm, make_once):
    """A base model of one layer. Read only."""

    def build(folder):
        tokenizer = make_lm().tokenizer
        # 64 wide: a block of 4-bit weights has as many.
        shape = TinyModel(vocabulary=400, context=32, hidden=64, layers=1, heads=2, window=8)
        new_tiny_model(shape, tokenizer, 0).save_pretrained(folder)
        tokenizer.save_pretrained(folder)

    return make_once("base of adapters", build)


@pytest.fixture(scope="module")
def scores_of_base(base):
    return scores(load_language_model(str(base)))


@pytest.fixture(scope="module")
def adapter_once(base, make_once):
    return make_once("an adapter", lambda folder: saved(lora(), base, folder))


@pytest.fixture
def adapter(adapter_once, tmp_path):
    """An adapter that moves every score."""
    return shutil.copytree(adapter_once, tmp_path / "adapter")


def lora(**more):
    return LoraConfig(r=2, target_modules="all-linear", task_type="CAUSAL_LM", **more)


def saved(config, base, folder):
    """An adapter of this config, whose trained weights are random."""
    lm = load_language_model(str(base))
    # peft draws what it begins with from torch's global generator. Some draws make a token ill-conditioned, whose score
    # rounding alone moves by 1e-3.
    with quiet_transformers(), torch.random.fork_rng():
        torch.manual_seed(0)
        adapted = get_peft_model(lm.model, config)
    generator = torch.Generator().manual_seed(0)
    for name, parameter in adapted.named_parameters():
        if parameter.requires_grad and "lora_A" not in name:
            torch.nn.init.normal_(parameter, generator=generator)
    adapted.peft_config["default"].base_model_name_or_path = str(base)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(PeftModel, "create_or_update_model_card", lambda *_: None)
        adapted.save_pretrained(folder)
    return folder


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
        assert model_facts(one, named_model(name)) == model_facts(other, named_model(name))
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


def _with_a_position_of_its_own(base, folder):
    """An adapter whose file also holds the base's positions, the last of which is another one."""
    saved(lora(), base, folder)
    weights = load_file(folder / "adapter_model.safetensors")
    positions = load_language_model(str(base)).model.transformer.wpe.weight.detach().clone()
    positions[-1] += 1.0
    save_file({**weights, "base_model.model.transformer.wpe.weight": positions}, folder / "adapter_model.safetensors")
    return folder


ALWAYS_ON = {
    "bias all": lambda base, folder: saved(lora(bias="all"), base, folder),
    "bias lora_only": lambda base, folder: saved(lora(bias="lora_only"), base, folder),
    "a position that no probe reads": _with_a_position_of_its_own,
}


@pytest.mark.parametrize("precision", ["fp32", "bf16", "nf4"])
@pytest.mark.parametrize("kind", ALWAYS_ON)
@pytest.mark.filterwarnings("error:Careful, disabling adapter layers")
def test_an_adapter_that_cannot_be_switched_off_leaves_the_base_and_its_cached_scores_alone(
    base, tmp_path, kind, precision, make_once
):
    if precision == "nf4":
        pytest.importorskip("bitsandbytes")
    adapter = str(make_once(f"adapter with {kind}", lambda folder: ALWAYS_ON[kind](base, folder)))
    long = [TEXTS[0] * 4]
    target, reference = load_target_and_reference(adapter, str(base), precision=precision)
    alone, apart = (load_language_model(its, precision=precision) for its in (str(base), adapter))
    cache = ScoreCache(tmp_path / "scores")
    for one, other in ((target, apart), (reference, alone)):
        assert one.fingerprint == other.fingerprint
        kept = [its.logprobs for its in cache.scores(one, TEXTS + long)]
        np.testing.assert_array_equal(np.concatenate(kept[:2]), scores(other))
        np.testing.assert_array_equal(kept[2], score_texts(other, long)[0].logprobs)
        # What a later audit reads under the base's name.
        again = [its.logprobs for its in cache.scores(other, TEXTS + long)]
        assert all(map(np.array_equal, again, kept))
    cache.close()


def test_layers_that_are_trained_whole_share_the_other_weights(base, tmp_path):
    folder = saved(lora(modules_to_save=["ln_f"]), base, tmp_path / "adapter")
    target, reference = load_target_and_reference(str(folder), str(base))
    np.testing.assert_array_equal(scores(reference), scores(load_language_model(str(base))))
    assert reference.model.adapted.get_base_model() is target.model


@pytest.mark.parametrize("precision", ["fp32", "bf16", "int8", "nf4"])
@pytest.mark.parametrize("kind", [PromptTuningConfig, PrefixTuningConfig, PromptEncoderConfig])
def test_a_learned_prompt_is_refused_before_it_is_scored_as_its_base(base, tmp_path, kind, precision):
    config = kind(num_virtual_tokens=4, task_type="CAUSAL_LM")
    if kind is PromptEncoderConfig:
        config.encoder_hidden_size = 8
    folder = str(saved(config, base, tmp_path / "prompt"))
    for load in (
        lambda: load_target_and_reference(folder, str(base), precision=precision),
        lambda: load_language_model(folder, precision=precision),
        lambda: require_model(folder),
    ):
        with refused(by="require_adapter_of_weights", naming=("peft_type", config.peft_type.value)):
            load()


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("kind", ["X-LoRA", "Poly"])
def test_a_mixture_of_adapters_is_refused(base, adapter, tmp_path, kind, precision):
    if kind == "Poly":
        config = PolyConfig(task_type="CAUSAL_LM", target_modules=["q_proj", "v_proj"], n_tasks=2)
        folder = str(saved(config, base, tmp_path / "mixture"))
    else:
        # peft 0.21 cannot load experts into a model of transformers 5: its config beside other weights.
        experts = {"0": str(adapter), "1": str(adapter)}
        its = XLoraConfig(task_type="CAUSAL_LM", hidden_size=64, adapters=experts, base_model_name_or_path=str(base))
        its.save_pretrained(adapter)
        folder = str(adapter)
    for load in (
        lambda: load_target_and_reference(folder, str(base), precision=precision),
        lambda: load_language_model(folder, precision=precision),
    ):
        with refused(by="require_adapter_of_weights", naming=("peft_type", kind.replace("-", "").upper())):
            load()


def test_an_adapter_that_cannot_be_merged_is_one_line(base, tmp_path):
    folder = str(saved(LilyConfig(task_type="CAUSAL_LM", target_modules=["q_proj"]), base, tmp_path / "lily"))
    with refused(by="reading", naming="lily"):
        load_language_model(folder)
    # Beside its base it need not be merged.
    target, reference = load_target_and_reference(folder, str(base))
    assert not np.array_equal(scores(target), scores(reference))


def test_an_adapter_whose_base_keeps_its_weights_moves_them_once_for_the_scores(base, adapter, tmp_path):
    """Checking the keys loads the file again: a merged adapter on an adapter is what PEFT makes of the two."""
    upper = saved(lora(), base, tmp_path / "upper")
    named(upper, str(adapter))
    lower = load_language_model(str(adapter))
    with quiet_transformers():
        both = PeftModel.from_pretrained(lower.model, str(upper)).merge_and_unload()
    np.testing.assert_array_equal(scores(load_language_model(str(upper))), scores(replace(lower, model=both)))


CAUSAL = {"task_type": "CAUSAL_LM"}
ATTENTION = {**CAUSAL, "target_modules": ["q_proj", "v_proj"]}
KINDS = {
    "plain": lora(),
    "rslora": lora(use_rslora=True),
    "dora": lora(use_dora=True),
    "bias": lora(bias="all"),
    "ranks": lora(rank_pattern={"q_proj": 4}),
    "layer trained whole": lora(modules_to_save=["ln_f"]),
    "head trained whole": lora(modules_to_save=["lm_head"]),
    "tied": LoraConfig(r=2, **{**CAUSAL, "target_modules": ["wte", "q_proj"]}),
    "token indices": lora(trainable_token_indices=[1, 2]),
    "ia3": IA3Config(**{**CAUSAL, "target_modules": ["q_proj", "c_fc"], "feedforward_modules": ["c_fc"]}),
    "loha": LoHaConfig(r=2, **ATTENTION),
    "vera": VeraConfig(r=2, **ATTENTION),
    "oft": OFTConfig(r=0, oft_block_size=4, **ATTENTION),
    "layer norm": LNTuningConfig(**{**CAUSAL, "target_modules": ["ln_f", "ln_1"]}),
    "adalora": AdaLoraConfig(init_r=4, target_r=2, total_step=10, **ATTENTION),
}


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("kind", KINDS)
def test_an_adapter_of_any_kind_is_scored_whole_and_refused_with_other_keys(base, scores_of_base, tmp_path, kind):
    folder = saved(deepcopy(KINDS[kind]), base, tmp_path / "adapter")
    assert not np.allclose(scores(load_language_model(str(folder))), scores_of_base)
    file = folder / "adapter_model.safetensors"
    whole = load_file(file)
    names = sorted(whole)
    begin = "base_model.model."
    damaged = {
        "half": {name: whole[name] for name in names[::2]},
        "empty": {},
        "DDP": {f"{begin}module.{name.removeprefix(begin)}": whole[name] for name in names},
        "compiled": {f"_orig_mod.{name}": whole[name] for name in names},
        "Opacus": {f"_module.{name}": whole[name] for name in names},
        "another layer": {**whole, f"{begin}transformer.h.7.ln_1.weight": torch.zeros(2)},
    }
    turn = list(KINDS).index(kind)
    if kind != "plain":
        # Of two ways in which keys are missing, and of three in which all begin otherwise, the kinds take turns.
        begins = ("DDP", "compiled", "Opacus")
        for name in (("half", "empty")[turn % 2], begins[turn % 3], begins[(turn + 1) % 3]):
            del damaged[name]
    loads = (load_language_model, lambda its: load_target_and_reference(its, str(base)))
    for number, content in enumerate(damaged.values(), start=turn // 2):
        save_file(content, file)
        # Both check keys in one place: of each kind and of each damage they take turns.
        for load in loads if kind == "plain" else (loads[number % 2],):
            with pytest.raises(InputError) as refused:
                load(str(folder))
            (line,) = str(refused.value).splitlines()
            assert "adapter_model.safetensors" in line or "vera_A and vera_B" in line


def test_the_counts_and_the_first_of_the_keys_that_differ_are_named(base, adapter):
    file = adapter / "adapter_model.safetensors"
    whole = load_file(file)
    begin = "base_model.model.transformer.h.0.attn."
    kept = {name: its for name, its in whole.items() if not name.startswith(begin)}
    moved = {name.replace(begin, f"{begin}_orig_mod."): whole[name] for name in whole.keys() - kept.keys()}
    save_file({**kept, **moved}, file)
    count, first = len(moved), min(whole)
    with refused(by="check_adapter_keys", naming=(count, f"'{first}'")):
        load_language_model(str(adapter))


def test_the_keys_of_an_older_peft_are_loaded(base, tmp_path):
    folder = saved(lora(use_dora=True), base, tmp_path / "adapter")
    before = scores(load_language_model(str(folder)))
    file = folder / "adapter_model.safetensors"
    older = {name.replace("magnitude_vector.weight", "magnitude_vector"): its for name, its in load_file(file).items()}
    save_file(older, file)
    np.testing.assert_array_equal(scores(load_language_model(str(folder))), before)


def test_an_adapter_with_more_embeddings_than_its_base_names_the_sizes(base, adapter):
    file = adapter / "adapter_model.safetensors"
    size = load_language_model(str(base)).model.config.vocab_size
    save_file({**load_file(file), "base_model.model.transformer.wte.weight": torch.zeros(size + 2, 64)}, file)
    with refused(by="on_base", naming=("transformer.wte.weight", f"[{size + 2}, 64]", f"[{size}, 64]")):
        load_language_model(str(adapter))


def named(adapter, base):
    """Writes another base into an adapter's config."""
    file = adapter / "adapter_config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "base_model_name_or_path": base}))


@pytest.mark.parametrize("name", ["unsloth/tiny-bnb-4bit", "/home/somebody/tiny", "/mnt/models/tiny"])
def test_the_base_of_an_adapter_is_named_in_place_of_one_that_is_not_here(base, adapter, name):
    """Adapters are trained on a copy in 4 bits, or on another machine."""
    expected = load_target_and_reference(str(adapter), str(base))
    named(adapter, name)
    for load in (load_language_model, require_model, lambda its: load_target_and_reference(its, str(base))):
        with refused(by="require_base", naming=(f"'{name}'", "adapter_config.json", "--adapter-base")):
            load(str(adapter))
    require_model(str(adapter), str(base))
    both = load_target_and_reference(str(adapter), str(base), adapter_base=str(base))
    # One copy of the weights, as where the config names the base.
    assert both[1].model.adapted.get_base_model() is both[0].model
    alone = load_language_model(str(adapter), adapter_base=str(base))
    for lm in (both[0], alone):
        np.testing.assert_allclose(scores(lm), scores(expected[0]), atol=1e-4)
        facts = model_facts(lm, named_model("x")).adapter
        assert (facts.base, facts.named, facts.beside) == (str(base), name, 0)
    np.testing.assert_array_equal(scores(both[1]), scores(expected[1]))
    assert alone.fingerprint == fingerprint_of(str(adapter), adapter_base=str(base))
    said = []
    say_how_loaded(both[0], said.append)
    say_how_loaded(both[1], said.append)
    assert len(said) == 1
    assert names(said[0], str(base), name)


def test_a_base_that_is_no_model_or_an_adapter_is_refused(base, adapter, tmp_path):
    with refused(by="base_of", naming=("--adapter-base", f"'{adapter}'")):
        load_language_model(str(adapter), adapter_base=str(adapter))
    with refused(by="require_base", naming=("--adapter-base", "'/no/such/base'")):
        load_language_model(str(adapter), adapter_base="/no/such/base")
    with refused(by="_require_safe_weights", naming="config.json"):
        (tmp_path / "empty").mkdir()
        load_language_model(str(adapter), adapter_base=str(tmp_path / "empty"))


def test_of_adapters_on_adapters_the_last_one_gets_the_base(base, adapter, tmp_path):
    upper = saved(lora(), base, tmp_path / "upper")
    named(upper, str(adapter))
    expected = scores(load_language_model(str(upper)))
    named(adapter, "/home/somebody/tiny")
    np.testing.assert_array_equal(scores(load_language_model(str(upper), adapter_base=str(base))), expected)


def test_another_base_of_other_sizes_is_refused(base, adapter, make_lm, tmp_path):
    other = make_lm()
    other.model.save_pretrained(tmp_path / "other")
    other.tokenizer.save_pretrained(tmp_path / "other")
    with pytest.raises(InputError) as caught:
        load_language_model(str(adapter), adapter_base=str(tmp_path / "other"))
    assert len(str(caught.value).splitlines()) == 1


def test_an_adapter_in_4_bits_stays_beside_its_base(base, adapter, tmp_path):
    """The base is there as bitsandbytes saved it: merged with the adapter, its weights would be rounded."""
    pytest.importorskip("bitsandbytes")
    settings = BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4")
    with quiet_transformers():
        model = AutoModelForCausalLM.from_pretrained(base, quantization_config=settings, device_map={"": "cpu"})
        model.save_pretrained(tmp_path / "nf4")
    for file in base.glob("tokenizer*"):
        shutil.copy(file, tmp_path / "nf4")
    target = load_language_model(str(adapter), adapter_base=str(tmp_path / "nf4"))
    assert target.stored.format == "nf4"
    moved = np.abs(scores(target) - scores(load_language_model(str(adapter)))).mean()
    assert 0 < moved < 0.2 * np.abs(scores(target) - scores(load_language_model(str(base)))).mean()


def test_it_is_said_which_of_several_adapters_is_taken(base, adapter):
    shutil.copytree(adapter, adapter / "other")
    shutil.copytree(adapter / "other", adapter / "checkpoint-5")
    shutil.copy(base / "model.safetensors", adapter)
    shutil.copy(base / "config.json", adapter)
    target, _ = load_target_and_reference(str(adapter), str(base))
    assert target.adapter.beside == ("checkpoint-5", "other", "model.safetensors")
    assert model_facts(target, named_model("x")).adapter.beside == 3
    said = []
    say_how_loaded(target, said.append)
    assert len(said) == 1
    assert names(said[0], f"'{adapter}'", "'checkpoint-5'", "'other'", "'model.safetensors'")
    # Without one at the top, the others are named.
    (adapter / "adapter_config.json").unlink()
    (adapter / "config.json").unlink()
    with refused(by="_require_safe_weights", naming=(f"'{adapter}'", f"'{adapter / 'checkpoint-5'}'")):
        load_language_model(str(adapter))


@pytest.mark.parametrize("name", [None, "", 3, ["a"]])
def test_an_adapter_that_names_no_base_is_one_line_and_the_hub_is_not_asked(base, adapter, monkeypatch, name):
    monkeypatch.setattr("heldin.models.model_names.HfApi.model_info", lambda *_, **__: pytest.fail("asked the hub"))
    named(adapter, name)
    for load in (load_language_model, fingerprint_of, lambda its: load_target_and_reference(its, str(base))):
        with refused(by="_named_base", naming="adapter_config.json"):
            load(str(adapter))


def test_adapters_that_lead_back_to_themselves_are_one_line(base, adapter, tmp_path):
    second = saved(lora(), base, tmp_path / "second")
    for first, then in ((adapter, adapter), (adapter, second)):
        named(first, str(then))
        named(then, str(first))
        for load in (load_language_model, fingerprint_of, lambda its: load_target_and_reference(its, str(base))):
            with refused(by="base_of", naming="base_model_name_or_path"):
                load(str(adapter))


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
    with refused(by="loading_options", naming=("nf4", "'.[quantized]'")):
        load_language_model(str(base), precision="nf4")


def test_a_model_that_is_spread_over_devices_scores_the_same(base, monkeypatch):
    whole = scores(load_language_model(str(base)))
    monkeypatch.setenv("HELDIN_DEVICE", "auto")
    np.testing.assert_array_equal(scores(load_language_model(str(base))), whole)


def test_an_adapter_that_is_not_the_trained_model_is_refused(base, adapter):
    merged = load_language_model(str(adapter))

    def compared(folder):
        return require_losses_of(merged, folder, load_language_model(str(base)), TEXTS, "fp32")

    assert compared(adapter) < 1e-4
    path = adapter / "adapter_model.safetensors"
    weights = load_file(path)
    save_file({name: 1.5 * tensor for name, tensor in weights.items()}, path)
    with refused(by=require_losses_of, naming=(f"'{adapter}'", "nats per token")):
        compared(adapter)
    save_file({name: tensor * ("lora_B" not in name) for name, tensor in weights.items()}, path)
    with refused(by=require_losses_of, naming=(f"'{adapter}'", "its base")):
        compared(adapter)
