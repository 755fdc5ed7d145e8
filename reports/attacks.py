"""The sections on attacks: how well they separate the groups, whom they flag, and the exposure of canary users."""

from collections.abc import Sequence

from heldin.audit.attack_results import AttackResult
from heldin.audit.results import MarkExposure, MarkGroup, MarkSide
from heldin.base.wording import counted, kind_words
from heldin.record.document import Record
from heldin.record.facts import CurvePoint
from heldin.reports import figures
from heldin.reports.blocks import Block, Paragraph, Small, Table
from heldin.reports.wording import audited_by, audited_subjects, group_name, name_primary, percent, sentence

NEARLY = 95  # percent of the last AUROC (Kandpal et al., 4.4)
PASSES = "*"  # marks what passes after adjustment
EXACT = "exact for complete separation"
_CORRECTED = "* significant after correction for all scores."
MARKS = (
    "",
    "canary users",
    "the likeliest of all",
    "in the first 1 %",
    "median, bits",
    "first 1 % under the reference",
)


def tabulate_attacks(record: Record) -> Table:
    """Return a row for each score: attack, aggregation, AUROC, its separate and simultaneous intervals, adjusted p."""
    rows = [
        [
            result.attack,
            result.aggregation,
            f"{result.auroc.value:.3f}",
            f"{result.auroc.lower:.3f} to {result.auroc.upper:.3f}"
            + (" (exact)" if result.auroc.method == EXACT else ""),
            "" if result.simultaneous is None else f"{result.simultaneous[0]:.3f} to {result.simultaneous[1]:.3f}",
            _adjusted(result, record),
        ]
        for result in record.attacks
    ]
    note = f'{_CORRECTED} "exact": an exact limit, where the groups separate completely.'
    head = ("attack", "over texts", "AUROC", "95 % alone", "95 % all at once", "adjusted p")
    return Table(head, rows, note, numeric=(2, 3, 4, 5))


def _adjusted(result: AttackResult, record: Record) -> str:
    if result.adjusted_p is None:
        return ""
    return f"{result.adjusted_p:.2g}{PASSES if result.adjusted_p <= record.decision.by.auroc_level else ''}"


def tabulate_rates(record: Record) -> Table:
    """Return the table of true-positive rates, with a row for each attack that has a curve."""
    level, words = record.decision.by.tpr_level, audited_by(record)
    rows = []
    for result in record.attacks:
        # True-positive rates are read off a grouped curve, and only two scores have one (``audit.coarse``).
        if result.curve is None:
            continue
        cells = [
            "N/A"
            if rate.estimate is None
            # Against the level of the decision: a rate that passes is part of the answer "leaks".
            else percent(rate.estimate.value)
            + (PASSES if rate.adjusted_p is not None and rate.adjusted_p <= level else "")
            for rate in result.curve.tpr_at
        ]
        rows.append([f"{result.attack}, {result.aggregation}", *cells])
    few, number = (words.other, f"{words.unit} × rate below one")
    if record.trainings:
        few, number = "training runs without the user", "their number × rate below one"
    note = f"N/A: too few {few} to see such a rate ({number}), or equal scores hide it. {_CORRECTED}"
    head = ["attack", *(f"FPR {percent(rate.fpr)}" for rate in record.curve().tpr_at)]
    return Table(head, rows, note, numeric=range(1, len(head)))


def tabulate_baselines(record: Record) -> list[Block]:
    """Return the blind baselines; empty for independent trainings, because these have no baselines."""
    if record.trainings is not None:
        return []
    rows = [
        [
            baseline.name,
            f"{baseline.auroc:.3f}",
            f"{baseline.p_value:.2g}",
            f"{baseline.level:g}",
            "yes" if baseline.separates else "no",
        ]
        for baseline in record.blind
    ]
    note = (
        "Scores made without the audited model. If a baseline separates groups that heldin did not draw, the groups"
        " differ for other reasons than membership."
    )
    head = ("baseline", "AUROC", "p-value", "alarm below", "separates the groups")
    if rows:
        return [Table(head, rows, note, numeric=(1, 2, 3))]
    return [Paragraph(f"No baseline could be run: too few {audited_by(record).unit} in a group."), Small(note)]


