"""The record in plain words: what was audited, how well the attack did, what it means. No number is made here."""

from dataclasses import dataclass

from audit.record import LARGEST_DRIFT, Record
from audit.record_results import Blind, CanaryGroup, Estimate, TrialsFacts, VerdictFacts

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
            *([("Canary users", _canaries(record))] if record.canaries else []),
            ("What is certified", _certified(record)),
            ("What it means", _meaning(record)),
            ("What it does not say", _trial_limits(record) if record.trials else _limits(record)),
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
    violated = sorted(
        (v for v in record.judgement.verdicts if v.outcome == "violated"), key=lambda v: v.standing != "certified"
    )
    certified = any(v.standing == "certified" for v in violated)
    if any(b.separates for b in record.blind) and not record.split.certifiable and not certified:
        return "Inconclusive: the two groups of users differ even without the audited model."
    if violated:
        kind = "certified" if certified else "indicative only"
        leaks = "this training leaks" if record.trials else "this model leaks"
        return f"The claim is violated ({kind}): {leaks} more than {violated[0].claim} allows."
    if record.trials:
        return _trial_headline(record, record.trials)
    if any(b.separates for b in record.blind):
        return "Inconclusive: the two groups of users differ even without the audited model."
    if area.lower > 0.5:
        strength = "clearly" if area.value >= STRONG else "noticeably" if area.value >= NOTICEABLE else "slightly"
        return f"Yes, this model tells who was held in, {strength} better than chance: AUROC {area.value:.2f}."
    if area.upper < 0.5:
        return f"The attack did worse than chance (AUROC {area.value:.2f}): look for a mistake in the groups."
    return f"This attack did not tell held-in from held-out users: AUROC {area.value:.2f}, chance is 0.50."


def _trial_headline(record: Record, trials: TrialsFacts) -> str:
    """The bound that was chosen before looking, which the highest of several was not, and what it says of claims."""
    least = trials.epsilon_lower or 0.0
    certify = f"certify an epsilon of at least {least:.2f}" if least > 0 else "certify no epsilon above zero"
    outcomes = {v.outcome for v in record.judgement.verdicts if v.claim != NO_CLAIM}
    stands = "consistent with what is claimed" if outcomes == {"consistent"} else "inconclusive on what is claimed"
    what = " without any defense" if trials.target == "none" else ""
    return f"{trials.runs} independent trainings{what} {certify}; {stands if outcomes else 'no claim was tested'}."


def _warnings(record: Record) -> list[str]:
    warnings = [_blind_warning(b, record) for b in record.blind if b.separates]
    warnings += [
        f"Among canary users the blind baseline '{b.name}' separates the groups without the audited model (AUROC"
        f" {b.auroc:.2f}, p = {b.p_value:.1g}), although each has its own fair coin: suspect a leak of the coins."
        for b in (record.canaries.blind if record.canaries else [])
        if b.separates
    ]
    training = record.training
    if record.trials and record.trials.target == "none":
        warnings.append("A control: what was trained has no defense; the config's was left out (--target none).")
    if training and training.defense != "none" and training.epsilon is None:
        warnings.append(f"The defense '{training.defense}' ran, but this is {training.guarantee}.")
    warnings += [f"{w[0].upper()}{w[1:]}." for w in (training.warnings if training else [])]
    if not record.split.certifiable:
        warnings.append(f"Indicative only: {record.split.standing_reason}.")
    warnings += [
        f"The model '{model.name}' changed while it was audited: a probe text's score moved by"
        f" {model.endpoint.drift:.2g} nats a token."
        for model in (record.target, record.reference)
        if model.endpoint and model.endpoint.drift > LARGEST_DRIFT
    ]
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
    if record.trials:
        return _trials_audited(record, record.trials)
    split, target = record.split, record.target
    size = "unknown size" if target.parameters is None else f"{target.parameters / 1e6:,.1f} million parameters"
    origin = ""
    if record.training:
        t = record.training
        which = (
            f"the best of {t.steps} steps, step {t.chosen_step}"
            if t.selection.startswith("best")
            else f"the last of {t.steps} steps"
        )
        origin = (
            f" It was fine-tuned on {t.records:,} texts of {t.users} users ({which}; defense: {t.defense};"
            f" {t.guarantee})."
        )
        origin += "".join(f" The {r.name} had left out {r.removed:,} of {r.before:,} of them." for r in t.removals)
    if record.canaries:
        origin += f" {record.canaries.held_in} of these users are canary users, planted by the auditor."
    which = "fresh texts" if record.documents == "fresh" else "texts that training saw or would have seen"
    if target.endpoint:
        origin += f" It was reached at {target.endpoint.url}; {target.endpoint.note}."
    always = f" {split.always_in} more users were always in and are not scored." if split.always_in else ""
    per_text = ""
    if record.per_text:
        per_text = (
            " Their tokenizers are not known to be the same: scores are compared per text, never per token, and attacks"
            " that compare tokens are left out."
        )
    return (
        f"A {target.architecture} of {size} ({target.name}).{origin} Its scores on {record.attacker_texts:,} {which} of"
        f" {split.held_in} held-in and {split.held_out} held-out users were compared with those of the reference model"
        f" ({record.reference.name}).{per_text} How the sides were decided: {split.standing_reason}.{always}"
    )


