"""The attacker's dials: what leads, what stands beside, and that a whole run with every dial turned holds together."""

import contextlib
import json

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
import yaml

from heldin.attacks.access import Access
from heldin.attacks.config import AttackConfig
from heldin.attacks.kinds import get_attack, names_at, per_text
from heldin.attacks.protocol import Dial, TextStatistic
from heldin.audit.attack_results import dial_settings
from heldin.audit.decision import AuditConfig, DecisionConfig
from heldin.audit.family import family_of
from heldin.audit.panels import results_of
from heldin.audit.preregistration import COINS, Preregistration
from heldin.audit.scored_users import scored_users
from heldin.base.artefacts import INDEX, read_table, write_table
from heldin.base.errors import InputError
from heldin.base.progress import LineReporter
from heldin.corpus.split import Part, Role
from heldin.corpus.store import texts_of
from heldin.jobs.run import run
from heldin.jobs.verify import verify
from heldin.models.loading import LanguageModel
from heldin.record.document import masked, read_record
from heldin.stages.measures.scores import score_leading
from heldin.stages.measures.tables import columns_of, statistics_of
from heldin.stages.run_config import load_config, parse_config
from heldin.stages.sides.corpus import read_corpus
from heldin.stages.sides.data import prepare_data
from heldin.stages.sides.ledger import load_ledger
from heldin.stages.train.models import base_model, reference_model
from heldin.stages.train.shadows import _included, _shadow_run
from tests.conftest import SMALL
from tests.refusals import names, refused

OURS = names_at(Access.LOG_PROBABILITIES)
QUIET = LineReporter(lambda line: None)


def test_statistics_are_read_back_with_their_dials(tmp_path):
    turned = [
        TextStatistic("a", 0, "likelihood-ratio", 1.5),
        TextStatistic("a", 1, "likelihood-ratio", 2.5, Dial("reference", "org/gpt: [v2]")),
    ]
    write_table(columns_of(turned), tmp_path / "scores.parquet", made_from="models")
    assert statistics_of(read_table(tmp_path / "scores.parquet", made_from="models")) == turned
    assert read_table(tmp_path / "scores.parquet", made_from="others") is None


def _statistics(gaps, users=400, texts=3):
    """Per named attack statistics of one world, members better by the attack's own gap."""
    rng = np.random.default_rng(0)
    member = {f"u{i}": bool(i % 2) for i in range(users)}
    common = rng.normal(0, 1, (users, texts))
    return [
        TextStatistic(user, t, name, float(common[i, t] + gap * its), dial)
        for (name, dial), gap in gaps.items()
        for i, (user, its) in enumerate(member.items())
        for t in range(texts)
    ], member


def _dials(statistics, member, attack):
    table = scored_users(statistics, member)
    fixed = Preregistration(attack, AuditConfig(resamples=200), DecisionConfig(redraws=199), COINS)
    return dial_settings(family_of(table, fixed), attack)


def test_settings_stand_beside_the_leading_one_with_their_difference():
    better = ("loss", Dial("reference", "other"))
    statistics, member = _statistics({("loss", None): 0.2, better: 0.6})
    attack = AttackConfig(names=("loss",), primary="loss", aggregations=("mean", "max"), reference="mine")
    rows = _dials(statistics, member, attack)
    assert [(r.dial, r.setting) for r in rows] == [
        ("aggregation", "mean"),
        ("aggregation", "max"),
        ("reference", "mine"),
        ("reference", "other"),
    ]
    assert [r.leads for r in rows] == [True, False, True, False]
    assert rows[0].difference is None
    assert rows[2].difference is None
    assert rows[3].difference.lower > 0.05
    assert rows[3].auroc.value - rows[2].auroc.value == pytest.approx(rows[3].difference.value)
    only = AttackConfig(names=("loss",), primary="loss", aggregations=("mean",))
    assert _dials(_statistics({("loss", None): 0.2})[0], member, only) == []
    assert rows[3].adjusted_p <= 0.01 < 1


