"""The training loop: batches, optimizer, checkpoints and resuming."""
