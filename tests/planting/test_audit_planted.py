"""Audits of a model that was trained on a planted training set by somebody else: what is certified, and what is not."""

import json
import shutil
from dataclasses import replace

import pytest
import torch
import typst
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from heldin.base.artefacts import INDEX, read_document, write_document
from heldin.base.progress import LineReporter
from heldin.base.yaml_files import read_yaml
from heldin.bounds.design import Assignment, Design
from heldin.bounds.plan_claims import parse_claim_of
from heldin.bounds.verdict import max_certifiable_epsilon
from heldin.corpus.split import Part, Role
from heldin.jobs.purge import plan_purge, purge
from heldin.jobs.user_scores import leading_scores
from heldin.jobs.verify import verify
from heldin.models.opening import load_language_model
from heldin.models.reading import quiet_transformers
from heldin.planting.audit import audit_planted, judged_as
from heldin.planting.looks import LOOKS
from heldin.planting.plant import plant
from heldin.planting.plant_config import parse_plant
from heldin.planting.plant_data import planted_data
from heldin.planting.plant_folder import plan_hash, read_planted
from heldin.planting.target import PlantedAudit, audited_run, has_other_base
from heldin.record.document import read_record
from heldin.record.planted_facts import ConditionName, Known, Reason
from heldin.reports.claims import tabulate_conditions
from heldin.reports.findings import warn
from heldin.reports.page_one import state_evidence
from heldin.reports.record_report import list_facts
from heldin.stages.sides.ledger import load_ledger
from heldin.words.answer import IndicativeReason
from heldin.words.evidence import REAL_USERS, ClaimLabel, Flaw, Subjects
from heldin.words.page_one import Evidence
from heldin.words.split import ConditionStated
from tests.planted_sets import memorable_lm, memorable_rows, plan, read_lines, save_base, train, write_lines
from tests.refusals import names, raised_apart, refused
from tests.statements import line_in, states, values_of

QUIET = LineReporter(lambda line: None)
CLAIM = "epsilon=0.05,delta=1e-5,unit=user"


UNSEEN = Subjects.CANARIES_OF_KIND(kind="unseen-token")


def _flaws(record):
    return record.judgement.verdicts[0].finding.values["flaws"]


@pytest.fixture(scope="module")
def planted(make_once):
    """A planted folder and a model that somebody trained on it until it knew its rows by heart."""

    def build(root):
        rows = memorable_rows()
        base = save_base(memorable_lm(rows), root / "base")
        lines = write_lines(rows, root / "mine.jsonl")
        canaries = [{"kind": "unseen_token", "users": 10, "documents": [1, 3]}]
        config = plan(lines, base, canaries=canaries, attack={**ATTACK, "documents": ["training"]})
        plant(config, root / "out", QUIET)
        texts = [row["body"] for row in read_lines(root / "out" / "training" / "mine.jsonl")]
        train(base, texts, root / "model", passes=6, rate=1e-2)
        # With a look at the model, for tests of what comes after it.
        audited((shutil.copytree(root / "out", root / "looked at"), root / "model"), CLAIM)

    root = make_once("planted", build)
    return root / "out", root / "model"


ATTACK = {
    "max_characters": 60,
    "names": ["likelihood-ratio-per-token", "loss"],
    "primary": "likelihood-ratio-per-token",
}


@pytest.fixture
def fresh(planted, tmp_path):
    """A copy of the planted folder, without looks."""
    return shutil.copytree(planted[0], tmp_path / "out"), planted[1]


@pytest.fixture
def looked(planted, tmp_path):
    """A copy of the planted folder with one look at the model, of ``CLAIM``: folder and model, record, audit."""
    out = shutil.copytree(planted[0].parent / "looked at", tmp_path / "out")
    return (out, planted[1]), read_record(out / "audits" / "1" / "record.json"), out / "audits" / "1"


def audited(fresh, *claims, by="R. Signer", model=None):
    return audit_planted(
        PlantedAudit(fresh[0], str(model or fresh[1]), claims, by), None, QUIET, command="heldin audit"
    )


def _condition(record, name):
    return next(condition for condition in record.planted.conditions if condition.name is name)


def _declared(record):
    return {condition.name for condition in record.planted.conditions if condition.known_by is Known.DECLARED}


