"""Sentences of page one, which PDF, web page and terminal share: the finding, numbers of people, and certainty."""

from heldin.words.statement import Code


class Label(Code):
    """The labels of the lines on page one."""

    PEOPLE = "In people"
    ATTACK = "Attack"
    ATTACKER = "Attacker"
    EVIDENCE = "Evidence"
    CANARIES = "Canary users"
    LEARNED = "Learned anything"
    GUARANTEE = "Guarantee"
    RECOMMENDATION = "Recommendation"
    LEFT_OUT = "Left out"
    NOT_TESTED = "Not tested"
    CHANGE = "Would change it"


class Handling(Code):
    """The people who may read a report; printed at the foot of each page."""

    TRAINED = (
        "Internal: contains exact statistics about private users. Do not publish. Use heldin export for the files that"
        " may be released."
    )
    AUDITED = "Internal: contains exact statistics about private users. Do not publish."


class LeftOut(Code):
    """Attacks in the audit's plan that did not run."""

    OTHER_TOKENIZER = (
        "Attacks that compare tokens ({attacks}), because the reference model has another tokenizer than the target. A"
        " better reference is the model that the target was fine-tuned from, with the same tokenizer."
    )
    NO_VOCABULARY = (
        "Attacks that need the whole vocabulary's probabilities ({attacks}), because no endpoint gives them. An audit"
        " of the weights runs these attacks too."
    )
    PAIRS = (
        "Attacks without a meaning for preference pairs ({attacks}). The margin of the chosen over the rejected answer"
        " is scored."
    )


class Found(Code):
    """The answer as a sentence for lay readers, below the banner."""

    USERS = "With {texts} by a person, an attacker can {how_often} tell whether that person's data trained this model."
    ENTITIES = (
        "With {texts} that name a person, an attacker can {how_often} tell whether the training data names that person."
    )
    BOTH = (
        "With {texts} by or about a person, an attacker can {how_often} tell whether that person's data trained this"
        " model."
    )
    CANARIES = (
        "An attacker can {how_often} tell which planted canary users trained this model. Real users were not tested."
    )
    BY_CLAIM_ALONE = (
        "The scores contradict the stated guarantee, although no attack identifies the audited people by itself."
    )
    OF_TRAININGS = "A model trained this way reveals whether one planted worst-case user was in its training data."
    NO_LEAK = (
        "No attack identified {subjects} better than chance. The audit rules out a leak with an AUROC above"
        " {auroc:.2f}, or with more than {rate:.0f} of 100 members flagged next to {fpr:g} of 100 non-members."
    )
    NO_LEAK_TO = (
        "No attack by someone who sees {sees} identified {subjects} better than chance. For this attacker, the audit"
        " rules out a leak with an AUROC above {auroc:.2f}, or with more than {rate:.0f} of 100 members flagged next to"
        " {fpr:g} of 100 non-members."
    )
    WEAKER = (
        "No leak of {subjects} to an attacker who sees {sees} was found, but those who get the model see more of it and"
        " may find one."
    )
    REVERSED = "The scores point the wrong way: members look like non-members. The two groups may be swapped."
    REVERSED_BY_COINS = (
        "The scores point the wrong way: members look like non-members, although heldin drew both groups by coin flips."
    )
    TOO_FEW = "No leak of {subjects} was found, but this audit was too small to rule one out."
    TOO_FEW_TO = (
        "No leak of {subjects} to an attacker who sees {sees} was found, but this audit was too small to rule one out."
    )
    STRONGER_LEAKS = "An attacker who sees {sees} finds a leak."
    LEARNED_NOTHING = (
        "No leak of {subjects} was found, but nothing shows that the model learned anything, so the audit shows little."
    )
    LEARNED_NOTHING_TOO_FEW = (
        "No leak of {subjects} was found, but nothing shows that the model learned anything, and the audit was too"
        " small."
    )
    NOT_VALID = "This audit says nothing about the model: {flaw}."
    CANARIES_LEAK = "Training leaks planted canary users."


class HowOften(Code):
    """How often an attacker is right about a person."""

    USUALLY = "usually"
    OFTEN = "often"
    SOMETIMES = "sometimes"


class Texts(Code):
    """The texts that the attacker has."""

    FRESH = "other texts"
    TRAINING = "training texts"
    ANY = "texts"


class AuditedPeople(Code):
    """The people whose membership an audit tests."""

    USERS = "real users"
    ENTITIES = "people who are named"
    BOTH = "people who write or are named"
    CANARIES = "planted canary users"
    TRAININGS = "the planted user"


