"""Sentences about how membership was decided, and how that is known."""

from heldin.words.statement import Code


class SplitReason(Code):
    """Why a split supports certified statements, or why it does not."""

    FAIR_COINS = (
        "fair_coins_of_run",
        "each audited {what.singular} was held in by an independent fair coin under a fresh secret key",
    )
    FAIR_COINS_OF_BLOCK = (
        "fair_coins_of_block",
        "each audited {what.singular} was held in by an independent fair coin under a fresh secret key, which is that"
        " of block {block} of a sweep",
    )
    EXACT_HALF = (
        "exact_half",
        "an exact half of the {what.unit} was held in: coins that depend on each other certify nothing",
    )
    CANARY_COINS = (
        "canary_coins",
        "each canary user was held in by an independent fair coin under a fresh secret key",
    )
    COINS_OF_TRAININGS = (
        "coins_of_trainings",
        "each training has the worst-case user by an independent fair coin under a fresh secret key, and draws its"
        " cohorts and noise under a key of its own",
    )
    ASSERTED_BY_FILES = (
        "asserted_by_files",
        "who was held in is asserted by two files, and how the groups were formed is not known",
    )
    ASSERTED_NO_COINS = (
        "asserted_no_coins",
        "who was held in is asserted by two files, and the groups were not formed by coins",
    )
    ASSERTED_COINS = (
        "asserted_coins",
        "who was held in is asserted by two files, and so are the coins that are said to have decided it",
    )
    DRAWN_BEFORE = "drawn_before", "{coins}, drawn before {planted}"
    CONDITIONS_NOT_MET = "conditions_not_met", "{flaws}. The coins themselves: {drawn}"
