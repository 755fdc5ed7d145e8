"""Personalization: each user starts from the same model, sees own records only, and is measured on the other half."""

import copy
import json
import shutil

import numpy as np
import pytest
import torch
from scipy import stats

import heldin.sweeps.processes as processes
from heldin.audit.coarse import LEAST_IN_GROUP
from heldin.jobs.purge import purge
from heldin.models.opening import load_language_model
from heldin.stages.sides.corpus import read_corpus
from heldin.stages.sides.data import prepare_data
from heldin.stages.train.plan import read_run_config
from heldin.sweeps.driver import run_sweep
from heldin.sweeps.load import load_sweep
from replication.personalization.job import (
    CellChanges,
    Options,
    _held_out_halves,
    _public_halves,
    _summary,
    personalize,
)
from replication.personalization.training import Change, personalized
from tests.refusals import refused
from tests.tiny_sweeps import QUIET, ULS, in_process, written

pytestmark = pytest.mark.slow  # a statistical suite, or whole runs: minutes

USERS = {
    "corpus": {
        "users": {"min_records": 8, "fraction": 0.7, "max_users": None},
        "public_validation": {"min_records": 4, "fraction": 0.5},
    },
    "finetune": {"select": "last"},
}
OPTIONS = Options(users=12, epochs=3, learning_rates=(1e-6, 0.05))


@pytest.fixture(scope="module")
def swept(tmp_path_factory):
    """A finished sweep of two variants in one block."""
    folder = tmp_path_factory.mktemp("personalized")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(processes, "run_process", in_process)
        sweep = load_sweep(written(folder, variants={"none": USERS, "uls": {**USERS, "defense": ULS}}))
        run_sweep(sweep, folder / "out", QUIET, command="heldin sweep")
    return folder / "out"


def record_loss(model, tokens):
    """Mean negative log-probability of a record's tokens, one record at a time and without padding."""
    logits = model(torch.tensor([tokens[:-1]])).logits[0].double()
    chosen = torch.log_softmax(logits, dim=-1)[range(len(tokens) - 1), tokens[1:]]
    return -chosen.mean()


def by_hand(model, own, reserved, epochs, rate):
    """The definition: a copy of the model, and a step of gradient descent for each batch of 16 records."""
    model = copy.deepcopy(model)

    def loss():
        tokens = sum(len(its) - 1 for its in reserved)
        with torch.no_grad():
            return sum(float(record_loss(model, its)) * (len(its) - 1) for its in reserved) / tokens

    before = loss()
    for _ in range(epochs):
        for start in range(0, len(own), 16):
            batch = own[start : start + 16]
            model.zero_grad()
            (sum(record_loss(model, its) for its in batch) / len(batch)).backward()
            with torch.no_grad():
                for value in model.parameters():
                    value -= rate * value.grad
    return before, loss()


def test_it_is_gradient_descent_from_the_same_weights_for_every_user(make_lm):
    tiny_lm = make_lm()
    rng = np.random.default_rng(0)
    vocabulary = tiny_lm.model.config.vocab_size

    def records(count):
        return [rng.integers(1, vocabulary, int(rng.integers(3, 12))).tolist() for _ in range(count)]

    halves = [(records(20), records(5)), (records(1), records(2))]
    kept = {name: value.clone() for name, value in tiny_lm.model.state_dict().items()}
    for its in [*halves, halves[0]]:
        found = personalized(tiny_lm.model, its, epochs=2, learning_rate=0.1)
        before, after = by_hand(tiny_lm.model, *its, 2, 0.1)
        assert found.before == pytest.approx(before, abs=1e-5)
        assert found.after == pytest.approx(after, abs=1e-4)
        assert found.after != pytest.approx(found.before, abs=1e-3)
        assert all(torch.equal(value, kept[name]) for name, value in tiny_lm.model.state_dict().items())


def test_nobody_is_trained_on_or_measured_by_others_or_the_audits_records(swept):
    config = read_run_config(swept / "cells" / "1" / "none")
    corpus = read_corpus(config, QUIET)
    data = prepare_data(config, swept / "cells" / "1" / "none", QUIET, corpus)
    target = load_language_model(str(swept / "cells/1/none/checkpoints/final"))
    halves = _held_out_halves(config, data, target, OPTIONS)
    assert 10 <= len(halves) <= 12
    for user, (own, reserved) in halves.items():
        assert data.ledger.roles[user] == "held_out"
        assert len(own) + len(reserved) == len(data.ledger.parts[user]["train"])
        assert 0 <= len(reserved) - len(own) <= 1
    public = _public_halves(config, corpus, target, OPTIONS)
    assert len(public) > 2
    assert not set(public) & {*data.ledger.roles, *data.ledger.parts}
    # The same users and halves under every variant: they are chosen by public seeds.
    other = swept / "cells" / "1" / "uls"
    again = prepare_data(read_run_config(other), other, QUIET, corpus)
    assert _held_out_halves(config, again, target, OPTIONS) == halves