class PlainFlaw(Code):
    """Short reasons why a comparison is invalid; the names match ``ComparisonFlaw``."""

    GROUPS_DIFFER = "members and non-members differ even without it"
    SAME_SCORE = "an attack gives every user the same score"
    HELD_OUT_USERS_TRAINED_ON = "non-members are in its training file"
    HELD_OUT_TEXTS_TRAINED_ON = "texts of non-members are in its training file"
    MODEL_CHANGED = "the model changed during the audit"
    ANSWERS_CHANGED = "the model changed during the audit"
    NO_EFFECT = "the planted rows had no effect on it"
    ATTACK_MISSES = "the planned attack misses what its losses show"
    HELD_IN_USERS_ABSENT = "members are missing from its training file"


class Attacking(Code):
    """How the attack on page one was chosen; the names match ``audit.flagged.AttackChoice``."""

    PRIMARY = "The primary attack (chosen in advance), {attack},"
    DECIDING = "The deciding attack (strongest of {among}), {attack},"
    BEST = "The best attack, {attack},"


class People(Code):
    """Numbers of people that an attack flags; ``audited`` selects the words for the audited people."""

    COUNTED = (
        "{which} flags {rate:.0f} of every 100 members ({what.members}; 95 % confidence interval (CI)"
        " {lower:.0f} to {upper:.0f}) and wrongly {wrong:.0f} of every 100 non-members (CI {wrong_lower:.0f} to"
        " {wrong_upper:.0f}). Guessing flags both alike.{allowed}"
    )
    COUNTED_FEW = (
        "{which} flags {count} of {of} members ({what.members}; 95 % confidence interval (CI)"
        " {lower:.0f} to {upper:.0f} of every 100) and wrongly {wrong_count} of {wrong_of} non-members (CI"
        " {wrong_lower:.0f} to {wrong_upper:.0f}). Guessing flags both alike.{allowed}"
    )
    ALLOWED = " The guarantee allows at most {rate:.0f} on average."
    BEST = (
        "The best of {among} flags {rate:.0f} of 100 members and {wrong:.0f} of 100 non-members, which chance can"
        " explain."
    )
    BEST_FEW = (
        "The best of {among} flags {count} of {of} members and {wrong_count} of {wrong_of} non-members, which chance"
        " can explain."
    )
    CANARIES = (
        "{answer}. {attack} flags {count} of {of} in training (CI {lower:.0f} to {upper:.0f} of 100) and wrongly"
        " {wrong_count} of {wrong_of} others."
    )
    CANARIES_NOT_COUNTED = "{answer}: {users} were planted, {held_in} of them in the training data."
    TOO_FEW = "This audit cannot count people: {users} are too few to count any group of ten."
    NOT_VALID = "This audit cannot count people, because the comparison is not valid."
    OF_TRAININGS = (
        "This audit counts training runs, not people: one planted user was in {with_user} of {runs} training runs."
    )


class AttackNeeds(Code):
    """The inputs that the attack on page one needs, and whether people who get the model will have them."""

    NEEDS = "It needs {asked}, and about {texts} a person.{held}"
    OF_TRAININGS = "It needs the model of a training run, the base model, and every text of the planted user.{held}"
    MORE_THAN_RELEASED = " Released as {released}: this attack needs more than your users will have."
    AS_RELEASED = " Released as {released}: enough for this attack."


class WhichAttacker(Code):
    """The attackers that the audit tested, and the attackers that it did not test."""

    DECIDES = "The answer is about an attacker who sees {sees}."
    DECIDES_TOO_WEAK = "The answer is about an attacker who sees {sees}, less than those who get the model."
    OTHER = "For one who sees {sees}: {answer} (largest AUROC {auroc:.2f})."
    NOT_TESTED = "One who sees {sees} could find more and was not tested."
    REFUSED = "The endpoint refused {count:,} of {samples:,} continuations."
    SAME = "All continuations of a text were equal at {count:,} of {cuts:,} cuts: it seems to ignore the temperature."


class AskedOfModels(Code):
    """What an attack asks, and of which models."""

    OF_TEXT = "text probabilities under {models}"
    OF_VOCABULARY = "the probabilities of all tokens at each position of a text under {models}"
    OF_NEXT_TOKENS = "the likeliest next tokens of {models}"
    OF_SAMPLES = "text written by {models}"
    THIS_MODEL = "this model"
    AND_REFERENCE = "this model and a reference"


class Released(Code):
    """What will be released; the names match the words of ``release.access``."""

    WEIGHTS = "the weights"
    LOG_PROBABILITIES = "log-probabilities of texts"
    TOP_K = "likeliest next tokens"
    TEXT = "generated text"


