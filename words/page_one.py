"""Sentences of page one, the same in PDF, web page and terminal: what was found, in people, and how sure it is."""

from heldin.words.statement import Code


class Label(Code):
    """What a line of page one is about."""

    PEOPLE = "label_people", "In people"
    EVIDENCE = "label_evidence", "Evidence"
    CANARIES = "label_canaries", "Canary users"
    LEARNED = "label_learned", "Learned anything"
    GUARANTEE = "label_guarantee", "Guarantee"
    RECOMMENDATION = "label_recommendation", "Recommendation"
    NOT_TESTED = "label_not_tested", "Not tested"


class Found(Code):
    """The answer in a sentence for lay readers, below the banner."""

    USERS = (
        "found_users",
        "With {texts} by a person, an attacker can {how_often} tell whether that person's data trained this model.",
    )
    ENTITIES = (
        "found_entities",
        "With {texts} that name a person, an attacker can {how_often} tell whether the training data names that"
        " person.",
    )
    BOTH = (
        "found_both",
        "With {texts} by or about a person, an attacker can {how_often} tell whether that person's data trained this"
        " model.",
    )
    CANARIES = (
        "found_canaries",
        "An attacker can {how_often} tell which planted canary users trained this model. Real users were not tested.",
    )
    BY_CLAIM_ALONE = (
        "found_by_claim_alone",
        "The scores contradict the stated guarantee, although no attack identifies the audited people by itself.",
    )
    OF_TRAININGS = (
        "found_of_trainings",
        "A model trained this way reveals whether one planted worst-case user was in its training data.",
    )
    NO_LEAK = (
        "found_no_leak",
        "No attack identified {subjects} better than guessing, and the audit was large enough to rule out a leak above"
        " its limits.",
    )
    REVERSED = (
        "found_reversed",
        "The scores point the wrong way: members look like non-members. The two groups may be swapped.",
    )
    TOO_FEW = "found_too_few", "No leak of {subjects} was found, but this audit was too small to rule one out."
    LEARNED_NOTHING = (
        "found_learned_nothing",
        "No leak of {subjects} was found, but nothing shows that the model learned anything, so the audit shows"
        " little.",
    )
    NOT_VALID = "found_not_valid", "This audit says nothing about the model: {flaw}."
    CANARIES_LEAK = (
        "found_canaries_leak",
        " Canary users, planted to test the training, were identified, so this training leaks.",
    )


class HowOften(Code):
    """How often an attacker is right."""

    USUALLY = "how_often_usually", "usually"
    OFTEN = "how_often_often", "often"
    SOMETIMES = "how_often_sometimes", "sometimes"


class Texts(Code):
    """The texts that an attacker has."""

    FRESH = "texts_fresh", "other texts"
    TRAINING = "texts_training", "training texts"
    ANY = "texts_any", "texts"


class AuditedPeople(Code):
    """The people whom an audit looks for."""

    USERS = "subjects_users", "real users"
    ENTITIES = "subjects_entities", "people who are named"
    BOTH = "subjects_both", "people who write or are named"
    CANARIES = "subjects_canaries", "planted canary users"
    TRAININGS = "subjects_trainings", "the planted user"


class PlainFlaw(Code):
    """Why a comparison is not valid, in a few words; named like ``ComparisonFlaw``."""

    GROUPS_DIFFER = "plain_groups_differ", "members and non-members differ even without it"
    SAME_SCORE = "plain_same_score", "an attack gives every user the same score"
    HELD_OUT_USERS_TRAINED_ON = "plain_held_out_users_trained_on", "non-members are in its training file"
    HELD_OUT_TEXTS_TRAINED_ON = "plain_held_out_texts_trained_on", "texts of non-members are in its training file"
    MODEL_CHANGED = "plain_model_changed", "the model changed during the audit"
    NO_EFFECT = "plain_no_effect", "the planted rows had no effect on it"
    ATTACK_MISSES = "plain_attack_misses", "the planned attack misses what its losses show"
    HELD_IN_USERS_ABSENT = "plain_held_in_users_absent", "members are missing from its training file"


