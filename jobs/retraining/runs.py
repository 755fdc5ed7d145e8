"""Many small trainings, each with or without the worst-case user. Each training writes one result file.

A training depends only on the audit's key and the training's number. HMACs of key and number give the coin for the
worst-case user, and the 256-bit key for cohorts and noise.
"""

import contextlib
import copy
import functools
import math
import multiprocessing
import shutil
import tempfile
import time
from collections import deque
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

import numpy as np
import torch

from heldin.base.artefacts import read_document, write_document
from heldin.base.coins import fair_coin, keyed_digest
from heldin.base.errors import InputError, ResumableError
from heldin.base.files import private_directory, text_sha256
from heldin.base.machine import start_worker
from heldin.defenses.choices import NoiseGenerator
from heldin.defenses.mechanism import Mechanism
from heldin.finetune.holding import PlainClipping
from heldin.finetune.loop import train
from heldin.finetune.recipe import Recipe
from heldin.finetune.units import PrivateRecords, PrivateTraining, plan_private_training
from heldin.models.loading import LanguageModel
from heldin.models.logprobs import score_texts
from heldin.models.opening import load_language_model
from heldin.models.tokens import Tokens


@dataclass(frozen=True)
class TrainingJob:
    """The settings that all trainings of an audit share. A job can be pickled.

    Attributes:
        base: name or folder of the model with which all trainings start.
        revision: branch, tag or commit of ``base`` on the hub; None: the newest commit.
        mechanism: the mechanism of the trainings; a plain mechanism if ``noise`` is None.
        recipe: public recipe. The seed of a training is the recipe's seed plus the training's number.
        sequences: tokens of each record; the worst-case user's records come last.
        records: ids, users, lengths and losses of the same records.
        texts: the worst-case user's texts, which the attack scores.
        base_scores: log-probability of each of the worst-case user's texts under the base model, in nats.
        noise: noise generator of a private training; None for plain training.
        micro_records: see ``plan_private_training``.
        chunk: see ``plan_private_training``.
        exactly: see ``plan_private_training``.
        clipping: clipping of plain training; None: no clipping.
        identity: hash of all other fields.
    """

    base: str
    revision: str | None
    mechanism: Mechanism
    recipe: Recipe
    sequences: tuple[Tokens, ...]
    records: PrivateRecords
    texts: tuple[str, ...]
    base_scores: tuple[float, ...]
    noise: NoiseGenerator | None
    micro_records: int
    chunk: int
    exactly: bool
    clipping: PlainClipping | None
    identity: str
    key: bytes = field(repr=False)

    def held_in(self, number: int) -> bool:
        """Return whether the worst-case user is in this training. Each training has a separate fair coin."""
        # By the audit's key alone: all coins are known before the first training, and interrupting an audit cannot be
        # used to roll the dice again.
        return fair_coin(self.key, "membership", f"training {number}")

    def key_of(self, number: int) -> bytes:
        """Return the separate 256-bit key of one training of this job."""
        # No two trainings share a key, and one that is repeated after a kill ends as it would have ended. The identity
        # is in the message, so that a changed job runs under other keys (docs/theory.md#keys-and-coins).
        return keyed_digest(self.key, "key of a training", f"{self.identity} {number}")

    def coins(self, runs: int) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
        """Return whether the worst-case user is in each training, shape (runs,)."""
        return np.array([self.held_in(number) for number in range(runs)], dtype=np.bool_)


@dataclass(frozen=True)
class Training:
    """A finished training.

    Attributes:
        held_in: whether the worst-case user was in the training.
        score: a higher score means that the training more likely included the worst-case user.
    """

    number: int
    held_in: bool
    score: float
    seconds: float


Trainer = Callable[[TrainingJob, int, Path], Training]


