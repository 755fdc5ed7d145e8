"""Sentences about the steps on records before training."""

from heldin.words.statement import Code


class DataStepText(Code):
    """The effect of a step on the records before training. Commas join several steps."""

    DEDUPLICATED_USERS = ("deduplication within users ({alike})", ", ")
    DEDUPLICATED_CORPUS = ("deduplication across users ({alike})", ", ")
    EQUAL = ("equal texts", ", ")
    SIMILAR = ("{ngram}-gram similarity from {threshold:g} on", ", ")
    CAPPED = ("cap of {records} records a user ({selection})", ", ")
    DEIDENTIFIED = ("de-identification ({entities})", ", ")
    CAPS = ("caps of {records} records a user and {per_entity} an entity ({entities})", ", ")
    MINIMUM = ("minimum number of records", ", ")
    MAXIMUM = ("maximum number of records", ", ")
    SET_ASIDES = ("set-asides", ", ")
    ENTITY_POOL = ("pool of audited entities", ", ")
    USER_POOL = ("audit pool of fixed size", ", ")
    PUBLIC_COINS = ("audited by public coins", ", ")
    EXACT_HALF = ("an exact half held in", ", ")
    MOST_USERS = ("sample of max_users users", ", ")
    SUBSTRING = ("canary substring inserted", ", ")
    CANARY_USERS = ("fixed number of users made canary users", ", ")
    UNSEEN_TOKENS = ("canary tokens unseen in the corpus", ", ")
    UNDECLARED_CANARIES = ("canary users of kind {kind}, which does not declare what it does to records", ", ")
    SELECTION = ("record selection: {selection}", ", ")
    OF_PRESET = ("{preset}: {step}", ", ")
    OF_PACKAGE = ("{kind} of {package} {version} ({code}), as it declares itself", ", ")
    UNDECLARED = ("{kind} of {package} {version} ({code}), which declares no locality", ", ")


class PresetText(Code):
    """The effect of a paper's preset on the rows of the published data set."""

    NO_BOTS = 'drop users with "bot" or "mod" in the name, and [deleted]'
    FEW_COMMENTS = "drop users with over 2,000 comments in the period, of any length"
    LONG_COMMENTS = "drop comments under 250 tokens"
    SIX_MONTHS = "keep comments of September 2015 to February 2016 (UTC)"
    FOUR_MONTHS = "keep comments of September to December 2015 (UTC)"
    OWN_MAILS = "keep the mails of the mailbox's most frequent sender whose address has the last name"
    FIRST_OF_EQUAL = "keep the first of an owner's equal texts"
    PER_ADDRESS = "make one record per distinct address in To, Cc and Bcc"
    NO_REPEATS = "drop mails in which a 20-gram occurs more than once"
    NO_FORWARDED = "drop forwarded mails"
    WITH_SUBMITTER = "drop papers without a submitter"
    TO_2021 = "keep papers through 2021, by the arXiv id"
    WITH_OWNER = "keep questions and answers with an owner"