def test_a_model_that_knows_its_rows_is_found_and_a_claim_that_it_breaks_is_violated_and_certified(looked):
    fresh, record, folder = looked
    assert record.kind == "planted"
    assert record.decision.decision.answer.value == "leaks"
    assert record.primary().auroc.value > 0.7
    verdict = record.judgement.verdicts[0]
    assert (verdict.outcome, verdict.standing) == ("contradicted", "certified")
    assert record.judgement.exit_code == 3
    assert max(b.epsilon_lower for b in record.judgement.bounds) > 0
    assert {c.known_by for c in record.planted.conditions} == {Known.CHECKED, Known.DECLARED}
    assert record.split.certifiable
    assert values_of(state_evidence(record), Evidence.DECLARED)["declared_by"] == "R. Signer"
    assert len(tabulate_conditions(record).rows) == len(record.planted.conditions) + (
        record.planted.control is not None
    )
    # The numbers follow from the folder again, and the scores are of the ledger's users.
    assert verify(folder, QUIET).differences == ()
    ledger = load_ledger(fresh[0] / "ledger")
    assert {its.user: its.member for its in leading_scores(folder)} == {
        user: role is Role.HELD_IN for user, role in ledger.roles.items() if not user.startswith("canary/")
    }


def test_without_a_declaration_the_same_violation_is_indicative_and_says_why(fresh):
    record, _ = audited(fresh, CLAIM, by=None)
    verdict = record.judgement.verdicts[0]
    assert (verdict.outcome, verdict.standing) == ("contradicted", "indicative")
    assert verdict.finding.values["flaws"] == [Flaw.NOT_DECLARED(count=4)]
    assert record.judgement.exit_code == 4
    assert not record.split.certifiable
    warnings = warn(record)
    assert any(line.startswith(f"Indicative only: {Flaw.NOT_DECLARED(count=4)}") for line in warnings)
    # Of canary users as well, whose coins heldin drew all the same.
    assert {b.standing for b in record.judgement.bounds} <= {"indicative", "estimate", "conditional"}


def test_a_look_is_counted_once_and_one_more_than_were_paid_for_is_indicative(looked):
    fresh, first, _ = looked
    again, folder = audited(fresh, CLAIM)
    assert (first.planted.look, again.planted.look, folder.name) == (1, 1, "1")
    assert len(read_document(fresh[0] / "ledger" / LOOKS)["looks"]) == 1
    # Another claim on the same model is another look.
    second, folder = audited(fresh, "epsilon=0.1,delta=1e-5,unit=user")
    assert (second.planted.look, folder.name) == (2, "2")
    assert second.judgement.verdicts[0].standing == "indicative"
    assert Flaw.CONDITION_NOT_MET(condition=ConditionStated.LOOKS_PAID()) in _flaws(second)


def test_a_training_set_that_was_changed_is_noticed_also_once_it_is_gone(fresh):
    path = fresh[0] / "training" / "mine.jsonl"
    text = path.read_text(encoding="utf-8")
    path.write_text(text.replace(" number ", " numbed ", 1), encoding="utf-8")
    record, folder = audited(fresh, CLAIM)
    assert record.judgement.verdicts[0].standing == "indicative"
    assert Flaw.CONDITION_NOT_MET(condition=ConditionStated.SET_UNCHANGED()) in _flaws(record)
    path.unlink()
    # What that look saw stays in its record, and no later look is certified by a signature alone.
    assert verify(folder, QUIET).differences == ()
    again, _ = audited(fresh, CLAIM)
    later, _ = audited(fresh, "epsilon=0.1,delta=1e-5,unit=user")
    for record in (again, later):
        assert record.judgement.verdicts[0].standing == "indicative"
        unchanged = _condition(record, ConditionName.SET_UNCHANGED)
        assert (unchanged.known_by, unchanged.look) == (Known.NOT_MET, 1)
    # Restored as it was written, it is checked.
    path.write_text(text, encoding="utf-8")
    restored, _ = audited(fresh, CLAIM)
    assert restored.judgement.verdicts[0].standing == "certified"


