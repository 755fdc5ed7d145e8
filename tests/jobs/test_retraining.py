"""Independent trainings: what is certified is true, what is broken is caught, and a resumed audit is the same audit."""

import json
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from heldin.base.artefacts import write_document
from heldin.base.errors import ResumableError
from heldin.base.progress import LineReporter
from heldin.defenses.accounting.closed_forms import gaussian_epsilon
from heldin.defenses.choices import ConstantDivisor, FlatClip
from heldin.defenses.mechanism import Mechanism
from heldin.defenses.samplers import PoissonSampler
from heldin.finetune.recipe import Recipe
from heldin.finetune.units import PrivateRecords
from heldin.jobs.retraining.engine import audit_trainings, body_again
from heldin.jobs.retraining.job import TrainingsAudit
from heldin.jobs.retraining.runs import Training, TrainingJob, read_results, run_trainings
from heldin.record.document import Body, read_record
from heldin.stages.run_config import parse_config
from tests.conftest import TRIAL
from tests.coverage.mechanisms import DELTA
from tests.refusals import refused

QUIET = LineReporter(lambda line: None)


def _config(**defense):  # full participation, so that the mechanism is Gaussian
    return parse_config({**TRIAL, "defense": {**TRIAL["defense"], **defense}}, "tiny")


def _job(key: bytes = b"k" * 32, identity: str = "job") -> TrainingJob:
    """A job that only a fake trainer runs."""
    mechanism = Mechanism(
        unit="user",
        sampled="user",
        sampler=PoissonSampler(rate=1.0),
        clip=FlatClip(norm=1.0),
        noise_multiplier=1.0,
        steps=1,
        delta=DELTA,
        divisor=ConstantDivisor(value=1),
    )
    return TrainingJob(
        base="none",
        revision=None,
        mechanism=mechanism,
        recipe=Recipe(),
        sequences=(),
        records=PrivateRecords([], [], []),
        texts=(),
        base_scores=(),
        noise=None,
        micro_records=1,
        chunk=1,
        exactly=False,
        clipping=None,
        identity=identity,
        key=key,
    )


def shifted(job: TrainingJob, number: int, work: Path) -> Training:
    """Draws N(3, 1) with the user and N(0, 1) without, from the training's own key: a trainer of known epsilon."""
    held_in = job.held_in(number)
    draw = np.random.default_rng(int.from_bytes(job.key_of(number), "big")).standard_normal()
    return Training(number, held_in, float(draw + 3.0 * held_in), 0.0)


def noiseless(job: TrainingJob, number: int, work: Path) -> Training:
    """The noise forgotten: what is left hardly varies."""
    found = shifted(job, number, work)
    return replace(found, score=1e-3 * found.score + found.held_in)


def dies(job: TrainingJob, number: int, work: Path) -> Training:
    if number == 2:
        signal.raise_signal(signal.SIGKILL)
    return shifted(job, number, work)


def fails(job: TrainingJob, number: int, work: Path) -> Training:
    if number == 3:
        raise RuntimeError("out of luck\nand more")
    return shifted(job, number, work)


# --- trainings and their files ---


def test_coins_are_fair_and_no_two_trainings_or_jobs_share_a_key():
    job = _job()
    coins = job.coins(20_000)
    assert stats.binomtest(int(coins.sum()), coins.size).pvalue > 1e-6
    keys = {job.key_of(n) for n in range(1000)} | {_job(identity="other").key_of(n) for n in range(1000)}
    assert len(keys) == 2000
    assert all(len(key) == 32 for key in keys)
    assert _job(key=b"o" * 32).key_of(0) not in keys
    assert "kkkk" not in repr(job)


