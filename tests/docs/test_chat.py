"""Shares that docs/chat.md states about adapters are those of its table."""

import re

from tests.docs.test_theory import ROOT


def _section():
    page = (ROOT / "docs" / "chat.md").read_text(encoding="utf-8")
    return page.partition("## Cost of privacy: adapters")[2].partition("\n## ")[0]


def _gains(section):
    (row,) = (line for line in section.splitlines() if line.startswith("| gain"))
    return [float(cell.split()[0]) for cell in row.strip("| ").split("|")[1:]]


def _fits(percent, gain, whole, digits=0.005):
    """Whether gains that round to these numbers can have this share."""
    return (gain - digits) / (whole + digits) <= (percent + 0.5) / 100 and (percent - 0.5) / 100 <= (gain + digits) / (
        whole - digits
    )


def test_shares_of_the_gain_are_those_of_the_table():
    section = _section()
    whole, capped, *private = _gains(section)
    kept, most = (int(share) for share in re.findall(r"(\d+) %", section.partition("Plain training leaks")[2]))
    assert _fits(kept, capped, whole)
    assert _fits(most, max(private), whole)


def test_another_share_is_noticed():
    whole, capped, *private = _gains(_section())
    assert not _fits(65, capped, whole)
    assert not any(_fits(percent, max(private), whole) for percent in (9, 16))
