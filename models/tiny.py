"""Make a tiny GPT-Neo and its tokenizer from scratch: the base model and reference for offline runs."""

import re
from collections.abc import Iterable

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import GPTNeoConfig, GPTNeoForCausalLM, PreTrainedTokenizerFast

from heldin.base.errors import InputError
from heldin.models.attention import use_exact_attention
from heldin.models.devices import seed_generators
from heldin.models.loading import check_tokenizer
from heldin.models.model_config import TinyModel

END_OF_TEXT = "<|endoftext|>"
SPECIAL = {"bos_token": END_OF_TEXT, "eos_token": END_OF_TEXT}
_MARKERS = re.compile(r"<\|[^|<>]+\|>")  # tokens of their own, such as <|im_start|>


def train_tokenizer(texts: Iterable[str], vocabulary: int, chat_template: str | None = None) -> PreTrainedTokenizerFast:
    """Train a byte-level BPE tokenizer (like GPT-2's) on ``texts``; deterministic.

    Args:
        texts: texts for training.
        vocabulary: number of tokens.
        chat_template: template whose markers, such as <|im_start|>, become tokens; None: no template.

    Raises:
        InputError: the vocabulary is smaller than 257 (256 bytes and the end-of-text token) plus the markers.
    """
    markers = list(dict.fromkeys(_MARKERS.findall(chat_template or "")))
    special = [END_OF_TEXT, *(marker for marker in markers if marker != END_OF_TEXT)]
    if vocabulary < 256 + len(special):
        raise InputError(
            f"vocabulary is {vocabulary}, which is too small for byte-level BPE: give at least {256 + len(special)}"
        )
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=special,
        # All 256 bytes, also those that these texts lack: no text can have an unknown token.
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    made = PreTrainedTokenizerFast(tokenizer_object=tokenizer, **SPECIAL, clean_up_tokenization_spaces=False)
    if chat_template is not None:
        made.chat_template = chat_template
    return made


def tiny_config(shape: TinyModel, vocabulary: int, end_of_text: int) -> GPTNeoConfig:
    """Return the config of a tiny GPT-Neo without dropout. Raises InputError if the shape is impossible.

    Args:
        vocabulary: size of the tokenizer's vocabulary.
        end_of_text: id of the token that begins and ends a text.
    """
    if shape.hidden % shape.heads or shape.layers < 1:
        raise InputError(
            f"a model of {shape.layers} layers, hidden {shape.hidden}, heads {shape.heads} cannot be built: change"
            " the shape"
        )
    # One kind too many where the number of layers is odd; it is cut off below.
    kinds = ["global", "local"] * ((shape.layers + 1) // 2)
    return GPTNeoConfig(
        vocab_size=vocabulary,
        max_position_embeddings=shape.context,
        hidden_size=shape.hidden,
        num_layers=shape.layers,
        num_heads=shape.heads,
        window_size=min(shape.window, shape.context),
        attention_types=[[[kind], 1] for kind in kinds[: shape.layers]],
        resid_dropout=0.0,
        embed_dropout=0.0,
        attention_dropout=0.0,
        bos_token_id=end_of_text,
        eos_token_id=end_of_text,
    )


def new_tiny_model(shape: TinyModel, tokenizer: PreTrainedTokenizerFast, seed: int) -> GPTNeoForCausalLM:
    """Return a GPT-Neo with random weights from ``seed``, without dropout, and with tied embeddings as in released
    models."""
    config = tiny_config(shape, len(tokenizer), int(tokenizer.eos_token_id))
    # Weights are drawn from the global generator, which the caller should find as it was.
    state = torch.get_rng_state()
    seed_generators(seed, torch.device("cpu"))
    model = GPTNeoForCausalLM(config)
    torch.set_rng_state(state)
    use_exact_attention(model)
    check_tokenizer(tokenizer, "the tiny model", vocabulary=config.vocab_size)
    return model
