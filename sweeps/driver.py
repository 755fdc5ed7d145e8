"""Run a sweep. Each unfinished cell runs in its own process, so a crash ends only one cell. Then compare the cells.

The comparison, records and reports can be mirrored to another place. Ledgers, keys and scores never leave the folder.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path, PurePosixPath
from typing import Any

import fsspec

from heldin.base.errors import ExitCode, InputError, ResumableError
from heldin.base.files import one_process_at_a_time
from heldin.base.progress import Reporter, logged
from heldin.record.document import without_names
from heldin.record.sweep import FILE, TUNING, SweepResult, write_sweep
from heldin.sweeps.cell_plan import placed_cells, take_sweep, tries, with_choices
from heldin.sweeps.comparison import compare_cells
from heldin.sweeps.processes import CellPlace, Machine
from heldin.sweeps.running import cells_to_do, read_states, run_cells
from heldin.sweeps.sweep_config import Resources, Sweep
from heldin.words.sweep_page import SweepNote

Connect = Callable[[Resources, int], AbstractContextManager[CellPlace]]
# Of the sweep's folder and of each cell's. Nothing of ``ledger`` and no table of users is ever among them.
_COPIED = ("comparison.json", "record.json", "report.pdf", "report.html")
_MODEL = Path("checkpoints") / "final"


def run_sweep(sweep: Sweep, out: Path, reporter: Reporter, *, command: str, connect: Connect = Machine) -> SweepResult:
    """Run the unfinished cells of the sweep in ``out``, compare the cells, and write ``comparison.json``.

    Args:
        sweep: the sweep; the same as in an earlier, unfinished call with ``out``.
        command: the command line, for the log.
        connect: function that makes the place for running cells, given the sweep's resources and the number of cells.

    Raises:
        InputError: ``out`` contains another sweep, another process is working in it, or the place does not exist.
        ResumableError: a tuning cell has no result.
    """
    with one_process_at_a_time(out):
        contradicted = False
        if sweep.tuning is not None:
            tuned = run_sweep(sweep.tuning, out / TUNING, reporter, command=command, connect=connect)
            failed = [cell for cell in tuned.cells if cell.missing]
            if failed:
                raise ResumableError(
                    f"tuning: cell {failed[0].block}/{failed[0].variant} failed ({failed[0].reason}). Run the same"
                    " command to retry, or remove this try from the grid and begin in a new folder"
                )
            contradicted = tuned.exit_code == ExitCode.CERTIFIED
            # Before the coins of the blocks: what is chosen is part of the plan that they are drawn after.
            sweep = with_choices(sweep, tries(sweep, out))
        take_sweep(sweep, out)
        # Until the cells are compared anew there is nothing to read: an older comparison may be of other cells.
        (out / FILE).unlink(missing_ok=True)
        with logged(reporter, out, command=without_names(command)) as kept:
            cells = placed_cells(sweep, out)
            states = read_states(out)
            if todo := cells_to_do(cells, out):
                with connect(sweep.config.resources, len(todo)) as place:
                    states = run_cells(cells, out, place, kept)
            result = compare_cells(sweep, out, states, kept, command=without_names(command))
            if contradicted:
                note = SweepNote.TUNING_CONTRADICTED(folder=str(out / TUNING))
                result = result.model_copy(update={"tuning_contradicted": True, "notes": [note, *result.notes]})
            write_sweep(result, out)
            return result


def open_mirror(url: str) -> tuple[Any, str]:
    """Return the file system of ``url`` and its folder. Creates the folder. Raises InputError if this is impossible."""
    try:
        system, folder = fsspec.core.url_to_fs(url)
        system.makedirs(folder, exist_ok=True)
    except Exception as error:  # each file system has errors of its own
        raise InputError(
            f"heldin cannot write to --mirror {url} ({type(error).__name__}: {error}). Correct the address or the"
            " access rights"
        ) from error
    return system, folder


def mirror(out: Path, url: str, *, models: bool, reporter: Reporter) -> int:
    """Copy records, reports and, if asked, models from ``out`` to ``url``. Return the number of copied files.

    An interrupted copy leaves no partial file.

    Args:
        out: folder of the sweep.
        url: destination in fsspec's form: a folder, s3://..., gs://...
        models: whether to also copy the cells' models.

    Raises:
        InputError: heldin cannot write to the destination.
    """
    system, folder = open_mirror(url)
    files = list(_files(out, models=models))
    with reporter.track("mirror", len(files), "files") as advance:
        for file in files:
            target = str(PurePosixPath(folder) / file.relative_to(out).as_posix())
            try:
                system.makedirs(str(PurePosixPath(target).parent), exist_ok=True)
                system.put_file(str(file), f"{target}.part")
                system.mv(f"{target}.part", target)
            except Exception as error:
                raise InputError(
                    f"heldin cannot write '{target}' to --mirror {url} ({type(error).__name__}: {error}). Correct"
                    " the access rights, or free space"
                ) from error
            advance(1)
    return len(files)


def _files(out: Path, *, models: bool) -> Iterator[Path]:
    for folder in (out, *sorted(out.glob("cells/*/*"))):
        for name in _COPIED:
            if (folder / name).is_file():
                yield folder / name
        if models and (folder / _MODEL).is_dir():
            yield from sorted(path for path in (folder / _MODEL).rglob("*") if path.is_file())
