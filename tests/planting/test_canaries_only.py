"""Planted training sets in which canary users alone are audited, and every real user stays in."""

import json

import numpy as np
import pytest

import heldin
from heldin.attacks.protocol import TextStatistic
from heldin.audit.canary_groups import centred_statistics
from heldin.audit.scored_users import scored_users
from heldin.base.progress import LineReporter
from heldin.corpus.split import Role
from heldin.jobs.user_scores import leading_scores
from heldin.jobs.verify import verify
from heldin.models.opening import load_language_model
from heldin.planting.audit import audit_planted, judged_as
from heldin.planting.plant import plant
from heldin.planting.plant_data import control_rows, drawn_data
from heldin.planting.target import PlantedAudit, audited_run
from heldin.reports.findings import state_limits
from heldin.stages.sides.ledger import load_ledger
from heldin.words.evidence import Subjects
from tests.planted_sets import lines, made_rows, memorable_lm, plan, read_lines, save_base, train, write_lines
from tests.refusals import names, refused

__all__ = ["lines"]  # a fixture

QUIET = LineReporter(lambda line: None)
CANARIES = [{"kind": "unseen_token", "users": 30, "documents": [2, 8]}]
SPLIT = {"canaries_only": True, "control_rows": 0}


@pytest.fixture(scope="module")
def rows():
    return made_rows(users=10)


@pytest.fixture(scope="module")
def base(rows, tmp_path_factory):
    return save_base(memorable_lm(rows), tmp_path_factory.mktemp("base"))


@pytest.fixture(scope="module")
def planted(rows, base, tmp_path_factory):
    folder = tmp_path_factory.mktemp("canaries")
    config = plan(write_lines(rows, folder / "mine.jsonl"), base, split=SPLIT, canaries=CANARIES)
    said = []
    manifest = plant(config, folder / "out", LineReporter(said.append))
    return config, manifest, folder / "out", said


def test_every_real_row_is_trained_on_and_canary_users_by_their_coins(planted, rows):
    config, manifest, out, said = planted
    written = [row["body"] for row in read_lines(out / "training" / "mine.jsonl")]
    assert sorted(set(written) & {row["body"] for row in rows}) == sorted(row["body"] for row in rows)
    data = drawn_data(config, manifest, out, QUIET, load_language_model(config.reference))
    held_in = [user for user in data.canaries if data.ledger.roles[user] is Role.HELD_IN]
    assert 0 < len(held_in) < len(data.canaries) == 60
    assert len(written) == len(rows) + sum(data.canaries[user].documents for user in held_in)
    assert set(data.ledger.scored_users()) == set(data.canaries)
    (price,) = [line for line in said if line.startswith("price: ")]
    assert names(price, f"{len(written) - len(rows):,}")
    power = [line for line in said if line.startswith("power: ")]
    assert all("canary users" in line for line in power)


def test_the_audit_speaks_of_canary_users_and_certifies_for_them(planted, base, tmp_path):
    _, _, out, _ = planted
    texts = [row["body"] for row in read_lines(out / "training" / "mine.jsonl")]
    model = train(base, texts, tmp_path / "model", passes=24, rate=3e-3)
    claims = ("epsilon=0.01,delta=1e-6,unit=user",)
    record, folder = audit_planted(PlantedAudit(out, str(model), claims, "R. Signer"), None, QUIET, command="test")
    assert (record.split.audited, record.split.held_in + record.split.held_out) == ("canaries", 60)
    assert "canary users" in record.decision.headline
    assert {bound.subjects for bound in record.judgement.bounds} == {Subjects.CANARIES()}
    assert {its.standing for its in record.judgement.bounds} == {"certified"}
    assert max(its.epsilon_lower for its in record.judgement.bounds) > 0.01
    assert record.utility is None
    assert len(record.canaries.groups) == 2
    assert "real user" in state_limits(record)
    assert "real user" not in record.decision.headline
    assert not verify(folder, QUIET).differences
    # No real user is audited: the scores that are written are theirs.
    scores = leading_scores(folder)
    assert (len(scores), sum(its.member for its in scores)) == (60, record.split.held_in)


def test_one_kind_is_judged_once_and_several_each_at_their_share(planted, base, lines, tmp_path):
    config, manifest, out, _ = planted
    data = drawn_data(config, manifest, out, QUIET, load_language_model(config.reference))
    job = PlantedAudit(out, "model", ("epsilon=1,delta=1e-6,unit=user",))
    assert judged_as(job, config, audited_run(job, config), data).judged == 1
    two = plan(
        lines, base, split={"canaries_only": True}, canaries=[*CANARIES, {"kind": "rare_phrase", "users": 8}], looks=2
    )
    its = plant(two, tmp_path / "two", QUIET)
    data = drawn_data(two, its, tmp_path / "two", QUIET, load_language_model(two.reference))
    assert judged_as(job, two, audited_run(job, two), data).judged == 2 * 3