def test_a_resumed_audit_trains_nothing_twice_and_ends_the_same(tmp_path):
    trained: list[int] = []

    def counting(job, number, work):
        if len(trained) == 7:
            raise KeyboardInterrupt
        trained.append(number)
        return shifted(job, number, work)

    with pytest.raises(KeyboardInterrupt):
        run_trainings(_job(), 12, tmp_path, processes=1, trainer=counting)
    assert sorted(read_results(_job(), 12, tmp_path)) == trained == list(range(7))
    rest: list[int] = []

    def counting_on(job, number, work):
        rest.append(number)
        return shifted(job, number, work)

    resumed = run_trainings(_job(), 12, tmp_path, processes=1, trainer=counting_on)
    assert rest == list(range(7, 12))
    assert resumed == run_trainings(_job(), 12, tmp_path / "undisturbed", processes=1, trainer=shifted)
    assert not (tmp_path / "work").exists()


def test_results_of_another_key_or_job_and_damaged_ones_are_refused(tmp_path):
    run_trainings(_job(), 4, tmp_path, processes=1, trainer=shifted)
    for other in (_job(key=b"o" * 32), _job(identity="another config")):
        with refused(by=read_results, naming=("00000.json'",)):
            read_results(other, 4, tmp_path)
    path = tmp_path / "runs" / "00002.json"
    kept = json.loads(path.read_text(encoding="utf-8"))
    for damaged in ("{", "[]", json.dumps({**kept, "score": "high"}), json.dumps({**kept, "score": float("nan")})):
        path.write_text(damaged, encoding="utf-8")
        with refused(by="read_document", naming="00002.json'"):
            read_results(_job(), 4, tmp_path)
    del kept["sha256"]
    write_document(path, {**kept, "held_in": not kept["held_in"]})
    with refused(by=read_results, naming="00002.json"):
        read_results(_job(), 4, tmp_path)
    path.write_text((tmp_path / "runs" / "00001.json").read_text(encoding="utf-8"), encoding="utf-8")
    with refused(by=read_results, naming="00002.json"):
        read_results(_job(), 4, tmp_path)


def test_one_failing_training_is_named_in_one_line(tmp_path):
    expected = (
        r"^training 3 failed \(RuntimeError: out of luck\)\. Run the same command again; heldin keeps the finished"
        r" training runs$"
    )
    with pytest.raises(ResumableError, match=expected):
        run_trainings(_job(), 6, tmp_path, processes=1, trainer=fails)
    assert sorted(read_results(_job(), 6, tmp_path)) == [0, 1, 2]


@pytest.mark.slow
def test_processes_give_what_one_process_gives_and_their_death_is_one_line(tmp_path):
    alone = run_trainings(_job(), 9, tmp_path / "one", processes=1, trainer=shifted)
    assert run_trainings(_job(), 9, tmp_path / "two", processes=2, trainer=shifted) == alone
    with refused(by="_in_processes", naming="training 3", kind=ResumableError):
        run_trainings(_job(), 9, tmp_path / "fail", processes=2, trainer=fails)
    with refused(naming=("2", "--processes"), kind=ResumableError):
        run_trainings(_job(), 9, tmp_path / "dies", processes=2, trainer=dies)


ENDLESS = """
import signal, sys
sys.path[:0] = [{root!r}]
from pathlib import Path
from heldin.jobs.retraining.runs import run_trainings
from tests.jobs.test_retraining import _job, sleeps
if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
    run_trainings(_job(), 4, Path({folder!r}), processes=2, trainer=sleeps)
"""


def sleeps(job: TrainingJob, number: int, work: Path) -> Training:
    (work.parent.parent / f"began-{number}").touch()
    time.sleep(600)
    return shifted(job, number, work)


@pytest.mark.slow
@pytest.mark.parametrize("blow", [signal.SIGINT, signal.SIGKILL])
def test_workers_do_not_outlive_the_command(tmp_path, blow):
    script = tmp_path / "endless.py"
    root = str(Path(__file__).resolve().parents[2])
    script.write_text(ENDLESS.format(root=root, folder=str(tmp_path / "audit")), encoding="utf-8")
    with subprocess.Popen([sys.executable, str(script)], stderr=subprocess.PIPE, text=True) as parent:
        try:
            _until(lambda: len(list((tmp_path / "audit").glob("began-*"))) == 2, 120)
            children = _children(parent.pid)
            assert len(children) >= 2
            parent.send_signal(blow)
            parent.wait(30)
        finally:
            parent.kill()
        if blow is signal.SIGINT:
            assert parent.stderr.read().rstrip().endswith("KeyboardInterrupt")
    _until(lambda: not any(Path(f"/proc/{child}").exists() for child in children), 30)


