"""Sentences about what is scored, and how."""

from heldin.words.statement import Code


class ScoringRule(Code):
    """What part of a text every model scores."""

    WHOLE = (
        "scored_whole",
        "every model scores the same characters of a text, its first {characters:,}: {tokens}, in windows of as many"
        " tokens as the model's context, each read after a start token, the end-of-text token not scored; models with"
        " different tokenizers are compared per text, never per token{endpoint}",
    )


class ScoredTokens(Code):
    """Which tokens count."""

    ALL = "all_tokens", "all tokens"
    ANSWERS = (
        "tokens_of_answers",
        "of these the tokens of {part}, each after all that precedes it",
    )


class ScoredPart(Code):
    """The part of a text that training counted."""

    COMPLETION = "part_completion", "its completion"
    TURNS = "part_turns", "the turns of '{role}'"


class AtEndpoint(Code):
    """What differs for a model behind an endpoint."""

    SHORTER_WINDOWS = "shorter_windows", "; behind the endpoint windows are two tokens shorter than the context"
    TEXTS_AS_THEY_ARE = (
        "texts_as_they_are",
        "; behind the endpoint a newline stands in place of the start token (the letter A before a text that begins"
        " with a blank), and a text that is longer than the context is refused",
    )
    NO_FINGERPRINT = (
        "no_fingerprint",
        "its weights cannot be fingerprinted: whoever serves it may change them",
    )
