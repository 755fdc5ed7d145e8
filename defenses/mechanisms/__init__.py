"""Mechanisms of training: a module for each kind, with its settings, its checks, its plan and its guarantee."""
