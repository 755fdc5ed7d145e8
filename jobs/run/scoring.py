"""The scoring stage: every text under target and reference, and again with one of the attacker's dials changed.

The attack is given users and texts, but no roles. All statistics go to one file, from which everything else follows.
"""

from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path

from heldin.attacks.config import AttackConfig
from heldin.attacks.joint import AnyAttack
from heldin.attacks.protocol import REFERENCE_ALONE, Dial, TextStatistic
from heldin.attacks.reference_divergence import reference_divergences
from heldin.attacks.scoring import AttackTexts, score_attacks
from heldin.attacks.statistics import Loss, get_attack, per_text
from heldin.base.errors import InputError
from heldin.base.files import cache_directory
from heldin.base.progress import Reporter
from heldin.jobs.config import RunConfig
from heldin.jobs.run.data import RunData
from heldin.jobs.run.references import reference_model
from heldin.jobs.run.score_file import SCORES, read_scores, write_scores
from heldin.jobs.run.shadows import shadow_statistics
from heldin.jobs.run.texts import Scoring, known_texts, texts_under_attack
from heldin.jobs.run.utility import utility_texts
from heldin.models.loading import LanguageModel, same_tokens
from heldin.models.score_cache import ScoreCache, ScoredModel
from heldin.words import Statement
from heldin.words.texts import ScoredTokens, ScoringRule

PER_TEXT = "compared per text: another tokenizer"


def scoring_rule(max_characters: int, part: Statement | None = None, *, endpoint: Statement | None = None) -> Statement:
    """Return what part of a text is scored; ``part`` names it where it is not the whole text."""
    tokens = ScoredTokens.ALL() if part is None else ScoredTokens.ANSWERS(part=part)
    return ScoringRule.WHOLE(characters=max_characters, tokens=tokens, endpoint=endpoint)


def score(its: Scoring, out: Path, reporter: Reporter) -> list[TextStatistic]:
    """Statistics of the scored users' texts, read from ``scores.parquet`` if they are there.

    Raises InputError for a model that cannot be used, or a primary attack that does not go with the reference's
    tokenizer.
    """
    kept = read_scores(out / SCORES, of=its.of, say=reporter.say)
    if kept is not None:
        return kept
    config, attack, texts = its.config, its.config.attack, its.texts
    target, reference = its.models.target, its.models.reference
    statistics = score_users_texts(attack, texts, target, reference, reporter)
    # No member of the family of attacks (``NO_ATTACKS``): it describes users' texts.
    others = _divergences(config, its.data, texts, reference)
    # One dial at a time, from the leading setting: all combinations would be that many more scores to pay for.
    for which in attack.documents[1:]:
        dial, known = Dial("documents", which), texts_under_attack(config, its.data, which)
        others += score_with_dial(attack, dial, known, target, reference, reporter)
    for spec in attack.references:
        model = reference_model(spec, config, its.data.corpus, its.models.base_name, reporter)
        others += score_with_dial(attack, Dial("reference", spec.label), texts, target, model, reporter)
    if attack.shadow_models:
        others += shadow_statistics(its, statistics, out, reporter)
    # One file, written once: with a part of the scores a resumed run would judge another family.
    write_scores(statistics + others, out / SCORES, of=its.of)
    return statistics + others


def score_users_texts(
    attack: AttackConfig, texts: AttackTexts, target: ScoredModel, reference: ScoredModel, reporter: Reporter
) -> list[TextStatistic]:
    """Statistics of the configured attacks and of the reference model alone; token scores are cached.

    Args:
        reference: the leading reference model.

    Raises:
        InputError: the primary attack compares tokens, but the models have different tokens.
    """
    attacks = [get_attack(name) for name in attack.names]
    if not same_tokens(target.tokenizer, reference.tokenizer):
        # Refused, not replaced: the primary attack was named before any score was seen.
        if get_attack(attack.primary).compares_tokens:
            raise InputError(
                f"the reference model '{reference.name}' has another tokenizer than the target, so their tokens cannot"
                " be compared: choose the primary attack 'likelihood-ratio'"
            )
        # The others are left out; the record says ``per_text``.
        attacks = [its for its in attacks if not its.compares_tokens]
    # In the second call the reference takes the target's place: a blind baseline, which never sees the audited model
    # (``audit.blind``).
    return _scored([*attacks], texts, target, reference, reporter) + _scored(
        [Loss(name=REFERENCE_ALONE)], texts, reference, None, None
    )


def score_references(
    config: RunConfig,
    data: RunData,
    leading: LanguageModel,
    base: LanguageModel,
    references: Sequence[LanguageModel],
    reporter: Reporter,
) -> None:
    """Fill the cache with all scores of a run but those of its target, so that runs on the same texts share them.

    Args:
        leading: the leading reference model.
        base: the model before fine-tuning, whose loss on test texts utility is measured against.
        references: further reference models.
    """
    plain = [text for _, _, text in texts_under_attack(config, data).flat()]
    asked = [(leading, plain), (base, [text for _, _, text in utility_texts(config, data).flat()])]
    asked += [(model, plain) for model in references]
    for which in config.attack.documents[1:]:
        asked.append((leading, [text for _, _, text in texts_under_attack(config, data, which).flat()]))
    with (
        closing(ScoreCache(cache_directory() / "scores")) as cache,
        reporter.track("scoring by reference models", sum(len(its) for _, its in asked), "texts") as advance,
    ):
        for model, texts in asked:
            cache.scores(model, texts, advance=advance)


def score_with_dial(
    attack: AttackConfig,
    dial: Dial,
    texts: AttackTexts,
    target: ScoredModel,
    reference: ScoredModel,
    reporter: Reporter,
) -> list[TextStatistic]:
    """Statistics of the primary attack with one dial set otherwise.

    Args:
        attack: which attack is the primary one.
        dial: the dial and its setting.
        reference: the reference model.
    """
    same = same_tokens(target.tokenizer, reference.tokenizer)
    # Another tokenizer cuts other tokens, so that means over them do not compare: the sum over the text does.
    primary = get_attack(attack.primary) if same else per_text(get_attack(attack.primary))
    turned = dial if same else replace(dial, setting=f"{dial.setting}, {PER_TEXT}")
    scored = _scored([primary], texts, target, reference, reporter)
    return [replace(s, attack=attack.primary, dial=turned) for s in scored]


def _divergences(config: RunConfig, data: RunData, texts: AttackTexts, reference: LanguageModel) -> list[TextStatistic]:
    """How far real users' texts are from the reference model (``attacks.reference_divergence``)."""
    # training texts of held-out users too: the choice must not depend on the coin
    own = known_texts(config, data, data.real(texts.texts), "training")
    with closing(ScoreCache(cache_directory() / "scores")) as cache:
        return reference_divergences(texts, own, reference, cache)


def _scored(
    attacks: Sequence[AnyAttack],
    texts: AttackTexts,
    target: ScoredModel,
    reference: ScoredModel | None,
    reporter: Reporter | None,
) -> list[TextStatistic]:
    with closing(ScoreCache(cache_directory() / "scores")) as cache:
        if reporter is None:
            return score_attacks(attacks, texts, target, reference, cache)
        # Target and reference.
        with reporter.track("scoring", 2 * len(texts.flat()), "texts") as advance:
            return score_attacks(attacks, texts, target, reference, cache, advance=advance)
