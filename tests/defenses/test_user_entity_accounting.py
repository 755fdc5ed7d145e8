"""Text sampling, two-level sampling and the paper's claims, against docs/theory.md and slower accountants."""

import json
import math
import shlex

import numpy as np
import pytest
from scipy import special, stats
from typer.testing import CliRunner

from heldin.base.errors import InputError
from heldin.commands.cli import app
from heldin.defenses.accounting.events import PoissonGaussian, TwoLevelGaussian
from heldin.defenses.accounting.exposure_curve import account_user_entity
from heldin.defenses.accounting.guarantees import epsilon, missed_epsilon, moments_epsilon, sensitive_epsilon
from heldin.defenses.accounting.uedp_claims import account_uedp
from tests.oracles import contour_accountant
from tests.refusals import names, refused
from tests.theory_tables import numbers

RATE, DELTA = 50 / 946, 1e-5


@pytest.fixture(autouse=True)
def _private_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("HELDIN_CACHE_DIR", str(tmp_path))


@pytest.mark.parametrize(("z", "steps", "m", "exact"), numbers("table-of-exposed-texts"))
def test_text_sampling_is_exact_and_never_below(z, steps, m, exact):
    (point,) = account_user_entity(
        sampling_rate=RATE, steps=int(steps), delta=DELTA, noise_multiplier=z, exposed=[int(m)]
    ).curve
    assert exact - 5e-6 <= point.epsilon <= 1.002 * exact
    wrong = account_user_entity(
        sampling_rate=RATE, steps=int(steps), delta=DELTA, noise_multiplier=z * 1.5, exposed=[int(m)]
    )
    assert wrong.curve[0].epsilon < exact - 5e-6, "noise x 3/2 is rejected"


@pytest.mark.parametrize(("cap", "noise"), numbers("table-of-caps"))
def test_noise_is_calibrated_to_user_and_entity_together(cap, noise):
    found = account_user_entity(
        sampling_rate=RATE, steps=500, delta=DELTA, target_epsilon=4.0, group_size=16, entity_cap=int(cap)
    )
    assert found.noise_multiplier == pytest.approx(noise, rel=1e-3)
    assert 3.99 < found.epsilon_pair <= 4.0
    curve = {point.exposed: point.epsilon for point in found.curve}
    assert (found.epsilon_user, found.epsilon_entity) == (curve[16], curve[int(cap)])


@pytest.mark.parametrize(("steps", "z", "entity_rate", "c", "holders", "exact"), numbers("table-of-two-level-epsilons"))
def test_two_level_epsilon_is_exact_and_never_below(steps, z, entity_rate, c, holders, exact):
    event = TwoLevelGaussian(z, RATE, entity_rate, int(holders), c)
    assert exact - 2e-6 <= epsilon(event, int(steps), DELTA) <= 1.002 * exact
    assert epsilon(TwoLevelGaussian(1.5 * z, RATE, entity_rate, int(holders), c), int(steps), DELTA) < 0.95 * exact


@pytest.mark.parametrize("direction", ["remove", "add"])
def test_two_level_table_is_what_the_contour_integral_gives(direction):
    found = contour_accountant.epsilon(
        *contour_accountant.two_level(2.0, RATE, 0.5, 4, 0.125, points=2_000), 50, DELTA, direction, (0.5, 1.3)
    )
    table = {row[:5]: row[5] for row in numbers("table-of-two-level-epsilons")}
    exact = table[50, 2, 0.5, 0.125, 4]
    assert found == pytest.approx(exact, abs=2e-6) if direction == "remove" else found < exact


@pytest.mark.parametrize(("z", "c", "holders", "steps"), [(2.0, 2.0, 4, 50), (8.0, 2.0, 4, 50), (2.0, 2.0, 2, 20)])
def test_two_level_epsilon_against_the_exact_delta_where_losses_jump(z, c, holders, steps):
    ours = epsilon(TwoLevelGaussian(z, RATE, 0.5, holders, c), steps, DELTA)
    density = contour_accountant.two_level(z, RATE, 0.5, holders, c, points=1_500)
    found = contour_accountant.deltas(*density, steps, [0.999 * ours, ours], "remove")
    assert found is not None
    assert found[1] <= DELTA < found[0], "never below the exact epsilon, and at most 0.1 % above"


