"""Sentences of page one of a sweep: which defense to use, what each leaks, and what the comparison rests on."""

from heldin.words.statement import Code


class Chosen(Code):
    """The answer of the decision rule, below the banner."""

    SHIP = "chosen_ship", "This answer is about {variant}, which keeps every limit of the decision rule{although}."
    ALTHOUGH = "chosen_although", ", although {against}"
    LEAKS = "chosen_although_leaks", "its models leak", " and "
    CANARIES_LEAK = "chosen_although_canaries_leak", "its canary users leak", " and "
    INCONCLUSIVE = "chosen_although_inconclusive", "its audits are inconclusive", " and "
    NOT_VALID = "chosen_although_not_valid", "its comparison is not valid", " and "
    NONE_PASSES = "chosen_none", "{leaking}No candidate keeps the limits of the decision rule."
    UNDECIDED = "chosen_undecided", "{leaking}The decision rule selects nothing yet."
    NO_RULE = "chosen_no_rule", "{leaking}The sweep file sets no decision rule, so no defense is selected."
    LEAKING = "chosen_leaking", "Training leaks under {variants}. "
    NOTHING_DONE = "chosen_nothing_done", "No training run has a result yet."


class SweepLabel(Code):
    """What a line of page one is about."""

    LEAKS = "sweep_label_leaks", "Which leak"
    PEOPLE = "sweep_label_people", "In people"
    EVIDENCE = "sweep_label_evidence", "Evidence"
    CANARIES = "sweep_label_canaries", "Canary users"
    LEARNED = "sweep_label_learned", "Learned anything"
    GUARANTEE = "sweep_label_guarantee", "Guarantees"
    BEATEN = "sweep_label_beaten", "Dominated"
    RECOMMENDATION = "sweep_label_recommendation", "Recommendation"
    NOT_TESTED = "sweep_label_not_tested", "Not tested"


class Compared(Code):
    """What the variants have in common, and how they differ."""

    ANSWER = "compared_answer", "{answer}: {variants}.", " "
    PEOPLE = (
        "compared_people",
        "{variant} {rate:.0f}{interval}",
        "; ",
    )
    INTERVAL = "compared_interval", " (95 % CI {lower:.0f} to {upper:.0f})"
    WRONGLY = (
        "compared_wrongly",
        "The attack flags, of every 100 members: {people}. It wrongly flags {wrong:g} of every 100"
        " non-members, as guessing does.",
    )
    REPEATED = (
        "compared_repeated",
        "Estimate, not certified: {blocks} repetitions with new coin flips, seeds and training runs.",
    )
    ONCE = (
        "compared_once",
        "Estimate, not certified: {blocks} of at least {least} repetitions, so differences may be due to this training"
        " run alone.",
    )
    ASSERTED = (
        "compared_asserted",
        "Indicative, not certified: who is a member was not decided by coin flips of heldin.",
    )
    CANARIES_LEAK = "compared_canaries_leak", "Planted canary users leak under {variants}."
    CANARIES_LEFT = "compared_canaries_left", " No leak of canary users was found under {variants}."
    CANARIES_NO_LEAK = "compared_canaries_no_leak", "No leak of planted canary users was found under any defense."
    LEARNED = (
        "compared_learned",
        "Yes, under {variants}: loss on people outside the training data is below the base model's.",
        " ",
    )
    LEARNED_NOTHING = (
        "compared_learned_nothing",
        "No, under {variants}: nothing measurable was learned, so low leakage does not show that the defense works.",
        " ",
    )
    GAIN_WITHOUT_INTERVAL = (
        "compared_gain_without_interval",
        "Not known for {variants}: two repetitions give no interval.",
    )
    GAIN_NOT_MEASURED = "compared_gain_not_measured", "Not measured for {variants}."
    GUARANTEES = "compared_guarantees", "{count} of {of_all} defenses have a guarantee, which the table lists."
    NOT_CONTRADICTED = "compared_not_contradicted", " This sweep contradicts none of them."
    NO_GUARANTEE = "compared_no_guarantee", "No defense has a guarantee."
    CONTRADICTED = "compared_contradicted", " Contradicted by this sweep, certified: {variants}."
    SUSPECTED = "compared_suspected", " Contradicted in single runs: {variants}."
    BEATEN = (
        "compared_beaten",
        "Another defense is better than {variants} in AUROC or loss, and worse in nothing that was measured.",
    )


class SweepAdvice(Code):
    """What to do next."""

    NOT_VALID = (
        "sweep_not_valid",
        "Release no model yet: the comparison for {variant} is not valid. Read the report in cells/{block}/{variant}.",
    )
    EXPORT = (
        "sweep_export",
        "Release of {variant} is within your limits{although}. Read the report in cells/{block}/{variant}. To release"
        " that model,"
        " run heldin export OUT/cells/{block}/{variant} --to FOLDER.",
    )
    NONE = (
        "sweep_ship_none",
        "Release none of these models. Try another defense, more users or more texts, or other limits, in a new sweep.",
    )
    RUN_AGAIN = "sweep_run_again", "Release nothing yet. Run the sweep again to get the missing results."
    MORE_BLOCKS = (
        "sweep_more_blocks",
        "Release nothing yet. Run the same file with {blocks} repetitions in a new folder.",
    )
    MORE_USERS = (
        "sweep_more_users",
        "Release nothing yet. Run the same file with more repetitions or more users in a new folder.",
    )
    SET_RULE = (
        "sweep_set_rule",
        "Add a decision rule and run at least {blocks} repetitions in a new folder. A rule chosen after seeing the"
        " result proves nothing.",
    )
    BEYOND = "sweep_beyond", "Release no model whose guarantee is contradicted: {variants}. {next}"


class RuleReason(Code):
    """What the decision rule gives, and why."""

    SELECTED = (
        "rule_selected",
        "The rule selects {variant} (the model of repetition {block}): it keeps every limit, at {percent:g} % for all"
        " candidates together ({candidates}).",
    )
    NONE_PASSES = "rule_none_passes", "No candidate passes, because each breaks a limit ({broken})."
    BROKEN = "rule_broken", "{variant}: {limits}"
    UNFINISHED = (
        "rule_unfinished",
        "The rule cannot be applied: training runs of {variants} have no result. Run the sweep again.",
    )
    NOT_MEASURED = (
        "rule_not_measured",
        "The rule cannot be applied: a training run of {variants} has too few non-members to measure a loss.",
    )
    WOULD_PASS = (
        "rule_would_pass",
        "No candidate is shown to pass. If means and spreads stay the same, these would: {variants}.",
    )
    WITH_BLOCKS = "rule_with_blocks", "{variant} with {blocks} repetitions", ", "
    NO_SINGLE_MODEL = (
        "rule_no_single_model",
        "A candidate passes over the repetitions, but none of its models passes by its own interval. Audit more users.",
    )
    MORE_USERS = (
        "rule_more_users",
        "No candidate is shown to pass, and not every candidate is shown to break a limit. Audit more users.",
    )
