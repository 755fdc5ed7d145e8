"""Models that read images or sound as well: their text is scored as a plain pass scores it, and nothing trains them."""

import shutil
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoConfig

from heldin.base.errors import InputError
from heldin.models.fingerprints import fingerprint_in_folder, fingerprint_of_model
from heldin.models.loading import context_length
from heldin.models.logprobs import score_texts, tokens_per_batch
from heldin.models.model_names import require_model
from heldin.models.opening import load_language_model, load_target_and_reference
from heldin.models.reading import quiet_transformers
from tests.models.tiny_multimodal import COMMON, CONTEXT, FAMILIES, VOCABULARY, tiny_multimodal
from tests.refusals import refused

TEXTS = ["The report finds the river on day 2.", "market 12", "The letter keeps the story on day 7, said nobody."]


def save(model, make_lm, folder):
    with quiet_transformers():
        model.save_pretrained(folder)
    make_lm().tokenizer.save_pretrained(folder)
    return str(folder)


@pytest.fixture
def gemma(make_lm, make_once):
    """A folder with a tiny model that reads images. Read only."""
    return str(make_once("gemma3", lambda folder: save(tiny_multimodal("gemma3"), make_lm, folder)))


def prefix_scores(model, lm, text):
    """Log-probability of each token by a pass of its own over what precedes it, in transformers' own form."""
    ids = [lm.start_token, *lm.tokenizer(text, add_special_tokens=False)["input_ids"]]
    with torch.no_grad():
        logits = [model(input_ids=torch.tensor([ids[:end]])).logits[0, -1] for end in range(1, len(ids))]
    return [float(each.log_softmax(-1)[token]) for each, token in zip(logits, ids[1:], strict=True)]


def assert_scored_as_a_plain_pass(family, make_lm, folder):
    model = tiny_multimodal(family)
    lm = load_language_model(save(model, make_lm, folder))
    assert lm.architecture == type(model).__name__
    assert lm.context == context_length(model.config) == CONTEXT
    assert tokens_per_batch(lm.model) == 2**22 // VOCABULARY
    # Together, so that padding and what a model remembers of the pass before would show.
    for text, scored in zip(TEXTS, score_texts(lm, TEXTS), strict=True):
        assert scored.logprobs.tolist() == pytest.approx(prefix_scores(model, lm, text), abs=2e-5)
    # Random weights, but not nothing: each text has other scores.
    assert len({scored.total for scored in score_texts(lm, TEXTS)}) == len(TEXTS)


@pytest.mark.parametrize("family", COMMON)
def test_a_text_is_scored_as_by_a_plain_pass(family, make_lm, tmp_path):
    assert_scored_as_a_plain_pass(family, make_lm, tmp_path)


def outcome_of(family, make_lm, folder):
    """What becomes of a family: "scored", "refused" by heldin in a line, or why transformers has no small model."""
    try:
        model = tiny_multimodal(family)
        name = save(model, make_lm, folder)
        AutoConfig.from_pretrained(name)
    except Exception as error:
        return f"not built: {type(error).__name__} {str(error).strip()[:120]}"
    try:
        with torch.no_grad():
            first, second = (model(input_ids=torch.tensor([[5, 6, 7, last]])).logits[0, :-1] for last in (8, 9))
        causal, why = float((first - second).abs().max()) < 1e-5, ""
    except Exception as error:
        causal, why = False, f": reads no text, {type(error).__name__} {str(error).strip()[:120]}"
    refusal = ""
    try:
        load_language_model(name)
    except InputError as error:
        refusal = str(error)
    if refusal:
        # A model that predicts from what precedes is refused for its file alone, which a shrunken config spoils.
        assert not causal or "incomplete" in refusal, family
        assert len(refusal.splitlines()) == 1, family
        return f"refused{why}"
    assert causal, family
    shutil.rmtree(folder)
    assert_scored_as_a_plain_pass(family, make_lm, folder)
    return "scored"


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_every_family_that_can_be_built_small_is_scored_so_or_refused_in_a_line(make_lm, tmp_path):
    outcomes = {family: outcome_of(family, make_lm, tmp_path / family) for family in FAMILIES}
    print("\n".join(f"{family}: {outcome}" for family, outcome in outcomes.items()))
    kinds = Counter(outcome.partition(":")[0] for outcome in outcomes.values())
    # Not built are those that need timm, stay large, or whose sizes depend on each other.
    assert kinds["scored"] >= 60, kinds
    assert kinds["refused"] >= 10, kinds


def test_a_prefix_model_is_refused(make_lm, tmp_path):
    """PaliGemma reads the whole text before it predicts any of it."""
    name = save(tiny_multimodal("paligemma"), make_lm, tmp_path)
    with refused(by="check_causal", naming="PaliGemmaForConditionalGeneration"):
        load_language_model(name)


def test_an_encoder_with_a_decoder_is_refused_before_its_weights_are_read(make_lm, tmp_path):
    from transformers import T5Config, T5ForConditionalGeneration

    sizes = {"d_model": 16, "d_kv": 8, "d_ff": 16, "num_layers": 1, "num_heads": 2}
    name = save(T5ForConditionalGeneration(T5Config(vocab_size=400, **sizes)), make_lm, tmp_path)
    for load in (require_model, load_language_model):
        with refused(by="read_config", naming="t5"):
            load(name)


def test_an_adapter_on_a_multimodal_model_shares_its_weights(make_lm, gemma, tmp_path):
    base = load_language_model(gemma)
    with quiet_transformers():
        adapted = get_peft_model(base.model, LoraConfig(r=2, target_modules=["q_proj", "v_proj"]))
    for name, parameter in adapted.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, generator=torch.Generator().manual_seed(0))
    adapted.peft_config["default"].base_model_name_or_path = gemma
    with torch.no_grad():
        adapted.save_pretrained(tmp_path)
    target, reference = load_target_and_reference(str(tmp_path), gemma)
    on, off, alone, merged = (
        np.concatenate([scored.logprobs for scored in score_texts(lm, TEXTS)])
        for lm in (target, reference, load_language_model(gemma), load_language_model(str(tmp_path)))
    )
    np.testing.assert_array_equal(off, alone)
    np.testing.assert_allclose(on, merged, atol=1e-4)
    assert np.abs(on - off).max() > 0.01
    weights = [{p.data_ptr() for p in lm.model.parameters()} for lm in (target, reference)]
    assert weights[0] & weights[1]


def test_a_multimodal_model_is_known_again_in_its_folder(gemma, make_lm):
    """A log of training takes the fingerprint from memory, and an audit from the folder."""
    saved = fingerprint_in_folder(Path(gemma))
    with quiet_transformers():
        model = tiny_multimodal("gemma3")
    trained = fingerprint_of_model(model, make_lm().tokenizer)
    assert trained.has_tensors_of(saved)
    assert saved.tokenizer == trained.tokenizer
    assert saved.config == trained.config
    model.config.text_config.sliding_window = 7
    assert fingerprint_of_model(model, make_lm().tokenizer).config != saved.config


def test_a_run_does_not_train_a_multimodal_model(call, gemma, small_with, tmp_path):
    config = small_with(model={"base": gemma, "pretrain": None}, finetune={"sequence_length": 32})
    code, _, _ = call("run", config, "--out", tmp_path / "run")
    assert code == 2
    assert call.refused(by="require_text_alone", naming=("model.base", f"'{gemma}'", "gemma3"))
    code, out, err = call("run", config, "--check")
    assert code == 2
    assert f"'{gemma}' (gemma3)" in out + err
