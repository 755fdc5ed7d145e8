"""The record in words: the answer, what to do, what was audited, how well attacks did. No number is computed here."""

from collections.abc import Sequence
from dataclasses import dataclass

from heldin.attacks.statistics import FOR_TRAINING_DOCUMENTS, how_aggregated
from heldin.audit.answer import DecisionFacts
from heldin.audit.decision import Answer, Promise
from heldin.base.wording import counted
from heldin.bounds.verdict import NO_CLAIM, Outcome, Verdict, in_parentheses
from heldin.record.condition_words import control_line, form_line
from heldin.record.document import Record
from heldin.record.facts import Count
from heldin.record.planted_facts import ConditionName, Known, PlantedFacts
from heldin.reports import training_findings
from heldin.reports.certified import NONE_FOLLOWS, bounds_that_follow
from heldin.reports.next_steps import next_step
from heldin.reports.people import attacker
from heldin.reports.recommendation import recommendation
from heldin.reports.wording import audited_by, group_name, interval, of_real_rows, percent, sentence
from heldin.words.answer import GuaranteeComparison
from heldin.words.texts import AtEndpoint

ATTACKER = "Who attacks"
HOW_WELL = "How well the attacks did"
CANARY_USERS = "Canary users"
BOUNDS = "Bounds and verdict"
NEXT = "What to do next"
RECOMMENDED = "Recommendation"
FRONT = (RECOMMENDED, NEXT, ATTACKER)  # stand before the first figure


@dataclass(frozen=True)
class Findings:
    """The first pages of a report.

    Attributes:
        headline: the answer, as the record has it.
        warnings: what a reader must know before the answer; may be empty.
        paragraphs: (title, text): what is recommended, what to do next, who attacks, how well the attacks did, what was
            audited, what follows and what does not.
    """

    headline: str
    warnings: tuple[str, ...]
    paragraphs: tuple[tuple[str, str], ...]


def findings(record: Record) -> Findings:
    """What the record says, in sentences."""
    trainings = record.trainings
    return Findings(
        headline=record.decision.headline,
        warnings=tuple(_warnings(record)),
        paragraphs=(
            (RECOMMENDED, recommendation(record)),
            (NEXT, training_findings.meaning(record) if trainings else next_step(record, record.decision)),
            (ATTACKER, attacker(record)),
            (HOW_WELL, training_findings.success(record, trainings) if trainings else _success(record)),
            *([(CANARY_USERS, _canaries(record))] if record.canaries else []),
            ("What was audited", training_findings.audited(record, trainings) if trainings else _audited(record)),
            (BOUNDS, _bounds(record)),
            ("What this does not say", training_findings.limits(record) if trainings else _limits(record)),
        ),
    )


def _warnings(record: Record) -> list[str]:
    """Disagreement of attacks first, then whatever weakens or voids the answer."""
    training, split, what = record.training, record.split, audited_by(record)
    # Notes of the decision first: attacks that disagree, and a promise that is broken.
    warnings = list(record.decision.notes)
    warnings += [
        f"Among canary users the blind baseline '{b.name}' separates the groups without the audited model (AUROC"
        f" {b.auroc:.2f}, p = {b.p_value:.1g}), although each has its own fair coin: chance, once in ten thousand"
        " audits for each baseline, or a leak of the coins."
        for b in (record.canaries.blind if record.canaries else [])
        if b.separates
    ]
    if record.trainings and record.trainings.target == "none":
        warnings.append("A control: what was trained has no defense; the config's was left out (--target none).")
    # The name of a private defense alone would be read as a guarantee.
    if training and training.defense != "none" and training.epsilon is None:
        warnings.append(f"The defense '{training.defense}' ran, with {training.guarantee}.")
    warnings += [sentence(w) for w in (training.warnings if training else [])]
    if not split.certifiable:
        warnings.append(sentence(f"Indicative only: {split.standing_reason}"))
    verbatim = sorted(FOR_TRAINING_DOCUMENTS & {its.attack for its in record.attacks})
    if verbatim and record.scored_texts.kind == "fresh":
        warnings.append(
            f"Made for the documents of training: {', '.join(verbatim)}. The scored texts are fresh, and there such a"
            " statistic may miss what others find."
        )
    overlaps = split.overlaps
    if (
        # By design where the attacker is given training texts, as in every audit of independent trainings. A count of
        # None (not known) warns of nothing: it is among the facts.
        overlaps.scored_texts_in_same_users_training.count
        and record.scored_texts.kind != "training"
        and not record.trainings
    ):
        warnings.append(
            f"{overlaps.scored_texts_in_same_users_training.count:,} of {record.attacker_texts:,} scored texts are"
            f" word for word in the same {what.singular}'s training texts: for them the attack is not on fresh text."
        )
    if overlaps.held_out_texts_in_training.count and not record.trainings:
        warnings.append(
            f"{what.other.capitalize()} share {counted(overlaps.held_out_texts_in_training.count, 'text')} word for"
            " word with training: to that extent they were trained on, and the difference between the sides looks too"
            " small."
        )
    if overlaps.held_out_texts_in_held_in.count and not record.trainings:
        warnings.append(
            f"{what.other.capitalize()} share {counted(overlaps.held_out_texts_in_held_in.count, 'text')} word for word"
            f" with {what.member}."
        )
    if overlaps.audited_texts_in_public.count:
        whose = "Audited users" if split.audited == "users" else "Users who take part"
        warnings.append(
            f"{whose} share {counted(overlaps.audited_texts_in_public.count, 'text')} word for word with the public"
            " users' texts that the base model was pre-trained on."
        )
    return warnings


