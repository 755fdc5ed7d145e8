"""Sentences about a mechanism's guarantee and its conditions, and reasons why there is no guarantee."""

from typing import Literal, TypeAlias

from heldin.words.statement import Code, Statement, code_named


class Relation(Code):
    """The data sets that count as neighbours."""

    ADD_REMOVE = "add/remove"
    ZERO_OUT = "zero-out"
    REPLACE = "replace"
    FIXED_INCIDENCE = "fixed incidence"


class GuaranteeText(Code):
    """The guarantee, and the people whom it protects."""

    EPSILON = "epsilon {epsilon:.4g}, delta {delta:g} per {unit} ({relation})"
    DECLARED = "epsilon {epsilon:.4g}, delta {delta:g} per {unit} ({relation}), as declared by {package}"
    HOLDERS = (
        "epsilon {epsilon:.4g}, delta {delta:g} for a user and a recognised entity that {holders} other users may"
        " name{further}, {alone:.4g} for a user alone ({relation})"
    )
    ONE_HOLDER = (
        "epsilon {epsilon:.4g}, delta {delta:g} for a user and a recognised entity that 1 other user may name{further},"
        " {alone:.4g} for a user alone ({relation})"
    )
    BY_HOLDERS = (", {epsilon:.4g} by {exposed}", "")
    RECORDS = (
        "epsilon {epsilon:.4g}, delta {delta:g} for a person of {records} records, {further} (written by the person or"
        " naming the person, {relation})"
    )
    ONE_RECORD = (
        "epsilon {epsilon:.4g}, delta {delta:g} for a person of 1 record, {further} (written by the person or naming"
        " the person, {relation})"
    )
    OF_RECORDS = ("{epsilon:.4g} of {exposed}", ", ")
    CAPPED = (
        "epsilon {pair:.4g}, delta {delta:g} for every user and recognised entity together, {user:.4g} for every user"
        " ({records} records used at most), {entity:.4g} for every recognised entity ({entities} at most),"
        " {relation}"
    )
    HOLDS = "{promise}; {conditions}"
    NO_PROTECTION = "no protection was applied"
    NO_GUARANTEE = "no DP guarantee: {reasons}"
    ASSUMED = (
        "no DP guarantee: {reasons} (assumed epsilon {assumed:.4g}; what holds without the assumption: {fallback})"
    )
    NOTHING_ASSUMED = "no DP guarantee: {reasons} (assumed epsilon none; what holds without the assumption: {fallback})"


class ReleasesText(Code):
    """The joint guarantee of several releases about the same people, and its conditions."""

    ONE = "1 release"
    MANY = "{releases:,} releases together"
    TOGETHER = "{count}: {promise}; {conditions}"
    PAIR = "epsilon {epsilon:.4g}, delta {delta:g} for every user and recognised entity together ({relation})"
    RECORDS = "epsilon {epsilon:.4g}, delta {delta:g} for a person of at most {records} records in each ({relation})"
    FIXED_BEFOREHAND = (
        "plans fixed beforehand: no result of an earlier release changes how many releases follow, or the noise,"
        " sampling and steps of one"
    )
    AS_PLANNED = "each model was trained as its plan states, with a secret key of its own"
    PURE = "{releases} of pure epsilon for users, {total:g} in all, by your statement"


class EarlierText(Code):
    """Sentences about earlier releases that concern the same people, for a report and a model card."""

    NOT_STATED = "Earlier releases about these people: not stated."
    NONE = "Earlier releases about these people: none, by the developer's statement."
    TOGETHER = (
        "Earlier releases about these people: {releases:,}, by the developer's statement. Together with this one:"
        " {promise}, if all plans were fixed beforehand and the conditions of each hold."
    )
    NO_EPSILON = (
        "Earlier releases about these people: {releases:,}, by the developer's statement. No epsilon covers them and"
        " this one together."
    )


class NoGuaranteeReason(Code):
    """Reasons why there is no DP guarantee (docs/theory.md#rules-of-a-private-step)."""

    NO_UNIT = "a privacy unit is missing"
    NO_NOISE = "noise is missing (noise multiplier 0)"
    NO_CLIPPING = "clipping is missing"
    SHUFFLED = "cohorts are shuffled while accounting assumes Poisson sampling"
    BATCH_CLIPPED = "the batch is clipped as one, so a unit may change a step by twice the clip norm"
    REALISED_COHORT = "the divisor is the realised cohort, which depends on private data"
    PROTECTED_VALIDATION = "the checkpoint is chosen by validation on protected users"
    LOOKS_ACROSS_USERS = "preprocessing looks across users ({steps})"
    COMPARES_TEXTS = "preprocessing compares texts, or may look beyond slots ({steps})"
    SELECTED_BY_PROTECTED = "records are selected by the perplexity of a base model that saw protected users"
    RANDOM_RECORD_RATE = (
        "Lai et al. account for the rate at which a random record is used, which hides no user and entity"
    )
    WEIGHTS_COUNT_RECORDS = "weights count the records of users and entities"
    BASE_SAW_PROTECTED = (
        "the base model was trained on protected users' texts, or on texts selected by comparison with them"
    )
    TOKENIZER_SAW_PROTECTED = "the tokenizer was trained on protected users"
    WHITE_BOX_FAILED = "a white-box audit of the step of {package} failed"
    NO_FINITE_EPSILON = "no finite epsilon at this delta"


class DeclaredAudit(Code):
    """Whether somebody checked a step whose epsilon a package declares."""

    PASSED = "the white-box audit of its step passed"
    FAILED = "the white-box audit of its step failed"
    INCONCLUSIVE = "the white-box audit of its step was inconclusive"
    NOT_RUN = "no white-box audit of its step was run"


