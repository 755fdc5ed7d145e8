"""The curves of training: what a text without a finite log-probability does to plain and to private training."""

import dataclasses

import pytest
import torch

from heldin.base.errors import ResumableError
from heldin.record.facts import CurvePoint
from heldin.stages.train.validation import CurveEvaluation, CurveTexts, gap_auroc_correlation
from tests.documents import by_user, documents
from tests.refusals import refused

SICK = "The river opens the letter on day 9."
IN, OUT = by_user({"ann": ["The story counts the market.", SICK]}), by_user({"bob": ["The market opens the letter."]})


def _texts(**changes):
    texts = {"held_in_validation": ["The river counts."], "held_out_validation": ["The letter opens."]}
    texts = {name: documents(of) for name, of in {**texts, "public_validation": ["The story opens."]}.items()}
    texts |= {"held_in_attack": IN, "held_out_attack": OUT}
    return CurveTexts(**{**texts, **changes})


def _overflowing(lm):
    """The model with finite weights that overflow on the one token that only the sick text has."""
    model = lm.model
    (token,) = set(lm.tokenizer(SICK)["input_ids"]) - set(lm.tokenizer(SICK.replace("9", "8"))["input_ids"])
    model.config.tie_word_embeddings = False
    model.lm_head.weight = torch.nn.Parameter(model.transformer.wte.weight.detach().clone())
    with torch.no_grad():
        model.transformer.wte.weight[token] = 3e38
    return model


def test_it_says_nothing_about_a_private_run_and_stops_a_plain_one(make_lm):
    base, model = make_lm(), _overflowing(make_lm(1))
    without = _texts(held_in_attack={"ann": IN["ann"][:1]})
    expected = CurveEvaluation(without, base, private=False)(3, model)
    assert CurveEvaluation(_texts(), base, private=True)(3, model) == pytest.approx(expected)
    with refused(by="score_texts"):
        CurveEvaluation(_texts(), base, private=False)(3, model)


def test_a_base_model_that_overflows_names_nobody_in_a_private_run(make_lm):
    base = make_lm()
    sick = dataclasses.replace(base, model=_overflowing(make_lm()))
    without = _texts(held_in_attack={"ann": IN["ann"][:1]})
    expected = CurveEvaluation(without, base, private=True)(3, make_lm(1).model)
    assert CurveEvaluation(_texts(), sick, private=True)(3, make_lm(1).model) == pytest.approx(expected)


@pytest.mark.parametrize(
    "changed", [{"held_in_attack": by_user({"ann": [SICK]})}, {"held_out_validation": documents([SICK])}]
)
def test_a_side_of_which_nothing_is_finite_stops_a_private_run_without_naming_anybody(make_lm, changed):
    with refused(naming="step 3", kind=ResumableError):
        CurveEvaluation(_texts(**changed), make_lm(), private=True)(3, _overflowing(make_lm(1)))


def test_a_side_without_validation_texts_has_no_loss(make_lm):
    """As audited entities may, of whom no record was set aside."""
    point = CurveEvaluation(_texts(held_in_validation=[]), make_lm(), private=False)(3, make_lm(1).model)
    assert set(point) == {"held_out_loss", "auroc", "public_loss"}
    whole = CurveEvaluation(_texts(), make_lm(), private=False)(3, make_lm(1).model)
    assert {name: whole[name] for name in point} == pytest.approx(point)
    history = [{"auroc": 0.1 * i, "held_in_loss": 2.0 - i, "held_out_loss": 2.0} for i in range(4)]
    assert gap_auroc_correlation(history) == pytest.approx(1.0)
    assert gap_auroc_correlation([{**its, **point} for its in history[:1]] + [{"auroc": 0.5}] * 3) is None
    assert CurvePoint(step=1, epoch=1.0, train_loss=1.0, auroc=0.5, held_out_loss=2.0).held_in_loss is None
