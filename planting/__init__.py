"""Audits of trainings that heldin does not run: coins before somebody else trains, a log during training, then a
verdict."""
