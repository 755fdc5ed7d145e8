"""Load a causal language model and its tokenizer safely, or say in one line why that fails.

Weights are read only from safetensors, and no code that comes with a model is run. A LoRA adapter is loaded onto its
base model and merged.
"""

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from heldin.base.errors import InputError
from heldin.base.files import text_sha256
from heldin.base.section import MANY
from heldin.models.arithmetic import loading_options
from heldin.models.attention import use_exact_attention
from heldin.models.checks import check_adapter_keys, check_causal, check_tokenizer
from heldin.models.devices import default_device, spreads
from heldin.models.model_config import ScoringPrecision
from heldin.models.model_names import (
    base_of,
    fingerprint_folder,
    fingerprint_in,
    is_adapter,
    require_adapter_of_weights,
    require_folder_or_hub_name,
    require_hub_name,
    require_on_hub,
)
from heldin.models.reading import reading


@dataclass(frozen=True)
class LanguageModel:
    """A model with its tokenizer.

    Attributes:
        model: in evaluation mode.
        tokenizer: the model's own.
        name: hub name or folder, for messages.
        fingerprint: identifies the exact weights, so that scores can be cached under it.
        size: number of parameters, without those of an adapter; None: count them.
        window: most tokens of a pass; None: as many as the model states.
    """

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    name: str
    fingerprint: str
    size: int | None = None
    window: int | None = None

    @property
    def stated_context(self) -> int | None:
        """Most tokens of one forward pass; None where neither the model nor its user states them."""
        return self.window or _stated(self.model.config) or _limit_of(self.tokenizer)

    @property
    def context(self) -> int:
        """Most tokens of one forward pass. Raises InputError if they are not stated."""
        stated = self.stated_context
        if stated is None:
            raise InputError(
                f"'{self.name}' ({self.architecture}) does not state how many tokens it takes, in its config or its"
                " tokenizer: say it with --set context=NUMBER"
            )
        return stated

    def within(self, window: int | None) -> "LanguageModel":
        """The same with passes of no more tokens, under a fingerprint of its own: its scores of longer texts differ."""
        stated = self.stated_context
        if window is None or (stated is not None and window >= stated):
            return self
        return replace(self, window=window, fingerprint=text_sha256(self.fingerprint, f"windows of {window}"))

    @property
    def start_token(self) -> int:
        """The token put before a text, so that the text's first token has a probability too."""
        return start_token(self.tokenizer, self.name)

    @property
    def device(self) -> torch.device:
        """Return the device of the model's parameters."""
        device: torch.device = self.model.device
        return device

    @property
    def architecture(self) -> str:
        """Class of the model; of the base model for one whose adapter is switched off."""
        return str(getattr(self.model, "architecture", type(self.model).__name__))

    def parameters(self) -> int:
        """Number of parameters, tied ones counted once."""
        # By transformers, which knows that two weights of 4 bits are held in a byte.
        return self.size or self.model.num_parameters()


def context_length(config: Any) -> int:
    """Context length in tokens of a model with this config. Raises InputError if the config does not say."""
    stated = _stated(config)
    if stated is None:
        raise InputError(f"the config of a {config.model_type} model does not say how many tokens it takes")
    return stated


def _stated(config: Any) -> int | None:
    lengths = (getattr(config, key, None) for key in _CONTEXTS)
    return next((length for length in lengths if isinstance(length, int) and length > 0), None)


def _limit_of(tokenizer: PreTrainedTokenizerBase) -> int | None:
    # transformers writes 10^30 for a tokenizer without a limit, and people write large numbers of their own.
    limit = tokenizer.model_max_length
    return int(limit) if 0 < limit <= MANY else None


_CONTEXTS = ("max_position_embeddings", "n_positions", "n_ctx", "max_seq_len", "seq_length")  # the last two: MPT, BLOOM


def start_token(tokenizer: PreTrainedTokenizerBase, name: str) -> int:
    """The beginning-of-text token, else the end-of-text token, with which GPT-style models were trained."""
    for token in (tokenizer.bos_token_id, tokenizer.eos_token_id):
        if token is not None:
            return int(token)
    raise InputError(f"the tokenizer of '{name}' has neither a beginning- nor an end-of-text token: add one")


