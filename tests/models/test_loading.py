"""Loading models: what works, and one clear line for what does not."""

import json
import pickle
import random
import shutil
from pathlib import Path

import httpx2
import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import GPT2Config, GPT2LMHeadModel, GPT2Tokenizer, MixtralConfig, MixtralForCausalLM

from heldin.base.errors import InputError
from heldin.base.files import file_sha256, text_sha256
from heldin.models.continuations import sample_texts
from heldin.models.loading import LanguageModel, load_tokenizer
from heldin.models.logprobs import score_texts
from heldin.models.model_config import TinyModel
from heldin.models.model_names import fingerprint_folder, require_model
from heldin.models.opening import load_language_model
from heldin.models.reading import quiet_transformers
from heldin.models.tiny import new_tiny_model, train_tokenizer
from heldin.models.tokens import same_tokens, start_token
from tests.refusals import raised_apart, refused

TEXT = ["The river opens the letter."]


@pytest.fixture
def folder(make_lm, tmp_path):
    lm = make_lm()
    lm.model.save_pretrained(tmp_path / "model")
    lm.tokenizer.save_pretrained(tmp_path / "model")
    return tmp_path / "model"


def test_a_saved_model_scores_as_before_and_its_name_is_its_content(make_lm, folder):
    loaded = load_language_model(str(folder))
    assert score_texts(loaded, TEXT)[0].logprobs.tolist() == score_texts(make_lm(), TEXT)[0].logprobs.tolist()
    assert not loaded.model.training
    before = fingerprint_folder(folder)
    other = make_lm(seed=1)
    other.model.save_pretrained(folder)
    assert fingerprint_folder(folder) != before
    assert load_language_model(str(folder)).fingerprint != loaded.fingerprint


def test_tokenizers_of_one_vocabulary_that_cut_otherwise_are_not_the_same(make_lm, folder, tmp_path):
    ours, again = make_lm().tokenizer, load_tokenizer(str(folder))
    assert same_tokens(ours, again)
    again.backend_tokenizer.enable_truncation(5)
    assert same_tokens(ours, again)
    content = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
    del content["model"]["merges"][10:]
    (folder / "tokenizer.json").write_text(json.dumps(content), encoding="utf-8")
    other = load_tokenizer(str(folder))
    assert other.get_vocab() == ours.get_vocab()
    assert other(TEXT)["input_ids"] != ours(TEXT)["input_ids"]
    assert not same_tokens(ours, other)
    assert not same_tokens(ours, None)


def test_a_lora_adapter_folder_is_loaded_onto_its_base(make_lm, folder, tmp_path):
    base = load_language_model(str(folder))
    with quiet_transformers():
        adapted = get_peft_model(base.model, LoraConfig(r=2, target_modules="all-linear", task_type="CAUSAL_LM"))
    for name, parameter in adapted.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, generator=torch.Generator().manual_seed(0))
    expected = score_texts(LanguageModel(adapted.eval(), base.tokenizer, "adapted", ""), TEXT)[0].logprobs
    adapted.peft_config["default"].base_model_name_or_path = str(folder)
    adapted.save_pretrained(tmp_path / "adapter")
    loaded = load_language_model(str(tmp_path / "adapter"))
    assert loaded.fingerprint != base.fingerprint
    assert score_texts(loaded, TEXT)[0].logprobs.tolist() == pytest.approx(expected.tolist(), abs=1e-4)
    assert expected.tolist() != pytest.approx(score_texts(make_lm(), TEXT)[0].logprobs.tolist(), abs=1e-3)


def test_a_fingerprint_covers_the_chat_template_and_is_as_before_without_one(folder):
    """Score caches and records of folders without a chat template are keyed by the hash of these files."""
    names = sorted(p.name for p in folder.iterdir() if p.name != "generation_config.json")
    assert {"config.json", "model.safetensors", "tokenizer.json"} <= set(names)
    before = text_sha256(*(part for name in names for part in (name, file_sha256(folder / name))))
    (folder / "generation_config.json").write_text('{"do_sample": true}', encoding="utf-8")
    assert fingerprint_folder(folder) == before
    (folder / "chat_template.jinja").write_text("{{ messages }}", encoding="utf-8")
    assert fingerprint_folder(folder) != before