def test_two_level_sampling_has_the_guarantees_that_it_contains():
    users = epsilon(PoissonGaussian(2.0, RATE), 50, DELTA)
    assert epsilon(TwoLevelGaussian(2.0, RATE, 0.5, 0), 50, DELTA) == pytest.approx(users, rel=1e-6)
    event = TwoLevelGaussian(102.0, RATE, 0.5, 29)
    spent = [sensitive_epsilon(event, 50, DELTA, rule) for rule in ("all", "any")]
    assert spent[0] < 0.519 < spent[1], "with rule all the paper's claim holds for 29 holders"
    assert missed_epsilon(event, 50, DELTA) == epsilon(TwoLevelGaussian(102.0, RATE, 1.0, 1), 50, DELTA)
    user = epsilon(PoissonGaussian(102.0, RATE), 50, DELTA)
    assert user < missed_epsilon(event, 50, DELTA), "a user and a name are more than a user"
    # more of anything that tells costs more
    worse = [TwoLevelGaussian(102.0, RATE, 0.5, 30), TwoLevelGaussian(102.0, RATE, 0.6, 29)]
    assert all(epsilon(other, 50, DELTA) > spent[0] for other in worse)


def test_the_whole_of_the_counterexample_stays_below_the_strict_bound_and_breaks_the_claim():
    """The sum is -N or, with probability q_e, +N: exact for T = 1 by the densities themselves."""
    x, step = np.linspace(-1200.0, 1200.0, 200_001, retstep=True)
    chances = stats.binom.pmf(range(947), 946, RATE)
    without = np.zeros_like(x)
    entity = np.zeros_like(x)
    for n, chance in enumerate(chances):
        if chance > 1e-18:
            down, up = (stats.norm.pdf(x, sign * n, 102.0) for sign in (-1, 1))
            without += chance * down
            entity += chance * 0.5 * (down + up)

    def delta(e):
        pairs = ((entity, without), (without, entity))
        return max(float(np.maximum(p - math.exp(e) * q, 0.0).sum() * step) for p, q in pairs)

    claim = moments_epsilon(2.0, RATE * 0.5 * 11_176 / 14_040, 1, DELTA)
    assert claim == pytest.approx(0.389, abs=1e-3)
    assert delta(claim) == pytest.approx(0.0940, abs=2e-4)
    assert delta(3.43) == pytest.approx(DELTA, rel=0.05)
    strict = sensitive_epsilon(TwoLevelGaussian(102.0, RATE, 0.5, 946), 1, DELTA, "all")
    assert delta(strict) <= DELTA


def test_moments_accountant_against_its_integral_and_above_the_exact_epsilon():
    z, steps = 2.0, 50
    x, step = np.linspace(-40.0, 120.0, 20_001, retstep=True)
    log_q = stats.norm.logpdf(x, 0.0, z) + math.log(step)
    ratio = np.logaddexp(math.log(1.0 - RATE), math.log(RATE) + x / z**2 - 0.5 / z**2)
    alphas = [float(special.logsumexp(log_q + (order + 1) * ratio)) for order in range(1, 65)]
    by_hand = min((steps * alpha - math.log(DELTA)) / order for order, alpha in enumerate(alphas, 1))
    assert moments_epsilon(z, RATE, steps, DELTA) == pytest.approx(by_hand, rel=1e-6)
    assert moments_epsilon(z, RATE, steps, DELTA) > epsilon(PoissonGaussian(z, RATE), steps, DELTA)
    assert moments_epsilon(0.0, RATE, steps, DELTA) == math.inf
    assert math.isfinite(moments_epsilon(2.0, 1.0, steps, DELTA))


