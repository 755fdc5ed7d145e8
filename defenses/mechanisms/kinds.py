"""The kinds of ``defense``."""

from typing import Annotated, TypeAlias

from heldin.base.kinds import Family, OfKind
from heldin.defenses.mechanisms.contract import DefenseConfig

MECHANISMS = Family[DefenseConfig](
    "mechanisms",
    DefenseConfig,
    {
        "none": "heldin.defenses.mechanisms.plain:NoDefense",
        "clip": "heldin.defenses.mechanisms.clipped:ClippingDefense",
        "uls": "heldin.defenses.mechanisms.uls:UlsDefense",
        "banded": "heldin.defenses.mechanisms.banded:BandedDefense",
        "els": "heldin.defenses.mechanisms.els:ElsDefense",
        "group": "heldin.defenses.mechanisms.group:GroupDefense",
        "example": "heldin.defenses.mechanisms.example:ExampleDefense",
        "user-entity": "heldin.defenses.mechanisms.text_sampling:UserEntityDefense",
        "uedp": "heldin.defenses.mechanisms.two_level:UedpDefense",
        "filter": "heldin.defenses.mechanisms.filtered:FilterDefense",
    },
)
Defense: TypeAlias = Annotated[DefenseConfig, OfKind(MECHANISMS)]
"""Kinds by name: heldin's own kinds, kinds that packages register, and classes by their full name."""