def test_a_training_set_that_is_gone_is_declared_by_a_person_or_by_nobody(fresh):
    (fresh[0] / "training" / "mine.jsonl").unlink()
    record, _ = audited(fresh, CLAIM)
    assert record.judgement.verdicts[0].standing == "certified"
    assert _condition(record, ConditionName.SET_UNCHANGED).reasons == [Reason.SET_GONE]
    shutil.rmtree(fresh[0] / "training")
    nobody, _ = audited(fresh, CLAIM, by=None)
    about = _condition(nobody, ConditionName.SET_UNCHANGED)
    assert (about.known_by, about.reasons) == (Known.NOT_MET, [Reason.UNDECLARED])
    again, _ = audited(fresh, CLAIM)
    assert [its.judgement.verdicts[0].standing for its in (nobody, again)] == ["indicative", "certified"]


def test_a_claim_about_examples_is_tested_on_those_with_one_example_only(fresh):
    record, _ = audited(fresh, "epsilon=0.05,delta=1e-5,unit=example")
    about = {v.subjects: v for v in record.judgement.verdicts}
    one = about[Subjects.WITH_ONE_EXAMPLE(subjects=UNSEEN)]
    assert one.claim == ClaimLabel.PER_EXAMPLE(claim=ClaimLabel.STATED(epsilon=0.05, delta=1e-5))
    planted = load_ledger(fresh[0] / "ledger")
    single = [user for user, of in planted.parts.items() if len(of[Part.TRAIN]) == 1]
    assert len(single) == 10
    # What ten coins could have certified, and not what the twenty of all canary users could.
    design = Design(Assignment.COIN, attacks=4)
    held_in = sum(planted.roles[user] is Role.HELD_IN for user in single)
    assert one.max_certifiable_epsilon == max_certifiable_epsilon(held_in, 10 - held_in, 1e-5, design)
    # Nobody of the real users has one row only: no verdict, with the reason.
    assert Subjects.WITH_ONE_EXAMPLE(subjects=REAL_USERS) not in about
    assert any(r.subjects == Subjects.WITH_ONE_EXAMPLE(subjects=REAL_USERS) for r in record.judgement.refused)
    # And of users with several, nothing was claimed.
    assert about[REAL_USERS].claim == ClaimLabel.NONE()


STATED = "noise_multiplier=4,sampling_rate=0.01,steps=3,delta=1e-5,unit=example"


@pytest.mark.slow
def test_a_mechanism_of_examples_is_tested_on_users_of_several_at_the_curve_of_so_many(fresh):
    record, folder = audited(fresh, STATED)
    about = {v.subjects: v for v in record.judgement.verdicts}
    ledger = load_ledger(fresh[0] / "ledger")
    most = max(len(its[Part.TRAIN]) for user, its in ledger.parts.items() if not user.startswith("canary/"))
    of_canaries = max(len(its[Part.TRAIN]) for user, its in ledger.parts.items() if user.startswith("canary/"))
    assert most > of_canaries == 3
    stated = parse_claim_of(STATED)
    for subjects, examples in ((REAL_USERS, most), (UNSEEN, 3)):
        assert about[subjects].claim == stated.of_group(examples).label
        assert about[subjects].claim.values["examples"] == examples
    # Nothing of so little noise hides who was trained on, in the curve of however many examples.
    assert (about[REAL_USERS].outcome, about[REAL_USERS].standing) == ("contradicted", "certified")
    one = about[Subjects.WITH_ONE_EXAMPLE(subjects=UNSEEN)]
    assert one.claim == stated.claim.label
    assert _condition(record, ConditionName.ROW_IS_EXAMPLE).known_by is Known.DECLARED
    assert verify(folder, QUIET).differences == ()
    # A user's own promise is one curve, whatever the number of rows.
    record, _ = audited(fresh, STATED.replace("=example", "=user"))
    assert {v.claim for v in record.judgement.verdicts} == {
        parse_claim_of(STATED.replace("=example", "=user")).claim.label
    }
    assert ConditionName.ROW_IS_EXAMPLE not in {c.name for c in record.planted.conditions}


