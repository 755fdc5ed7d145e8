"""Audits of trainings that heldin does not run. heldin draws coins before the training, logs it, and then judges it."""
