"""The document of a made-up sweep, for what reads one."""

from pathlib import Path

import numpy as np

from heldin.attacks.kinds import get_attack
from heldin.audit.blocks import over_blocks
from heldin.audit.requirement import Requirement
from heldin.audit.results import Emitted, ExtractionFacts, ExtractionGroup, MarkExposure, MarkFacts, MarkGroup, MarkSide
from heldin.audit.shipping import Candidate, Shipping, judge_candidates
from heldin.record.facts import Ceiling, CurvePoint
from heldin.record.sweep import (
    Attacker,
    Band,
    CanaryPoint,
    CellResult,
    CellTests,
    JointVerdict,
    RocPoints,
    Rule,
    SweepResult,
    VariantResult,
)
from heldin.words.evidence import REAL_USERS, ClaimLabel
from heldin.words.guarantee import GuaranteeText, Relation
from heldin.words.split import SplitReason
from heldin.words.sweep_page import RuleReason, SweepNote

RATES = np.linspace(0, 1, 21)


def roc(auroc):
    """Power curve with this area."""
    return RocPoints(fpr=RATES.tolist(), tpr=(RATES ** ((1 - auroc) / auroc)).tolist())


def made_sweep(names=("none", "cap10", "uls"), blocks=5, *, shipped=None, dominated=(), contradicted=False):
    """A sweep whose variants leak and learn the less, the later they stand; from the third on with a promise."""
    rng = np.random.default_rng(0)
    variants, cells = [], []
    for i, name in enumerate(names):
        private, place = i >= 2, i / max(1, len(names) - 1)
        aurocs = [round(0.8 - 0.28 * place + 0.01 * x, 3) for x in rng.standard_normal(blocks)]
        gains = [round(0.6 - 0.3 * place + 0.01 * x, 4) for x in rng.standard_normal(blocks)]
        variants.append(_variant(name, names[0], aurocs, gains, private, name in dominated))
        cells += [
            _cell(block, name, aurocs[block - 1], gains[block - 1], private, contradicted and block == 1)
            for block in range(1, blocks + 1)
        ]
    cells.sort(key=lambda cell: cell.block)
    rule = shipping = None
    if shipped is not None:
        rule = Rule(require=["auroc at most 0.6"], prefer="loss_gain_over_base", candidates=[shipped], level=0.05)
        own = [cell.auroc for cell in cells if cell.variant == shipped]
        judged = judge_candidates([Candidate(shipped, {}, {"auroc": [own]})], [Requirement("auroc", 0.6)], 0.05)
        shipping = Shipping(
            answer="ship",
            variant=shipped,
            block=1,
            level=0.05,
            candidates=judged,
            reason=RuleReason.SELECTED(variant=shipped, block=1, percent=95.0, candidates=1),
        )
    return SweepResult(
        name="made-up",
        folder=Path("runs/made-up"),
        sweep="ab" * 32,
        blocks=blocks,
        variants=variants,
        cells=cells,
        notes=[SweepNote.GROUPS()],
        shipping=shipping,
        created="2026-11-23T00:00:00+00:00",
        version="0.1.0",
        command="heldin sweep made-up.yaml",
        rule=rule,
        attacker=Attacker(
            attack="likelihood-ratio-per-token",
            asks=get_attack("likelihood-ratio-per-token").facts(),
            aggregation="mean",
            texts="fresh",
            fpr=0.05,
            audited="users",
        ),
        config={"seed": 0, "corpus": {"source": {"kind": "synthetic"}}},
    )


