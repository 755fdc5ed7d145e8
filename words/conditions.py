"""Sentences about the conditions of a certified audit of a planted training set."""

from heldin.words.statement import Code


class ConditionStated(Code):
    """What must hold, named as ``record.planted_facts.ConditionName``."""

    FAIR_COINS = (
        "condition_fair_coins",
        "an independent fair coin under a fresh key decided each audited user and canary user",
    )
    FIXED_BEFORE_COINS = (
        "condition_fixed_before_coins",
        "attacks, references, thresholds, canary users and the audited users were fixed before the coins",
    )
    SCORED_WITHOUT_COINS = "condition_scored_without_coins", "scores were computed without the coins"
    SET_UNCHANGED = "condition_set_unchanged", "the training set is as heldin wrote it"
    GIVEN_EVERY_ROW = (
        "condition_given_every_row",
        "the model was given every row of the planted training set, and nothing else",
    )
    WEIGHTED_ALIKE = (
        "condition_weighted_alike",
        "every row was weighted alike: no mask, weight, filter or clipping depended on a row's text or user",
    )
    NOTHING_ELSE = (
        "condition_nothing_else",
        "no other training of this model used text of these users, and nobody who trained it knew who was held in",
    )
    STARTED_UNSEEN = (
        "condition_started_unseen",
        "the model before training and the reference model had not been trained on text of these users",
    )
    ROW_IS_EXAMPLE = (
        "condition_row_is_example",
        "each row was one training example: not split, not packed with others, not repeated",
    )
    SERVED_ALONE = "condition_served_alone", "the endpoint served this model and no other"
    EARLIER_LOOKS_UNUSED = (
        "condition_earlier_looks_unused",
        "this training used nothing that an earlier look found",
    )
    LOOKS_PAID = "condition_looks_paid", "no more looks were taken than were paid for before"