@pytest.mark.parametrize(
    ("text", "by", "naming"),
    [
        ("epsilon=1,delta=1e-5", parse_claim_of, (",unit=user", ",unit=example")),
        (
            "noise_multiplier=1,steps=3,delta=1e-5,unit=user",
            parse_claim_of,
            "noise_multiplier=1.2,sampling_rate=0.01,steps=800",
        ),
        (
            "noise_multiplier=1,sampling_rate=x,steps=3,delta=1e-5,unit=user",
            "number_in",
            "'noise_multiplier=1,sampling_rate=x,steps=3,delta=1e-5,unit=user'",
        ),
        ("noise_multiplier=1,sampling_rate=2,steps=3,delta=1e-5,unit=user", "check_rate", ("2.0", "(0, 1]")),
        (
            "noise_multiplier=0,sampling_rate=0.01,steps=3,delta=1e-5,unit=user",
            parse_claim_of,
            ("'noise_multiplier=0,sampling_rate=0.01,steps=3,delta=1e-5,unit=user'", "noise"),
        ),
        ("epsilon=1,delta=1e-5,unit=record", parse_claim_of, (",unit=user", ",unit=example")),
        ("epsilon=1,unit=user", "parse_claim", ("'epsilon=1'", "delta:", "delta=1e-6")),
        ("epsilon=1,delta=2,unit=user", "stated_claim", ("2.0", "(0, 1)")),
    ],
)
def test_a_claim_names_its_unit(text, by, naming):
    with refused(by=by, naming=naming):
        parse_claim_of(text)
    assert parse_claim_of(" unit = user , epsilon=1, delta=1e-5").unit == "user"


def test_models_that_cannot_be_audited_are_refused(fresh, planted):
    base = planted[1].parent / "base"
    with refused(by="_refuse", naming=f"'{base}'"):
        audited(fresh, model=base)
    assert not (fresh[0] / "ledger" / LOOKS).exists()
    with refused(by="require_hub_name", naming=f"'{fresh[0] / 'nothing'}'"):
        audited(fresh, model=fresh[0] / "nothing")
    with refused(by=read_planted, naming="base"):
        audited((base, planted[1]))


def test_another_ledger_and_another_corpus_are_refused(fresh, planted, tmp_path):
    config = plan(planted[0].parent / "mine.jsonl", planted[1].parent / "base", canaries=[])
    plant(config, tmp_path / "other", QUIET)
    shutil.copy(tmp_path / "other" / "ledger" / "ledger.json", fresh[0] / "ledger" / "ledger.json")
    with refused(by="ledger_of_run", naming=("ledger", "corpus", "split", "roles")):
        audited(fresh, CLAIM)
    assert not (fresh[0] / "ledger" / LOOKS).exists()


def test_a_folder_with_the_audit_of_other_weights_under_the_same_name_is_left_alone(fresh, planted, tmp_path):
    shutil.copytree(planted[1], tmp_path / "model")
    job = PlantedAudit(fresh[0], str(tmp_path / "model"), (CLAIM,), "R. Signer")
    audit_planted(job, tmp_path / "here", QUIET, command="heldin audit")
    early = AutoModelForCausalLM.from_pretrained(planted[1])
    early.transformer.ln_f.weight.data += 1e-3
    early.save_pretrained(tmp_path / "model")
    before = (tmp_path / "here" / "record.json").read_bytes()
    with refused(by="_take_folder", naming=("'look'", "--out")):
        audit_planted(job, tmp_path / "here", QUIET, command="heldin audit")
    assert (tmp_path / "here" / "record.json").read_bytes() == before
    assert len(read_document(fresh[0] / "ledger" / LOOKS)["looks"]) == 1


def test_purge_leaves_what_decided_and_no_side(looked):
    fresh, _, _ = looked
    found = plan_purge(fresh[0], ["record", "report"])
    assert {"ledger", "training", "audits/1/scores.parquet"} <= set(found.removed)
    purge(fresh[0], ["record", "report"])
    assert (fresh[0] / "manifest.json").is_file()
    assert read_record(fresh[0] / "audits" / "1" / "record.json").kind == "planted"
    assert not (fresh[0] / "training").exists()
    with refused(by="require_not_purged"):
        audited(fresh, CLAIM)
    with refused(by="require_not_purged"):
        verify(fresh[0] / "audits" / "1", QUIET)


def test_command_line_says_what_goes_with_what(fresh, call):
    code, _, err = call("audit-planted", fresh[0])
    assert (code, "give --model" in err) == (2, True)
    code, _, err = call("audit-planted", fresh[0], "--model", fresh[1], "--held-in", "x.jsonl")
    assert call.refused(naming="--held-in")
    code, _, err = call("audit", "--model", fresh[1], "--declared-by", "R. Signer")
    assert call.refused(naming="--declared-by")
    code, out, _ = call(
        "audit-planted", fresh[0], "--model", fresh[1], "--claim", CLAIM, "--declared-by", "R. Signer", "--json"
    )
    assert code == 3
    assert json.loads(out)["kind"] == "planted"
    assert (fresh[0] / "audits" / "1" / "report.pdf").is_file()


