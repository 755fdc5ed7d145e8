"""Texts in the form that an encoder reads, with targets: a label at [CLS], or masked tokens."""

import random
from collections.abc import Iterator, Sequence
from typing import overload

from transformers import PreTrainedTokenizerFast

from heldin.finetune.batches import Asked
from heldin.models.tokens import IGNORED, token_lists

MASKED = 0.15  # share of tokens to fill in; 80 % are masked, 10 % exchanged, 10 % kept (Devlin et al. 2019)


def encoded(tokenizer: PreTrainedTokenizerFast, texts: Sequence[str], context: int) -> list[list[int]]:
    """Return the inputs of each text, at least 3 ids: the padding token, at most ``context`` - 1 tokens, and [CLS]."""
    padding, cls = tokenizer.pad_token_id, tokenizer.cls_token_id
    return [[padding, *tokens[: context - 1], cls] for tokens in token_lists(tokenizer, texts)]


def with_label(inputs: Sequence[int], label: int) -> Asked:
    """Return the inputs with the label as target at the last token, [CLS]."""
    return Asked.of(inputs, [*[IGNORED] * (len(inputs) - 1), label])


class MaskedTexts(Sequence[Asked]):
    """Every text once per epoch, each time with other masked tokens. The object makes masks when they are needed.

    Args:
        tokenizer: tokenizer of the encoder.
        inputs: inputs from ``encoded``.
        epochs: how often each text occurs.
        seed: public seed of the masks.
    """

    def __init__(
        self, tokenizer: PreTrainedTokenizerFast, inputs: Sequence[Sequence[int]], epochs: int, seed: int
    ) -> None:
        self._tokenizer, self._inputs, self._epochs, self._seed = tokenizer, inputs, epochs, seed
        self._mask, self._words = tokenizer.mask_token_id, len(tokenizer)

    def __len__(self) -> int:
        return len(self._inputs) * self._epochs

    @overload
    def __getitem__(self, index: int) -> Asked: ...

    @overload
    def __getitem__(self, index: slice) -> "list[Asked]": ...

    def __getitem__(self, index: int | slice) -> "Asked | list[Asked]":
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        if not 0 <= index < len(self):
            raise IndexError(index)
        inputs = list(self._inputs[index % len(self._inputs)])
        dice = random.Random(f"{self._seed} {index}")
        # Neither the padding in front nor [CLS] at the end.
        places = range(1, len(inputs) - 1)
        targets = [IGNORED] * len(inputs)
        for place in dice.sample(places, max(1, round(MASKED * len(places)))):
            targets[place] = inputs[place]
            chance = dice.random()
            if chance < 0.8:
                inputs[place] = self._mask
            elif chance < 0.9:
                inputs[place] = dice.randrange(self._words)
        return Asked.of(inputs, targets)

    def __iter__(self) -> Iterator[Asked]:
        return (self[i] for i in range(len(self)))
