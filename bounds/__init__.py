"""Bounds, claims and verdicts on epsilon, from the scores of users with randomly drawn membership."""
