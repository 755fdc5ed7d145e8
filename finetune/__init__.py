"""The training loop: batches, optimizer, checkpoints, resume."""
