"""Sentences about evidence: whom it is about, claims, bounds that a design does not support, and verdicts."""

from heldin.words.statement import Code, Statement


class Subjects(Code):
    """The people, or trainings, that bounds and verdicts are about."""

    REAL_USERS = "real_users", "real users"
    ENTITIES = "entities", "entities"
    USERS_AND_ENTITIES = "users_and_entities", "users and entities"
    CANARIES = "canary_users", "canary users"
    CANARIES_OF_KIND = "canary_users_of_kind", "{kind} canary users"
    WITH_ONE_EXAMPLE = "with_one_example", "{subjects} with one training example"
    WORST_CASE_USER = "worst_case_user", "worst-case user"


REAL_USERS = Subjects.REAL_USERS()


class CountedUnits(Code):
    """What a test counts."""

    USERS = "users", "users"
    TRAININGS = "trainings", "trainings"


class ClaimLabel(Code):
    """What is claimed; ``NONE`` labels the verdict if nothing is."""

    NONE = "no_claim", "none"
    STATED = "stated_epsilon", "epsilon {epsilon:g} at delta {delta:g}"
    CURVE = "curve", "the accountant's curve (epsilon {epsilon:.4g} at delta {delta:g})"
    PER_EXAMPLE = "per_example", "{claim} per example"
    OF_EXAMPLES = "of_examples", "{claim}, at {examples} examples of a user"
    OF_ONE_EXAMPLE = "of_one_example", "{claim}, at 1 example of a user"


class Flaw(Code):
    """Why a result is not certified."""

    BLIND_DIFFERS = "blind_differs", "the groups differ without the model (blind baseline, p = {p:.1g})"
    SPLIT_FIXED = "split_fixed", "the split was fixed, not drawn by independent fair coins"
    ASSIGNMENT_UNKNOWN = "assignment_unknown", "nobody stated how membership was assigned"
    COINS_ASSERTED = "coins_asserted", "the coins are only asserted, by the maker of the model"
    COINS_IMPLAUSIBLE = "coins_implausible", "{members} members of {users} users are not what fair coins give"
    CONDITION_NOT_MET = "condition_not_met", "a condition is not met: {condition}"
    NOT_DECLARED = (
        "not_declared",
        "nobody has declared {count} of the conditions that heldin cannot check (--declared-by NAME declares them)",
    )
    REFERENCE_ON_ONE_SIDE = "reference_on_one_side", "the reference model was trained on one of the two groups"


class Caution(Code):
    """What is printed with a verdict."""

    BLIND_UNDER_COINS = (
        "blind_under_coins",
        "a blind baseline distinguishes the groups (p = {p:.1g}), which fair coins allow with probability {level:g}:"
        " check the coins",
    )
    EVEN_SPLIT = (
        "even_split",
        "{members} members and {others} non-members: fair coins give exactly equal numbers with probability"
        " {percent:.2g} %; if the split was an exact half or one of each pair, say --assignment fixed",
    )
    ODD_SPLIT = (
        "odd_split",
        "{members} members and {others} non-members: fair coins give numbers one apart with probability"
        " {percent:.2g} %; if the split was an exact half or one of each pair, say --assignment fixed",
    )
    MISSING_NAMES = (
        "missing_names",
        "users named {names}: rows without a user may be counted under such a name as one person; fix the rows",
    )
    WRONG_WAY_ROUND = (
        "wrong_way_round",
        "these scores point the other way (AUROC {auroc:.2f}). If a higher score means a {other}, as a loss does,"
        " pass --higher-is {other}. Decide by what the score is, not by its result: only this direction was tested",
    )


