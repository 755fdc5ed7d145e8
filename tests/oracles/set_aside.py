"""Slow, obviously right set-asides: one user at a time, by sorting that user's record ids."""

from heldin.base.coins import keyed_order, seed_key
from heldin.corpus.split import Part, set_aside_sizes


def naive_set_aside(ids, *, attacker_fraction, evaluation_fraction, seed):
    """Part to rows, given row to record id of one user."""
    row_of = {id_: row for row, id_ in ids.items()}
    rows = [row_of[id_] for id_ in keyed_order(seed_key(seed), "set aside", list(row_of))]
    attacker, evaluation = set_aside_sizes(
        len(rows), attacker_fraction=attacker_fraction, evaluation_fraction=evaluation_fraction
    )
    validation = (evaluation + 1) // 2
    return {
        Part.ATTACKER: tuple(rows[:attacker]),
        Part.VALIDATION: tuple(rows[attacker : attacker + validation]),
        Part.TEST: tuple(rows[attacker + validation : attacker + evaluation]),
        Part.TRAIN: tuple(sorted(rows[attacker + evaluation :])),
    }