class People(Code):
    """How many people the best attack flags; ``audited`` names whose words are used."""

    COUNTED = (
        "people_counted",
        "The best attack flags {rate:.0f} of every 100 members ({what.members}), 95 % confidence interval (CI)"
        " {lower:.0f} to {upper:.0f}. It wrongly flags {wrong:g} of every 100 non-members. Guessing would flag"
        " {wrong:g} and {wrong:g}.{allowed}",
    )
    ALLOWED = "people_allowed", " The guarantee allows at most {rate:.0f} members on average."
    OTHER_RATE = (
        "people_other_rate",
        "A rate of {percent:g} % needs more non-members.",
    )
    CANARIES = (
        "people_canaries",
        "{answer}. The attack flags {rate:.0f} of every 100 canary users that were trained on (95 % CI {lower:.0f} to"
        " {upper:.0f}), and wrongly flags {wrong:g} of every 100 others.",
    )
    CANARIES_NOT_COUNTED = (
        "people_canaries_not_counted",
        "{answer}: {users} were planted, {held_in} of them in the training data.",
    )
    TOO_FEW = (
        "people_too_few",
        "This audit cannot count people: {others} non-members are too few for a false-positive rate of {percent:g} %.",
    )
    NOT_VALID = "people_not_valid", "This audit cannot count people, because the comparison is not valid."
    OF_TRAININGS = (
        "people_of_trainings",
        "This audit counts trainings, not people: one planted user was in {with_user} of {runs} trainings.",
    )


class Evidence(Code):
    """How strong the evidence is, and why."""

    CERTIFIED = (
        "evidence_certified",
        "Certified: heldin chose the members {how}. At most {percent:g} % of audits raise a false alarm.",
    )
    ESTIMATE = (
        "evidence_estimate",
        "Estimate, not certified: heldin chose the members {how}, but the limits come from one training.",
    )
    BY_COINS = "evidence_by_coins", "by coin flips"
    BY_HALVES = "evidence_by_halves", "as a random half of the users"
    STATED = (
        "evidence_stated",
        "Indicative, not certified: you stated who was in the training data, and heldin could not check it.",
    )
    NOT_BY_COINS = (
        "evidence_not_by_coins",
        "Indicative, not certified: independent coin flips did not decide who was in the training data.",
    )
    NOT_MET = "evidence_not_met", "Indicative, not certified: this condition is not met: {condition}."
    NOT_DECLARED = (
        "evidence_not_declared",
        "Indicative, not certified: nobody declared {count} of the conditions that heldin cannot check.",
    )
    NOT_VALID = "evidence_not_valid", "None, because the comparison is not valid."
    DECLARED = (
        "evidence_declared",
        "heldin checked {checked} of {of_all} conditions. {declared_by} vouches for the other {count}, most"
        " importantly:"
        " {condition}.",
    )


class Learned(Code):
    """Whether the model learned, from people outside its training data."""

    YES = (
        "learned_yes",
        "Yes, so a leak could show: on people outside its training data, its loss is {gain:.3g} nats per {per} below"
        " the"
        " base model's (95 % CI {lower:.3g} to {upper:.3g}).",
    )
    MORE_THAN_REFERENCE = (
        "learned_more_than_reference",
        "Yes, if training started from the reference model: on non-members, the loss is {gain:.3g} nats per {per}"
        " lower (95 % CI {lower:.3g} to {upper:.3g}).",
    )
    NOTHING = (
        "learned_nothing",
        "No: it learned nothing measurable (gain {gain:.3g} nats per {per}, 95 % CI {lower:.3g} to"
        " {upper:.3g}), so {follows}.",
    )
    NOTHING_FOR_OTHERS = (
        "learned_nothing_for_others",
        "Not for others: it gained nothing measurable on people outside its training data ({gain:.3g} nats per {per},"
        " 95 % CI {lower:.3g} to {upper:.3g}).",
    )
    NOT_SHOWN = (
        "learned_not_shown",
        "Not shown: no gain over the reference model on non-members ({gain:.3g} nats per {per}, 95 % CI {lower:.3g} to"
        " {upper:.3g}).",
    )
    NOT_MEASURED = "learned_not_measured", "Not measured."


