"""The section ``attack.sampling``: the requests of an attacker who cannot see log-probabilities of a given text."""

from typing import Annotated, Literal

from pydantic import Field, field_validator

from heldin.base.section import Few, Section, Seed
from heldin.models.answers import AnswerRequest

Share = Annotated[float, Field(gt=0, lt=1)]


class SamplingConfig(Section):
    """The requests of an attacker who sees only text, or only the likeliest next tokens.

    Every value is fixed beforehand.
    """

    cuts: tuple[Share, ...] = Field((0.25, 0.5, 0.75), min_length=1, max_length=16)
    """Places to cut a text, as shares of its words. The model continues the beginning, and heldin compares the
    continuation with the rest. A chat is cut before its first turns that count, at most as many turns as there are
    cuts."""
    samples: Few = 16
    """Number of continuations of each beginning, for level text. Another number is another audit."""
    tokens: Annotated[int, Field(ge=4, le=4096)] = 32
    """Number of tokens of a continuation; heldin compares it with at most as many words of the rest."""
    temperature: Annotated[float, Field(gt=0, le=2)] = 1.0
    """Temperature of sampling."""
    next_words: Annotated[int, Field(ge=1, le=256)] = 16
    """Number of places in each text, evenly spaced, at which level top-k asks for the next token. In a chat the places
    are in the turns that count; if the server cannot continue a turn, they are before these turns."""
    likeliest: Annotated[int, Field(ge=1, le=1000)] = 5
    """Number of next tokens whose log-probabilities level top-k sees at each place; many servers give at most 5 or
    20."""
    prompt: str | None = None
    """Prompt of a chat endpoint, before the beginning of a text that is not a chat; null: "Continue this text. Write
    only what comes next." and an empty line. Models that are loaded here, and endpoints without --chat, get only the
    beginning."""
    refusals: Literal["empty", "left out"] = "empty"
    """Score of a refusal. empty: as a continuation without a word. left out: only the other samples of the text count,
    or an empty one if the server refuses all."""
    refusal_beginnings: tuple[Annotated[str, Field(min_length=2)], ...] | None = None
    """Words with which a refusal begins, ignoring case, such as ["Es tut mir leid"]; null: those of English models.
    Texts that the server marks as refused, or that a filter holds back, are refusals too."""
    seed: Seed = 0
    """Public seed of the samples."""

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
