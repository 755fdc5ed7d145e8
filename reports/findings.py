"""The pages after page one: the deciding tests, the audited people and texts, and the success of the attacks.

This module computes no numbers.
"""

from collections.abc import Iterator, Sequence

from heldin.attacks.protocol import how_aggregated
from heldin.audit.results import CanaryFacts, CanaryGroup, TrainingsFacts
from heldin.base.wording import counted, kind_words
from heldin.bounds.verdict import NO_CLAIM
from heldin.record.document import Record
from heldin.record.planted_facts import PlantedFacts
from heldin.reports.annex_parts import REFERENCE
from heldin.reports.attacks import marks_line
from heldin.reports.blocks import Block, Entry, FramedNote, Paragraph
from heldin.reports.claims import describe_verdicts
from heldin.reports.extraction import extraction_line
from heldin.reports.limits import propose_limits
from heldin.reports.people import describe_attacker, describe_people
from heldin.reports.wording import audited_by, group_name, interval, of_real_rows, sentence


def explain_answer(record: Record) -> list[Block]:
    """Return the statistics behind the answer, and cautions about them."""
    limits = propose_limits(record)
    blocks: list[Block] = [Paragraph(record.decision.headline), *map(FramedNote, warn(record))]
    return [*blocks, *([Paragraph(limits)] if limits else [])]


def warn(record: Record) -> list[str]:
    """Return warnings to read before the answer: first disagreements between attacks, then reasons that weaken the
    answer."""
    # Notes of the decision first: attacks that disagree, and a promise that is broken.
    return [*record.decision.notes, *_warn_of_training(record), *_warn_of_groups(record), *_warn_of_overlaps(record)]


def _warn_of_training(record: Record) -> list[str]:
    training = record.training
    warnings = [
        f"Among canary users the blind baseline '{b.name}' separates the groups without the audited model (AUROC"
        f" {b.auroc:.2f}, p = {b.p_value:.1g}), although each has its own fair coin: chance, once in ten thousand"
        " audits for each baseline, or a leak of the coins."
        for b in (record.canaries.blind if record.canaries else [])
        if b.separates
    ]
    if record.trainings and record.trainings.is_control:
        warnings.append("This is a control: the model was trained without the defense of the config (--target none).")
    # The name of a private defense alone would be read as a guarantee.
    if training and not training.is_plain and training.epsilon is None:
        warnings.append(f"The defense '{training.defense}' ran, with {training.guarantee}.")
    return [*warnings, *(sentence(warning) for warning in (training.warnings if training else []))]


def _warn_of_groups(record: Record) -> list[str]:
    split, warnings = record.split, []
    if not split.certifiable:
        warnings.append(sentence(f"Indicative only: {split.standing_reason}"))
    verbatim = sorted({result.attack for result in record.attacks if result.asks.of_training_texts})
    if verbatim and record.scored_texts.kind == "fresh":
        warnings.append(
            f"These attacks are made for training texts: {', '.join(verbatim)}. The scored texts were not trained on,"
            " so these attacks may miss what others find."
        )
    return warnings


def _shared(record: Record) -> str:
    # Of rows of turns each turn is compared by itself.
    return "are" if record.corpus.turns is None or record.training is None else "have a turn that is"


def _use(record: Record) -> str:
    # Texts of both uses are counted together.
    picked = record.training is not None and record.training.picked is not None
    return "pre-trained the base model or picked the trained layers" if picked else "the base model was pre-trained on"


def _warn_of_overlaps(record: Record) -> list[str]:
    # A count of None (not known) warns of nothing: it is among the facts.
    overlaps, words, warnings = record.split.overlaps, audited_by(record), []
    scored = overlaps.scored_texts_in_same_users_training.count
    # By design where the attacker is given training texts, as in every audit of independent trainings.
    if scored and record.scored_texts.kind != "training" and not record.trainings:
        warnings.append(
            f"{scored:,} of {record.attacker_texts:,} scored texts {_shared(record)} word for word in the training"
            f" texts of the same {words.singular}, so the attack on them is not on fresh text."
        )
    trained_on = overlaps.held_out_texts_in_training.count
    if trained_on and not record.trainings:
        warnings.append(
            f"{words.other.capitalize()} share {counted(trained_on, 'text')} word for word with training. To that"
            " extent they were trained on, and the difference between the groups looks too small."
        )
    shared = overlaps.held_out_texts_in_held_in.count
    if shared and not record.trainings:
        warnings.append(
            f"{words.other.capitalize()} share {counted(shared, 'text')} word for word with {words.member}."
        )
    if public := overlaps.audited_texts_in_public.count:
        whose = "Audited users" if record.split.audited == "users" else "Users who take part"
        warnings.append(
            f"{whose} share {counted(public, 'text')} word for word with the public users' texts that {_use(record)}."
        )
    return warnings


