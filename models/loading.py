"""Load a causal language model and its tokenizer safely, or say in one line why that fails.

Weights are read only from safetensors, and no code that comes with a model is run. A LoRA adapter is loaded onto its
base model and merged. Of a model that reads images or sound as well, all weights are loaded and texts alone are scored.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from transformers import (
    MODEL_FOR_MULTIMODAL_LM_MAPPING,
    AutoModelForCausalLM,
    AutoModelForMultimodalLM,
    AutoTokenizer,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from heldin.base.errors import InputError
from heldin.base.files import text_sha256
from heldin.base.section import MANY
from heldin.models.arithmetic import Stored, loading_options, stored_in, tokens_rounded_apart
from heldin.models.attention import use_exact_attention
from heldin.models.devices import default_device, spreads
from heldin.models.model_config import ScoringPrecision
from heldin.models.model_names import (
    fingerprint_in,
    is_adapter,
    read_config,
    require_folder_or_hub_name,
    require_hub_name,
    require_on_hub,
    weight_files,
)
from heldin.models.reading import reading, text_config
from heldin.models.tokens import start_token

if TYPE_CHECKING:
    from heldin.models.adapters import AdapterBase

PROBE = "The quick brown fox met 12 people on Tuesday."
_CAUSAL_PROBE = 8  # tokens


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
        stored: how its weights are stored, without those of an adapter.
        adapter: the base of the adapter that was loaded; None: there is none.
    """

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    name: str
    fingerprint: str
    size: int | None = None
    window: int | None = None
    stored: Stored = field(default_factory=Stored)
    adapter: "AdapterBase | None" = None

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


def reads_more_than_text(config: Any) -> bool:
    """Return whether a model with this config also reads images, sound or the like."""
    return type(config) in MODEL_FOR_MULTIMODAL_LM_MAPPING


def require_text_alone(config: Any, name: str) -> None:
    """Raises InputError for a model that also reads images or sound, which heldin scores and does not train."""
    if reads_more_than_text(config):
        raise InputError(
            f"'{name}' ({config.model_type}) reads images or sound as well as text, and heldin trains models of text"
            " alone: name such a model as model.base, or train it with your own trainer (heldin plant) and audit it"
        )


def context_length(config: Any) -> int:
    """Context length in tokens of a model with this config. Raises InputError if the config does not say."""
    stated = _stated(config)
    if stated is None:
        raise InputError(f"the config of a {config.model_type} model does not say how many tokens it takes")
    return stated


def _stated(config: Any) -> int | None:
    lengths = (getattr(text_config(config), key, None) for key in _CONTEXTS)
    return next((length for length in lengths if isinstance(length, int) and length > 0), None)


def _limit_of(tokenizer: PreTrainedTokenizerBase) -> int | None:
    # transformers writes 10^30 for a tokenizer without a limit, and people write large numbers of their own.
    limit = tokenizer.model_max_length
    return int(limit) if 0 < limit <= MANY else None


_CONTEXTS = ("max_position_embeddings", "n_positions", "n_ctx", "max_seq_len", "seq_length")  # the last two: MPT, BLOOM