def _children(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii").split()


def _until(done, seconds: float) -> None:
    end = time.monotonic() + seconds
    while not done():
        assert time.monotonic() < end, "waited too long"
        time.sleep(0.1)


# --- whole audits ---


def _audit(config=None, runs=24, **options):
    return TrainingsAudit(config or _config(), runs, **options)


@pytest.fixture
def fixed_key(monkeypatch):
    """Coins that are known, so that chance cannot leave one side empty."""
    monkeypatch.setattr("heldin.jobs.retraining.engine.new_key", lambda: b"\x98" * 32)


def test_a_trainer_of_known_epsilon_and_one_without_noise(tmp_path, fixed_key):
    true = gaussian_epsilon(3.0, 1e-5)  # of N(3, 1) against N(0, 1)
    assert true == pytest.approx(16.68, abs=0.01)
    honest = audit_trainings(
        _audit(_config(target_epsilon=17), 200), tmp_path / "a", QUIET, command="x", processes=1, trainer=shifted
    )
    verdicts = {v.claim: v.outcome for v in honest.judgement.verdicts}
    assert set(verdicts.values()) == {"consistent"}, verdicts
    assert 1 < honest.trainings.epsilon_lower < true
    broken = audit_trainings(
        _audit(runs=60, claims=((1.0, 1e-5),)), tmp_path / "b", QUIET, command="x", processes=1, trainer=noiseless
    )
    assert [(v.outcome, v.standing) for v in broken.judgement.verdicts] == [("contradicted", "certified")] * 2
    assert broken.judgement.exit_code == 3
    assert broken.judgement.bounds[0].epsilon_lower == broken.trainings.epsilon_lower > 1


@pytest.mark.slow
def test_a_real_audit_is_the_same_after_a_kill_and_can_be_recomputed(tmp_path, fixed_key, monkeypatch):
    from heldin.jobs.retraining import runs as trial_runs

    real = trial_runs.train_one
    left = [6]

    def mortal(job, number, work):
        if left[0] == 0:
            raise KeyboardInterrupt
        left[0] -= 1
        return real(job, number, work)

    job = _audit(_config(steps=2), 16, documents=3)
    with pytest.raises(KeyboardInterrupt):
        audit_trainings(job, tmp_path / "a", QUIET, command="x", processes=1, trainer=mortal)
    resumed = audit_trainings(job, tmp_path / "a", QUIET, command="x", processes=1)
    whole = audit_trainings(job, tmp_path / "b", QUIET, command="x", processes=1)
    same = {"created", "environment", "trainings", "training"}
    assert resumed.model_dump(exclude=same) == whole.model_dump(exclude=same)
    times = {"seconds_each"}
    assert resumed.trainings.model_dump(exclude=times) == whole.trainings.model_dump(exclude=times)
    stored, again = read_record(tmp_path / "a" / "record.json"), body_again(tmp_path / "a", QUIET)
    assert stored == resumed
    assert again.model_dump() == stored.model_dump(include=set(Body.model_fields))
    assert resumed.training.epsilon <= 1
    assert resumed.trainings.documents == 3
    with_user = [json.loads(p.read_text(encoding="utf-8")) for p in sorted((tmp_path / "a" / "runs").iterdir())]
    assert len({result["score"] for result in with_user}) == 16  # every training drew noise of its own
    (tmp_path / "a" / "runs" / "00005.json").unlink()
    with refused(by="body_again", naming="training 5"):
        body_again(tmp_path / "a", QUIET)


def test_a_second_call_while_the_first_draws_its_key_is_refused(tmp_path, monkeypatch):
    out = tmp_path / "a"

    def second_call():
        with refused(by="one_process_at_a_time"):
            audit_trainings(_audit(), out, QUIET, command="x", processes=1, trainer=shifted)
        return bytes(32)

    monkeypatch.setattr("heldin.jobs.retraining.engine.new_key", second_call)
    audit_trainings(_audit(), out, QUIET, command="x", processes=1, trainer=shifted)
    assert (out / "ledger" / "key").read_text(encoding="utf-8") == "00" * 32


def test_a_folder_of_another_audit_is_refused_with_what_differs(tmp_path, fixed_key):
    out = tmp_path / "a"
    audit_trainings(_audit(), out, QUIET, command="x", processes=1, trainer=shifted)
    with refused(by="_take_folder", naming="options.runs"):
        audit_trainings(_audit(runs=30), out, QUIET, command="x", processes=1, trainer=shifted)
    with refused(by="_take_folder", naming="config.defense"):
        audit_trainings(_audit(_config(target_epsilon=2)), out, QUIET, command="x", processes=1, trainer=shifted)
    (out / "ledger" / "key").write_text("ab" * 32, encoding="utf-8")
    with refused(by=read_results, naming=("00000.json'",)):
        audit_trainings(_audit(), out, QUIET, command="x", processes=1, trainer=shifted)
    (out / "ledger" / "key").unlink()
    with refused(by="_take_folder", naming="key"):
        audit_trainings(_audit(), out, QUIET, command="x", processes=1, trainer=shifted)
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "mine.txt").touch()
    with refused(by="_require_empty", naming="audit"):
        audit_trainings(_audit(), tmp_path / "b", QUIET, command="x", processes=1, trainer=shifted)


