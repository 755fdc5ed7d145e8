"""Slow, obviously right token scores: one forward pass per token, no batch, no padding, float64 arithmetic after it."""

import numpy as np
import torch


def naive_token_scores(lm, text):
    """(log-probabilities, means, deviations), each of shape (n,), window by window and token by token."""
    return _rows(lm, text)[:3]


def naive_ranks(lm, text):
    """How many tokens of the vocabulary are likelier than each token of the text, shape (n,)."""
    return _rows(lm, text)[3].astype(int)


def _rows(lm, text):
    ids = lm.tokenizer(text, add_special_tokens=False)["input_ids"]
    rows = []
    for start in range(0, len(ids), lm.context):
        window = ids[start : start + lm.context]
        for i, token in enumerate(window):
            prefix = torch.tensor([[lm.start_token, *window[:i]]])
            with torch.no_grad():
                logits = lm.model(input_ids=prefix).logits[0, -1].double().numpy()
            logprobs = logits - logits.max() - np.log(np.exp(logits - logits.max()).sum())
            p = np.exp(logprobs)
            mean = (p * logprobs).sum()
            likelier = sum(logit > logits[token] for logit in logits)
            rows.append((logprobs[token], mean, np.sqrt((p * (logprobs - mean) ** 2).sum()), likelier))
    return np.array(rows).T