class Evidence(Code):
    """The strength of the evidence, and the reasons for it."""

    CERTIFIED = "Certified: heldin chose the members {how}. At most {percent:g} % of audits report a leak falsely."
    ESTIMATE = "Estimate, not certified: limits come from one training."
    OF_TRAININGS = (
        "Estimate, not certified: coin flips of heldin decided which of {trainings} training runs include the planted"
        " user, and an upper limit holds on average over such training runs."
    )
    BY_COINS = "by coin flips"
    BY_HALVES = "as a random half of the users"
    STATED = "Indicative, not certified: you stated who was in the training data, and heldin could not check it."
    PARTLY_CHECKED = "Indicative, not certified: heldin could check only a part of what you stated."
    ALL_IN_FILE = "All {texts:,} texts of members are in the training file that you named, word for word."
    SOME_IN_FILE = "{count:,} of {texts:,} texts of members are in the training file that you named, word for word."
    MEMBERS_IN_FILE = "{count:,} of {members:,} members are in the training file that you named, with other texts."
    OTHERS_NOT_IN_FILE = "The file names none of the {others:,} non-members and has none of their scored texts."
    OTHERS_IN_FILE = "The file names {count:,} of {others:,} non-members and has {texts:,} of their scored texts."
    FILE_STATED = "That the model was trained on this file is your statement, which heldin cannot check."
    NOT_BY_COINS = "Indicative, not certified: independent coin flips did not decide who was in the training data."
    NOT_MET = "Indicative, not certified: this condition is not met: {condition}."
    NOT_DECLARED = "Indicative, not certified: nobody declared {count} of the conditions that heldin cannot check."
    NOT_VALID = "None, because the comparison is not valid."
    DECLARED = "{declared_by} vouches for {count} of {of_all} conditions, most importantly: {condition}."
    UNDECIDED = "The control is undecided: nothing shows that planted rows were learned like real ones."
    UNUSABLE = "The control could not be used: nothing shows that planted rows were learned."
    NOT_CONTROLLED = "The control was not measured: nothing shows that planted rows were learned."
    DECLARED_ONE = "{declared_by} vouches for {count} of {of_all} conditions: {condition}."


class Learned(Code):
    """The consequence if a model shows no learning on people outside its training data; the table has the numbers."""

    NOTHING = "No: nothing measurable, so {follows}."
    NOTHING_FOR_OTHERS = "Not for others: it gained nothing measurable on people outside its training data."
    NOT_SHOWN = "Not shown: no gain over the reference on non-members."
    ROWS_NOT_SHOWN = "Not shown: real rows in training gained no more than other rows."
    NOT_MEASURED = "Not measured."


class Follows(Code):
    """The limits of an audit of a model that learned nothing."""

    OF_DEFENSE = "low leakage does not show that the defense works"
    OF_TRAINING = "low leakage says nothing about a training that learns"


class Guaranteed(Code):
    """A guarantee of the plan or a claim of the user, and what this audit can conclude about it."""

    NONE = "None was claimed."
    NO_GUARANTEE = "None: {reasons}."
    PLANNED = "The training plan guarantees {claim}. "
    CLAIMED = "You claimed {claim}. "
    CONTRADICTED = "This audit contradicts it ({evidence}) by a test of all scores{subjects} together."
    BY_SUBJECTS = " of {subjects}"
    NOT_CONTRADICTED = "This audit does not contradict it; a perfect attack would have."
    WITHIN_REACH = "This audit could contradict claims below epsilon {reach:.2f}, and does not contradict this one."
    OUT_OF_REACH = "This audit cannot test it: only claims below epsilon {reach:.2f}."
    NOT_VALID = "The comparison is not valid, so this audit says nothing about it."
    NOT_TESTED = "This audit did not test it."
    DECLARED = " The epsilon is as declared by {package}: {audit}."


class NotTested(Code):
    """The facts that no test checked."""

    ALL = "{kinds}."
    EXTRACTION = ("text extraction", ", ")
    WEIGHTS = ("attacks on weights", ", ")
    ATTRIBUTES = ("attribute inference", ", ")
    RECONSTRUCTION = ("reconstruction", ", ")
    REAL_USERS = ("real users", ", ")


class Limit(Code):
    """A limit from a valid comparison, from the answer, or from the organisation that requested the audit."""

    AT_MOST = ("{measure} at most {value:g}", ", ")
    AT_LEAST = ("{measure} at least {value:g}", ", ")
    BASELINES = "valid comparison: no baseline distinguishes the groups without the audited model"
    LEARNED = "learned anything: gain on non-members over the base model above 0 nats per {per}"
    LEARNED_MORE = "learned anything: gain on non-members over the reference above 0 nats per {per}"
    LEARNED_ROWS = "learned anything: real rows in training gained more than others (AUROC above 0.5)"
    NO_LEAK_AUROC = "no leak found: AUROC of every attack below {value:g}"
    NO_LEAK_RATE = (
        "no leak found: every attack flags fewer than {value:g} of 100 members if it flags {fpr:g} of 100 non-members"
    )
    YOURS = "your limit: {limit}"
    NOT_SET = "your limits (decision.require)"