def tabulate_dials(record: Record) -> Table | None:
    """Return the primary attack with one setting changed at a time. Only the row of the primary setting names the
    setting."""
    rows = []
    for dial in record.dials:
        by = dial.difference
        # No difference to itself; N/A where no error can be estimated, as for sides that are separated completely.
        less = ("" if dial.leads else "N/A") if by is None else f"{by.value:+.3f} ({by.lower:+.3f} to {by.upper:+.3f})"
        area = [f"{dial.auroc.value:.3f}", f"{dial.auroc.lower:.3f} to {dial.auroc.upper:.3f}"]
        rows.append([dial.dial if dial.leads else "", dial.setting, *area, less, f"{dial.adjusted_p:.2g}"])
    if not rows:
        return None
    unit = audited_by(record).unit
    note = (
        f"{sentence(name_primary(record))[:-1]}, with one setting changed at a time, on the same {unit}. The first row"
        " of each setting is the primary attack. Differences have 95 % intervals (DeLong). N/A: the setting separates"
        f" all {unit}, which leaves no error to estimate."
    )
    head = ("dial", "setting", "AUROC", "95 % interval", "difference from the first", "adjusted p")
    return Table(head, rows, note, numeric=(2, 3, 4, 5))


def tabulate_exposure(record: Record) -> Table | None:
    """Return the table of members in groups, the most exposed first; None for an audit, because an audit does not see
    the training."""
    exposed, words = record.exposure, audited_by(record)
    if exposed is None or not exposed.groups:
        return None
    rows = [
        [
            # A number in place of names: groups of ten users or more (``audit.exposure``).
            f"{number}",
            f"{group.users}",
            f"{100 * group.above:.0f} %",
            f"{100 * group.share:.2f} %",
            f"{group.reference_loss:.2f}",
            "N/A" if group.reference_divergence is None else f"{group.reference_divergence:.3f}",
            f"{group.word_divergence:.2f}",
            f"{group.near_duplicates:.1f}",
        ]
        for number, group in enumerate(exposed.groups, start=1)
    ]
    head = ("group", words.unit, "above non-members", "share of training", "reference loss", "reference divergence")
    note = (
        f"Means over {words.member} in groups by score, the highest scores first. If nothing leaks, chance alone"
        f" orders the groups. people.parquet lists single {words.unit} until a purge, for its owner alone (heldin"
        " report --people). Reference loss: nats per token. Reference divergence: a lower limit of the KL divergence"
        " of their texts from the reference model, nats per token. Word divergence: KL divergence of their words"
        " from the words of all others in training, nats."
    )
    if exposed.of is not None:
        note += (
            f" This is a sample of {exposed.users:,} of {exposed.of:,}, drawn by name. Words are compared with those"
            " of a sample of others."
        )
    return Table((*head, "word divergence", "near-duplicates"), rows, note, numeric=range(8))


def tabulate_correlations(record: Record) -> Table | None:
    """Return the table of rank correlations with the score; None if there are none."""
    rows = [
        [
            correlation.name,
            "N/A" if correlation.rho is None else f"{correlation.rho:+.2f}",
            "N/A" if correlation.p_value is None else f"{correlation.p_value:.2g}",
        ]
        for correlation in (record.exposure.correlations if record.exposure else [])
    ]
    head = (f"over all {audited_by(record).member}", "rank correlation with the score", "p-value")
    return Table(head, rows, numeric=(1, 2)) if rows else None


def show_canaries(record: Record) -> list[Block]:
    """Return the groups of canary users, and the result for real users to compare; empty without canary users."""
    if record.canaries is None:
        return []
    area = record.primary().auroc
    sides = [str(record.split.held_in), str(record.split.held_out)]
    rows = [
        [
            str(audited_subjects(record)),
            *sides,
            f"{area.value:.3f}",
            f"{area.lower:.3f} to {area.upper:.3f}",
        ]
    ]
    for group in record.canaries.groups:
        cells = ["N/A", ""]
        if group.auroc is not None:
            cells = [f"{group.auroc.value:.3f}", f"{group.auroc.lower:.3f} to {group.auroc.upper:.3f}"]
        rows.append([group_name(group), str(group.held_in), str(group.held_out), *cells])
    note = (
        "An independent fair coin flip decided for each canary user whether it was trained on. N/A: fewer than two"
        " users in a group."
    )
    head = ("group", "trained on", "not trained on", "AUROC", "95 % interval")
    blocks = [
        figures.plot_canaries(record),
        Table(head, rows, note, numeric=(1, 2, 3, 4)),
        figures.plot_gradient_norms(record),
    ]
    return [block for block in blocks if block is not None]


