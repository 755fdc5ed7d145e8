"""Statements: codes are unique, every sentence can be rendered, and documents get back what they wrote."""

import math
import string
from collections import Counter

import pytest

from heldin.words.evidence import ClaimLabel, Finding, Flaw, delta_of
from heldin.words.guarantee import GuaranteeText, ModelText
from heldin.words.statement import Statement, all_codes, code_named, joined
from tests.refusals import refused

CODES = [code for code in all_codes() if type(code).__module__.startswith("heldin.")]


def test_no_code_has_two_sentences():
    assert [code for code, count in Counter(code.code for code in CODES).items() if count > 1] == []


@pytest.mark.parametrize("code", CODES, ids=lambda code: code.code)
def test_every_sentence_is_rendered_from_numbers_and_names(code):
    fields = [(name, spec) for _, name, spec, _ in string.Formatter().parse(code.sentence) if name]
    values = {name: 3 if spec == "," else 0.25 if spec else "somebody" for name, spec in fields if "." not in name}
    rendered = str(code(**values, audited="users"))
    assert "{" not in rendered
    # Without a number, and where it is infinite, the sentence has a gap and no error.
    assert str(code(**dict.fromkeys(values), audited="users")) or code is ModelText.NAMED  # nothing but the name
    assert str(code(**dict.fromkeys(values, math.inf), audited="canaries"))


def test_a_document_returns_statements_within_statements():
    claim = ClaimLabel.STATED(epsilon=4.0, delta=1e-6)
    finding = Finding.IF_CONDITIONS_HELD(flaws=[Flaw.SPLIT_FIXED(), Flaw.COINS_ASSERTED()], finding=claim)
    again = Statement.model_validate_json(finding.model_dump_json())
    assert again == finding
    assert len({again, finding}) == 1
    assert again.values["flaws"][0].states(Flaw.SPLIT_FIXED)
    assert str(again).startswith(f"{Flaw.SPLIT_FIXED()}; {Flaw.COINS_ASSERTED()}; ")
    infinite = GuaranteeText.OF_RECORDS(epsilon=math.inf, exposed=2)
    assert Statement.model_validate_json(infinite.model_dump_json()) == infinite
    assert joined([]) == ""


def test_the_delta_of_a_claim_is_found_within_it():
    stated = ClaimLabel.STATED(epsilon=4.0, delta=1e-6)
    assert delta_of(ClaimLabel.OF_EXAMPLES(claim=ClaimLabel.PER_EXAMPLE(claim=stated), examples=3)) == 1e-6
    assert delta_of(ClaimLabel.NONE()) is None


def test_an_unknown_code_is_one_line():
    with refused(by=code_named, naming="nothing of this version"):
        str(Statement(code="nothing of this version"))