def test_every_look_pays_with_groups_and_units(planted):
    out = planted[0]
    config = parse_plant({**read_yaml(out / "config.yaml"), "looks": 3}, "test")
    lm = load_language_model(str(planted[1].parent / "base"))
    data = planted_data(config, out, QUIET, lm)
    for claims, share in (((CLAIM,), 6), ((CLAIM, CLAIM.replace("user", "example")), 12)):
        job = PlantedAudit(out, str(planted[1]), claims, "R. Signer")
        fixed = judged_as(job, config, audited_run(job, config), data)
        assert fixed.judged == share  # looks x (real users and one kind of canary users) x units
        assert (fixed.decision.auroc_level, fixed.decision.tpr_level) == (0.04 / 3, 0.01 / 3)
        assert fixed.decision.redraws == 3 * config.decision.redraws


def test_another_reference_than_before_the_coins_is_refused(planted, tmp_path):
    shutil.copytree(planted[1].parent / "base", tmp_path / "base")
    save_base(memorable_lm(memorable_rows(), seed=9), tmp_path / "second")
    config = plan(
        planted[1].parent / "mine.jsonl",
        tmp_path / "base",
        canaries=[],
        attack={**ATTACK, "documents": ["training"], "references": [str(tmp_path / "second")]},
    )
    plant(config, tmp_path / "out", QUIET)
    other = memorable_lm(memorable_rows(), seed=3)
    for name in ("second", "base"):
        shutil.move(tmp_path / name / "model.safetensors", tmp_path / "kept")
        other.model.save_pretrained(tmp_path / name)
        with refused(by="require_models", naming=f"'{tmp_path / name}'"):
            audited((tmp_path / "out", planted[1]), CLAIM)
        shutil.move(tmp_path / "kept", tmp_path / name / "model.safetensors")
    assert not (tmp_path / "out" / "ledger" / LOOKS).exists()
    record, _ = audited((tmp_path / "out", planted[1]), CLAIM)
    assert record.split.certifiable


def test_what_is_declared_depends_on_unit_and_look(looked):
    fresh, record, _ = looked
    declared = _declared(record)
    assert declared == {
        ConditionName.GIVEN_EVERY_ROW,
        ConditionName.WEIGHTED_ALIKE,
        ConditionName.NOTHING_ELSE,
        ConditionName.STARTED_UNSEEN,
    }
    record, _ = audited(fresh, CLAIM.replace("user", "example"))
    # The second look, at a claim about examples.
    assert _declared(record) - declared == {ConditionName.ROW_IS_EXAMPLE, ConditionName.EARLIER_LOOKS_UNUSED}
    # More looks than were paid for: its tests share nothing with this one, so that "leaks" is indicative too.
    assert not record.decision.decision.exact
    assert states(record.decision.statement, IndicativeReason.CONDITION_UNMET)


def test_a_look_is_noted_before_anything_meets_the_coins(fresh, monkeypatch):
    def killed(*_):
        assert len(read_document(fresh[0] / "ledger" / LOOKS)["looks"]) == 1
        raise KeyboardInterrupt

    monkeypatch.setattr("heldin.planting.audit.measures_of_run", killed)
    with pytest.raises(KeyboardInterrupt):
        audited(fresh, CLAIM)


def test_a_token_that_was_added_for_padding_leaves_the_tokens_comparable(looked, tmp_path):
    fresh, plain, _ = looked
    model = AutoModelForCausalLM.from_pretrained(fresh[1])
    tokenizer = AutoTokenizer.from_pretrained(fresh[1])
    tokenizer.add_special_tokens({"pad_token": "<|mine|>"})
    model.resize_token_embeddings(len(tokenizer))
    model.save_pretrained(tmp_path / "padded")
    tokenizer.save_pretrained(tmp_path / "padded")
    record, _ = audited(fresh, CLAIM, model=tmp_path / "padded")
    assert not record.per_text
    assert record.primary().attack == plain.primary().attack == "likelihood-ratio-per-token"
    # A token that is no special one cuts texts otherwise.
    tokenizer.add_tokens(["number"])
    model.resize_token_embeddings(len(tokenizer))
    model.save_pretrained(tmp_path / "more")
    tokenizer.save_pretrained(tmp_path / "more")
    with refused(by="score_leading"):
        audited(fresh, CLAIM, model=tmp_path / "more")


