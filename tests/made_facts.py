"""Parts of a record that are made up, for what reads records, and evidence for what decides."""

import numpy as np

from heldin.attacks.kinds import ATTACKS, get_attack
from heldin.attacks.protocol import Dial
from heldin.audit.answer import DecisionFacts
from heldin.audit.attack_results import AttackResult, Curve, Histogram, TprAt
from heldin.audit.bootstrap import Estimate
from heldin.audit.coarse import ScoreGroups
from heldin.audit.decision import Answer, AnswerEvidence, DecisionConfig, RateEvidence, ScoreEvidence, decide
from heldin.audit.flagged import AttackChoice, CountedAttack, flagged_by
from heldin.audit.headline import headline, notes
from heldin.audit.randomisation import Law
from heldin.audit.results import CanaryFacts
from heldin.defenses.choices import ConstantDivisor, FlatClip
from heldin.defenses.mechanism import Mechanism
from heldin.defenses.samplers import PoissonSampler
from heldin.record.document import Record
from heldin.record.facts import SkippedRows
from heldin.words.people import USERS
from heldin.words.statement import Code

NOTHING_SKIPPED = SkippedRows(group="corpus", rows=90, without_text=0, unusable=0, users=9, users_with=0, users_lost=0)


class Made(Code):
    """A statement of the tests, in whatever words."""

    TEXT = "{text}"


def stated(text):
    """A statement whose sentence is the text."""
    return Made.TEXT(text=text)


def canary_facts(groups, **changes):
    """Twenty canary users in these groups, half of them held in."""
    facts = {
        "users": 20,
        "held_in": 10,
        "held_out": 10,
        "replaced": 20,
        "of_real_rows": 0,
        "training_texts": 9,
        "trained_on": 9,
    }
    return CanaryFacts(**{**facts, "attacker_texts": 20, "groups": groups, "blind": [], "decision": None, **changes})


def estimate(value, lower, upper, method="bootstrap percentile"):
    return Estimate(value=value, mean=value, deviation=0.01, lower=lower, upper=upper, method=method)


def attack_result(value, lower, upper, **changes):
    """One attack, whose TPR is 0.25 at an FPR of 0.05; a name that no attack has is taken for another ratio."""
    name = changes.get("attack", "likelihood-ratio")
    result = AttackResult(
        attack=name,
        asks=get_attack(name if name in ATTACKS.ours else "likelihood-ratio").facts(),
        aggregation="mean",
        auroc=estimate(value, lower, upper),
        simultaneous=(lower, upper),
        adjusted_p=0.2,
        length_correlation=0.1,
        curve=Curve(
            fpr=[0.0, 0.5, 1.0],
            tpr=[0.0, 0.75, 1.0],
            histogram=Histogram(edges=[0.0, 1.0, 2.0], held_in=[10, 30], held_out=[30, 10]),
            tpr_at=[TprAt(fpr=0.001, estimate=None), TprAt(fpr=0.05, estimate=estimate(0.25, 0.1, 0.4))],
        ),
    )
    return result.model_copy(update=changes)


def score(auroc=0.5, *, name="likelihood-ratio (mean over texts)", adjusted_p=1.0, at_most=None, tpr=0.05):
    """A score of the family, its limits 0.05 around it."""
    rate = RateEvidence(0.05, tpr, max(0.0, tpr - 0.04), tpr + 0.06, tpr + 0.06, 1.0)
    limit = max(auroc, 0.5) + 0.05 if at_most is None else at_most
    return ScoreEvidence(name, auroc, auroc - 0.05, auroc + 0.05, limit, adjusted_p, (rate,))


def evidence(*scores, **changes):
    """400 users of whom heldin drew the sides, nothing promised, p-values as the scores have them."""
    its = scores or (score(),)
    return AnswerEvidence(
        **{
            "users": 400,
            "held_out": 200,
            "scores": its,
            "auroc_p": min(s.adjusted_p for s in its),
            "tpr_p": 1.0,
            "reversed_p": 1.0,
            "auroc_margin": 1.6,
            "tpr_margin": 1.6,
            "exact": True,
            **changes,
        }
    )


def decision_of(its, *, lengths=None, by=None, what=USERS):
    """The facts that a record has of a decision on this evidence."""
    by = by or DecisionConfig()
    decided = decide(its, by)
    flagged, best = flagged_in(its, decided, by)
    return DecisionFacts(
        statement=headline(its, decided, by, what),
        remarks=notes(its, by, lengths or [0.0] * len(its.scores), what),
        decision=decided,
        by=by,
        flagged=flagged,
        best=best,
        scores=len(its.scores),
        law=Law.COINS,
        auroc_p=its.auroc_p,
        tpr_p=its.tpr_p,
        reversed_p=its.reversed_p,
    )


def flagged_in(its, decided, by):
    """The people whom page one counts, by groups of users that have the scores' rates, and those of the best attack."""
    if decided.answer is Answer.NOT_VALID:
        return None, None
    outside = min(its.held_out, its.users // 2)
    inside = its.users - outside

    def counted(score, choice, among):
        rate = score.at(by.fpr)
        members, others = round(inside * rate.value), round(outside * rate.fpr)
        sides = np.array([members, inside - members]), np.array([others, outside - others])
        return flagged_by(counted_attack(score.name, *sides), by.fpr, choice, among)

    if decided.separates:
        return counted(its.scores[decided.strongest], AttackChoice.DECIDING, len(its.scores)), None
    primary = counted(its.scores[0], AttackChoice.PRIMARY, 1)
    highest = max(its.scores, key=lambda score: score.at(by.fpr).value)
    return primary, counted(highest, AttackChoice.BEST, len(its.scores)) if len(its.scores) > 1 else None


def counted_attack(label, members, others):
    """An attack by its label, such as "loss (mean over texts; documents: 4)", with members and non-members by group."""
    attack, _, rest = label.partition(" (")
    how, _, turned = rest.rstrip(")").partition("; ")
    dial = Dial(*turned.split(": ")) if turned else None
    return CountedAttack(attack, how.split(" ")[0] or "mean", dial, ScoreGroups(members, others, (0.0, 1.0, 2.0)))


def private_plan(**changes):
    """User-level sampling of epsilon 4 at delta 1e-6, but for the changes."""
    fields = {
        "unit": "user",
        "sampled": "user",
        "sampler": PoissonSampler.of(1024, 16),
        "clip": FlatClip(norm=1.0),
        "noise_multiplier": 0.92826,
        "steps": 1000,
        "delta": 1e-6,
        "divisor": ConstantDivisor(value=16),
    }
    return Mechanism(**{**fields, **changes})


def changed_record(record, **changes):
    """The record with other fields, or facts of a measure by its name, validated anew; None: it was not measured."""
    measured = {name: changes.pop(name) for name in ("utility", "precision", "extraction", "marks") if name in changes}
    measures = {**record.measures, **measured}
    kept = {name: facts for name, facts in measures.items() if facts is not None}
    return Record.model_validate({**record.model_dump(), "measures": kept, **changes})


def decided_record(record, its, **changes):
    """The record with the decision on this evidence."""
    return changed_record(record, decision=decision_of(its).model_dump(), **changes)
