"""The report of a sweep, made only from its document. Page one answers; other pages explain. The report computes no
numbers."""

import yaml

from heldin.audit.blocks import LEAST_BLOCKS
from heldin.base.kinds import Origin
from heldin.base.wording import counted, kind_words
from heldin.bounds.verdict import describe_outcome
from heldin.record.sweep import CanaryPoint, CellResult, SweepResult
from heldin.reports import sweep_annex, sweep_figures, sweep_findings
from heldin.reports.annex_parts import REFERENCE, attach_configuration
from heldin.reports.blocks import Block, Entry, Paragraph, Place, Remarks, Report, Table, Verbatim, assemble
from heldin.reports.sweep_findings import describe_intervals
from heldin.reports.wording import command_in_lines, explain_terms, format_fit, format_summary, name_measure
from heldin.words.page_one import Handling

_COLUMNS = 3  # of canary users in one table


def report_sweep(result: SweepResult) -> Report:
    """Return the whole report of a sweep."""
    front, body, closing = (assemble(result, entries) for entries in (FRONT, SECTIONS, CLOSING))
    terms, glossary = explain_terms(front, (*body, *closing), level=2)
    return Report(
        title=f"{'Defenses compared' if result.rule is None else 'Which defense to release'}: {result.name}",
        version=result.version,
        notice=str(Handling.TRAINED()),
        sections=(*front, terms, *body, glossary, *closing),
    )


def tabulate_candidates(result: SweepResult) -> Table | None:
    """Return a row for each candidate and requirement: value, limit, p-value, and Holm's p-value over the
    candidates."""
    rows = []
    for candidate in result.shipping.candidates if result.shipping else []:
        for tested in candidate.tests:
            rows.append(
                [
                    candidate.name,
                    name_measure(tested.requirement),
                    "-" if tested.value is None else f"{tested.value:.4g}",
                    "-" if tested.limit is None else f"{tested.limit:.4g}",
                    f"{tested.p_value:.3f}",
                    f"{candidate.adjusted:.3f}",
                ]
            )
    note = (
        "Value: that of the plan, or the mean over repetitions for the attack nearest to the limit. Limit: its"
        ' one-sided confidence limit. p-value: of "the limit is broken". Holm: of "the candidate breaks a limit",'
        " corrected for all candidates."
    )
    head = ("candidate", "requirement", "value", "limit", "p-value", "Holm")
    return Table(head, rows, note, numeric=(2, 3, 4, 5)) if rows else None


def tabulate_differences(result: SweepResult) -> Table | None:
    """Return a row for each variant: leakage, bound, loss, and the differences from the first variant of its group."""
    rows = [
        [
            variant.label,
            format_summary(variant.auroc, digits=2),
            "-" if variant.epsilon_at_least is None else f"{variant.epsilon_at_least:.2f}",
            format_summary(variant.loss, digits=4),
            format_summary(variant.perplexity, digits=2),
            format_summary(variant.auroc_difference, signed=True),
            format_summary(variant.loss_difference, digits=4, signed=True),
            "-" if variant.gradients is None else f"{variant.gradients:,.0f}",
            format_fit(variant),
        ]
        for variant in result.variants
    ]
    note = (
        "AUROC: of the primary attack, 0.5 is guessing. epsilon ≥: the largest certified lower bound of its training"
        " runs, valid for all at once. Loss: on non-members' test texts, nats per token (of preference pairs, per"
        " pair), mean over users. Perplexity: the exponential of the mean loss over all tokens of these texts."
        " Differences: to the first variant of the group, within repetitions, which share members and non-members;"
        f" {describe_intervals(result)}. Of plan: units in training and gradients a step, over those that the plan"
        " states."
    )
    differences = ("difference of AUROCs", "of losses")
    head = ("variant", "AUROC", "epsilon ≥", "loss", "perplexity", *differences, "gradients", "of plan")
    widths = (1.8, 1, None, 1.1, 1.1, 1.1, 1.1, None, 1)
    return Table(head, rows, note, numeric=(2, 7), widths=widths, dense=True) if rows else None


