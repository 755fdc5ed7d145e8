"""The report of one run or audit: its table of contents, and the sections on facts."""

from heldin.audit.results import CanaryFacts, TrainingsFacts
from heldin.audit.utility import Utility
from heldin.base.wording import counted
from heldin.record.document import EffortFacts, Record
from heldin.record.facts import Count, Overlaps, TrainingFacts, TurnFacts
from heldin.record.plan_fit import figures_of
from heldin.record.planted_facts import PlantedFacts
from heldin.reports import (
    annex,
    annex_parts,
    attacks,
    claims,
    extraction,
    figures,
    findings,
    limits,
    measures,
    page_one,
)
from heldin.reports.blocks import Block, Entry, FactList, Paragraph, Place, Report, Verbatim, assemble
from heldin.reports.wording import audited_by, command_in_lines, explain_terms, texts_of
from heldin.words.page_one import Handling
from heldin.words.people import Wording
from heldin.words.split import AtEndpoint
from heldin.words.statement import joined


def report_record(record: Record) -> Report:
    """Return the whole report of a record."""
    front, body, closing = (assemble(record, entries) for entries in (FRONT, SECTIONS, CLOSING))
    terms, glossary = explain_terms(front, (*body, *closing))
    return Report(
        # The folder of an audit is called audit unless somebody names it.
        title="User-inference audit" + ("" if record.name == "audit" else f": {record.name}"),
        version=record.environment.heldin,
        notice=str(Handling.TRAINED() if record.kind == "run" else Handling.AUDITED()),
        sections=(*front, terms, *body, glossary, *closing),
    )


def list_facts(record: Record) -> FactList:
    """Return facts about data, split, models, training and environment."""
    # Other rows, not empty ones: an audit of trainings has no held-in users, no overlaps and no audited model.
    if record.trainings:
        return FactList(_training_facts(record, record.trainings))
    rows = [*_of_corpus(record), *_of_split(record), *_of_models(record)]
    if record.canaries:
        rows.append(_of_canaries(record, record.canaries))
    # An audit of somebody else's model draws no coins, and has neither key nor ledger.
    split = record.split
    if split.key_commitment and split.ledger_commitment:
        commitments = f"{split.key_commitment[:16]}, {split.ledger_commitment[:16]}"
        rows.append(("commitments to key and ledger", commitments))
    if record.training:
        rows += _of_training(record.training)
    if record.effort:
        rows.append(("training took", took(record.effort)))
    if record.planted:
        rows += _of_planted(record.planted)
    if record.utility:
        rows += _of_utility(record.utility)
    if record.cell:
        cell = record.cell
        rows.append(("run of a sweep", f"repetition {cell.block}, {cell.variant}; {cell.sweep[:16]}"))
    return FactList([*rows, *_of_decision(record), *_of_environment(record)])


def _of_corpus(record: Record) -> list[tuple[str, str]]:
    c, users = record.corpus, record.split.audited == "users"
    rows = [
        (
            f"users in the corpus, {'sentences as records' if c.text_unit == 'sentence' else 'records'}",
            f"{c.users:,}, {c.records:,} ({sum(s.without_text + s.unusable for s in c.skipped):,} rows skipped)",
        ),
        _records(c.records_per_audited_user, "audited user" if users else "user who takes part"),
        (
            "users not audited" if users else "users left out",
            f"{c.dropped_by_pattern} by pattern, {c.dropped_by_minimum} with too few and {c.dropped_by_maximum} with"
            f" too many records, {c.dropped_by_sampling} by sampling",
        ),
        ("public users, their records", f"{c.public_users:,}, {c.public_records:,}"),
        ("corpus fingerprint", c.fingerprint[:16]),
    ]
    if c.turns is not None:
        t = c.turns
        finder = "columns" if t.mask_from is None else f"the chat template's {t.mask_from} ({(t.template or '')[:16]})"
        rows += [
            ("rows are", f"{t.format}, column '{t.column}'; turns found by {finder}"),
            ("turns that count", _turns_that_count(t, trained=record.training is not None)),
        ]
    if (record.config.get("corpus") or {}).get("source", {}).get("kind") == "synthetic":
        rows.append(("corpus", "synthetic: no person wrote it"))
    return rows


def _turns_that_count(turns: TurnFacts, *, trained: bool) -> str:
    scored = f"scored: {turns.attack}"
    return f"loss: {turns.loss}; {scored}; data steps and canary users: {turns.counting}" if trained else scored


