"""The annex of a run or audit, for the people who sign it: tests, release, guarantee, residual risk."""

from heldin.audit.attack_results import AttackResult
from heldin.audit.coarse import brief
from heldin.audit.decision import Answer
from heldin.base.wording import at_most_counted, counted
from heldin.bounds.verdict import NO_CLAIM
from heldin.record.document import Record
from heldin.record.planted_facts import Known
from heldin.record.release import release_of
from heldin.record.requirements import epsilon_per_user
from heldin.reports import annex_parts as parts
from heldin.reports.annex_parts import Scenario
from heldin.reports.attacks import marks_line
from heldin.reports.blocks import Block, FactList, Remarks, Table
from heldin.reports.extraction import extraction_line, most_left
from heldin.reports.wording import attacker_asks, audited_by, texts_of
from heldin.words.evidence import delta_of
from heldin.words.people import TRAININGS

_FOUND_BY = {
    "patterns": "what Presidio's patterns find ({which}), which does not include names of people",
    "words": "the names of a list, where they occur exactly as listed",
    "spacy": "what a spaCy pipeline finds",
    "gold": "what the last column of the CoNLL file marks",
}


def explain_limits(_record: Record) -> str:
    """Return a text that explains the limits on page one."""
    return (
        "Page one has every limit. Those of the answer are set by decision; those of your organisation by"
        " decision.require, before the audit. A limit is met if the 95 % limit of what was measured keeps it, for all"
        " attacks and settings at once: their largest one-sided upper limit. It is broken if some attack is beyond it"
        " by the simultaneous interval of all attacks. Otherwise it is not shown to be met."
    )


def state_release(record: Record) -> FactList:
    """Return the intended release."""
    return parts.state_release(release_of(record.config), {result.attack: result.asks for result in record.attacks})


def explain_promise(record: Record) -> FactList:
    """Return unit, delta and neighbours of the guarantee."""
    t, unit = record.training, audited_by(record).singular
    if t is None:
        pairs = [
            ["unit", f"Not known: the model was trained elsewhere. The audit counts by {unit}."],
            ["delta", _delta_of_bounds(record)],
            ["neighbours", "Not known: a guarantee would have to say which training sets count as neighbours."],
        ]
        return FactList(pairs)
    first, *others = parts.explain_promise(
        parts.Promised(t.promise, t.unit, t.protected, t.epsilon, t.delta, t.users), unit
    )
    return FactList([[first[0], first[1] + _entities(record)], *others])


def _entities(record: Record) -> str:
    """Return what counts as an entity, for a guarantee that covers entities; "" for other guarantees."""
    source = record.config.get("defense", {}).get("entities") or {}
    recognised = _FOUND_BY.get(source.get("kind", ""))
    if recognised is None or record.training is None or not record.training.protects_named:
        return ""
    return f" An entity here is {recognised.format(which=', '.join(source.get('which', ())).replace('_', ' '))}."


def _delta_of_bounds(record: Record) -> str:
    labels = dict.fromkeys(verdict.claim for verdict in record.judgement.verdicts)
    claims = [str(label) for label in labels if delta_of(label) == record.judgement.delta]
    source = "chosen for the audit" if not claims else f"as it was claimed: {', '.join(claims)}"
    return f"That of the bounds in this report is {record.judgement.delta:g}, {source}."


def list_scenarios(record: Record) -> list[Scenario]:
    """Return all kinds of attack that readers ask about, tested kinds first."""
    return [*membership_scenarios(record), _extraction(record), *parts.OUT_OF_SCOPE]


def _extraction(record: Record) -> Scenario:
    if record.extraction is None:
        return parts.EXTRACTION_NOT_RUN
    return Scenario(
        parts.EXTRACTION,
        "run",
        "the beginning of a text, and as many answers of the model as are stated",
        " ".join(filter(None, (extraction_line(record), marks_line(record), parts.NO_BOUND))),
    )