def test_the_study_says_what_the_users_changes_say(swept, replicate, tmp_path):
    found = personalize(swept, OPTIONS, QUIET)
    assert [its.variant for its in found.variants] == ["none", "uls"]
    gains = {}
    for its in found.variants:
        folder = swept / "cells" / "1" / its.variant
        config = read_run_config(folder)
        data = prepare_data(config, folder, QUIET)
        target = load_language_model(str(folder / "checkpoints/final"))
        halves = _held_out_halves(config, data, target, OPTIONS)
        (rate,) = its.learning_rates
        changes = [personalized(target.model, half, epochs=3, learning_rate=rate) for half in halves.values()]
        gains[its.variant] = np.array([change.before - change.after for change in changes])
        assert its.before.value == pytest.approx(np.mean([change.before for change in changes]), abs=1e-3)
        assert its.gain.value == pytest.approx(gains[its.variant].mean(), abs=1e-3)
        limits = stats.t.interval(0.95, len(changes) - 1, gains[its.variant].mean(), stats.sem(gains[its.variant]))
        assert (its.gain.lower, its.gain.upper) == pytest.approx(limits, abs=1e-3)
        # 1e-6 changes nothing, so that public users choose the other one, unless that hurts them.
        public = _public_halves(config, read_corpus(config, QUIET), target, OPTIONS)
        after = [
            np.mean([personalized(target.model, half, epochs=3, learning_rate=r).after for half in public.values()])
            for r in OPTIONS.learning_rates
        ]
        assert rate == OPTIONS.learning_rates[int(np.argmin(after))]
    first, second = found.variants
    assert first.gain_difference is None
    assert second.gain_difference.value == pytest.approx((gains["uls"] - gains["none"]).mean(), abs=1e-3)

    code, printed, err = replicate(
        "personalization", swept, "--out", tmp_path, "--users", "12", "--learning-rate", "0.05", "--quiet"
    )
    assert code == 0, err
    assert "epsilon" in printed
    kept = json.loads((tmp_path / "personalization.json").read_text(encoding="utf-8"))
    assert [its["variant"] for its in kept["variants"]] == ["none", "uls"]
    assert "user" not in json.dumps(kept).replace('"users"', "")


def test_what_the_study_lacks_is_said_in_a_line(swept, tmp_path, replicate):
    with refused(naming=("cell 1/none", LEAST_IN_GROUP)):
        personalize(swept, Options(users=3, learning_rates=(0.1,)), QUIET)
    assert replicate("personalization", swept, "--learning-rate", "-1")[0] == 2
    out = tmp_path / "out"
    shutil.copytree(swept, out)
    shutil.rmtree(out / "cells/1/uls/checkpoints")
    with refused(naming="'" + str(out / "cells/1/uls") + "'"):
        personalize(out, Options(learning_rates=(0.1,)), QUIET)
    with refused(naming="comparison.json"):
        personalize(tmp_path, OPTIONS, QUIET)


def test_a_purged_sweep_is_refused_and_draws_no_coins_anew(swept, tmp_path):
    out = tmp_path / "out"
    shutil.copytree(swept, out)
    purge(out, ("record", "model"))
    with refused(by="require_not_purged"):
        personalize(out, OPTIONS, QUIET)
    assert not list(out.rglob("ledger"))
    # The ledger alone is lost: those held out would be others.
    shutil.rmtree(out)
    shutil.copytree(swept, out)
    shutil.rmtree(out / "cells/1/none/ledger")
    with refused(naming="'" + str(out / "cells/1/none") + "'"):
        personalize(out, OPTIONS, QUIET)
    assert not (out / "cells/1/none/ledger").exists()


def test_another_model_than_the_records_is_refused(swept, tmp_path):
    out = tmp_path / "out"
    shutil.copytree(swept, out)
    shutil.copytree(out / "cells/1/uls/checkpoints", out / "cells/1/none/checkpoints", dirs_exist_ok=True)
    with refused(naming="checkpoints/final"):
        personalize(out, Options(learning_rates=(0.1,)), QUIET)


def test_over_blocks_there_are_intervals_from_three_on_and_differences_of_the_same_tokens_only():
    def cell(shift, measured=("model", 64)):
        users = {f"u{i}": Change(5.0 + i, 4.0 + i - shift) for i in range(10)}
        return CellChanges(0.1, users, measured)

    blocks = {1: cell(0.0), 2: cell(0.1), 3: cell(0.3)}
    first = {block: cell(0.0) for block in blocks}
    found = _summary("uls", blocks, first)
    assert (found.users, found.gain.over) == (30, "blocks")
    assert found.gain.value == pytest.approx(1 + 0.4 / 3, abs=1e-3)
    limits = stats.t.interval(0.95, 2, np.mean([0, 0.1, 0.3]), stats.sem([0, 0.1, 0.3]))
    assert (found.gain_difference.lower, found.gain_difference.upper) == pytest.approx(limits, abs=1e-3)
    two = _summary("uls", {1: blocks[1], 2: blocks[2]}, first)
    assert (two.gain.lower, two.gain_difference.lower) == (None, None)
    other = {block: cell(0.0, ("model", 32)) for block in blocks}
    assert _summary("uls", blocks, other).gain_difference is None
    assert _summary("uls", blocks, {1: first[1]}).gain_difference is None
