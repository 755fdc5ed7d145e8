"""The published ladder of users: shares, the smallest rungs, the page that prints it, and `heldin choose`."""

import json
import re
from pathlib import Path

import pytest

from heldin.audit.users_ladder import PLAIN, Trained, kept, least_users, read_ladder
from replication.users import ladder_table, shares_table, write_ladder
from replication.users_ways import read_ways, ways_table
from tests.refusals import names

PAGE = Path(__file__).resolve().parents[2] / "docs" / "users.md"


def trained(users, training, epsilon, gains):
    return Trained(
        users=users, training=training, epsilon=epsilon, noise_multiplier=1.0, gains=gains, aurocs=(0.6, 0.62, 0.58)
    )


LADDER = (
    trained(1000, PLAIN, None, (1.0, 2.0, 4.0)),
    trained(1000, "uls", 8.0, (0.2, 0.42, 0.8)),
    trained(4000, PLAIN, None, (1.0, 2.0, 4.0)),
    trained(4000, "uls", 8.0, (0.5, 1.1, 2.2)),
    trained(16000, PLAIN, None, (1.0, 2.0, 4.0)),
    trained(16000, "uls", 8.0, (0.6, 1.22, 2.4)),
)


def test_a_share_is_of_the_plain_gain_of_the_same_block():
    shares = [row.share for row in kept(LADDER)]
    assert [share.value for share in shares] == [0.203, 0.533, 0.603]
    # Student's t with 2 degrees of freedom: 4.303 standard errors of 0.5, 0.55 and 0.55.
    assert shares[1].lower == pytest.approx(0.533 - 4.303 * 0.0289 / 3**0.5, abs=1e-3)


def test_a_rung_kept_a_share_if_its_lower_limit_does():
    """4,000 users kept 53 %, and the interval has less than half in it."""
    assert [(least.share, least.users, least.largest) for least in least_users(LADDER)] == [
        (0.5, 16000, 16000),
        (0.75, None, 16000),
    ]


def test_a_single_block_has_no_interval_and_keeps_nothing():
    one = (trained(1000, PLAIN, None, (1.0,)), trained(1000, "uls", 8.0, (0.9,)))
    assert {least.users for least in least_users(one)} == {None}


def test_what_is_written_is_read(tmp_path):
    write_ladder(LADDER, tmp_path / "ladder.yaml")
    assert read_ladder(tmp_path / "ladder.yaml") == LADDER


def test_the_page_prints_the_published_ladder():
    page = PAGE.read_text(encoding="utf-8")
    assert shares_table(read_ladder()) in page
    assert ladder_table(read_ladder()) in page


@pytest.mark.parametrize("page", ["docs/users.md", "docs/defenses.md", "CHANGELOG.md"])
def test_shares_in_prose_are_those_of_the_tables(page):
    tables = f"{shares_table(read_ladder())} {ways_table(read_ways())}"
    shares = set(re.findall(r"(-?\d+) %", tables))
    text = (PAGE.parents[1] / page).read_text(encoding="utf-8")
    parts = [part for part in re.split(r"\n(?=\n|[-#])", text) if "kept" in part and "|" not in part]
    about = [part for part in parts if page == "docs/users.md" or "made-up" in part]
    quoted = {share for part in about for share in re.findall(r"(\d+) %", part)}
    assert {"52", "38"} <= quoted
    assert quoted <= shares | {"95"}  # the level of the intervals


def test_every_rung_has_plain_training_and_every_training_all_blocks():
    ladder = read_ladder()
    assert {row.users for row in ladder} == {row.users for row in ladder if row.training == PLAIN}
    assert {len(row.gains) for row in ladder} == {len(row.aurocs) for row in ladder} == {3}


def test_choose_prints_the_smallest_rungs(call):
    arguments = ["choose", "--users", 200, "--budget", 4, "--steps", 5, "--target-epsilon", 8]
    code, out, err = call(*arguments)
    assert code == 0, err
    least = least_users(read_ladder())
    users = r"(?:no rung up to [\d,]+|([\d,]+)) users"
    line = rf"^  (50|75) %: {users} with (uls|banded)(?: \((?:Adam|momentum)\))? at epsilon (\d+)$"
    printed = re.findall(line, out, re.M)
    assert [(int(share) / 100, training, float(epsilon)) for share, _, training, epsilon in printed] == [
        (rung.share, rung.training, rung.epsilon) for rung in least
    ]
    assert [int(users.replace(",", "")) if users else None for _, users, *_ in printed] == [
        rung.users for rung in least
    ]
    assert names(out, "docs/users.md", "made-up users")
    code, out, _ = call(*arguments, "--json")
    assert [rung["users"] for rung in json.loads(out)["made_up_users"]] == [rung.users for rung in least]
