"""The figure of runs side by side: whole with and without canary users, over a key, and no two runs drawn alike."""

from xml.etree import ElementTree

import pytest

from heldin.audit.results import CanaryGroup
from heldin.record.compare import compare
from heldin.record.document import read_record, write_record
from heldin.reports.comparison import STYLES, comparison_figure
from tests.made_facts import canary_facts


def test_no_two_of_eight_runs_are_drawn_alike():
    assert len({(style, colour) for _, style, colour in STYLES}) == len(STYLES) == 8


@pytest.mark.usefixtures("typeset")
def test_canary_users_have_a_panel_where_any_run_has_them(finished, tmp_path):
    plain = comparison_figure(compare([finished, finished], "finetune.learning_rate"))
    record = read_record(finished / "record.json")
    groups = [
        CanaryGroup(
            kind="substring", length=length, documents=None, held_in=5, held_out=5, auroc=record.primary().auroc
        )
        for length in (1, 10)
    ]
    facts = canary_facts(groups)
    write_record(record.model_copy(update={"canaries": facts}), tmp_path / "record.json")
    planted = comparison_figure(compare([finished, tmp_path]))
    assert ElementTree.fromstring(plain).tag.endswith("svg")
    assert len(planted) > len(plain)