def test_folders_that_cannot_be_used(folder, tmp_path):
    with refused(by="require_hub_name", naming=("model", "'/no/such/folder'")):
        load_language_model("/no/such/folder")
    (tmp_path / "empty").mkdir()
    with refused(by="_require_safe_weights", naming="config.json"):
        load_language_model(str(tmp_path / "empty"))
    weights = folder / "model.safetensors"
    kept = weights.read_bytes()
    weights.unlink()
    with refused(by="_require_safe_weights", naming="model.safetensors"):
        load_language_model(str(folder))
    (folder / "pytorch_model.bin").write_bytes(b"\x80pickle")
    with refused(by="_require_safe_weights", naming="pytorch_model.bin"):
        load_language_model(str(folder))
    weights.write_bytes(kept[: len(kept) // 2])
    with refused(by="reading", naming="model.safetensors"):
        load_language_model(str(folder))


class Runs:
    """A pickle of it makes a file when it is loaded."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return Path.touch, (self.path,)


@pytest.mark.parametrize("file", ["pytorch_model.bin", "adapter_model.bin", "model.pt"])
def test_no_code_of_a_pickle_runs(folder, tmp_path, file):
    made = tmp_path / "made"
    pickle.loads(pickle.dumps(Runs(made)))
    assert made.is_file()  # so would it, were it loaded
    made.unlink()
    (folder / "model.safetensors").unlink()
    (folder / file).write_bytes(pickle.dumps(Runs(made)))
    if file == "adapter_model.bin":
        content = {"peft_type": "LORA", "base_model_name_or_path": str(folder), "r": 2}
        (folder / "adapter_config.json").write_text(json.dumps(content))
    for load in (require_model, load_language_model):
        with refused(naming=(f"'{folder}'", file, "save_pretrained")):
            load(str(folder))
    assert not made.exists()


def prefix_scores(lm, text):
    """Log-probability of each token by a pass of its own over what precedes it."""
    ids = [lm.start_token, *lm.tokenizer(text, add_special_tokens=False)["input_ids"]]
    with torch.no_grad():
        logits = [lm.model(input_ids=torch.tensor([ids[:end]])).logits[0, -1] for end in range(1, len(ids))]
    return [float(each.log_softmax(-1)[token]) for each, token in zip(logits, ids[1:], strict=True)]


def _padded(folder, lm):
    """More embeddings than tokens, as for a multiple of 64."""
    model = lm.model
    model.resize_token_embeddings(448)
    model.save_pretrained(folder)


def _with_added_tokens(folder, lm):
    lm.tokenizer.add_tokens(["river", "<|tool|>"])
    lm.model.resize_token_embeddings(len(lm.tokenizer))
    lm.model.save_pretrained(folder)
    lm.tokenizer.save_pretrained(folder)


def _with_chat_template(folder, lm):
    (folder / "chat_template.jinja").write_text("{% for m in messages %}{{ m.content }}{% endfor %}", encoding="utf-8")


def _of_experts(folder, lm):
    sizes = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
    torch.manual_seed(0)
    with quiet_transformers():
        config = MixtralConfig(vocab_size=400, num_key_value_heads=2, max_position_embeddings=32, **sizes)
        MixtralForCausalLM(config).save_pretrained(folder)


@pytest.mark.parametrize("change", [_padded, _with_added_tokens, _with_chat_template, _of_experts])
def test_a_model_of_an_unusual_form_is_scored_as_by_a_plain_pass(folder, change):
    plain = score_texts(load_language_model(str(folder)), TEXT)[0].logprobs
    change(folder, load_language_model(str(folder)))
    lm = load_language_model(str(folder))
    texts = [*TEXT, "The market counts the story on day 7.", "12"]
    for text, scored in zip(texts, score_texts(lm, texts), strict=True):
        assert scored.logprobs.tolist() == pytest.approx(prefix_scores(lm, text), abs=2e-5)
    same = scored_alike(plain, score_texts(lm, TEXT)[0].logprobs)
    assert same is (change is _with_chat_template)


def scored_alike(first, second):
    return first.shape == second.shape and bool(abs(first - second).max() < 1e-6)


def test_a_model_type_that_nobody_knows_is_one_line(folder):
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "model_type": "of-tomorrow"}))
    for load in (require_model, load_language_model):
        with refused(by="reading", naming="of-tomorrow") as caught:
            load(str(folder))
        assert len(str(caught.value).splitlines()) == 1


DAMAGES = (True, None, {}, [], "x", -1, 10**30, [[]])
JSON_FILES = ("config.json", "tokenizer.json", "tokenizer_config.json", "generation_config.json")


def places(content, at=()):
    """Where a value of a JSON document is, to four of each list and mapping."""
    yield at
    keys = list(content) if isinstance(content, dict) else range(len(content)) if isinstance(content, list) else ()
    for key in keys[:4] if at else keys:
        yield from places(content[key], (*at, key))


def put(content, at, value):
    """The document with another value at one place."""
    if not at:
        return value
    key, *rest = at
    changed = content.copy()
    changed[key] = put(content[key], rest, value)
    return changed


@pytest.mark.filterwarnings("ignore")
def test_a_damaged_json_file_of_a_model_is_one_line_that_names_it(folder, tmp_path):
    rng = random.Random(0)
    whole = {name: (folder / name).read_bytes() for name in JSON_FILES}
    cases = [(name, "bits", i) for name in JSON_FILES for i in range(3)]
    for name in JSON_FILES:
        at = list(places(json.loads(whole[name])))
        cases += [(name, rng.choice(at), rng.choice(DAMAGES)) for _ in range(12)]
    cases += [
        ("config.json", ("embed_dropout",), True),
        ("tokenizer.json", ("model", "merges", 3, 0), True),
        ("config.json", "deep", 0),
        ("tokenizer_config.json", ("model_max_length",), "x"),
    ]
    refusals = []
    for name, at, value in cases:
        content = bytearray(whole[name])
        if at == "bits":
            for _ in range(3):
                content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
        elif at == "deep":
            content = b"[" * 100_000
        else:
            content = json.dumps(put(json.loads(content), at, value)).encode()
        (folder / name).write_bytes(content)
        try:
            require_model(str(folder))
            score_texts(load_language_model(str(folder)), TEXT)
        except InputError as error:
            refusals.append((name, str(error)))
        (folder / name).write_bytes(whole[name])
    assert len(refusals) > len(cases) / 3
    assert [line for _, line in refusals if "\n" in line or "model'" not in line] == []
    # What parses and is used only later is told of the model alone.
    assert sum(f"{name}' is damaged" in line for name, line in refusals) > 0.8 * len(refusals)


def test_a_model_that_needs_code_of_its_own_says_so(folder):
    config = json.loads((folder / "config.json").read_text())
    auto = {"AutoConfig": "own.Config", "AutoModelForCausalLM": "own.Model"}
    (folder / "config.json").write_text(json.dumps({**config, "model_type": "own", "auto_map": auto}))
    for load in (require_model, load_language_model):
        with refused(by="reading", naming=("auto_map", "config.json")):
            load(str(folder))


def test_a_hub_name_that_cannot_be_reached_is_one_line():
    with refused(by="reading", naming="'nobody/no-such-model'"):
        load_language_model("nobody/no-such-model")


def test_the_hub_is_asked_for_a_mistyped_name_once_and_nothing_is_tried_again(monkeypatch):
    asked = []

    def gone(self, name, *, timeout):
        asked.append((name, timeout))
        raise httpx2.ConnectError("no route")

    monkeypatch.setattr("heldin.models.model_names.HfApi.model_info", gone)
    with refused(by="require_on_hub", naming=("model", "'ckk/final'", "no route")):
        require_model("ckk/final")
    with refused(by="require_on_hub", naming=("tokenizer", "'ckk/tokens'")):
        load_tokenizer("ckk/tokens")
    assert asked == [("ckk/final", 10.0), ("ckk/tokens", 10.0)]


def test_weights_that_are_incomplete_are_not_filled_with_random_numbers(folder):
    from safetensors.torch import load_file, save_file

    tensors = load_file(folder / "model.safetensors")
    tensors.pop("transformer.h.1.mlp.c_fc.weight")
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    with refused(by=load_language_model, naming="'transformer.h.1.mlp.c_fc.weight'"):
        load_language_model(str(folder))


def test_weights_of_another_shape_are_refused(folder):
    config = json.loads((folder / "config.json").read_text())
    config["intermediate_size"] = 64
    (folder / "config.json").write_text(json.dumps(config))
    with refused(by=load_language_model, naming="transformer.h.0.mlp.c_fc.bias"):
        load_language_model(str(folder))


def test_a_folder_without_a_tokenizer_or_with_one_that_does_not_match(folder, english):
    for file in folder.glob("tokenizer*"):
        file.unlink()
    with refused(by="check_tokenizer", naming="model") as empty:
        load_language_model(str(folder))
    train_tokenizer([*english, *(chr(i) * 2 for i in range(0x4E00, 0x5000))], 900).save_pretrained(folder)
    # With the remedy.
    naming = ("model", "899", "356", "tokenizer.json", "tokenizer_config.json")
    with refused(by="check_tokenizer", naming=naming) as another:
        load_language_model(str(folder))
    assert raised_apart(empty, another)


def test_the_empty_tokenizer_that_transformers_builds_from_files_is_refused(data_dir, tmp_path):
    """transformers 5 ignores vocab_file= and silently builds a GPT-2 tokenizer that yields no tokens."""
    shutil.copy(data_dir / "gpt2_bpe" / "encoder.json", tmp_path / "vocab.json")
    shutil.copy(data_dir / "gpt2_bpe" / "vocab.bpe", tmp_path / "merges.txt")
    folder = tmp_path / "gpt2"
    GPT2LMHeadModel(GPT2Config(n_layer=1, n_head=2, n_embd=8, vocab_size=50257)).save_pretrained(folder)
    empty = GPT2Tokenizer(vocab_file=str(tmp_path / "vocab.json"), merges_file=str(tmp_path / "merges.txt"))
    empty.save_pretrained(folder)
    with refused(by="check_tokenizer", naming="gpt2"):
        load_language_model(str(folder))
    for file in folder.glob("*token*"):
        file.unlink()
    shutil.copy(tmp_path / "vocab.json", folder)
    shutil.copy(tmp_path / "merges.txt", folder)
    lm = load_language_model(str(folder))
    assert lm.start_token == 50256
    assert lm.tokenizer.decode(lm.tokenizer("Hello world")["input_ids"]) == "Hello world"


def test_a_tokenizer_without_a_start_token_is_refused(make_lm):
    tokenizer = make_lm().tokenizer
    saved = tokenizer.bos_token, tokenizer.eos_token
    try:
        tokenizer.bos_token = tokenizer.eos_token = None
        with refused(by=start_token, naming="'x'"):
            start_token(tokenizer, "x")
    finally:
        tokenizer.bos_token, tokenizer.eos_token = saved


def test_the_tiny_model_is_a_tied_gpt_neo_of_both_attentions_from_its_seed(english):
    tokenizer = train_tokenizer(english, 400)
    shape = TinyModel(vocabulary=400, context=16, hidden=8, layers=3, heads=2, window=4)
    model = new_tiny_model(shape, tokenizer, seed=3)
    assert model.config.attention_layers == ["global", "local", "global"]
    assert model.lm_head.weight is model.transformer.wte.weight
    assert torch.equal(model.lm_head.weight, new_tiny_model(shape, tokenizer, seed=3).lm_head.weight)
    assert not torch.equal(model.lm_head.weight, new_tiny_model(shape, tokenizer, seed=4).lm_head.weight)
    with refused(by=train_tokenizer, naming=("100", "BPE", "257")):
        train_tokenizer(english, 100)


def test_the_tokenizer_keeps_every_character(make_lm):
    tokenizer = make_lm().tokenizer
    text = "Tabs\tand  spaces, ünïcode 🎉\n\n— 日本語"
    assert tokenizer.decode(tokenizer(text, add_special_tokens=False)["input_ids"]) == text


def test_sampling_follows_the_models_distribution_and_its_seed(make_lm):
    lm = make_lm()
    assert sample_texts(lm, 3, seed=1, max_tokens=8) == sample_texts(lm, 3, seed=1, max_tokens=8)
    assert sample_texts(lm, 3, seed=1, max_tokens=8) != sample_texts(lm, 3, seed=2, max_tokens=8)
    bias = torch.zeros(lm.model.config.vocab_size)
    bias[lm.tokenizer("river", add_special_tokens=False)["input_ids"][0]] = 50.0
    lm.model.lm_head.bias = torch.nn.Parameter(bias)
    first = lm.tokenizer.decode(lm.tokenizer("river", add_special_tokens=False)["input_ids"][:1])
    assert sample_texts(lm, 2, seed=0, max_tokens=3) == [first * 3] * 2
    with refused(by=sample_texts, naming="0"):
        sample_texts(lm, 1, seed=0, temperature=0)
    with refused(by=sample_texts, naming=("'tiny-0'", "32")):
        sample_texts(lm, 1, seed=0, prompt="The river opens the letter. " * 9)


@pytest.mark.parametrize("precision", ["fp32", "int8"])
@pytest.mark.parametrize("decoder", [False, True])
@pytest.mark.parametrize("kind", ["bert", "electra"])
def test_a_model_that_looks_ahead_is_refused_and_its_causal_twin_is_not(make_lm, tmp_path, kind, decoder, precision):
    """BERT and ELECTRA load as causal language models with a full attention unless is_decoder says otherwise."""
    from transformers import BertConfig, BertLMHeadModel, ElectraConfig, ElectraForCausalLM

    if precision == "int8":
        pytest.importorskip("bitsandbytes")
    sizes = {"hidden_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 64}
    config, model = {"bert": (BertConfig, BertLMHeadModel), "electra": (ElectraConfig, ElectraForCausalLM)}[kind]
    torch.manual_seed(0)
    with quiet_transformers():
        model(config(vocab_size=400, max_position_embeddings=32, is_decoder=decoder, **sizes)).save_pretrained(tmp_path)
    make_lm().tokenizer.save_pretrained(tmp_path)
    if decoder:
        assert load_language_model(str(tmp_path), precision=precision).context == 32
        return
    with refused(by="check_causal", naming=model.__name__):
        load_language_model(str(tmp_path), precision=precision)


def test_a_causal_model_with_large_activations_is_not_refused_in_8_bits_where_its_scores_depend_on_the_batch(
    make_lm, tmp_path
):
    """LLM.int8 leaves a column that is large at one token unrounded at every token of the batch."""
    pytest.importorskip("bitsandbytes")
    tokenizer = make_lm().tokenizer
    shape = TinyModel(vocabulary=400, context=32, hidden=64, layers=2, heads=2, window=8)
    model = new_tiny_model(shape, tokenizer, 0)
    for name, parameter in model.named_parameters():
        if "ln_" in name and name.endswith("weight"):
            parameter.data[::10] *= 3.5
    model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    lm = load_language_model(str(tmp_path), precision="int8")
    texts = ["Falcon closes on Friday, said Ms Adams twice.", "zzz qqq 99 !! completely other text here", "12 people"]
    alone, together = [score_texts(lm, [its])[0].total for its in texts], [its.total for its in score_texts(lm, texts)]
    moved = max(abs(a - b) for a, b in zip(alone, together, strict=True))
    # The check leaves the arithmetic of scoring as it was.
    assert 0 < moved < 0.5


def test_within_a_window_a_text_is_scored_as_its_pieces(make_lm, english):
    lm = make_lm()
    text = " ".join(english[:20])
    narrow = lm.within(12)
    assert (narrow.context, narrow.fingerprint != lm.fingerprint) == (12, True)
    assert lm.within(None) is lm.within(lm.context) is lm
    ids = lm.tokenizer(text)["input_ids"]
    pieces = [ids[i : i + 12] for i in range(0, len(ids), 12)]
    with torch.no_grad():
        logits = [lm.model(torch.tensor([[lm.start_token, *piece[:-1]]])).logits[0] for piece in pieces]
    alone = [
        its.log_softmax(-1).gather(1, torch.tensor(piece)[:, None]) for its, piece in zip(logits, pieces, strict=True)
    ]
    (found,) = score_texts(narrow, [text])
    assert found.logprobs.tolist() == pytest.approx(torch.cat(alone).flatten().tolist(), abs=1e-4)


def saved_model(kind, make_lm, folder, limit=None):
    """A tiny model of an architecture whose config need not state how many tokens it takes, and its tokenizer."""
    from transformers import (
        BloomConfig,
        BloomForCausalLM,
        Mamba2Config,
        Mamba2ForCausalLM,
        MambaConfig,
        MambaForCausalLM,
        MptConfig,
        MptForCausalLM,
    )

    tokenizer = load_tokenizer(str(save_tokenizer(make_lm, folder)))
    tokenizer.model_max_length = limit or 10**30
    mamba = {"vocab_size": 400, "hidden_size": 32, "num_hidden_layers": 1}
    torch.manual_seed(0)
    with quiet_transformers():
        model = {
            "bloom": lambda: BloomForCausalLM(BloomConfig(vocab_size=400, hidden_size=32, n_layer=1, n_head=2)),
            "mpt": lambda: MptForCausalLM(MptConfig(vocab_size=400, d_model=32, n_layers=1, n_heads=2, max_seq_len=24)),
            "mamba": lambda: MambaForCausalLM(MambaConfig(**mamba)),
            "mamba2": lambda: Mamba2ForCausalLM(
                Mamba2Config(**mamba, num_heads=2, head_dim=32, n_groups=1, state_size=8)
            ),
        }[kind]()
        model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)


def save_tokenizer(make_lm, folder):
    make_lm().tokenizer.save_pretrained(folder)
    return folder


@pytest.mark.parametrize("kind", ["bloom", "mamba", "mamba2"])
def test_a_model_that_states_no_context_is_loaded_with_its_users(make_lm, tmp_path, english, kind):
    name = saved_model(kind, make_lm, tmp_path)
    silent = load_language_model(name)
    with refused(by="LanguageModel.context", naming="--set context"):
        score_texts(silent, TEXT)
    lm = load_language_model(name, context=12)
    assert (lm.context, lm.fingerprint != silent.fingerprint) == (12, True)
    assert lm.fingerprint != load_language_model(name, context=13).fingerprint
    text = " ".join(english[:5])
    (scored,) = score_texts(lm, [text])
    ids = lm.tokenizer(text)["input_ids"]
    alone = []
    with torch.no_grad():
        for piece in (ids[i : i + 12] for i in range(0, len(ids), 12)):
            logits = lm.model(torch.tensor([[lm.start_token, *piece[:-1]]])).logits[0]
            alone.append(logits.log_softmax(-1).gather(1, torch.tensor(piece)[:, None]))
    assert scored.logprobs.tolist() == pytest.approx(torch.cat(alone).flatten().tolist(), abs=1e-3)


def test_a_context_that_the_config_or_the_tokenizer_states_is_taken(make_lm, tmp_path):
    assert load_language_model(saved_model("mpt", make_lm, tmp_path / "mpt")).context == 24
    limited = load_language_model(saved_model("mamba", make_lm, tmp_path / "mamba", limit=20))
    assert (limited.context, limited.fingerprint) == (20, load_language_model(str(tmp_path / "mamba")).fingerprint)
    # A user may lower what is stated, and does not raise it.
    assert load_language_model(str(tmp_path / "mamba"), context=8).context == 8
    assert load_language_model(str(tmp_path / "mamba"), context=99).context == 20
