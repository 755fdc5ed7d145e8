"""Sentences about what a mechanism promises, what that depends on, and why there is no guarantee."""

from heldin.words.statement import Code, Statement


class Relation(Code):
    """Which data sets count as neighbours."""

    ADD_REMOVE = "add_remove", "add/remove"
    ZERO_OUT = "zero_out", "zero-out"
    REPLACE = "replace", "replace"
    FIXED_INCIDENCE = "fixed_incidence", "fixed incidence"


class GuaranteeText(Code):
    """What is promised, and to whom."""

    EPSILON = "epsilon", "epsilon {epsilon:.4g}, delta {delta:g} per {unit} ({relation})"
    HOLDERS = (
        "epsilon_of_holders",
        "epsilon {epsilon:.4g}, delta {delta:g} for a user and a recognised entity that {holders} other users may"
        " name{further}, {alone:.4g} for a user alone ({relation})",
    )
    ONE_HOLDER = (
        "epsilon_of_one_holder",
        "epsilon {epsilon:.4g}, delta {delta:g} for a user and a recognised entity that 1 other user may name{further},"
        " {alone:.4g} for a user alone ({relation})",
    )
    BY_HOLDERS = "by_holders", ", {epsilon:.4g} by {exposed}", ""
    RECORDS = (
        "epsilon_of_records",
        "epsilon {epsilon:.4g}, delta {delta:g} for a person of {records} records, {further} (written by the person or"
        " naming the person, {relation})",
    )
    ONE_RECORD = (
        "epsilon_of_one_record",
        "epsilon {epsilon:.4g}, delta {delta:g} for a person of 1 record, {further} (written by the person or naming"
        " the person, {relation})",
    )
    OF_RECORDS = "of_records", "{epsilon:.4g} of {exposed}", ", "
    CAPPED = (
        "epsilon_capped",
        "epsilon {pair:.4g}, delta {delta:g} for every user and recognised entity together, {user:.4g} for every user"
        " ({records} records used at most), {entity:.4g} for every recognised entity ({entities} at most),"
        " {relation}",
    )
    HOLDS = "holds", "{promise}; {conditions}"
    NO_PROTECTION = "no_protection", "no protection was applied"
    NO_GUARANTEE = "no_guarantee", "no DP guarantee: {reasons}"
    ASSUMED = (
        "no_guarantee_but_assumed",
        "no DP guarantee: {reasons} (assumed epsilon {assumed:.4g}; what holds without the assumption: {fallback})",
    )
    NOTHING_ASSUMED = (
        "no_guarantee_nothing_assumed",
        "no DP guarantee: {reasons} (assumed epsilon none; what holds without the assumption: {fallback})",
    )


class NoGuaranteeReason(Code):
    """Why there is no DP guarantee (docs/theory.md#rules-of-a-private-step)."""

    NO_UNIT = "no_unit", "a privacy unit is missing"
    NO_NOISE = "no_noise", "noise is missing (noise multiplier 0)"
    NO_CLIPPING = "no_clipping", "clipping is missing"
    SHUFFLED = "shuffled", "cohorts are shuffled while accounting assumes Poisson sampling"
    BATCH_CLIPPED = (
        "batch_clipped",
        "the batch is clipped as one, so a unit may change a step by twice the clip norm",
    )
    REALISED_COHORT = "realised_cohort", "the divisor is the realised cohort, which depends on private data"
    PROTECTED_VALIDATION = "protected_validation", "the checkpoint is chosen by validation on protected users"
    LOOKS_ACROSS_USERS = "looks_across_users", "preprocessing looks across users ({steps})"
    COMPARES_TEXTS = "compares_texts", "preprocessing compares texts, or may look beyond slots ({steps})"
    SELECTED_BY_PROTECTED = (
        "selected_by_protected",
        "records are selected by the perplexity of a base model that saw protected users",
    )
    RANDOM_RECORD_RATE = (
        "random_record_rate",
        "Lai et al. account for the rate at which a random record is used, which hides no user and entity",
    )
    WEIGHTS_COUNT_RECORDS = "weights_count_records", "weights count the records of users and entities"
    BASE_SAW_PROTECTED = "base_saw_protected", "the base model was trained on protected users"
    TOKENIZER_SAW_PROTECTED = "tokenizer_saw_protected", "the tokenizer was trained on protected users"
    NO_FINITE_EPSILON = "no_finite_epsilon", "no finite epsilon at this delta"


