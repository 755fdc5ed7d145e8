"""Sentences about evidence: the audited people, claims, bounds that a design does not support, and verdicts."""

from heldin.words.statement import Code, Statement


class Subjects(Code):
    """The people, or trainings, that bounds and verdicts are about."""

    REAL_USERS = "real users"
    ENTITIES = "entities"
    USERS_AND_ENTITIES = "users and entities"
    CANARIES = "canary users"
    CANARIES_OF_KIND = "{kind} canary users"
    WITH_ONE_EXAMPLE = "{subjects} with one training example"
    WORST_CASE_USER = "worst-case user"
    TO_AN_ATTACKER = "{subjects}, to an attacker who sees {sees}"


class Sees(Code):
    """The outputs of a model that an attacker sees; the names match ``attacks.access.Access``."""

    LOG_PROBABILITIES = "log-probabilities"
    TOP_K = "the likeliest next tokens"
    TEXT = "only text"


REAL_USERS = Subjects.REAL_USERS()
# By whose membership is audited, as in ``words.people.AUDITED``: the people of a verdict.
SUBJECTS = {
    "users": REAL_USERS,
    "entities": Subjects.ENTITIES(),
    "both": Subjects.USERS_AND_ENTITIES(),
    "canaries": Subjects.CANARIES(),
    "trainings": Subjects.WORST_CASE_USER(),
}


class CountedUnits(Code):
    """The units that a test counts."""

    USERS = "users"
    TRAININGS = "trainings"


class ClaimLabel(Code):
    """The label of a claim; ``NONE`` is the label of a verdict without a claim."""

    NONE = "none"
    STATED = "epsilon {epsilon:g} at delta {delta:g}"
    CURVE = "the accountant's curve (epsilon {epsilon:.4g} at delta {delta:g})"
    PER_EXAMPLE = "{claim} per example"
    OF_EXAMPLES = "{claim}, at {examples} examples of a user"
    OF_ONE_EXAMPLE = "{claim}, at 1 example of a user"


class Flaw(Code):
    """Reasons why a result is not certified."""

    BLIND_DIFFERS = "the groups differ without the model (blind baseline, p = {p:.1g})"
    SPLIT_FIXED = "the split was fixed, not drawn by independent fair coins"
    ASSIGNMENT_UNKNOWN = "nobody stated how membership was assigned"
    COINS_ASSERTED = "the coins are only asserted, by the maker of the model"
    COINS_IMPLAUSIBLE = "{members} members of {users} users are not what fair coins give"
    CONDITION_NOT_MET = "a condition is not met: {condition}"
    NOT_DECLARED = (
        "nobody has declared {count} of the conditions that heldin cannot check (--declared-by NAME declares them)"
    )
    CONTROL_UNDECIDED = (
        "the positive control is undecided, so it is not shown that canary rows had the effect of other rows"
    )
    CONTROL_UNUSABLE = "the positive control could not be used, so it is not shown that canary rows had any effect"
    CONTROL_NOT_MEASURED = "there is no positive control, so it is not shown that canary rows had any effect"
    REFERENCE_ON_ONE_SIDE = "the reference model was trained on one of the two groups"


class Caution(Code):
    """Cautions that are printed with a verdict."""

    BLIND_UNDER_COINS = (
        "a blind baseline distinguishes the groups (p = {p:.1g}), which fair coins allow with probability {level:g}:"
        " check the coins"
    )
    EVEN_SPLIT = (
        "{members} members and {others} non-members: fair coins give exactly equal numbers with probability"
        " {percent:.2g} %; if the split was an exact half or one of each pair, say --assignment fixed"
    )
    ODD_SPLIT = (
        "{members} members and {others} non-members: fair coins give numbers one apart with probability"
        " {percent:.2g} %; if the split was an exact half or one of each pair, say --assignment fixed"
    )
    MISSING_NAMES = (
        "users named {names}: rows without a user may be counted under such a name as one person; fix the rows"
    )
    WRONG_WAY_ROUND = (
        "these scores point the other way (AUROC {auroc:.2f}). If a higher score means a {other}, as a loss does,"
        " pass --higher-is {other}. Decide by what the score is, not by its result: only this direction was tested"
    )


