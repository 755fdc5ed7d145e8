"""Each statistic against its formula, computed another way."""

import math
import zlib

import numpy as np
import pytest

from heldin.attacks.statistics import LikelihoodRatio, Loss, MinKPlusPlus, PerToken, Zlib
from heldin.models.token_scores import TokenScores
from tests.refusals import refused

TEXT = "hello hello hello hello"


def _scores(values, means=None, deviations=None):
    arrays = [None if v is None else np.array(v, dtype=np.float32) for v in (values, means, deviations)]
    return TokenScores(*arrays)


def test_the_likelihood_ratio_is_a_difference_of_sums_or_of_means():
    target, reference = _scores([-1.0, -2.0]), _scores([-2.0, -2.0, -5.0])
    assert LikelihoodRatio("a").statistic(TEXT, target, reference) == pytest.approx(-3 + 9)
    assert PerToken("a").statistic(TEXT, target, reference) == pytest.approx(-1.5 + 3)


def test_the_loss_and_zlib():
    target = _scores([-1.0, -2.0])
    assert Loss("a").statistic(TEXT, target, None) == pytest.approx(-1.5)
    bits = 8 * len(zlib.compress(TEXT.encode()))
    assert Zlib("a").statistic(TEXT, target, None) == pytest.approx(-3.0 / bits)


def test_min_k_plus_plus_is_the_mean_of_the_lowest_z_scores():
    target = _scores([-1.0, -9.0, -3.0, -4.0, -2.0], means=[-2.0, -3.0, -3.0, -1.0, -2.0], deviations=[1, 2, 1, 3, 1])
    z = [(-1 + 2) / 1, (-9 + 3) / 2, (-3 + 3) / 1, (-4 + 1) / 3, (-2 + 2) / 1]
    assert MinKPlusPlus("a", 0.4).statistic(TEXT, target, None) == pytest.approx(sum(sorted(z)[:2]) / 2)
    assert MinKPlusPlus("a", 0.01).statistic(TEXT, target, None) == pytest.approx(min(z))
    assert MinKPlusPlus("a", 1.0).statistic(TEXT, target, None) == pytest.approx(math.fsum(z) / 5)
    with refused(by="MinKPlusPlus.__init__", naming=("min-k++", "(0, 1]")):
        MinKPlusPlus("a", 0)
