"""Scores: every attack's statistic of every text under target and reference, also with one setting changed.

The attack receives users and texts, but no membership. One table has all statistics, and all results follow from it.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from heldin.attacks.access import Access
from heldin.attacks.answering import Answering, cut_texts, reference_by_answers, score_by_answers
from heldin.attacks.config import AttackConfig
from heldin.attacks.kinds import get_attack, per_text
from heldin.attacks.protocol import ANSWER, REFERENCE_ALONE, Attack, Dial, TextStatistic
from heldin.attacks.sampling import SamplingConfig
from heldin.attacks.scoring import AttackTexts, score_attacks
from heldin.attacks.statistics import Loss
from heldin.base.errors import InputError
from heldin.base.files import cache_directory, text_sha256
from heldin.base.kinds import origins_in
from heldin.base.progress import Reporter
from heldin.corpus.chat.conversation import CHOSEN, REJECTED
from heldin.corpus.document import Counting
from heldin.models.answers import AnsweringModel, AnswerStore
from heldin.models.score_cache import ScoreCache, ScoredModel
from heldin.models.tokens import same_tokens
from heldin.record.facts import TurnFacts
from heldin.stages.measures.measure import Fingerprinted, Measure, loaded
from heldin.stages.measures.tables import SCORES, columns_of, statistics_of
from heldin.words.page_one import LeftOut
from heldin.words.split import ScoredPart, ScoredTokens, ScoringRule
from heldin.words.statement import Statement

if TYPE_CHECKING:
    from heldin.corpus.chat.opening import RowReading
    from heldin.corpus.store import Corpus

_UNNAMED = {"turns", "access", "sampling"}  # keys that decide texts, or what models are asked for besides them
PER_TEXT = "compared per text: another tokenizer"


@dataclass(frozen=True)
class Setting:
    """A setting of the attacker that differs from the setting of the primary score.

    Attributes:
        reference: function that loads or trains the reference model; None: the primary reference.
    """

    dial: Dial
    texts: AttackTexts
    reference: Callable[[Reporter], ScoredModel] | None = None


@dataclass(frozen=True)
class TextScores(Measure[list[TextStatistic]]):
    """The statistics of all attacks.

    Attributes:
        texts: the primary texts of each user.
        models: target and primary reference.
        settings: changed settings, one at a time, because all combinations would need far more scores.
        others: other values that determine the statistics; part of the hash of the table.
        further: function that computes more statistics from the statistics of the primary texts.
    """

    name = "scores"
    file = SCORES
    stage = "scoring"

    attack: AttackConfig
    texts: AttackTexts
    models: tuple[Fingerprinted, Fingerprinted]
    settings: Sequence[Setting] = ()
    others: Sequence[str] = ()
    further: Callable[[Sequence[TextStatistic], Reporter], list[TextStatistic]] | None = None

    def made_from(self) -> str:
        """Return a hash of models, texts and settings."""
        target, reference = (model.fingerprint for model in self.models)
        # Another version of a package's attack may give other values.
        code = [origin.sha256 for origin in origins_in(self.attack)]
        named = (self.attack.model_dump_json(exclude=_UNNAMED), *self.texts.named(), *self.others, *code)
        # What follows from answers follows from how they were asked for.
        asked = self.attack.access != (Access.LOG_PROBABILITIES,)
        answers = (self.attack.model_dump_json(include={"access", "sampling"}),) if asked else ()
        return text_sha256(target, reference, *named, *answers)

    def compute(self, reporter: Reporter) -> list[TextStatistic]:
        """Score all texts; token scores are cached.

        Raises:
            InputError: a model cannot be used, or the primary attack compares tokens and the models have different
                tokens.
        """
        target, reference = map(loaded, self.models)
        leading = score_leading(self.attack, self.texts, target, reference, reporter)
        others: list[TextStatistic] = []
        for setting in self.settings:
            model = reference if setting.reference is None else setting.reference(reporter)
            others += score_setting(self.attack, setting, target, model, reporter)
        if self.further is not None:
            others += self.further(leading, reporter)
        return leading + others

    def columns(self, values: list[TextStatistic]) -> Mapping[str, Any]:
        """Return one row per statistic."""
        return columns_of(values)

    def values(self, table: pa.Table) -> list[TextStatistic]:
        """Return the statistics from a table."""
        return statistics_of(table)


def answer_settings(texts: AttackTexts) -> list[Setting]:
    """Return settings that score each answer's likelihood ratio, besides the margin's; empty unless pairs are
    scored."""
    return [
        Setting(Dial(ANSWER, which), texts.of_answer(number))
        for number, which in enumerate((CHOSEN, REJECTED))
        if texts.are_pairs
    ]


def scoring_rule(
    max_characters: int, part: Statement | None = None, *, chats: bool = False, endpoint: Statement | None = None
) -> Statement:
    """Return the sentence about which part of a text is scored.

    Args:
        max_characters: maximum number of characters read from a text.
        part: name of the scored part, if it is not the whole text.
        chats: whether a chat template wrote the texts.
        endpoint: sentence about differences behind an endpoint.
    """
    tokens = ScoredTokens.ALL() if part is None else ScoredTokens.ANSWERS(part=part)
    rule = ScoringRule.CHATS if chats else ScoringRule.WHOLE
    return rule(characters=max_characters, tokens=tokens, endpoint=endpoint)


def scored_part(reading: "RowReading", stores: Iterable["Corpus"]) -> Statement | None:
    """Return which part of a text is scored; None if all of every text is scored.

    Args:
        reading: rule that turns rows into documents.
        stores: stores of the documents.
    """
    if not reading.has_turns:
        column = reading.columns.spans
        parted = column is not None and any(store.has_spans for store in stores)
        return ScoredPart.SPANS(column=column) if parted else None
    if reading.attack is Counting.ALL:
        return None
    if reading.format.has_pairs:
        return ScoredPart.PAIR()
    completion = reading.attack is Counting.COMPLETION
    return ScoredPart.COMPLETION() if completion else ScoredPart.TURNS(role=reading.attack)


def turn_facts(reading: "RowReading") -> TurnFacts | None:
    """Return the record's facts about rows with turns; None for plain texts."""
    if not reading.has_turns:
        return None
    template = reading.template
    return TurnFacts(
        format=str(reading.format),
        column=reading.columns.text,
        counting=str(reading.counting),
        loss=str(reading.loss),
        attack=str(reading.attack),
        mask_from=None if template is None else str(template.mask_from),
        template=None if template is None else template.fingerprint(),
    )


