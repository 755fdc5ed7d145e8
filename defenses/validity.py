"""The reasons that void a mechanism's guarantee, and the conditions that it depends on."""

from typing import TYPE_CHECKING

from heldin.defenses.choices import (
    BatchClip,
    ConcentrationFilter,
    NoClip,
    RealisedCohortDivisor,
    ShuffledSampler,
)
from heldin.words import Statement
from heldin.words.guarantee import GuaranteeCondition, NoGuaranteeReason

if TYPE_CHECKING:
    from heldin.defenses.mechanism import Mechanism

_PERPLEXITY = ("highest_perplexity", "lowest_perplexity")


def reasons_of(mechanism: "Mechanism") -> tuple[Statement, ...]:
    """Every reason why there is no DP guarantee (docs/theory.md#rules-of-a-private-step); empty if there is one."""
    user_level = mechanism.unit == "user"
    leaky = [step.name for step in mechanism.data_steps if not step.user_local]
    comparing = [step.name for step in mechanism.data_steps if not (step.record_local or step.slots_only)]
    checks = [
        (mechanism.unit == "none", NoGuaranteeReason.NO_UNIT()),
        (
            isinstance(mechanism.sampler, ShuffledSampler),
            NoGuaranteeReason.SHUFFLED(),
        ),
        (mechanism.noise_multiplier == 0.0, NoGuaranteeReason.NO_NOISE()),
        (isinstance(mechanism.clip, NoClip), NoGuaranteeReason.NO_CLIPPING()),
        (
            isinstance(mechanism.clip, BatchClip),
            NoGuaranteeReason.BATCH_CLIPPED(),
        ),
        (
            # Neighbours would scale the same noise differently; under zero-out the absent unit is counted by both
            # (docs/theory.md#public-constants).
            isinstance(mechanism.divisor, RealisedCohortDivisor) and mechanism.adjacency == "add_remove",
            NoGuaranteeReason.REALISED_COHORT(),
        ),
        (
            mechanism.unit != "none" and mechanism.checkpoint == "protected_validation",
            NoGuaranteeReason.PROTECTED_VALIDATION(),
        ),
        (
            # At the example level it is no reason: epsilon is then about the data after the step (``conditions_of``).
            user_level and bool(leaky),
            NoGuaranteeReason.LOOKS_ACROSS_USERS(steps=", ".join(leaky)),
        ),
        (
            # Without one text, others' texts are kept or changed differently, whose number nothing bounds.
            mechanism.unit == "user_entity" and bool(comparing),
            NoGuaranteeReason.COMPARES_TEXTS(steps=", ".join(comparing)),
        ),
        (
            # Such a model's ranking of one user's records depends on other users' texts.
            mechanism.record_selection in _PERPLEXITY and mechanism.base_model_saw_protected,
            NoGuaranteeReason.SELECTED_BY_PROTECTED(),
        ),
        (
            mechanism.two_level is not None and mechanism.two_level.claimed_noise is not None,
            NoGuaranteeReason.RANDOM_RECORD_RATE(),
        ),
        (
            mechanism.two_level is not None and mechanism.two_level.weight_caps is not None,
            NoGuaranteeReason.WEIGHTS_COUNT_RECORDS(),
        ),
        (mechanism.base_model_saw_protected, NoGuaranteeReason.BASE_SAW_PROTECTED()),
        (mechanism.tokenizer_saw_protected, NoGuaranteeReason.TOKENIZER_SAW_PROTECTED()),
    ]
    return tuple(reason for holds, reason in checks if holds)


def conditions_of(mechanism: "Mechanism") -> tuple[Statement, ...]:
    """List the conditions that the guarantee assumes or depends on."""
    refilling = [step.name for step in mechanism.data_steps if not step.record_local]
    # A ranking refills: without one record another of the user takes its place, so it is not record-local.
    if mechanism.record_selection in ("longest", "shortest", *_PERPLEXITY):
        refilling.append(f"record selection: {mechanism.record_selection}")
    example = mechanism.unit == "example"
    # Under caps a choice that looks at slots is the same for both neighbours, who have the same slots.
    texts = example or (mechanism.unit == "user_entity" and mechanism.entity_cap is None)
    checks = [
        (texts and bool(refilling), GuaranteeCondition.AFTER_PREPROCESSING(steps=", ".join(refilling))),
        (example, GuaranteeCondition.NOT_OF_USERS()),
        (
            mechanism.unit == "user_entity" and mechanism.entity_cap is not None,
            GuaranteeCondition.SAME_SLOTS(),
        ),
        (
            mechanism.unit == "user_entity" and mechanism.entity_cap is not None,
            GuaranteeCondition.NAMES_NOT_RECOGNISED(),
        ),
        (
            mechanism.two_level is not None and mechanism.two_level.rule == "all",
            GuaranteeCondition.NAMES_MISSED(),
        ),
        (isinstance(mechanism.divisor, RealisedCohortDivisor), GuaranteeCondition.NULL_CONTRIBUTIONS()),
        (
            mechanism.checkpoint == "public_validation",
            GuaranteeCondition.PUBLIC_VALIDATION(),
        ),
        (mechanism.record_selection in _PERPLEXITY, GuaranteeCondition.RANKING_MODEL_UNSEEN()),
        (
            isinstance(mechanism.clip, ConcentrationFilter),
            GuaranteeCondition.FILTER_THEOREM(),
        ),
        (True, GuaranteeCondition.NOISE(generator=mechanism.noise_generator)),
    ]
    return (*mechanism.assumptions, *(condition for holds, condition in checks if holds))
