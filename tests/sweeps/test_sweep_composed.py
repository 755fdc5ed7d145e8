"""What a sweep's cells cost together, and when that covers the rule's choice."""

import pytest

from heldin.sweeps.cell_plan import placed_cells, tuning_cells
from heldin.sweeps.comparison import about_epsilon, choice_is_covered, composed
from heldin.sweeps.load import load_sweep
from heldin.words.guarantee import Relation
from heldin.words.sweep_page import SweepNote
from tests.tiny_sweeps import ULS, USERS, written

APART = {**USERS, "split": {"audit_fraction": 0.5}}
RULE = {"require": [{"of": "auroc", "at_most": 0.6}], "prefer": "auroc", "candidates": ["uls"]}
BOTH = {**RULE, "candidates": ["none", "uls"]}
PUBLIC = {"corpus": {**USERS["corpus"], "public_validation": {"min_records": 4}}, "finetune": {"select": "last"}}


def judged(folder, variants, **content):
    sweep = load_sweep(written(folder, variants=variants, blocks=5, **content))
    cells, tuning = placed_cells(sweep, folder / "out"), tuning_cells(sweep, folder / "out")
    return sweep, choice_is_covered(sweep, cells, tuning), composed([*cells, *tuning])


def test_all_private_cells_of_all_groups_are_composed_and_the_others_counted(tmp_path):
    variants = {"none": USERS, "uls": {**USERS, "defense": ULS}, "apart": {**APART, "defense": ULS}}
    _, _, found = judged(tmp_path, variants)
    # Other coins and set-asides may fall on the same people: groups are not told apart.
    assert (found.private, found.others, found.delta, found.adjacency) == (10, 5, ULS["delta"], "add_remove")
    # Ten trainings of one mechanism under ten keys are one of ten times the steps.
    _, _, one = judged(tmp_path / "one", {"uls": {**USERS, "defense": {**ULS, "steps": 2 * ULS["steps"]}}})
    assert (one.private, one.others) == (5, 0)
    assert found.epsilon == pytest.approx(one.epsilon, rel=0.01)


def test_shadow_models_count_as_trainings(tmp_path):
    shadow = {**USERS, "defense": ULS, "attack": {"shadow_models": 4}}
    _, _, found = judged(tmp_path, {"uls": shadow})
    assert found.private == 5 * (1 + 4)


def test_a_cell_that_cannot_be_planned_promises_nothing_and_stops_nothing(tmp_path):
    broken = {**USERS, "defense": {**ULS, "cohort": 40}}
    _, _, found = judged(tmp_path, {"uls": {**USERS, "defense": ULS}, "broken": broken})
    assert (found.private, found.others) == (5, 5)


@pytest.mark.parametrize(
    ("variants", "content", "covered"),
    [
        ({"none": APART, "uls": {**APART, "defense": ULS}}, {"decision": RULE}, True),
        ({"none": USERS, "uls": {**USERS, "defense": ULS}}, {"decision": RULE}, False),
        (
            {"none": APART, "uls": {**APART, "defense": ULS}},
            {"decision": {**RULE, "candidates": ["none", "uls"]}},
            False,
        ),
        ({"none": APART, "uls": {**APART, "defense": ULS}}, {}, False),
        (
            {"none": {**APART, **PUBLIC}, "uls": {**APART, **PUBLIC, "defense": ULS}},
            {"decision": RULE, "tune": {"over": {"none": {"finetune.epochs": [1, 2]}}}},
            False,
        ),
        (
            {"none": {**APART, **PUBLIC}, "uls": {**APART, **PUBLIC, "defense": ULS}},
            {"decision": RULE, "tune": {"over": {"uls": {"defense.group_size": [1, 2]}}}},
            True,
        ),
    ],
)
def test_the_choice_is_covered_only_if_all_that_is_read_is_private_and_audited_users_are_apart(
    tmp_path, variants, content, covered
):
    sweep, found, together = judged(tmp_path, variants, **content)
    assert found is covered
    notes = about_epsilon(sweep, found, together)
    assert (SweepNote.COVERED() in notes) is covered
    assert (SweepNote.NOT_COVERED() in notes) is (not covered and "decision" in content)
    composed_at = [note.values["adjacency"] for note in notes if note.states(SweepNote.COMPOSED)]
    assert composed_at == [Relation.ADD_REMOVE()] * len(composed_at)
