"""The front door for people who write Python: light, typed, and the same numbers as the commands."""

import doctest
import importlib
import json
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from html import escape
from pathlib import Path

import numpy as np
import pytest
from matplotlib import pyplot

import heldin
from heldin.audit.decision import Answer
from heldin.base.progress import LineReporter
from heldin.corpus.split import Part, Role
from heldin.record.document import Record
from heldin.reports.findings import warn
from heldin.stages.run_config import load_config
from heldin.stages.sides.data import prepare_data
from heldin.white_box import engine
from heldin.words.evidence import ClaimLabel
from heldin.words.guarantee import GuaranteeText, NoGuaranteeReason
from tests.pdf_pages import text_of
from tests.refusals import names, refused
from tests.reports.golden_pages import made_cases

CASES = made_cases()
MEMBER = np.arange(400) % 2 == 0
SCORES = np.random.default_rng(0).normal(2.0 * MEMBER)


def test_importing_heldin_loads_nothing_else():
    code = "import sys; before = set(sys.modules); import heldin; print(sorted(set(sys.modules) - before))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = json.loads(done.stdout.replace("'", '"'))
    assert [name for name in loaded if name.startswith("heldin")] == ["heldin"]
    assert not {"numpy", "torch", "pydantic", "pandas", "scipy"} & set(loaded)


@pytest.mark.parametrize("name", heldin.__all__)
def test_every_name_is_there_and_says_what_it_is(name):
    assert getattr(heldin, name).__doc__
    assert name in dir(heldin)


def test_a_name_that_is_not_offered_is_an_attribute_error():
    with refused(by="__getattr__", naming=("'heldin'", "'audits'"), kind=AttributeError):
        getattr(heldin, "audits")  # noqa: B009


@pytest.mark.parametrize("module", ["account", "numbers"])
def test_examples_in_docstrings_run(module):
    found = doctest.testmod(importlib.import_module(f"heldin.api.{module}"))
    assert found.attempted > 0
    assert found.failed == 0


def test_scores_in_arrays_give_what_a_csv_file_gives(call, tmp_path):
    rows = [f"user {i:03},{float(s)!r},{int(m)}" for i, (s, m) in enumerate(zip(SCORES, MEMBER, strict=True))]
    (tmp_path / "scores.csv").write_text("\n".join(["user,score,member", *rows]) + "\n", encoding="utf-8")
    arguments = ["--assignment", "coin", "--claim", "epsilon=4,delta=1e-6", "--json"]
    _, out, _ = call("bound", tmp_path / "scores.csv", *arguments)
    found = heldin.bound(
        SCORES, MEMBER.astype(int), assignment="coin", claims=[heldin.claim(4, 1e-6)], users=[r[:8] for r in rows]
    )
    assert json.loads(json.dumps(found.as_dict())) == json.loads(out)
    turned = heldin.bound(-SCORES, MEMBER, assignment="coin", claims=[(4, 1e-6)], higher_is="non-member")
    assert [b.epsilon_lower for b in turned.bounds] == pytest.approx([b.epsilon_lower for b in found.bounds])
    frame = found.to_dataframe()
    assert list(frame["name"]) == [b.name for b in found.bounds]
    # "Consistent (certified)" would say that the claim is.
    assert found._repr_html_().startswith("<p><b>Not contradicted: epsilon 4")


@pytest.mark.parametrize(
    ("changed", "by", "naming"),
    [
        ({"member": MEMBER[:-1]}, "LabelledScores.__post_init__", ("400", "399")),
        ({"member": MEMBER + 1}, "bound", ("True", "1", "False", "0")),
        ({"scores": np.where(MEMBER, np.nan, 1.0)}, "LabelledScores.__post_init__", ("row 0", "nan")),
        ({"assignment": "coins"}, "assignment_named", "'coins'"),
        ({"claims": ["epsilon=4"]}, "parse_claim", "'epsilon=4'"),
        ({"claims": ()}, "evaluate", "--delta"),
        ({"claims": (1, 1e-5)}, "_claim_of", ("1", "[(8, 1e-6)]")),
        ({"claims": "epsilon=1,delta=1e-5"}, "claims_of", "'epsilon=1,delta=1e-5'"),
        ({"claims": ["epsilon=1,delta=1e-5,unit=user"]}, "parse_claim", ("1e-5,unit=user'", "heldin audit-planted")),
        (
            {"claims": heldin.claim(1, 1e-5)},
            "claims_of",
            ("claims", "epsilon 1 at delta 1e-05"),
        ),
        ({"delta": "x"}, "require_number", ("delta", "'x'")),
        ({"alpha": "x"}, "require_number", ("alpha", "'x'")),
        ({"guesses": 10.5}, "require_number", ("guesses", "10.5")),
        ({"thresholds": 0.5}, "bound", ("thresholds", "0.5")),
        ({"scores": np.ma.masked_array(np.ones(400), MEMBER)}, "bound", "scores"),
        ({"desing": 1}, "bound", "'desing'"),
        ({"assigment": "coin"}, "bound", ("'assigment'", "'assignment'")),
        ({"scores": ["a"] * len(MEMBER)}, "bound", "'a'"),
        ({"scores": [], "member": []}, "bound", "scores"),
    ],
)
def test_what_cannot_be_bounded_is_one_line(changed, by, naming):
    given = {"scores": SCORES, "member": MEMBER, "assignment": "coin", "claims": ["epsilon=4,delta=1e-6"], **changed}
    with refused(by=by, naming=naming, kind=heldin.InputError):
        heldin.bound(given.pop("scores"), given.pop("member"), **given)