COUNTED = {"sampling_rate": 0.01, "steps": 10, "delta": 1e-5}
PAPER = {"users": 946, "cohort": 50, "noise_multiplier": 2.0, "steps": 5, "delta": DELTA}


@pytest.mark.parametrize(
    ("given", "naming"),
    [
        ({**COUNTED, "noise_multiplier": 1.0, "group_size": 4}, ("--group-size", "--entity-cap")),
        ({**COUNTED, "noise_multiplier": 1.0, "target_epsilon": 1.0}, ("noise multiplier", "target epsilon")),
        ({**COUNTED, "target_epsilon": 1.0}, ("--group-size", "--entity-cap", "--exposed")),
        ({**COUNTED, "noise_multiplier": 1.0, "exposed": [0]}, ("exposed texts", "is 0")),
        ({**COUNTED, "noise_multiplier": 1.0, "sampling_rate": 1.5}, ("1.5", "(0, 1]")),
        ({**COUNTED, "noise_multiplier": 1.0, "group_size": 0, "entity_cap": 1}, ("group size", "is 0")),
        ({**COUNTED, "noise_multiplier": 1.0, "exposed": [10**12]}, "1,000,000"),
        ({**COUNTED, "noise_multiplier": 1e150}, "1e+09"),
        ({**COUNTED, "noise_multiplier": 1.0, "sampling_rate": 1e-300}, "1e-15"),
    ],
)
def test_wrong_settings_of_text_sampling(given, naming):
    with refused(naming=naming):
        account_user_entity(**given)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"cohort": 947}, "cohort 947 is outside (0, 946]"),
        ({"entity_rate": 0.0}, "entity rate 0.0 is outside (0, 1]"),
        ({"sensitive_share": 2.0}, "outside (0, 1]"),
        ({"holders": [0]}, "holders is 0"),
        ({"noise_multiplier": -1.0}, "noise multiplier -1.0"),
    ],
)
def test_wrong_settings_of_the_papers_algorithm(given, said):
    with pytest.raises(InputError) as error:
        account_uedp(**{**PAPER, **given})
    assert said in str(error.value)
    with pytest.raises(InputError):
        TwoLevelGaussian(1.0, 0.5, 0.5, 1, 2.5)


def said(*words):
    return CliRunner().invoke(app, ["account", *words])


@pytest.mark.slow
def test_commands_answer():
    words = shlex.split("user-entity --exposed 4,1 --sampling-rate 0.01 --steps 1000 --delta 1e-6 --noise-multiplier 8")
    curve = json.loads(said(*words, "--json").output)["curve"]
    assert [(row["exposed"], round(row["epsilon"], 4)) for row in curve] == [(1, 0.1490), (4, 0.6564)]
    assert "epsilon" in said(*words).output
    assert said(*words, "--csv").output.startswith("exposed,epsilon")
    paper = shlex.split(
        "uedp --users 946 --cohort 50 --steps 50 --delta 1e-5 --noise-multiplier 2 --holders 4,946"
        " --sensitive-share 0.796"
    )
    told = json.loads(said(*paper, "--json").output)
    assert told["strict"][1]["rule_all"] == pytest.approx(25.93, rel=5e-3)
    assert told["claimed"] == pytest.approx(0.519, abs=1e-3)
    assert "claimed epsilon 0.518" in said(*paper).output
    per_user = json.loads(said(*paper, "--json", "--noise-scale", "clip-norm").output)
    assert per_user["noise_on_sum"] == 2.0


@pytest.mark.parametrize(
    ("words", "naming"),
    [
        (
            "user-entity --sampling-rate 0.1 --steps 3 --delta 1e-5 --noise-multiplier 1 --exposed 1;2",
            ("--exposed", "1;2"),
        ),
        ("uedp --users 9 --cohort 3 --steps 2 --noise-scale none", ("--noise-scale", "none", "cohort", "clip-norm")),
    ],
)
def test_commands_refuse(words, naming):
    result = said(*words.split())
    assert result.exception is not None
    assert names(str(result.exception), *naming)
