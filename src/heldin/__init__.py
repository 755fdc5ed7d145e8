"""Was this person's text used for training? User-inference attacks and privacy audits of fine-tuned language models.

Everything that is offered here is loaded when it is first used, so that ``import heldin`` costs nothing.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from heldin.api import account as account
    from heldin.api.audits import AuditResult as AuditResult
    from heldin.api.audits import RunList as RunList
    from heldin.api.audits import audit_model as audit_model
    from heldin.api.audits import audit_planted as audit_planted
    from heldin.api.audits import load_record as load_record
    from heldin.api.audits import load_runs as load_runs
    from heldin.api.audits import plant as plant
    from heldin.api.audits import run as run
    from heldin.api.numbers import bound as bound
    from heldin.api.numbers import claim as claim
    from heldin.api.numbers import plan_claim as plan_claim
    from heldin.api.numbers import power as power
    from heldin.api.trainer import audit_trainer as audit_trainer
    from heldin.base.errors import InputError as InputError
    from heldin.base.errors import ResumableError as ResumableError
    from heldin.base.errors import TooFewUsers as TooFewUsers
    from heldin.bounds.judgement import Judgement as Judgement
    from heldin.bounds.verdict import Claim as Claim
    from heldin.defenses.mechanism import Mechanism as Mechanism
    from heldin.planting.callback import AuditCallback as AuditCallback
    from heldin.planting.watching import watch_training as watch_training
    from heldin.sweeps.releases import compose as compose

# where each name lives; `account` is a module
_HOMES = {
    "AuditCallback": "planting.callback",
    "AuditResult": "api.audits",
    "Claim": "bounds.verdict",
    "InputError": "base.errors",
    "Judgement": "bounds.judgement",
    "Mechanism": "defenses.mechanism",
    "ResumableError": "base.errors",
    "RunList": "api.audits",
    "TooFewUsers": "base.errors",
    "account": "api",
    "audit_model": "api.audits",
    "audit_planted": "api.audits",
    "audit_trainer": "api.trainer",
    "bound": "api.numbers",
    "claim": "api.numbers",
    "compose": "sweeps.releases",
    "load_record": "api.audits",
    "load_runs": "api.audits",
    "plan_claim": "api.numbers",
    "plant": "api.audits",
    "power": "api.numbers",
    "run": "api.audits",
    "watch_training": "planting.watching",
}
__all__ = sorted(_HOMES)


def __getattr__(name: str) -> Any:
    if name == "__version__":
        return importlib.import_module("heldin.base.machine").version()
    if name not in _HOMES:
        raise AttributeError(f"module 'heldin' has no attribute '{name}'")
    home = _HOMES[name]
    if name == "account":
        return importlib.import_module("heldin.api.account")
    return getattr(importlib.import_module(f"heldin.{home}"), name)


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
