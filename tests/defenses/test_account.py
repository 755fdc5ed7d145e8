"""The numbers of `heldin account`, one function per method."""

import json
import math
import re
from fractions import Fraction

import numpy as np
import pytest

from heldin.defenses.accounting.account import (
    account_els,
    account_example,
    account_group,
    account_plan,
    account_table,
    account_uls,
)
from heldin.defenses.choices import NoClip
from heldin.defenses.samplers import ShuffledSampler
from heldin.words.guarantee import DeltaText, GuaranteeText, NoGuaranteeReason, PromiseCaution
from tests.made_facts import private_plan
from tests.refusals import refused
from tests.statements import states, values_of
from tests.theory_tables import numbers

COMMON = {"steps": 1000, "delta": 1e-6}
(CEILING,) = (row for row in numbers("table-of-attacker-ceilings") if row[:5] == (0.92826, 16 / 1024, 1, 1000, 4))
(ELS,) = (row for row in numbers("table-of-exact-epsilons") if row[:2] == (2.0, 8))


@pytest.fixture(autouse=True)
def _private_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("HELDIN_CACHE_DIR", str(tmp_path))


def test_uls_example_of_the_issue():
    row = account_uls(users=1024, cohort=16, target_epsilon=4.0, **COMMON)
    assert row.unit == "user"
    assert row.noise_multiplier == pytest.approx(CEILING[0], rel=1e-3)
    assert row.epsilon == pytest.approx(4.0, rel=1e-3)
    assert row.epsilon <= 4.0
    assert row.auroc_bound == pytest.approx(CEILING[5], abs=1e-3)
    assert row.tpr_at_1pct_fpr_bound == pytest.approx(CEILING[8], abs=1e-3)
    keys = ("unit", "noise_multiplier", "epsilon", "delta", "auroc_bound", "tpr_at_1pct_fpr_bound")
    assert set(keys) <= set(json.loads(json.dumps(row.as_dict())))


def test_els_example_of_the_issue():
    row = account_els(group_size=8, sampling_rate=0.01, steps=2000, delta=1e-6, noise_multiplier=2.0)
    assert row.epsilon == pytest.approx(ELS[2], rel=1e-3)
    assert 0.9 < row.auroc_bound < 1
    group = account_group(group_size=8, sampling_rate=0.01, steps=2000, delta=1e-6, noise_multiplier=2.0)
    assert group.method == "group"
    assert group.epsilon == row.epsilon


def test_delta_that_is_not_given_follows_from_the_number_of_protected_units():
    common = {"steps": 10, "noise_multiplier": 2.0}
    users = account_uls(users=1000, cohort=10, **common)
    assert users.delta == pytest.approx(1000**-1.1)
    assert str(users.delta_rule) in account_table(users)
    # ELS samples records and protects users.
    assert account_els(group_size=4, examples=4000, batch=10, users=1000, **common).delta == users.delta
    assert account_example(examples=4000, batch=10, **common).delta == pytest.approx(4000**-1.1)
    over = account_uls(users=1000, cohort=10, delta="examples^-1.1", examples=4000, **common)
    assert over.delta == pytest.approx(4000**-1.1)
    assert values_of(over.delta_rule, DeltaText.OVER_EXAMPLES) == {"number": 4000}
    assert account_uls(users=1000, cohort=10, delta=1e-4, **common).delta_rule is None
    # How many users 4,000 records are of is not known, and of a rate nothing is.
    for missing in ({"group_size": 4, "examples": 4000, "batch": 10}, {"group_size": 4, "sampling_rate": 0.1}):
        with refused(by="settled_delta"):
            account_els(**missing, **common)
    with refused(by="require_number", naming="users^-1"):
        account_uls(users=1000, cohort=10, delta="users^-1", **common)


def test_numbers_of_other_libraries_count_as_python_s_own():
    plain = account_uls(users=1024, cohort=16, noise_multiplier=1.0, **COMMON)
    steps, cohort = np.int64(COMMON["steps"]), Fraction(16)
    same = account_uls(
        users=np.int32(1024), cohort=cohort, noise_multiplier=np.float32(1), **{**COMMON, "steps": steps}
    )
    assert same == plain
    with refused(by="require_number", naming=("users", "3.5")):
        account_uls(users=3.5, cohort=1, noise_multiplier=1.0, **COMMON)
    with refused(by="require_number", naming="cohort"):
        account_uls(users=3, cohort=np.ones(2), noise_multiplier=1.0, **COMMON)
    with refused(by="call", naming=("account_uls()", "'lot'"), kind=TypeError):
        account_uls(lot=1)


