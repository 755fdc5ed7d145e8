"""Seconds of a run's stages add up over its calls."""

import json
import time

import pytest

from heldin.record.document import read_record
from heldin.stages.environment import environment
from heldin.stages.run_folder import SECONDS_FILE, StageSeconds


def test_a_killed_stage_and_its_continuation_add_up(tmp_path):
    first = StageSeconds()
    with first.timed("corpus"):
        time.sleep(0.01)
    first.keep_in(tmp_path)

    def killed():
        time.sleep(0.02)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), first.timed("fine-tuning"):
        killed()
    again = StageSeconds()
    again.keep_in(tmp_path)
    assert again.seconds == first.seconds
    with again.timed("fine-tuning"):
        time.sleep(0.02)
    assert again.seconds["corpus"] == first.seconds["corpus"] >= 0.01
    assert again.seconds["fine-tuning"] >= first.seconds["fine-tuning"] + 0.02 >= 0.04
    assert json.loads((tmp_path / SECONDS_FILE).read_text()) == again.seconds


@pytest.mark.parametrize("content", ["{", "[1]", '{"corpus": null}'])
def test_a_damaged_file_ends_no_run(tmp_path, content):
    (tmp_path / SECONDS_FILE).write_text(content)
    taken = StageSeconds()
    taken.keep_in(tmp_path)
    with taken.timed("corpus"):
        pass
    assert list(taken.seconds) == ["corpus"]


def test_the_record_has_what_the_file_says(finished):
    kept = json.loads((finished / SECONDS_FILE).read_text())
    record = read_record(finished / "record.json")
    assert record.environment.seconds == {stage: round(its, 2) for stage, its in kept.items()}
    assert environment(kept).seconds == record.environment.seconds
    effort = record.effort
    assert effort is not None
    assert (effort.precisions, effort.processes, effort.ways) == (["fp32"], 1, [])
    assert effort.tokens_per_second > effort.gradients_per_second > 0
    assert effort.step_seconds <= record.training.seconds + 0.01