def train_one(job: TrainingJob, number: int, work: Path) -> Training:
    """Train one model under the job's mechanism, score the model, and delete the model.

    The score depends only on that model and on public data. It is the mean of log p_model - log p_base over the
    worst-case user's texts (Kandpal et al. 2024, equation 4). The texts are training texts, which differential privacy
    covers.

    Args:
        job: the shared part of all trainings.
        work: an empty folder for this training; the caller removes it.
    """
    started = time.monotonic()
    held_in = job.held_in(number)
    rows = len(job.sequences) - (0 if held_in else len(job.texts))
    base = _base(job.base, job.revision)
    result = train(
        # A copy: training changes weights in place, and the next training of this process starts from the same ones.
        replace(base, model=copy.deepcopy(base.model)),
        job.sequences[:rows],
        # Order of plain batches and initial adapters differ between trainings too; coins,
        # cohorts and noise have the secret key.
        replace(job.recipe, seed=(job.recipe.seed + number) % 2**31),
        work,
        private=_private(job, number, rows),
        clipping=job.clipping,
    )
    # As it would be released: read back from its folder.
    scores = [score.total for score in score_texts(load_language_model(str(result.folder)), job.texts)]
    # The mean over texts is fixed beforehand: the best of several aggregations would have to be paid for.
    score = float(np.mean(np.subtract(scores, job.base_scores)))
    return Training(number, held_in, score, time.monotonic() - started)


def run_trainings(
    job: TrainingJob,
    runs: int,
    folder: Path,
    *,
    processes: int,
    trainer: Trainer = train_one,
    advance: Callable[[int], object] = lambda _: None,
) -> list[Training]:
    """Run every training without a result in ``folder``; return all results in numerical order.

    Args:
        job: the shared part of all trainings.
        folder: folder of the audit. Each result is one file in ``folder``/runs, which heldin writes completely or not
            at all.
        processes: number of parallel trainings, each with one thread; 1: train in this process.
        advance: called with the number of finished trainings.

    Raises:
        InputError: a result is damaged or belongs to another audit, or a training is impossible with this input.
        ResumableError: a training failed; the message gives its number. heldin keeps finished trainings.
    """
    done = read_results(job, runs, folder)
    advance(len(done))
    todo = [number for number in range(runs) if number not in done]
    work = folder / "work"
    shutil.rmtree(work, ignore_errors=True)
    private_directory(work)
    run = _in_this_process if processes == 1 else functools.partial(_in_processes, processes=processes)
    try:
        # Closed at once if writing a result fails: a generator that waits for the
        # garbage collector would leave its processes.
        with contextlib.closing(run(functools.partial(_attempt, trainer, job, work), todo)) as finished:
            for training in finished:
                done[training.number] = training
                # Before progress is told: what counts as done is on disk.
                write_result(job, training, folder)
                advance(1)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return [done[number] for number in range(runs)]


def write_result(job: TrainingJob, training: Training, folder: Path) -> None:
    """Write the result of a training, completely or not at all, with a hash of its job, number and key."""
    content = {**asdict(training), "of": _name(job, training.number)}
    write_document(_path(folder, training.number), content)


def read_results(job: TrainingJob, runs: int, folder: Path) -> dict[int, Training]:
    """Return finished trainings by number.

    Raises InputError for a file that is damaged, or whose key, config, corpus or base model differs from this audit's.
    """
    trainings = {}
    for number in range(runs):
        path = _path(folder, number)
        if not path.is_file():
            continue
        content = read_document(path, "remove this file, and heldin repeats this training")
        try:
            owner = content.pop("of")
            training = Training(**content)
            # Not finite if either is not; a text in place of a number raises TypeError, and the file is damaged.
            if not math.isfinite(training.score + training.seconds):
                raise ValueError("not a finite number")
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise InputError(f"'{path}' is damaged: remove this file, and heldin repeats this training") from error
        # The coin too, which no hash covers: a result whose side was edited is not taken.
        if owner != _name(job, number) or (training.number, training.held_in) != (number, job.held_in(number)):
            raise InputError(
                f"'{path}' is the result of another audit (its key, config, corpus or base model differ): use a new"
                " folder"
            )
        trainings[number] = training
    return trainings


