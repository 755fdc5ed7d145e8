"""Runs and sweeps of the papers: files in ``configs`` and ``sweeps`` that heldin runs and compares with the papers."""

import shlex
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from heldin.base.errors import InputError
from heldin.commands.options import AsJson, DeviceOption, Out, Quiet, json_text

if TYPE_CHECKING:
    from heldin.sweeps.sweep_config import Sweep
    from replication.sweep_findings import FindingResult

FOLDER = Path(__file__).parent
SWEEPS = {
    "kandpal-table-2": "Kandpal et al., Table 2 and Figure 14: example DP on Enron mails",
    "kandpal-figure-4": "Kandpal et al., Figure 4: the size of the model",
    "kandpal-figure-11": "Kandpal et al., Figure 11: the size of the corpus",
    "kandpal-figure-12": "Kandpal et al., Figure 12: clipping without noise",
    "kandpal-figure-13": "Kandpal et al., Figure 13 and Table 5: taking out duplicates",
    "charles-figure-4": "Charles et al., Figures 4, 11, 12: example-level sampling by group size, compute and epsilon",
    "charles-figure-5": "Charles et al., Figures 5 and 13 to 15: user-level sampling by cohort and group size",
    "charles-figure-6": "Charles et al., Figures 6 and 16: ELS against ULS over epsilon and compute, Stack Overflow",
    "charles-figure-7": "Charles et al., Figures 7 and 17: ELS against ULS over epsilon and compute, CC-News",
    "charles-figure-8": "Charles et al., Figure 8: compute, and the number of users in the accounting alone",
    "chua-table-2": "Chua et al., Table 2: which records under group privacy",
    "chua-table-3": "Chua et al., Table 3: how many records of each user under group privacy",
    "chua-table-4": "Chua et al., Table 4: which records under user-level sampling",
    "chua-table-5": "Chua et al., Table 5 and Figure 6: records of each user in a step",
    "chua-table-6": "Chua et al., Table 6: group privacy against user-level sampling",
    "chua-table-8": "Chua et al., Table 8: ranks of adapters against full fine-tuning",
    "chua-table-9": "Chua et al., Table 9: group privacy against user-level sampling, all weights",
    "chua-table-10": "Chua et al., Tables 10 and 11: records of each user by the size of the model",
    "chua-figure-4": "Chua et al., Figure 4: clip norm by batch size",
    "affordable": "All four papers: does plain training leak, and what does user-level DP at epsilon 8 cost on plays?",
}
FINDINGS = "findings.json"
_FINISHED = (0, 3, 4)  # exit codes of a run with a result: a contradicted claim is one
Set = Annotated[list[str] | None, typer.Option("--set", help="Override of a config key, in YAML. Repeatable.")]
Check = Annotated[bool, typer.Option("--check", help="Print every problem, or the planned steps, but run nothing.")]


@dataclass(frozen=True)
class RunGroup:
    """Runs whose records together produce a figure or table of a paper.

    Attributes:
        summary: paper and computed result.
        out: default folder of the runs.
        configs: config files of the runs.
        table: function that prints the figures of the finished runs in a folder.
    """

    summary: str
    out: Path
    configs: tuple[Path, ...]
    table: Callable[[Path], None]


def _kandpal(corpus: str) -> RunGroup:
    def table(out: Path) -> None:
        from replication.kandpal_findings import print_findings

        print_findings(out, corpus)

    summary = f"Kandpal et al.: every finding that two cores can test, {corpus}"
    folder = FOLDER / "configs" / "two-cores"
    return RunGroup(summary, Path("runs/replication"), tuple(sorted(folder.glob(f"{corpus}*.yaml"))), table)


LAI = ("conll", "conll-deidentified", "conll-uls", "conll-fedavg", "conll-text", "conll-two-level", "conll-uedp")
LAI_AG = ("ag", "ag-deidentified", "ag-uls", "ag-uedp", "ag-uedp-one-norm")
LAI_RATES = ("conll-uedp-qs-0", "conll-uedp-qs-05", "conll-uedp-qs-1")


def _lai(summary: str, names: tuple[str, ...], over: str | None = None) -> RunGroup:
    def table(out: Path) -> None:
        options = ["--over", over, "--out", str(out)] if over else []
        if code := _heldin("compare", *(str(out / name) for name in names), *options):
            raise typer.Exit(code)

    folder = FOLDER / "configs" / "user-entity"
    return RunGroup(
        f"Lai et al., {summary}", Path("runs/user-entity"), tuple(folder / f"{n}.yaml" for n in names), table
    )


RUNS = {
    "kandpal-enron": _kandpal("enron"),
    "kandpal-plays": _kandpal("plays"),
    "lai-figure-2": _lai("Figure 2a: perplexity on CoNLL-2003 under each mechanism", LAI),
    "lai-figure-2b": _lai("Figure 2b: perplexity on AG News, dealt to pseudo-users (see pseudo-users)", LAI_AG),
    "lai-figure-5": _lai(
        "Figure 5a: perplexity on CoNLL-2003 by the rate of sentences without an entity, q_s",
        LAI_RATES,
        over="defense.extended_rate",
    ),
}