class Finding(Code):
    """What the test of a claim found."""

    REJECTED = "rejected", "{claim} is rejected at level {level:g} by {test}"
    NOT_REJECTED = "not_rejected", "{claim} is not rejected; a perfect attack would have rejected it"
    OUT_OF_REACH = (
        "out_of_reach",
        "{claim} is not rejected; {count} {units} could have certified at most epsilon = {reach:.3g}",
    )
    NO_CLAIM = "no_claim_stated", "no claim was stated; {count} {units} could certify at most epsilon = {reach:.3g}"
    UNDER_CONDITION = "under_condition", "{finding} ({condition}, confidence {confidence:g})"
    IF_CONDITIONS_HELD = "if_conditions_held", "{flaws}; if the conditions held: {finding}"
    WITH_FLAWS = "with_flaws", "{flaws}; {finding}"


class Test(Code):
    """The one test of a design."""

    ONE_RUN = "one_run_test", "the one-run test"
    FIXED_THRESHOLDS = "fixed_thresholds", "Clopper-Pearson at thresholds fixed beforehand"
    ROC_BANDS = "roc_bands", "the ROC bands"


class CertifiedCondition(Code):
    """What a certified verdict rests on."""

    INDEPENDENT_TRAININGS = "independent_trainings", "independent trainings"
    FAIR_COINS = "fair_coins", "independent fair coins"


class Refusal(Code):
    """Why a bound is not valid for a design, or why there is none at all."""

    NEEDS_COINS = "needs_coins", "needs membership drawn by independent fair coins; the split was fixed"
    NEEDS_TRAININGS = (
        "needs_trainings",
        "needs independent trainings, one for each score; scores of one run share one model",
    )
    NEEDS_GAUSSIAN = (
        "needs_gaussian",
        "holds only where the mechanism's trade-off curve is Gaussian, which nobody states",
    )
    NEEDS_THRESHOLD = (
        "needs_threshold",
        "needs a threshold that was fixed before looking; the best one found is no bound",
    )
    ONE_THRESHOLD = "one_threshold", "is of one threshold; {thresholds} were fixed"
    NEEDS_TWO_OF_EACH = (
        "needs_two_of_each",
        "needs two trainings of each group to split; there are {members} and {others}",
    )
    BAND_TOO_LARGE = "band_too_large", "is computed up to {most} trainings of a group: see the DKW band"
    FITTED_TO_COINS = (
        "fitted_to_coins",
        "the score uses {uses}: guesses that are fitted to one another's coins certify nothing",
    )
    TOO_FEW = (
        "too_few",
        "{members} members and {others} non-members cannot support any statement at level {level:g}: even perfect"
        " separation says nothing; give more users",
    )
    TOO_FEW_USERS = (
        "too_few_users",
        "{count} users cannot support any statement at level {level:g}: even all guesses right say nothing; at least"
        " {needed} are needed",
    )
    TOO_FEW_GUESSES = (
        "too_few_guesses",
        "{count} guesses cannot support any statement at level {level:g}: even all guesses right say nothing; at least"
        " {needed} are needed",
    )
    TOO_FEW_TRAININGS = "too_few_trainings", "{trainings} trainings are too few ({reason}): raise --runs"
    NOBODY_HELD_IN = "nobody_held_in", "there is no member: a bound needs users of both groups"
    NOBODY_HELD_OUT = "nobody_held_out", "there is no non-member: a bound needs users of both groups"
    ALL_EQUAL = "all_equal", "all {scores} scores are {value:g}, so they say nothing about membership"


def delta_of(claim: Statement) -> float | None:
    """Return the delta of a claim's label; None without a claim."""
    inner, delta = claim.values.get("claim"), claim.values.get("delta")
    if isinstance(inner, Statement):
        return delta_of(inner)
    return delta if isinstance(delta, float) else None


def units_of(subjects: Statement) -> Statement:
    """Return what a test on these people counts: users, whether real or canary users, else the people themselves."""
    of_users = (Subjects.REAL_USERS, Subjects.CANARIES, Subjects.CANARIES_OF_KIND)
    return CountedUnits.USERS() if any(map(subjects.states, of_users)) else subjects