def test_every_user_is_in_half_of_the_shadow_models_and_pairs_are_not_tied():
    included = _included([f"u{i}" for i in range(500)], 8, seed=1)
    assert (included.sum(axis=0) == 4).all()
    together = (included[0] & included[1]).mean()  # 1/2 x 3/7 under independent halves
    assert abs(together - 3 / 14) < 5 * np.sqrt(3 / 14 * 11 / 14 / 500)


@pytest.mark.parametrize(
    ("attack", "by", "naming"),
    [
        ({"references": ["gpt2", "gpt2"]}, "AttackConfig._dials", ("references", "'gpt2'")),
        ({"documents": ["fresh", "fresh"]}, "AttackConfig._dials", ("documents", "'fresh'")),
        ({"documents": ["old"]}, "checked", "attack.documents.0"),
        ({"names": ["loss"], "primary": "loss", "references": ["gpt2"]}, "AttackConfig._dials", "'loss'"),
        ({"shadow_models": 1}, "AttackConfig._dials", ("shadow_models", "1")),
        ({"shadow_models": 5}, "AttackConfig._dials", ("x.yaml", "1", "shadow_models")),
        (
            {"references": [{"kind": "pretrained", "seed": 7}]},
            "RunConfig._attackers_models",
            ("x.yaml", "1", "attack.references"),
        ),
        ({"references": [{"kind": "publik"}]}, "checked", "attack.references.0"),
        ({"references": [{"kind": "public", "user": {}}]}, "checked", "'users'"),
    ],
)
def test_dials_that_cannot_be_turned_so_are_one_line(attack, by, naming):
    with refused(by=by, naming=naming):
        parse_config({**SMALL, "model": _seeded(7), "attack": attack}, "x.yaml")


def _seeded(seed):
    pretrain = SMALL["model"]["pretrain"]
    return {"pretrain": {**pretrain, "recipe": {**pretrain["recipe"], "seed": seed}}}


def test_models_of_the_run_are_needed_where_they_are_trained_again():
    with refused(by="RunConfig._attackers_models", naming=("attack.references", "'pretrained'")):
        parse_config(
            {**SMALL, "model": {"base": "gpt2"}, "attack": {"references": [{"kind": "pretrained", "seed": 1}]}}, "x"
        )
    guarded = {"kind": "filter", "population": 9, "steps": 2, "delta": 1e-5, "target_epsilon": 8.0, "tau": 1.0}
    with refused(by="RunConfig._attackers_models", naming=("attack.shadow_models", "0")):
        parse_config({**SMALL, "defense": guarded, "attack": {"shadow_models": 4}}, "x")


def test_another_tokenizer_is_compared_per_text(make_lm, tmp_path, english):
    from dataclasses import replace

    from heldin.attacks.scoring import AttackTexts
    from heldin.models.tiny import train_tokenizer

    target, reference = make_lm(0), make_lm(1)
    texts = AttackTexts.of({"a": english[:2], "b": english[2:4]})
    other = replace(reference, tokenizer=train_tokenizer(english, 300), fingerprint="other")
    every = AttackConfig(names=tuple(OURS))
    names = {s.attack for s in score_leading(every, texts, target, reference, QUIET)}
    assert "likelihood-ratio-per-token" in names
    left = {s.attack for s in score_leading(every, texts, target, other, QUIET)}
    assert names - left == {its.name for its in map(get_attack, OURS) if its.compares_tokens}
    assert "likelihood-ratio-per-token" in names - left
    for primary in ("likelihood-ratio-per-token", "centred", "ez"):
        with refused(by=score_leading):
            score_leading(every.model_copy(update={"primary": primary}), texts, target, other, QUIET)
    assert not per_text(get_attack("likelihood-ratio-per-token")).compares_tokens
    assert per_text(get_attack("likelihood-ratio")) == get_attack("likelihood-ratio")