def show_canaries(result: SweepResult) -> list[Block]:
    """Return the section on canary users: a figure, and tables with a row for each variant and a few kinds per
    table."""
    figure = sweep_figures.plot_canaries(result)
    if figure is None:
        return []
    kinds = list(dict.fromkeys(_kind(point) for variant in result.variants for point in variant.canaries))
    tables = []
    for first in range(0, len(kinds), _COLUMNS):
        part = kinds[first : first + _COLUMNS]
        rows = []
        for variant in result.variants:
            areas = {_kind(point): point.auroc for point in variant.canaries}
            if areas:
                cells = (format_summary(areas.get(kind), digits=2) for kind in part)
                rows.append([variant.label, *cells])
        tables.append(Table(("variant", *part), rows, numeric=range(1, len(part) + 1)))
    return [figure, *tables]


def _kind(point: CanaryPoint) -> str:
    length = "" if point.length is None else f" of {counted(point.length, 'token')}"
    documents = "" if point.documents is None else f", {counted(point.documents, 'document')}"
    return f"{kind_words(point.kind)}{length}{documents}"


def tabulate_cells(result: SweepResult) -> Table:
    """Return a row for each training run."""
    note = (
        "epsilon ≥: a certified lower bound on epsilon, valid at 95 % for all training runs of the plan at once."
        " Joint p: Holm's correction over all planned training runs and groups of people."
    )
    head = ("block", "variant", "state", "AUROC", "loss", "epsilon ≥", "verdicts", "s")
    widths = (None, 1.4, 1.2, None, None, None, 2.4, None)
    rows = [_cell_row(cell) for cell in result.cells]
    return Table(head, rows, note, numeric=(3, 4, 5, 7), widths=widths, dense=True)


def _cell_row(cell: CellResult) -> list[str]:
    verdicts = [
        f"{verdict.subjects}: {describe_outcome(verdict.outcome, verdict.standing)}"
        + ("" if verdict.adjusted is None else f", joint p {verdict.adjusted:.3f}")
        for verdict in cell.verdicts
    ]
    return [
        str(cell.block),
        cell.variant,
        cell.state if not cell.reason else f"{cell.state}: {cell.reason}",
        *("-" if value is None else f"{value:.{digits}f}" for value, digits in ((cell.auroc, 3), (cell.loss, 4))),
        "-" if cell.epsilon_at_least is None else f"{cell.epsilon_at_least:.2f}",
        "; ".join(verdicts) or "-",
        f"{cell.seconds:,.0f}",
    ]


def explain_tests(result: SweepResult) -> Remarks:
    """Return the statistical basis of each statement, with its coverage in simulations."""
    lines = [
        "Intervals over three repetitions or more use Student's t with one number for each repetition. In 2,000"
        " simulated sweeps, 94 to 96 % of the intervals covered the truth at three and at five repetitions.",
        "Verdicts of all training runs use Holm's correction over all planned training runs and groups of people,"
        " which is valid under any dependence. Each bound has the level 5 % divided by the number of planned"
        " training runs.",
        "A variant dominates another if it is no worse in guarantee, AUROC, canary users, loss and gradients, and"
        f" better in AUROC or loss. Better means by paired t tests over at least {LEAST_BLOCKS} repetitions, with"
        " Holm's correction over all pairs of a group. In 2,000 simulated sweeps of equal variants, at most 5 %"
        " found one.",
    ]
    if result.rule is not None:
        lines.append(
            "The rule uses one-sided t tests over the repetitions. A candidate passes if all of its tests reject"
            " (intersection-union), with Holm's correction over the candidates. In at most 5 % of 2,000 simulated"
            " sweeps, the rule selected a candidate that barely breaks a limit."
        )
    return Remarks(lines)


def tabulate_tried(result: SweepResult) -> Table | None:
    """Return a row for each combination of settings that tuning tried."""
    rows = [
        [
            trial.variant,
            "; ".join(f"{key}: {_value(value)}" for key, value in trial.values.items()),
            "no model" if trial.public_loss is None else f"{trial.public_loss:.4f}",
            "chosen" if trial.chosen else "",
        ]
        for trial in result.tried
    ]
    note = (
        "Judged by public users' loss alone, in blocks with coins of their own, before the coins of the blocks that are"
        " compared."
    )
    head = ("variant", "values", "loss of public users", "")
    return Table(head, rows, note, numeric=(2,), widths=(1, 2, None, None)) if rows else None


def tabulate_settings(result: SweepResult) -> Table | None:
    """Return how each variant's config differs from the first variant's."""
    rows = [
        [
            variant.label,
            "; ".join(f"{key}: {_value(value)}" for key, value in variant.differs.items()) or "-",
        ]
        for variant in result.variants[1:]
    ]
    return Table(("variant", "settings"), rows, widths=(1, 3), dense=True) if rows else None


