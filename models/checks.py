"""What a model and its tokenizer must be before a text is scored: tokens that fit, and predictions that look back."""

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from heldin.base.errors import InputError
from heldin.models.scoring_precision import tokens_rounded_apart

PROBE = "The quick brown fox met 12 people on Tuesday."
_CAUSAL_PROBE = 8  # tokens


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
            f" the model has {vocabulary} embeddings"
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
            " to have been trained with it"
        )