def membership_scenarios(record: Record) -> list[Scenario]:
    """Return the scenarios of membership inference, with the results of the tests."""
    words, result = audited_by(record), record.counted_attack()  # the attack of the headline
    unreal = Scenario(
        "Membership of real users",
        "not run",
        "probabilities of a user's texts",
        "Real users were not tested: the tested users were made for this audit.",
    )
    if record.trainings is not None:
        return [
            Scenario(
                "Membership of one worst-case user: was this user in training?",
                "run",
                "the model of a training run, the base model, and every document of that user",
                f"AUROC {result.auroc.value:.3f} over {counted(record.trainings.runs, 'training run')}.",
            ),
            unreal,
        ]
    answer = record.decision.decision.answer
    area = result.auroc
    if record.decides_by_a_dial():
        # The primary attack, which was fixed beforehand: its own interval holds.
        outcome = f"{result.attack}: AUROC {area.value:.3f}, {area.lower:.3f} to {area.upper:.3f}; with another setting"
        outcome += f" of a dial, {answer.value}: page one."
    else:
        outcome = f"{result.attack}: AUROC {area.value:.3f}, {_together(record, result)}; {answer.value}."
    rows = [
        Scenario(
            f"Membership of {words.unit}: was this {words.singular} in training?",
            "run, not valid" if answer is Answer.NOT_VALID else "run",
            f"{attacker_asks(result.asks)}; texts of this {words.singular}, {texts_of(record.scored_texts.kind)}",
            outcome if answer is not Answer.NOT_VALID else "The groups, or the model, do not support a comparison.",
        )
    ]
    if record.split.audited == "canaries":
        rows.append(unreal)
    elif record.canaries is not None:
        areas = [g.auroc for g in record.canaries.groups if g.auroc]
        most = "too few in a group"
        if areas:
            best = max(areas, key=lambda area: area.value)
            most = (
                f"the highest AUROC of {counted(len(areas), 'group')} is {best.value:.3f} ({best.lower:.3f} to"
                f" {best.upper:.3f}, of this group alone)"
            )
        rows.append(
            Scenario(
                "Membership of canary users",
                "run",
                "the same",
                f"{counted(record.canaries.users, 'canary user')}: {most}.",
            )
        )
    return rows


def _together(record: Record, result: AttackResult) -> str:
    """Return a result that is valid for all scores together. An interval for the best score alone would be invalid."""
    scores, decision = record.decision.scores, record.decision.decision
    if scores == 1 or result.simultaneous is None:
        return f"{result.auroc.lower:.3f} to {result.auroc.upper:.3f}"
    if decision.answer is Answer.LEAKS:
        lower, upper = result.simultaneous
        return f"{lower:.3f} to {upper:.3f}, simultaneous over the {scores} scores among which it was picked"
    return f"and none of {scores} scores above {brief(decision.excluded_auroc):.2f} at 95 %"


def list_other_models(record: Record) -> list[str]:
    """Return the other models of the same people that the record lists."""
    lines = []
    if record.cell is not None:
        lines.append(
            f"This model is one of a sweep (repetition {record.cell.block}, {record.cell.variant}): other models of"
            " the repetition have the same members. The sweep's report states the guarantee of all of them together."
        )
    if record.planted is not None:
        lines.append(
            f"This is look {record.planted.look} of {record.planted.looks} that were planned at models trained on the"
            " planted set. heldin does not know what else was trained on it."
        )
    attack = record.config.get("attack")
    shadows = attack.get("shadow_models", 0) if isinstance(attack, dict) else 0
    if shadows:
        lines.append(
            f"{counted(int(shadows), 'shadow model')} were trained on draws of the same people; do not release them."
        )
    if record.trainings is not None:
        lines.append(f"{counted(record.trainings.runs, 'model')} were trained, scored and deleted.")
    if not lines:
        lines.append("The record lists none. heldin looks only at the models and statistics of this audit.")
    return lines


def state_quality(record: Record) -> FactList:
    """Return how many users, texts and attacks the audit tested, and how well."""
    d, s = record.decision, record.split
    words = TRAININGS if record.trainings is not None else audited_by(record)
    blind = [baseline.name for baseline in record.blind if baseline.separates]
    rows = [
        ["how many were tested", f"{s.held_in:,} {words.member} and {s.held_out:,} {words.other}"],
        ["with how much", f"{record.attacker_texts:,} texts; {counted(d.scores, 'score')} of {_attacks(record)}"],
        ["who is a member", f"{s.standing_reason} ({'certifiable' if s.certifiable else 'indicative only'})"],
        ["by chance alone", _false_alarms(record)],
    ]
    if record.trainings is None:
        rows.append(["controls", parts.describe_controls(len(record.blind), blind)])
    if record.planted is not None:
        met = [condition.known_by for condition in record.planted.conditions]
        ways = ", ".join(f"{met.count(way)} {way.value}" for way in Known if way in met)
        rows.append(["conditions of certified statements", ways])
    return FactList(rows)


