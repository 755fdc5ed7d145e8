"""Sentences of a sweep's page one: the defense to use, how much each defense leaks, and the basis of the comparison."""

from heldin.words.statement import Code


class Chosen(Code):
    """The answer of the decision rule, below the banner."""

    RELEASE = "Release {variant}"
    RELEASE_NONE = "Release none of these models"
    ONLY_ONE = "Of {count} candidates, only {variant} is shown to be within your limits{although}."
    ONLY_CANDIDATE = "The only candidate, {variant}, is shown to be within your limits{although}."
    BEST_OF = "{variant} is the best of {passing} candidates that are shown to be within your limits{although}."
    OTHERS = "The other models: {answers}."
    OTHER_LEAKS = ("{variants} (leak)", ", ")
    OTHER_NO_LEAK = ("{variants} (no leak found)", ", ")
    OTHER_INCONCLUSIVE = ("{variants} (inconclusive)", ", ")
    OTHER_NOT_VALID = ("{variants} (not valid)", ", ")
    KEEPS = "It keeps {percent:.0f} % of plain training's gain."
    DELTA = "Delta times users: {product:.2g} (should be far below 1)."
    LARGE_DELTA = "Delta times users is {product:.2g}, and should be far below 1."
    ALTHOUGH = ", although {against}"
    LEAKS = ("its models leak", " and ")
    CANARIES_LEAK = ("its canary users leak", " and ")
    INCONCLUSIVE = ("its audits are inconclusive ({leaking} of {count} report a leak)", " and ")
    NOT_VALID = ("its comparison is not valid", " and ")
    OWN_LEAK = ("the audit of the model in {folder} reports a leak", " and ")
    NONE_PASSES = "{leaking}No candidate keeps the limits of the decision rule."
    UNDECIDED = "{leaking}The decision rule selects nothing yet."
    NO_RULE = "{leaking}The sweep file sets no decision rule, so no defense is selected."
    LEAKING = "Training leaks under {variants}. "
    NOTHING_DONE = "No training run has a result yet."


class SweepLabel(Code):
    """The labels of the lines on page one."""

    LEAKS = "Which leak"
    PEOPLE = "In people"
    EVIDENCE = "Evidence"
    CANARIES = "Canary users"
    LEARNED = "Learned anything"
    GUARANTEE = "Guarantees"
    BEATEN = "Dominated"
    RECOMMENDATION = "Recommendation"
    NOT_TESTED = "Not tested"


class Compared(Code):
    """What the variants have in common, and how they differ."""

    ANSWER = ("{answer}: {variants}.", " ")
    PEOPLE = ("{variant} {rate:.0f}{interval} and {wrong:.0f}", "; ")
    INTERVAL = " (95 % CI {lower:.0f} to {upper:.0f})"
    FLAGGED = (
        "Flagged of every 100 members, and wrongly of every 100 non-members: {people}. Guessing flags both"
        " alike. Counted: the deciding attack if a model leaks, else the primary one."
    )
    REPEATED = "Estimate, not certified: {blocks} repetitions with new coin flips, seeds and training runs."
    ONCE = (
        "Estimate, not certified: {blocks} of at least {least} repetitions, so differences may be due to this training"
        " run alone."
    )
    ASSERTED = "Indicative, not certified: who is a member was not decided by coin flips of heldin."
    CANARIES = ("{answer}: {variants}.", " ")
    LEARNED = ("Yes, under {variants}: loss on non-members is below the base model's.", " ")
    LEARNED_NOTHING = (
        "No, under {variants}: nothing measurable was learned, so low leakage does not show that the defense works.",
        " ",
    )
    GAIN_WITHOUT_INTERVAL = "Not known for {variants}: two repetitions give no interval."
    GAIN_NOT_MEASURED = "Not measured for {variants}."
    GUARANTEES = "With a guarantee: {variants}."
    NOT_CONTRADICTED = " This sweep contradicts none."
    NO_GUARANTEE = "No defense has a guarantee."
    CONTRADICTED = " Contradicted by this sweep, certified: {variants}."
    SUSPECTED = " Contradicted in single runs: {variants}."
    BEATEN = "Another defense has a better AUROC or loss than {variants}, and is worse in nothing."


