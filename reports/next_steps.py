"""What to do with an answer, and what the words of a report mean."""

from heldin.audit.answer import DecisionFacts
from heldin.audit.blind import REFERENCE
from heldin.audit.decision import Answer, Promise
from heldin.bounds.verdict import Outcome, Standing
from heldin.record.document import Record
from heldin.reports.wording import audited_by
from heldin.words.answer import ComparisonFlaw

# (term, words of a report that need it: none for those that every report has, meaning); at most twenty of them
TERMS = (
    (
        "held in, held out",
        (),
        "those whose texts (of entities: texts that name them) the model was trained on, and comparable ones that"
        " it was not trained on.",
    ),
    (
        "AUROC",
        (),
        "how often one who is held in scores above one who is held out: 0.5 is guessing, 1 is certainty.",
    ),
    (
        "true-positive rate (TPR) at a false-positive rate (FPR)",
        (),
        "the share of those held in who are named where that share of those held out is named wrongly, read off a curve"
        " of groups of ten or more.",
    ),
    (
        "adjusted p-value",
        (),
        "how often redrawing who is held in, with the scores as they are, gives a result at least as large,"
        " corrected for every score that was tried.",
    ),
    (
        "simultaneous, all at once",
        (),
        "95 % intervals of all scores together: they stay valid if the largest is picked afterwards.",
    ),
    (
        "epsilon, delta",
        ("epsilon",),
        "the privacy-loss bound of differential privacy (DP): whatever an attacker sees is at most e^epsilon times as"
        " likely with one person's texts as without, plus a probability of delta.",
    ),
    ("ceiling", ("ceiling",), "the largest expected AUROC, or TPR, that a DP guarantee leaves to any attack."),
    (
        "certified, indicative, estimate",
        ("certified", "indicative", "estimate"),
        "valid at the stated level under conditions that heldin checked, or that a person named in the report declared;"
        " the same number where a condition is only asserted, or not met; a number without such a level.",
    ),
    (
        "one-run bounds",
        ("one-run",),
        "lower limits of epsilon from guessing the fair coins of many people in one training (Steinke et al. 2023; the"
        " f-DP form by Mahloujifar et al. 2024).",
    ),
    (
        "Clopper-Pearson, DKW, ROC band",
        ("Clopper-Pearson", "DKW", "ROC band"),
        "lower limits of epsilon from many independent trainings: by exact binomial limits at one threshold, or by a"
        " band around the whole curve.",
    ),
    ("DeLong", ("DeLong",), "the usual large-sample covariance of AUROCs on the same people."),
    ("nat", (), "the unit of a natural logarithm of a probability; 1 nat is 1.44 bits."),
    (
        "commitment",
        ("commitment",),
        "a hash that fixes a secret without revealing it: whoever reveals the secret later can be checked.",
    ),
    (
        "canary user",
        ("canary users",),
        "a made-up or altered user, planted by the auditor, each held in by its own fair coin.",
    ),
    ("token", ("token",), "a word or a part of one: what a model reads and writes at a time."),
    (
        "mark, exposure",
        ("Exposure of canary users",),
        "what all texts of a canary user share; how far its rank, among marks that were drawn alike and never planted,"
        " is above the last one, in powers of two (bits).",
    ),
)


_OF_TRAINING_FILE = (
    ComparisonFlaw.HELD_OUT_USERS_TRAINED_ON,
    ComparisonFlaw.HELD_OUT_TEXTS_TRAINED_ON,
    ComparisonFlaw.HELD_IN_USERS_ABSENT,
)
_PLANT_ANEW = " All this was fixed before the coins: it takes another planted training set, and another training."


def glossary(text: str) -> list[tuple[str, str]]:
    """(term, meaning) of the terms that occur in a report's text."""
    # Substrings of the text, not whole words: a report that says "one-run bound" needs the entry for "one-run".
    return [(term, meaning) for term, words, meaning in TERMS if not words or any(word in text for word in words)]


