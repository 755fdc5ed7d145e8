"""Runs, audits and their results."""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from heldin.api.datasets import is_dataset, named
from heldin.api.numbers import Stated, claims_of
from heldin.audit.bootstrap import Estimate
from heldin.base.errors import InputError
from heldin.base.progress import LineReporter, Reporter, reporter_for_this_terminal
from heldin.base.tabular import Tabular
from heldin.bounds.verdict import Verdict
from heldin.models.model_config import PrecisionChoice
from heldin.record.document import Record, read_record

if TYPE_CHECKING:
    from datasets import Dataset
    from matplotlib.axes import Axes

    from heldin.reports.runs import ListedRun

Source = str | Path


@dataclass(frozen=True, eq=False)
class AuditResult(Tabular):
    """The result of a run or an audit.

    Attributes:
        record: the content of record.json, which is an internal document.
        folder: the folder of the run or audit.
    """

    # Without the record, which would fill the screen of whoever types the name of a result.
    record: Record = field(repr=False)
    folder: Path

    @property
    def answer(self) -> str:
        """Return one of four answers: leaks, no leak found, inconclusive, not valid."""
        return self.record.decision.decision.answer.value

    @property
    def headline(self) -> str:
        """Return the answer in a sentence or two."""
        return self.record.decision.headline

    @property
    def auroc(self) -> Estimate:
        """Return the primary attack's AUROC over users, an estimate, with a 95 % interval for this attack alone.

        The headline may name another attack, with an interval that holds for all attacks at once. ``rows`` has both
        intervals.
        """
        return self.record.primary().auroc

    @property
    def verdict(self) -> Verdict | None:
        """Return the gravest verdict on a claim; None if there are too few users for a verdict."""
        # ``verdict`` is the gravest of a list, and an empty list has none.
        return self.record.judgement.verdict if self.record.judgement.verdicts else None

    @property
    def exit_code(self) -> int:
        """Return 3 if certified evidence contradicts a claim, 4 if only indicative evidence contradicts a claim, and 0
        otherwise."""
        return self.record.judgement.exit_code

    def heading(self) -> str:
        """Return the answer in a sentence or two, as a title for notebooks."""
        return self.headline

    def notes(self) -> Sequence[str]:
        """Return the warnings that the terminal and the report print before the answer."""
        from heldin.reports.findings import warn

        return warn(self.record)

    def rows(self) -> list[dict[str, Any]]:
        """Return a row for each attack, the primary attack first.

        ``lower`` and ``upper`` bound the AUROC of one attack. The simultaneous bounds hold for all attacks together.
        """
        return [
            {
                "attack": attack.attack,
                "aggregation": attack.aggregation,
                "auroc": attack.auroc.value,
                "lower": attack.auroc.lower,
                "upper": attack.auroc.upper,
                # None where the family of attacks was not tested together, and so has no interval in common.
                "simultaneous_lower": attack.simultaneous[0] if attack.simultaneous else None,
                "simultaneous_upper": attack.simultaneous[1] if attack.simultaneous else None,
                "adjusted_p": attack.adjusted_p,
            }
            for attack in self.record.attacks
        ]

    def plot_roc(self, ax: "Axes | None" = None, *, log: bool = False) -> "Axes":
        """Plot the report's ROC curves: the primary attack, the best attack, and the ceiling of the guarantee.

        Args:
            ax: matplotlib axes to plot on; None: the axes of a new figure.
            log: whether both axes are logarithmic.

        Returns:
            The axes.
        """
        from heldin.reports.figures import draw_roc

        axes = _axes(ax)
        draw_roc(axes, self.record, log=log)
        axes.legend(title="attack (AUROC)")
        return axes

    def plot_scores(self, ax: "Axes | None" = None) -> "Axes":
        """Plot the scores of members and non-members, in groups of at least ten people, as on page one of the report.

        Args:
            ax: matplotlib axes to plot on; None: the axes of a new figure.

        Returns:
            The axes.
        """
        from heldin.reports.figures import draw_scores

        axes = _axes(ax)
        draw_scores(axes, self.record)
        return axes

    def plot_tradeoff(self, ax: "Axes | None" = None) -> "Axes":
        """Plot the share of members that an attack misses against the share of non-members that it flags.

        A lower curve means more leakage. In expectation, no curve is below the curve of the guarantee, or below the
        curve of a true claim. An attack's curve is an estimate, so a curve below a claim's curve is not a verdict (see
        ``verdict``).

        Args:
            ax: matplotlib axes to plot on; None: the axes of a new figure.

        Returns:
            The axes.
        """
        from heldin.reports.figures import draw_tradeoff

        axes = _axes(ax)
        draw_tradeoff(axes, self.record)
        axes.legend(title="attack (AUROC)")
        return axes

    def write_pdf(self, path: Source) -> Path:
        """Write the PDF report of the record and return its path. Raises OSError if the file cannot be written."""
        from heldin.reports.record_report import report_record
        from heldin.reports.typesetting import write_pdf

        if Path(path).is_dir():
            raise InputError(f"'{path}' is a folder: name a file in this folder")
        return write_pdf(report_record(self.record), Path(path))

    def write_html(self, path: Source) -> Path:
        """Write the report of the record as a web page and return its path. Raises OSError if the file cannot be
        written."""
        from heldin.reports.html import write_page
        from heldin.reports.record_report import report_record

        return write_page(report_record(self.record), Path(path))


