"""A mechanism of another package: its event is read or refused, its plan says whose word epsilon is."""

import json
import sys

import pytest
from dp_accounting import dp_event

from heldin.base.errors import InputError
from heldin.defenses.accounting import guarantees as accounting
from heldin.defenses.accounting.declared_events import declared_step
from heldin.defenses.accounting.events import PoissonGaussian
from heldin.defenses.guarantee import DeclaredGuarantee, NoGuarantee
from heldin.defenses.mechanism import Mechanism
from heldin.defenses.mechanisms.contract import Given
from heldin.defenses.mechanisms.declared import OF_PLAN, require_declared
from heldin.defenses.mechanisms.kinds import MECHANISMS
from heldin.defenses.plan_file import plan_document, read_plan, write_plan
from heldin.defenses.releases import PlannedRelease, compose_releases
from heldin.finetune.declared import declared_defense
from heldin.words.guarantee import (
    DeclaredAudit,
    GuaranteeCondition,
    GuaranteeText,
    NoGuaranteeReason,
    relation_of,
    without_conditions,
)
from tests.declared_steps import HONEST, install
from tests.made_mechanisms import example
from tests.refusals import refused
from tests.statements import states, values_of

GIVEN = Given(plain_steps=1, batch_size=4, clip_norm=None, checkpoint="last_step", data_steps=(), assumptions=())
SETTINGS = {"population": 60, "steps": 5, "delta": 1e-3}
GAUSSIAN = dp_event.GaussianDpEvent(1.3)


def composed(single, steps=5):
    return dp_event.SelfComposedDpEvent(single, steps)


@pytest.fixture
def package(tmp_path, monkeypatch):
    """A function that installs code as a package, and gives its mechanism."""

    def make(code=HONEST, version="0.3", **changes):
        kind = install(tmp_path, monkeypatch, code, version=version)
        return MECHANISMS.find(kind).model_validate({"kind": kind, **SETTINGS, **changes})

    return make


def plan_of(defense):
    return Mechanism(**defense.plan(GIVEN))


def test_epsilon_is_that_of_the_declared_event_by_our_own_accountant(package):
    plan = plan_of(package())
    promise = plan.guarantee()
    assert isinstance(promise, DeclaredGuarantee)
    assert promise.epsilon == accounting.epsilon(PoissonGaussian(1.3, 0.1), 5, 1e-3)
    # And that of our own mechanism of the same event, under which nothing is declared.
    ours = example(sampler={"kind": "poisson", "rate": 0.1}, noise_multiplier=1.3, steps=5, delta=1e-3)
    assert promise.epsilon == ours.guarantee().epsilon
    assert plan.dp_event == composed(dp_event.PoissonSampledDpEvent(0.1, GAUSSIAN))
    alone = without_conditions(promise.statement)
    assert alone.states(GuaranteeText.DECLARED)
    assert alone.values["package"] == "heldin_mine 0.3"
    assert relation_of(promise.statement) == "add_remove"
    assert values_of(promise.statement, GuaranteeCondition.DECLARED_STEP)["package"] == "heldin_mine 0.3"
    assert states(promise.statement, DeclaredAudit.NOT_RUN)
    assert not states(ours.guarantee().statement, GuaranteeCondition.DECLARED_STEP)


def test_a_plan_reads_back_without_the_package_and_ours_have_no_declaration(package, tmp_path, monkeypatch):
    plan = plan_of(package())
    write_plan(plan, tmp_path / "plan.json")
    (tmp_path / "heldin_mine.py").unlink()
    monkeypatch.delitem(sys.modules, "heldin_mine")
    assert read_plan(tmp_path / "plan.json") == plan
    with pytest.raises(InputError):
        declared_defense(plan)
    document = plan_document(plan)
    assert document["mechanism"]["declared"]["package"] == "heldin_mine"
    assert document["guarantee"]["package"] == "heldin_mine 0.3"
    # The hash of a plan of our own is over what it was.
    assert "declared" not in example().model_dump()
    assert "declared" not in json.loads(example().model_dump_json())
    # Who edits the declaration out of a plan has another guarantee than the one that stands there.
    del document["mechanism"]["declared"]
    (tmp_path / "plan.json").write_text(json.dumps(document), encoding="utf-8")
    with refused(by="_require_keys", naming="guarantee"):
        read_plan(tmp_path / "plan.json")


@pytest.mark.parametrize(
    ("event", "naming"),
    [
        (1.3, "float"),
        ({"noise_multiplier": 1.3}, "dict"),
        (GAUSSIAN, ("1", "5")),
        (composed(GAUSSIAN, 4), ("4", "5")),
        (composed(dp_event.LaplaceDpEvent(1.0)), "LaplaceDpEvent"),
        (composed(dp_event.UnsupportedDpEvent()), "UnsupportedDpEvent"),
        (composed(dp_event.NoOpDpEvent()), "NoOpDpEvent"),
        (composed(dp_event.PoissonSampledDpEvent(0.1, dp_event.LaplaceDpEvent(1.0))), "LaplaceDpEvent"),
        (composed(dp_event.SampledWithoutReplacementDpEvent(60, 6, GAUSSIAN)), "SampledWithoutReplacementDpEvent"),
        (composed(dp_event.PoissonSampledDpEvent(1.5, GAUSSIAN)), "1.5"),
        (composed(dp_event.GaussianDpEvent(-1.0)), "-1.0"),
    ],
)
def test_what_our_accountant_does_not_read_is_refused(event, naming):
    with refused(naming=naming if isinstance(naming, tuple) else (naming,)):
        declared_step(event, 5)


