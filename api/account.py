"""The cost and the guarantee of mechanisms, as ``heldin account`` computes them.

>>> import heldin
>>> row = heldin.account.uls(users=1024, cohort=16, steps=1000, delta=1e-6, target_epsilon=4)
>>> round(row.noise_multiplier, 3), round(row.auroc_bound, 2)
(0.928, 0.69)
"""

from pathlib import Path

from heldin.defenses.accounting.account import AccountRow as AccountRow
from heldin.defenses.accounting.account import account_els as els
from heldin.defenses.accounting.account import account_example as example
from heldin.defenses.accounting.account import account_group as group
from heldin.defenses.accounting.account import account_plan
from heldin.defenses.accounting.account import account_uls as uls
from heldin.defenses.accounting.exposure_curve import ExposureCurve as ExposureCurve
from heldin.defenses.accounting.exposure_curve import account_user_entity as user_entity
from heldin.defenses.accounting.uedp_claims import UedpAccount as UedpAccount
from heldin.defenses.accounting.uedp_claims import account_uedp as uedp
from heldin.defenses.plan_file import read_plan

# The command's own functions under shorter names: library and command line cannot give different numbers.
__all__ = [
    "AccountRow",
    "ExposureCurve",
    "UedpAccount",
    "els",
    "example",
    "group",
    "plan",
    "uedp",
    "uls",
    "user_entity",
]


def plan(path: str | Path) -> AccountRow:
    """Compute the guarantee of a plan.json again. Raises InputError for a file that is no plan."""
    return account_plan(read_plan(Path(path)))
