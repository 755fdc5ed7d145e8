"""Sample texts from a model."""

import torch

from heldin.base.errors import InputError
from heldin.models.loading import LanguageModel


@torch.inference_mode()
def sample_texts(
    lm: LanguageModel, count: int, *, seed: int, temperature: float = 1.0, max_tokens: int = 128, prompt: str = ""
) -> list[str]:
    """Sample texts, without top-k or top-p, each up to the end-of-text token.

    Args:
        count: number of texts.
        seed: of the sampling.
        temperature: of the sampling; 1: the model's own distribution.
        max_tokens: most new tokens of a text.
        prompt: what each text continues; it is not part of the result.

    Raises:
        InputError: the temperature is not positive, or the prompt leaves no room in the model's context.
    """
    if temperature <= 0:
        raise InputError(f"temperature is {temperature}: it must be positive")
    # As texts are scored: after the start token.
    ids = [lm.start_token, *lm.tokenizer(prompt, add_special_tokens=False)["input_ids"]]
    room = lm.context - len(ids)
    if room < 1:
        raise InputError(f"the prompt has {len(ids)} tokens and the context of '{lm.name}' is {lm.context}: shorten it")
    # Drawn on the CPU, so that a seed gives the same draws on every device.
    generator = torch.Generator(device="cpu").manual_seed(seed)
    tokens = torch.tensor([ids] * count, device=lm.device)  # (count, L)
    ended = torch.zeros(count, dtype=torch.bool)
    for _ in range(min(max_tokens, room)):
        logits = lm.model(input_ids=tokens, use_cache=False).logits[:, -1].float().cpu()  # (count, V)
        # For ended texts too: every step draws as many numbers, so that a text does not depend on when another one
        # ends.
        drawn = torch.multinomial((logits / temperature).softmax(-1), 1, generator=generator)  # (count, 1)
        if lm.tokenizer.eos_token_id is not None:
            ended |= drawn[:, 0] == lm.tokenizer.eos_token_id
        tokens = torch.cat([tokens, drawn.to(lm.device)], dim=1)
        if bool(ended.all()):
            break
    return [_until_end(row[len(ids) :], lm) for row in tokens.tolist()]


def _until_end(ids: list[int], lm: LanguageModel) -> str:
    # What was drawn after the end, while other texts went on, is dropped.
    end = ids.index(lm.tokenizer.eos_token_id) if lm.tokenizer.eos_token_id in ids else len(ids)
    text: str = lm.tokenizer.decode(ids[:end])
    return text
