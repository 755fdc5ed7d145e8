"""The sweep of ``heldin demo``: defenses on the built-in corpus, five times each, and a rule that selects one."""

from heldin.base.config_errors import checked
from heldin.jobs.starting_files import COMPARED, DEDUP_CAP, ELS, EXAMPLE, SMALL, ULS
from heldin.sweeps.load import sweep_of
from heldin.sweeps.sweep_config import Sweep, SweepConfig

_WHERE = "the built-in demo"


def demo_sweep(*, every: bool = False) -> Sweep:
    """Return the sweep of ``heldin demo``: no defense and two, or ``every`` one of the four."""
    content = {**COMPARED, "name": "demo-all" if every else "demo", "base": _WHERE}
    if every:
        variants = {"none": {}, "dedup-cap": DEDUP_CAP, "example": EXAMPLE, "els": ELS, "uls": ULS}
        content = {**content, "variants": variants}
    return sweep_of(checked(SweepConfig, content, _WHERE), {"name": "demo", **SMALL}, _WHERE)
