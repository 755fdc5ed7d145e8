"""The choice of a user's records, if their number is limited."""

from collections.abc import Sequence

from heldin.base.coins import keyed_order
from heldin.base.errors import InputError
from heldin.defenses.choices import RecordSelection


# Only "random" is also a trainer's own choice, drawn again in each step (``finetune.units.choose_records``). Every rule
# looks only at one user's records, so it is user-local; a rule that ranks records is not record-local
# (docs/theory.md#rules-of-the-data).
def select_records(
    rule: RecordSelection,
    count: int,
    *,
    ids: Sequence[str],
    lengths: Sequence[int],
    key: bytes,
    purpose: str,
    losses: Sequence[float] | None = None,
) -> list[int]:
    """Return the positions of at most ``count`` records of one user, increasing.

    Args:
        rule: "all" (``count`` is ignored), "random" (by a keyed hash of the record ids), "longest", "shortest" (by
            tokens), "highest_perplexity", "lowest_perplexity" (under the base model).
        ids: ids of the user's records.
        lengths: number of tokens of each record.
        key: key for "random".
        purpose: purpose for "random"; another purpose gives another choice.
        losses: mean token loss of each record under the base model, for the perplexity rules.

    Raises:
        InputError: the count is below 1, a perplexity rule has no losses, or the rule is "random_chunk".
    """
    if count < 1:
        raise InputError(f"records per user is {count}: give at least 1")
    order = list(range(len(ids)))
    match rule:
        case "all":
            return order
        case "random":
            position = {name: i for i, name in enumerate(ids)}
            order = [position[name] for name in keyed_order(key, purpose, list(ids))]
        case "longest":
            # Ties by id and not by place, which depends on other users' records (docs/theory.md#rules-of-the-data).
            order.sort(key=lambda i: (-lengths[i], ids[i]))
        case "shortest":
            order.sort(key=lambda i: (lengths[i], ids[i]))
        case "highest_perplexity" | "lowest_perplexity":
            if losses is None:
                raise InputError(f"record selection '{rule}' needs the base model's losses: give the base model")
            sign = -1.0 if rule == "highest_perplexity" else 1.0
            order.sort(key=lambda i: (sign * losses[i], ids[i]))
        case "random_chunk":
            raise InputError(
                "record selection 'random_chunk' cuts a user's text instead of choosing records: use another"
                " record selection"
            )
    return sorted(order[:count])  # back in the order of the file: only which, not in which order, is the rule's
