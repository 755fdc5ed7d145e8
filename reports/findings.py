"""The record in plain words: what was audited, how well the attack did, what it means. No number is made here."""

from dataclasses import dataclass

from audit.record import Blind, Estimate, Record

NO_CLAIM = "none"
NOTICEABLE = 0.55
STRONG = 0.75


@dataclass(frozen=True)
class Findings:
    """The first page of a report.

    Attributes:
        headline: one sentence with the answer.
        warnings: what a reader must know before the answer; may be empty.
        paragraphs: what was audited, how well the attack did, what it means, what it does not mean.
    """

    headline: str
    warnings: tuple[str, ...]
    paragraphs: tuple[tuple[str, str], ...]


def findings(record: Record) -> Findings:
    """What the record says, in sentences."""
    return Findings(
        headline=_headline(record),
        warnings=tuple(_warnings(record)),
        paragraphs=(
            ("What was audited", _audited(record)),
            ("How well the attack did", _success(record)),
            ("What is certified", _certified(record)),
            ("What it means", _meaning(record)),
            ("What it does not say", _limits(record)),
        ),
    )


def percent(value: float, digits: int = 1) -> str:
    """A share as "12.3 %"."""
    return f"{100 * value:.{digits}f} %"


def interval(estimate: Estimate, digits: int = 3) -> str:
    """An estimate as "0.712 (95 % interval 0.650 to 0.774)"."""
    return f"{estimate.value:.{digits}f} (95 % interval {estimate.lower:.{digits}f} to {estimate.upper:.{digits}f})"


def _headline(record: Record) -> str:
    area = record.primary().auroc
    if any(b.separates for b in record.blind) and not record.split.certifiable:
        return "Inconclusive: the two groups of users differ even without the audited model."
    violated = [v for v in record.judgement.verdicts if v.outcome == "violated"]
    if violated:
        kind = "certified" if violated[0].standing == "certified" else "indicative only"
        return f"The claim is violated ({kind}): this model leaks more than {violated[0].claim} allows."
    if any(b.separates for b in record.blind):
        return "Inconclusive: the two groups of users differ even without the audited model."
    if area.lower > 0.5:
        strength = "clearly" if area.value >= STRONG else "noticeably" if area.value >= NOTICEABLE else "slightly"
        return f"Yes, this model tells who was held in, {strength} better than chance: AUROC {area.value:.2f}."
    if area.upper < 0.5:
        return f"The attack did worse than chance (AUROC {area.value:.2f}): look for a mistake in the groups."
    return f"This attack did not tell held-in from held-out users: AUROC {area.value:.2f}, chance is 0.50."


def _warnings(record: Record) -> list[str]:
    warnings = [_blind_warning(b, record) for b in record.blind if b.separates]
    training = record.training
    if training and training.defense != "none" and training.epsilon is None:
        warnings.append(f"The defense '{training.defense}' ran, but this is {training.guarantee}.")
    warnings += [f"{w[0].upper()}{w[1:]}." for w in (training.warnings if training else [])]
    if not record.split.certifiable:
        warnings.append(f"Indicative only: {record.split.standing_reason}.")
    overlaps = record.split.overlaps
    if overlaps.attacker_texts_in_same_users_training:
        warnings.append(
            f"{overlaps.attacker_texts_in_same_users_training} of {record.attacker_texts} attacker texts stand word for"
            " word in the same user's training texts: for them the attack is not on fresh text."
        )
    if overlaps.audited_texts_in_public:
        warnings.append(
            f"{overlaps.audited_texts_in_public} texts of audited users also stand in the public users' texts that the"
            " base model was pre-trained on."
        )
    return warnings


def _blind_warning(blind: Blind, record: Record) -> str:
    cause = (
        "under fair coins this happens by chance once in ten thousand audits: suspect a leak of the coins"
        if record.split.certifiable
        else "how the groups were formed is to blame, not the model alone"
    )
    return (
        f"The blind baseline '{blind.name}' separates the groups without the audited model (AUROC {blind.auroc:.2f},"
        f" p = {blind.p_value:.1g}): {cause}."
    )


