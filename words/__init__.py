"""Every sentence that a document states, in modules by subject. Nothing else stores, compares or parses English."""

from heldin.words import answer, evidence, guarantee, split, texts
from heldin.words.statement import Code, Statement, joined

__all__ = ["Code", "Statement", "answer", "evidence", "guarantee", "joined", "split", "texts"]
