"""Published findings of sweeps: what each difference and its interval rest on, and the files that list them."""

import dataclasses
import json
from typing import get_args

import numpy as np
import pytest
from scipy import stats

import heldin.sweeps.processes as processes
from heldin.audit.limits import independent_difference
from heldin.audit.utility import UserLoss
from heldin.sweeps.cell_plan import kept_hash, placed_cells
from heldin.sweeps.finished import Finished, finished_cells
from heldin.sweeps.load import load_sweep
from heldin.sweeps.variants import auroc_change
from replication import experiments, sweep_findings
from replication.findings import Seen, of_one_training
from replication.sweep_findings import Finding, finding_table, findings_of, judge_findings
from tests.refusals import names, refused
from tests.tiny_sweeps import QUIET, ULS, USERS, in_process, written


def with_blocks(sweep, blocks):
    return dataclasses.replace(sweep, config=sweep.config.model_copy(update={"blocks": blocks}))


def test_findings_are_tested_in_pairs_within_a_group_and_without_across_groups(swept):
    sweep, out, _ = swept
    cells = placed_cells(sweep, out)
    finished, problems = finished_cells(cells, kept_hash(out), QUIET)
    assert not problems
    asked = [
        {"of": "auroc", "variant": "uls", "against": "none", "expect": "less"},
        {"of": "loss", "variant": "uls", "against": "none", "expect": "more", "margin": 1e-6},
        {"of": "canaries", "variant": "uls", "against": "none", "expect": "alike"},
        {"of": "auroc", "variant": "apart", "against": "none", "expect": "alike"},
    ]
    findings = tuple(Finding(finding="a finding", source="nobody", **its) for its in asked)
    area, loss, canaries, apart = judge_findings(findings, sweep, finished)
    # Two blocks give no interval: nothing can be judged.
    assert {its.seen for its in (area, loss, canaries, apart)} == {get_args(Seen)[-1]}
    by_hand = np.mean(
        [
            finished[f"{b}/uls"].record.primary().auroc.value - finished[f"{b}/none"].record.primary().auroc.value
            for b in "12"
        ]
    )
    assert area.difference.value == pytest.approx(by_hand, abs=1e-3)
    assert area.values[1] - area.values[0] == pytest.approx(by_hand, abs=1e-3)
    # One block has the interval of its own users.
    first = {name: its for name, its in finished.items() if name.startswith("1/")}
    area, loss, canaries, apart = judge_findings(findings, with_blocks(sweep, 1), first)
    pair = auroc_change(first["1/none"], first["1/uls"])
    assert (area.difference.lower, area.difference.upper) == pytest.approx((pair.lower, pair.upper), abs=1e-3)
    one, other = (first[f"1/{name}"].record.primary().auroc for name in ("none", "apart"))
    joined = independent_difference((one.value, one.lower, one.upper), (other.value, other.lower, other.upper))
    assert (apart.difference.lower, apart.difference.upper) == pytest.approx(joined[1:], abs=1e-3)
    assert loss.difference.over == "users"
    # A loss of one training each is judged with the spread of trainings; an AUROC, and blocks, as they are.
    change = (loss.difference.value, loss.difference.lower, loss.difference.upper)
    assert loss.limits == of_one_training(change)
    assert area.limits == (area.difference.value, area.difference.lower, area.difference.upper)
    assert canaries.difference is None or canaries.difference.lower <= canaries.difference.value


def test_across_groups_three_blocks_or_more_are_joined_by_welchs_interval(swept, monkeypatch):
    sweep, out, _ = swept
    finished, _ = finished_cells(placed_cells(sweep, out), kept_hash(out), QUIET)
    values = {"none": [0.70, 0.74, 0.72, 0.75], "apart": [0.60, 0.66, 0.63, 0.61]}
    monkeypatch.setattr(Finished, "auroc", property(lambda its: values[its.cell.variant.name][its.cell.block - 1]))
    made = {}
    for name in values:
        its = finished[f"1/{name}"]
        for block in (1, 2, 3, 4):
            made[f"{block}/{name}"] = dataclasses.replace(its, cell=dataclasses.replace(its.cell, block=block))
    published = {"unit": "auroc", "values": (0.7, 0.6)}
    asked = {"of": "auroc", "variant": "apart", "against": "none", "expect": "less", "published": published}
    finding = Finding(finding="less", source="nobody", **asked)
    (found,) = judge_findings([finding], with_blocks(sweep, 4), made)
    limits = stats.ttest_ind(values["apart"], values["none"], equal_var=False).confidence_interval(0.95)
    assert (found.difference.lower, found.difference.upper) == pytest.approx((limits.low, limits.high), abs=1e-4)
    assert found.limits == (found.difference.value, found.difference.lower, found.difference.upper)
    assert (found.seen, found.asked.unit, found.difference.over) == ("confirmed", "auroc", "blocks")


