"""Every sentence that a document states, in modules by subject. Nothing else stores, compares or parses English."""

from heldin.words import answer, evidence, guarantee, split

__all__ = ["answer", "evidence", "guarantee", "split"]
