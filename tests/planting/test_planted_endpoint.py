"""A model behind an endpoint that was trained on a planted training set."""

import json

import pytest
import torch

from heldin.base.artefacts import read_document
from heldin.base.progress import LineReporter
from heldin.jobs.checkpoint.endpoint import Reached, Remote
from heldin.jobs.verify import verify
from heldin.models.endpoint import EndpointModel
from heldin.models.endpoint_answers import Style
from heldin.models.endpoint_client import Endpoint
from heldin.models.opening import load_language_model
from heldin.planting.audit import audit_planted
from heldin.planting.looks import LOOKS
from heldin.planting.plant import plant
from heldin.planting.plant_data import drawn_data, run_of
from heldin.planting.plant_folder import read_planted
from heldin.planting.target import PlantedAudit, window_of
from heldin.record.planted_facts import ConditionName, Known, Reason
from heldin.stages.sides.data import test_texts as held_out_texts
from heldin.words.split import AtEndpoint
from tests.completions_server import CompletionsServer, serving
from tests.planted_sets import base, plan, read_lines, rows, train, write_lines
from tests.refusals import refused

__all__ = ["base", "rows"]  # fixtures

QUIET = LineReporter(lambda line: None)


@pytest.fixture(autouse=True)
def _own_scores(tmp_path, monkeypatch):
    monkeypatch.setenv("HELDIN_CACHE_DIR", str(tmp_path / "cache"))


@pytest.fixture
def planted(rows, base, tmp_path):
    apart = []
    for row in rows:
        prompt, answer = row["body"].split(" ", 1)
        apart.append({"author": row["author"], "prompt": prompt, "answer": f" {answer}"})
    lines = write_lines(apart, tmp_path / "mine.jsonl")
    columns = {"user": "author", "prompt": "prompt", "completion": "answer"}
    attack = {"documents": ["training"], "max_characters": 200, "names": ["likelihood-ratio", "loss", "min-k++"]}
    out = tmp_path / "planted"
    plant(plan(lines, base, columns=columns, score="completion", attack=attack, looks=3), out, QUIET)
    texts = [row["prompt"] + row["answer"] for row in read_lines(out / "training" / "mine.jsonl")]
    return out, train(base, texts, tmp_path / "model", passes=1)


def _audit(out, model, url=None, said=QUIET, *, precision=None, **limits):
    remote = None
    if url is not None:
        remote = Remote(Endpoint(url, None, **limits), tokenizer=str(model))
    job = PlantedAudit(out, "tuned" if remote else str(model), (), "R. Signer", remote, precision)
    return audit_planted(job, None, said, command="test")


@pytest.mark.slow
def test_the_endpoint_says_what_the_folder_says_and_gets_no_text_of_one_side_alone(planted):
    out, model = planted
    here, _ = _audit(out, model)
    served, said = load_language_model(str(model)), []
    server = CompletionsServer({"tuned": served}, length=served.context + 2)
    with serving(server) as url:
        there, folder = _audit(out, model, url, LineReporter(said.append))
        again, same = _audit(out, model, url)
    assert (there.planted.look, again.planted.look, same) == (2, 2, folder)
    assert any(line.startswith("left out: min-k++") for line in said)
    assert any(line.startswith("cost: users' texts go to") for line in said)
    mine = {(its.attack, its.aggregation): its.auroc.value for its in here.attacks}
    assert all(its.auroc.value == mine[its.attack, its.aggregation] for its in there.attacks)
    assert {its.attack for its in here.attacks} - {its.attack for its in there.attacks} == {"min-k++"}
    assert there.utility is None
    assert (folder / "losses.parquet").exists() is False
    by = {condition.name: condition.known_by for condition in there.planted.conditions}
    assert by[ConditionName.SERVED_ALONE] is Known.DECLARED
    assert there.scoring_rule.values["endpoint"].states(AtEndpoint.SHORTER_WINDOWS)
    # The utility stage would ask for held-out users' test texts alone.
    words = served.tokenizer.batch_decode([body["prompt"] for body in server.asked if isinstance(body["prompt"], list)])
    data = drawn_data(*read_planted(out), out, QUIET, load_language_model(read_planted(out)[0].reference))
    tests = [text for its in held_out_texts(run_of(read_planted(out)[0], out), data).texts.values() for text in its]
    assert tests
    assert not any(asked.endswith(it.text[it.text.index(" number") :]) for it in tests for asked in words)
    assert not verify(folder, QUIET).differences


@pytest.mark.slow
def test_an_audit_in_narrow_windows_is_verified(planted):
    """The reference's scores are of the endpoint's windows, and its name in the record says so."""
    out, model = planted
    server = CompletionsServer({"tuned": load_language_model(str(model))}, length=12)
    with serving(server) as url:
        there, folder = _audit(out, model, url)
    here, _ = _audit(out, model)
    assert there.target.endpoint.window == 10
    assert there.reference.fingerprint == load_language_model(str(here.reference.name)).within(10).fingerprint
    assert there.reference.fingerprint != here.reference.fingerprint
    assert not verify(folder, QUIET).differences


def _other(model):
    """Another model of the same tokens."""
    other = load_language_model(str(model))
    with torch.no_grad():
        other.model.get_input_embeddings().weight.mul_(1.3)
    return other


