"""What voids a mechanism's guarantee, and what it depends on, in the words that are printed with it."""

from typing import TYPE_CHECKING

from heldin.defenses.choices import (
    BatchClip,
    ConcentrationFilter,
    NoClip,
    RealisedCohortDivisor,
    ShuffledSampler,
)
from heldin.defenses.guarantee import NO_CLIPPING, NO_NOISE, NO_UNIT

if TYPE_CHECKING:
    from heldin.defenses.mechanism import Mechanism

_PERPLEXITY = ("highest_perplexity", "lowest_perplexity")


def reasons_of(mechanism: "Mechanism") -> tuple[str, ...]:
    """Every reason why there is no DP guarantee (docs/theory.md#rules-of-a-private-step); empty if there is one."""
    user_level = mechanism.unit == "user"
    leaky = [step.name for step in mechanism.data_steps if not step.user_local]
    comparing = [step.name for step in mechanism.data_steps if not (step.record_local or step.slots_only)]
    checks = [
        (mechanism.unit == "none", NO_UNIT),
        (
            isinstance(mechanism.sampler, ShuffledSampler),
            "cohorts are shuffled while accounting assumes Poisson sampling",
        ),
        (mechanism.noise_multiplier == 0.0, NO_NOISE),
        (isinstance(mechanism.clip, NoClip), NO_CLIPPING),
        (
            isinstance(mechanism.clip, BatchClip),
            "the batch is clipped as one, so a unit may change a step by twice the clip norm",
        ),
        (
            # Neighbours would scale the same noise differently; under zero-out the absent unit is counted by both
            # (docs/theory.md#public-constants).
            isinstance(mechanism.divisor, RealisedCohortDivisor) and mechanism.adjacency == "add_remove",
            "the divisor is the realised cohort, which depends on private data",
        ),
        (
            mechanism.unit != "none" and mechanism.checkpoint == "protected_validation",
            "the checkpoint is chosen by validation on protected users",
        ),
        (
            # At the example level it is no reason: epsilon is then about the data after the step (``conditions_of``).
            user_level and bool(leaky),
            f"preprocessing looks across users ({', '.join(leaky)})",
        ),
        (
            # Without one text, others' texts are kept or changed differently, whose number nothing bounds.
            mechanism.unit == "user_entity" and bool(comparing),
            f"preprocessing compares texts, or may look beyond slots ({', '.join(comparing)})",
        ),
        (
            # Such a model's ranking of one user's records depends on other users' texts.
            mechanism.record_selection in _PERPLEXITY and mechanism.base_model_saw_protected,
            "records are selected by the perplexity of a base model that saw protected users",
        ),
        (
            mechanism.two_level is not None and mechanism.two_level.claimed_noise is not None,
            "Lai et al. account for the rate at which a random record is used, which hides no user and entity",
        ),
        (
            mechanism.two_level is not None and mechanism.two_level.weight_caps is not None,
            "weights count the records of users and entities",
        ),
        (mechanism.base_model_saw_protected, "the base model was trained on protected users"),
        (mechanism.tokenizer_saw_protected, "the tokenizer was trained on protected users"),
    ]
    return tuple(reason for holds, reason in checks if holds)


def conditions_of(mechanism: "Mechanism") -> tuple[str, ...]:
    """What the guarantee assumes or depends on."""
    refilling = [step.name for step in mechanism.data_steps if not step.record_local]
    # A ranking refills: without one record another of the user takes its place, so it is not record-local.
    if mechanism.record_selection in ("longest", "shortest", *_PERPLEXITY):
        refilling.append(f"record selection: {mechanism.record_selection}")
    example = mechanism.unit == "example"
    # Under caps a choice that looks at slots is the same for both neighbours, who have the same slots.
    texts = example or (mechanism.unit == "user_entity" and mechanism.entity_cap is None)
    checks = [
        (texts and bool(refilling), f"adjacency after preprocessing ({', '.join(refilling)})"),
        (example, "says nothing finite about a user without a cap on records per user"),
        (
            mechanism.unit == "user_entity" and mechanism.entity_cap is not None,
            "neighbours have the same slots: that a record exists, and whom it names, is not hidden",
        ),
        (
            mechanism.unit == "user_entity" and mechanism.entity_cap is not None,
            "a name that was not recognised has the epsilon of the number of records that hold it",
        ),
        (
            mechanism.two_level is not None and mechanism.two_level.rule == "all",
            "a name that was missed in texts of n other users has the epsilon of rule any at n",
        ),
        (isinstance(mechanism.divisor, RealisedCohortDivisor), "the divisor counts absent units' null contributions"),
        (
            mechanism.checkpoint == "public_validation",
            "validation users are public, not protected; epsilon is at the last step, whichever is chosen",
        ),
        (mechanism.record_selection in _PERPLEXITY, "the base model that ranks records saw no protected user"),
        (
            isinstance(mechanism.clip, ConcentrationFilter),
            "by the theorem of Asi & Liu (2024) as Chua et al. state it, not proved again; halting is an output",
        ),
        (True, f"noise by {mechanism.noise_generator}"),
    ]
    return (*mechanism.assumptions, *(text for holds, text in checks if holds))
