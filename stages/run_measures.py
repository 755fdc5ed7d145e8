"""The measures of a run or a planted audit, made from config, users, texts and models."""

import functools
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from heldin.attacks.protocol import Dial, TextStatistic
from heldin.attacks.reference_divergence import reference_divergences
from heldin.attacks.scoring import AttackTexts
from heldin.base.files import cache_directory
from heldin.base.progress import Reporter
from heldin.defenses.mechanism import Mechanism
from heldin.models.loading import LanguageModel
from heldin.models.model_names import fingerprint_folder
from heldin.models.preference_name import BETA, PreferenceName
from heldin.models.score_cache import ScoreCache, ScoredModel
from heldin.record.facts import ModelFacts
from heldin.stages.measures.asked import measures_asked
from heldin.stages.measures.losses import Losses
from heldin.stages.measures.measure import Measure
from heldin.stages.measures.precision import PrecisionShift
from heldin.stages.measures.scores import Setting, TextScores, answer_settings
from heldin.stages.run_config import RunConfig
from heldin.stages.sides.data import RunData, known_texts, subjects_of_run, test_texts, texts_under_attack
from heldin.stages.sides.drawn_marks import with_marks
from heldin.stages.train.models import reference_model
from heldin.stages.train.shadows import Shadows


@dataclass(frozen=True)
class RunModels:
    """The models of a run, with functions that load further models.

    Attributes:
        target: the audited model, possibly behind an endpoint; in a verification, the record's facts about it.
        base: the model before fine-tuning; if somebody else trained the model, the reference.
        in_full: function that loads target and reference in float32.
        made_canaries: function that loads, in float32, the model that made the canary users.
    """

    target: ScoredModel | ModelFacts
    reference: LanguageModel
    base: LanguageModel
    base_name: str
    in_full: Callable[[], tuple[ScoredModel, ScoredModel]]
    made_canaries: Callable[[], LanguageModel]


def scores_of_run(
    config: RunConfig, data: RunData, models: RunModels, mechanism: Mechanism | None, out: Path
) -> TextScores:
    """Return the measure that scores every attack.

    Args:
        mechanism: mechanism of the run, which shadow models also use; None if heldin trained nothing.
        out: the run folder, where scores of shadow models are stored.
    """
    attack, texts = config.attack, texts_under_attack(config, data)
    settings = [
        Setting(Dial("documents", which), texts_under_attack(config, data, which)) for which in attack.documents[1:]
    ]
    settings += answer_settings(texts)
    for spec in attack.references:
        load = functools.partial(reference_model, spec, config, data.corpus, models.base_name)
        settings.append(Setting(Dial("reference", spec.label), texts, load))
    named = [Path(spec.model_name) for spec in attack.references if spec.model_name]
    # A name is in the config already; what is in a folder may change under the same name.
    others = [fingerprint_folder(folder) for folder in named if folder.is_dir()]
    scores = TextScores(attack, texts, (models.target, models.reference), settings, others)

    def further(leading: Sequence[TextStatistic], reporter: Reporter) -> list[TextStatistic]:
        # No member of the family of attacks (``NO_ATTACKS``): it describes users' texts.
        statistics = _divergences(config, data, texts, models.reference)
        if attack.shadow_models:
            assert mechanism is not None  # a shadow model is trained as the run's own
            shadows = Shadows(config, data, models.base_name, models.reference, mechanism, texts)
            statistics += shadows.statistics(leading, out, reporter, made_from=scores.made_from())
        return statistics

    return replace(scores, further=further)


def measures_of_run(config: RunConfig, data: RunData, models: RunModels) -> list[Measure[Any]]:
    """Return the measures other than the scores, in the order in which they are computed."""
    both = (models.target, models.reference)
    measures: list[Measure[Any]] = [*precision_of_run(config, data, models)]
    # Not behind an endpoint: it would learn whose test texts are asked for, which are those held out.
    if isinstance(models.target, LanguageModel):
        measures.append(Losses(test_texts(config, data), models.target, models.base, _beta_of(config)))
    subjects = with_marks(subjects_of_run(config, data), config, data, models.made_canaries)
    return [*measures, *measures_asked(config.measures, subjects, both)]


def _beta_of(config: RunConfig) -> float:
    """Return the beta for the loss of preference pairs. For orpo, return the default, because orpo's beta weighs
    another term."""
    recipe = config.finetune
    return BETA if recipe.beta is None or recipe.objective is PreferenceName.ORPO else recipe.beta


def precision_of_run(config: RunConfig, data: RunData, models: RunModels) -> list[PrecisionShift]:
    """Return the measure for the effect of lower precision; empty for float32."""
    if config.attack.precision == "fp32":
        return []
    texts = texts_under_attack(config, data)
    return [PrecisionShift(config.attack, texts, (models.target, models.reference), models.in_full, config.seed)]


def score_references(
    config: RunConfig,
    data: RunData,
    leading: LanguageModel,
    base: LanguageModel,
    references: Sequence[LanguageModel],
    reporter: Reporter,
) -> None:
    """Write all scores of a run, except the target's, to the cache, which later runs on the same texts use.

    Args:
        base: the model before fine-tuning; utility is the difference between its test loss and the target's test loss.
        references: further reference models.
    """
    plain = texts_under_attack(config, data).read()
    texts_of_model = [(leading, plain), (base, test_texts(config, data).read())]
    texts_of_model += [(model, plain) for model in references]
    for which in config.attack.documents[1:]:
        texts_of_model.append((leading, texts_under_attack(config, data, which).read()))
    total = sum(len(texts) for _, texts in texts_of_model)
    with (
        closing(ScoreCache(cache_directory() / "scores")) as cache,
        reporter.track("scoring by reference models", total, "texts") as advance,
    ):
        for model, texts in texts_of_model:
            cache.scores(model, texts, advance=advance)


def _divergences(config: RunConfig, data: RunData, texts: AttackTexts, reference: LanguageModel) -> list[TextStatistic]:
    """Return the divergence of each real user's texts from the reference (``attacks.reference_divergence``)."""
    # Training texts of held-out users too: the choice must not depend on the coin.
    own = known_texts(config, data, data.real(texts.texts), "training")
    with closing(ScoreCache(cache_directory() / "scores")) as cache:
        return reference_divergences(texts, own, reference, cache)
