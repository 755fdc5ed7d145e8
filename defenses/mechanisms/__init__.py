"""Mechanisms of training: one module per kind, with its settings, its checks, its plan and its guarantee."""