class Finding(Code):
    """The result of testing a claim."""

    REJECTED = "{claim} is rejected at level {level:g} by {test}"
    NOT_REJECTED = "{claim} is not rejected; a perfect attack would have rejected it"
    OUT_OF_REACH = "{claim} is not rejected; {count} {units} could have certified at most epsilon = {reach:.3g}"
    NO_CLAIM = "no claim was stated; {count} {units} could certify at most epsilon = {reach:.3g}"
    UNDER_CONDITION = "{finding} ({condition}, confidence {confidence:g})"
    IF_CONDITIONS_HELD = "{flaws}; if the conditions held: {finding}"
    WITH_FLAWS = "{flaws}; {finding}"


class Test(Code):
    """The only test that a design has."""

    ONE_RUN = "the one-run test"
    FIXED_THRESHOLDS = "Clopper-Pearson at thresholds fixed beforehand"
    ROC_BANDS = "the ROC bands"


class CertifiedCondition(Code):
    """The conditions of a certified verdict."""

    INDEPENDENT_TRAININGS = "independent trainings"
    FAIR_COINS = "independent fair coins"


class Refusal(Code):
    """Reasons why a bound is not valid for a design, or why there is no bound at all."""

    NEEDS_COINS = "needs membership drawn by independent fair coins; the split was fixed"
    NEEDS_TRAININGS = "needs independent training runs, one for each score; scores of one run share one model"
    NEEDS_GAUSSIAN = "holds only where the mechanism's trade-off curve is Gaussian, which nobody states"
    NEEDS_THRESHOLD = "needs a threshold that was fixed before looking; the best one found is no bound"
    ONE_THRESHOLD = "is of one threshold; {thresholds} were fixed"
    NEEDS_TWO_OF_EACH = "needs two training runs of each group to split; there are {members} and {others}"
    BAND_TOO_LARGE = "is computed up to {most} training runs of a group: see the DKW band"
    FITTED_TO_COINS = "the score uses {uses}: guesses that are fitted to one another's coins certify nothing"
    TOO_FEW = (
        "{members} members and {others} non-members cannot support any statement at level {level:g}: even perfect"
        " separation says nothing; give more users"
    )
    TOO_FEW_USERS = (
        "{count} users cannot support any statement at level {level:g}: even all guesses right say nothing; at least"
        " {needed} are needed"
    )
    TOO_FEW_GUESSES = (
        "{count} guesses cannot support any statement at level {level:g}: even all guesses right say nothing; at least"
        " {needed} are needed"
    )
    TOO_FEW_TRAININGS = "{trainings} training runs are too few ({reason}): raise --trainings"
    NOBODY_HELD_IN = "there is no member: a bound needs users of both groups"
    NOBODY_HELD_OUT = "there is no non-member: a bound needs users of both groups"
    ALL_EQUAL = "all {scores} scores are {value:g}, so they say nothing about membership"


def delta_of(claim: Statement) -> float | None:
    """Return the delta in the label of a claim; None if there is no claim."""
    inner, delta = claim.values.get("claim"), claim.values.get("delta")
    if isinstance(inner, Statement):
        return delta_of(inner)
    return delta if isinstance(delta, float) else None


def about_canaries(subjects: Statement) -> bool:
    """Return whether all or some of these people are canary users."""
    inner = subjects.values.get("subjects")
    if isinstance(inner, Statement):
        return about_canaries(inner)
    return any(map(subjects.states, (Subjects.CANARIES, Subjects.CANARIES_OF_KIND)))


def units_of(subjects: Statement) -> Statement:
    """Return the units that a test on these people counts. For users and canary users these are users."""
    of_users = (Subjects.REAL_USERS, Subjects.CANARIES, Subjects.CANARIES_OF_KIND)
    return CountedUnits.USERS() if any(map(subjects.states, of_users)) else subjects
