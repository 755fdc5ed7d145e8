"""Sentences about how membership was decided and is known, conditions of planted audits, and scored texts."""

from heldin.words.statement import Code


class SplitReason(Code):
    """The reason why a split does or does not support certified statements."""

    FAIR_COINS = (
        "an independent fair coin flip under a fresh secret key decided for each audited {what.singular} whether it"
        " is a member"
    )
    FAIR_COINS_OF_BLOCK = (
        "in repetition {block} of a sweep an independent fair coin flip under a fresh secret key decided for each"
        " audited {what.singular} whether it is a member"
    )
    EXACT_HALF = "an exact half of the {what.unit} are members: coin flips that depend on each other certify nothing"
    CANARY_COINS = (
        "an independent fair coin flip under a fresh secret key decided for each canary user whether it is a member"
    )
    COINS_OF_TRAININGS = (
        "each training has the worst-case user by an independent fair coin under a fresh secret key, and draws its"
        " cohorts and noise under a key of its own"
    )
    ASSERTED_BY_FILES = "two files assert who is a member, and nobody stated how the groups were formed"
    ASSERTED_NO_COINS = "two files assert who is a member, and coin flips did not form the groups"
    ASSERTED_COINS = "two files assert who is a member, and the coin flips are asserted too"
    DRAWN_BEFORE = "{coins}, drawn before {planted}"
    CONDITIONS_NOT_MET = "{flaws}. The coins themselves: {drawn}"


class ConditionStated(Code):
    """The conditions of a planted audit; the names match ``record.planted_facts.ConditionName``."""

    FAIR_COINS = "an independent fair coin under a fresh key decided each audited user and canary user"
    FIXED_BEFORE_COINS = (
        "attacks, references, thresholds, canary users and the audited users were fixed before the coins"
    )
    SCORED_WITHOUT_COINS = "scores were computed without the coins"
    SET_UNCHANGED = "the training set is as heldin wrote it"
    GIVEN_EVERY_ROW = "the model was given every planted row and nothing else"
    WEIGHTED_ALIKE = (
        "every row was weighted alike: no mask, weight, filter, clipping or order depended on a row's text or user"
    )
    NOTHING_ELSE = (
        "no other training of this model used text of these users, and nobody who trained it knew who is a member"
    )
    STARTED_UNSEEN = "the model before training and the reference model had not been trained on text of these users"
    ROW_IS_EXAMPLE = "each row was one training example: not split, not packed with others, not repeated"
    SERVED_ALONE = "the endpoint served this model and no other"
    EARLIER_LOOKS_UNUSED = "this training used nothing that an earlier look found"
    LOOKS_PAID = "no more looks were taken than were paid for before"


class ScoringRule(Code):
    """The part of a text that every model scores."""

    WHOLE = (
        "every model scores the same characters of a text, its first {characters:,}: {tokens}, in windows of as many"
        " tokens as the model's context, each read after a start token, the end-of-text token not scored; models with"
        " different tokenizers are compared per text, never per token{endpoint}"
    )
    CHATS = (
        "every model scores the same characters of a chat as its template writes it, its first {characters:,}:"
        " {tokens}, in windows of as many tokens as the model's context, each read after the chat's own first token,"
        " which has no score; models with different tokenizers are compared per text, never per token{endpoint}"
    )


class ScoredTokens(Code):
    """The tokens that count."""

    ALL = "all tokens"
    ANSWERS = "of these the tokens of {part}, each after all that precedes it"


class ScoredPart(Code):
    """The part of a text that counted in training."""

    COMPLETION = "its completion"
    PAIR = "its two answers: the margin of the chosen over the rejected one"
    TURNS = "the turns of '{role}'"
    SPANS = "the parts that column '{column}' names"


class AtEndpoint(Code):
    """The differences for a model behind an endpoint."""

    SHORTER_WINDOWS = "; behind the endpoint windows are two tokens shorter than the context"
    TEXTS_AS_THEY_ARE = (
        "; behind the endpoint a newline replaces the start token (the letter A before a text that begins with a"
        " blank), and a text that is longer than the context is refused"
    )
    CONTINUED = "; behind the endpoint no text is scored: the model continues the beginning of each"
    NO_FINGERPRINT = "its weights cannot be fingerprinted: the operator may change them"
