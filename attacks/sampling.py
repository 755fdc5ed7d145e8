"""The section ``attack.sampling``: the requests of an attacker who cannot see log-probabilities of a given text."""

from typing import Annotated, Literal

from pydantic import Field, field_validator

from heldin.base.section import Few, Section, Seed
from heldin.models.answers import AnswerRequest

Share = Annotated[float, Field(gt=0, lt=1)]


class SamplingConfig(Section):
    """Requests of an attacker who sees only text, or only the most probable next tokens. heldin fixes all values before
    the audit.
    """

    cuts: tuple[Share, ...] = Field((0.25, 0.5, 0.75), min_length=1, max_length=16)
    """Places at which heldin cuts a text, as fractions of its words. The model continues the beginning, and heldin
    compares the continuation with the rest of the text. heldin cuts a chat before its first scored turns instead, at
    most once for each entry of this list."""
    samples: Few = 16
    """At access level text: number of continuations to sample for each beginning. If you change this number, heldin
    starts a new audit."""
    tokens: Annotated[int, Field(ge=4, le=4096)] = 32
    """Number of tokens in a continuation. heldin compares the continuation with at most this many words from the
    rest of the text."""
    temperature: Annotated[float, Field(gt=0, le=2)] = 1.0
    """Sampling temperature. At 1, heldin samples from the model's own distribution."""
    next_words: Annotated[int, Field(ge=1, le=256)] = 16
    """Number of evenly spaced places in each text at which an attack with access top-k asks for the next token. In a
    chat, the places are inside the scored turns. If the server cannot continue a turn, the places are before the scored
    turns."""
    likeliest: Annotated[int, Field(ge=1, le=1000)] = 5
    """Number k of most probable next tokens that an attack with access top-k sees at each place. Many servers return at
    most 5 tokens, others at most 20.
    """
    prompt: str | None = None
    """Prompt for a chat endpoint. heldin puts this prompt before the beginning of a text that is not a chat. null:
    "Continue this text. Write only what comes next." and an empty line. Models on this machine, and endpoints without
    --chat, get only the beginning.
    """
    refusals: Literal["empty", "left out"] = "empty"
    """How to score a refusal. empty: as a continuation without words. left out: ignore the refusal and score only the
    other samples of the text; if the server refuses all samples, score one empty continuation."""
    refusal_beginnings: tuple[Annotated[str, Field(min_length=2)], ...] | None = None
    """Phrases that begin a refusal, in upper or lower case, such as ["Es tut mir leid"]. null: the usual words of
    English models. A text also counts as a refusal if the server marks it as refused or a filter blocks it."""
    seed: Seed = 0
    """Public seed for sampling."""

    @field_validator("cuts")
    @classmethod
    def _each_once(cls, cuts: tuple[float, ...]) -> tuple[float, ...]:
        if len(set(cuts)) < len(cuts):
            raise ValueError("cuts lists a position twice: keep one")
        return cuts

    def asked(self) -> AnswerRequest:
        """Return the request to the models."""
        return AnswerRequest(self.samples, self.tokens, self.temperature, self.likeliest, self.seed)

    def places(self) -> tuple[float, ...]:
        """Return the places at which level top-k cuts a text, as shares of its words."""
        return tuple((number + 1) / (self.next_words + 1) for number in range(self.next_words))
