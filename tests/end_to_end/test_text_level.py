"""Audits of attackers who see only text: on a model here, behind a chat endpoint, and beside stronger attackers."""

import json
import os
from pathlib import Path

import pytest

from heldin.attacks.access import Access
from heldin.models.endpoint import SHORT_PROBE
from heldin.models.loading import PROBE
from heldin.models.opening import load_language_model
from heldin.record.document import read_record
from heldin.reports.page_one import written
from heldin.words.answer import ComparisonFlaw
from tests.completions_server import serving
from tests.end_to_end.test_audit_command import _arguments, _reference, files
from tests.refusals import names
from tests.statements import values_of
from tests.text_server import TextServer

__all__ = ["files"]
FEW = ("--set", "attack.sampling.samples=2", "--set", "attack.sampling.tokens=8", "--set", "attack.sampling.cuts=[0.5]")


@pytest.fixture(autouse=True)
def _own_answers(finished, tmp_path, monkeypatch):
    """A cache with the session's pre-trained models, and no answers of another test's server."""
    shared = Path(os.environ["HELDIN_CACHE_DIR"])
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache" / "pretrained").symlink_to(shared / "pretrained")
    monkeypatch.setenv("HELDIN_CACHE_DIR", str(tmp_path / "cache"))


@pytest.fixture
def models(_own_answers, finished):
    target, reference = (
        load_language_model(str(path)) for path in (finished / "checkpoints/final", _reference(finished))
    )
    return {"tuned": target, "base": reference}


def parts_of(ids):
    return [ids[:end] for end in range(len(ids) + 1)]


def _at(url, finished, files, out, *options):
    there = _arguments(finished, files, out)
    replaced = {finished / "checkpoints" / "final": "tuned", _reference(finished): "endpoint:base"}
    return ["audit-endpoint", url, *(replaced.get(part, part) for part in there[1:]), *FEW, *options]


def test_one_audit_has_an_answer_for_each_level_and_is_verified(call, finished, files, tmp_path):
    levels = [part for level in ("text", "top-k", "log-probabilities") for part in ("--access", level)]
    out = tmp_path / "audit"
    code, printed, err = call(*_arguments(finished, files, out), *FEW, *levels, "--set", "release.access=text")
    assert code == 0, err
    record = read_record(out / "record.json")
    assert (record.access, record.primary_attack) == (Access.TEXT, "longest-run")
    assert [level.access for level in record.levels] == [Access.LOG_PROBABILITIES, Access.TOP_K]
    assert {result.attack for result in record.attacks} == {"coverage-mean", "coverage", "longest-run", "samia"}
    assert names(" ".join(printed.split()), "only text", "log-probabilities", "the likeliest next tokens")
    code, printed, err = call("verify", out)
    assert (code, " 0 differ" in printed) == (0, True), printed + err


def test_a_chat_endpoint_is_audited_by_text(call, finished, files, models, tmp_path):
    server, out = TextServer(models, completions=False, refuses=7), tmp_path / "audit"
    with serving(server) as url:
        arguments = _at(url, finished, files, out, "--chat", "--price-per-million", 2)
        code, _, err = call(*arguments, "--max-tokens-sent", 0)
        assert call.refused(naming=("--max-tokens-sent", "0"))
        assert all("quick brown fox" in str(body) for body in server.asked)  # no text of a person
        code, printed, err = call(*arguments)
        assert code == 0, err
        asked = len(server.asked)
        (cost,) = (line for line in err.splitlines() if line.startswith("cost: "))
        assert names(cost, f"'{url}'", "generated", "2 per million tokens")
        assert any(line.startswith("sent: ") for line in err.splitlines())
        assert any(line.startswith("level: text") for line in err.splitlines())
        assert call(*_at(url, finished, files, tmp_path / "again", "--chat"))[0] == 0
        assert len(server.asked) - asked < 40  # what is tried out, and no sample
    record = read_record(out / "record.json")
    facts = record.target.endpoint
    assert (facts.style, facts.answers.changed) == ("chat", False)
    assert 0 < facts.answers.refused < facts.answers.samples
    assert names(" ".join(printed.split()), f"refused {facts.answers.refused:,} of {facts.answers.samples:,}")
    code, printed, err = call("verify", out)
    assert (code, " 0 differ" in printed) == (0, True), printed + err


def test_completions_without_echo_are_audited_by_their_likeliest_tokens(call, finished, files, models, tmp_path):
    local, out = tmp_path / "local", tmp_path / "audit"
    few = ("--set", "attack.sampling.next_words=2")
    assert call(*_arguments(finished, files, local), *FEW, *few, "--access", "top-k")[0] == 0
    server = TextServer(models, chat=False)
    with serving(server) as url:
        code, _, err = call(*_at(url, finished, files, out, *few))
    assert code == 0, err
    assert any(line.startswith("level: top-k") for line in err.splitlines())
    mine, its = (read_record(path / "record.json").primary() for path in (local, out))
    assert (mine.attack, its.attack) == ("next-word", "next-word")
    assert its.auroc.value == pytest.approx(mine.auroc.value, abs=0.03)  # names of bytes are listed once there


