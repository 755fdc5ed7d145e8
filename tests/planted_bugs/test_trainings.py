"""Every training of ``tests.planted_bugs.trainings``, audited by the command: exit code, answer, conditions, counts."""

import json
import shutil
from pathlib import Path

import pytest

from heldin.base.progress import LineReporter
from heldin.models.model_config import TinyModel
from heldin.models.tiny import new_tiny_model, train_tokenizer
from heldin.planting.plant import plant
from heldin.record.planted_facts import ConditionName, ControlFacts, Known, Reason
from tests.planted_bugs.trainings import CASES, LENGTH, Place, table
from tests.planted_sets import made_rows, plan, train, write_lines

CLAIM = "epsilon=0.5,delta=1e-5,unit=user"
QUIET = LineReporter(lambda line: None)
FAST = {
    "one epoch",
    "original, no log",
    "early checkpoint",
    "evidence edited",
    "cut short",
    "masked, once without labels",
    "config edited",
    "tensors exchanged",
    "canary rows first",
}


@pytest.fixture
def planted(make_once, english, name):
    """A planted set with unseen rows, and a base model that knows such texts."""
    # One layer is enough for the fast cases. Some slow cases are not recognised after so small a model.
    layers, size = (1, ", small") if name in FAST else (2, "")
    return make_once(f"planted set of careless trainings{size}", lambda home: _plant(home, english, layers))


def _plant(home, english, layers):
    tokenizer = train_tokenizer(english, 400)
    shape = TinyModel(vocabulary=400, context=LENGTH, hidden=64, layers=layers, heads=2, window=8)
    new_tiny_model(shape, tokenizer, 0).save_pretrained(home / "fresh")
    tokenizer.save_pretrained(home / "fresh")
    base = train(home / "fresh", [row["body"] for row in made_rows(seed=2)], home / "base", passes=4)
    original = write_lines(made_rows(), home / "mine.jsonl")
    config = plan(
        original,
        base,
        evidence="callback",
        unseen=str(write_lines(made_rows(seed=1, records=8), home / "unseen.jsonl")),
        split={"canaries_only": True},
        canaries=[{"kind": "unseen_token", "users": 60, "documents": [4]}],
    )
    with pytest.MonkeyPatch.context() as patch:
        # The same coins in every run of the tests.
        patch.setattr("heldin.stages.sides.ledger.new_key", lambda: b"\x11" * 32)
        plant(config, home / "planted", QUIET)


@pytest.mark.parametrize(
    "name", [name if name in FAST else pytest.param(name, marks=pytest.mark.slow) for name in CASES]
)
def test_an_audit_says_of_a_training_what_is_known(name, planted, tmp_path, call):
    case = CASES[name]
    shutil.copytree(planted / "planted", tmp_path / "planted")
    place = Place(tmp_path / "planted", planted / "mine.jsonl", planted / "base", tmp_path)
    model = case.train(place)
    asked = (place.planted, "--model", model, "--claim", CLAIM, "--declared-by", "R. Signer")
    code, out, err = call("audit-planted", *asked, "--json")
    if case.refused is not None:
        assert (code, case.refused in err) == (2, True)
        return
    found = json.loads(out)
    facts = found["planted"]
    conditions = {ConditionName(its["name"]): its for its in facts["conditions"]}
    unmet = {key: set(its["reasons"]) for key, its in conditions.items() if its["known_by"] == Known.NOT_MET}
    all_met = not unmet
    # What the control adds depends on how much a model has learned; where it must add something the case says so.
    expected = {key: set(map(str, reasons)) for key, reasons in case.unmet.items()}
    for its in (unmet, expected):
        if case.valid is None:
            reasons = its.pop(ConditionName.WEIGHTED_ALIKE, set()) - {str(Reason.CANARIES_UNLEARNED)}
            its |= {ConditionName.WEIGHTED_ALIKE: reasons} if reasons else {}
    assert unmet == expected, facts["control"]
    assert conditions[ConditionName.GIVEN_EVERY_ROW]["known_by"] == case.given
    decision, (verdict,) = found["decision"]["decision"], found["judgement"]["verdicts"]
    if case.valid is not None:
        assert (decision["answer"] != "not valid") is case.valid
    for key, least in case.counts.items():
        assert facts["training"][key] >= least
    # Nothing is certified of a training that the log, the losses or the files contradict.
    # "Not contradicted" needs a control that shows an effect, or that its plan counts on.
    shown = ControlFacts.model_validate(facts["control"]).shows_effect
    consistent = verdict["outcome"] == "consistent"
    assert verdict["standing"] == ("certified" if all_met and (shown or not consistent) else "indicative")
    assert code == case.code if case.code is not None else code in ((0, 4) if unmet else (0, 3)), facts["control"]
    if facts["training"] is not None and unmet.keys() & {ConditionName.GIVEN_EVERY_ROW}:
        assert "training log: " in err


def test_the_documentation_lists_every_training():
    page = Path(__file__).resolve().parents[2] / "docs" / "planted-audits.md"
    assert table() in page.read_text(encoding="utf-8")