def test_levels_are_stated_in_the_unit_of_the_paper_and_tested_on_what_was_fixed(swept):
    sweep, out, _ = swept
    finished, _ = finished_cells(placed_cells(sweep, out), kept_hash(out), QUIET)
    asked = {"of": "loss", "variant": "uls", "against": "none", "expect": "more", "margin": 1e-6}
    published = {"unit": "perplexity", "values": (27.5, 27.43)}
    findings = [
        Finding(finding="f", source="s", **asked),
        Finding(finding="f", source="s", published=published, **asked),
    ]
    in_nats, in_perplexity = judge_findings(findings, sweep, finished)
    assert in_nats.difference == in_perplexity.difference
    for values, of in ((in_nats.values, "loss"), (in_perplexity.values, "perplexity")):
        utility = [[getattr(finished[f"{b}/{name}"].record.utility, of) for b in "12"] for name in ("none", "uls")]
        assert values == pytest.approx([np.mean(its) for its in utility], abs=1e-3)
    # Nats next to a published perplexity would be two units in one line.
    line, *_ = finding_table([in_perplexity], 2).splitlines()
    assert names(line, "perplexity", "27.5 to 27.43", f"{in_perplexity.values[0]:.3f}")
    assert f"{in_nats.values[0]:.3f}" not in line


def test_findings_hold_like_against_like_only_and_wait_for_all_blocks(swept):
    sweep, out, _ = swept
    finished, _ = finished_cells(placed_cells(sweep, out), kept_hash(out), QUIET)

    def judged(cells, blocks, of, variant):
        finding = Finding(finding="f", source="s", of=of, variant=variant, against="none", expect="alike")
        (found,) = judge_findings([finding], with_blocks(sweep, blocks), cells)
        return found

    first = {name: its for name, its in finished.items() if name.startswith("1/")}
    for of in ("auroc", "loss"):
        assert judged(first, 1, of, "apart").difference is not None
        # A block is missing: what is there is not judged for the whole.
        assert judged(first, 2, of, "apart").difference is None
    its = first["1/apart"]
    attack = its.cell.config.attack.model_copy(update={"max_characters": 99})
    config = its.cell.config.model_copy(update={"attack": attack})
    other = {**first, "1/apart": dataclasses.replace(its, cell=dataclasses.replace(its.cell, config=config))}
    assert judged(other, 1, "auroc", "apart").difference is None
    assert judged(other, 1, "loss", "apart").difference is None


def test_of_different_people_the_loss_has_the_spread_of_the_people(swept):
    sweep, out, _ = swept
    finished, _ = finished_cells(placed_cells(sweep, out), kept_hash(out), QUIET)
    rng = np.random.default_rng(0)
    finding = Finding(finding="f", source="s", of="loss", variant="apart", against="none", expect="alike")
    missed = 0
    for _ in range(400):
        made = {}
        for name in ("none", "apart"):
            its = finished[f"1/{name}"]
            # People differ much in their loss, and hardly in what training changed of it.
            losses = {
                f"u{i}": UserLoss(f"u{i}", 1, 9, base + 0.05 * rng.standard_normal(), base)
                for i, base in enumerate(5 + 0.5 * rng.standard_normal(60))
            }
            made[f"1/{name}"] = dataclasses.replace(its, losses=losses)
        (found,) = judge_findings([finding], with_blocks(sweep, 1), made)
        missed += not found.difference.lower <= 0 <= found.difference.upper
    # 20 are expected; with the spread of the gains it would be more than 300.
    assert missed <= 50


