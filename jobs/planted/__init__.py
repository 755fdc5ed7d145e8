"""Audits of trainings that heldin does not run: coins before somebody else trains, and a verdict afterwards."""
