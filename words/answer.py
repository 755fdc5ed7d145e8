"""Sentences about the answer of an audit: headline, notes, and flaws of a comparison."""

from heldin.words.statement import Code


class Headline(Code):
    """The answer of an audit; ``audited`` selects the words for the audited people."""

    LEAKS = "Leaks{standing}: {finding}."
    NO_LEAK = (
        "No leak found: the audit rules out an AUROC above {auroc:.2f}, and that an attack flags more than"
        " {percent:.0f} % of {what.member} at {fpr_percent:g} % false positives (estimates at 95 %, for {scores}"
        " only)."
    )
    REVERSED = (
        "Inconclusive: {score} distinguishes {what.sides}, but the wrong way round (AUROC {auroc:.2f}). The groups"
        " may be swapped, or the model made its users' texts less likely."
    )
    INCONCLUSIVE = "Inconclusive: no leak was found, but {left}. {needed}."
    UNLEARNED = (
        "Inconclusive: no leak was found, but the model's gain over the reference model on texts of non-members is"
        " not above 0."
    )
    WEAKER = (
        "Inconclusive: no leak to the attackers of this audit was found, but those who get the model see more of it"
        " than they do."
    )
    NOT_VALID = "The comparison is not valid: {flaws}."
    WITH_TRAININGS = "{headline} {certified}"


class TrainingsCertify(Code):
    """The certificate that independent trainings give."""

    WHOLE = "{trainings} independent training runs{target} {least}{threshold}; {claims}."
    WITHOUT_DEFENSE = " without any defense"
    AT_LEAST = "certify an epsilon of at least {epsilon:.2f}"
    NOTHING = "certify no epsilon above zero"
    PICKED_BY = " at the threshold that the first {pilot} picked"
    FIXED_BEFORE = " at the threshold that was fixed beforehand"
    NO_CLAIM = "no claim was tested"
    CONTRADICTED = "the claim is contradicted"
    CONSISTENT = "the claim is not contradicted"
    INCONCLUSIVE = "the claim is out of reach"


class LeakFound(Code):
    """The evidence of a leak."""

    BY_AUROC = "{score} distinguishes {what.sides} with AUROC {interval}"
    BY_RATES = (
        "{score} flags more {what.member} at low false-positive rates than chance allows. Its AUROC is {interval}"
    )
    BY_CLAIM = "{violation}. The AUROC of {score} on {what.unit} is {interval}"


class AurocInterval(Code):
    """An AUROC and its interval."""

    ALONE = "{auroc:.2f} ({lower:.2f} to {upper:.2f}, 95 % interval)"
    SIMULTANEOUS = "{auroc:.2f} ({lower:.2f} to {upper:.2f}, simultaneous over {scores} scores)"


class Scores(Code):
    """The scores that were tested."""

    ONE = "this score"
    SEVERAL = "these {count} scores"


class IndicativeReason(Code):
    """Reasons why an answer is only indicative."""

    CONDITION_UNMET = " (indicative only: a condition is not met)"
    SIDES_ASSERTED = " (indicative only: who is a member is asserted)"


class Violation(Code):
    """The people whose scores contradict a claim."""

    CERTIFIED = "the scores certify more than was claimed"
    CERTIFIED_BY = "the scores of {subjects} certify more than was claimed"
    INDICATED = "the scores point to more than was claimed, which nothing certifies"
    INDICATED_BY = "the scores of {subjects} point to more than was claimed, which nothing certifies"


class Left(Code):
    """The questions that remain open after an inconclusive audit."""

    AUROC = "an AUROC of up to {auroc:.2f} is not ruled out"
    RATE = (
        "an attack that flags up to {percent:.0f} % of {what.member} at {fpr_percent:g} % false positives is not"
        " ruled out"
    )
    BOTH = (
        "an AUROC of up to {auroc:.2f}, and up to {percent:.0f} % of {what.member} flagged at {fpr_percent:g} % false"
        " positives, are not ruled out"
    )
    TOO_FEW_FOR_RATE = (
        "so few users cannot show whether an attack flags many {what.member} at {fpr_percent:g} % false positives"
    )
    AND_TOO_FEW = "{left}. In addition, {few}"
    NEEDED = "About {needed:,} {what.unit} would decide; {users:,} were audited"
    NEEDED_MORE_THAN = "More than {most:,} {what.unit} would decide; {users:,} were audited"
    SETTLES_MOSTLY = "In most audits {users:,} {what.unit} decide, but here they did not, so audit more"


class Note(Code):
    """Facts that a reader must know first."""

    PROMISE_BROKEN = "A guarantee is contradicted: {violation}."
    PROMISE_SEEMS_BROKEN = "A guarantee seems to be contradicted: {violation}."
    DISAGREE = (
        "The attacks disagree: {score} distinguishes {what.sides} (adjusted p = {p:.2g}), and the primary attack,"
        " {leading}, does not (AUROC {auroc:.2f}).{length}"
    )
    DISAGREE_BY_RATES = (
        "The attacks disagree: {score} distinguishes {what.sides} (adjusted p = {p:.2g} of its true-positive rates),"
        " and the primary attack, {leading}, does not (AUROC {auroc:.2f}).{length}"
    )
    LENGTH_DROWNS = (
        " The score of the primary attack correlates with the length of a user's texts (rank correlation"
        " {leading:+.2f}; {other:+.2f} for the other score). Length hides what membership adds."
    )
    BLIND_BY_CHANCE = (
        "The blind baseline '{baseline}' separates the groups without the audited model (AUROC {auroc:.2f}, p ="
        " {p:.1g}). heldin drew the groups. Either this is chance, which happens once in ten thousand audits for"
        " each baseline, or the draw has leaked. Keep the answer, and check who could see the ledger."
    )


class ComparisonFlaw(Code):
    """Reasons why a comparison of the two groups is invalid."""

    GROUPS_DIFFER = "the two groups differ even without the audited model ({baseline}: AUROC {auroc:.2f}, p = {p:.1g})"
    SAME_SCORE = "{score} gives every user the same score: are these the users' texts?"
    HELD_OUT_USERS_TRAINED_ON = "{count} of {users} non-members are in the training file"
    HELD_OUT_TEXTS_TRAINED_ON = "{count} of {texts} texts of non-members are in the training file"
    MODEL_CHANGED = (
        "the model '{model}' changed while it was audited (a probe text's score moved by {drift:.2g} nats a token)"
    )
    ANSWERS_CHANGED = "the model '{model}' changed while it was audited: it answers public words otherwise than before"
    NO_EFFECT = "the planted rows had no effect on this model, though it learned other rows"
    ATTACK_MISSES = (
        "the model's losses distinguish canary users that were trained on from others, which the plan's attack misses"
    )
    HELD_IN_USERS_ABSENT = "{count} of {users} members are not in the training file"