@pytest.mark.slow
def test_another_model_under_the_same_name_is_another_look_with_scores_of_its_own(planted, tmp_path):
    out, model = planted
    first, other = load_language_model(str(model)), _other(model)
    other.model.save_pretrained(tmp_path / "other")
    other.tokenizer.save_pretrained(tmp_path / "other")
    server = CompletionsServer({"tuned": first}, length=first.context + 2)
    with serving(server) as url:
        one, _ = _audit(out, model, url)
        server.models["tuned"] = other
        two, _ = _audit(out, model, url)
        server.models["tuned"] = first
        again, _ = _audit(out, model, url)
    assert [its.planted.look for its in (one, two, again)] == [1, 2, 1]
    assert all(its.split.certifiable for its in (one, two, again))
    here, _ = _audit(out, tmp_path / "other")
    assert two.primary().auroc == here.primary().auroc
    assert one.primary().auroc == again.primary().auroc != two.primary().auroc


@pytest.mark.slow
def test_another_precision_of_the_reference_is_another_look_at_what_was_paid_for(planted):
    out, model = planted
    served = load_language_model(str(model))
    server = CompletionsServer({"tuned": served}, length=served.context + 2)
    with serving(server) as url:
        plain, _ = _audit(out, model, url)
        paid = len(server.asked)
        coarse, folder = _audit(out, model, url, precision="bf16")
        again, same = _audit(out, model, url, precision="bf16")
        whole, _ = _audit(out, model, url, precision="fp32")
        # Nothing was sent again but the public text.
        assert (
            len({json.dumps(its) for its in server.asked[paid:]} - {json.dumps(its) for its in server.asked[:paid]})
            == 0
        )
    assert [its.planted.look for its in (plain, coarse, again, whole)] == [1, 2, 2, 1]
    assert same == folder
    assert coarse.reference.fingerprint != plain.reference.fingerprint
    assert plain.target.fingerprint == coarse.target.fingerprint
    assert not verify(folder, QUIET).differences


@pytest.mark.slow
def test_a_model_that_changes_while_it_is_scored_certifies_nothing_and_its_scores_are_never_read_again(planted):
    out, model = planted
    first, other = load_language_model(str(model)), _other(model)
    server = CompletionsServer({"tuned": first}, length=first.context + 2)

    def changing(answer):
        if len(server.asked) == 60:
            server.models["tuned"] = other
        return answer

    server.tamper = changing
    with serving(server) as url:
        mixed, _ = _audit(out, model, url, concurrency=1)
        served = next(its for its in mixed.planted.conditions if its.name is ConditionName.SERVED_ALONE)
        assert (served.known_by, served.reasons) == (Known.NOT_MET, [Reason.MODEL_CHANGED_WHILE_SERVED])
        assert not mixed.split.certifiable
        server.models["tuned"] = first
        again, _ = _audit(out, model, url)
        same, _ = _audit(out, model, url)
    assert [its.planted.look for its in (mixed, again, same)] == [1, 2, 2]
    assert again.split.certifiable
    here, _ = _audit(out, model)
    assert again.primary().auroc == here.primary().auroc


def test_an_endpoint_that_may_not_be_sent_so_much_gets_nothing(planted):
    out, model = planted
    served = load_language_model(str(model))
    server = CompletionsServer({"tuned": served}, length=served.context + 2)
    with serving(server) as url:
        remote = Remote(Endpoint(url), tokenizer=str(model), max_tokens_sent=10)
        job = PlantedAudit(out, "tuned", (), "R. Signer", remote)
        with refused(by="require_within_limits", naming=("--max-tokens-sent", "10")):
            audit_planted(job, None, QUIET, command="test")
    assert read_document(out / "ledger" / LOOKS)["looks"] == []


def test_parts_of_texts_need_the_tokenizer_of_the_endpoint(planted):
    out, model = planted
    served = load_language_model(str(model))
    server = CompletionsServer({"tuned": served}, length=served.context + 2)
    with serving(server) as url:
        job = PlantedAudit(out, "tuned", (), "R. Signer", Remote(Endpoint(url)))
        with refused(by="audited_run", naming="--tokenizer"):
            audit_planted(job, None, QUIET, command="test")


def test_options_about_an_endpoint_need_one_and_its_url_is_looked_at(call, planted):
    out, model = planted
    code, _, err = call("audit-planted", out, "--model", "tuned", "--set", f"tokenizer={model}")
    assert (code, call.refused(naming=("--set", "--endpoint"))) == (2, True)
    served = ("--endpoint", "http://127.0.0.1:1/v1", "--set", f"tokenizer={model}")
    code, _, err = call("audit-planted", out, "--model", "tuned", "--model", "tuned", *served)
    assert call.refused(by="_refuse", naming="'tuned'")
    code, _, err = call("audit-planted", out, "--model", "tuned", "--endpoint", "nowhere")
    assert code == 2
    assert len(err.strip().splitlines()) == 1


def test_a_local_reference_is_scored_in_the_windows_of_the_endpoint(base):
    served = EndpointModel("tuned", None, Style.ECHO, None, 20, {}, "served")
    reference = Reached(None, None, None, {"tuned": served}, {}).load(str(base), "fp32")
    assert reference.context == 20
    assert window_of(served) == 20
    assert window_of(reference) is None
