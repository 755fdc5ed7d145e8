from heldin_first_choice import FirstChoice

from heldin.testing.measures import check_measure


def test_it_does_what_every_measure_must():
    check_measure(FirstChoice(), "first_choice")