Watched: TypeAlias = Literal["passed", "failed", "inconclusive", "not run"]
AUDITS: dict[Watched, DeclaredAudit] = {
    "passed": DeclaredAudit.PASSED,
    "failed": DeclaredAudit.FAILED,
    "inconclusive": DeclaredAudit.INCONCLUSIVE,
    "not run": DeclaredAudit.NOT_RUN,
}


class GuaranteeCondition(Code):
    """The conditions and the assumptions of a guarantee."""

    AFTER_PREPROCESSING = "adjacency after preprocessing ({steps})"
    NOT_OF_USERS = "says nothing finite about a user without a cap on records per user"
    SAME_SLOTS = "neighbours have the same slots: that a record exists, and whom it names, is not hidden"
    NAMES_NOT_RECOGNISED = "a name that was not recognised has the epsilon of the number of records that hold it"
    NAMES_MISSED = "a name that was missed in texts of n other users has the epsilon of rule any at n"
    NULL_CONTRIBUTIONS = "the divisor counts absent units' null contributions"
    PUBLIC_VALIDATION = "validation users are public, not protected; epsilon is at the last step, whichever is chosen"
    RANKING_MODEL_UNSEEN = "the base model that ranks records saw no protected user"
    FILTER_THEOREM = (
        "by the theorem of Asi & Liu (2024) as Chua et al. state it, not proved again; halting is an output"
    )
    CLIP_QUANTILE = "the clip norm follows a noised {quantile:g} quantile of norms, which epsilon covers"
    DECLARED_STEP = "each step does what {package} declares; {audit}"
    DECLARED_LOCAL = "what other packages' data steps look at is as these declare ({steps})"
    BANDED = (
        "{bands} bands: step t draws from group t mod {bands} alone, a user's group is a keyed hash of the user's own"
        " identity, and noise is correlated over {bands} steps"
    )
    NOISE = "noise by {generator}"


class Assumption(Code):
    """The facts that a guarantee assumes."""

    BASE_UNSEEN = "assuming that the base model and its tokenizer saw no protected user{entities}"
    PRETRAINING_CORPUS_UNSEEN = (
        "assuming that the corpus which pre-trained the base model has no protected user's texts, and was not selected"
        " by comparison with them{entities}"
    )
    PUBLIC_USERS = "users whose texts pre-trained the base model count as public and are not protected{entities}"
    ENTITIES_PUBLIC = ", and what it saw of named entities is public"
    MENTIONS_PUBLIC = ", and what they say of others counts as public too"
    LAYERS_UNSEEN = "assuming that the corpus which picked the trained layers has no protected user's texts"
    LAYERS_OF_PUBLIC_USERS = "users whose gradients picked the trained layers count as public and are not protected"
    SENTENCES = "a record is a sentence"
    DEIDENTIFIER_UNSEEN = "assuming that what de-identifies was not made from protected users' names or texts"
    ENTITY_IS = "an entity is what the source finds ({counts})"
    FINDER_UNSEEN = "assuming that what finds entities was not made from protected users' texts"


class ModelText(Code):
    """The model that a record describes."""

    NAMED = "{name}"
    FINE_TUNED = "fine-tuned in this run"
    FINE_TUNED_FROM = "{base} fine-tuned in this run"
    PRETRAINED = "the base model, pre-trained here"
    OF_TRAININGS = "{trainings} fine-tuned models, scored and thrown away"


class PromiseCaution(Code):
    """Cautions that are printed with a guarantee."""

    LARGE_DELTA = "delta {delta:g} is above 1/{units}: one unit may be published outright; use at most {most:.2g}"
    NO_NOISE = "noise multiplier 0 adds no noise: epsilon is infinite, so there is no guarantee"


class DeltaText(Code):
    """The public number that determines delta."""

    OVER_UNITS = (
        "delta is N^-1.1 for N = {number:,} protected units, since a delta above 1/N would allow a unit to be published"
        " outright"
    )
    OVER_EXAMPLES = (
        "delta is n^-1.1 for n = {number:,} examples, as in Charles et al. (2024), section 5, who count them before any"
        " cap"
    )


class PlanFitText(Code):
    """The share of the plan's units that are in a training, and the consequences of a difference."""

    UNITS = "{units:,} {unit} for a stated population of {population:,}"
    GRADIENTS = "{gradients:,.0f} gradients a step, {planned:,.0f} by the plan"
    SHORT = "{short:,} of {users:,} users with fewer than {group_size:,} records"
    MISFIT = (
        "the plan does not fit its data: {differences}. Rate, noise and epsilon follow from the stated numbers, so"
        " utility and compute are not those that the plan describes"
    )


_NOT_COVERED = "It does not cover losses, gradient norms, cohort sizes or attack scores"


class Covers(Code):
    """What the guarantee of a plan covers, depending on the rule that chooses the released checkpoint."""

    LAST_STEP = f"the model after the last step. {_NOT_COVERED}"
    PUBLIC_VALIDATION = f"the model of the step with the lowest loss on separate public users. {_NOT_COVERED}"
    PROTECTED_VALIDATION = f"the model of the step with the lowest loss on protected users. {_NOT_COVERED}"


def relation_of(label: Statement) -> str | None:
    """Return the name of a guarantee's neighbouring relation as plans write it; None without a guarantee."""
    relation = without_conditions(label).values.get("relation")
    return code_named(relation.code).name.lower() if isinstance(relation, Statement) else None


def without_conditions(label: Statement) -> Statement:
    """Return the guarantee without its conditions. Without a guarantee, return the reason why there is none."""
    promise = label.values.get("promise")
    return promise if isinstance(promise, Statement) else label