def _audited(record: Record) -> str:
    split, target = record.split, record.target
    size = f"{target.parameters / 1e6:,.1f} million parameters"
    origin = ""
    if record.training:
        t = record.training
        which = (
            f"the best of {t.steps} steps, step {t.chosen_step}"
            if t.selection == "best"
            else f"the last of {t.steps} steps"
        )
        origin = (
            f" It was fine-tuned on {t.records:,} texts of {t.users} users ({which}; defense: {t.defense};"
            f" {t.guarantee})."
        )
    always = f" {split.always_in} more users were always in and are not scored." if split.always_in else ""
    return (
        f"A {target.architecture} of {size} ({target.name}).{origin} Its scores on {record.attacker_texts:,} texts of"
        f" {split.held_in} held-in and {split.held_out} held-out users were compared with those of the reference model"
        f" ({record.reference.name}). How the sides were decided: {split.standing_reason}.{always}"
    )


def _success(record: Record) -> str:
    result = record.primary()
    shown = [t for t in result.tpr_at if t.estimate is not None]
    low = ""
    if shown and shown[0].estimate is not None:
        low = (
            f" When {percent(shown[0].fpr)} of held-out users may be accused wrongly, it names"
            f" {percent(shown[0].estimate.value)} of the held-in users."
        )
    best = max(record.attacks, key=lambda a: a.auroc.value)
    other = ""
    if (best.attack, best.aggregation) != (result.attack, result.aggregation):
        other = (
            f" The highest AUROC of all {len(record.attacks)} attacks tried was {best.auroc.value:.3f}"
            f" ({best.attack}, {best.aggregation}); choosing it after looking would overstate it."
        )
    return (
        f"The {result.attack} attack ({result.aggregation} over a user's texts) reached an AUROC of"
        f" {interval(result.auroc)}; 0.5 is guessing, 1 is certainty.{low}{other}"
    )


def _certified(record: Record) -> str:
    """The verdict on each claim, the reason for its standing first, and the best bound with its name."""
    judgement = record.judgement
    said = []
    for v in judgement.verdicts:
        reason = f"{v.reason[0].upper()}{v.reason[1:].rstrip('.')}."
        said.append(reason if v.claim == NO_CLAIM else f"On {v.claim}: {v.outcome} ({v.standing}). {reason}")
    said += [f"{w[0].upper()}{w[1:]}." for v in judgement.verdicts for w in v.warnings]
    bounds = [b for b in judgement.bounds if b.standing != "estimate"]
    if bounds:
        best = max(bounds, key=lambda b: b.epsilon_lower)
        said.append(
            f"Of the {len(bounds)} lower bounds on epsilon per user (at delta {judgement.delta:g}) that this design"
            f" supports, the highest is {best.epsilon_lower:.2f} ({best.name}, {percent(best.level, 0)},"
            f" {best.standing}); it was picked after looking, each bound holds on its own."
        )
    elif judgement.refused:
        said.append(f"No bound on epsilon can be given: {judgement.refused[0].reason}.")
    return " ".join(said)


def _meaning(record: Record) -> str:
    area = record.primary().auroc
    if any(b.separates for b in record.blind):
        return (
            "Nothing about the model yet: the groups can be told apart by their texts alone. Draw held-in and held-out"
            " users by fair coins and audit again."
        )
    if area.lower > 0.5:
        pairs = round(100 * area.value)
        return (
            f"Given one held-in and one held-out user, this attacker picks the right one about {pairs} times in 100."
            " The model carries information on whose texts it was trained on; releasing it releases that information."
        )
    return (
        "Within the precision of this audit the attack does not beat guessing. More users narrow the interval; a"
        " stronger attack may still succeed."
    )


def _limits(record: Record) -> str:
    tested = any(v.claim != NO_CLAIM for v in record.judgement.verdicts)
    guarantee = "" if tested else "No differential-privacy guarantee was claimed or tested."
    if record.training and record.training.epsilon is not None:
        guarantee = f"The accountant promises {record.training.guarantee}."
        if record.training.ceiling:
            bound = record.training.ceiling.auroc
            guarantee += f" If that holds, no attack on users is expected to exceed an AUROC of {bound:.3f}."
    return (
        "An audit bounds what an attacker can do from below: this attack did so well, another may do better. Intervals"
        " are estimates: they treat users as independent draws, while all scores share one model. " + guarantee
    )