def _trials_audited(record: Record, trials: TrialsFacts) -> str:
    t, target = record.training, record.target
    assert t is not None
    return (
        f"A training, not a model: {trials.runs} times a {target.architecture} of {target.parameters:,} parameters was"
        f" fine-tuned for {t.steps} steps on the same {t.records:,} texts of {t.users} users (defense:"
        f" {t.defense}; {t.guarantee}), {trials.with_user} times with one more user, made to be found:"
        f" {counted(trials.documents, 'document')} in tokens that nobody else writes. How that was decided:"
        f" {record.split.standing_reason}. Each model was scored and thrown away; a training took"
        f" {trials.seconds_each:.1f} s (median)."
    )


def _trials_success(record: Record, trials: TrialsFacts) -> str:
    result = record.primary()
    said = (
        f"The score of a training is the mean {result.attack} of that user's own documents under its last model and the"
        f" base model. It tells trainings with the user from those without at an AUROC of {interval(result.auroc)}."
    )
    if trials.threshold is None or trials.members is None or trials.non_members is None:
        return f"{said} No one threshold was tested; bands over all thresholds were."
    how = f"picked by the first {trials.pilot} trainings" if trials.pilot else "fixed before looking"
    return (
        f"{said} At the threshold {trials.threshold:.4g}, {how}, it called {trials.true_positives} of {trials.members}"
        f' trainings with the user and {trials.false_positives} of {trials.non_members} without it "with".'
    )


def _success(record: Record) -> str:
    if record.trials:
        return _trials_success(record, record.trials)
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


def _canaries(record: Record) -> str:
    """How many canary users there were, and the groups with the lowest and highest AUROC."""
    assert record.canaries is not None
    c = record.canaries
    replaced = f" {c.replaced} of them took the place of real users, who are not audited." if c.replaced else ""
    said = (
        f"{c.users} canary users, planted for this audit, took part like any user: {c.held_in} were held in and"
        f" {c.held_out} held out, each by its own fair coin.{replaced}"
    )
    if c.trained_on < c.training_texts:
        said += (
            f" Of the {c.training_texts:,} training texts of those held in, defenses on the data side left"
            f" {c.trained_on:,}; numbers of documents are those before."
        )
    for kind in sorted({g.kind for g in c.groups}):
        sides = [sum(s) for s in zip(*((g.held_in, g.held_out) for g in c.groups if g.kind == kind), strict=True)]
        if 0 in sides:
            said += f" The coins left no {kind.replace('_', '-')} canary user on one side: nothing is judged of them."
    measured = sorted((g for g in c.groups if g.auroc), key=lambda g: g.auroc.value if g.auroc else 0.0)
    if not measured:
        return f"{said} Too few of them are on a side to say how well the attack did on them."
    ends = [measured[-1]] if len(measured) == 1 else [measured[-1], measured[0]]
    reached = "; the least on ".join(f"{group_name(g)}: {interval(g.auroc)}" for g in ends if g.auroc)
    most = "It did best on" if len(measured) > 1 else "The attack's AUROC on"
    return f"{said} {most} {reached}. They are made to be found: they say what can leak, not what leaks of real users."