def test_user_name_patterns_of_references_stay_out_of_the_record():
    config = parse_config(
        {**SMALL, "attack": {"references": [{"kind": "public", "users": {"include": ["ann@x"]}}]}}, "x"
    )
    assert "ann@x" not in json.dumps(masked(config.model_dump(mode="json")))


@pytest.fixture(scope="module")
def turned_run(make_once):
    """A finished small run with every dial turned. Read only."""
    attack = {
        "max_characters": 200,
        "documents": ["fresh", "training"],
        "training_documents": 5,
        "references": [{"kind": "pretrained", "seed": 1}, {"kind": "public", "max_records_per_user": 3}],
        "shadow_models": 4,
    }

    def build(folder):
        (folder / "c.yaml").write_text(yaml.safe_dump({**SMALL, "attack": attack}), encoding="utf-8")
        run(load_config(folder / "c.yaml"), folder / "run", QUIET, command="heldin run c.yaml")

    return make_once("dials", build) / "run"


def test_a_run_with_every_dial_turned_says_so_and_is_verified(turned_run):
    rows = read_record(turned_run / "record.json").dials
    settings = {name: [r.setting for r in rows if r.dial == name] for name in dict.fromkeys(r.dial for r in rows)}
    assert list(settings) == ["aggregation", "documents", "reference", "shadow models"]
    assert settings["aggregation"] == ["mean", "min", "max"]
    assert settings["documents"] == ["fresh", "training"]
    assert len(set(settings["reference"])) == 3
    assert names(settings["reference"][1], "seed 1")
    assert (len(settings["shadow models"]), settings["shadow models"][1]) == (2, "4")
    # The first of each dial is how the leading attack has it.
    assert [r.setting for r in rows if r.leads] == [found[0] for found in settings.values()]
    assert len({r.auroc.value for r in rows}) > 5
    assert not verify(turned_run, QUIET).differences


def test_what_is_judged_is_the_same_whatever_stands_beside_it(turned_run, finished):
    """The bounds and results of the leading attack, once more from its own statistics alone."""
    record, config = read_record(turned_run / "record.json"), load_config(turned_run / "config.yaml")
    assert {a.attack for a in record.attacks} == {a.attack for a in read_record(finished / "record.json").attacks}
    table = pq.read_table(turned_run / "scores.parquet").to_pylist()
    alone = [
        TextStatistic(row["user"], row["text"], row["attack"], row["statistic"]) for row in table if not row["dial"]
    ]
    assert len(alone) < len(table)
    ledger = load_ledger(turned_run / "ledger")
    member = {user: ledger.roles[user] is Role.HELD_IN for user in ledger.scored_users()}
    plain = config.attack.model_copy(update={"references": (), "documents": ("fresh",), "shadow_models": 0})
    again = results_of(
        scored_users(alone, member),
        {user: ["a", "b"] for user in member},
        Preregistration(plain, config.audit, config.decision, COINS, seed=config.seed),
    )
    assert [a.auroc for a in again.attacks] == [a.auroc for a in record.attacks]
    assert again.attacks[0].curve.histogram == record.curve().histogram
    assert again.judgement.bounds == record.judgement.bounds
    # the answer pays for every setting that was tried
    turned_dials = {(d.dial, d.setting) for d in record.dials if not d.leads and d.dial != "aggregation"}
    assert record.decision.scores == again.decision.scores + len(turned_dials)


def test_a_shadow_model_has_a_key_of_its_own_and_coins_that_are_not_the_runs(turned_run):
    """Two models under one noise stream would differ by un-noised data."""
    seen = []
    ledger = load_ledger(turned_run / "ledger")
    config = load_config(turned_run / "config.yaml")
    data = prepare_data(config, turned_run, QUIET)
    users = data.ledger.scored_users()
    for number, members in enumerate(_included(users, 4, config.seed)):
        shadow = _shadow_run(config, data, "unused", users, members, number)
        seen.append(shadow.ledger)
        held_in = {user for user, its in zip(users, members, strict=True) if its}
        trained = {shadow.store.record(row).user for row in shadow.training_rows}
        assert trained == held_in | set(ledger.users(Role.ALWAYS_IN))
    assert len({its.key for its in seen} | {ledger.key}) == 5
    assert len({tuple(sorted(its.roles.items())) for its in seen} | {tuple(sorted(ledger.roles.items()))}) == 5