def _of_split(record: Record) -> list[tuple[str, str]]:
    s, words, scored = record.split, audited_by(record), record.scored_texts
    return [
        (
            "members, non-members, always trained on",
            f"{s.held_in:,} and {s.held_out:,} {words.unit}, {counted(s.always_in, 'user')}"
            f" ({_ASSIGNED[s.assignment]})",
        ),
        ("records by part", ", ".join(f"{k} {v:,}" for k, v in s.records_by_part.items())),
        ("how membership is known", "heldin drew the groups" if s.known_by == "measured" else s.known_by),
        *_overlaps(s.overlaps, words, scored.kind),
        ("scored texts", f"{record.attacker_texts:,}, {texts_of(scored.kind)} ({scored.known_by})"),
        ("what is scored", str(record.scoring_rule)),
    ]


def _of_models(record: Record) -> list[tuple[str, str]]:
    target = record.target
    named = ", ".join(filter(None, (str(target.name), target.architecture, target.loaded)))
    # 16 of 64 hexadecimal digits: enough to compare by eye; the whole hash is in record.json.
    rows = [
        ("target", f"{named}; {target.fingerprint[:16]}"),
        ("reference", f"{record.reference.name}; {record.reference.fingerprint[:16]}"),
    ]
    if endpoint := target.endpoint:
        rows.append(("reached at", f"{endpoint.url}; {AtEndpoint.NO_FINGERPRINT()}"))
    if record.per_text:
        rows.append(("scores are compared", "per text, since the models may have different tokenizers"))
    if record.precision:
        rows.append(("scored in", record.precision.line))
    return rows


def _of_canaries(record: Record, k: CanaryFacts) -> tuple[str, str]:
    return (
        "canary users, trained on and not",
        f"{k.users}, {k.held_in} and {k.held_out}; {k.replaced} in place of real users; {_taught(record, k)} of their"
        f" texts, scored {k.attacker_texts:,}",
    )


def _of_training(t: TrainingFacts) -> list[tuple[str, str]]:
    chosen = f"{t.selection}, step {t.chosen_step:,}"
    rows = [
        ("fine-tuning", f"{t.steps:,} steps ({chosen}) in {t.seconds:,.0f} s; defense: {t.defense}"),
        ("trained on", f"{counted(t.records, 'text')} of {counted(t.users, 'user')}"),
    ]
    if (p := t.preference) is not None:
        smoothed = f", label smoothing {p.label_smoothing:g}" if p.label_smoothing else ""
        compared = "; reference: the model before training" if p.reference else ""
        rows.append(("objective of the pairs", f"{p.objective}, beta {p.beta:g}{smoothed}{compared}"))
    if (k := t.picked) is not None:
        layers = f"{len(k.layers)} of {counted(k.candidates, 'linear layer')}: {', '.join(k.layers)}"
        rows.append((f"adapters, picked by {counted(k.users, 'public user')}", f"on {layers}"))
    if t.uncounted:
        rows.append(("without a counted token", f"{t.uncounted:,} of these texts, which add nothing to training"))
    rows.append(("guarantee", t.guarantee))
    rows += [(str(r.name), f"{r.did} of {r.before:,} training records of {r.users:,} users") for r in t.removals]
    # A plain run's noise multiplier is 0, which would read as a setting of a mechanism.
    if not t.is_plain:
        rows.append(("noise multiplier", f"{t.noise_multiplier:.5g}"))
    if t.fit is not None:
        rows.append(("plan and data", joined(figures_of(t.fit))))
    if t.gradients is not None:
        rows.append(("gradients", f"of {t.gradients:,} records, a record once for each step that uses it"))
    return rows


def _of_planted(p: PlantedFacts) -> list[tuple[str, str]]:
    return [
        ("training set", f"{p.rows:,} rows, written {p.planted}; {p.training_set[:16]}"),
        ("look at the training", f"{p.look} of {p.looks} that were planned"),
        ("plan of the audit", p.plan[:16]),
    ]


def _of_utility(u: Utility) -> list[tuple[str, str]]:
    levels = ("-" if level is None else f"{level:.2f}" for level in (u.perplexity, u.base_perplexity))
    gain = f", gain {u.gain.value:.3f} ({u.gain.lower:.3f} to {u.gain.upper:.3f})" if u.gain else ""
    rows = [
        (
            f"loss on test texts, nats per {u.per}",
            f"{u.loss:.3f} on {u.texts:,} texts of {u.users:,} non-members, the mean over users; the base model"
            f" {u.base_loss:.3f}{gain}",
        )
    ]
    if (right := u.preferred) is None:
        return [*rows, ("perplexity of all their tokens", "{}; the base model {}".format(*levels))]
    share, lower, upper = (100 * value for value in (right.value, right.lower, right.upper))
    raised = f"of {share:.0f} of 100 pairs ({lower:.0f} to {upper:.0f}; 50 is guessing), compared with the base model"
    return [*rows, ("raised the chosen answer", raised)]