def load_language_model(
    name: str,
    *,
    device: torch.device | None = None,
    precision: ScoringPrecision = "fp32",
    revision: str | None = None,
    context: int | None = None,
) -> LanguageModel:
    """Load a model by hub name or folder, in evaluation mode.

    Args:
        name: hub name or folder; the folder may hold a LoRA adapter.
        device: where to put it; None: as the environment says, else the GPU if there is one.
        precision: of the weights; anything but fp32 is for scoring.
        revision: branch, tag or commit on the hub.
        context: most tokens of a pass, where the model does not state them or takes more.

    Raises:
        InputError: there is no such folder, or it has no weights, only pickled ones or incomplete ones; or there is no
            tokenizer, or it does not fit the model or yields no tokens; or the precision is not to be had here.
    """
    folder = Path(name)
    if is_adapter(folder):
        return _load_adapter(folder, device=device, precision=precision).within(context)
    require_folder_or_hub_name(name)
    placed = None if device is None and spreads() else device or default_device()
    options = loading_options(precision, placed)
    with reading(name, f"cannot load model '{name}'"):
        # Tensors that are missing are filled with random numbers without an error; only the report tells.
        model, report = AutoModelForCausalLM.from_pretrained(
            name,
            revision=revision,
            use_safetensors=True,
            trust_remote_code=False,
            ignore_mismatched_sizes=True,  # refused below, with a readable message
            output_loading_info=True,
            **options,
        )
    # Tied weights are saved once, so transformers reports their second name as missing.
    missing = sorted(set(report["missing_keys"]) - set(getattr(model, "all_tied_weights_keys", None) or ()))
    if missing or report["mismatched_keys"]:
        wrong = (missing or sorted(map(str, report["mismatched_keys"])))[0]
        raise InputError(
            f"the weights of '{name}' are incomplete or of another shape, such as '{wrong}': save it again"
        )
    tokenizer = load_tokenizer(name, revision=revision)
    use_exact_attention(model)
    # One that ``device_map`` placed stays where it is.
    model = (model if "device_map" in options else model.to(placed)).eval()
    # Values of the config and the tokenizer that nothing has used so far are used now.
    with reading(name, f"model '{name}' cannot read a text"):
        check_tokenizer(tokenizer, name, vocabulary=model.get_input_embeddings().weight.shape[0])
        check_causal(model, name)
    # Counted now: on a CPU bitsandbytes packs its matrices otherwise when they are first used.
    lm = LanguageModel(model, tokenizer, name, fingerprint_in(name, revision, precision), model.num_parameters())
    return lm.within(context)


def load_tokenizer(name: str, *, revision: str | None = None) -> PreTrainedTokenizerBase:
    """Load the tokenizer of a hub name or folder. Raises InputError if there is none."""
    if not Path(name).is_dir():
        require_hub_name(name, "tokenizer")
        require_on_hub(name, "tokenizer", revision)
    with reading(name, f"cannot load the tokenizer of '{name}'"):
        tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(
            name, revision=revision, trust_remote_code=False
        )
    return tokenizer


def same_tokens(a: PreTrainedTokenizerBase | None, b: PreTrainedTokenizerBase | None) -> bool:
    """Return whether two tokenizers cut every text alike, so that means over tokens can be compared.

    None stands for an unknown tokenizer, which equals no other.
    """
    return a is not None and b is not None and a.get_vocab() == b.get_vocab() and _cuts(a) == _cuts(b)


def with_tokens_of(target: LanguageModel, reference: LanguageModel) -> LanguageModel:
    """The target with the reference's tokenizer, if its own differs by added special tokens only, such as for padding.

    No text of a user is cut otherwise by them, unless it has such a token in it; with one tokenizer tokens compare.
    """
    own, base = target.tokenizer, reference.tokenizer
    vocabulary, added = own.get_vocab(), base.get_vocab().keys() ^ own.get_vocab().keys()
    more = {token.content for token in own.added_tokens_decoder.values() if token.special}
    same = {token: number for token, number in vocabulary.items() if token not in added} == base.get_vocab()
    return replace(target, tokenizer=base) if same and added and added <= more and _cuts(own) == _cuts(base) else target