def describe_success(record: Record) -> str:
    """Return the success of the attacks."""
    if record.trainings:
        return _separate_trainings(record, record.trainings)
    result, facts = record.primary(), record.decision
    how = "the coin flips" if facts.law.value.endswith("coins") else "the two groups"
    text = (
        f"The primary attack, {result.attack} ({how_aggregated(result.aggregation)}), reached an AUROC"
        f" of {interval(result.auroc)}; 0.5 is guessing, and 1 is certainty."
    )
    # The highest of many is too high by selection: quoted with the interval that holds for all scores at once, and with
    # its adjusted p-value (docs/theory.md#randomisation-test).
    best = max(record.attacks, key=lambda a: a.auroc.value)
    if best is not result and best.simultaneous is not None:
        low, high = best.simultaneous
        text += (
            f" The highest AUROC of all {facts.scores} scores is that of {best.attack},"
            f" {how_aggregated(best.aggregation)}: {best.auroc.value:.3f} ({low:.3f} to {high:.3f},"
            f" simultaneous over all scores; adjusted p = {best.adjusted_p:.2g})."
        )
    return (
        f"{text} Redrawing {how} {facts.by.redraws:,} times shows: AUROCs as high as these occur by chance with"
        f" probability {facts.auroc_p:.2g} (a leak at {facts.by.auroc_level:g} or below). True-positive rates as high"
        f" at low false-positive rates occur with probability {facts.tpr_p:.2g} (a leak at {facts.by.tpr_level:g} or"
        " below)."
    )


def describe_canaries(record: Record) -> str:
    """Return the answer for canary users, their number, and the groups with the highest and lowest AUROC."""
    c = record.canaries
    if c is None:
        return ""
    text = f"{c.decision.headline} " if c.decision else ""
    text += _number_of_canaries(c, planted=record.planted is not None)
    if record.planted is not None:
        text += _planted_rows(record.planted)
    return text + _empty_kinds(c.groups) + _best_canaries(c.groups, real_rows=of_real_rows(record))


def _number_of_canaries(facts: CanaryFacts, *, planted: bool) -> str:
    """Return the number of canary users, and how many of their texts were trained on."""
    # Of a training of somebody else's only what it was given is known.
    took_part = "are in the planted training set" if planted else "were treated like any user"
    text = (
        f"{counted(facts.users, 'canary user')}, planted for this audit, {took_part}: {facts.held_in} were trained on"
        f" and {facts.held_out} were not, by an independent fair coin flip for each."
    )
    if facts.replaced:
        text += f" {facts.replaced} of them took the place of real users, who are not audited."
    if facts.trained_on < facts.training_texts:
        text += (
            f" Data defenses kept {facts.trained_on:,} of their {facts.training_texts:,} training texts. Numbers of"
            " documents below are those before."
        )
    return text


def _empty_kinds(groups: Sequence[CanaryGroup]) -> str:
    """Return a sentence for each kind that has an empty group."""
    text = ""
    # Canary users of one kind are few, and fair coins may leave a side empty: then there is nothing to compare.
    for kind in sorted({group.kind for group in groups}):
        sides = [sum(s) for s in zip(*((g.held_in, g.held_out) for g in groups if g.kind == kind), strict=True)]
        if 0 in sides:
            text += (
                f" The coin flips left no {kind_words(kind, '-')} canary user in one group, so this audit says"
                " nothing about them."
            )
    return text


def _best_canaries(groups: Sequence[CanaryGroup], *, real_rows: bool) -> str:
    """Return the highest and the lowest AUROC of a group, and the meaning of these numbers."""
    measured = sorted((g for g in groups if g.auroc), key=lambda g: g.auroc.value if g.auroc else 0.0)
    if not measured:
        return " Too few of them are in each group to say how well the attack did."
    # Highest and lowest, so that the group on which the attack does best is not taken for all.
    ends = [measured[-1]] if len(measured) == 1 else [measured[-1], measured[0]]
    reached = ", and worst on ".join(f"{group_name(g)}: {interval(g.auroc)}" for g in ends if g.auroc)
    most = "The primary attack did best on" if len(measured) > 1 else "The AUROC of the primary attack on"
    shown = (
        "Each has rows of one real user, so they show what leaks about users with as few rows."
        if real_rows
        else "Canary users are made to be found: they show what can leak, not what leaks about real users."
    )
    return f" {most} {reached}. {shown}"