def test_a_folder_that_was_moved_is_verified_and_audited_where_it_is(fresh, tmp_path, monkeypatch):
    monkeypatch.chdir(fresh[1].parent)
    record, _ = audited(fresh, CLAIM, model=fresh[1].name)
    monkeypatch.chdir(tmp_path)
    shutil.move(fresh[0], tmp_path / "moved")
    shutil.rmtree(tmp_path / "moved" / "training")
    assert verify(tmp_path / "moved" / "audits" / "1", QUIET).differences == ()
    again, folder = audited((tmp_path / "moved", fresh[1]), CLAIM)
    assert (again.planted.look, folder) == (1, tmp_path / "moved" / "audits" / "1")
    assert again.primary().auroc == record.primary().auroc


def test_a_purge_that_was_killed_goes_on_with_the_audits(looked, monkeypatch):
    fresh, _, folder = looked
    removed = shutil.rmtree

    def killed(path, *more, **options):
        removed(path, *more, **options)
        if path.name == "ledger":
            (fresh[0] / "manifest.json").unlink()
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(shutil, "rmtree", killed)
        with pytest.raises(KeyboardInterrupt):
            purge(fresh[0], [])
    assert (folder / "scores.parquet").exists()
    assert "audits/1/scores.parquet" in plan_purge(fresh[0], []).removed
    purge(fresh[0], [])
    assert not (folder / "scores.parquet").exists()


def test_a_ledger_that_is_lost_or_drawn_anew_is_refused(fresh, planted, tmp_path):
    config, _ = read_planted(fresh[0])
    shutil.move(fresh[0] / "ledger" / "ledger.json", tmp_path / "kept.json")
    with refused(by="drawn_data", naming="ledger") as lost:
        audited(fresh, CLAIM)
    # One of the same plan, drawn anew under another key.
    plant(config, tmp_path / "again", QUIET)
    for name in ("ledger.json", "users.parquet", INDEX):
        shutil.copy(tmp_path / "again" / "ledger" / name, fresh[0] / "ledger" / name)
    with refused(by="drawn_data", naming="ledger") as drawn_anew:
        audited(fresh, CLAIM)
    assert raised_apart(lost, drawn_anew)
    assert not (fresh[0] / "ledger" / LOOKS).exists()


def test_a_plan_that_was_changed_and_sealed_again_is_held_against_the_manifest(fresh):
    path = fresh[0] / "config.yaml"
    path.write_text(path.read_text(encoding="utf-8").replace("seed: 0", "seed: 1"), encoding="utf-8")
    seal = fresh[0] / "ledger" / "planted.json"
    write_document(seal, {**read_document(seal), "plan": plan_hash(fresh[0])})
    with refused(by=read_planted, naming="config.yaml"):
        audited(fresh, CLAIM)


def test_nobody_declares_nothing(fresh):
    for name in ("", " "):
        with refused(by="PlantedAudit.check", naming="--declared-by"):
            audited(fresh, CLAIM, by=name)


def test_scores_meet_the_ledger_of_their_own_audit(fresh, tmp_path):
    audited(fresh, CLAIM)
    config, _ = read_planted(fresh[0])
    ledger = load_ledger(fresh[0] / "ledger")
    shutil.move(fresh[0], tmp_path / "moved")
    plant(config, fresh[0], QUIET)
    sides = {its.user: its.member for its in leading_scores(tmp_path / "moved" / "audits" / "1")}
    assert sides == {user: role is Role.HELD_IN for user, role in ledger.roles.items() if "/" not in user}
    shutil.copytree(tmp_path / "moved" / "audits" / "1", tmp_path / "apart")
    with refused(by="_membership", naming="out"):
        leading_scores(tmp_path / "apart")


def test_a_condition_that_was_edited_is_seen_by_verify(looked):
    _, _, folder = looked
    content = json.loads((folder / "record.json").read_text(encoding="utf-8"))
    declared = next(its for its in content["planted"]["conditions"] if its["known_by"] == "declared")
    declared["known_by"] = "checked"
    (folder / "record.json").write_text(json.dumps(content), encoding="utf-8")
    assert any("conditions" in its.line() for its in verify(folder, QUIET).differences)


