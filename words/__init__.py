"""Every sentence in heldin's documents, in one module per subject. No other code stores, compares or parses English."""

from heldin.words import answer, evidence, guarantee, split

__all__ = ["answer", "evidence", "guarantee", "split"]