@pytest.mark.parametrize("single", [dp_event.GaussianDpEvent(0.0), dp_event.NonPrivateDpEvent()])
def test_an_event_without_noise_voids_the_guarantee_in_words(package, single, monkeypatch):
    defense = package()
    monkeypatch.setattr(type(defense), "dp_event", lambda self: composed(dp_event.PoissonSampledDpEvent(0.1, single)))
    promise = plan_of(defense).guarantee()
    assert isinstance(promise, NoGuarantee)
    assert [reason.code for reason in promise.reasons] == [NoGuaranteeReason.NO_NOISE().code]


@pytest.mark.parametrize("unit", ["sentence", "user-entity", None])
def test_another_unit_is_refused(package, unit, monkeypatch):
    defense = package()
    monkeypatch.setattr(type(defense), "unit", unit)
    with refused(by="DeclaredDefense.plan", naming="'mine'"):
        plan_of(defense)


def test_another_relation_is_refused(package, monkeypatch):
    defense = package()
    monkeypatch.setattr(type(defense), "relation", "replace")
    with refused(by="SamplerKind.check", naming=("replace", "add_remove")):
        plan_of(defense)


def test_releases_together_say_it_too(package):
    together = compose_releases([PlannedRelease("theirs", plan_of(package()), 2)])
    assert values_of(together.statement, GuaranteeCondition.DECLARED_STEP)["package"] == "heldin_mine 0.3"
    assert together.epsilon > plan_of(package()).guarantee().epsilon


RECORDS_OF_OURS = """
from heldin.defenses.mechanisms.example import ExampleDefense

class Mine(ExampleDefense):
    kind: str
    noise_multiplier: float = 1.0
    cohort: int = 6
"""
HIDDEN = """
    def declared(self):
        return super().declared().model_copy(update={"%s": "%s"})
"""
NOT_DECLARED = """
    def plan(self, given):
        return {**super().plan(given), "declared": None}
"""


@pytest.mark.parametrize(
    "code",
    [
        # Heldin would take the steps; the package passes for another; it states an audit that nobody ran.
        RECORDS_OF_OURS,
        HONEST + HIDDEN % ("package", "opacus"),
        HONEST + HIDDEN % ("audit", "passed"),
        HONEST + NOT_DECLARED,
    ],
)
def test_a_plan_that_hides_whose_it_is_is_refused(package, code):
    defense = package(code)
    with refused(by="require_declared", naming="'mine'"):
        require_declared(defense, plan_of(defense))


def test_users_are_protected_with_all_their_records(package):
    of_records = 'ClassVar[Literal["user", "example"]] = "example"'
    assert of_records in HONEST
    defense = package(HONEST.replace(of_records, of_records.removesuffix('"example"') + '"user"'))
    plan = plan_of(defense)
    assert (plan.unit, plan.sampled, plan.record_selection, plan.members) == ("user", "user", "all", 1)
    assert defense.promises_users
    assert not package().promises_users


def test_other_code_is_refused_before_a_step(package):
    plan = plan_of(package())
    assert declared_defense(plan).dp_event() == plan.dp_event
    later = plan_of(package(HONEST + "\n# changed\n", version="0.4"))
    assert later.declared.sha256 != plan.declared.sha256
    with refused(by="Family.require_same_code", naming=("heldin_mine 0.3",)):
        # Another declaration, or the section that was made above would be found again.
        declared_defense(plan.model_copy(update={"declared": plan.declared.model_copy(update={"audit": "passed"})}))


@pytest.mark.parametrize(
    ("outcome", "audit"),
    [
        ("consistent", "passed"),
        ("inconclusive", "inconclusive"),
        ("mechanism contradicted", "failed"),
        ("unsafe on non-finite input", "failed"),
        ("something new", "failed"),
    ],
)
def test_a_white_box_audit_of_the_step_is_stated(package, tmp_path, outcome, audit):
    plan = plan_of(package(steps=9))
    audited = {"outcome": outcome, "mechanism": plan.model_dump(mode="json"), "step": OF_PLAN}
    (tmp_path / "audit.json").write_text(json.dumps(audited), encoding="utf-8")
    promise = plan_of(package(white_box=str(tmp_path / "audit.json"))).guarantee()
    # One that failed is no guarantee: the step is not the one that is accounted for.
    assert isinstance(promise, DeclaredGuarantee) == (audit != "failed")
    code = {"passed": DeclaredAudit.PASSED, "inconclusive": DeclaredAudit.INCONCLUSIVE}.get(audit)
    assert states(promise.statement, code or NoGuaranteeReason.WHITE_BOX_FAILED)


@pytest.mark.parametrize(
    ("change", "naming"),
    [
        ({"step": "given"}, "step"),
        ({"unit": "user"}, "unit"),
        ({"sha256": "0" * 64}, "sha256"),
        ({"version": "0.2"}, "version"),
        ({"noise": 5.0}, "settings"),
        ({"outcome": None}, "white_box"),
        (None, "white_box"),
    ],
)
def test_an_audit_of_something_else_is_refused(package, tmp_path, change, naming):
    plan = plan_of(package()).model_dump(mode="json")
    audited = {"outcome": "consistent", "mechanism": plan, "step": OF_PLAN}
    for name, value in (change or {}).items():
        place = next(part for part in (audited, plan["declared"]["settings"], plan["declared"], plan) if name in part)
        place[name] = value
    if change is None or "outcome" in change:
        del audited["outcome"]
    (tmp_path / "audit.json").write_text("{" if change is None else json.dumps(audited), encoding="utf-8")
    with refused(by="_audit_of", naming=naming):
        plan_of(package(white_box=str(tmp_path / "audit.json")))