def _audited(record: Record) -> str:
    split, target, what = record.split, record.target, audited_by(record)
    size = "unknown size" if target.parameters is None else f"{target.parameters / 1e6:,.1f} million parameters"
    origin = _origin(record)
    if target.endpoint:
        origin += f" It was reached at {target.endpoint.url}; {AtEndpoint.NO_FINGERPRINT()}."
    kind = "user" if split.audited in ("entities", "canaries") else "more user"
    always = f" {counted(split.always_in, kind)} always took part and are not scored." if split.always_in else ""
    per_text = ""
    if record.per_text:
        per_text = (
            " Their tokenizers are not known to be the same: scores are compared per text, never per token, and attacks"
            " that compare tokens are left out."
        )
    return (
        f"A {target.architecture} of {size} ({target.name}).{origin} {_texts(record)} of {split.held_in:,} held-in and"
        f" {split.held_out:,} {what.other} were scored under it and under the reference model"
        f" ({record.reference.name}).{per_text} Sides: {split.standing_reason}.{always}{_made_up(record)}"
    )


def _made_up(record: Record) -> str:
    corpus = record.config.get("corpus")
    source = corpus.get("source") if isinstance(corpus, dict) else None
    if not isinstance(source, dict) or source.get("kind") != "synthetic":
        return ""
    real = ', and "real users" are those who are no canary users' if record.canaries else ""
    return f" The corpus is synthetic: no person wrote it{real}."


def _origin(record: Record) -> str:
    """How the target was trained here; empty for a model trained elsewhere."""
    t, planted = record.training, record.planted
    if planted is not None:
        given = next(its for its in planted.conditions if its.name is ConditionName.GIVEN_EVERY_ROW)
        by = f"declared by {planted.declared_by}" if given.known_by is Known.DECLARED else given.known_by.value
        return (
            f" It was trained elsewhere, on {counted(planted.rows, 'row')} that heldin wrote for it ({by})."
            f" This is look {planted.look} of {planted.looks} that were paid for."
        )
    if t is None:
        return ""
    if not t.selection.startswith("best"):
        which = f"the last of {t.steps:,} steps"
    elif t.chosen_step == t.steps:
        which = f"the last of {t.steps:,} steps, which was the best"
    else:
        which = f"the best of {t.steps:,} steps, step {t.chosen_step:,}"
    # the conditions of the promise are in the table of facts
    promised = t.guarantee_alone if t.epsilon is not None else t.guarantee
    said = (
        f" It was fine-tuned on {counted(t.records, 'text')} of {counted(t.users, 'user')} ({which}; defense:"
        f" {t.defense}; {promised})."
    )
    said += "".join(f" The {r.name} had {r.did} of {r.before:,} of them." for r in t.removals)
    if record.canaries:
        said += f" {record.canaries.held_in} of these users are canary users, planted by the auditor."
    return said


def _texts(record: Record) -> str:
    """The scored texts, and what is known about whether training saw them."""
    number, texts = record.attacker_texts, record.scored_texts
    says = " (as declared, not checked)" if texts.known_by == "declared" else ""
    match texts.kind:
        case "fresh":
            return f"{counted(number, 'fresh text')}{says}"
        case "training":
            return f"{counted(number, 'text')} that training saw or would have seen{says}"
        case "mixed":
            return f"{counted(number, 'text')}, some of which training saw,"
        case "not known":
            return f"{counted(number, 'text')} (whether training saw them is not known)"