class Follows(Code):
    """What a model that learned nothing does not show."""

    OF_DEFENSE = "follows_of_defense", "low leakage does not show that the defense works"
    OF_TRAINING = "follows_of_training", "low leakage says nothing about a training that learns"


class Guaranteed(Code):
    """A guarantee of the plan, or a claim that was typed, and what this audit can say about it."""

    NONE = "guarantee_none", "None was claimed."
    NO_GUARANTEE = "guarantee_absent", "None: {reasons}."
    PLANNED = "guarantee_planned", "The accountant guarantees {claim}. "
    CLAIMED = "guarantee_claimed", "You claimed {claim}. "
    CONTRADICTED = "guarantee_contradicted", "This audit contradicts it{subjects} ({evidence})."
    BY_SUBJECTS = "guarantee_by_subjects", " by the scores of {subjects}"
    NOT_CONTRADICTED = (
        "guarantee_not_contradicted",
        "This audit does not contradict it; a perfect attack would have.{reach}",
    )
    OUT_OF_REACH = (
        "guarantee_out_of_reach",
        "This audit could only contradict claims below epsilon {reach:.2f}, so it says nothing about this one.",
    )
    NOT_VALID = "guarantee_not_valid", "The comparison is not valid, so this audit says nothing about it."
    NOT_TESTED = "guarantee_not_tested", "This audit did not test it."
    NO_REACH = "guarantee_no_reach", " This audit could contradict claims below epsilon {reach:.2f}."


class NotTested(Code):
    """What no test looked at."""

    ALL = "not_tested", "{kinds}."
    EXTRACTION = "not_tested_extraction", "extraction of texts", ", "
    WEIGHTS = "not_tested_weights", "attacks on weights", ", "
    ATTRIBUTES = "not_tested_attributes", "attribute inference", ", "
    RECONSTRUCTION = "not_tested_reconstruction", "reconstruction", ", "
    REAL_USERS = "not_tested_real_users", "real users", ", "


class Baselines(Code):
    """Whether anything distinguishes the groups without the audited model."""

    NONE_SEPARATES = (
        "baselines_none",
        "None of {count} baselines distinguishes the groups without the audited model.",
    )
    SEPARATE = "baselines_separate", "Without the audited model the groups differ: {names}."
    NOT_RUN = "baselines_not_run", "Not run."


class Limit(Code):
    """A limit of the organisation that asked for the audit."""

    AT_MOST = "limit_at_most", "{measure} at most {value:g}", ", "
    AT_LEAST = "limit_at_least", "{measure} at least {value:g}", ", "