@pytest.mark.parametrize("which", [0, 1])
def test_references_that_are_trained_here_are_scored_in_the_precision_of_the_attack(turned_run, which, monkeypatch):
    config = load_config(turned_run / "config.yaml")
    corpus = read_corpus(config, QUIET)
    name, _ = base_model(config, corpus, QUIET)
    for precision, its in (("fp32", torch.float32), ("bf16", torch.bfloat16)):
        asked = config.model_copy(update={"attack": config.attack.model_copy(update={"precision": precision})})
        assert reference_model(config.attack.references[which], asked, corpus, name, QUIET).model.dtype == its


def test_no_audited_user_is_read_by_a_reference_that_is_trained_here(turned_run, monkeypatch):
    read = []
    monkeypatch.setattr(
        "heldin.stages.train.objectives.encode",
        lambda tokenizer, texts, length, truncation: read.extend(texts) or [[1, 2]],
    )
    monkeypatch.setattr("heldin.stages.train.models.train_once", lambda *_, **__: None)
    monkeypatch.setattr(
        "heldin.stages.train.models.load_language_model", lambda *_, **__: LanguageModel(None, None, "", "")
    )
    config = load_config(turned_run / "config.yaml")
    corpus = read_corpus(config, QUIET)
    reference_model(config.attack.references[1], config, corpus, "unused", QUIET)
    audited = {text for user in corpus.audited.users for text in texts_of(corpus.store, corpus.store.rows(user))}
    assert len(read) > 50
    assert not audited & set(read)


@pytest.mark.parametrize(
    ("reference", "by", "naming"),
    [
        ("/nowhere/model", "require_hub_name", ("model", "'/nowhere/model'")),
        ({"kind": "public", "users": {"include": ["x"]}}, "_RunTraining.public_rows", ()),
    ],
)
def test_a_reference_that_is_not_there_ends_a_run_before_it_trains(tmp_path, reference, by, naming):
    config = parse_config({**SMALL, "attack": {"references": [reference]}}, "x")
    with refused(by=by, naming=naming):
        run(config, tmp_path / "run", QUIET, command="heldin run")
    assert not (tmp_path / "run" / "checkpoints").exists()


def test_one_user_on_a_side_leaves_a_record_that_can_be_read(tmp_path):
    """Three users: a difference has no error to estimate, and says so in place of a number."""
    for attempt in range(9):  # until the coins leave somebody on both sides
        config = parse_config(
            {**SMALL, "corpus": {**SMALL["corpus"], "users": {"min_records": 8, "max_users": 3}}}, "x"
        )
        with contextlib.suppress(InputError):
            run(config, tmp_path / f"{attempt}", QUIET, command="heldin run")
            break
    rows = read_record(tmp_path / f"{attempt}" / "record.json").dials
    assert [r.leads for r in rows] == [True, False, False]
    assert all(r.difference is None for r in rows)


def test_shadow_models_leave_scores_and_no_model(turned_run):
    names = sorted(path.name for path in (turned_run / "shadow").iterdir())
    assert names == [*(f"{i:03}.parquet" for i in range(4)), INDEX]


def test_known_documents_are_training_records_of_both_sides_by_a_rule_that_knows_no_coin(turned_run):
    data = prepare_data(load_config(turned_run / "config.yaml"), turned_run, QUIET)
    ledger = load_ledger(turned_run / "ledger")
    known = data.known_training_texts(ledger.scored_users(), 5, 0)
    for role in (Role.HELD_IN, Role.HELD_OUT):
        for user in ledger.users(role):
            assert len(known[user]) == min(5, len(ledger.parts[user][Part.TRAIN]))
            assert set(known[user]) <= {data.store.document(row) for row in ledger.parts[user][Part.TRAIN]}