@dataclass(frozen=True)
class RunList(Tabular):
    """Every run, audit, sweep and planted set below a folder.

    Attributes:
        folder: the folder that was read.
        runs: the folders that heldin found, newest first; folders without a date are last.
    """

    folder: Path
    runs: "tuple[ListedRun, ...]"

    def heading(self) -> str:
        """Return the number of folders in each state."""
        from heldin.reports.runs import summary

        return summary(self.runs, self.folder)

    def notes(self) -> Sequence[str]:
        """Return why each damaged folder has no result."""
        return [run.problem for run in self.runs if run.problem]

    def rows(self) -> list[dict[str, Any]]:
        """Return one row for each folder, with the columns of ``heldin runs --csv``."""
        return [run.as_dict() for run in self.runs]


@dataclass(frozen=True)
class PlantedSet:
    """A training set that ``plant`` wrote, for a training that someone else runs.

    Attributes:
        folder: the planted folder. It has the training set and manifest to hand on, and the ledger to keep.
        training: the file or folder to train on.
    """

    folder: Path
    training: Path
    rows: int


def run(
    config: Source | Mapping[str, Any],
    *,
    out: Source | None = None,
    overrides: Sequence[str] = (),
    quiet: bool = False,
) -> AuditResult | None:
    """Draw members by coin, fine-tune, attack and judge, as ``heldin run`` does.

    The same call resumes a killed run.

    Args:
        config: a config file, or its content as a dict. In a dict, ``corpus.source`` may be a ``datasets.Dataset``.
        out: the run folder (default: runs/ and the config's name).
        overrides: changed keys of the config, such as "finetune.epochs=3".

    Returns:
        The result. None if a filter halted training, because there is then no model to attack.

    Raises:
        InputError: the config has errors, or an input cannot be used.
        ResumableError: the training diverged.
    """
    # The pipeline loads torch, which takes seconds: only a call that trains or scores pays for it.
    from heldin.jobs.run import run as _run
    from heldin.stages.config_files import with_overrides
    from heldin.stages.run_config import load_config, parse_config
    from heldin.stages.train.tracking import is_reported, log_results

    if isinstance(config, Mapping):
        # "config" is what errors name in place of a file.
        checked = parse_config(with_overrides(_with_named_source(config), overrides), "config")
    else:
        checked = load_config(Path(config), overrides)
    folder = Path(out) if out is not None else Path("runs") / checked.name
    reporter = _reporter(quiet)
    record = _run(checked, folder, reporter, command=_called("run"))
    # A halted run has no model, so that there is nothing to attack and no record.
    if record is None:
        return None
    result = AuditResult(record, folder)
    if not is_reported(checked, folder):
        result.write_pdf(folder / "report.pdf")
        log_results(checked, folder, record, reporter.say)
    return result