def _path(folder: Path, number: int) -> Path:
    return folder / "runs" / f"{number:05d}.json"


def _name(job: TrainingJob, number: int) -> str:
    """Return a hash that identifies a result: job, number, and a commitment to the training's key."""
    return text_sha256(job.identity, str(number), text_sha256("key", job.key_of(number).hex()))


def _private(job: TrainingJob, number: int, rows: int) -> PrivateTraining | None:
    if job.noise is None:
        return None
    r = job.records
    return plan_private_training(
        job.mechanism,
        job.key_of(number),
        # Planned for the records of this training: units, pools and chunks of the others
        # do not depend on whether the user is in.
        PrivateRecords(
            r.ids[:rows],
            r.users[:rows],
            r.lengths[:rows],
            None if r.losses is None else r.losses[:rows],
            None if r.named is None else r.named.of_records(range(rows)),
        ),
        job.noise,
        micro_records=job.micro_records,
        chunk=job.chunk,
        exactly=job.exactly,
    )


@functools.lru_cache(maxsize=1)
def _base(name: str, revision: str | None) -> LanguageModel:
    """Return the base model; each process loads it only once."""
    return load_language_model(name, revision=revision)


def _attempt(trainer: Trainer, job: TrainingJob, work: Path, number: int) -> Training:
    """Run one training in a separate folder; errors give the number of the training."""
    try:
        with tempfile.TemporaryDirectory(prefix=f"{number:05d}-", dir=work) as folder:
            return trainer(job, number, Path(folder))
    # The class decides the exit code, and stays.
    except (InputError, ResumableError) as error:
        raise type(error)(f"training {number}: {error}") from error
    except Exception as error:
        # Its first line: a message of torch may be a page.
        reason = (str(error).strip() or "no message").splitlines()[0]
        raise ResumableError(
            f"training {number} failed ({type(error).__name__}: {reason}). Run the same command again; heldin keeps"
            " the finished training runs"
        ) from error


def _in_this_process(attempt: Callable[[int], Training], todo: Sequence[int]) -> Generator[Training, None, None]:
    # One, as in a worker: sums over several threads round otherwise, and a result would depend on --processes.
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        for number in todo:
            yield attempt(number)
    finally:
        torch.set_num_threads(threads)


def _in_processes(
    attempt: Callable[[int], Training], todo: Sequence[int], *, processes: int
) -> Generator[Training, None, None]:
    """Yield results while at most ``processes`` trainings run. On any error, terminate the running trainings."""
    # Processes of whoever called this as a library are not ours to end.
    others = set(multiprocessing.active_children())
    # Spawned, not forked: a fork copies locks that torch's threads may hold, and can wait for them for ever.
    pool = ProcessPoolExecutor(processes, multiprocessing.get_context("spawn"), _start_worker)
    waiting, running = deque(todo), dict[Future[Training], int]()
    try:
        while waiting or running:
            # No more than can run: if a worker dies, the trainings named are those that
            # ran, and none is queued behind a failure.
            while waiting and len(running) < processes:
                number = waiting.popleft()
                running[pool.submit(attempt, number)] = number
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                training = future.result()
                del running[future]
                yield training
        pool.shutdown()
    except BrokenProcessPool as error:
        numbers = ", ".join(map(str, sorted(running.values())))
        raise ResumableError(
            f"a process was ended from outside during one of the training runs {numbers} (out of memory?). Run the"
            " command again with fewer --processes; heldin keeps the finished training runs"
        ) from error
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
        # A training cannot be cancelled once it runs, and Ctrl-C would otherwise wait for the slowest.
        for child in set(multiprocessing.active_children()) - others:
            child.terminate()
            child.join()


def _start_worker() -> None:
    start_worker()
    torch.set_num_threads(1)
