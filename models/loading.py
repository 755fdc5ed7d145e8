"""Load a causal language model and its tokenizer safely, or report in one line why this is impossible.

heldin reads weights only from safetensors, and never runs a model's own code. It loads a LoRA adapter onto its base
model, and in float32 merges the two. For a model that also reads images or sound, it loads all weights, but scores only
texts.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from transformers import (
    MODEL_FOR_MULTIMODAL_LM_MAPPING,
    AutoTokenizer,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from heldin.base.errors import InputError
from heldin.base.files import text_sha256
from heldin.base.section import MANY
from heldin.models.adapter_bases import AdapterBase, base_of, is_adapter, lines_about
from heldin.models.arithmetic import stored_in, tokens_rounded_apart
from heldin.models.model_names import (
    read_config,
    require_folder_or_hub_name,
    require_hub_name,
    require_on_hub,
    weight_files,
)
from heldin.models.reading import reading, text_config
from heldin.models.stored import Stored
from heldin.models.tokens import cuts, start_token

PROBE = "The quick brown fox met 12 people on Tuesday."
_CAUSAL_PROBE = 8  # tokens


@dataclass(frozen=True)
class LanguageModel:
    """A model with its tokenizer.

    Attributes:
        model: the model, in evaluation mode.
        tokenizer: the model's own tokenizer.
        name: hub name or folder, for messages.
        fingerprint: hash that identifies the exact weights; the cache stores scores under it.
        size: number of parameters, without an adapter's; None: count the parameters of ``model``.
        window: maximum number of tokens per pass; None: the model's own limit.
        stored: how the model's weights are stored, without an adapter's.
        adapter: base of the loaded adapter; None if no adapter was loaded.
    """

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    name: str
    fingerprint: str
    size: int | None = None
    window: int | None = None
    stored: Stored = field(default_factory=Stored)
    adapter: AdapterBase | None = None

    @property
    def stated_context(self) -> int | None:
        """Maximum number of tokens per forward pass; None if neither the model nor its user states it."""
        return self.window or _stated(self.model.config) or _limit_of(self.tokenizer)

    @property
    def context(self) -> int:
        """Maximum number of tokens per forward pass. Raises InputError if it is unknown."""
        stated = self.stated_context
        if stated is None:
            raise InputError(
                f"neither the config nor the tokenizer of '{self.name}' ({self.architecture}) states the context"
                " length: give the length with --set context=NUMBER"
            )
        return stated

    def within(self, window: int | None) -> "LanguageModel":
        """Return the model with a limit on the tokens per pass. Its fingerprint differs, because scores of long texts
        differ."""
        stated = self.stated_context
        if window is None or (stated is not None and window >= stated):
            return self
        return replace(self, window=window, fingerprint=text_sha256(self.fingerprint, f"windows of {window}"))

    @property
    def start_token(self) -> int:
        """Token that precedes a text, so the text's first token has a probability too."""
        return start_token(self.tokenizer, self.name)

    @property
    def device(self) -> torch.device:
        """Return the device of the model's parameters."""
        device: torch.device = self.model.device
        return device

    @property
    def architecture(self) -> str:
        """Class name of the model; the base model's class if the adapter is switched off."""
        return str(getattr(self.model, "architecture", type(self.model).__name__))

    def parameters(self) -> int:
        """Number of parameters; tied parameters count once."""
        # By transformers, which knows that two weights of 4 bits are held in a byte.
        return self.size or self.model.num_parameters()


def reads_more_than_text(config: Any) -> bool:
    """Return whether a model with this config also reads images, sound or other inputs."""
    return type(config) in MODEL_FOR_MULTIMODAL_LM_MAPPING


def require_text_alone(config: Any, name: str) -> None:
    """Raise InputError for a model that also reads images or sound, because heldin does not train such a model."""
    if reads_more_than_text(config):
        raise InputError(
            f"'{name}' ({config.model_type}) reads images or sound as well as text, but heldin trains only models of"
            f" text. Choose such a model as model.base, or train '{name}' with your own trainer (heldin plant) and"
            " audit it"
        )


def context_length(config: Any) -> int:
    """Return the context length, in tokens, of a model with this config. Raises InputError if the config lacks it."""
    stated = _stated(config)
    if stated is None:
        raise InputError(
            f"the config of a {config.model_type} model does not state the context length: add"
            " max_position_embeddings to config.json"
        )
    return stated


def _stated(config: Any) -> int | None:
    lengths = (getattr(text_config(config), key, None) for key in _CONTEXTS)
    return next((length for length in lengths if isinstance(length, int) and length > 0), None)