@pytest.mark.parametrize(
    ("change", "by", "naming"),
    [
        ({"canaries": [{"kind": "unseen_token", "users": 2}]}, "_require_supported", "'canaries'"),
        ({"finetune": {**TRIAL["finetune"], "select": "best"}}, "_require_supported", ("finetune.select", "'last'")),
        ({"defense": {"kind": "clip", "unit": "batch"}}, "TrainingsAudit.trained", "defense.clip_norm"),
        (
            {"defense": {"kind": "filter", "population": 9, "steps": 2, "delta": 1e-5, "target_epsilon": 1, "tau": 1}},
            "TrainingsAudit.trained",
            "'filter'",
        ),
        (
            {"attack": {"precision": "bf16"}},
            "_require_supported",
            ("float32", "'attack.precision'"),
        ),
        (
            {"measures": {"extraction": {"prefix": 4, "suffix": 4}}},
            "_require_supported",
            ("'measures'", "extraction"),
        ),
    ],
)
def test_configs_that_cannot_be_audited_so_are_one_line(tmp_path, change, by, naming):
    config = parse_config({**TRIAL, **change}, "tiny")
    with refused(by=by, naming=naming):
        audit_trainings(_audit(config), tmp_path / "a", QUIET, command="x", processes=1, trainer=shifted)
    assert not (tmp_path / "a").exists()


def test_a_training_that_the_mechanism_refuses_is_named(tmp_path, fixed_key):
    capped = _config(population=2, cohort=1, sampler="shuffled", target_epsilon=None, noise_multiplier=1.0)
    with refused(by="_attempt", naming=("0", "2")):
        audit_trainings(_audit(capped), tmp_path / "a", QUIET, command="x", processes=1)


@pytest.mark.slow
def test_noise_forgotten_in_the_real_trainer_is_a_certified_violation_and_the_right_one_is_not(
    tmp_path, fixed_key, monkeypatch
):
    right = audit_trainings(_audit(runs=80), tmp_path / "right", QUIET, command="x", processes=1)
    assert right.judgement.exit_code == 0
    assert right.judgement.verdicts[0].outcome == "consistent"
    import torch

    def silent(self, step, name, shape, deviation, device, rows=None):
        return torch.zeros(shape, device=device)

    monkeypatch.setattr("heldin.defenses.noise.NoiseSource.gaussian", silent)
    wrong = audit_trainings(_audit(runs=80, claims=((1.0, 1e-5),)), tmp_path / "wrong", QUIET, command="x", processes=1)
    assert [(v.outcome, v.standing) for v in wrong.judgement.verdicts] == [("contradicted", "certified")] * 2
    assert wrong.judgement.exit_code == 3
    assert wrong.trainings.epsilon_lower > 1