def load_language_model(
    name: str,
    *,
    device: torch.device | None = None,
    precision: ScoringPrecision = "fp32",
    revision: str | None = None,
    context: int | None = None,
    adapter_base: str | None = None,
) -> LanguageModel:
    """Load a model by hub name or folder, in evaluation mode.

    Args:
        name: hub name or folder; the folder may hold a LoRA adapter.
        device: where to put it; None: as the environment says, else the GPU if there is one.
        precision: of the weights; anything but fp32 is for scoring.
        revision: branch, tag or commit on the hub.
        context: most tokens of a pass, where the model does not state them or takes more.
        adapter_base: the base of an adapter, in place of the one that its config names.

    Raises:
        InputError: there is no such folder, or it has no weights, only pickled ones or incomplete ones; or there is no
            tokenizer, or it does not fit the model or yields no tokens; or the precision or the format of the weights
            is not to be had here.
    """
    folder = Path(name)
    if is_adapter(folder):
        from heldin.models.adapters import load_adapter

        return load_adapter(folder, device=device, precision=precision, adapter_base=adapter_base).within(context)
    require_folder_or_hub_name(name)
    placed = None if device is None and spreads() else device or default_device()
    config = read_config(name, revision)
    stored = stored_in(weight_files(name, revision), config, name)
    options = loading_options(precision, placed, stored)
    with reading(name, f"cannot load model '{name}'"):
        # All of its parts are loaded, as the checkpoint has them: a class for the text alone may have other names.
        loads = AutoModelForMultimodalLM if reads_more_than_text(config) else AutoModelForCausalLM
        # Tensors that are missing are filled with random numbers without an error; only the report tells.
        model, report = loads.from_pretrained(
            name,
            config=config,
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
    fingerprint, size = fingerprint_in(name, revision, precision), model.num_parameters()
    return LanguageModel(model, tokenizer, name, fingerprint, size, stored=stored).within(context)


def stored_weights(name: str, adapter_base: str | None = None, revision: str | None = None) -> tuple[str, Stored]:
    """Return whose weights are loaded for a name (of an adapter, the base's), and how they are stored.

    Raises InputError for the reasons of ``load_language_model`` that files show.
    """
    if is_adapter(Path(name)):
        from heldin.models.adapters import base_of

        base = base_of(Path(name), adapter_base)
        return stored_weights(base.name, adapter_base, base.revision)
    require_folder_or_hub_name(name)
    return name, stored_in(weight_files(name, revision), read_config(name, revision), name)


def say_how_loaded(model: object, say: Callable[[str], object]) -> None:
    """Say which adapter and which base were loaded, where there was a choice."""
    if isinstance(model, LanguageModel) and model.adapter is not None:
        from heldin.models.adapters import lines_about

        for line in lines_about(model.name, model.adapter):
            say(line)


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


def load_tokenizer_of(name: str, adapter_base: str | None = None) -> PreTrainedTokenizerBase:
    """Load the tokenizer that a model is scored with: an adapter's own, else that of its base.

    Args:
        name: of the model, which may be an adapter.
        adapter_base: takes the place of the base that an adapter names.

    Raises:
        InputError: there is none.
    """
    from heldin.models.adapters import base_of

    while is_adapter(Path(name)) and not (Path(name) / "tokenizer.json").is_file():
        name = base_of(Path(name), adapter_base).name
    return load_tokenizer(name)


def check_tokenizer(tokenizer: PreTrainedTokenizerBase, name: str, *, vocabulary: int) -> None:
    """Raises InputError for a tokenizer that yields no tokens, only unknown ones, or ids without an embedding."""
    # transformers makes an empty tokenizer of some folders without an error, and texts of no or unknown tokens say
    # nothing.
    ids = tokenizer(PROBE, add_special_tokens=False)["input_ids"]
    if not ids or set(ids) == {tokenizer.unk_token_id}:
        yielded = "no tokens" if not ids else "only unknown tokens"
        raise InputError(
            f"the tokenizer of '{name}' makes {yielded} of plain English: its vocabulary is empty or not its own"
            " (load it from a folder with tokenizer.json)"
        )
    highest = max(tokenizer.get_vocab().values())
    # Fewer ids than embeddings are fine: models pad their embeddings to a round number.
    if highest >= vocabulary:
        raise InputError(
            f"the tokenizer of '{name}' does not match the model: token ids go up to {highest},"
            f" the model has {vocabulary} embeddings: copy tokenizer.json and tokenizer_config.json of the model that"
            " it was trained from into its folder, or resize the embeddings and save both again"
        )


def check_causal(model: PreTrainedModel, name: str) -> None:
    """Raises InputError for a model in which a later token changes an earlier prediction.

    BERT-like models load as such a model unless ``is_decoder`` is set.
    """
    # The model would score texts that it has already read; under private training the gradient of one unit would also
    # depend on the padding that other units cause.
    vocabulary = model.get_input_embeddings().weight.shape[0]
    ids = torch.arange(1, _CAUSAL_PROBE + 1, device=model.device)[None] % vocabulary
    other = ids.clone()
    # The last token alone differs, so that every earlier prediction must be the same.
    other[0, -1] = (ids[0, -1] + 1) % vocabulary
    with torch.no_grad(), tokens_rounded_apart(model):
        first, second = (model(input_ids=x, use_cache=False).logits[0, :-1].float() for x in (ids, other))
    moved, scale = float((first - second).abs().max()), float(first.abs().max())
    if moved > 1e-5 * scale:  # a causal model gives the same numbers up to rounding
        raise InputError(
            f"'{name}' ({type(model).__name__}) is not a causal language model: changing the last token of a text moved"
            f" an earlier prediction by {moved:.2g}; a BERT-like model needs is_decoder: true in its config.json, and"
            " to have been trained with it, and a prefix model, such as PaliGemma, reads the whole text first"
        )


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


def load_target_and_reference(
    target: str,
    reference: str,
    *,
    precision: ScoringPrecision = "fp32",
    revision: str | None = None,
    context: int | None = None,
    adapter_base: str | None = None,
) -> tuple[LanguageModel, LanguageModel]:
    """Load both models; the base's weights are held once if the target is an adapter on it that can be switched off.

    Scores equal those of the two loaded apart up to rounding: the adapter is added to a layer's output and not to its
    weights. The target has the reference's tokenizer if its own differs by added special tokens only.

    Args:
        target: folder or hub name; may be a LoRA adapter's folder.
        reference: folder or hub name.
        revision: of the reference, on the hub.
        context: most tokens of a pass of both, where they do not state them or take more.
        adapter_base: the base of adapters, in place of the one that their configs name.

    Raises:
        InputError: for the reasons of ``load_language_model``.
    """

    def load(name: str, revision: str | None = None) -> LanguageModel:
        return load_language_model(name, precision=precision, revision=revision, adapter_base=adapter_base)

    if is_adapter(Path(target)):
        from heldin.models.adapters import base_of, is_base, load_from_one_copy, require_adapter_of_weights

        require_adapter_of_weights(Path(target))
        at = base_of(Path(target), adapter_base)
        if is_base(at, reference, revision):
            shared = load_from_one_copy(Path(target), at, load(reference, revision))
            if shared is not None:
                return shared[0].within(context), shared[1].within(context)
    base = load(reference, revision).within(context)
    return with_tokens_of(load(target).within(context), base), base