def audit_model(
    model: Source,
    *,
    reference: Source | Sequence[Source],
    held_in: "Source | Dataset",
    held_out: "Source | Dataset",
    user: str = "user",
    text: str = "text",
    claims: Sequence[Stated] = (),
    out: Source | None = None,
    quiet: bool = False,
    **options: Any,
) -> AuditResult:
    """Audit a model that someone else trained, as ``heldin audit`` does. heldin trains nothing.

    Args:
        model: folder or hub name of the model, which may be a LoRA adapter.
        reference: models that were not trained on these users; the first model is the primary reference.
        held_in: file or ``datasets.Dataset`` with texts or chats by members.
        held_out: file or ``datasets.Dataset`` with texts or chats by non-members.
        user: column that names the user.
        text: column that holds the text.
        claims: claims to test, each a ``Claim``, "epsilon=8,delta=1e-6" or (8, 1e-6). The option ``plan`` tests a
            plan's curve.
        out: folder for the results (default: runs/ and the config's name).
        options: other keys of an audit's config (``jobs.checkpoint.audit_config.CheckpointConfig``), such as
            ``assignment="coin"``, ``plan="plan.json"`` or ``attack={"max_characters": 2000}``.

    Returns:
        The result. The result is indicative evidence, because you stated the members.

    Raises:
        InputError: an option has errors, or an input cannot be used.
    """
    from heldin.jobs.checkpoint.audit import audit_checkpoint
    from heldin.jobs.checkpoint.audit_config import parse_checkpoint
    from heldin.jobs.checkpoint.job import job_of
    from heldin.stages.config_files import merged

    # A curve has no text form for the config below, which the audit keeps as what it was asked to do.
    curves = [claim.label for claim in claims_of(claims) if claim.is_curve]
    if curves:
        raise InputError(
            f"claims has {curves[0]}, and this claim comes from a plan: give the file of the plan as plan= instead"
        )
    # A single name is a sequence too, of its letters.
    references = [reference] if isinstance(reference, str | Path) else reference
    # The same config that the command line would make, so that both are validated and recorded alike.
    content = {
        "model": str(model),
        "reference": [str(name) for name in references],
        "held_in": named(held_in),
        "held_out": named(held_out),
        # ``repr`` keeps every digit: a claim is tested as stated, not rounded.
        "claims": [f"epsilon={claim.epsilon!r},delta={claim.delta!r}" for claim in claims_of(claims)],
        "columns": {"user": user, "text": text},
    }
    # Key by key within a section, so that ``columns={"id": "number"}`` adds to user and text and does not replace them.
    content = merged(content, {key: named(value) if is_dataset(value) else value for key, value in options.items()})
    checked = parse_checkpoint(content, "audit_model")
    folder = Path(out) if out is not None else Path("runs") / checked.name
    record = audit_checkpoint(job_of(checked), folder, _reporter(quiet), command=_called("audit_model"))
    return AuditResult(record, folder)


