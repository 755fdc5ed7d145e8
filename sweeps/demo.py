"""The sweep of ``heldin demo``: defenses on the built-in corpus, five times each, and a rule that selects one.

What decides the sizes:

- Plain training leaks since it passes five times over about six short records of each user, at a high learning rate.
  The attacker has up to four of a user's training records.
- The base model has seen few texts, so that there is something left that all users teach alike: a user-level defense
  can learn that and little else.
- The learning rate and epsilon of the private variants were chosen with corpus seed 1. The demo has corpus seed 0, and
  so other users: a choice on the users that are audited would cost an epsilon of its own.
- The rule needs five blocks.
"""

from typing import Any

from heldin.base.config_errors import checked
from heldin.sweeps.load import sweep_of
from heldin.sweeps.sweep_config import Sweep, SweepConfig

_WHERE = "the built-in demo"
_MOST_AUROC = 0.65
_BASE: dict[str, Any] = {
    "name": "demo",
    "corpus": {
        "source": {
            "kind": "synthetic",
            "parameters": {"users": 600, "mean_records": 8, "min_records": 6, "distinctiveness": 1.0},
        },
        "users": {"min_records": 6, "fraction": 0.6},
    },
    "model": {
        "pretrain": {
            "users": {"min_records": 1, "fraction": 0.1},
            "shape": {"vocabulary": 512, "context": 64, "hidden": 32, "layers": 2, "heads": 4, "window": 32},
            "recipe": {
                "epochs": 1,
                "batch_size": 16,
                "learning_rate": 0.005,
                "warmup_steps": 5,
                "sequence_length": 64,
                "select": "last",
            },
        }
    },
    "finetune": {
        "epochs": 5,
        "batch_size": 16,
        "learning_rate": 0.01,
        "warmup_steps": 20,
        "sequence_length": 64,
        "evaluations": 1,
        "select": "last",
    },
    "attack": {
        "primary": "likelihood-ratio-per-token",
        "documents": ["training"],
        "training_documents": 4,
        "max_characters": 200,
    },
    "decision": {"auroc": _MOST_AUROC, "tpr": 0.2},
    # Losses and AUROC during training are a small part of what is shown, and cost as much as the training.
    "audit": {"resamples": 300, "validation_texts": 50, "curve_users": 50, "curve_texts_per_user": 1},
    "release": {
        "access": "log-probabilities",
        "owner": "nobody, since the users are made up",
        "purpose": "to show what heldin reports",
    },
}
_PRIVATE = {"steps": 40, "cohort": 70, "target_epsilon": 2}
_STEPS_OF_PRIVATE = {"learning_rate": 0.01, "warmup_steps": 0}
_VARIANTS: dict[str, dict[str, Any]] = {
    "none": {},
    "dedup-cap": {"data_defenses": [{"kind": "deduplicate"}, {"kind": "cap", "records": 2}]},
    "example": {
        "finetune": _STEPS_OF_PRIVATE,
        "defense": {"kind": "example", "population": 1000, "delta": 1.0e-5, **_PRIVATE},
    },
    "els": {
        "finetune": _STEPS_OF_PRIVATE,
        "defense": {
            "kind": "els",
            "population": 720,
            "group_size": 4,
            "protected_users": 180,
            "delta": 1.0e-3,
            **_PRIVATE,
        },
    },
    "uls": {
        "finetune": _STEPS_OF_PRIVATE,
        "defense": {"kind": "uls", "population": 180, "delta": 1.0e-3, **_PRIVATE},
    },
}
_SHORT = ("none", "dedup-cap", "uls")


def demo_sweep(*, every: bool = False) -> Sweep:
    """Return the sweep of ``heldin demo``: no defense and two, or ``every`` one of the four."""
    names = tuple(_VARIANTS) if every else _SHORT
    content = {
        "name": "demo-all" if every else "demo",
        "base": _WHERE,
        "variants": {name: _VARIANTS[name] for name in names},
        "blocks": 5,
        "decision": {
            "require": [{"of": "auroc", "at_most": _MOST_AUROC}, {"of": "loss_gain_over_base", "at_least": 0.05}],
            "prefer": "loss_gain_over_base",
            "candidates": list(_SHORT),
        },
        "resources": {"workers": 2},
    }
    return sweep_of(checked(SweepConfig, content, _WHERE), _BASE, _WHERE)
