"""Slow, obviously right training: one record at a time, torch's own Adam, no checkpoints."""

import torch

from heldin.finetune.batches import ShuffledBatches
from tests.oracles.record_loss import record_loss


def naive_training(lm, sequences, recipe):
    """Train ``lm.model`` in place and return it."""
    model = lm.model.train()
    optimizer = torch.optim.Adam(model.parameters())
    lengths = [len(s) for s in sequences]
    batches = ShuffledBatches(lengths, recipe.batch_size, recipe.seed, group_by_length=recipe.group_by_length)
    steps = recipe.steps(len(sequences))
    for step in range(steps):
        rows = batches.rows(step)
        optimizer.zero_grad()
        for row in rows:
            (record_loss(model, sequences[row]) / len(rows)).backward()
        for group in optimizer.param_groups:
            group["lr"] = recipe.learning_rate_at(step, steps)
        optimizer.step()
    return model.eval()