def _of_decision(record: Record) -> list[tuple[str, str]]:
    auroc = record.primary().auroc
    return [
        ("the answer is decided by", decided_by(record)),
        (
            "interval",
            f"{auroc.method}, {record.resamples:,} resamples of {audited_by(record).unit}, an {auroc.label}; of all"
            " scores at once by DeLong's covariance",
        ),
    ]


def _of_environment(record: Record) -> list[tuple[str, str]]:
    e = record.environment
    return [
        ("heldin, Python, source", f"{e.heldin}, {e.python}, {e.git_revision or 'not a checkout'}"),
        ("packages", ", ".join(f"{k} {v}" for k, v in e.packages.items())),
        *_kinds(record),
        ("device", f"{e.device}, {e.threads} threads"),
    ]


def _kinds(record: Record) -> list[tuple[str, str]]:
    """Return the config's kinds from other packages, and a hash of their code."""
    return [(f"{kind.kind} ({kind.family})", kind.code) for kind in record.kinds]


def took(effort: EffortFacts) -> str:
    """Return the effort of training as text."""
    parts = [f"{effort.tokens:,} tokens in {effort.step_seconds:,.0f} s of steps"]
    if effort.tokens_per_second is not None and effort.gradients_per_second is not None:
        parts.append(
            f"{effort.tokens_per_second:,.0f} tokens and {effort.gradients_per_second:,.1f} gradients a second"
        )
    parts.append(f"{' and '.join(effort.precisions)} on {' and '.join(effort.devices)}")
    if effort.processes > 1:
        parts.append(f"{effort.processes:,} processes")
    if effort.peak_memory is not None:
        parts.append(f"at most {effort.peak_memory / 2**30:.1f} GiB of GPU memory")
    return "; ".join([*parts, *effort.notices])


def _training_facts(record: Record, trainings: TrainingsFacts) -> list[tuple[str, str]]:
    """Return (name, value) pairs about independent trainings."""
    c, s, e, t = record.corpus, record.split, record.environment, record.training
    assert t is not None
    return [
        ("trainings, with and without the user", f"{trainings.runs}, {s.held_in} and {s.held_out} (by {s.assignment})"),
        ("users in every training, their records", f"{t.users:,}, {t.records:,}"),
        ("the worst-case user's documents", f"{trainings.documents}, trained on and scored"),
        ("public users, their records", f"{c.public_users:,}, {c.public_records:,}"),
        ("what is scored", str(record.scoring_rule)),
        ("base model and reference", f"{record.reference.name}; {record.reference.fingerprint[:16]}"),
        ("the trainings' job", record.target.fingerprint[:16]),
        ("corpus fingerprint", c.fingerprint[:16]),
        ("commitment to the key of the audit", (s.key_commitment or "")[:16]),
        ("fine-tuning", f"{t.steps} steps, {t.seconds:,.0f} s in all; defense: {t.defense}"),
        ("guarantee", t.guarantee),
        ("noise multiplier", f"{t.noise_multiplier:.5g}"),
        ("interval", f"{record.primary().auroc.method}, {record.resamples:,} resamples of training runs"),
        ("heldin, Python, source", f"{e.heldin}, {e.python}, {e.git_revision or 'not a checkout'}"),
        ("packages", ", ".join(f"{k} {v}" for k, v in e.packages.items())),
        *_kinds(record),
        ("device", f"{e.device}, one thread per training"),
    ]


def decided_by(record: Record) -> str:
    """Return the thresholds that decide the answer, and the p-values for comparison with these thresholds."""
    d, by = record.decision, record.decision.by
    return (
        f"{by.redraws:,} redraws ({d.law.value}, {'exact' if d.decision.exact else 'indicative'}) of {d.scores} scores:"
        f" p = {d.auroc_p:.2g} by AUROC (level {by.auroc_level:g}), {d.tpr_p:.2g} by TPR (level {by.tpr_level:g});"
        f" no leak found below AUROC {by.auroc:g} and TPR {by.tpr:g} at FPR {by.fpr:g}"
    )


_ASSIGNED = {
    "coin": "independent fair coins",
    "exact_half": "an exact half",
    "fixed": "a fixed split",
    "unknown": "not stated how",
}


