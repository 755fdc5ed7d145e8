"""The way of a mechanism through plan.json: whole, refused when it was changed, never half-written."""

import dataclasses
import json
import math

import pytest

from heldin.defenses.choices import NoClip
from heldin.defenses.guarantee import Guarantee, NoGuarantee
from heldin.defenses.plan_file import mechanism_in, promise_fields, read_plan, read_plan_document, write_plan
from heldin.defenses.samplers import CappedPoissonSampler
from heldin.words.guarantee import NoGuaranteeReason
from tests.made_mechanisms import els, example, shuffled, uls
from tests.refusals import refused


@pytest.fixture(autouse=True)
def _private_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("HELDIN_CACHE_DIR", str(tmp_path / "cache"))


ROUND_TRIPS = {
    "uls": uls,
    "els": els,
    "example": example,
    "shuffled": shuffled,
    "capped": lambda: uls(sampler=CappedPoissonSampler.of(1024, 16, cap=64)),
    "void": lambda: uls(clip=NoClip(), noise_multiplier=0.0),
    "plain": lambda: uls(unit="none", delta=None),
    "calibrated": lambda: uls().calibrated(3.0),
}


@pytest.mark.parametrize("name", ROUND_TRIPS)
def test_plan_reads_back_to_the_same_epsilon(name, tmp_path):
    mechanism = ROUND_TRIPS[name]()
    write_plan(mechanism, tmp_path / "run" / "plan.json")
    again = read_plan(tmp_path / "run" / "plan.json")
    assert again == mechanism
    assert again.epsilon() == mechanism.epsilon()
    assert again.guarantee() == mechanism.guarantee()
    assert sorted(p.name for p in (tmp_path / "run").iterdir()) == ["artefacts.json", "plan.json"]
    document = json.loads((tmp_path / "run" / "plan.json").read_text())
    assert document["guarantee"]["holds"] is isinstance(mechanism.guarantee(), Guarantee)


def test_plan_names_its_event(tmp_path):
    write_plan(els(group_size=2), tmp_path / "plan.json")
    event = json.loads((tmp_path / "plan.json").read_text())["dp_event"]
    assert (event["type"], event["count"]) == ("SelfComposedDpEvent", 1000)
    assert event["event"]["type"] == "MixtureOfGaussiansDpEvent"
    assert event["event"]["sensitivities"] == [0.0, 1.0, 2.0]


def tampered(tmp_path, change, mechanism=None):
    path = tmp_path / "plan.json"
    write_plan(mechanism or uls(), path)
    document = json.loads(path.read_text())
    change(document)
    path.write_text(json.dumps(document))
    return path


