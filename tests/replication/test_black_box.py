"""Black-box group privacy, against the table of exact epsilons in docs/theory.md."""

import math

import pytest

from heldin.defenses.accounting.events import PoissonGaussian
from heldin.defenses.accounting.guarantees import delta_of, epsilon
from replication.black_box import black_box_epsilon
from tests.refusals import refused
from tests.theory_tables import numbers

T, RATE, DELTA = 2000, 0.01, 1e-6

# sigma, G: epsilon of black-box group privacy and the delta that it needs, to base 10
BLACK_BOX = {(s, int(g)): (box, needed) for s, g, _, _, box, needed in numbers("table-of-exact-epsilons")}


@pytest.mark.parametrize(("sigma", "group"), [key for key, (_, needed) in BLACK_BOX.items() if needed > -12])
def test_black_box_where_it_converges(sigma, group):
    exact = BLACK_BOX[sigma, group][0]
    found = black_box_epsilon(PoissonGaussian(sigma, RATE), group, T, DELTA)
    assert exact * (1 - 1e-5) <= found <= exact * 1.002
    assert found >= epsilon(PoissonGaussian(sigma, RATE, group), T, DELTA)


@pytest.mark.parametrize(("sigma", "group"), [key for key, (_, needed) in BLACK_BOX.items() if not needed > -13])
def test_black_box_diverges_to_infinity(sigma, group):
    assert black_box_epsilon(PoissonGaussian(sigma, RATE), group, T, DELTA) == math.inf


def test_black_box_is_the_vadhan_conversion():
    event, group = PoissonGaussian(2.0, RATE), 4
    single = black_box_epsilon(event, group, T, DELTA) / group
    assert delta_of(event, T, single) * math.expm1(group * single) / math.expm1(single) == pytest.approx(
        DELTA, rel=5e-3
    )


def test_black_box_edges():
    assert black_box_epsilon(PoissonGaussian(0.0, 0.1), 3, 5, 1e-6) == math.inf
    assert black_box_epsilon(PoissonGaussian(1e4, 1e-3), 3, 5, 1e-3) == 0.0
    with refused(by=black_box_epsilon):
        black_box_epsilon(PoissonGaussian(1.0, 0.1, 2), 3, 5, 1e-6)