def _false_alarms(record: Record) -> str:
    d = record.decision
    if not d.decision.exact:
        return 'nothing limits how often "leaks" is false: the p-values are indicative'
    alarms = f'a false "leaks" by the attacks in {100 * (d.by.auroc_level + d.by.tpr_level):g} % of audits at most'
    verdicts = [verdict for verdict in record.judgement.verdicts if verdict.claim != NO_CLAIM]
    claims = len({verdict.claim for verdict in verdicts})
    if not claims:
        return alarms
    which = "the tested claim" if claims == 1 else f"each of the {claims} tested claims"
    # One verdict for each group of people on whom a claim is tested.
    shared = ", which groups of people share" if len(verdicts) > claims else ""
    return f"{alarms}; {which} is tested at its own level{shared}"


def _attacks(record: Record) -> str:
    return counted(len({result.attack for result in record.attacks}), "attack")


def list_occasions(record: Record) -> Remarks:
    """Return the events after which this audit is no longer valid for the model."""
    lines, decided = [], record.decision.decision
    if decided.answer is Answer.INCONCLUSIVE:
        needed = at_most_counted(decided.users_needed, before="about ")
        words = TRAININGS if record.trainings is not None else audited_by(record)
        lines.append(
            f"Before any decision: {needed} {words.unit} would decide what this audit left open, in four of five"
            " audits if nothing leaks."
        )
    if record.planted is not None and record.planted.look < record.planted.looks:
        left = record.planted.looks - record.planted.look
        lines.append(f"{counted(left, 'further look')} at checkpoints of this planted set {_are(left)} planned.")
    return parts.list_occasions(release_of(record.config), more=lines)


def _are(number: int) -> str:
    return "is" if number == 1 else "are"


def answer_opinion(record: Record) -> Table:
    """Return the table for the opinion of the European Data Protection Board."""
    return parts.answer_opinion(
        list_scenarios(record),
        release_of(record.config),
        each_person=_each_person(record),
        documents=f"facts and fingerprints ({record.target.fingerprint[:8]})",
    )


def _each_person(record: Record) -> str:
    promised = epsilon_per_user(record.training) is not None
    by = (
        ("a guarantee for every user, with its conditions")
        if promised
        else "no guarantee limits the risk to each person"
    )
    if record.trainings is not None:
        return f"page one: {by}; measured for one worst-case user"
    return f"page one: {by}; measured in groups of ten or more, not for single people"


def state_residual_risk(record: Record) -> list[Block]:
    """Return the residual risk, and the lines to sign."""
    decided, words = record.decision.decision, audited_by(record)
    left = {
        Answer.LEAKS: "The attacker described can identify members. An attacker who knows more may do better.",
        Answer.NO_LEAK: (
            f"An AUROC of up to {decided.excluded_auroc:.2f} remains possible with these attacks, and others were not"
            " tried."
        ),
        Answer.INCONCLUSIVE: (
            f"An AUROC of up to {decided.excluded_auroc:.2f} remains possible, because the audit was too small."
        ),
        Answer.NOT_VALID: "The audit says nothing about membership.",
    }
    lines = [left[decided.answer] if record.trainings is None else "One user was tested. Others may be affected more."]
    lines += filter(None, [most_left(record)])
    lines.append(parts.list_untried(list_scenarios(record)))
    if record.training is not None and record.training.epsilon is not None:
        lines.append(
            "The guarantee depends on its conditions (see Facts, guarantee), and on code that nobody proved right."
        )
    elif record.training is not None:
        lines.append(f"No guarantee limits attacks on {words.unit} that were not tried.")
    return parts.sign(lines, f"made {record.created}, of the model {record.target.fingerprint[:16]}")


SECTIONS = parts.list_entries(
    tests=list_scenarios,
    limits=explain_limits,
    release=state_release,
    promise=explain_promise,
    others=list_other_models,
    quality=state_quality,
    repeat=list_occasions,
    opinion=answer_opinion,
    residual=state_residual_risk,
)
