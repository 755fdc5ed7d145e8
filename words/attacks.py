"""Sentences about attacks."""

from heldin.words.statement import Code


class AttackUses(Code):
    """The data that an attack learns from, in addition to the scored text."""

    MODEL = "the model and fixed texts"
    OTHER_TEXTS = "other users' texts"
    REHEARSAL = "a rehearsal on other people"
    SHADOW_MODELS = "shadow models with coins of their own"
    COINS = "coins of audited users"