def test_a_private_run_shows_that_it_has_no_guarantee_where_it_has_none(finished, tmp_path):
    record = heldin.load_record(finished).record
    training = record.training.model_copy(
        update={"defense": "clip", "promise": GuaranteeText.NO_GUARANTEE(reasons=[NoGuaranteeReason.NO_NOISE()])}
    )
    shown = heldin.AuditResult(record.model_copy(update={"training": training}), finished)._repr_html_()
    assert "The defense &#x27;clip&#x27; ran, with no DP guarantee" in shown


def test_what_power_says_is_what_a_registered_number_of_guesses_exceeds():
    found = heldin.power(500, 0.75)
    assert found.largest.one_run > found.largest.paid
    assert f"certifies epsilon {found.largest.paid:.3g} at" in found.heading()
    assert names(found.heading(), f"{found.largest.one_run:.3g}")


def test_a_mechanism_without_noise_promises_nothing():
    row = heldin.account.example(steps=10, delta=1e-5, noise_multiplier=0, sampling_rate=0.1)
    assert names(row.heading(), "epsilon", "example")
    assert not re.search(r"\d", row.heading())
    private = heldin.account.uls(users=1024, cohort=16, steps=1000, delta=1e-6, target_epsilon=4)
    assert private.heading() == "epsilon 4, delta 1e-06 per user (add/remove)"


def test_too_few_users_are_an_error_of_their_own():
    with refused(by="paid_tries", naming=("3", "0.05", "5"), kind=heldin.TooFewUsers):
        heldin.bound([0.0, 1.0, 2.0], [False, True, True], assignment="coin", delta=1e-5)


def test_markup_in_names_is_shown_and_not_run():
    found = heldin.bound(SCORES, MEMBER, assignment="fixed", delta=1e-5)
    assert "<script>" not in heldin.AuditResult._repr_html_(_Shouting(found))


class _Shouting:
    def __init__(self, found):
        self._found = found

    def heading(self):
        return "<script>alert(1)</script>"

    def notes(self):
        return ["<script>"]

    def rows(self):
        return [{"<script>": "<script>"}]


def test_a_finished_run_is_loaded_and_written_as_a_pdf(finished, tmp_path):
    found = heldin.load_record(finished)
    assert found.answer in list(Answer)
    assert found.headline == found.heading() == found.record.decision.headline
    assert found.auroc.lower <= found.auroc.value <= found.auroc.upper
    assert found.verdict.claim.states(ClaimLabel.NONE)
    assert len(found.to_dataframe()) == len(found.record.attacks)
    assert found.headline[:20] in found._repr_html_()
    assert found.notes() == warn(found.record)
    assert all(escape(warning) in found._repr_html_() for warning in found.notes())
    row = found.rows()[0]
    assert (row["simultaneous_lower"], row["simultaneous_upper"]) == found.record.attacks[0].simultaneous
    before = (finished / "report.pdf").stat().st_mtime_ns
    assert found.write_pdf(tmp_path / "mine.pdf").read_bytes().startswith(b"%PDF")
    assert (finished / "report.pdf").stat().st_mtime_ns == before
    with refused(by="read_record", naming="record.json", kind=heldin.InputError):
        heldin.load_record(tmp_path)


def _points(line):
    return np.column_stack([line.get_xdata(), line.get_ydata()])


