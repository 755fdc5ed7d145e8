"""Clip norms from public users: against plain autograd, and through the command line."""

import json
import statistics

import pytest
import torch

from heldin.finetune.gradient_norms import median_user_norm
from tests.documents import tokens
from tests.oracles.record_loss import record_loss
from tests.refusals import refused


def _norm(lm, records):
    lm.model.zero_grad()
    losses = [record_loss(lm.model, record) for record in records]
    (sum(losses) / len(losses)).backward()
    return float(sum(p.grad.double().square().sum() for p in lm.model.parameters())) ** 0.5


def test_the_median_norm_of_whole_users_is_that_of_plain_autograd(make_lm):
    generator = torch.Generator().manual_seed(5)
    users = {
        f"user{u}": tokens(torch.randint(5, 300, (9 + r,), generator=generator).tolist() for r in range(1 + u % 3))
        for u in range(7)
    }
    expected = statistics.median(_norm(make_lm(), records) for records in users.values())
    assert median_user_norm(make_lm(), users, 100) == pytest.approx(expected, rel=1e-3)
    assert median_user_norm(make_lm(), users, 1, seed=1) >= 0.9 * expected  # averaging cancels
    with refused(by=median_user_norm, naming="1"):
        median_user_norm(make_lm(), {}, 1)


def test_choose_estimates_from_public_texts(call, make_lm, english, tmp_path):
    lm = make_lm()
    lm.model.save_pretrained(tmp_path / "base")
    lm.tokenizer.save_pretrained(tmp_path / "base")
    rows = [{"user": f"u{i % 9}", "text": text} for i, text in enumerate(english[:45])]
    (tmp_path / "public.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows), encoding="utf-8")
    arguments = ["choose", "--users", 200, "--budget", 32, "--steps", 20, "--target-epsilon", 3, "--json"]
    code, out, err = call(*arguments, "--public-texts", tmp_path / "public.jsonl", "--model", tmp_path / "base")
    assert code == 0, err
    found = json.loads(out)
    assert found["clip_norms_estimated"]
    assert {o["method"] for o in found["options"]} == {"uls", "els", "banded"}
    norms = [o["clip_norm"] for o in found["options"] if o["method"] == "uls"]
    assert norms[0] > norms[-1] > 0
    code, _, err = call(*arguments, "--model", tmp_path / "base")
    assert code == 2
    assert "give both --public-texts and --model" in err
