"""Claims to be tested, as people write them."""

from heldin.base.arguments import number_in
from heldin.base.errors import InputError
from heldin.bounds import verdict
from heldin.bounds.verdict import Claim


def parse_claim(text: str) -> Claim:
    """The claim that "epsilon=4,delta=1e-6" states. Raises InputError for any other form."""
    parts = [part.split("=", 1) for part in text.split(",")]
    fields = {pair[0].strip(): pair[1].strip() for pair in parts if len(pair) == 2}
    if [*fields] == ["epsilon"] and len(parts) == 1:
        raise InputError(f"claim '{text}' names no delta: add one, such as delta=1e-6")
    # A name given twice is one field of the dictionary, which the number of parts shows.
    if sorted(fields) != ["delta", "epsilon"] or len(parts) != 2:
        why = "; a unit is stated with heldin audit --planted alone" if "unit" in fields else ""
        raise InputError(f"claim '{text}' is not of the form epsilon=4,delta=1e-6{why}")
    try:
        epsilon, delta = number_in(fields["epsilon"]), number_in(fields["delta"])
    except ValueError:
        raise InputError(f"claim '{text}': epsilon and delta must be numbers, as epsilon=4,delta=1e-6") from None
    return verdict.stated_claim(epsilon, delta)