def _planted_rows(planted: PlantedFacts) -> str:
    """Return whether the model learned planted rows, whether rows had a loss, and how they differ from real rows."""
    from heldin.record.condition_words import control_line, form_line

    text = ""
    if planted.training is not None and planted.training.silent_canary_users:
        number = counted(planted.training.silent_canary_users, "canary user")
        text += f" {number} in the training data had no row on which training counted a loss."
    if planted.control is not None:
        text += f" Positive control {control_line(planted.control)}."
    return f"{text} {form_line(planted.form)}" if planted.form is not None else text


def state_limits(record: Record) -> str:
    """Return what the audit cannot show."""
    if record.trainings:
        return _limit_trainings(record, record.trainings)
    tested = any(v.claim != NO_CLAIM for v in record.judgement.verdicts)
    guarantee = "" if tested else " No differential-privacy guarantee was claimed or tested."
    t, words = record.training, audited_by(record)
    if t and t.epsilon is not None:
        guarantee = f" The accountant guarantees {t.guarantee_alone}."
        # Only where something is promised to those who are audited: an example's epsilon says nothing of users' AUROC.
        if ceiling := record.ceiling():
            guarantee += (
                f" If the guarantee holds, the expected AUROC of any attack on {words.unit} is at most"
                f" {ceiling.auroc:.3f}."
            )
    alone = ""
    if record.split.audited == "canaries":
        rows = "have a few rows of one real user each" if of_real_rows(record) else "are made to be found"
        alone = (
            f" No real user was audited. Canary users {rows}: they show what this training lets through, not how many"
            " real users could be identified."
        )
    return (
        "An audit shows what these attacks can do at least. Another attack may do better. Intervals are estimates:"
        f" they treat {words.unit} as independent, although all scores come from one model.{guarantee}{alone}"
    )


def _separate_trainings(record: Record, facts: TrainingsFacts) -> str:
    result = record.primary()
    text = (
        f"The score of a training run is the mean {result.attack} of that user's own documents under its last model and"
        " the base model. It distinguishes training runs with the user from training runs without, with an AUROC of"
        f" {interval(result.auroc)}."
    )
    # The coins may leave fewer than two trainings of a side among those that would pick a threshold
    # (``bounds.trainings.pilot_size``).
    if not record.judgement.bounds:
        return (
            f"{text} No bound could be computed: {'; '.join(refused.reason for refused in record.judgement.refused)}."
        )
    if facts.threshold is None or facts.members is None or facts.non_members is None:
        return f"{text} Bands over all thresholds were tested, not one threshold."
    how = f"picked by the first {facts.pilot} training runs" if facts.pilot else "fixed before looking"
    return (
        f"{text} At the threshold {facts.threshold:.4g}, {how}, it called {facts.true_positives} of {facts.members}"
        f' training runs with the user and {facts.false_positives} of {facts.non_members} without it "with".'
    )


def _limit_trainings(record: Record, facts: TrainingsFacts) -> str:
    t = record.training
    assert t is not None
    promised = f"The accountant guarantees {t.guarantee}. " if t.epsilon is not None else ""
    most = (
        ""
        if facts.reach is None
        else f" This many training runs could have certified at most epsilon {facts.reach:.2f}."
    )
    return (
        f"{promised}Bounds are lower limits of epsilon per user of this training: another user, a stronger attack or"
        f" more training runs may show more.{most} Bounds are about the training (code, configuration, the other users'"
        " texts), not about any one model that it released."
    )


def explain_further(record: Record) -> Iterator[tuple[str, str]]:
    """Yield (label, text) of the details that a terminal prints after page one if asked."""
    yield "statistics", record.decision.headline
    for warning in warn(record):
        yield "note", warning
    yield "attacks", describe_success(record)
    if canaries := describe_canaries(record):
        yield "canaries", canaries
    yield "bounds", describe_verdicts(record)
    if emitted := extraction_line(record):
        yield "extraction", emitted
    if exposed := marks_line(record):
        yield "exposure", exposed


# The sections behind page one.
SECTIONS: tuple[Entry[Record], ...] = (
    Entry("decision", "What decided the answer", explain_answer),
    Entry("annex-reference", "", lambda _: REFERENCE),
    Entry("people", "In people, in detail", describe_people),
    Entry("attacker", "Who attacks", describe_attacker),
    Entry("success", "How well the attacks did", describe_success),
    Entry("canary-users", "Canary users", describe_canaries),
    Entry("verdicts", "Bounds and verdict", describe_verdicts),
    Entry("limits", "What this does not show", state_limits),
)
