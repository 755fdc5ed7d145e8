"""The curves of training: what a text without a finite log-probability does to plain and to private training."""

import dataclasses
import math

import pytest

from heldin.base.errors import ResumableError
from heldin.jobs.run import validation
from heldin.jobs.run.validation import CurveEvaluation, CurveTexts

SICK = "The river opens the letter on day 9."
IN, OUT = {"ann": ["The story counts the market.", SICK]}, {"bob": ["The market opens the letter."]}


def _evaluation(base, **changes):
    texts = {"held_in_validation": ["The river counts."], "held_out_validation": ["The letter opens."]}
    texts |= {"held_in_attack": IN, "held_out_attack": OUT, "public_validation": ["The story opens."], **changes}
    return CurveTexts(**texts), base


@pytest.fixture
def one_sick_text(monkeypatch):
    real = validation.score_texts

    def scores(lm, texts):
        found = real(lm, texts)
        sick = [text == SICK and lm.name.startswith("the model after") for text in texts]
        return [
            dataclasses.replace(its, logprobs=its.logprobs * math.nan) if is_sick else its
            for its, is_sick in zip(found, sick, strict=True)
        ]

    monkeypatch.setattr(validation, "score_texts", scores)


def test_it_says_nothing_about_a_private_run_and_stops_a_plain_one(make_lm, one_sick_text):
    texts, base = _evaluation(make_lm())
    model = make_lm(1).model
    without = dataclasses.replace(texts, held_in_attack={"ann": IN["ann"][:1]})
    expected = CurveEvaluation(without, base, private=False)(3, model)
    assert CurveEvaluation(texts, base, private=True)(3, model) == expected
    with pytest.raises(ResumableError, match=r"^the validation loss is not finite after step 3$"):
        CurveEvaluation(texts, base, private=False)(3, model)


@pytest.mark.parametrize("changed", [{"held_in_attack": {"ann": [SICK]}}, {"held_out_validation": [SICK]}])
def test_a_side_of_which_nothing_is_finite_stops_both_without_naming_anybody(make_lm, one_sick_text, changed):
    texts, base = _evaluation(make_lm(), **changed)
    for private in (True, False):
        with pytest.raises(ResumableError, match=r"^the validation loss is not finite after step 3$"):
            CurveEvaluation(texts, base, private=private)(3, make_lm(1).model)