def test_a_difference_of_two_differences_is_taken_user_by_user(swept):
    sweep, out, _ = swept
    finished, _ = finished_cells(placed_cells(sweep, out), kept_hash(out), QUIET)
    asked = {"finding": "f", "source": "s", "of": "loss", "expect": "less", "margin": 1e-6}
    finding = Finding(variant="uls", against="none", beyond=("none", "uls"), **asked)
    (whole,) = judge_findings([finding], sweep, finished)
    (half,) = judge_findings([Finding(variant="uls", against="none", **asked)], sweep, finished)
    assert whole.difference.value == pytest.approx(2 * half.difference.value, abs=2e-4)
    # In one block its interval is that of the users' own differences of differences.
    first = {name: its for name, its in finished.items() if name.startswith("1/")}
    (found,) = judge_findings([finding], with_blocks(sweep, 1), first)
    losses = [first[f"1/{name}"].losses for name in ("uls", "none")]
    changes = np.array([2 * (losses[0][user].loss - losses[1][user].loss) for user in sorted(losses[0])])
    limits = stats.t.interval(0.95, changes.size - 1, changes.mean(), stats.sem(changes))
    assert (found.difference.lower, found.difference.upper) == pytest.approx(limits, abs=1e-4)
    assert found.limits == of_one_training(
        tuple(getattr(found.difference, its) for its in ("value", "lower", "upper")), 2
    )
    # Across groups people differ; and of other measures nothing is doubled.
    (apart,) = judge_findings(
        [Finding(variant="apart", against="none", beyond=("uls", "none"), **asked)], sweep, finished
    )
    assert apart.difference is None
    assert apart.seen == judge_findings([Finding(variant="apart", against="none", **asked)], sweep, {})[0].seen
    with refused(naming="beyond", kind=ValueError):
        Finding(variant="uls", against="none", beyond=("none", "uls"), **{**asked, "of": "auroc"})


def of_losses(sweep, finished, differences):
    """Cells of four trainings whose losses differ as told, in one block for each pair of differences."""
    finding = Finding(
        finding="f",
        source="s",
        of="loss",
        margin=0.005,
        expect="more",
        sizes=True,
        variant="a1",
        against="a0",
        beyond=("b1", "b0"),
    )
    made, rng = {}, np.random.default_rng(5)
    base = 5 + 0.5 * rng.standard_normal(60)
    for block, (first, second) in enumerate(differences, start=1):
        for name, shift in (("a0", 0.0), ("a1", first), ("b0", 0.0), ("b1", second)):
            its = finished["1/none"]
            losses = {
                f"u{i}": UserLoss(f"u{i}", 1, 9, loss + shift + 0.001 * rng.standard_normal(), loss)
                for i, loss in enumerate(base)
            }
            cell = dataclasses.replace(its.cell, block=block, variant=dataclasses.replace(its.cell.variant, name=name))
            made[f"{block}/{name}"] = dataclasses.replace(its, cell=cell, losses=losses)
    variants = tuple(dataclasses.replace(sweep.variants[0], name=name) for name in ("a0", "a1", "b0", "b1"))
    (found,) = judge_findings(
        [finding], dataclasses.replace(with_blocks(sweep, len(differences)), variants=variants), made
    )
    return found


@pytest.mark.parametrize(
    ("first", "second", "seen"),
    [
        (0.06, 0.02, "confirmed"),
        (-0.06, 0.02, "confirmed"),
        (-0.06, -0.02, "confirmed"),
        (0.02, 0.06, "not confirmed"),
        # A difference of signs is none of sizes: with signs this would be a large one.
        (0.02, -0.06, "not confirmed"),
        (0.03, -0.03, "not confirmed"),
    ],
)
def test_sizes_of_differences_are_compared_whatever_their_signs(swept, first, second, seen):
    sweep, out, _ = swept
    finished, _ = finished_cells(placed_cells(sweep, out), kept_hash(out), QUIET)
    rng = np.random.default_rng(6)
    blocks = [(first + 0.001 * rng.standard_normal(), second + 0.001 * rng.standard_normal()) for _ in range(5)]
    found = of_losses(sweep, finished, blocks)
    assert found.seen == seen
    assert found.difference.value == pytest.approx(abs(first) - abs(second), abs=0.004)
    for wrong in ({"beyond": None}, {"expect": "less"}):
        with refused(naming="sizes", kind=ValueError):
            Finding.model_validate({**found.asked.model_dump(), **wrong})


