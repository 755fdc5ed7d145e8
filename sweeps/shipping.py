"""Apply a sweep's decision rule to its cells: which candidate may be released, and the model of which block."""

from collections.abc import Mapping, Sequence
from functools import partial

import numpy as np

from heldin.audit.decision import Answer
from heldin.audit.requirement import MEASURES, Requirement
from heldin.audit.shipping import Candidate, CandidateResult, Shipping, judge_candidates
from heldin.record.document import Record
from heldin.record.requirements import LimitStatus, aurocs, epsilon_per_user, held_against
from heldin.sweeps.sweep_config import DecisionRule, Sweep
from heldin.words.statement import Statement
from heldin.words.sweep_page import RuleReason


def shipping(sweep: Sweep, records: Mapping[str, Mapping[int, Record]]) -> Shipping | None:
    """Return the result of the sweep's decision rule; None without a rule.

    Args:
        records: records of the finished cells, by variant and block.
    """
    rule = sweep.config.decision
    if rule is None:
        return None
    answered = partial(Shipping, variant=None, block=None, level=rule.level)
    unfinished = [name for name in rule.candidates if len(records.get(name, {})) < sweep.config.blocks]
    if unfinished:
        reason = RuleReason.UNFINISHED(variants=", ".join(unfinished))
        return answered(answer="cannot be judged", candidates=[], reason=reason)
    unmeasured = [name for name in rule.candidates if not _measurable(rule, records[name])]
    if unmeasured:
        reason = RuleReason.NOT_MEASURED(variants=", ".join(unmeasured))
        return answered(answer="cannot be judged", candidates=[], reason=reason)
    results = judge_candidates(
        [_candidate(name, records[name]) for name in rule.candidates], rule.requirements(), rule.level
    )
    passing = [result for result in results if result.passes]
    # The block first, in the order that was fixed: the model that is handed out passes by its own interval too.
    handed = {result.name: _own_passing(records[result.name], rule.requirements()) for result in passing}
    passing = [result for result in passing if handed[result.name] is not None]
    if passing:
        best = max(passing, key=lambda result: _preference(rule, records[result.name]))
        block = handed[best.name]
        percent = 100 * (1 - rule.level)
        reason = RuleReason.SELECTED(variant=best.name, block=block, percent=percent, candidates=len(results))
        return answered(answer="ship", variant=best.name, block=block, candidates=results, reason=reason)
    if all(result.breaks for result in results):
        broken = [RuleReason.BROKEN(variant=result.name, limits=_broken(result)) for result in results]
        return answered(answer="none passes", candidates=results, reason=RuleReason.NONE_PASSES(broken=broken))
    return answered(answer="cannot be judged", candidates=results, reason=_what_would_do(results))


def _broken(candidate: CandidateResult) -> str:
    if candidate.disqualified:
        return candidate.disqualified
    return ", ".join(test.requirement for test in candidate.tests if test.broken)


def _what_would_do(results: Sequence[CandidateResult]) -> Statement:
    enough = [
        RuleReason.WITH_BLOCKS(variant=candidate.name, blocks=candidate.blocks_needed)
        for candidate in results
        if candidate.blocks_needed
    ]
    if enough:
        return RuleReason.WOULD_PASS(variants=enough)
    if any(candidate.passes for candidate in results):
        return RuleReason.NO_SINGLE_MODEL()
    return RuleReason.MORE_USERS()


def _candidate(name: str, records: Mapping[int, Record]) -> Candidate:
    in_order = [records[block] for block in sorted(records)]
    training = in_order[0].training
    contradicted = [
        f"block {block}: {verdict.subjects}: {verdict.claim} is contradicted ({verdict.standing.value})"
        for block, record in sorted(records.items())
        for verdict in record.judgement.verdicts
        if verdict.outcome.value == "contradicted"
    ]
    return Candidate(
        name=name,
        exact={"epsilon_per_user": epsilon_per_user(training)},
        measured={
            "auroc": _aurocs(in_order),
            "loss": [[record.utility.loss for record in in_order if record.utility]],
            "loss_gain_over_base": [
                [record.utility.gain.value for record in in_order if record.utility and record.utility.gain]
            ],
        },
        disqualified="; ".join(contradicted),
    )


def _aurocs(records: Sequence[Record]) -> list[list[float]]:
    """Return AUROCs over blocks, for each attack and each changed setting. The rule uses their largest confidence
    limit."""
    by_name = [aurocs(record) for record in records]
    return [[block[name].value for block in by_name] for name in by_name[0] if all(name in block for block in by_name)]


def _measurable(rule: DecisionRule, records: Mapping[int, Record]) -> bool:
    asked = {requirement.of for requirement in rule.require} | {rule.prefer}
    utility = [record.utility for record in records.values()]
    measured = all(block is not None and block.gain is not None for block in utility)
    return measured or not asked & {"loss", "loss_gain_over_base"}


def _own_passing(records: Mapping[int, Record], requirements: Sequence[Requirement]) -> int | None:
    """Return the first block whose model meets every requirement by its own 95 % intervals; None if no model does.

    A model without a leak in its audit takes precedence over a model with a leak.
    """
    held = {block: held_against(record, requirements) for block, record in records.items()}
    # What is exact is the same for all blocks, and was judged before.
    kept = [
        block for block, tests in held.items() if all(test.exact or test.status is LimitStatus.MET for test in tests)
    ]
    return min(kept, key=lambda block: (records[block].decision.decision.answer is Answer.LEAKS, block), default=None)


def _preference(rule: DecisionRule, records: Mapping[int, Record]) -> float:
    """Return the mean of the preferred measure over blocks. Its sign makes larger values better."""
    candidate = _candidate("", records)
    higher = MEASURES[rule.prefer]
    if rule.prefer in candidate.exact:
        value = candidate.exact[rule.prefer]
        return -np.inf if value is None else (value if higher else -value)
    worst = max(float(np.mean(values)) for values in candidate.measured[rule.prefer])
    return worst if higher else -worst
