"""The numbers of ``heldin account`` as plain text for a terminal."""

import math

from heldin.defenses.accounting.account import AccountRow


def account_table(row: AccountRow) -> str:
    """One line of name and value per number; numbers that are not defined for the unit are left out."""
    lines = [
        ("mechanism", row.method),
        ("privacy unit", row.unit),
        ("noise multiplier", f"{row.noise_multiplier:.5g}"),
        ("sampling rate", f"{row.sampling_rate:.5g}"),
        ("group size", _number(row.group_size)),
        ("entity cap", _number(row.entity_cap)),
        ("steps", str(row.steps)),
        ("delta", _number(row.delta)),
        ("epsilon", _number(row.epsilon)),
        ("epsilon by Renyi DP", _number(row.epsilon_rdp)),
        ("epsilon by black-box group privacy", _black_box(row)),
        ("epsilon if the assumption held", _number(row.assumed_epsilon)),
        ("AUROC of any attack on users, at most", _number(row.auroc_bound)),
        ("its TPR at 1 % FPR, at most", _number(row.tpr_at_1pct_fpr_bound)),
    ]
    text = [f"{name:<38}{value}" for name, value in lines if value]
    return "\n".join([*text, *filter(None, [row.label]), *(f"warning: {w}" for w in row.warnings)])


def _black_box(row: AccountRow) -> str:
    value = row.epsilon_black_box if row.group_size is not None else None  # of whole users it is epsilon itself
    if value is not None and math.isinf(value) and row.noise_multiplier > 0.0:
        return "not resolved: it needs deltas too small for floating point"
    return _number(value)


def _number(value: float | None) -> str:
    if value is None:
        return ""
    if isinstance(value, int):
        return str(value)
    return "infinite" if math.isinf(value) else f"{value:.5g}"