def _success(record: Record) -> str:
    result, facts, what = record.primary(), record.decision, audited_by(record)
    how = "redrawing the coins" if facts.law.value.endswith("coins") else "redrawing the two groups"
    said = (
        f"The leading attack, {result.attack} ({how_aggregated(result.attack, result.aggregation)}), reached an AUROC"
        f" of {interval(result.auroc)}; 0.5 is guessing, 1 is certainty."
    )
    shown = [t for t in record.curve().tpr_at if t.estimate is not None]
    if shown and shown[0].estimate is not None:
        said += (
            f" When {percent(shown[0].fpr)} of {what.other} may be named wrongly, it names"
            f" {percent(shown[0].estimate.value)} of the {what.member}."
        )
    # The highest of many is too high by selection: quoted with the interval that holds for all scores at once, and with
    # its adjusted p-value (docs/theory.md#randomisation-test).
    best = max(record.attacks, key=lambda a: a.auroc.value)
    if best is not result and best.simultaneous is not None:
        low, high = best.simultaneous
        said += (
            f" The highest of all {facts.scores} scores is {best.attack},"
            f" {how_aggregated(best.attack, best.aggregation)}: {best.auroc.value:.3f}"
            f" ({low:.3f} to {high:.3f}, simultaneous over all scores; adjusted p = {best.adjusted_p:.2g})."
        )
    return (
        f"{said} By {how} {facts.by.redraws:,} times, chance gives AUROCs as high as these with probability"
        f" {facts.auroc_p:.2g} (leaks at {facts.by.auroc_level:g} or below), and true-positive rates as high at low"
        f" false-positive rates with {facts.tpr_p:.2g} (at {facts.by.tpr_level:g})."
    )


def _canaries(record: Record) -> str:
    """The answer for canary users, how many there were, and the groups with the lowest and highest AUROC."""
    c = record.canaries
    assert c is not None
    replaced = f" {c.replaced} of them took the place of real users, who are not audited." if c.replaced else ""
    said = f"{c.decision.headline} " if c.decision else ""
    # Of a training of somebody else's only what it was given is known.
    took_part = "took part like any user" if record.planted is None else "stand in the planted training set"
    said += (
        f"{counted(c.users, 'canary user')}, planted for this audit, {took_part}: {c.held_in} were held in"
        f" and {c.held_out} held out, each by its own fair coin.{replaced}"
    )
    if c.trained_on < c.training_texts:
        said += (
            f" Of the {c.training_texts:,} training texts of those held in, defenses on the data side left"
            f" {c.trained_on:,}; numbers of documents are those before."
        )
    if record.planted is not None:
        said += _planted_rows(record.planted)
    # Canary users of one kind are few, and fair coins may leave a side empty: then there is nothing to compare.
    for kind in sorted({g.kind for g in c.groups}):
        sides = [sum(s) for s in zip(*((g.held_in, g.held_out) for g in c.groups if g.kind == kind), strict=True)]
        if 0 in sides:
            said += (
                f" The coins left no {kind.replace('_', '-')} canary user on one side: nothing is concluded about them."
            )
    measured = sorted((g for g in c.groups if g.auroc), key=lambda g: g.auroc.value if g.auroc else 0.0)
    if not measured:
        return f"{said} Too few of them are on each side to say how well the attack did on them."
    # Highest and lowest, so that the group on which the attack does best is not taken for all.
    ends = [measured[-1]] if len(measured) == 1 else [measured[-1], measured[0]]
    reached = "; the least on ".join(f"{group_name(g)}: {interval(g.auroc)}" for g in ends if g.auroc)
    most = "The leading attack did best on" if len(measured) > 1 else "The leading attack's AUROC on"
    return f"{said} {most} {reached}. " + (
        "Each has rows of one real user: they show what leaks about users with as few rows."
        if of_real_rows(record)
        else "They are made to be found: they show what can leak, not what leaks about real users."
    )


def _planted_rows(planted: PlantedFacts) -> str:
    """Whether planted rows were learned, whether they bore a loss, and how they differ from real rows by text."""
    said = ""
    if planted.training is not None and planted.training.silent_canary_users:
        number = counted(planted.training.silent_canary_users, "held-in canary user")
        said += f" {number} had no row on which training counted a loss."
    if planted.control is not None:
        said += f" Positive control {control_line(planted.control)}."
    return f"{said} {form_line(planted.form)}" if planted.form is not None else said


def _of_whom(record: Record, verdict: Verdict) -> str:
    return f"{verdict.subjects}, " if record.canaries else ""