@pytest.mark.parametrize(
    ("change", "by", "naming"),
    [
        (lambda d: d.update(extra=2), "_require_keys", "['extra']"),
        (lambda d: d.pop("covers"), "_require_keys", "['covers']"),
        (lambda d: d["mechanism"].update(nois_multiplier=2), mechanism_in, "nois_multiplier"),
        (
            lambda d: d["mechanism"].update(noise_multiplier=0.8),
            "_require_same",
            "guarantee.epsilon",
        ),
        (
            lambda d: d["mechanism"].update(noise_multiplier=0.0),
            mechanism_in,
            ("plan.json", NoGuarantee((NoGuaranteeReason.NO_NOISE(),)).label),
        ),
        (
            lambda d: d["mechanism"].update(base_model_saw_protected=True),
            mechanism_in,
            ("plan.json", NoGuarantee((NoGuaranteeReason.BASE_SAW_PROTECTED(),)).label),
        ),
        (lambda d: d["guarantee"].update(epsilon=1.0), "_require_same", ("guarantee.epsilon", "1.0")),
        (lambda d: d["guarantee"].update(epsilon=10**400), "_require_same", "guarantee.epsilon"),
        (lambda d: d["guarantee"].update(epsilon=math.nan), "_require_same", ("guarantee.epsilon", "NaN")),
        (lambda d: d["guarantee"].update(delta=1.001e-6), "_require_same", "guarantee.delta"),
        (lambda d: d["guarantee"].update(conditions=[]), "_require_same", "guarantee.conditions"),
        (lambda d: d["guarantee"].update(holds=1), mechanism_in, ("plan.json", uls().guarantee().label)),
        (lambda d: d["guarantee"].update(certified=True), "_require_keys", ("guarantee", "['certified']")),
        (lambda d: d.update(guarantee=3), mechanism_in, ("plan.json", uls().guarantee().label)),
        (
            lambda d: d.update(covers="the model,\nwhatever is done with it"),
            "_require_same",
            ("covers", '"covers.last_step"'),
        ),
        (
            lambda d: d["dp_event"]["event"].update(sampling_probability=0.001),
            "_require_same",
            "dp_event.event.sampling_probability",
        ),
        (lambda d: d["dp_event"].update(type="NonPrivateDpEvent"), "_require_same", "dp_event.type"),
    ],
)
def test_a_changed_plan_is_refused(tmp_path, change, by, naming):
    path = tampered(tmp_path, change)
    with refused(by=by, naming=naming) as caught:
        read_plan(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_plan_that_hides_a_reason_is_refused(tmp_path):
    def hide(document):
        document["guarantee"]["reasons"].pop()

    with refused(by="_require_same", naming="guarantee.reasons"):
        read_plan(tampered(tmp_path, hide, uls(clip=NoClip(), noise_multiplier=0.0)))


@pytest.mark.parametrize("mechanism", [uls(), els(group_size=2)])
def test_a_plan_of_another_accountant_version_or_processor_is_read(tmp_path, mechanism):
    """Its epsilon, the label that shows it, and the weights of its event may differ by a rounding."""
    other = dataclasses.replace(mechanism.guarantee(), epsilon=mechanism.epsilon() * 1.001)
    assert other.label != mechanism.guarantee().label

    def round_otherwise(document):
        document["guarantee"].update(epsilon=other.epsilon)
        event = document["dp_event"]["event"]
        if "sampling_probs" in event:
            event["sampling_probs"] = [p * (1 + 1e-14) for p in event["sampling_probs"]]

    assert read_plan(tampered(tmp_path, round_otherwise, mechanism)) == mechanism


def test_assumed_and_fallback_epsilons_are_those_of_the_mechanism(tmp_path):
    mechanism = shuffled()
    for change, naming in (
        (lambda g: g.update(assumed_epsilon=0.1), "guarantee.assumed_epsilon"),
        (lambda g: g["fallback"].update(epsilon=0.1), "guarantee.fallback.epsilon"),
        (lambda g: g["fallback"].update(unit="example"), "guarantee.fallback.unit"),
        (lambda g: g.update(fallback=None), ("guarantee.fallback", "null")),
    ):
        with refused(by="_require_same", naming=naming):
            read_plan(tampered(tmp_path, lambda d, change=change: change(d["guarantee"]), mechanism))
    promise = mechanism.guarantee()
    other = dataclasses.replace(
        promise,
        assumed_epsilon=promise.assumed_epsilon * 1.001,
        fallback=dataclasses.replace(promise.fallback, epsilon=promise.fallback.epsilon * 0.999),
    )
    path = tampered(tmp_path, lambda d: d.update(guarantee=promise_fields(other)), mechanism)
    assert read_plan(path) == mechanism


def test_unreadable_plans(tmp_path):
    with refused(by=read_plan_document, naming=("absent.json", "plan.json")):
        read_plan(tmp_path / "absent.json")
    (tmp_path / "bad.json").write_text("{")
    with refused(by=read_plan_document, naming="JSON"):
        read_plan(tmp_path / "bad.json")
    (tmp_path / "list.json").write_text("[]")
    with refused(by=mechanism_in, naming="JSON"):
        read_plan(tmp_path / "list.json")


def test_a_failed_write_leaves_the_old_plan(tmp_path, monkeypatch):
    path = tmp_path / "plan.json"
    write_plan(uls(), path)
    before = path.read_bytes()

    def full(its, text, encoding):
        its.write_bytes(text.encode(encoding)[:20])
        raise OSError("disk full")

    monkeypatch.setattr("pathlib.Path.write_text", full)
    with pytest.raises(OSError, match="disk full"):
        write_plan(els(), path)
    assert path.read_bytes() == before
    assert sorted(tmp_path.iterdir()) == [tmp_path / "artefacts.json", path]
