"""A package with a mechanism: example-level DP, written out; and packages that lie about theirs.

``install`` puts the code into a folder of its own, as an installer leaves it.
"""

import sys

HONEST = """
from typing import ClassVar, Literal

import torch
from dp_accounting import dp_event

from heldin.base.section import Count, Positive
from heldin.defenses.mechanisms.declared import DeclaredDefense


class Mine(DeclaredDefense):
    unit: ClassVar[Literal["user", "example"]] = "example"

    cohort: Count = 6
    noise: Positive = 1.3

    def dp_event(self):
        single = dp_event.PoissonSampledDpEvent(self.cohort / self.population, dp_event.GaussianDpEvent(self.noise))
        return dp_event.SelfComposedDpEvent(single, self.steps)

    def step(self, model, given):
        parameters = {name: p for name, p in model.named_parameters() if p.requires_grad}
        total = {name: torch.zeros_like(p) for name, p in parameters.items()}
        losses = []
        for unit in given.units:
            gradient = unit.gradient
            if gradient is None:
                loss = given.losses(model, unit.records).mean()
                losses.append(float(loss.detach()))
                gradient = dict(zip(parameters, torch.autograd.grad(loss, list(parameters.values())), strict=True))
            norm = torch.sqrt(sum(part.double().square().sum() for part in gradient.values()))
            factor = min(1.0, given.clip_norm / float(norm)) if torch.isfinite(norm) else 0.0
            for name, part in gradient.items():
                total[name] += torch.nan_to_num(part) * factor
        for name, parameter in parameters.items():
            parameter.grad = (total[name] + given.gaussian(name, parameter)) / given.divisor
        return sum(losses) / len(losses) if losses else None
"""
# What a liar has in place of a line of the honest code, by its lie.
LIES = {
    "noise in each pass": (
        "(total[name] + given.gaussian(name, parameter))",
        "(total[name] + max(1, len(given.units) // given.pass_records) ** 0.5 * given.gaussian(name, parameter))",
    ),
    "less noise than the event says": ("given.gaussian(name, parameter)", "0.8 * given.gaussian(name, parameter)"),
    "the same noise in every step": (
        "given.gaussian(name, parameter)",
        "given.source.gaussian(0, name, p.shape, given.noise_multiplier * given.clip_norm, p.device)".replace(
            "p.", "parameter."
        ),
    ),
    "no noise without a unit": (
        "+ given.gaussian(name, parameter)",
        "+ bool(given.units) * given.gaussian(name, parameter)",
    ),
    "not deterministic": (
        "given.gaussian(name, parameter)",
        "torch.randn(parameter.shape) * given.noise_multiplier * given.clip_norm",
    ),
    "the batch is clipped as one": (
        "for name, part in gradient.items():\n                total[name] += torch.nan_to_num(part) * factor",
        "for name, part in gradient.items():\n                total[name] += torch.nan_to_num(part)\n"
        "        norm = torch.sqrt(sum(part.double().square().sum() for part in total.values()))\n"
        "        for part in total.values():\n            part *= min(1.0, given.clip_norm / max(1e-9, float(norm)))",
    ),
    "a clip above the stated norm": ("given.clip_norm / float(norm)", "3 * given.clip_norm / float(norm)"),
    "divided by those who were drawn": ("/ given.divisor", "/ max(1, len(given.units))"),
    "reads a file": ("losses = []", "losses = []\n        open('members.txt', 'a').close()"),
    "changes weights": ("losses = []", "losses = []\n        next(model.parameters()).data *= 0.9"),
    "not finite": ("/ given.divisor", "/ given.divisor * float('nan')"),
    "a plan from the data": (
        "    def step(",
        "    def plan(self, given):\n"
        "        return {**super().plan(given), 'protected_units': given.batch_size}\n\n"
        "    def step(",
    ),
}


def install(folder, monkeypatch, code=HONEST, name="heldin_mine", version="0.3"):
    """Put a package into a folder on the path; return the kind's name."""
    (folder / f"{name}.py").write_text(code, encoding="utf-8")
    about = folder / f"{name}-{version}.dist-info"
    about.mkdir(exist_ok=True)
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n", encoding="utf-8")
    (about / "RECORD").write_text(f"{name}.py,,\n", encoding="utf-8")
    (about / "entry_points.txt").write_text(f"[heldin.mechanisms]\nmine = {name}:Mine\n", encoding="utf-8")
    if str(folder) not in sys.path:
        monkeypatch.setattr(sys, "path", [*sys.path, str(folder)])
    monkeypatch.delitem(sys.modules, name, raising=False)
    return "mine"


def lying(lie):
    """Return the code of a package that lies."""
    honest, other = LIES[lie]
    assert HONEST.count(honest) == 1
    return HONEST.replace(honest, other)
