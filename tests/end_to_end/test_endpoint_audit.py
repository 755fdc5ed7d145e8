"""Auditing a model that only a completions endpoint reaches, from the command line to the verified record."""

import json
import os
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from heldin.attacks.config import AttackConfig
from heldin.base.progress import LineReporter
from heldin.defenses.plan_file import write_plan
from heldin.jobs.checkpoint.endpoint import attacks_at_endpoint
from heldin.models.opening import load_language_model
from heldin.record.document import read_record
from heldin.reports.page_one import written
from heldin.white_box.power import chosen_mechanism
from heldin.words.answer import ComparisonFlaw
from heldin.words.page_one import LeftOut
from heldin.words.split import AtEndpoint
from tests.completions_server import CompletionsServer, serving
from tests.end_to_end.test_audit_command import _arguments, _reference, files
from tests.refusals import names, refused
from tests.statements import answer_in, values_of

__all__ = ["files"]
QUIET = LineReporter(lambda line: None)


@pytest.fixture(autouse=True)
def _own_scores(finished, tmp_path, monkeypatch):
    """A cache with the session's pre-trained models, and none of the scores that another test's server gave."""
    shared = Path(os.environ["HELDIN_CACHE_DIR"])
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache" / "pretrained").symlink_to(shared / "pretrained")
    monkeypatch.setenv("HELDIN_CACHE_DIR", str(tmp_path / "cache"))


@pytest.fixture
def local(_own_scores, finished):
    """Folders of target and reference: the reference is in the session's cache."""
    return finished / "checkpoints" / "final", _reference(finished)


@pytest.fixture
def server(local):
    models = {"tuned": load_language_model(str(local[0])), "base": load_language_model(str(local[1]))}
    return CompletionsServer(models, length=models["tuned"].context + 2)


def _at(url, arguments, local, *options):
    """The arguments of an audit of local models, with the target behind the endpoint."""
    named = ["tuned" if part == local[0] else part for part in arguments]
    return ["audit-endpoint", url, *named[1:], "--tokenizer", local[0], *options]


def test_an_audit_over_http_says_what_the_local_one_says_and_is_verified_without_the_endpoint(
    call, finished, local, server, files, tmp_path
):
    code, _, err = call(*_arguments(finished, files, tmp_path / "local"))
    assert code == 0, err
    arguments = _arguments(finished, files, tmp_path / "remote")
    with serving(server) as url:
        code, out, err = call(*_at(url, arguments, local, "--price-per-million", 2, "--requests-per-minute", 6e4))
    assert code == 0, err
    sent = [body["prompt"] for body in server.asked]
    (cost,) = (line for line in err.splitlines() if line.startswith("cost: "))
    assert names(cost, f"'{url}'", "2", "0.0", "60000")
    (left_out,) = (line for line in err.splitlines() if line.startswith("left out: "))
    assert names(left_out, "min-k++")
    # Page one says so too.
    (statement,) = read_record(tmp_path / "remote" / "record.json").left_out
    assert names(values_of(statement, LeftOut.NO_VOCABULARY)["attacks"], "min-k++")
    assert written([statement]) in " ".join(out.split())
    assert all(isinstance(prompt, list) for prompt in sent[6:])
    here, there = (read_record(tmp_path / name / "record.json") for name in ("local", "remote"))
    mine = {its.attack: its.auroc.value for its in here.attacks if its.aggregation == "mean"}
    for its in there.attacks:
        if its.aggregation == "mean":
            assert its.auroc.value == pytest.approx(mine[its.attack], abs=0.02)
    primary = there.primary()
    assert primary.auroc.value == pytest.approx(mine["likelihood-ratio"], abs=1e-9)
    assert (there.target.parameters, there.reference.fingerprint) == (None, here.reference.fingerprint)
    facts = there.target.endpoint
    assert facts is not None
    assert (facts.url, facts.style, facts.window, facts.drift) == (url, "echo", server.length - 2, 0.0)
    assert there.scoring_rule.values["endpoint"].states(AtEndpoint.SHORTER_WINDOWS)
    code, out, err = call("verify", tmp_path / "remote")  # the server is gone
    assert (code, " 0 differ" in out) == (0, True), out + err


@pytest.mark.slow
def test_a_killed_audit_goes_on_and_pays_for_nothing_twice(call, finished, local, server, files, tmp_path):
    plan = tmp_path / "plan.json"
    numbers = {"users": 100, "cohort": 10, "steps": 10, "delta": 1e-5, "noise_multiplier": 1.5}
    write_plan(chosen_mechanism(None, kind="uls", **numbers), plan)
    arguments = _arguments(finished, files, tmp_path / "remote")
    with serving(server) as url:
        options = ("--concurrency", 1, "--max-tries", 1, "--set", f"plan={plan}")
        whole = _at(url, arguments, local, *options)
        server.faults = {40: 500}
        code, _, err = call(*whole)
        assert call.refused(naming=(f"'{url}'", "1 times", "HTTP 500"), code=5)
        first = len(server.asked)
        code, _, err = call(*whole)
        assert code in (0, 4), err
        (cost,) = (line for line in err.splitlines() if line.startswith("cost: "))
        assert names(cost, "8 scores", "cache")
    users_prompts = [json.dumps(body["prompt"]) for body in server.asked]
    again = len(users_prompts) - len(set(users_prompts))
    assert again < 2 * 8 + 8  # the chunk that was in work, and the probes
    assert len(server.asked) > first + 8