def _taught(record: Record, canaries: CanaryFacts) -> str:
    """Return how many of the canary users' texts training used. If somebody else trained, return how many texts the
    training set has."""
    count = f"{canaries.trained_on:,} of {canaries.training_texts:,}"
    return f"trained on {count}" if record.planted is None else f"the training set holds {count}"


def _records(percentiles: list[int], whose: str) -> tuple[str, str]:
    # With fewer than 20 users only the median has ten on either side (``audit.coarse.coarse_percentiles``).
    if len(percentiles) == 1:
        return f"records per {whose}, median", str(percentiles[0])
    return f"records per {whose}, P10 / P25 / P50 / P75 / P90", " / ".join(f"{n:,}" for n in percentiles)


def _overlaps(overlaps: Overlaps, words: Wording, scored: str) -> list[tuple[str, str]]:
    """Return how many texts occur in both groups, by exact match, for each check that was made."""
    # Those that are in training by design, where they are scored, are not counted.
    texts = "texts set aside for the attacker" if scored in ("training", "mixed") else "scored texts"
    return [
        (f"{texts} in the same {words.singular}'s training", _count(overlaps.scored_texts_in_same_users_training)),
        (f"{texts} in another's training", _count(overlaps.scored_texts_in_other_users_training)),
        (f"texts of {words.other} in training", _count(overlaps.held_out_texts_in_training)),
        (f"{words.other} in training, by name", _count(overlaps.held_out_users_in_training)),
        ("scored texts of non-members among members' texts", _count(overlaps.held_out_texts_in_held_in)),
        ("audited texts among the public ones", _count(overlaps.audited_texts_in_public)),
    ]


def _count(count: Count) -> str:
    return "not known" if count.count is None else f"{count.count:,}"


def explain_repeat(record: Record) -> list[Block]:
    """Return instructions for repeating the audit."""
    secrets = {
        "run": (
            "The run folder keeps secrets (the key of the coin flips and the ledger of members) until heldin purge"
            " removes them. A new run draws new coins."
        ),
        "trainings": (
            "The folder keeps the key of the audit, which decides the coin flips and the key of every training. The"
            " same command continues in this folder; elsewhere it draws a new key."
        ),
    }
    kind = "trainings" if record.trainings else record.kind
    stored = [Paragraph(secrets[kind])] if kind in secrets else []
    return [Verbatim(command_in_lines(record.command)), *stored, annex_parts.attach_configuration(record.config)]


# The table of contents. Terms of page one come after it, and others before the annex.
FRONT: tuple[Entry[Record], ...] = (
    Entry("answer", "", page_one.show_answer, place=Place.FRONT),
    Entry("picture", "", figures.plot_people, place=Place.FRONT),
    Entry("limits-table", "", limits.tabulate_limits, place=Place.FRONT),
    Entry("lines", "", page_one.show_lines, place=Place.FRONT),
)
SECTIONS: tuple[Entry[Record], ...] = (
    *findings.SECTIONS,
    Entry("conditions", "What certified statements rest on", claims.tabulate_conditions, whole=True),
    Entry("roc", "How well the attacks separate the groups", figures.plot_roc),
    Entry("attacks", "", attacks.tabulate_attacks, whole=True),
    Entry("rates", "True-positive rate at fixed false-positive rates", attacks.tabulate_rates, level=2, whole=True),
    Entry("bounds", claims.title_bounds, claims.tabulate_bounds, level=2, whole=True),
    Entry("promise", claims.title_promise, claims.tabulate_promise, level=2, whole=True),
    Entry("blind", "Blind baselines", attacks.tabulate_baselines, level=2, whole=True),
    Entry("knowledge", "What the attacker knows", figures.plot_knowledge, level=2),
    Entry("dials", "Other settings of the attack", attacks.tabulate_dials, level=2, whole=True),
    Entry("extraction", "Extraction", extraction.show_extraction, whole=True),
    Entry("marks", "Exposure of canary users' marks", attacks.tabulate_marks, level=2, whole=True),
    Entry("measures", "Measures of other packages", measures.show_measures, whole=True),
    Entry("exposure", "Who is most exposed", attacks.tabulate_exposure, whole=True),
    Entry("correlations", "", attacks.tabulate_correlations, whole=True),
    Entry("canaries", "Canary users", attacks.show_canaries),
    Entry("curves", "While the model was fine-tuned", attacks.show_curves),
    Entry("facts", "Facts", list_facts),
)
CLOSING: tuple[Entry[Record], ...] = (
    Entry("repeat", "To repeat this", explain_repeat),
    *annex.SECTIONS,
)