def _variant(name, first, aurocs, gains, private, beaten):
    ceiling = Ceiling(auroc=0.9, fpr=RATES.tolist(), tpr=np.minimum(1, 4 * RATES).tolist()) if private else None
    is_first = name == first
    return VariantResult(
        name=name,
        group=first,
        defense="uls" if private else "none",
        promise=(
            GuaranteeText.EPSILON(epsilon=8.0, delta=1e-5, unit="user", relation=Relation.ADD_REMOVE())
            if private
            else GuaranteeText.NO_PROTECTION()
        ),
        unit="user" if private else "none",
        privacy_unit="user" if private else "none",
        trained_users=150,
        epsilon=8.0 if private else None,
        delta=1e-5 if private else None,
        cells=len(aurocs),
        auroc=over_blocks(aurocs, (aurocs[0] - 0.05, aurocs[0] + 0.05)),
        auroc_difference=None if is_first else over_blocks([a - 0.8 for a in aurocs], (-0.2, 0.1)),
        loss=over_blocks([5.0 - gain for gain in gains], digits=4),
        perplexity=over_blocks(np.exp([5.0 - gain for gain in gains]).tolist()),
        loss_difference=None if is_first else over_blocks([0.6 - gain for gain in gains], (0.1, 0.2), digits=4),
        gain=over_blocks(gains, (gains[0] - 0.01, gains[0] + 0.01), digits=4),
        seconds=61.5,
        gradients=3840.0 if private else 12000.0,
        units_of_plan=0.98 if private else None,
        gradients_of_plan=0.75 if private else None,
        jointly_contradicted=False,
        differs={} if is_first else {"defense.kind": "uls", "defense.cohort": 16},
        epsilon_per_user=8.0 if private else None,
        flagged=over_blocks([40.0 * (a - 0.4) for a in aurocs], digits=1),
        wrongly=4.6,
        epsilon_at_least=0.25 if not private else None,
        ceiling=ceiling,
        canaries=[
            CanaryPoint(
                kind="substring",
                length=length,
                documents=None,
                auroc=over_blocks([min(0.99, a + k / 20) for a in aurocs]),
            )
            for k, length in enumerate((1, 10, 100))
        ],
        bands=[
            Band(of=of, third=third, typical=10.0 * third, users=50, above=0.5 + (aurocs[0] - 0.5) * third / 3)
            for of in ("records", "word divergence")
            for third in (1, 2, 3)
        ],
        dominated_by=[first] if beaten else [],
    )


def _cell(block, name, auroc, gain, private, contradicted):
    verdict = JointVerdict(
        subjects=REAL_USERS,
        claim=ClaimLabel.STATED(epsilon=8.0, delta=1e-5),
        outcome="contradicted" if contradicted else "consistent",
        standing="certified",
        p_value=0.001 if contradicted else 1.0,
        adjusted=0.04 if contradicted else 1.0,
    )
    return CellResult(
        block=block,
        variant=name,
        state="done",
        reason="",
        seconds=61.5,
        auroc=auroc,
        loss=round(5.0 - gain, 4),
        perplexity=round(float(np.exp(5.0 - gain)), 4),
        gain=gain,
        gradients=3840,
        peak_memory=10**9,
        answer="leaks" if auroc > 0.7 else "inconclusive" if auroc > 0.6 else "no leak found",
        canaries_answer="leaks" if auroc > 0.6 else "no leak found",
        verdicts=[verdict] if private else [],
        epsilon_at_least=None,
        held_in=100,
        held_out=100,
        ledger_commitment=f"{block:02d}" * 32,
        roc=roc(auroc),
        curve=[
            CurvePoint(
                step=step,
                epoch=step / 20,
                train_loss=5.0,
                held_in_loss=4.9,
                held_out_loss=5.0 - gain * step / 40,
                auroc=0.5,
            )
            for step in (10, 20, 40)
        ],
        tests=CellTests(
            texts=1200,
            scores=15,
            attacks=5,
            sides=SplitReason.FAIR_COINS_OF_BLOCK(audited="users", block=block),
            certifiable=True,
            false_alarms=0.05,
            baselines=2,
            separating=[],
            extraction=None,
            marks=None,
        ),
    )


def with_extraction(result, held_in=(3, 60), held_out=(0, 58), marks=(9, 10), blocks=None):
    """The sweep as if extraction had been asked for, in all cells or in those of some blocks."""
    sides = [("held in", held_in), ("held out", held_out), ("canary users held in", (1, 10))]
    groups = [
        ExtractionGroup(
            group=name, users=of, measured=of, texts=of, too_short=0, in_others=None, in_public=None,
            emitted=[
                Emitted(queries=n, users=count, lower=0.0, upper=0.2, only_theirs=None, reference=0) for n in (1, 100)
            ],
        )
        for name, (count, of) in sides
    ]  # fmt: skip

    def side(first, users):
        ranked = MarkExposure(highest=0, first_percent=first, median=None)
        return MarkSide(users=users, target=ranked, lower=0.0, upper=0.3, reference=ranked)

    of_marks = [MarkGroup(kind="rare_phrase", length=None, candidates=1000, held_in=side(*marks), held_out=side(0, 12))]
    facts = ExtractionFacts(prefix=50, suffix=50, temperature=1.0, top_k=40, probability=0.5, groups=groups)
    cells = [
        cell.model_copy(
            update={"tests": cell.tests.model_copy(update={"extraction": facts, "marks": MarkFacts(groups=of_marks)})}
        )
        if blocks is None or cell.block in blocks
        else cell
        for cell in result.cells
    ]
    return result.model_copy(update={"cells": cells})