class Measured(Code):
    """The measured value of a limit, if it is not a number."""

    NONE_SEPARATES = "0 of {of}"
    SEPARATING = "{count} of {of}: {names}"


class LimitOutcome(Code):
    """Whether a limit is met; the names match ``record.requirements.LimitStatus``."""

    MET = "met"
    NOT_SHOWN = "not shown to be met"
    BROKEN = "broken"
    NOT_MEASURED = "not measured"
    NOT_SET = "not set"


class Advice(Code):
    """The recommendation, and the reason for it."""

    RELEASE_NEVER = "Do not release the model: the guarantee is contradicted. {next}"
    BROKEN = "Do not release the model: it exceeds your limit ({limits}). {next}"
    ABOVE = "Do not release the model: the estimated leak is larger than the guarantee allows. {next}"
    LEAKS = "Do not release {subject}: an attacker can learn {secret}. {next}"
    UNEVEN = "Do not release the model on this evidence: one group lost more rows than the other. {next}"
    COMPARISON = "Do not release the model on this evidence: the comparison is not valid. {next}"
    CONDITION = (
        "Do not release the model on this evidence: a condition of this audit is not met, so its answer may be about"
        " another training. {next}"
    )
    NOT_SHOWN = "Do not release the model on this evidence: your limit ({limits}) is not shown to be met. {next}"
    CANARIES_LEAK = "Do not release the model on this evidence: unusual real users may leak too. {next}"
    INCONCLUSIVE = "Do not release the model on this evidence. {next}"
    RELEASE = "Release is within your limits ({limits}). {next}"
    RELEASE_LEAKS = "Release is within your limits ({limits}), although the model leaks. {next}"
    RELEASE_INCONCLUSIVE = "Release is within your limits ({limits}), although this audit is inconclusive. {next}"
    RELEASE_CANARIES = "Release is within your limits ({limits}), although planted canary users leak. {next}"
    NO_LEAK = "These attacks give no reason to hold the model back.{next}"


class Subject(Code):
    """The object that must not be released."""

    MODEL = "this model"
    MODELS = "models trained this way"


class Secret(Code):
    """What an attacker would learn about a person."""

    USERS = "whose texts trained it"
    ENTITIES = "who is named in its training texts"
    BOTH = "whose texts trained it or who is named in them"


class Next(Code):
    """The next steps."""

    ROWS = "Find out why, and audit files that were made in the same way."
    CHECK_TRAINER = "Check noise, clipping, sampling and keys, in this order; heldin white-box tests each."
    SWAPPED = (
        "Check which file holds members and which holds non-members, and which model is the reference. Then audit"
        " again.",
        " ",
    )
    SWAPPED_COINS = ("Audit again with more users or with more texts of each.", " ")
    TRAINING_FILE = "Give members who are in this training file and non-members who are not, then audit again."
    REFERENCE = (
        "Check that the reference model never saw these users and is not swapped with the audited one. Then"
        " audit again."
    )
    COINS = (
        "Decide by coin flips before training who is a member (heldin run does), or take both groups from the same"
        " source and time. Then audit again."
    )
    DECLARE = "Resolve the condition, or plant and train again."
    MORE_USERS = "Audit about {needed:,} {what.unit} ({users:,} were audited). This number assumes typical attacks."
    MORE_USERS_OR_TEXTS = "Audit more {what.unit} or give the attacker more texts of each; heldin power plans this."
    STRONGER = ("Audit with attackers who see as much as those who get the model: attack.access {access}.", " ")
    GIVE_BASE = (
        "Give the model that training started from as the reference, or audit a model that learns from its data.",
        " ",
    )
    LEARN_MORE = ("Train a model that learns from its data, then audit that model.", " ")
    PLANT_AGAIN = "{first} Plant and train again for this."
    NOT_MEASURED = "Measure it, or remove the limit."
    MITIGATE = "Train with user-level differential privacy or fewer texts per person."
    SMALLER_EPSILON = "Train with a smaller epsilon, or release to fewer people."
    GET_GUARANTEE = "Train with a guarantee for users (defense: uls), then audit again."
    WITHOUT_GUARANTEE = " Only a guarantee for users limits other attacks."
    MORE_TRAININGS = "Add training runs, or test the trainer itself with heldin white-box."
    ANNEX = "Read in the annex what was not tested, then decide."


class Change(Code):
    """The facts that would change the answer."""

    LEAKS = "Only retraining."
    NO_LEAK = "A stronger attack, more texts, or further training."
    INCONCLUSIVE = "More users, more texts, a stronger attack."
    NOT_VALID = "A valid comparison."