def test_of_whole_users_no_group_is_told():
    plan = private_plan()
    assert (account_plan(plan).group_size, account_plan(private_plan(sampled="example", group_size=4)).group_size) == (
        None,
        4,
    )
    for row in (account_plan(plan), account_uls(users=100, cohort=10, noise_multiplier=1.0, **COMMON)):
        assert "group" not in account_table(row)
    assert re.search("group size +4\n", account_table(account_plan(private_plan(sampled="example", group_size=4))))


def test_example_says_nothing_about_a_user_without_a_group():
    row = account_example(examples=1024, batch=16, noise_multiplier=0.92826, **COMMON)
    assert (row.unit, row.auroc_bound, row.tpr_at_1pct_fpr_bound) == ("example", None, None)
    assert row.epsilon == pytest.approx(4.0, rel=1e-3)
    grouped = account_example(examples=1024, batch=16, noise_multiplier=0.92826, group_size=4, **COMMON)
    assert grouped.epsilon == row.epsilon
    assert grouped.auroc_bound > account_uls(users=1024, cohort=16, noise_multiplier=0.92826, **COMMON).auroc_bound


def test_cap_and_warning():
    row = account_uls(users=1024, cohort=16, cap=32, noise_multiplier=0.9283, **COMMON)
    assert row.epsilon == pytest.approx(5.67, rel=2e-3)
    (warning,) = account_uls(users=100, cohort=1, noise_multiplier=5.0, steps=10, delta=0.05).warnings
    assert values_of(warning, PromiseCaution.LARGE_DELTA)["units"] == 100
    of_examples = account_els(group_size=4, examples=100, batch=10, noise_multiplier=5.0, steps=10, delta=0.05)
    assert values_of(of_examples.warnings[0], PromiseCaution.LARGE_DELTA)["units"] == 25
    silent = account_uls(sampling_rate=0.1, noise_multiplier=0.0, **COMMON)
    assert silent.epsilon == math.inf
    assert silent.warnings == (PromiseCaution.NO_NOISE(),)


@pytest.mark.parametrize(
    ("call", "by", "naming"),
    [
        (
            lambda: account_uls(users=10, cohort=11, noise_multiplier=1.0, **COMMON),
            "_rate",
            ("cohort", "11", "10", "users"),
        ),
        (lambda: account_uls(users=10, noise_multiplier=1.0, **COMMON), "_rate", ("users", "cohort")),
        (
            lambda: account_uls(users=10, cohort=1, sampling_rate=0.1, noise_multiplier=1.0, **COMMON),
            "_rate",
            ("cohort", "users"),
        ),
        (lambda: account_uls(users=10, cohort=1, **COMMON), "_with_noise", ()),
        (lambda: account_uls(sampling_rate=0.1, cap=5, noise_multiplier=1.0, **COMMON), account_uls, ()),
        (lambda: account_els(group_size=0, sampling_rate=0.1, noise_multiplier=1.0, **COMMON), "check_count", "0"),
        (lambda: account_example(sampling_rate=0.1, group_size=0, noise_multiplier=1.0, **COMMON), "check_count", "0"),
        (lambda: account_uls(sampling_rate=0.1, noise_multiplier=-1.0, **COMMON), "check_noise", "-1.0"),
        (lambda: account_uls(sampling_rate=0.1, noise_multiplier=1.0, steps=10, delta=1e-13), "check_delta", "1e-11"),
    ],
)
def test_bad_input(call, by, naming):
    with refused(by=by, naming=naming):
        call()


def test_plan_rows():
    direct = account_uls(users=1024, cohort=16, noise_multiplier=0.92826, **COMMON)
    row = account_plan(private_plan())
    assert (row.epsilon, row.auroc_bound, row.method) == (direct.epsilon, direct.auroc_bound, "uls")
    assert values_of(row.label, GuaranteeText.EPSILON)["epsilon"] == row.epsilon
    assert account_plan(private_plan(sampled="example", group_size=4)).method == "els"
    example = account_plan(private_plan(unit="example", sampled="example"))
    assert (example.method, example.auroc_bound) == ("example", None)


def test_plan_rows_without_a_guarantee():
    shuffled = account_plan(private_plan(sampler=ShuffledSampler(population=1024, cohort=16), adjacency="zero_out"))
    assert shuffled.epsilon == math.inf
    assert shuffled.heading() == str(shuffled.label)
    assert states(shuffled.label, GuaranteeText.ASSUMED, NoGuaranteeReason.SHUFFLED)
    assert shuffled.assumed_epsilon == pytest.approx(4.0, rel=1e-3)
    assert shuffled.auroc_bound == pytest.approx(0.9988, abs=1e-3)
    void = account_plan(private_plan(clip=NoClip()))
    assert (void.epsilon, void.auroc_bound, void.tpr_at_1pct_fpr_bound) == (math.inf, 1.0, 1.0)
    none = account_plan(private_plan(unit="none", delta=None))
    assert (none.method, none.delta, none.epsilon) == ("none", None, math.inf)