class Advice(Code):
    """The recommendation, and its reason."""

    RELEASE_NEVER = "advice_contradicted", "Do not release the model: the guarantee is contradicted. {next}"
    COMPARISON = "advice_comparison", "Do not release the model on this evidence: the comparison is not valid. {next}"
    CONDITION = (
        "advice_condition",
        "Do not release the model on this evidence: a condition of this audit is not met, so its answer may be about"
        " another training. {next}",
    )
    ABOVE = (
        "advice_above",
        "Do not release the model yet: the estimated leak is larger than the guarantee allows. {next}",
    )
    BROKEN = "advice_broken", "Do not release the model: it exceeds your limit ({limits}). {next}"
    NOT_SHOWN = (
        "advice_not_shown",
        "Do not release the model yet: this audit does not show that it keeps your limit ({limits}). {next}",
    )
    RELEASE = "advice_release", "Release is within your limits ({limits}). {next}"
    RELEASE_LEAKS = (
        "advice_release_leaks",
        "Release is within your limits ({limits}), although the model leaks. {next}",
    )
    RELEASE_INCONCLUSIVE = (
        "advice_release_inconclusive",
        "Release is within your limits ({limits}), although this audit is inconclusive. {next}",
    )
    RELEASE_CANARIES = (
        "advice_release_canaries",
        "Release is within your limits ({limits}), although planted canary users leak. {next}",
    )
    LEAKS = "advice_leaks", "Give {subject} only to people entitled to know {secret}. {next}"
    CANARIES_LEAK = (
        "advice_canaries_leak",
        "Do not release the model on this evidence: training leaks canary users, and real users with unusual texts"
        " may leak too. {next}",
    )
    INCONCLUSIVE = "advice_inconclusive", "Do not release the model on this evidence. {next}"
    NO_LEAK = "advice_no_leak", "These attacks give no reason to hold the model back. {next}"


class Subject(Code):
    """What must not be given away."""

    MODEL = "subject_model", "this model"
    MODELS = "subject_models", "models trained this way"


class Secret(Code):
    """What an attacker would learn."""

    USERS = "secret_users", "whose texts trained it"
    ENTITIES = "secret_entities", "who is named in its training texts"
    BOTH = "secret_both", "whose texts trained it or who is named in them"


class Next(Code):
    """What to do next."""

    CHECK_TRAINER = (
        "next_check_trainer",
        "Check noise, clipping, sampling and keys, in this order; heldin audit-trainer tests each.",
    )
    SWAPPED = (
        "next_swapped",
        "Check which file holds members and which holds non-members, and which model is the reference. Then audit"
        " again.",
    )
    SWAPPED_COINS = "next_swapped_coins", "Audit again with more users or with more texts of each."
    TRAINING_FILE = (
        "next_training_file",
        "Give members who are in this training file and non-members who are not, then audit again.",
    )
    REFERENCE = (
        "next_reference",
        "Check that the reference model never saw these users and is not swapped with the audited one. Then"
        " audit again.",
    )
    COINS = (
        "next_coins",
        "Decide by coin flips before training who is a member (heldin run does), or take both groups from the same"
        " source and time. Then audit again.",
    )
    DECLARE = "next_declare", "Resolve the condition, or plant and train again."
    MORE_USERS = (
        "next_more_users",
        "Audit about {needed:,} {what.unit} ({users:,} were audited); heldin power plans this.",
    )
    MORE_USERS_OR_TEXTS = (
        "next_more_users_or_texts",
        "Audit more {what.unit} or give the attacker more texts of each; heldin power plans this.",
    )
    GIVE_BASE = (
        "next_give_base",
        "Give the model that training started from as the reference, or audit a model that learns from its data.",
    )
    LEARN_MORE = "next_learn_more", "Train a model that learns from its data, then audit that model."
    PLANT_AGAIN = "next_plant_again", "{first} This takes another planted training set and another training."
    NOT_MEASURED = "next_not_measured", "Measure it, or remove the limit."
    MITIGATE = (
        "next_mitigate",
        "Train with user-level differential privacy, or with fewer texts per person.",
    )
    SMALLER_EPSILON = "next_smaller_epsilon", "Train with a smaller epsilon, or release to fewer people."
    GET_GUARANTEE = "next_get_guarantee", "Train with a guarantee for users (defense: uls), then audit again."
    AGAIN = "next_again", "Audit again after further training on these texts, and when stronger attacks are known."
    WITHOUT_GUARANTEE = (
        "next_without_guarantee",
        "Only a guarantee for users limits attacks that were not tried. Audit again after further training.",
    )
    MORE_TRAININGS = (
        "next_more_trainings",
        "Run more trainings, or test the trainer itself with heldin audit-trainer.",
    )
    ANNEX = "next_annex", "Read in the annex what was not tested, then sign below."