class GuaranteeCondition(Code):
    """What a guarantee assumes or depends on."""

    AFTER_PREPROCESSING = "after_preprocessing", "adjacency after preprocessing ({steps})"
    NOT_OF_USERS = "not_of_users", "says nothing finite about a user without a cap on records per user"
    SAME_SLOTS = (
        "same_slots",
        "neighbours have the same slots: that a record exists, and whom it names, is not hidden",
    )
    NAMES_NOT_RECOGNISED = (
        "names_not_recognised",
        "a name that was not recognised has the epsilon of the number of records that hold it",
    )
    NAMES_MISSED = (
        "names_missed",
        "a name that was missed in texts of n other users has the epsilon of rule any at n",
    )
    NULL_CONTRIBUTIONS = "null_contributions", "the divisor counts absent units' null contributions"
    PUBLIC_VALIDATION = (
        "public_validation",
        "validation users are public, not protected; epsilon is at the last step, whichever is chosen",
    )
    RANKING_MODEL_UNSEEN = "ranking_model_unseen", "the base model that ranks records saw no protected user"
    FILTER_THEOREM = (
        "filter_theorem",
        "by the theorem of Asi & Liu (2024) as Chua et al. state it, not proved again; halting is an output",
    )
    NOISE = "noise", "noise by {generator}"


class Assumption(Code):
    """What a guarantee takes for granted."""

    BASE_UNSEEN = "base_unseen", "assuming that the base model and its tokenizer saw no protected user{entities}"
    PRETRAINING_CORPUS_UNSEEN = (
        "pretraining_corpus_unseen",
        "assuming that the corpus which pre-trained the base model has no protected user's texts{entities}",
    )
    PUBLIC_USERS = (
        "public_users",
        "for users who are no public users only: the users whose texts pre-trained the base model are taken as"
        " public{entities}",
    )
    ENTITIES_PUBLIC = "entities_public", ", and what it saw of named entities is public"
    MENTIONS_PUBLIC = "mentions_public", ", and what they say of others with them"
    SENTENCES = "sentences", "a record is a sentence"
    DEIDENTIFIER_UNSEEN = (
        "deidentifier_unseen",
        "assuming that what de-identifies was not made from protected users' names or texts",
    )
    ENTITY_IS = "entity_is", "an entity is what the source finds ({counts})"
    FINDER_UNSEEN = "finder_unseen", "assuming that what finds entities was not made from protected users' texts"


class PromiseCaution(Code):
    """What is printed with a guarantee."""

    LARGE_DELTA = (
        "large_delta",
        "delta {delta:g} is above 1/{units}: one unit may be published outright; use at most {most:.2g}",
    )
    NO_NOISE = "no_noise_caution", "noise multiplier 0 adds no noise: epsilon is infinite, so there is no guarantee"


class Covers(Code):
    """What a plan's guarantee covers, by how the released checkpoint is chosen."""

    LAST_STEP = (
        "last_step",
        "the model after the last step; not losses, gradient norms, cohort sizes or attack scores",
    )
    PUBLIC_VALIDATION = (
        "covers_public_validation",
        "the model of the step that separate public users' loss chose; not losses, gradient norms, cohort sizes or"
        " attack scores",
    )
    PROTECTED_VALIDATION = (
        "covers_protected_validation",
        "the model of the step that the loss of protected users chose; not losses, gradient norms, cohort sizes or"
        " attack scores",
    )


def relation_of(label: Statement) -> str | None:
    """Return the code of the relation that a promise is about; None without a promise."""
    relation = without_conditions(label).values.get("relation")
    return relation.code if isinstance(relation, Statement) else None


def without_conditions(label: Statement) -> Statement:
    """Return what is promised alone, or why nothing is."""
    promise = label.values.get("promise")
    return promise if isinstance(promise, Statement) else label