def left_out(names: Sequence[str], *, per_text: bool, served: bool = False, pairs: bool = False) -> list[Statement]:
    """Return the attacks that do not run, each with the reason.

    Args:
        per_text: whether the models' tokenizers differ.
        served: whether a model is behind an endpoint.
        pairs: whether preference pairs are scored.
    """
    every = [get_attack(name) for name in names]
    compared = [attack.name for attack in every if pairs and not _fits_pairs(attack)]
    attacks = [attack for attack in every if attack.name not in compared]
    unanswered = [attack.name for attack in attacks if served and attack.needs_vocabulary]
    apart = [attack.name for attack in attacks if per_text and attack.compares_tokens and attack.name not in unanswered]
    by_code = {LeftOut.OTHER_TOKENIZER: apart, LeftOut.NO_VOCABULARY: unanswered, LeftOut.PAIRS: compared}
    return [code(attacks=", ".join(names)) for code, names in by_code.items() if names]


def _fits_pairs(attack: Attack) -> bool:
    # Who sees only answers asks for the chosen one.
    return attack.of_pairs or attack.access is not Access.LOG_PROBABILITIES


def score_leading(
    attack: AttackConfig,
    texts: AttackTexts,
    target: ScoredModel,
    reference: ScoredModel,
    reporter: Reporter,
) -> list[TextStatistic]:
    """Return the statistics of the configured attacks and of the reference model alone.

    Raises:
        InputError: the primary attack compares tokens and the models have different tokens, or the primary attack is
            undefined for preference pairs.
    """
    attacks = [get_attack(name) for name in attack.names]
    if texts.are_pairs:
        if not _fits_pairs(get_attack(attack.primary)):
            raise InputError(
                f"attack.primary is {attack.primary}, but this attack does not support preference pairs: use"
                " likelihood-ratio"
            )
        attacks = [attack for attack in attacks if _fits_pairs(attack)]
    apart = Access.LOG_PROBABILITIES in attack.access and not same_tokens(target.tokenizer, reference.tokenizer)
    if apart:
        # Refused, not replaced: the primary attack was named before any score was seen.
        if get_attack(attack.primary).compares_tokens:
            raise InputError(
                f"the reference model '{reference.name}' has a tokenizer that differs from the target's, so their"
                " tokens cannot be compared. Choose the primary attack 'likelihood-ratio', or a reference with the same"
                " tokenizer, such as the model that the target was fine-tuned from"
            )
        # The others are left out; the record says ``per_text``.
        attacks = [attack for attack in attacks if not attack.compares_tokens]
    scored = statistics_under(attacks, texts, target, reference, attack.sampling, reporter)
    # Here the reference takes the target's place: a blind baseline, which never sees the audited model
    # (``audit.blind``).
    if isinstance(reference, AnsweringModel):
        with closing(AnswerStore(cache_directory() / "answers")) as store:
            answering = Answering(attack.sampling, store)
            return scored + reference_by_answers(get_attack(attack.primary), texts.of_answer(0), reference, answering)
    with closing(ScoreCache(cache_directory() / "scores")) as cache:
        return scored + score_attacks([Loss(REFERENCE_ALONE)], texts, reference, None, cache)


