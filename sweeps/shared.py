"""Do the shared work of cells once, before any cell runs: ``python -m heldin.sweeps.shared FOLDER...``.

The cache stores corpus, base model, reference models and their scores. Without this step, all cells would make them at
the same time. The folders belong to cells that share everything except the scored texts, with one cell per block.
"""

import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from heldin.base.errors import ExitCode, InputError, ResumableError
from heldin.base.files import private_directory
from heldin.base.progress import LineReporter, Reporter
from heldin.models.loading import LanguageModel
from heldin.models.opening import load_language_model
from heldin.stages.measures.scores import TextScores
from heldin.stages.run_config import load_config
from heldin.stages.run_measures import score_references
from heldin.stages.sides.corpus import CorpusData, read_corpus
from heldin.stages.sides.data import prepare_data
from heldin.stages.sides.ledger import CELL_FILE
from heldin.stages.train.models import base_model, check_references, reference_model, scored_base

SCRATCH = "progress"  # of the sweep's folder; removed when no cell works


def make_shared(folders: Sequence[Path], reporter: Reporter) -> None:
    """Make the shared work of the cells in these folders, unless it is in the cache.

    Args:
        folders: folders of cells with the same corpus, base model and reference models.

    Raises:
        InputError: the corpus or a model is unusable.
    """
    config = load_config(folders[0] / "config.yaml")
    corpus = read_corpus(config, reporter)
    check_references(config, corpus)
    base_name, base = base_model(config, corpus, reporter)
    references = [reference_model(spec, config, corpus, base_name, reporter) for spec in config.attack.references]
    for folder in folders:
        # A finished cell has scores of its own.
        if (folder / TextScores.file).is_file():
            continue
        try:
            _score(folder, corpus, base_name, base, references, reporter)
        except InputError as error:
            # Of this cell alone, which will say it itself.
            reporter.say(f"this model's scores are not shared: {error}")


def _score(
    folder: Path,
    corpus: CorpusData,
    base_name: str,
    base: LanguageModel,
    references: Sequence[LanguageModel],
    reporter: Reporter,
) -> None:
    config = load_config(folder / "config.yaml")
    # Its texts and coins are the cell's, in a folder beside: what the cell makes, and how long it takes, stay its own.
    scratch = folder.parents[2] / SCRATCH / f"{folder.parent.name}-{folder.name}"
    shutil.rmtree(scratch, ignore_errors=True)
    try:
        private_directory(scratch / "ledger")
        shutil.copy(folder / "ledger" / CELL_FILE, scratch / "ledger" / CELL_FILE)
        data = prepare_data(config, scratch, reporter, corpus, base)
        start, named, precision = scored_base(config, base_name), config.attack.reference, config.attack.precision
        leading = load_language_model(named, precision=precision) if named else start
        score_references(config, data, leading, start, references, reporter)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


if __name__ == "__main__":
    try:
        make_shared([Path(name) for name in sys.argv[1:]], LineReporter())
    # The last line is what the sweep shows.
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(ExitCode.BAD_INPUT)
    except ResumableError as error:
        print(f"stopped: {error}", file=sys.stderr)
        sys.exit(ExitCode.RESUMABLE)
