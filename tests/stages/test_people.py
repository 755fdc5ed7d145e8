"""Exposure of all held-in users, or of a sample that follows from names alone."""

import numpy as np
import pytest

from heldin.attacks.protocol import REFERENCE_ALONE, TextStatistic
from heldin.audit.exposed_users import exposed_users
from heldin.audit.preregistration import Preregistration
from heldin.audit.scored_users import scored_users
from heldin.base.progress import LineReporter
from heldin.defenses.data_side.contract import TrainingRecord
from heldin.stages.run_config import load_config
from heldin.stages.sides.data import prepare_data
from heldin.stages.sides.panels import people_of, sides_of_run
from tests.stages.test_audit_pool import config_of, corpus_file  # noqa: F401

SILENT = LineReporter(lambda line: None)


def _scored(data, seed=0):
    dice, member = np.random.default_rng(seed), data.ledger.membership()
    rows = [TextStatistic(user, 0, REFERENCE_ALONE, -3.0) for user in member]
    return scored_users(
        [*rows, *(TextStatistic(user, 0, "likelihood-ratio", dice.normal()) for user in member)], member
    )


def _fixed(config, data, **audit):
    changed = config.audit.model_copy(update=audit)
    return Preregistration(
        config.attack, changed, config.decision, sides_of_run(data.ledger.assignment), seed=config.seed
    )


@pytest.fixture
def users(small_config, tmp_path, monkeypatch):
    config = load_config(small_config)
    return config, prepare_data(config, tmp_path / "run", SILENT)


def test_all_users_are_those_of_all_records(users):
    config, data = users
    table, records = _scored(data), [data.store.record(row) for row in data.training_rows.tolist()]
    training = [TrainingRecord(its.row, its.user, its.id, its.document) for its in records]
    expected = exposed_users(table, training, attack="likelihood-ratio", aggregation="mean")
    assert people_of(_fixed(config, data), data, table) == expected


def test_a_sample_follows_from_names_and_reads_its_own_records_alone(users, monkeypatch):
    config, data = users
    every = {its.user: its for its in people_of(_fixed(config, data), data, _scored(data))}
    read, record = [], data.store.record
    monkeypatch.setattr(data.store, "record", lambda row: read.append(row) or record(row))
    found = people_of(_fixed(config, data, exposure_users=3), data, _scored(data))
    assert len(found) == 3
    assert len({record(row).user for row in read}) == 3, "nobody is always in here, so that there are no others"
    for its in found:
        whole = every[its.user]
        assert (its.share, its.near_duplicates, its.score, its.above) == (
            whole.share,
            whole.near_duplicates,
            whole.score,
            whole.above,
        )
        assert its.word_divergence != whole.word_divergence
    other = people_of(_fixed(config, data, exposure_users=3), data, _scored(data, seed=1))
    assert {its.user for its in other} == {its.user for its in found}


def test_audited_entities_are_people_too(corpus_file, tmp_path):  # noqa: F811
    config = config_of(corpus_file)
    data = prepare_data(config, tmp_path / "run", SILENT)
    table, owners = _scored(data), data.ledger.owners()
    records = [data.store.record(row) for row in data.training_rows.tolist()]
    training = [TrainingRecord(its.row, owners.get(its.row, its.user), its.id, its.document) for its in records]
    expected = exposed_users(table, training, attack="likelihood-ratio", aggregation="mean")
    assert {its.user for its in expected} == {name for name, its in data.ledger.membership().items() if its}
    assert people_of(_fixed(config, data), data, table) == expected
    few = people_of(_fixed(config, data, exposure_users=2), data, table)
    assert len(few) == 2
    assert {(its.user, its.share) for its in few} <= {(its.user, its.share) for its in expected}
