"""Parts of a record that are made up, for what reads records."""

from audit.record_results import CanaryFacts


def canary_facts(groups, **changes):
    """Twenty canary users in these groups, half of them held in."""
    facts = {"users": 20, "held_in": 10, "held_out": 10, "replaced": 20, "training_texts": 9, "trained_on": 9}
    return CanaryFacts(**{**facts, "attacker_texts": 20, "groups": groups, "blind": [], **changes})