def next_step(record: Record, facts: DecisionFacts) -> str:
    """What follows from the answer, for whoever decides what to do with the model."""
    words = audited_by(record)
    match facts.decision.answer:
        case Answer.LEAKS:
            return _after_a_leak(record, facts)
        case Answer.NO_LEAK:
            bound = (
                "The guarantee bounds the others."
                # An epsilon per example bounds no attack on a user who has several.
                if record.training and record.training.epsilon is not None and record.ceiling() is not None
                else f"Only a DP guarantee for {_protected(record)} would bound those that were not tried."
            )
            return (
                f"These attacks give no reason to hold the model back. {bound} Audit again after any further training"
                " on these texts, and when stronger attacks are known."
            )
        case Answer.INCONCLUSIVE:
            # Two files may be exchanged; coins that heldin drew cannot.
            if facts.decision.reversed and record.kind == "audit":
                return (
                    "Do not read this as safe. Check which file holds the held-in users and which the held-out ones,"
                    f" and which model is the reference; then audit again.{_anew(record)}"
                )
            enough = "heldin power plans how many"
            if record.split.held_in + record.split.held_out < facts.decision.users_needed:
                enough = (
                    "as many as the headline names do in four of five audits if nothing leaks; heldin power plans other"
                    " numbers"
                )
            more = f"Audit more {words.unit} ({enough})"
            of_each = "let the attacker have more texts of each"
            # Of an audit of two files it is the files that decide.
            how = "--texts training, and files of them" if record.kind == "audit" else "attack.documents: [training]"
            ways = (
                f"{more}, or {of_each}."
                if record.scored_texts.kind == "training"
                else f"{more}, {of_each}, or give it the training documents ({how}), which leak more than fresh ones."
            )
            return f"Do not read this as safe. {ways}{_anew(record)}"
        # A flaw of the files that were given, not of how users were split: in the words of
        # ``record.overlaps.training_flaws``.
        case Answer.NOT_VALID if any(flaw.states(code) for flaw in facts.decision.flaws for code in _OF_TRAINING_FILE):
            return (
                "Nothing follows for the model, either way. Give users who are in this training file as held-in and"
                " users who are not in it as held-out, or the file that this model was trained on, and audit again."
            )
        case Answer.NOT_VALID:
            check = ""
            if any(baseline.name == REFERENCE and baseline.separates for baseline in record.blind):
                check = (
                    "First check that the reference model never saw these users, and that it is not exchanged with the"
                    " audited one. Then, or if that is so: "
                )
            return (
                f"Nothing follows for the model, either way. {check}Draw held-in and held-out users by fair coins"
                " before training (heldin run does), or take both groups from one source and time, and audit again."
            )


def _anew(record: Record) -> str:
    return "" if record.planted is None else _PLANT_ANEW


def _after_a_leak(record: Record, facts: DecisionFacts) -> str:
    match facts.decision.promise:
        # In the order of gravity; without a promise (None) the leak itself is what counts.
        case Promise.BEYOND:
            verdicts = record.judgement.verdicts
            sure = any(v.outcome is Outcome.VIOLATED and v.standing is Standing.CERTIFIED for v in verdicts)
            return (
                f"Do not release: the training {'does not' if sure else 'seems not to'} keep what is promised, or the"
                " promise is for another training. Check noise, clipping, sampling and keys, in this order; heldin"
                " audit-trainer tests each."
            )
        case Promise.ABOVE:
            return (
                "Do not release before this is settled: the leak looks larger than the promise allows. More"
                f" {audited_by(record).unit} would certify it (heldin power); heldin audit-trainer tests the trainer"
                " itself."
            )
        case Promise.WITHIN if record.training is None and record.trainings is None:
            return (
                "By the estimate a leak of this size is within the promise that was stated for this audit. That the"
                " training keeps it is not shown: how this model was trained is not known here. If it is more than you"
                f" accept, do not give the model to anyone who must not learn {_learnt(record)}."
            )
        case Promise.WITHIN:
            return (
                "By the estimate a leak of this size is within what was promised. If it is more than you accept, train"
                " at a smaller epsilon, or release to fewer people."
            )
    subject = "its models" if record.trainings else "this model"
    return (
        f"Do not give {subject} to anyone who must not learn {_learnt(record)}. DP training for"
        f" {_protected(record)} bounds every attack; deduplication, fewer records of each and fewer epochs lower"
        " this one. Then audit again."
    )


def _protected(record: Record) -> str:
    """Whom a promise would have to be made to: canary users stand for users."""
    return "users" if record.split.audited == "canaries" else audited_by(record).unit


def _learnt(record: Record) -> str:
    match record.split.audited:
        case "users" | "canaries":
            return "whose texts it was trained on"
        case "entities":
            return "who is named in the texts that it was trained on"
        case "both":
            return "whose texts it was trained on, and who is named in them"
