"""The section ``attack.sampling``: what an attacker asks who sees no log-probabilities of given texts."""

from typing import Annotated, Literal

from pydantic import Field, field_validator

from heldin.base.section import Few, Section, Seed
from heldin.models.answers import AnswerRequest

Share = Annotated[float, Field(gt=0, lt=1)]


class SamplingConfig(Section):
    """What an attacker asks who sees only text, or only the likeliest next tokens. All of it is fixed beforehand."""

    cuts: tuple[Share, ...] = Field((0.25, 0.5, 0.75), min_length=1, max_length=16)
    """Where a text is cut into the beginning that the model continues and what truly follows, as shares of its words. A
    chat is cut before its first turns that count, at most as many as there are cuts."""
    samples: Few = 16
    """Continuations of each beginning, for level text. Another number is another audit."""
    tokens: Annotated[int, Field(ge=4, le=4096)] = 32
    """Tokens of a continuation; it is compared with as many words that truly follow, at most."""
    temperature: Annotated[float, Field(gt=0, le=2)] = 1.0
    """Temperature of the sampling."""
    next_words: Annotated[int, Field(ge=1, le=256)] = 16
    """Places in each text, evenly spaced, at which level top-k asks for the next token. Of a chat they are in the turns
    that count; where a server goes on with no answer that is begun, before these turns."""
    likeliest: Annotated[int, Field(ge=1, le=1000)] = 5
    """Next tokens whose log-probabilities level top-k sees at each place; many servers give 5 or 20 at most."""
    prompt: str | None = None
    """The prompt of a chat endpoint, before the beginning of a text that is not a chat; null: "Continue this text.
    Write only what comes next." and an empty line. Models that are loaded here, and endpoints without --chat, are given
    the beginning alone."""
    refusals: Literal["empty", "left out"] = "empty"
    """What a refusal scores. empty: as a continuation without a word. left out: a text's other samples count, or an
    empty one if the server refuses all."""
    refusal_beginnings: tuple[Annotated[str, Field(min_length=2)], ...] | None = None
    """How a refusal begins, in any case of letters, such as ["Es tut mir leid"]; null: as those of English models. What
    a server marks as refused, or a filter holds back, is a refusal too."""
    seed: Seed = 0
    """Public seed of the samples."""

    @field_validator("cuts")
    @classmethod
    def _each_once(cls, cuts: tuple[float, ...]) -> tuple[float, ...]:
        if len(set(cuts)) < len(cuts):
            raise ValueError("cuts lists a position twice: keep one")
        return cuts

    def asked(self) -> AnswerRequest:
        """Return what a model is asked."""
        return AnswerRequest(self.samples, self.tokens, self.temperature, self.likeliest, self.seed)

    def places(self) -> tuple[float, ...]:
        """Return where level top-k cuts, as shares of a text's words."""
        return tuple((number + 1) / (self.next_words + 1) for number in range(self.next_words))