def show_curves(record: Record) -> list[Block]:
    """Return the curves of training; empty if they were not measured."""
    figure = figures.plot_curves(record)
    if figure is None or record.training is None:
        return []
    blocks: list[Block] = [figure]
    if reached := _reached(record.training.curve, record.training.steps):
        blocks.append(Paragraph(reached))
    if (rank := record.training.gap_auroc_spearman) is not None:
        text = "The rank correlation between the gap of the two losses and the AUROC over these points is"
        blocks.append(Paragraph(f"{text} {rank:.3f}."))
    return blocks


def _reached(curve: Sequence[CurvePoint], steps: int) -> str:
    """Return the first step from which the AUROC stays near its last value; "" if guessing is equally near."""
    last = curve[-1].auroc
    enough = NEARLY / 100 * last
    if enough <= 0.5:
        return ""
    below = [place for place, point in enumerate(curve) if point.auroc < enough]
    first = curve[below[-1] + 1 if below else 0].step
    share = f"{100 * first / steps:.0f}\u00a0%"
    of_last = f"{NEARLY}\u00a0% of the last one, which is {last:.3f}"
    return f"From step {first:,} of {steps:,} ({share}) on, every AUROC is at least {of_last}."


def tabulate_marks(record: Record) -> Table | None:
    """Return the exposure of canary users; None if no marks were ranked."""
    groups = _ranked(record)
    if not groups:
        return None
    share = 100 / (1 + min(group.candidates for group in groups))
    rows = [row for group in groups for row in _mark_rows(group)]
    rows.append(["by chance", "", f"{share:.2g}\u00a0%", "1\u00a0%", "1.0", ""])
    return Table(MARKS, rows, _marks_note(groups), numeric=range(1, 6), widths=(1.5, 0.6, 1.2, 0.6, 0.6, 0.9))


def marks_line(record: Record) -> str:
    """Return how many marks in each group are among the likeliest 1 %; "" if none were ranked."""
    groups = _ranked(record)
    if not groups:
        return ""
    sides = []
    for name, words in (("held_in", "that were trained on"), ("held_out", "that were not")):
        group_sides: list[MarkSide] = [getattr(group, name) for group in groups]
        first, users = sum(side.target.first_percent for side in group_sides), sum(side.users for side in group_sides)
        sides.append(f"canary users {words}: {first:,} of {users:,}")
    return (
        "Canary users whose mark the model finds likelier than at least 99 % of"
        f" {_candidates(groups)} that were drawn alike and never planted: {'; '.join(sides)} (by chance 1 %)."
    )


def _ranked(record: Record) -> list[MarkGroup]:
    """Return the groups of canary users that have candidates."""
    return [group for group in record.marks.groups if group.candidates] if record.marks else []


def _mark_rows(group: MarkGroup) -> list[list[str]]:
    name = kind_words(group.kind)
    if group.length is not None:
        name += f" of {counted(group.length, 'token')}"
    return [_mark_row(f"{name}, trained on", group.held_in), _mark_row("– not trained on", group.held_out)]


def _mark_row(name: str, side: MarkSide) -> list[str]:
    highest = f"{side.target.highest:,}"
    if side.lower is not None and side.upper is not None:
        highest += f" ({100 * side.lower:.4g} to {100 * side.upper:.4g}\u00a0%)"
    first, beside = (f"{side.first_percent:,}" for side in (side.target, side.reference))
    return [name, f"{side.users:,}", highest, first, _median(side.target), beside]


def _median(exposed: MarkExposure) -> str:
    return "N/A" if exposed.median is None else f"{exposed.median:.1f}"


def _candidates(groups: list[MarkGroup]) -> str:
    fewest, most = (bound(group.candidates for group in groups) for bound in (min, max))
    return f"{most:,} marks" if fewest == most else f"{fewest:,} to {most:,} marks"


def _marks_note(groups: list[MarkGroup]) -> str:
    text = (
        "Exposure of canary users (Carlini et al. 2019): the probability of what all texts of a canary user share is"
        f" ranked among that of {_candidates(groups)} drawn by the same recipe, with a key, and planted nowhere; one"
        " that is as likely counts as likelier. Exposure is log2 of their number and one, less log2 of the rank: the"
        " likeliest of all has the highest, and one bit is the middle of what was never planted. In brackets: exact"
        " 95 % limits of the share (Clopper-Pearson). N/A: fewer than ten canary users. Held-out canary users and the"
        " reference are the control."
    )
    if any(group.length is not None for group in groups):
        text += (
            " The words of substrings are some user's own, so that likely ones rank before a planted one whatever was"
            " trained; their candidates are words that other users' training did not see."
        )
    return text
