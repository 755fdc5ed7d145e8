"""The measurement that the guide for contributors shows works on a finished run, as `heldin verify` needs it to."""

import sys
import types

import pytest

from heldin.audit.coarse import LEAST_IN_GROUP
from heldin.base.errors import InputError
from heldin.base.progress import LineReporter
from heldin.models.loading import load_language_model
from heldin.models.logprobs import score_texts
from heldin.stages.measures.measure import MeasuredUsers, MeasureFolder
from heldin.stages.run_config import load_config
from heldin.stages.sides.data import prepare_data, subjects_of_run
from tests.contracts.guide import GUIDE, example

QUIET = LineReporter(lambda line: None)


@pytest.fixture(scope="module")
def guide():
    """The module that the guide shows, under eighty lines of code."""
    code = example("class FirstChoice(")
    assert len([line for line in code.splitlines() if line.strip()]) < 80
    module = types.ModuleType("first_choice")
    sys.modules["first_choice"] = module
    exec(compile(code, str(GUIDE), "exec"), module.__dict__)
    return module


def test_the_measurement_of_the_guide_is_computed_once_and_then_read(guide, finished, tmp_path):
    config = load_config(finished / "config.yaml")
    data = prepare_data(config, finished, QUIET)
    model = load_language_model(str(finished / "checkpoints" / "final"))
    measure = guide.FirstChoiceOptions().measure(subjects_of_run(config, data), (model, model))
    made = MeasureFolder(tmp_path, QUIET).facts_of([measure], data.ledger.membership)
    read = MeasureFolder(tmp_path, QUIET, read_only=True).facts_of([measure], data.ledger.membership)
    assert made == read
    shares = MeasureFolder(tmp_path, QUIET, read_only=True).values_of(measure)
    # A slow twin: the first choice of each text alone.
    user = next(iter(shares))
    alone = [score_texts(model, [text], ranks=True)[0].ranks == 0 for text in measure.texts[user]]
    assert shares[user] == pytest.approx(sum(map(sum, alone)) / sum(map(len, alone)))
    sides = list(data.ledger.membership().values())
    assert bool(made) is (min(sides.count(True), sides.count(False)) >= LEAST_IN_GROUP)
    # Of other texts it is another table, which a verification refuses.
    fewer = guide.FirstChoiceOptions(texts_per_user=1).measure(subjects_of_run(config, data), (model, model))
    with pytest.raises(InputError, match=r"first_choice\.parquet' is missing, damaged, or of other models or texts"):
        MeasureFolder(tmp_path, QUIET, read_only=True).values_of(fewer)
    assert isinstance(subjects_of_run(config, data), MeasuredUsers)
