"""Canary users in a config, in the ledger, in the plan and in what the scores say."""

import json
import math
from collections import Counter
from dataclasses import replace
from typing import ClassVar

import numpy as np
import pytest

from heldin.attacks.config import AttackConfig
from heldin.attacks.protocol import REFERENCE_ALONE, TextStatistic
from heldin.audit.canary_groups import PlantedUsers, kinds_of
from heldin.audit.decision import Answer, AuditConfig, DecisionConfig
from heldin.audit.panels import judge, results_of
from heldin.audit.preregistration import COINS, Panel, Preregistration
from heldin.audit.scored_users import scored_users
from heldin.base.coins import fair_coin
from heldin.base.progress import LineReporter
from heldin.bounds.judgement import joined
from heldin.bounds.verdict import stated_claim
from heldin.canaries.contract import NumberedCanaries
from heldin.canaries.kinds import CANARIES
from heldin.canaries.planted import load_canaries, save_canaries
from heldin.canaries.users import Canary, CanaryRecord, CanaryUser
from heldin.corpus.build import build_store
from heldin.corpus.document import Document
from heldin.corpus.sources.json_rows import Json
from heldin.corpus.sources.rows import Columns
from heldin.corpus.split import Part, Role, records_to_train_on, set_aside_sizes
from heldin.corpus.split import SplitRule as Split
from heldin.corpus.user_filter import Selection
from heldin.stages.run_config import SplitConfig, parse_config
from heldin.stages.sides.corpus import CorpusData
from heldin.stages.sides.layout import Layout, parts_of, pool_of_users
from heldin.stages.sides.ledger import Keys, draw_ledger, ledger_of_run, load_ledger
from heldin.stages.sides.panels import judge_panels
from heldin.stages.sides.planting import plant
from heldin.stages.sides.public import PublicRows
from heldin.stages.train.plan import mechanism_of
from heldin.words.answer import Headline, LeakFound, Violation
from heldin.words.evidence import REAL_USERS, Subjects
from heldin.words.guarantee import GuaranteeCondition, NoGuaranteeReason
from tests.refusals import names, refused
from tests.statements import states, values_of

ULS = {"kind": "uls", "population": 20, "cohort": 5, "steps": 10, "delta": 1e-3, "noise_multiplier": 2.0}
EXAMPLE = {"kind": "example", "population": 200, "cohort": 5, "steps": 10, "delta": 1e-4, "noise_multiplier": 2.0}
SUBSTRING = {"kind": "substring", "lengths": [1, 5], "fraction": 0.2}
UNSEEN = {"kind": "unseen_token", "users": 3}

QUIET = LineReporter(lambda line: None)


class Quoting(NumberedCanaries):
    """Users of a package who quote real ones; what that does to records is declared nowhere."""

    reads_users: ClassVar[bool] = True

    def make(self, given):
        raise NotImplementedError


OF_SUBSTRINGS = Subjects.CANARIES_OF_KIND(kind="substring")


def _config(*canaries, defense=None, **sections):
    content = {
        "name": "x",
        "corpus": {"source": {"kind": "synthetic"}, "users": {"min_records": 8}},
        "model": {"base": "m"},
        "canaries": list(canaries),
        "finetune": {"select": "last", "sequence_length": 64, **({"epochs": 1} if defense is None else {})},
        **({"defense": defense} if defense else {}),
        **sections,
    }
    return parse_config(content, "test")


@pytest.mark.parametrize(
    ("canaries", "data"),
    [
        ([{**UNSEEN, "usrs": 3}], ("canaries.0.usrs", "'users'")),
        ([UNSEEN, {"kind": "rare_phrase"}], ("canaries.1.users",)),
        ([{**UNSEEN, "documents": [0, 4]}], ("canaries.0.documents.0", "1")),
        ([{**UNSEEN, "documents": []}], ("canaries.0.documents", "1")),
        ([{**SUBSTRING, "users": 4}], ("canaries.0", "users", "fraction")),
        ([{**SUBSTRING, "fraction": None}], ("canaries.0", "users", "fraction")),
        ([{**SUBSTRING, "lengths": [100, 2]}], ("100", "finetune.sequence_length", "64")),
        ([{"kind": "loud"}], ("canaries.0.kind", "'loud'", "unseen_token")),
    ],
)
def test_a_wrong_section_is_one_line(canaries, data):
    with refused(by="checked", naming=data) as caught:
        _config(*canaries)
    assert len(str(caught.value).splitlines()) == 2