def test_a_part_of_a_gain_is_compared_user_by_user_and_a_level_with_a_number(swept):
    sweep, out, _ = swept
    finished, _ = finished_cells(placed_cells(sweep, out), kept_hash(out), QUIET)
    first = {name: its for name, its in finished.items() if name.startswith("1/")}
    common = {"finding": "f", "source": "s", "variant": "uls", "margin": 1e-6}
    asked = {**common, "of": "gain", "against": "none", "expect": "more"}
    level = {**common, "of": "auroc", "against": 0.55, "expect": "less"}
    half, area = judge_findings([Finding(**asked, share=0.5), Finding(**level)], with_blocks(sweep, 1), first)
    private, plain = (first[f"1/{name}"].losses for name in ("uls", "none"))
    users = sorted(private)
    gains = np.array([[its[user].base_loss - its[user].loss for user in users] for its in (private, plain)])
    changes = gains[0] - gains[1] / 2
    limits = stats.t.interval(0.95, changes.size - 1, changes.mean(), stats.sem(changes))
    assert (half.difference.lower, half.difference.upper) == pytest.approx(limits, abs=1e-4)
    assert half.values == pytest.approx((gains[1].mean(), gains[0].mean()), abs=1e-4)
    own = first["1/uls"].record.primary().auroc
    expected = [own.value - 0.55, own.lower - 0.55, own.upper - 0.55]
    found = area.difference
    assert [found.value, found.lower, found.upper] == pytest.approx(expected, abs=1e-3)
    assert area.values == pytest.approx((0.55, own.value), abs=1e-3)
    # All blocks or none; a part of gains only, and of the same people only.
    assert judge_findings([Finding(**level)], sweep, first)[0].difference is None
    (apart,) = judge_findings([Finding(**{**asked, "variant": "apart"}, share=0.5)], sweep, finished)
    assert apart.difference is None
    with refused(naming="share", kind=ValueError):
        Finding(**level, share=0.5)


FINDING = {"finding": "it falls", "source": "us", "of": "auroc", "variant": "uls", "against": "none", "expect": "less"}


@pytest.fixture
def listed(tmp_path, monkeypatch):
    """Writes another ``findings.yaml``, of the sweep file "two"."""

    def write(*findings):
        (tmp_path / "findings.yaml").write_text(json.dumps({"two": findings}), encoding="utf-8")
        monkeypatch.setattr(sweep_findings, "FILE", tmp_path / "findings.yaml")

    return write


def test_a_finding_about_a_variant_that_is_not_there_is_one_line(listed, tmp_path):
    listed({**FINDING, "variant": "els"})
    with refused(by="findings_of", naming=("'els'", "'none'", "'uls'")):
        findings_of("two", load_sweep(written(tmp_path)))
    # Another scale of a file has some of its variants: only findings of these are judged.
    listed({**FINDING, "variant": "els"}, FINDING)
    assert [its.variant for its in findings_of("two", load_sweep(written(tmp_path)))] == ["uls"]
    assert findings_of("another", load_sweep(written(tmp_path))) == ()


def test_a_sweep_ends_with_its_findings(replicate, listed, tmp_path, monkeypatch):
    """The first call makes the cells, the second finds them done: both print the same verdict."""
    (tmp_path / "sweeps").mkdir()
    written(tmp_path / "sweeps", variants={"none": USERS, "uls": {**USERS, "defense": ULS}}).rename(
        tmp_path / "sweeps" / "chua-table-6.yaml"
    )
    listed()
    (tmp_path / "findings.yaml").write_text(json.dumps({"chua-table-6": [FINDING]}), encoding="utf-8")
    monkeypatch.setattr(experiments, "FOLDER", tmp_path)
    monkeypatch.setattr(processes, "run_process", in_process)
    code, out, err = replicate("chua-table-6", "--out", tmp_path / "out", "--json")
    assert code == 0, err
    answer = json.loads(out)
    (finding,) = answer["findings"]
    assert finding["seen"] in get_args(Seen)
    cells = {cell["variant"]: cell["auroc"] for cell in answer["sweep"]["cells"]}
    assert finding["values"] == pytest.approx([cells["none"], cells["uls"]], abs=1e-3)
    assert answer["findings"] == json.loads((tmp_path / "out" / "findings.json").read_text(encoding="utf-8"))
    code, out, _ = replicate("chua-table-6", "--out", tmp_path / "out")
    assert (code, f"finding: it falls (us): {finding['seen']}" in out) == (0, True)