@pytest.mark.slow
def test_both_models_behind_the_endpoint_without_a_tokenizer(call, finished, local, server, files, tmp_path):
    short = [*_arguments(finished, files, tmp_path / "local"), "--set", "attack.max_characters=60"]
    assert call(*short)[0] == 0
    there = {local[0]: "tuned", local[1]: "endpoint:base", tmp_path / "local": tmp_path / "remote"}
    arguments = [there.get(part, part) for part in short]
    with serving(server) as url:
        code, _, err = call("audit-endpoint", url, *arguments[1:], "--max-tokens-sent", 5)
        assert code == 2
        assert call.refused(by="require_within_limits", naming=("--max-tokens-sent", "5"))
        assert all(body["prompt"] in ("\nThe quick brown fox", "\n", "A") for body in server.asked)
        code, _, err = call("audit-endpoint", url, *arguments[1:])
    assert code == 0, err
    assert "tokens (estimated, 4 bytes each)" in err
    record = read_record(tmp_path / "remote" / "record.json")
    assert {its.attack for its in record.attacks} == {"likelihood-ratio", "loss", "zlib"}
    assert record.reference.endpoint is not None
    assert record.scoring_rule.values["endpoint"].states(AtEndpoint.TEXTS_AS_THEY_ARE)
    here, there = (_ratios(tmp_path / name / "scores.parquet") for name in ("local", "remote"))
    assert np.corrcoef(here, there)[0, 1] > 0.9


@pytest.mark.slow
def test_a_reference_here_is_scored_in_the_windows_of_the_endpoint(call, finished, local, server, files, tmp_path):
    """Texts are several windows long: a reference that saw more at a time would make another ratio."""
    server.length = 16
    with serving(server) as url:
        for name, reference in (("here", local[1]), ("there", "endpoint:base")):
            arguments = [reference if its == local[1] else its for its in _arguments(finished, files, tmp_path / name)]
            code, _, err = call(*_at(url, arguments, local))
            assert code == 0, err
    here, there = (_ratios(tmp_path / name / "scores.parquet") for name in ("here", "there"))
    assert here == pytest.approx(there, abs=1e-4)
    whole = read_record(tmp_path / "here" / "record.json").reference.fingerprint
    assert whole == load_language_model(str(local[1])).within(14).fingerprint
    code, out, err = call("verify", tmp_path / "here")
    assert (code, " 0 differ" in out) == (0, True), out + err


def test_an_attack_that_needs_tokens_is_refused_before_anything_is_sent():
    attack = AttackConfig(names=("likelihood-ratio", "centred"))
    with refused(by=attacks_at_endpoint, naming=("'centred'", "--tokenizer")):
        attacks_at_endpoint(attack, None, QUIET)
    assert attacks_at_endpoint(attack, "folder", QUIET).names == attack.names


def _ratios(path):
    table = pq.read_table(path).to_pydict()
    return [s for attack, s in zip(table["attack"], table["statistic"], strict=True) if attack == "likelihood-ratio"]


def test_a_model_that_changes_meanwhile_is_told(call, finished, local, server, files, tmp_path):
    complete, seen = server.complete, []

    def changing(body):
        seen.append(body)
        if len(seen) == 60:
            server.models["tuned"] = server.models["base"]
        return complete(body)

    server.complete = changing
    with serving(server) as url:
        code, out, err = call(*_at(url, _arguments(finished, files, tmp_path / "remote"), local))
    assert code == 0, err
    assert any(names(line, "'tuned'") for line in err.splitlines() if line.startswith("endpoint model "))
    record = read_record(tmp_path / "remote" / "record.json")
    flaw = values_of(record.decision.statement, ComparisonFlaw.MODEL_CHANGED)
    assert (str(flaw["model"]), flaw["drift"]) == ("tuned", record.target.endpoint.drift)
    assert answer_in(out) == "not valid"
    assert record.target.endpoint.drift > 1e-3


def test_what_does_not_go_together_is_refused(call, finished, local, server, files, tmp_path):
    arguments = _arguments(finished, files, tmp_path / "a")
    beside = ["endpoint:base" if part == local[1] else part for part in arguments]
    call(*beside)
    assert call.refused(by="opened_models", naming=("'endpoint:base'", "heldin audit-endpoint"))
    server.echo = server.prompt_logprobs = False
    with serving(server) as url:
        code, _, _ = call(*_at(url, arguments, local, "--access", "log-probabilities"))
    assert code == 2
    assert call.refused(by="_style_of", naming=(f"'{url}'", "'tuned'", "prompt_logprobs", "finish_reason", "index"))
    assert not (tmp_path / "a" / "record.json").exists()
