"""The one training loop: batches, optimizer, checkpoints, resume."""