def test_groups_are_compared_within_themselves_whichever_side_users_are_on(planted):
    config, manifest, out, _ = planted
    data = drawn_data(config, manifest, out, QUIET, load_language_model(config.reference))
    job = PlantedAudit(out, "model")
    fixed = judged_as(job, config, audited_run(job, config), data)
    generator = np.random.default_rng(0)
    # A group of eight documents scores higher whoever is held in.
    statistics = [
        TextStatistic(user, i, "loss", float(generator.normal()) + 50 * (its.documents == 8))
        for user, its in data.canaries.items()
        for i in range(3)
    ]
    centred = centred_statistics(statistics, data.canaries, fixed)
    member = data.canary_membership()
    scores = scored_users(centred, member).scores("loss")
    groups = np.array([data.canaries[user].documents for user in member])
    assert all(abs(np.median(scores[groups == its])) < 1e-9 for its in (2, 8))
    raw = scored_users(statistics, member).scores("loss")
    within = groups == 2
    assert np.ptp((raw - scores)[within]) < 1e-9


def test_the_coins_change_no_row_but_canary_users(planted, rows, base, tmp_path):
    config, _, out, _ = planted
    plant(config, tmp_path / "again", QUIET)
    first, second = load_ledger(out / "ledger"), load_ledger(tmp_path / "again" / "ledger")
    assert first.roles != second.roles
    texts = [{row["body"] for row in read_lines(its / "training" / "mine.jsonl")} for its in (out, tmp_path / "again")]
    real = {row["body"] for row in rows}
    assert texts[0] & real == texts[1] & real == real


@pytest.mark.parametrize(
    ("changes", "by", "naming"),
    [
        ({"canaries": []}, "PlantConfig._somebody_is_audited", "split.canaries_only"),
        (
            {"split": {"canaries_only": True, "audit_fraction": 0.5}},
            "PlantedSplit._one_of_both",
            ("audit_fraction", "audit_pool"),
        ),
        (
            {"canaries": [{"kind": "substring", "lengths": [4], "users": 3}]},
            "PlantConfig._canaries_fit",
            "canaries_only",
        ),
    ],
)
def test_what_does_not_go_with_it_is_refused(changes, by, naming, lines, base):
    with refused(by=by, naming=naming):
        plan(lines, base, **{"split": {"canaries_only": True}, **changes})


def test_users_with_a_row_each_can_be_spared_too(base, tmp_path):
    lines = write_lines(made_rows(users=60, records=1), tmp_path / "mine.jsonl")
    config = plan(lines, base, split={"canaries_only": True}, canaries=CANARIES)
    manifest = plant(config, tmp_path / "out", QUIET)
    assert manifest.rows > 60
    written = [row["body"] for row in read_lines(tmp_path / "out" / "training" / "mine.jsonl")]
    assert {row["body"] for row in made_rows(users=60, records=1)} <= set(written)


@pytest.mark.slow
def test_a_training_set_without_users_is_planted_audited_and_read_by_the_callback(rows, base, tmp_path):
    texts = [{"body": row["body"], "tags": row["tags"]} for row in rows]
    canaries = [{"kind": "unseen_token", "users": 20, "documents": [4]}]
    columns = {"user": None, "text": "body"}
    lines = write_lines(texts, tmp_path / "mine.jsonl")
    config = plan(lines, base, columns=columns, split={"canaries_only": True}, canaries=canaries)
    said: list[str] = []
    manifest = plant(config, tmp_path / "out", LineReporter(said.append))
    written = read_lines(tmp_path / "out" / "training" / "mine.jsonl")
    # No column is added, and canary rows have what the others have; real rows stay but for those of the control.
    assert {tuple(row) for row in written} == {("body", "tags")}
    known = {row["body"] for row in rows}
    left_out = known - {row["body"] for row in written}
    of_canaries = [row for row in written if row["body"] not in known]
    data = drawn_data(config, manifest, tmp_path / "out", QUIET, load_language_model(config.reference))
    assert left_out == set(data.store.texts_at(np.array(control_rows(config, data))))
    held_in = sum(its is Role.HELD_IN for its in data.ledger.roles.values())
    assert len(of_canaries) == 4 * held_in > 0
    assert {tuple(row["tags"]) for row in of_canaries} <= {tuple(row["tags"]) for row in rows}
    model = train(base, [row["body"] for row in written], tmp_path / "model", passes=8, rate=1e-2)
    job = PlantedAudit(tmp_path / "out", str(model), ("epsilon=0.1,delta=1e-5,unit=user",), "R. Signer")
    record, folder = audit_planted(job, None, QUIET, command="test")
    assert record.judgement.verdicts[0].subjects == Subjects.CANARIES()
    assert {b.standing for b in record.judgement.bounds if b.name == "one-run"} == {"certified"}
    assert verify(folder, QUIET).differences == ()
    heldin.AuditCallback(tmp_path / "out")
    kept = json.loads((tmp_path / "out" / "manifest.json").read_text(encoding="utf-8"))
    assert kept["columns"] == {"user": None, "text": "body"}
    # Not without canaries_only, and a column that is forgotten is said.
    with refused(by="PlantConfig._somebody_is_audited", naming="split.canaries_only"):
        plan(lines, base, columns=columns)
    with refused(by="require_columns", naming=("'author'", "columns.user", "split.canaries_only")):
        plant(plan(lines, base, columns={"user": "author", "text": "body"}), tmp_path / "other", QUIET)