def plant(
    config: Source | Mapping[str, Any],
    *,
    out: Source | None = None,
    overrides: Sequence[str] = (),
    quiet: bool = False,
) -> PlantedSet:
    """Draw coins and write a training set, so heldin can audit a training that someone else runs (``heldin plant``).

    Args:
        config: a file, or its content as a dict.
        out: the planted folder (default: runs/ and the config's name).
        overrides: changed keys of the config, such as "looks=3".

    Raises:
        InputError: the config has errors, or the training set or a model cannot be used.
    """
    from heldin.planting.plant import plant as _plant
    from heldin.planting.plant_config import load_plant
    from heldin.record.planted_files import TRAINING

    checked = load_plant(config if isinstance(config, Mapping) else Path(config), overrides)
    folder = Path(out) if out is not None else Path("runs") / checked.name
    manifest = _plant(checked, folder, _reporter(quiet))
    return PlantedSet(folder, folder / TRAINING / manifest.file, manifest.rows)


def audit_planted(
    planted: "Source | PlantedSet",
    model: Source,
    *,
    claims: Sequence[str] = (),
    declared_by: str | None = None,
    precision: PrecisionChoice | None = None,
    adapter_base: Source | None = None,
    out: Source | None = None,
    quiet: bool = False,
) -> AuditResult:
    """Audit a model that was trained on a planted training set, as ``heldin audit-planted`` does.

    Args:
        planted: the result of ``plant``, or its folder.
        model: folder or hub name of the trained model; may be a LoRA adapter's folder.
        claims: claims to test, such as "epsilon=8,delta=1e-6,unit=user".
        declared_by: the person who declares the conditions that heldin cannot check; None: nobody declares these
            conditions, so nothing is certified.
        precision: precision in which models are loaded; auto: the precision in which the model is stored; None: the
            precision in the plan.
        adapter_base: base model of an adapter, in place of the base model that the adapter's config names.
        out: folder for the results (default: audits/LOOK in the planted folder).

    Raises:
        InputError: a claim cannot be read, or the folder or a model cannot be used.
    """
    from heldin.planting.audit import audit_planted as _audit
    from heldin.planting.target import PlantedAudit

    folder = planted.folder if isinstance(planted, PlantedSet) else Path(planted)
    base = None if adapter_base is None else str(adapter_base)
    job = PlantedAudit(folder, str(model), tuple(claims), declared_by, precision=precision, adapter_base=base)
    record, at = _audit(job, Path(out) if out is not None else None, _reporter(quiet), command=_called("audit_planted"))
    return AuditResult(record, at)


def load_record(folder: Source) -> AuditResult:
    """Return the result of a finished run or audit. Raises InputError if the folder has no result."""
    return AuditResult(read_record(Path(folder) / "record.json"), Path(folder))


def load_runs(folder: Source) -> RunList:
    """Return every run, audit, sweep and planted set below a folder, as ``heldin runs`` lists them.

    A sweep is one row. A damaged or unfinished folder has a row with its state. No row describes a single person.

    Raises:
        InputError: there is no such folder.
    """
    from heldin.reports.runs import list_runs

    return RunList(Path(folder), tuple(list_runs(Path(folder))))


def _axes(ax: "Axes | None") -> "Axes":
    if ax is not None:
        return ax
    # By pyplot, so that a notebook shows the figure.
    from matplotlib import pyplot

    return pyplot.subplots(layout="constrained")[1]


def _with_named_source(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a config in which the path of a folder replaces a dataset as ``corpus.source``."""
    corpus = config.get("corpus")
    if not isinstance(corpus, Mapping) or not is_dataset(corpus.get("source")):
        return config
    source = {"kind": "huggingface", "name": named(corpus["source"])}
    return {**config, "corpus": {**corpus, "source": source}}


def _reporter(quiet: bool) -> Reporter:
    # Per call, and not ``be_quiet``, which would silence every later call of the process too.
    return LineReporter(lambda line: None) if quiet else reporter_for_this_terminal()


def _called(function: str) -> str:
    """Return the call in the form for the record: the function, and the script if there is a script."""
    # The file name without its folders, and none of the arguments: either may name a person.
    script = Path(sys.argv[0]).name if sys.argv and sys.argv[0] else ""
    return f"heldin.{function}(...)" + (f" in {script}" if script.endswith(".py") else "")
