"""Numbers as arguments: a number that is too large is to be lowered, and a number that is too small is to be raised."""

import pytest

from heldin.base.arguments import require_within
from heldin.base.section import LARGEST, MOST
from tests.refusals import refused


@pytest.mark.parametrize("most", [MOST, LARGEST])
def test_the_remedy_points_towards_zero(most):
    for sign, remedy in ((1, "lower delta"), (-1, "raise delta")):
        require_within("delta", sign * most)
        with refused(by=require_within, naming=(remedy,)):
            require_within("delta", sign * most * 10)