def test_without_the_section_there_are_none():
    assert _config().canaries == ()


@pytest.mark.parametrize(
    ("canaries", "voids"),
    [
        ([UNSEEN, {"kind": "high_temperature", "users": 3}, {"kind": "rare_phrase", "users": 3}], False),
        ([SUBSTRING], False),
        ([{**SUBSTRING, "fraction": None, "users": 4}], True),
        ([{**UNSEEN, "rarity": "corpus"}], True),
        ([{"kind": f"{__name__}:Quoting", "users": 3}], True),
    ],
    ids=["made up", "a coin per user", "a fixed number", "unseen in everybody's texts", "a package's, undeclared"],
)
def test_a_user_level_guarantee_is_void_only_where_one_user_s_records_move_another_s(canaries, voids):
    mechanism = mechanism_of(_config(*canaries, defense=ULS), plain_steps=1)
    reasons = mechanism.reasons()
    across = [step.name for step in mechanism.data_steps if not step.user_local]
    assert len(across) == voids
    assert list(reasons) == [NoGuaranteeReason.LOOKS_ACROSS_USERS(steps=[name]) for name in across]
    assert math.isfinite(mechanism.epsilon()) is not voids


def test_at_the_example_level_a_shared_substring_is_said_beside_epsilon():
    shared, own = (mechanism_of(_config(its, defense=EXAMPLE), plain_steps=1) for its in (SUBSTRING, UNSEEN))
    steps = [
        values_of(its.guarantee().statement, GuaranteeCondition.AFTER_PREPROCESSING)["steps"] for its in (shared, own)
    ]
    assert [any("canary" in str(step) for step in its) for its in steps] == [True, False]


@pytest.mark.parametrize("attacker", [0.05, 0.1, 0.34, 0.5])
@pytest.mark.parametrize("evaluation", [0.1, 0.3])
def test_a_made_up_user_has_just_as_many_training_documents_as_the_config_says(attacker, evaluation):
    fractions = {"attacker_fraction": attacker, "evaluation_fraction": evaluation}
    for documents in (1, 2, 3, 5, 20, 100):
        records = records_to_train_on(documents, **fractions)
        sizes = set_aside_sizes(records, **fractions)
        assert records - sum(sizes) == documents
        assert min(sizes) >= 1