@pytest.mark.slow
def test_a_report_that_cannot_be_typeset_takes_no_verdict_along(fresh, call, monkeypatch):
    fault = "error: the text could not be displayed with font"

    def refuse(*_, **__):
        raise typst.TypstError(f"{fault}\nmore")

    monkeypatch.setattr("typst.compile", refuse)
    asked = ("audit-planted", fresh[0], "--model", fresh[1], "--claim", CLAIM, "--declared-by", "R. Signer")
    code, out, err = call(*asked, "--json")
    assert (code, json.loads(out)["report"]) == (3, None)
    assert names(err, fault)
    code, out, _ = call(*asked)
    assert (code, line_in(out, "report")) == (3, "none")
    call("report", fresh[0] / "audits" / "1")
    assert call.refused(by="write_pdf", naming=fault)


@pytest.mark.slow
def test_several_checkpoints_are_a_look_each_and_the_gravest_decides_the_exit_code(fresh, call, tmp_path):
    # A checkpoint that learnt nothing yet: the base, moved by a hair.
    early = AutoModelForCausalLM.from_pretrained(fresh[1].parent / "base")
    early.transformer.ln_f.weight.data += 1e-3
    early.save_pretrained(tmp_path / "early")
    AutoTokenizer.from_pretrained(fresh[1]).save_pretrained(tmp_path / "early")
    asked = ("audit-planted", fresh[0], "--model", tmp_path / "early", "--model", fresh[1], "--claim", CLAIM)
    # What is missing is said before a look is taken.
    assert call(*asked, "--model", tmp_path / "none")[0] == 2
    assert not (fresh[0] / "ledger" / LOOKS).exists()
    call(*asked, "--out", tmp_path / "here")
    assert call.refused(naming=("--out", "--model"))
    call(*asked, "--model", fresh[1])
    assert call.refused(by="_refuse", naming=f"'{fresh[1]}'")
    call(*asked, "--model", fresh[1].parent / "base")
    assert call.refused(by="_refuse", naming=f"'{fresh[1].parent / 'base'}'")
    assert not (fresh[0] / "ledger" / LOOKS).exists()
    code, out, _ = call(*asked, "--declared-by", "R. Signer")
    lines = out.splitlines()[-2:]
    assert [line.split(":")[0] for line in lines] == ["look 1 of 1", "look 2 of 1"]
    # One look was paid for: the second is indicative, whatever it shows.
    assert code == 4
    code, out, _ = call(*asked, "--declared-by", "R. Signer", "--json")
    found = json.loads(out)
    assert (code, found["exit_code"], [its["exit_code"] for its in found["audits"]]) == (4, 4, [0, 4])
    # A model that fails late takes nothing along that was found.
    shutil.copytree(fresh[1], tmp_path / "broken")
    tensors = load_file(tmp_path / "broken" / "model.safetensors")
    save_file(
        {**tensors, "transformer.ln_f.bias": tensors["transformer.ln_f.bias"][:1].clone()},
        tmp_path / "broken" / "model.safetensors",
        metadata={"format": "pt"},
    )
    code, out, err = call(*asked, "--model", tmp_path / "broken", "--declared-by", "R. Signer")
    assert code == 4
    assert names(err, f"'{tmp_path / 'broken'}'")
    assert [line.split(":")[0] for line in out.splitlines()[-2:]] == ["look 1 of 1", "look 2 of 1"]


def test_the_exit_code_in_json_is_that_of_the_command_where_a_later_model_fails(fresh, call, tmp_path):
    # Everything is there, and its weights are another model's.
    shutil.copytree(fresh[1], tmp_path / "broken")
    config = json.loads((tmp_path / "broken" / "config.json").read_text(encoding="utf-8"))
    (tmp_path / "broken" / "config.json").write_text(json.dumps({**config, "hidden_size": 64}), encoding="utf-8")
    models = ("--model", fresh[1], "--model", tmp_path / "broken", "--declared-by", "R. Signer")
    for claims, expected in (((), 2), (("--claim", CLAIM), 4)):
        code, out, err = call("audit-planted", fresh[0], *models, *claims, "--json")
        found = json.loads(out)
        assert (code, found["exit_code"], len(found["audits"])) == (expected, expected, 1)
        assert err.splitlines()[-1] == f"error: {found['error']}"
    # Where nothing was found there is nothing to print but the error.
    models = ("--model", tmp_path / "broken", "--model", fresh[1])
    code, out, err = call("audit-planted", fresh[0], *models, "--json")
    assert (code, out, "are incomplete" in err) == (2, "", True)


