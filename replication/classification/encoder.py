"""A tiny BERT or DistilBERT for private training, made from scratch, with masked padding and a classification head.

The clipping engine cuts a record after its last target. So the token that classifies a text must be at the end: padding
token, text, [CLS].
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import (
    AutoConfig,
    AutoModelForMaskedLM,
    AutoModelForTokenClassification,
    AutoTokenizer,
    BertConfig,
    DistilBertConfig,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerFast,
)

from heldin.base.errors import InputError
from heldin.models.reading import reading
from heldin.models.tiny import END_OF_TEXT, train_tokenizer
from replication.classification.config import EncoderShape

CLS, MASK = "[CLS]", "[MASK]"
DROPOUTS = (
    "dropout",
    "attention_dropout",
    "seq_classif_dropout",
    "hidden_dropout_prob",
    "attention_probs_dropout_prob",
    "classifier_dropout",
)


def encoder_tokenizer(texts: Sequence[str], vocabulary: int) -> PreTrainedTokenizerFast:
    """Train a byte-level BPE tokenizer on the texts, with [CLS] and [MASK], and the end-of-text token as padding."""
    tokenizer = train_tokenizer(texts, vocabulary)
    tokenizer.add_special_tokens({"pad_token": END_OF_TEXT, "cls_token": CLS, "mask_token": MASK})
    return tokenizer


def new_masked_model(shape: EncoderShape, tokenizer: PreTrainedTokenizerFast, seed: int) -> PreTrainedModel:
    """Return an encoder with random weights from ``seed``, a head for masked tokens, and no dropout."""
    return _seeded(seed, lambda: AutoModelForMaskedLM.from_config(_config(shape, tokenizer)))


def pretrained_encoder(folder: Path, context: int) -> PreTrainedTokenizerFast:
    """Return the tokenizer of a pre-trained encoder.

    Args:
        folder: folder of the encoder.
        context: number of tokens that the encoder must be able to read.

    Raises:
        InputError: the folder has no suitable encoder, or the encoder reads fewer tokens.
    """
    with reading(str(folder), f"cannot load the encoder '{folder}'"):
        config = AutoConfig.from_pretrained(folder, local_files_only=True)
        tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    missing = [name for name in ("pad_token", "cls_token") if getattr(tokenizer, name) is None]
    if missing:
        raise InputError(f"'{folder}': the tokenizer has no {' and no '.join(missing)}: give an encoder such as BERT")
    if context >= (most := config.max_position_embeddings):
        raise InputError(
            f"encoder.context {context} is too long for '{folder}', which reads at most {most} tokens: lower"
            " encoder.context"
        )
    # The model's own padding is masked.
    if tokenizer.pad_token_id != config.pad_token_id:
        raise InputError(f"'{folder}': tokenizer and model have different padding: give an encoder such as BERT")
    return tokenizer


def load_classifier(folder: Path, classes: int, seed: int) -> PreTrainedModel:
    """Load a pre-trained encoder with a new random head that returns logits (B, L, classes).

    Args:
        folder: folder of the pre-trained encoder.
        classes: number of classes.
        seed: public seed of the head.
    """
    with reading(str(folder), f"cannot load the encoder '{folder}'"):
        config = AutoConfig.from_pretrained(folder, num_labels=classes, local_files_only=True)
        # A unit's gradient is a function of its texts alone.
        for name in DROPOUTS:
            if hasattr(config, name):
                setattr(config, name, 0.0)
        return _seeded(
            seed,
            lambda: AutoModelForTokenClassification.from_pretrained(
                folder, config=config, use_safetensors=True, local_files_only=True
            ),
        )


def masking_padding(model: PreTrainedModel) -> PreTrainedModel:
    """Make the model ignore padding, whoever calls it, and return the model."""
    padding = model.config.pad_token_id

    def mask(_module: torch.nn.Module, _args: Any, given: dict[str, Any]) -> tuple[tuple[()], dict[str, Any]]:
        ids = given["input_ids"]
        # The keyword of causal models means nothing to an encoder.
        return (), {"input_ids": ids, "attention_mask": (ids != padding).long()}

    model.register_forward_pre_hook(mask, with_kwargs=True)
    return model


def _config(shape: EncoderShape, tokenizer: PreTrainedTokenizerFast) -> PreTrainedConfig:
    size, padding = len(tokenizer), tokenizer.pad_token_id
    # One position more: the padding token stands before the text.
    positions = shape.context + 1
    if shape.kind == "distilbert":
        return DistilBertConfig(
            vocab_size=size,
            max_position_embeddings=positions,
            dim=shape.hidden,
            hidden_dim=4 * shape.hidden,
            n_layers=shape.layers,
            n_heads=shape.heads,
            dropout=0.0,
            attention_dropout=0.0,
            seq_classif_dropout=0.0,
            pad_token_id=padding,
        )
    return BertConfig(
        vocab_size=size,
        max_position_embeddings=positions,
        hidden_size=shape.hidden,
        intermediate_size=4 * shape.hidden,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        pad_token_id=padding,
    )


def _seeded(seed: int, make: Any) -> PreTrainedModel:
    # Weights are drawn from the global generator, which the caller should find as it was.
    state = torch.get_rng_state()
    torch.manual_seed(seed)
    model: PreTrainedModel = make()
    torch.set_rng_state(state)
    return masking_padding(model)