def test_plots_are_those_of_the_report(finished):
    found = heldin.load_record(finished)
    curve = found.record.curve()
    axes = found.plot_roc()
    np.testing.assert_array_equal(_points(axes.lines[0]), np.column_stack([curve.fpr, curve.tpr]))
    assert axes.get_legend() is not None
    given = pyplot.figure().subplots()
    assert found.plot_roc(ax=given, log=True) is given
    assert given.get_xscale() == given.get_yscale() == "log"
    counted = found.record.counted_attack()
    axes = found.plot_scores()
    assert counted.attack in axes.get_xlabel()
    edges = axes.patches[0].get_data().edges
    np.testing.assert_array_equal(edges, counted.curve.histogram.edges)
    assert min(map(sum, zip(counted.curve.histogram.held_in, counted.curve.histogram.held_out, strict=True))) >= 10


def test_a_tradeoff_has_the_attack_the_guarantee_and_the_claims():
    record = next(case for case in CASES.values() if isinstance(case, Record) and case.ceiling() is not None)
    verdict = record.judgement.verdicts[0]
    claims = [replace(verdict, claim=heldin.claim(1, 1e-5).label), replace(verdict, claim=heldin.claim(0, 1e-5).label)]
    judgement = replace(record.judgement, verdicts=tuple(claims))
    shown = heldin.AuditResult(record.model_copy(update={"judgement": judgement}), Path())
    lines = {line.get_label(): _points(line) for line in shown.plot_tradeoff().lines}
    curve, ceiling = record.curve(), record.ceiling()
    attack = next(points for name, points in lines.items() if name.startswith(record.primary_attack))
    np.testing.assert_allclose(attack, np.column_stack([curve.fpr, 1 - np.array(curve.tpr)]))
    allowed = next(points for name, points in lines.items() if name.startswith("ceiling"))
    np.testing.assert_allclose(allowed, np.column_stack([ceiling.fpr, 1 - np.array(ceiling.tpr)]))
    # At epsilon 0 the two errors sum to 1 - delta at least, whatever the attack.
    none, one = (lines[f"claim: {claim.claim}"] for claim in reversed(claims))
    assert none[:-1].sum(axis=1) == pytest.approx(1 - 1e-5)
    # The corner of (1, delta): both errors are equal, and a false alarm costs e.
    corner = one[np.argmin(one.sum(axis=1))]
    assert corner == pytest.approx([(1 - 1e-5) / (1 + np.e)] * 2)


def test_runs_of_a_folder_are_a_row_each(finished, tmp_path):
    shutil.copytree(finished, tmp_path / "runs" / "one")
    shutil.copytree(finished, tmp_path / "runs" / "two")
    (tmp_path / "runs" / "two" / "record.json").write_text("{", encoding="utf-8")
    runs = heldin.load_runs(tmp_path / "runs")
    frame = runs.to_dataframe().set_index("path")
    one, two = (frame.loc[str(tmp_path / "runs" / name)] for name in ("one", "two"))
    record = heldin.load_record(finished).record
    assert (one["answer"], one["members"], one["state"]) == (
        record.decision.decision.answer,
        record.split.held_in,
        "done",
    )
    assert (two["state"], runs.notes()) == ("damaged", [two["problem"]])
    assert escape(runs.heading()) in runs._repr_html_()
    with refused(by="list_runs", naming="nowhere", kind=heldin.InputError):
        heldin.load_runs(tmp_path / "nowhere")


def test_a_run_of_a_file_or_of_its_content_goes_on_where_it_stands(finished, small_config, tmp_path):
    again = tmp_path / "again"
    shutil.copytree(finished, again)
    held, read = heldin.run(small_config, out=again, quiet=True), heldin.load_record(finished)
    assert held.record == read.record
    # A command typesets the record in hand, ``heldin report`` the one in the file.
    assert text_of(held.write_pdf(tmp_path / "held.pdf")) == text_of(read.write_pdf(tmp_path / "read.pdf"))
    with refused(by="checked", naming=("1", "finetune.epoch"), kind=heldin.InputError):
        heldin.run({"name": "x", "corpus": {"source": {"kind": "synthetic"}}, "model": {"base": "m"}},
                   overrides=["finetune.epoch=3"], quiet=True)  # fmt: skip
    with refused(by="require_folder", naming="'finetune.epochs'", kind=heldin.InputError):
        heldin.run(small_config, out=again, overrides=["finetune.epochs=3"], quiet=True)