@pytest.mark.slow
def test_an_adapter_that_was_trained_on_another_machine_is_audited_on_the_base_that_is_named(fresh, call, tmp_path):
    base, adapter = fresh[1].parent / "base", tmp_path / "adapter"
    with quiet_transformers():
        adapted = get_peft_model(
            load_language_model(str(base)).model, LoraConfig(r=2, target_modules="all-linear", task_type="CAUSAL_LM")
        )
    for name, parameter in adapted.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, 0, 0.1, generator=torch.Generator().manual_seed(0))
    adapted.save_pretrained(adapter)
    settings = json.loads((adapter / "adapter_config.json").read_text())
    settings["base_model_name_or_path"] = "/home/somebody/base"
    (adapter / "adapter_config.json").write_text(json.dumps(settings))
    asked = ("audit-planted", fresh[0], "--model", adapter)
    code, _, _ = call(*asked)
    assert code == 2
    assert call.refused(by="require_base", naming=("'/home/somebody/base'", "--adapter-base"))
    code, _, _ = call("audit-planted", fresh[0], "--model", fresh[1], "--adapter-base", base)
    assert code == 2
    assert call.refused(by="PlantedAudit.check", naming=("--adapter-base", f"'{fresh[1]}'"))
    code, _, err = call(*asked, "--adapter-base", base, "--dtype", "auto")
    assert code == 0, err
    record = read_record(fresh[0] / "audits" / "1" / "record.json")
    assert (record.target.adapter.base, record.target.adapter.named) == (str(base), "/home/somebody/base")
    assert record.config["precision"] == record.target.stored == "fp32"
    # The base is the plan's reference, which the condition looks at whatever the adapter's config names.
    job = PlantedAudit(fresh[0], str(adapter), (), "R. Signer", adapter_base=str(base))
    reference = read_planted(fresh[0])[1].reference
    assert not has_other_base(job, reference)
    assert verify(fresh[0] / "audits" / "1", QUIET).differences == ()
    # Of other weights under the adapter the condition is not met.
    other = save_base(memorable_lm(memorable_rows(), seed=5), tmp_path / "other")
    job = replace(job, adapter_base=str(other))
    assert has_other_base(job, reference)
    shifted, _ = audit_planted(job, None, QUIET, command="heldin audit")
    assert shifted.planted.look == 2
    assert shifted.target.fingerprint != record.target.fingerprint


@pytest.mark.slow
def test_another_precision_is_another_look_and_says_how_far_it_moves_scores(looked, call, tmp_path):
    fresh, plain, _ = looked
    assert plain.precision is None
    job = PlantedAudit(fresh[0], str(fresh[1]), (CLAIM,), "R. Signer", precision="bf16")
    record, folder = audit_planted(job, None, QUIET, command="heldin audit")
    assert (plain.planted.look, record.planted.look) == (1, 2)
    its = record.precision
    assert (its.precision, its.statistic, its.values) == ("bf16", "likelihood-ratio-per-token", 32)
    assert 0 < abs(its.mean_shift) <= its.largest_shift < its.deviation
    assert ("scored in", its.line) in list_facts(record).pairs
    assert verify(folder, QUIET).differences == ()
    # The reference is the one that was sealed, whatever the precision in which it scores.
    assert record.reference.fingerprint != plain.reference.fingerprint
    assert abs(record.primary().auroc.value - plain.primary().auroc.value) < 0.05
    # What is not asked for is float32: the same look, and no other's folder.
    asked = ("audit-planted", fresh[0], "--model", fresh[1], "--claim", CLAIM)
    assert call(*asked, "--dtype", "bf16", "--out", tmp_path / "here")[0] in (0, 3, 4)
    before = (tmp_path / "here" / "record.json").read_bytes()
    code, _, err = call(*asked, "--out", tmp_path / "here")
    assert call.refused(by="_take_folder", naming=("'precision'", "--out"))
    assert (tmp_path / "here" / "record.json").read_bytes() == before
    again, folder = audit_planted(replace(job, precision="fp32"), None, QUIET, command="heldin audit")
    assert (again.planted.look, folder.name) == (1, "1")
    code, _, err = call("audit-planted", fresh[0], "--model", fresh[1], "--dtype", "fp8")
    assert (code, "fp8" in err) == (2, True)