def test_logit_bias_gives_an_audit_by_log_probabilities(call, finished, files, models, tmp_path):
    local, out, few = tmp_path / "local", tmp_path / "audit", ("--set", "attack.max_characters=24", "--limit", 4)
    context = models["tuned"].context
    code, _, err = call(*_arguments(finished, files, local), *few, "--set", f"context={context - 2}")
    assert code == 0, err
    server = TextServer(models, chat=False)
    served = (*few, "--tokenizer", finished / "checkpoints" / "final", "--context", context)
    with serving(server) as url:
        _, _, err = call(*_at(url, finished, files, tmp_path / "text", *served, "--max-tokens-sent", 0))
        assert names(err, "level: top-k", "logit_bias", "--access log-probabilities")
        begun = len(server.asked)
        code, _, err = call(*_at(url, finished, files, out, *served, "--access", "log-probabilities"))
        assert code == 0, err
        asked = len(server.asked)
        assert asked - begun > 300
        (cost,) = (line for line in err.splitlines() if line.startswith("cost: "))
        assert names(cost, "about", "requests", "generated")
        assert call(*_at(url, finished, files, tmp_path / "again", *served, "--access", "log-probabilities"))[0] == 0
        public = [models["tuned"].tokenizer(words)["input_ids"] for words in (PROBE, SHORT_PROBE)]
        for body in server.asked[asked:]:  # no text is paid for twice
            ids = body["prompt"]
            assert ids == SHORT_PROBE or any(part in (ids, ids[1:]) for whole in public for part in parts_of(whole))
    mine, theirs = (read_record(path / "record.json") for path in (local, out))
    assert theirs.target.endpoint.style == "logit_bias"
    assert theirs.access is Access.LOG_PROBABILITIES
    shared = {result.attack: result.auroc.value for result in theirs.attacks}
    assert len(shared) > 2
    for result in mine.attacks:
        if result.attack in shared:
            assert shared[result.attack] == pytest.approx(result.auroc.value, abs=1e-9)
    assert call("verify", out)[0] == 0


def test_a_model_that_changes_makes_the_comparison_invalid(call, finished, files, models, make_lm, tmp_path):
    server, out = TextServer({**models, "another": make_lm(seed=3)}, switches_at=40), tmp_path / "audit"
    with serving(server) as url:
        code, _, err = call(*_at(url, finished, files, out, "--chat", "--access", "text"))
    assert code == 0, err
    record = read_record(out / "record.json")
    flaw = values_of(record.decision.statement, ComparisonFlaw.ANSWERS_CHANGED)
    assert str(flaw["model"]) == "tuned"
    assert written([record.decision.statement])


def test_a_reference_without_a_chat_template_is_refused_before_any_text_is_sent(
    call, finished, files, models, tmp_path
):
    server = TextServer(models)
    with serving(server) as url:
        arguments = [
            _reference(finished) if part == "endpoint:base" else part
            for part in _at(url, finished, files, tmp_path / "audit", "--chat")
        ]
        call(*arguments)
        assert call.refused(naming=("chat template", "endpoint:NAME"))
        assert all("quick brown fox" in str(body) for body in server.asked)


@pytest.mark.parametrize(
    ("options", "naming"),
    [
        (("--chat", "--access", "log-probabilities"), ("--access", "--chat")),
        (("--access", "log-probabilities", "--access", "text"), ("--access",)),
        (("--chat", "--max-price", 1), ("max_price", "price_per_million")),
        (("--chat", "--max-minutes", 1), ("max_minutes", "requests_per_minute")),
        (("--chat", "--max-requests", 3), ("max_requests", "3")),
    ],
)
def test_what_cannot_be_is_one_line(call, finished, files, models, tmp_path, options, naming):
    server = TextServer(models)
    with serving(server) as url:
        call(*_at(url, finished, files, tmp_path / "audit", *options))
    assert call.refused(naming=naming)
    assert all("quick brown fox" in str(body) for body in server.asked)


def test_texts_that_cannot_be_cut_are_one_line(call, finished, files, tmp_path):
    rows = [{"author": user, "body": "too short", "mail": user} for user in "ab"]
    files[0].write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    call(*_arguments(finished, (files[0], files[1]), tmp_path / "audit"), *FEW, "--access", "text")
    assert call.refused(naming=("user", "5 words"))
