"""The pool of an audit of entities, with sets and a loop: slow and obviously right."""

from heldin.base.coins import keyed_order, seed_key
from heldin.corpus.split import Part


def pool(names_of, parts, kept, *, real, both, least, seed):
    """Names of the pool in the order they are taken.

    Args:
        names_of: by row the names that it has.
        parts: rows of all users by what they are used for.
        kept: the rows that caps keep.
        real: the users who are not canary users.
        both: whether users are audited beside entities.
        least: fewest training records of an entity.
        seed: public seed of the order.
    """
    use = {row: part for its in parts.values() for part, rows in its.items() for row in rows}
    use = {row: part for row, part in use.items() if part is not Part.TRAIN or row in kept}
    planted = {row for user, its in parts.items() if user not in real for rows in its.values() for row in rows}
    rows_of = {}
    for row in use:
        for name in names_of.get(row, ()):
            rows_of.setdefault(name, set()).add(row)

    def count(name, part):
        return sum(use[row] is part for row in rows_of[name])

    candidates = {
        f"entity/{name}": rows
        for name, rows in rows_of.items()
        if count(name, Part.TRAIN) >= least and count(name, Part.ATTACKER) and not (both and name in real)
    }
    waiting = [keyed_order(seed_key(seed), "audited entities", list(candidates))]
    if both:
        candidates |= {user: {row for rows in parts[user].values() for row in rows} for user in real}
        waiting.append(keyed_order(seed_key(seed), "audited users", list(real)))
    chosen, taken, turn = [], set(planted), 0
    while any(waiting):
        queue = waiting[turn % len(waiting)]
        while queue:
            name = queue.pop(0)
            asked = {row for row in candidates[name] if use.get(row) in (Part.TRAIN, Part.ATTACKER)}
            if not asked & taken:
                chosen.append(name)
                taken |= asked
                break
        turn += 1
    return chosen