def _value(value: object) -> str:
    return yaml.safe_dump(value, default_flow_style=True, width=1000).replace("\n...", "").strip()


def tabulate_kinds(result: SweepResult) -> Table | None:
    """Return the kinds from other packages in the variants' configs, and a hash of their code."""
    variants: dict[Origin, list[str]] = {}
    for cell in result.cells:
        for kind in cell.kinds:
            variants.setdefault(kind, []).append(cell.variant)
    rows = [
        [f"{kind.kind} ({kind.family})", kind.code, ", ".join(dict.fromkeys(names))] for kind, names in variants.items()
    ]
    return Table(("kind", "package and code", "variants"), rows, widths=(1, 2, 2), dense=True) if rows else None


def show_commitments(result: SweepResult) -> list[Block]:
    """Return, for each block and group of variants, the hashes that commit to membership."""
    groups = {variant.name: variant.group for variant in result.variants}
    ledgers: dict[tuple[int, str], str] = {}
    for cell in result.cells:
        if cell.ledger_commitment is not None:
            ledgers.setdefault((cell.block, groups[cell.variant]), cell.ledger_commitment)
    rows = [[str(block), group, ledger] for (block, group), ledger in ledgers.items()]
    text = (
        f"The plan of all training runs has the hash {result.sweep} and was fixed before the coin flips."
        " The record of every training run contains this hash. The ledgers, which list the members, have these"
        " hashes:"
    )
    table = Table(("block", "group of", "hash of the ledger"), rows, widths=(None, 1, 2.5), dense=True)
    return [Paragraph(text), table]


def state_kept(_result: SweepResult) -> str:
    """Return a text about the files that the sweep keeps."""
    return (
        "The folder of every training run keeps its model, its scores, its ledger of members, and the key of its"
        " coin flips and noise. Only their owner can read them. The command heldin purge removes these files, and"
        " prints what can no longer be verified. This report and comparison.json contain no user names."
    )


def explain_repeat(result: SweepResult) -> list[Block]:
    """Return instructions for repeating the sweep."""
    text = f"Made by heldin {result.version}. The configuration is that of the first variant."
    return [Verbatim(command_in_lines(result.command)), Paragraph(text), attach_configuration(result.config)]


# The table of contents. Terms of page one come after it, and others before the annex.
FRONT: tuple[Entry[SweepResult], ...] = (
    Entry("answer", "", sweep_findings.show_answer, place=Place.FRONT),
    Entry("picture", "", sweep_figures.plot_defenses, place=Place.FRONT),
    Entry("lines", "", sweep_findings.show_lines, place=Place.FRONT),
)
SECTIONS: tuple[Entry[SweepResult], ...] = (
    Entry("decision", "What decided the answer", sweep_findings.list_notes),
    Entry("annex-reference", "", lambda _: REFERENCE),
    Entry("rule", "The rule", sweep_findings.show_rule),
    Entry("attacker", "Who attacks", sweep_findings.describe_attacker),
    Entry("frontier", "What each defense costs", sweep_figures.plot_frontier),
    Entry("candidates", "The candidates and the rule", tabulate_candidates, level=2, whole=True),
    Entry("differences", "Differences on the same people", tabulate_differences, level=2, whole=True),
    Entry("roc", "How well the primary attack does", sweep_figures.plot_rocs),
    Entry("canaries", "Canary users", show_canaries),
    Entry("extraction", "Extraction", sweep_annex.tabulate_extraction),
    Entry("exposure", "Who is exposed", sweep_figures.plot_exposure),
    Entry("curves", "While models were trained", sweep_figures.plot_curves),
    Entry("cells", "Every training run", tabulate_cells),
    Entry("appendix", "Appendix"),
    Entry("statistics", "Tests", explain_tests, level=2),
    Entry("tried", "What was tuned", tabulate_tried, level=2),
    Entry("settings", "Settings that differ from the first variant's", tabulate_settings, level=2),
    Entry("packages", "Code of other packages", tabulate_kinds, level=2),
    Entry("commitments", "Commitments", show_commitments, level=2),
    Entry("kept", "What is kept", state_kept, level=2),
)
CLOSING: tuple[Entry[SweepResult], ...] = (
    Entry("repeat", "To repeat this", explain_repeat, level=2),
    *sweep_annex.SECTIONS,
)