def test_a_checkpoint_is_audited_as_the_command_does(finished, tmp_path):
    data = prepare_data(load_config(finished / "config.yaml"), finished, LineReporter(lambda line: None))
    files = {}
    for role, name in ((Role.HELD_IN, "in"), (Role.HELD_OUT, "out")):
        texts = [
            {"author": user, "body": data.store.text(row)}
            for user in data.ledger.users(role)
            for row in data.ledger.parts[user][Part.ATTACKER]
        ]
        files[name] = tmp_path / f"{name}.jsonl"
        files[name].write_text("".join(json.dumps(row) + "\n" for row in texts), encoding="utf-8")
    record = heldin.load_record(finished).record
    cache = next(p.parent for p in (finished / "checkpoints").rglob("config.json"))
    reference = _reference(finished)
    given = {"reference": reference, "held_in": files["in"], "held_out": files["out"], "user": "author", "text": "body"}
    found = heldin.audit_model(
        cache, **given, claims=["epsilon=8,delta=1e-6"], attack={"max_characters": 200}, out=tmp_path / "a", quiet=True
    )
    assert found.auroc.value == pytest.approx(record.primary().auroc.value, abs=1e-9)
    assert found.verdict.standing == "indicative"
    assert found.record == heldin.load_record(tmp_path / "a").record
    assert found.record.command.startswith("heldin.audit_model(...)")
    with refused(by="checked", naming=("audit_model", "assignments", "'assignment'"), kind=heldin.InputError):
        heldin.audit_model(cache, **given, assignments="coin", out=tmp_path / "b")
    with refused(by="checked", naming=("audit_model", "columns", "'author'"), kind=heldin.InputError):
        heldin.audit_model(cache, **given, columns="author", out=tmp_path / "b")


def _reference(finished):
    from tests.end_to_end.test_audit_command import _reference as of

    return of(finished)


def test_a_step_is_audited_under_a_plan(monkeypatch, tmp_path):
    handed = {}
    monkeypatch.setattr(engine, "audit_trainer", lambda mechanism, keys, **options: handed.update(options, keys=keys))
    mechanism = heldin.Mechanism.model_validate(_ULS)

    def step(model, training, number, sequences):
        return None

    heldin.audit_trainer(step, mechanism, trainings=2, canaries=50, quiet=True)
    assert handed["trainer"].step is step
    assert (len(set(handed["keys"])), handed["accepted"]) == (2, ())
    heldin.audit_trainer(step, mechanism, accept=["non-finite", "non-finite"], quiet=True)
    assert handed["accepted"] == ("non-finite",)
    heldin.audit_trainer(None, mechanism, quiet=True)
    assert handed["trainer"] is engine.loop_trainer
    whole = object()
    heldin.audit_trainer(None, mechanism, trainer=whole, quiet=True)
    assert handed["trainer"] is whole
    with refused(by=heldin.audit_trainer, naming=("step", "trainer")):
        heldin.audit_trainer(step, mechanism, trainer=whole, quiet=True)
    with pytest.raises(heldin.InputError, match="plan.json"):
        heldin.audit_trainer(None, tmp_path / "plan.json")


_ULS = {
    "unit": "user",
    "sampled": "user",
    "sampler": {"kind": "poisson", "rate": 0.1},
    "clip": {"kind": "flat", "norm": 1.0},
    "noise_multiplier": 1.0,
    "steps": 4,
    "delta": 1e-5,
    "divisor": {"kind": "constant", "value": 4},
}


@pytest.mark.parametrize(
    ("call", "naming"),
    [
        (lambda: heldin.power("100", 0.7), ("users", "'100'")),
        (lambda: heldin.power(100, "x"), ("auroc", "'x'")),
        (
            lambda: heldin.account.uls(users="9", cohort=3, steps=2, delta=1e-6, target_epsilon=4),
            ("users", "'9'"),
        ),
        (lambda: heldin.audit_trainer(None, {}), ("mechanism", "{}", "heldin.Mechanism", "plan.json")),
        (
            lambda: heldin.audit_trainer(None, "plan.json", directions="x"),
            ("directions", "'x'", "coordinate", "random"),
        ),
        (
            lambda: heldin.audit_trainer(None, "plan.json", accept="non-finite"),
            ("accept", "'non-finite'"),
        ),
        (lambda: heldin.audit_trainer(None, "plan.json", accept=["mechanism"]), ("accept", "['mechanism']")),
    ],
)
def test_what_is_no_number_is_named(call, naming):
    with refused(naming=naming, kind=heldin.InputError):
        call()
