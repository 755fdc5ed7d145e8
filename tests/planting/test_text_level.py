"""A planted audit of attackers who see only text: a bound holds for any score, so text alone can contradict a claim."""

import pytest

from heldin.attacks.access import Access
from heldin.base.progress import LineReporter
from heldin.jobs.verify import verify
from heldin.planting.audit import audit_planted
from heldin.planting.plant import plant
from heldin.planting.target import PlantedAudit
from tests.planted_sets import memorable_lm, memorable_rows, plan, read_lines, save_base, train, write_lines
from tests.refusals import refused

QUIET = LineReporter(lambda line: None)
CLAIM = "epsilon=0.1,delta=1e-6,unit=user"
SAMPLING = {"cuts": [0.12], "samples": 16, "tokens": 4}
ATTACK = {
    "access": "text",
    "names": ["samia", "coverage-mean"],
    "documents": ["training"],
    "training_documents": 8,
    "max_characters": 200,
    "sampling": SAMPLING,
}


def _planted_and_trained(root, canaries, passes):
    rows = memorable_rows()
    base = save_base(memorable_lm(rows), root / "base")
    config = plan(write_lines(rows, root / "mine.jsonl"), base, canaries=canaries, attack=ATTACK)
    plant(config, root / "out", QUIET)
    texts = [row["body"] for row in read_lines(root / "out" / "training" / "mine.jsonl")]
    return root / "out", train(base, texts, root / "model", passes=passes, rate=3e-3)


@pytest.fixture(scope="module")
def planted(tmp_path_factory):
    """A planted folder and a model that learned its rows by heart.

    Without canary users: a model that learned these by losses, but not by text, makes the audit not valid.
    """
    return _planted_and_trained(tmp_path_factory.mktemp("by text"), [], passes=16)


def test_a_claim_is_contradicted_and_certified_by_text_alone(planted):
    job = PlantedAudit(planted[0], str(planted[1]), (CLAIM,), "R. Signer")
    record, folder = audit_planted(job, None, QUIET, command="heldin audit")
    assert (record.access, record.primary_attack) == (Access.TEXT, "samia")
    verdict = record.judgement.verdicts[0]
    assert (verdict.outcome, verdict.standing) == ("contradicted", "certified")
    assert record.judgement.exit_code == 3
    assert record.primary().auroc.value > 0.7
    assert verify(folder, QUIET).differences == ()


def test_the_control_reads_losses_whatever_the_attackers_see(tmp_path):
    canaries = [{"kind": "rare_phrase", "users": 10, "documents": [3]}]
    out, model = _planted_and_trained(tmp_path, canaries, passes=4)
    record, _ = audit_planted(PlantedAudit(out, str(model), (), "R. Signer"), None, QUIET, command="heldin audit")
    assert record.access is Access.TEXT
    assert record.planted.control is not None


def test_behind_an_endpoint_a_planted_audit_needs_log_probabilities(planted, call):
    url = ("--endpoint", "http://127.0.0.1:9/v1", "--model", "tuned")
    call("audit-planted", planted[0], *url, "--declared-by", "R. Signer")
    assert call.refused(naming=("attack.access", "log-probabilities"))


def test_no_claim_is_tested_on_a_planted_set_of_a_level_without_attacks():
    with refused(naming=("access", "longest-run")):
        plan("x.jsonl", "base", attack={"access": ["log-probabilities", "text"], "names": ["loss"], "primary": "loss"})
