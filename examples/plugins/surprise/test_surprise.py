from heldin_surprise import Surprise

from heldin.testing import check_attack


def test_it_does_what_every_attack_must():
    check_attack(Surprise)
