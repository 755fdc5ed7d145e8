"""Slow, obviously right loss of one record: token by token, over those that count."""

import torch


def record_loss(model, record):
    """Mean of the counted tokens' losses under what is before each; 0, with a gradient of 0, without any."""
    ids = torch.tensor([[int(token) for token in record.ids]])
    logits = model(input_ids=ids).logits[0]
    counts = [True] * len(record) if record.counted is None else record.counted.tolist()
    losses = [
        -logits[place - 1].log_softmax(-1)[int(ids[0, place])] for place in range(1, len(record)) if counts[place]
    ]
    return torch.stack(losses).mean() if losses else 0.0 * logits.sum()