def _store(tmp_path, canaries=40, text="canary text"):
    path = tmp_path / "m.jsonl"
    rows = [{"user": f"u{u:02d}", "text": f"{u} writes {i}", "id": f"{u}-{i}"} for u in range(30) for i in range(12)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    store = build_store(Json(path, Columns(id="id")), tmp_path)
    made = [
        CanaryUser(
            Canary(f"canary/{i}", "rare_phrase", None, 5 if i % 2 else None, None, ""),
            tuple(CanaryRecord(f"c{i}-{j}", Document.of(f"{text} {i} {j}")) for j in range(10)),
        )
        for i in range(canaries)
    ]
    folder = tmp_path / text.replace(" ", "-")
    save_canaries(made, folder, origin="x")
    return load_canaries(store, folder, origin="x")


def _layout(store, split):
    users = tuple(user for user in store.users if user not in store.canaries)
    caps = {user: canary.documents for user, canary in store.canaries.items()}
    parts = parts_of(store, users, caps, split, seed=0)
    return Layout(store.fingerprint, users, caps, parts, pool_of_users(users, split, seed=0))


def _draw(store, key=b"k" * 32, **changes):
    split = SplitConfig(**changes)
    return draw_ledger(_layout(store, split), split, seed=0, keys=Keys(key, key))


def test_every_canary_has_a_coin_of_its_own_whatever_its_text_and_whatever_decides_about_real_users(tmp_path):
    store, other = _store(tmp_path), _store(tmp_path, text="another text")
    ledger = _draw(store)
    for canary in store.canaries:
        wanted = Role.HELD_IN if fair_coin(b"k" * 32, "membership", canary) else Role.HELD_OUT
        assert ledger.roles[canary] is wanted
        for changed in (_draw(other), _draw(store, assignment=Split.EXACT_HALF), _draw(store, audit_pool=4)):
            assert changed.roles[canary] is wanted
    heads = sum(ledger.roles[canary] is Role.HELD_IN for canary in store.canaries)
    assert 5 < heads < 35
    other_key = _draw(store, key=b"o" * 32)
    assert any(other_key.roles[canary] is not ledger.roles[canary] for canary in store.canaries)
    pool = _draw(store, audit_pool=4)
    real = [user for user in pool.scored_users() if user not in store.canaries]
    assert len(real) == 4
    assert set(store.canaries) <= set(pool.scored_users())


def test_canaries_are_set_aside_like_users_and_give_no_more_documents_than_they_may(tmp_path):
    store = _store(tmp_path)
    ledger = _draw(store)
    real = ledger.parts["u00"]
    for canary, its in store.canaries.items():
        parts = ledger.parts[canary]
        assert len(parts[Part.ATTACKER]) == len(real[Part.ATTACKER]) == 1
        assert len(parts[Part.TRAIN]) == (7 if its.documents is None else its.documents)
        rows = [row for part in Part for row in parts[part]]
        assert len(set(rows)) == len(rows)
        assert set(rows) <= set(store.rows(canary))
    trained = set(ledger.training_rows())
    for canary in store.canaries:
        whole = set(ledger.parts[canary][Part.TRAIN])
        assert trained & set(store.rows(canary)) == (whole if ledger.roles[canary] is Role.HELD_IN else set())


def test_a_ledger_is_kept_and_refused_for_other_canaries(tmp_path):
    store, other = _store(tmp_path), _store(tmp_path, text="another text")
    folder, split = tmp_path / "ledger", SplitConfig()
    kept = ledger_of_run(folder, _layout(store, split), split, seed=0, kept=None)
    assert ledger_of_run(folder, _layout(store, split), split, seed=0, kept=load_ledger(folder)) == kept
    with refused(by=ledger_of_run, naming="corpus"):
        ledger_of_run(folder, _layout(other, split), split, seed=0, kept=load_ledger(folder))
    assert kept.count(store.canaries)[Role.HELD_IN] + kept.count(store.canaries)[Role.HELD_OUT] == 30


def _results(shift, *claims, users=400, offset=0.0, judged=2, seed=0):
    """Canary users of two groups: scores of the members are shifted, one group's are all moved by ``offset``."""
    generator = np.random.default_rng(seed)
    canaries = {f"c{i:04d}": Canary(f"c{i:04d}", "substring", 1 + i % 2, None, f"u{i}", "") for i in range(users)}
    member = {user: bool(generator.integers(2)) for user in canaries}
    statistics = []
    for user, its in member.items():
        value = generator.normal(shift if its else 0.0) + (offset if canaries[user].length == 2 else 0.0)
        statistics.append(TextStatistic(user, 0, "likelihood-ratio", value))
        statistics.append(TextStatistic(user, 0, REFERENCE_ALONE, generator.normal()))
    audit, decision = AuditConfig(resamples=200), DecisionConfig(redraws=499)
    substrings = Panel(OF_SUBSTRINGS, list(canaries), claims, "substring")
    fixed = Preregistration(AttackConfig(), audit, decision, COINS, claims, 0, judged, panels=[substrings])
    texts = {user: [f"word {generator.integers(50)}"] for user in canaries}
    real = {f"r{i}": i % 2 == 0 for i in range(20)}
    for i, user in enumerate(real):
        texts[user] = [f"word {i}"]
        statistics += [TextStatistic(user, 0, name, float(i)) for name in ("likelihood-ratio", REFERENCE_ALONE)]
    results, _ = judge_panels(statistics, texts, {**real, **member}, fixed, QUIET, planted=PlantedUsers(canaries, 9, 7))
    judgement = results.judgement
    of_canaries = replace(
        judgement,
        bounds=tuple(b for b in judgement.bounds if b.subjects == OF_SUBSTRINGS),
        verdicts=tuple(v for v in judgement.verdicts if v.subjects == OF_SUBSTRINGS),
    )
    return results.canaries, [of_canaries]


def test_groups_are_reported_apart_and_bounds_name_whom_they_speak_of():
    facts, judgements = _results(4.0, stated_claim(0.5, 1e-5), offset=50.0)
    assert [(g.kind, g.length, g.documents) for g in facts.groups] == [("substring", 1, None), ("substring", 2, None)]
    assert all(g.auroc.lower > 0.95 for g in facts.groups)
    stated = facts.decision.statement
    assert states(stated, Headline.LEAKS)
    leak = values_of(stated, LeakFound.BY_AUROC)
    assert names(leak["score"], "likelihood-ratio", "mean")
    assert leak["audited"] == "canaries"
    assert sum(g.held_in for g in facts.groups) == facts.held_in
    assert (facts.users, facts.replaced, facts.trained_on, facts.attacker_texts) == (400, 400, 7, 400)
    assert len({b.name for b in facts.blind}) == 2
    assert not any(b.separates for b in facts.blind)
    (judgement,) = judgements
    assert {b.subjects for b in judgement.bounds} == {OF_SUBSTRINGS}
    assert [(v.outcome, v.standing, v.subjects) for v in judgement.verdicts] == [
        ("contradicted", "certified", OF_SUBSTRINGS)
    ]
    assert max(b.epsilon_lower for b in judgement.bounds) > 2  # the offset between groups costs nothing
    assert joined([judgement, judgement]).bounds == judgement.bounds * 2
    assert joined([judgement]).exit_code == 3


def test_what_canary_users_certify_reaches_the_answer_on_real_users():
    """800 real users at chance: an all-clear by themselves, and none beside a certified violation."""
    claim = stated_claim(0.5, 1e-5)
    _, judgements = _results(4.0, claim)
    rng = np.random.default_rng(5)
    users = [f"user {i}" for i in range(800)]
    texts = {user: [f"word {rng.integers(50)}" for _ in range(3)] for user in users}
    statistics = [
        TextStatistic(user, j, name, float(value))
        for user in users
        for j in range(3)
        for name, value in (("likelihood-ratio", rng.normal()), (REFERENCE_ALONE, rng.normal()))
    ]
    table = scored_users(statistics, {user: bool(rng.random() < 0.5) for user in users})

    def answer(beside):
        fixed = Preregistration(
            AttackConfig(names=("likelihood-ratio",)),
            AuditConfig(resamples=200),
            DecisionConfig(redraws=499, tpr=0.2),
            COINS,
            (claim,),
            judged=2,
        )
        return results_of(table, texts, fixed, beside=beside).decision

    assert answer(()).decision.answer is Answer.NO_LEAK
    told = answer(judgements)
    assert (told.decision.answer, told.decision.promise) == ("leaks", "beyond")
    assert states(told.statement, Headline.LEAKS)
    assert values_of(told.statement, Violation.CERTIFIED_BY)["subjects"] == OF_SUBSTRINGS


def test_canaries_without_effect_certify_nothing_and_reject_nothing():
    facts, (judgement,) = _results(0.0, stated_claim(0.5, 1e-5), offset=50.0)
    assert all(g.auroc.lower < 0.5 < g.auroc.upper for g in facts.groups)
    assert facts.decision.decision.answer in (Answer.NO_LEAK, Answer.INCONCLUSIVE)
    assert max(b.epsilon_lower for b in judgement.bounds) < 0.5
    assert judgement.exit_code == 0


def test_every_group_of_people_pays_for_the_others():
    alone, shared = (_results(2.0, judged=n)[1][0] for n in (1, 5))
    for one, other in zip(alone.bounds, shared.bounds, strict=True):
        assert one.epsilon_lower > other.epsilon_lower > 0
    assert alone.verdicts[0].max_certifiable_epsilon > shared.verdicts[0].max_certifiable_epsilon
    generator = np.random.default_rng(1)
    member = {f"u{i}": bool(generator.integers(2)) for i in range(300)}
    scores = {user: generator.normal(2.0 * its) for user, its in member.items()}
    fixed = Preregistration(AttackConfig(), AuditConfig(delta=1e-5), DecisionConfig(), COINS)
    one, other = (judge(scores, member, replace(fixed, judged=n), blind=[]) for n in (1, 3))
    assert one.bounds[0].subjects == REAL_USERS
    assert one.bounds[0].epsilon_lower > other.bounds[0].epsilon_lower > 0


def test_coins_on_one_side_leave_a_group_without_a_number():
    facts, (judgement,) = _results(1.0, users=3, seed=5)
    assert any(g.auroc is None for g in facts.groups)
    assert not judgement.bounds or all(b.epsilon_lower < 1 for b in judgement.bounds)


def test_each_kind_is_a_population():
    kinds = [*CANARIES.ours, *CANARIES.ours]
    canaries = {str(i): Canary(str(i), kind, None, 1, None, "") for i, kind in enumerate(kinds)}
    assert len(kinds_of(canaries)) == len(CANARIES.ours)


def _people(tmp_path, english, users):
    path = tmp_path / f"{len(users)}.jsonl"
    rows = [
        {"user": user, "text": " ".join(english[(7 * u + i) % 500 : (7 * u + i) % 500 + 4]), "id": f"{user}-{i}"}
        for u, user in enumerate(users)
        for i in range(10)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return build_store(Json(path, Columns(id="id")), tmp_path)


def _corpus(store, users):
    return CorpusData(store, Selection(tuple(users), 0, 0, 0, 0), PublicRows(store), PublicRows(store))


def _planted(tmp_path, english, make_lm, users, spec):
    """Canary records by source user, with ``users`` in the corpus."""
    people = [f"u{i:02d}" for i in range(60)]
    store = _people(tmp_path, english, people)
    out = tmp_path / f"run-{len(users)}-{spec.get('users')}"
    planted = plant(_config(spec), _corpus(store, users), make_lm(), out, LineReporter(lambda line: None))
    return {
        canary.source: (canary, [planted.text(row) for row in planted.rows(canary.user)])
        for canary in planted.canaries.values()
    }


def test_by_a_coin_per_user_nobody_s_presence_changes_what_becomes_of_another(tmp_path, english, make_lm):
    everybody = [f"u{i:02d}" for i in range(60)]
    spec = {"kind": "substring", "lengths": [1, 3, 9], "documents": [None, 4], "fraction": 0.4}
    whole = _planted(tmp_path, english, make_lm, everybody, spec)
    fewer = _planted(tmp_path, english, make_lm, everybody[::2], spec)
    assert 10 < len(whole) < 40
    assert fewer == {user: its for user, its in whole.items() if user in everybody[::2]}
    assert {(c.length, c.documents) for c, _ in whole.values()} == {(n, d) for n in (1, 3, 9) for d in (None, 4)}


def test_a_fixed_number_of_users_is_just_that_and_not_user_local(tmp_path, english, make_lm):
    everybody = [f"u{i:02d}" for i in range(60)]
    spec = {"kind": "substring", "lengths": [1, 3], "documents": [None, 4], "users": 5}
    whole = _planted(tmp_path, english, make_lm, everybody, spec)
    fewer = _planted(tmp_path, english, make_lm, everybody[::2], spec)
    for found in (whole, fewer):
        assert Counter((c.length, c.documents) for c, _ in found.values()) == dict.fromkeys(
            [(1, None), (1, 4), (3, None), (3, 4)], 5
        )
    assert {user: whole[user] for user in whole if user in fewer} != fewer


def test_a_real_user_with_a_canary_s_name_is_refused(tmp_path, english, make_lm):
    store = _people(tmp_path, english, ["canary/rare_phrase/0/2/00000", "ann", "bob", "cyd"])
    config = _config({"kind": "rare_phrase", "users": 1, "documents": [2]})
    with refused(by=plant, naming="'canary/rare_phrase/0/2/00000'"):
        plant(config, _corpus(store, store.users), make_lm(), tmp_path / "run", LineReporter(lambda line: None))
