"""The built-in sweep, ``heldin demo``: five defenses on the corpus of the built-in run, in minutes on two cores."""

from heldin.base.config_errors import checked
from heldin.jobs.built_in import BUILT_IN
from heldin.stages.config_files import merged
from heldin.sweeps.config import Sweep, SweepConfig
from heldin.sweeps.load import sweep_of

# Five defenses, alike in users and in gradients where they are private; a promise to every user needs choices of users
# that are each user's own matter.
_USER_LOCAL = {
    "corpus": {"users": {"min_records": 12, "max_users": None, "fraction": 0.6}},
    "finetune": {"select": "last", "evaluations": 3},
}
_PRIVATE = {"steps": 40, "target_epsilon": 8}
# Small steps: what so few users teach drowns in the noise, and larger steps would only lose what the base model knew.
_SMALL = {"learning_rate": 0.0003, "warmup_steps": 5}
DEMO_SWEEP = {
    "name": "demo",
    "base": "the built-in demo",
    "variants": {
        "none": {},
        "dedup-cap": {"data_defenses": [{"kind": "deduplicate"}, {"kind": "cap", "records": 8}]},
        "example": {
            "finetune": _SMALL,
            "defense": {"kind": "example", "population": 1600, "cohort": 100, "delta": 1.0e-5, **_PRIVATE},
        },
        "els": {
            "finetune": _SMALL,
            "defense": {
                "kind": "els",
                "population": 800,
                "cohort": 100,
                "group_size": 8,
                "protected_users": 100,
                "delta": 1.0e-3,
                **_PRIVATE,
            },
        },
        "uls": {
            "finetune": _SMALL,
            "defense": {
                "kind": "uls",
                "population": 100,
                "cohort": 25,
                "group_size": 4,
                "delta": 1.0e-3,
                **_PRIVATE,
            },
        },
    },
    "resources": {"workers": 2},
}


def demo_sweep() -> Sweep:
    """What ``heldin demo`` runs."""
    where = "the built-in demo"
    return sweep_of(checked(SweepConfig, DEMO_SWEEP, where), merged(BUILT_IN, _USER_LOCAL), where)
