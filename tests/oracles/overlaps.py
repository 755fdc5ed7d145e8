"""Slow, obviously right overlaps of a run: every text in memory, one look after the other."""

from heldin.corpus.split import Part, Role
from heldin.record.overlaps import seen_in_training, texts_in


def naive_overlaps(data):
    """Counts in the order of the record's fields."""
    store, ledger, owners = data.store, data.ledger, data.ledger.owners()

    def texts(user, part):
        return [[store.text(row)] for row in ledger.parts[user][part]]

    records = [store.record(row) for row in data.training_rows.tolist()]
    training = [(owners.get(its.row, its.user), its.text) for its in records]
    held_in, held_out = (data.real(ledger.users(role)) for role in (Role.HELD_IN, Role.HELD_OUT))
    scored = {user: texts(user, Part.ATTACKER) for user in (*held_in, *held_out)}
    of_scored = seen_in_training(scored, training)
    of_left_out = seen_in_training({user: texts(user, Part.TRAIN) for user in held_out}, training)
    of_held_out, of_held_in = ([text for user in its for text in scored[user]] for its in (held_out, held_in))
    users = [user for user in data.real(ledger.roles) if user not in ledger.entities]
    audited = [text for user in users for part in Part for text in texts(user, part)]
    return [
        of_scored.own,
        of_scored.others,
        of_left_out.anywhere,
        len(of_left_out.users),
        texts_in(of_held_out, (part for parts in of_held_in for part in parts)),
        texts_in(audited, data.public_texts()),
    ]