app = typer.Typer()


def sweep_file(name: str) -> Path:
    """Return the sweep file with this name. Most files are for a figure of a paper; one belongs to heldin."""
    shipped = FOLDER.parent / "configs" / "sweeps" / f"{name}.yaml"
    return shipped if name == "affordable" else FOLDER / "sweeps" / f"{name}.yaml"


def _sweep_command(name: str) -> Callable[..., None]:
    def command(
        out: Out = None,
        scale: Annotated[
            str | None,
            typer.Option(
                help="Size of the sweep: a name under 'scales' in the file. Use tiny on a machine with two cores."
            ),
        ] = None,
        set_: Set = None,
        check: Check = False,
        quiet: Quiet = False,
        device: DeviceOption = None,
        json: AsJson = False,
    ) -> None:
        from heldin.commands.sweep import sweep as run_heldin
        from heldin.sweeps.load import load_sweep
        from replication.sweep_findings import findings_of

        file = sweep_file(name)
        if check:
            run_heldin(file, out, set_, scale, check=True, json=json)
            return
        sweep = load_sweep(file, set_ or [], scale)
        findings_of(name, sweep)  # before the work
        _run_sweep(name, sweep, out or Path("runs") / sweep.config.name, json)

    return command


def _run_sweep(name: str, sweep: "Sweep", folder: Path, json: bool) -> None:
    from heldin.base.files import write_text
    from heldin.base.progress import reporter_for_this_terminal
    from heldin.commands.finish import interruptible, terminal_width
    from heldin.commands.sweep import write_reports
    from heldin.reports.sweep_findings import comparison_text
    from heldin.sweeps.driver import run_sweep
    from replication.sweep_findings import finding_table

    reporter = reporter_for_this_terminal()
    command = shlex.join(["python", "-m", "replication", *sys.argv[1:]])
    with interruptible():
        result = run_sweep(sweep, folder, reporter, command=command)
        written = write_reports(result, folder, html=False)
    judged = judged_findings(name, sweep, folder)
    fields = [finding.as_dict() for finding in judged]
    write_text(folder / FINDINGS, json_text(fields))
    if json:
        typer.echo(json_text({"sweep": result.model_dump(mode="json"), "findings": fields}))
    else:
        lines = [comparison_text(result, terminal_width())]
        if judged:
            lines.append(finding_table(judged, sweep.config.blocks))
        typer.echo("\n".join([*lines, *(f"report: {path}" for path in written)]))
    raise typer.Exit(result.exit_code)


def judged_findings(name: str, sweep: "Sweep", folder: Path) -> "list[FindingResult]":
    """Judge the findings about a sweep file, using the finished cells in ``folder``."""
    from heldin.base.progress import reporter_for_this_terminal
    from heldin.sweeps.cell_plan import kept_hash, placed_cells
    from heldin.sweeps.finished import finished_cells
    from replication.sweep_findings import findings_of, judge_findings

    finished, _ = finished_cells(placed_cells(sweep, folder), kept_hash(folder), reporter_for_this_terminal())
    return judge_findings(findings_of(name, sweep), sweep, finished)


def _runs_command(group: RunGroup) -> Callable[..., None]:
    def command(
        out: Annotated[Path, typer.Option(help="Folder for the runs, with a subfolder for each.")] = group.out,
        set_: Set = None,
        check: Check = False,
        only_table: Annotated[bool, typer.Option("--only-table", help="Print the table of finished runs.")] = False,
        quiet: Quiet = False,
        device: DeviceOption = None,
    ) -> None:
        if only_table and (check or set_):
            raise InputError("--only-table runs nothing: leave --check and --set out")
        for config in () if only_table else group.configs:
            overrides = [word for text in set_ or [] for word in ("--set", text)]
            options = [*overrides, *(["--check"] if check else []), *(["--quiet"] if quiet else [])]
            code = _heldin("run", str(config), "--out", str(out / config.stem), *options)
            if code not in _FINISHED:
                raise typer.Exit(code)
        if not check:
            group.table(out)

    return command


def _heldin(*arguments: str) -> int:
    """Run a heldin command in its own process, which frees the model's memory at its end. Return the exit code."""
    return subprocess.run([sys.executable, "-m", "heldin", *arguments], check=False).returncode


for name, summary in SWEEPS.items():
    app.command(
        name,
        help=f"{summary}.\n\nThis command runs a heldin sweep. If it is killed, run the same command again to resume.",
    )(_sweep_command(name))
for name, group in RUNS.items():
    app.command(
        name,
        help=f"{group.summary}.\n\nThis command starts heldin runs. If it is killed, run the same command again to"
        " resume.",
    )(_runs_command(group))