def score_setting(
    attack: AttackConfig, setting: Setting, target: ScoredModel, reference: ScoredModel, reporter: Reporter
) -> list[TextStatistic]:
    """Return the statistics of the primary attack with one setting changed.

    Raises:
        InputError: the changed reference is the target.
    """
    dial = setting.dial
    if reference.fingerprint == target.fingerprint:
        raise InputError(
            f"target and reference '{dial.setting}' are the same model, so every likelihood ratio would be zero:"
            " give another reference"
        )
    same = same_tokens(target.tokenizer, reference.tokenizer)
    # Another tokenizer cuts other tokens, so that means over them do not compare: the sum over the text does.
    primary = get_attack(attack.primary) if same else per_text(get_attack(attack.primary))
    turned = dial if same else replace(dial, setting=f"{dial.setting}, {PER_TEXT}")
    scored = statistics_under([primary], setting.texts, target, reference, attack.sampling, reporter)
    return [replace(s, attack=attack.primary, dial=turned) for s in scored]


def statistics_under(
    attacks: Sequence[Attack],
    texts: AttackTexts,
    target: ScoredModel,
    reference: ScoredModel,
    sampling: SamplingConfig,
    reporter: Reporter,
) -> list[TextStatistic]:
    """Return each attack's statistics from token scores or from answers, depending on the attack.

    Raises InputError if a model does not return the scores or answers, or every text of a user is too short.
    """
    statistics: list[TextStatistic] = []
    for level in Access:
        of_level = [attack for attack in attacks if attack.access is level]
        if of_level and level is Access.LOG_PROBABILITIES:
            # Target and reference.
            with (
                closing(ScoreCache(cache_directory() / "scores")) as cache,
                reporter.track("scoring", 2 * len(texts.read()), "texts") as advance,
            ):
                statistics += score_attacks(of_level, texts, target, reference, cache, advance=advance)
        elif of_level:
            # Of a pair what is preferred is continued.
            texts = texts.of_answer(0)
            cuts = sum(len(each) for _, _, each in cut_texts(texts, level, sampling, (target, reference)))
            with (
                closing(AnswerStore(cache_directory() / "answers")) as store,
                reporter.track(_ASKING[level], 2 * cuts, "cuts") as advance,
            ):
                answering = Answering(sampling, store)
                statistics += score_by_answers(of_level, texts, target, reference, answering, advance=advance)
    return statistics


_ASKING = {Access.TOP_K: "asking for next words", Access.TEXT: "continuing texts"}
