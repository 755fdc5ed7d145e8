"""All planted bugs, in the order of the table."""

from tests.planted_bugs.bugs import FIRST_SUITE, NAMED_IN_A1
from tests.planted_bugs.further_draws import DRAWS
from tests.planted_bugs.further_noise import DATA, NOISE, REGULAR
from tests.planted_bugs.further_states import RANKS, STATES, WEIGHTS
from tests.planted_bugs.further_texts import TEXTS

FURTHER = (*DRAWS, *NOISE, *REGULAR, *DATA, *TEXTS, *STATES, *WEIGHTS, *RANKS)
BUGS = (*FIRST_SUITE, *NAMED_IN_A1, *FURTHER)