def _bounds(record: Record) -> str:
    """The verdict on each claim, the reason for its standing first, and the best bound with its name."""
    judgement = record.judgement
    said = _in_plain_words(judgement.verdicts)
    for v in judgement.verdicts:
        reason = sentence(v.reason)
        whom = _of_whom(record, v)
        # The reason becomes the end of a sentence that begins with whom it is about.
        stated = f"{whom.capitalize()}{reason[0].lower()}{reason[1:]}" if whom else reason
        found = f"{v.outcome}{in_parentheses(v.outcome, v.standing)}"
        said.append(stated if v.claim == NO_CLAIM else f"On {v.claim}: {whom}{found}. {reason}")
    said += [sentence(w) for v in judgement.verdicts for w in v.warnings]
    # Estimates, and bounds under a condition that nobody checks (docs/theory.md#noise-family), are in the table only:
    # the best of all would often be one of them.
    bounds = [b for b in bounds_that_follow(record) if b.standing in ("certified", "indicative")]
    if bounds:
        best = max(bounds, key=lambda b: b.epsilon_lower)
        of = f"on {best.subjects}, " if record.canaries else ""
        together = len({bound.subjects for bound in bounds}) > 1
        paid = "; all groups are corrected for together" if together else ""
        said.append(
            f"Of the {len(bounds)} lower bounds on epsilon per {audited_by(record).singular} (at delta"
            f" {judgement.delta:g}) that this design supports, the highest is {best.epsilon_lower:.2f}"
            f" ({of}{best.name}, {percent(best.level, 0)}, {best.standing}); it was picked after looking, each bound"
            f" holds on its own{paid}."
        )
    elif len(bounds_that_follow(record)) < len(judgement.bounds):
        said.append(NONE_FOLLOWS.format(one=audited_by(record).singular))
    # One reason: the other bounds are refused for the same design.
    elif judgement.refused:
        said.append(f"No bound on epsilon can be given: {judgement.refused[0].reason}.")
    return " ".join(said)


def _in_plain_words(verdicts: Sequence[Verdict]) -> list[str]:
    """What became of the claims, for whoever reads one sentence; nothing where none was tested."""
    # By claim, each of which may have a verdict on real users and one on canary users.
    tested = {v.claim for v in verdicts if v.claim != NO_CLAIM}
    if not tested:
        return []
    violated = len({v.claim for v in verdicts if v.outcome is Outcome.VIOLATED})
    if len(tested) == 1:
        one = "is violated" if violated else "is not contradicted, which does not show it to be true"
        return [f"The claim that was tested {one}."]
    said = f"{violated} {'is' if violated == 1 else 'are'} violated"
    if not violated:
        said = "none is contradicted, which does not show them to be true"
    return [f"Of the {len(tested)} claims that were tested {said}."]


def _limits(record: Record) -> str:
    tested = any(v.claim != NO_CLAIM for v in record.judgement.verdicts)
    guarantee = "" if tested else " No differential-privacy guarantee was claimed or tested."
    t, what = record.training, audited_by(record)
    if t and t.epsilon is not None:
        guarantee = f" The accountant promises {t.guarantee_alone}."
        # Only where something is promised to those who are audited: an example's epsilon says nothing of users' AUROC.
        if ceiling := record.ceiling():
            guarantee += (
                f" If that holds, no attack on {what.unit} is expected to exceed an AUROC of {ceiling.auroc:.3f}."
            )
    alone = ""
    if record.split.audited == "canaries":
        rows = "have a few rows of one real user each" if of_real_rows(record) else "are made to be found"
        alone = (
            f" No real user was audited: canary users {rows}, and say what this training lets through, not how many"
            " real users could be named."
        )
    gain = record.utility.gain if record.utility else None
    learned = ""
    if gain is not None and gain.value <= 0.0 and record.decision.decision.answer is not Answer.LEAKS:
        learned = (
            f" Training made the model no better than the base model on other people's texts (gain {gain.value:.4f}"
            " nats a token): what was found is not what a model that learns more would give away."
        )
    return (
        "An audit bounds what an attacker can do from below: these attacks did this well; another may do better."
        f" Intervals are estimates: they treat {what.unit} as independent, while all scores share one model.{guarantee}"
        f"{alone}{learned}"
    )


def known(count: Count) -> str:
    """A count, or "not known"."""
    return "not known" if count.count is None else f"{count.count:,}"


def answer_line(facts: DecisionFacts) -> str:
    """The answer in a few words, as the last line of a command."""
    promise = facts.decision.promise
    return f"{facts.decision.answer.value}{'' if promise is None else _PROMISED[promise]()}"


_PROMISED = {
    Promise.WITHIN: GuaranteeComparison.WITHIN,
    Promise.ABOVE: GuaranteeComparison.ABOVE,
    Promise.BEYOND: GuaranteeComparison.BEYOND,
}