class SweepAdvice(Code):
    """The next steps."""

    NOT_VALID = "Release no model yet: the comparison for {variant} is not valid. Read the report in {folder}."
    EXPORT = (
        "Release of {variant} is within your limits{although}. Read the report in {folder} before you run heldin export"
        " {quoted} --out public."
    )
    NONE = (
        "Release none of these models. Try another defense, more users or more texts, or other limits, in a new sweep."
    )
    RUN_AGAIN = "Release nothing yet. Run the sweep again to get the missing results."
    CORRECT = "Release nothing yet. Do what the lines of the refused training runs say, then run the sweep again."
    MORE_BLOCKS = "Release nothing yet. Run the same file with {blocks} repetitions in a new folder."
    MORE_USERS = "Release nothing yet. Run the same file with more repetitions or more users in a new folder."
    LEAKING = "Do not release models trained under {variants}: they leak. {next}"
    SET_RULE = (
        "Add a decision rule and run at least {blocks} repetitions in a new folder. A rule chosen after seeing the"
        " result proves nothing."
    )
    BEYOND = "Release no model whose guarantee is contradicted: {variants}. {next}"


class SweepNote(Code):
    """Facts that a reader of the comparison must know."""

    TUNING_CONTRADICTED = "A claim is contradicted in {folder}, certified for all of its training runs at once."
    FEW_BLOCKS = (
        "{blocks} of at least {least} repetitions: no interval covers coin flips, seeds and training runs, so"
        " differences may be due to these models alone."
    )
    TOGETHER = (
        "All verdicts ({verdicts}) were tested together (Holm), and bounds on epsilon hold for all training runs at"
        " once. The record of each run has its own."
    )
    MISFIT = "The plan of {variant} does not fit its data: {differences}."
    GROUPS = "Variants of different groups have different users, and are not compared."
    UNFINISHED = "Training runs without a result: {missing} of {planned}. The comparison is of the others."
    MACHINES = (
        "The training runs did not all use the same code and machine ({differences}). A part of what differs between"
        " them may be due to that."
    )
    MACHINE = "{part}: {values}"
    COMPOSED = (
        "The epsilon of a variant is of one training run. For all private training runs of this sweep ({private})"
        " together it is {epsilon:.3g} per user at delta {delta:g} ({adjacency}).{others}"
    )
    NOT_COMPOSED = (
        "The epsilon of a variant is of one training run. For all private training runs of this sweep ({private})"
        " together heldin can state none: their adjacency differs, or one has a filter.{others}"
    )
    EARLIER = (
        "Earlier releases about these people: {releases:,}, by the developer's statement. The epsilon of all private"
        " training runs leaves them out; heldin account compose counts them too."
    )
    OTHERS = " Training runs without an epsilon per user that may have used the same users: {others}."
    COVERED = (
        "The decision rule reads private training runs and the texts of the audited users. For users who are always"
        " members, the epsilon of all runs together covers the choice. For audited users no epsilon covers it."
    )
    NOT_COVERED = (
        "The decision rule reads scores and losses of audited users, without noise. No epsilon covers this choice, and"
        " the epsilon of a variant is of its training alone."
    )


class RuleReason(Code):
    """The result of the decision rule, with its reason."""

    SELECTED = (
        "The rule selects {variant} (the model of repetition {block}): it keeps every limit, at {percent:g} % for all"
        " candidates together ({candidates})."
    )
    NONE_PASSES = "No candidate passes, because each breaks a limit ({broken})."
    BROKEN = "{variant}: {limits}"
    UNFINISHED = "The rule cannot be applied: training runs of {variants} have no result. Run the sweep again."
    NOT_MEASURED = "The rule cannot be applied: a training run of {variants} has too few non-members to measure a loss."
    WOULD_PASS = "No candidate is shown to pass. If means and spreads stay the same, these would: {variants}."
    WITH_BLOCKS = ("{variant} with {blocks} repetitions", ", ")
    NO_SINGLE_MODEL = (
        "A candidate passes over the repetitions, but none of its models passes by its own interval. Audit more users."
    )
    MORE_USERS = "No candidate is shown to pass, and not every candidate is shown to break a limit. Audit more users."