def _cuts(tokenizer: PreTrainedTokenizerBase) -> object:
    """Return the settings by which a fast tokenizer cuts; None for others, of which only the vocabulary is compared."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        return None
    # Not the whole of it: truncation and padding, which training sets, change no score. Equal vocabularies with other
    # merges cut a text otherwise.
    parts = json.loads(backend.to_str())
    return [parts[name] for name in ("normalizer", "pre_tokenizer", "model")]


def on_base(base: LanguageModel, folder: Path) -> tuple[Any, PreTrainedTokenizerBase]:
    """The base model with a folder's adapter switched on (a PeftModel; the base's own layers are changed), and the
    tokenizer. Raises InputError if the adapter cannot be loaded, or its tokenizer does not fit."""
    from peft import PeftModel  # only adapter folders need it

    require_adapter_of_weights(folder)
    with reading(str(folder), f"cannot load the adapter '{folder}'"):
        try:
            adapted = PeftModel.from_pretrained(base.model, str(folder)).eval()
        except KeyError as error:  # for a layer that is trained whole and is not in the file
            raise InputError(
                f"'{folder / 'adapter_model.safetensors'}' lacks the key {error}: save the adapter again"
            ) from error
        check_adapter_keys(adapted, folder)
    tokenizer = load_tokenizer(str(folder)) if (folder / "tokenizer.json").is_file() else base.tokenizer
    check_tokenizer(tokenizer, str(folder), vocabulary=base.model.get_input_embeddings().weight.shape[0])
    return adapted, tokenizer


def _load_adapter(folder: Path, *, device: torch.device | None, precision: ScoringPrecision) -> LanguageModel:
    name, revision = base_of(folder)
    base = load_language_model(name, device=device, precision=precision, revision=revision)
    adapted, tokenizer = on_base(base, folder)
    # Merged in float32, so that a forward pass costs what the base model's does. Coarser weights would round away what
    # the adapter adds: there it stays beside them.
    with reading(str(folder), f"cannot merge the adapter '{folder}' with its base"):
        model = adapted.merge_and_unload() if precision == "fp32" else base.model
    name = text_sha256(base.fingerprint, fingerprint_folder(folder))
    return LanguageModel(model, tokenizer, str(folder), name, base.size)


def load_target_and_reference(
    target: str,
    reference: str,
    *,
    precision: ScoringPrecision = "fp32",
    revision: str | None = None,
    context: int | None = None,
) -> tuple[LanguageModel, LanguageModel]:
    """Load both models; the base's weights are held once if the target is an adapter on it that can be switched off.

    Scores equal those of the two loaded apart up to rounding: the adapter is added to a layer's output and not to its
    weights. The target has the reference's tokenizer if its own differs by added special tokens only.

    Args:
        target: folder or hub name; may be a LoRA adapter's folder.
        reference: folder or hub name.
        revision: of the reference, on the hub.
        context: most tokens of a pass of both, where they do not state them or take more.

    Raises:
        InputError: for the reasons of ``load_language_model``.
    """
    if _is_on(target, reference, revision):
        # For adapters alone.
        from heldin.models.adapters import load_from_one_copy

        shared = load_from_one_copy(
            Path(target), load_language_model(reference, precision=precision, revision=revision)
        )
        if shared is not None:
            return shared[0].within(context), shared[1].within(context)
    base = load_language_model(reference, precision=precision, revision=revision, context=context)
    return with_tokens_of(load_language_model(target, precision=precision, context=context), base), base


def _is_on(target: str, reference: str, revision: str | None) -> bool:
    """Return whether the target is an adapter of this very reference."""
    if not is_adapter(Path(target)):
        return False
    named, at = base_of(Path(target))
    if Path(named).is_dir() or Path(reference).is_dir():
        return Path(named).resolve() == Path(reference).resolve()
    return named == reference and at == revision
