"""Split a corpus by date, and measure the loss of finished models on the later part.

In Charles et al. (2024), Appendix D, Stack Overflow before 2018 is the training data, and later posts are the test
data.
"""

import datetime
import gzip
import json
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from heldin.audit.utility import perplexity
from heldin.base.coins import keyed_order, seed_key
from heldin.base.errors import InputError
from heldin.base.files import cache_directory, private_directory
from heldin.base.progress import Reporter
from heldin.corpus.build import build_store
from heldin.corpus.sources.open import open_source
from heldin.corpus.sources.rows import Columns
from heldin.corpus.store import texts_of
from heldin.models.loading import LanguageModel
from heldin.models.logprobs import score_texts
from heldin.models.opening import load_language_model
from heldin.record.document import read_record
from heldin.stages.run_config import RunConfig
from heldin.stages.sides.corpus import reading_of_run

TEXTS = 20  # of a user
COLUMNS = Columns(id="id", date="date")


@dataclass(frozen=True)
class Later:
    """The loss of one run's model on later texts.

    Attributes:
        run: name of the run's folder.
        users: number of measured users; each has later texts.
        loss: mean over users of the loss of their tokens, in nats per token.
        perplexity: exponential of the mean loss over all tokens.
    """

    run: str
    users: int
    loss: float
    perplexity: float | None


def split_by_date(config: RunConfig, date: datetime.date, out: Path, reporter: Reporter) -> dict[str, int]:
    """Write ``before.jsonl.gz`` and ``after.jsonl.gz``, which divide all records of the config's corpus by date.

    Returns:
        The number of records in each file.

    Raises:
        InputError: a record has no date, or its date is not ISO 8601.
    """
    reporter.say("corpus: reading")
    store = build_store(config.corpus.opened(reading_of_run(config)), cache_directory(), say=reporter.say)
    private_directory(out)
    counts = {"before": 0, "after": 0}
    with gzip.open(out / "before.jsonl.gz", "wt") as before, gzip.open(out / "after.jsonl.gz", "wt") as after:
        for row in range(len(store)):
            its = store.record(row)
            name = "before" if _date(its.date, its.id) < date else "after"
            line = {"user": its.user, "text": its.text, "id": its.id, "date": its.date}
            (before if name == "before" else after).write(json.dumps(line) + "\n")
            counts[name] += 1
    return counts


def _date(value: str | None, id_: str) -> datetime.date:
    try:
        return datetime.datetime.fromisoformat(value or "").date()
    except ValueError as error:
        raise InputError(f"record '{id_}' has no readable date (found {value!r}): give dates as 2018-01-31") from error


def losses_after(runs: Sequence[Path], file: Path, most_users: int, reporter: Reporter) -> Iterator[Later]:
    """Measure finished runs on the later texts of at most ``most_users`` users, who are the same for every run.

    Args:
        runs: folders of the runs, with models.
        file: file that ``split_by_date`` wrote.
        most_users: maximum number of users, chosen by a public seed.
    """
    store = build_store(open_source(file, COLUMNS), cache_directory())
    users = keyed_order(seed_key(0), "later", list(store.users))[:most_users]
    for run in runs:
        model = run / "checkpoints" / "final"
        if not model.is_dir():
            raise InputError(f"'{run}' has no model, so its loss cannot be measured: give a run with a model")
        most = read_record(run / "record.json").config["attack"]["max_characters"]
        texts = {user: [its[:most] for its in texts_of(store, store.rows(user)[:TEXTS])] for user in users}
        with reporter.track(run.name, len(users), "users") as advance:
            measured = []
            lm = load_language_model(str(model))
            for own in texts.values():
                measured.append(_of_user(lm, own))
                advance(1)
        yield Later(run.name, len(users), statistics.fmean(loss for _, loss in measured), perplexity(measured))


def _of_user(lm: LanguageModel, texts: Sequence[str]) -> tuple[int, float]:
    logprobs = [value for scored in score_texts(lm, texts) for value in scored.logprobs]
    return len(logprobs), -statistics.fmean(logprobs)


def table(found: Sequence[Later]) -> str:
    """Return one line per run."""
    width = max(len(its.run) for its in found)
    lines = [f"{'run':<{width}}{'users':>8}{'loss':>9}{'perplexity':>12}"]
    for its in found:
        shown = "-" if its.perplexity is None else f"{its.perplexity:.2f}"
        lines.append(f"{its.run:<{width}}{its.users:>8,}{its.loss:>9.4f}{shown:>12}")
    return "\n".join(lines)


def as_dict(found: Sequence[Later]) -> dict[str, Any]:
    """Return the results of all runs, for JSON."""
    return {"later": [asdict(its) for its in found]}