def counted(number: int, what: str) -> str:
    """A number and what it counts, as "1 token" or "2 tokens"."""
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def group_name(group: CanaryGroup) -> str:
    """A group as "substring of 10 tokens, 100 documents"."""
    length = "" if group.length is None else f" of {counted(group.length, 'token')}"
    documents = "all documents" if group.documents is None else counted(group.documents, "document")
    return f"{group.kind.replace('_', ' ')}{length}, {documents}"


def _of_whom(record: Record, verdict: VerdictFacts) -> str:
    return f"{verdict.population}, " if record.canaries else ""


def _certified(record: Record) -> str:
    """The verdict on each claim, the reason for its standing first, and the best bound with its name."""
    judgement = record.judgement
    said = []
    for v in judgement.verdicts:
        reason = f"{v.reason[0].upper()}{v.reason[1:].rstrip('.')}."
        whom = _of_whom(record, v)
        stated = f"{whom.capitalize()}{reason[0].lower()}{reason[1:]}" if whom else reason
        said.append(stated if v.claim == NO_CLAIM else f"On {v.claim}: {whom}{v.outcome} ({v.standing}). {reason}")
    said += [f"{w[0].upper()}{w[1:]}." for v in judgement.verdicts for w in v.warnings]
    bounds = [b for b in judgement.bounds if b.standing in ("certified", "indicative")]
    if bounds:
        best = max(bounds, key=lambda b: b.epsilon_lower)
        of = f"on {best.population}, " if record.canaries else ""
        paid = "; the populations pay for each other" if record.canaries else ""
        said.append(
            f"Of the {len(bounds)} lower bounds on epsilon per user (at delta {judgement.delta:g}) that this design"
            f" supports, the highest is {best.epsilon_lower:.2f} ({of}{best.name}, {percent(best.level, 0)},"
            f" {best.standing}); it was picked after looking, each bound holds on its own{paid}."
        )
    elif judgement.refused:
        said.append(f"No bound on epsilon can be given: {judgement.refused[0].reason}.")
    return " ".join(said)


def _trial_meaning(record: Record) -> str:
    """What follows from the gravest outcome."""
    outcomes = {v.outcome for v in record.judgement.verdicts if v.claim != NO_CLAIM}
    if "violated" in outcomes:
        return (
            "The training does not keep what is claimed: a mistake in its code, or a claim that is not its own. Do not"
            " release its models; look at noise, clipping, sampling and keys, in this order."
        )
    if outcomes == {"consistent"}:
        return "Nothing speaks against the claim, and so many trainings, all told apart, would have."
    return (
        "The bounds are what is known. Where a claim was tested, not even perfect separation of so many trainings would"
        " have falsified it: more trainings, or a white-box audit of the trainer, say more."
    )


def _trial_limits(record: Record) -> str:
    t, trials = record.training, record.trials
    assert t is not None
    assert trials is not None
    promise = f"The accountant promises {t.guarantee}. " if t.epsilon is not None else ""
    most = (
        "" if trials.reach is None else f" So many trainings could have certified at most epsilon {trials.reach:.2f}."
    )
    return (
        f"{promise}Bounds are on epsilon per user of this training, from below: another user, a stronger attack or more"
        f" trainings may show more.{most} They speak of the training (code, config, the other users' texts) and of no"
        " one model that it released."
    )


def _meaning(record: Record) -> str:
    if record.trials:
        return _trial_meaning(record)
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