def _limit_of(tokenizer: PreTrainedTokenizerBase) -> int | None:
    # transformers writes 10^30 for a tokenizer without a limit, and people write large numbers of their own.
    limit = tokenizer.model_max_length
    return int(limit) if 0 < limit <= MANY else None


_CONTEXTS = ("max_position_embeddings", "n_positions", "n_ctx", "max_seq_len", "seq_length")  # the last two: MPT, BLOOM


def stored_weights(name: str, adapter_base: str | None = None, revision: str | None = None) -> tuple[str, Stored]:
    """Return the name of the loaded weights (for an adapter, the base's name), and how these weights are stored.

    Raises InputError for each error of ``load_language_model`` that the files alone reveal.
    """
    if is_adapter(Path(name)):
        base = base_of(Path(name), adapter_base)
        return stored_weights(base.name, adapter_base, base.revision)
    require_folder_or_hub_name(name)
    return name, stored_in(weight_files(name, revision), read_config(name, revision), name)


def say_how_loaded(model: object, say: Callable[[str], object]) -> None:
    """Report which adapter and which base were loaded, if there was a choice between several."""
    if isinstance(model, LanguageModel) and model.adapter is not None:
        for line in lines_about(model.name, model.adapter):
            say(line)


def load_tokenizer(name: str, *, revision: str | None = None) -> PreTrainedTokenizerBase:
    """Load the tokenizer of a hub name or folder. Raises InputError if there is no tokenizer."""
    if not Path(name).is_dir():
        require_hub_name(name, "tokenizer")
        require_on_hub(name, "tokenizer", revision)
    with reading(name, f"cannot load the tokenizer of '{name}'"):
        tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(
            name, revision=revision, trust_remote_code=False
        )
    return tokenizer


def load_tokenizer_of(name: str, adapter_base: str | None = None) -> PreTrainedTokenizerBase:
    """Load the tokenizer for scoring a model: the adapter's own tokenizer, or else the base's.

    Args:
        name: name of the model, which may be an adapter.
        adapter_base: base that replaces the base in an adapter's config.

    Raises:
        InputError: neither the adapter nor the base has a tokenizer.
    """
    while is_adapter(Path(name)) and not (Path(name) / "tokenizer.json").is_file():
        name = base_of(Path(name), adapter_base).name
    return load_tokenizer(name)


def check_tokenizer(tokenizer: PreTrainedTokenizerBase, name: str, *, vocabulary: int) -> None:
    """Raise InputError for a tokenizer that produces no tokens, only unknown tokens, or ids without an embedding."""
    # transformers makes an empty tokenizer of some folders without an error, and texts of no or unknown tokens say
    # nothing.
    ids = tokenizer(PROBE, add_special_tokens=False)["input_ids"]
    if not ids or set(ids) == {tokenizer.unk_token_id}:
        yielded = "no tokens" if not ids else "only unknown tokens"
        raise InputError(
            f"the tokenizer of '{name}' makes {yielded} of plain English, so its vocabulary is empty or wrong: load"
            " the model from a folder with its tokenizer.json"
        )
    highest = max(tokenizer.get_vocab().values())
    # Fewer ids than embeddings are fine: models pad their embeddings to a round number.
    if highest >= vocabulary:
        raise InputError(
            f"the tokenizer of '{name}' does not match the model: the tokenizer has token ids up to {highest}, but"
            f" the model has {vocabulary} embeddings. Copy tokenizer.json and tokenizer_config.json from the base"
            " model into the model's folder. Or resize the embeddings, and save model and tokenizer again"
        )


def check_causal(model: PreTrainedModel, name: str) -> None:
    """Raise InputError for a model in which a later token changes an earlier prediction.

    transformers loads BERT-like models as causal models even if ``is_decoder`` is not set.
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
            f"'{name}' ({type(model).__name__}) is not a causal language model: a change of a text's last token moved"
            f" an earlier prediction by {moved:.2g}. A BERT-like model needs is_decoder: true in its config.json, and"
            " training with it. A prefix model, such as PaliGemma, reads the whole text first: choose another model"
        )


def with_tokens_of(target: LanguageModel, reference: LanguageModel) -> LanguageModel:
    """Return the target with the reference's tokenizer, if the two differ only in added special tokens, such as
    padding.

    The two split users' texts into the same tokens, unless a text contains an added token. With one tokenizer, the
    scores of single tokens can be compared.
    """
    own, base = target.tokenizer, reference.tokenizer
    vocabulary, added = own.get_vocab(), base.get_vocab().keys() ^ own.get_vocab().keys()
    more = {token.content for token in own.added_tokens_decoder.values() if token.special}
    same = {token: number for token, number in vocabulary.items() if token not in added} == base.get_vocab()
    return replace(target, tokenizer=base) if same and added and added <= more and cuts(own) == cuts(base) else target
