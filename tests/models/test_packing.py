"""In our passes transformers does not ask whether texts are packed; everybody else's packed texts it sees as before."""

import threading

import torch
from transformers import masking_utils

from heldin.models.attention import unpacked
from tests.tiny_models import new_model


def _told_apart(model):
    """Whether the second of two texts in one row is predicted as if it were alone."""
    ids, positions = torch.tensor([[5, 6, 7, 8, 9]]), torch.tensor([[0, 1, 2, 0, 1]])
    with torch.no_grad():
        both = model(input_ids=ids, position_ids=positions, use_cache=False).logits[0, 3:]
        alone = model(input_ids=ids[:, 3:], use_cache=False).logits[0]
    return torch.allclose(both, alone, atol=1e-5)


def test_packed_texts_are_told_apart_but_in_our_passes():
    model, seen = new_model("gpt-neo").eval(), {}
    assert _told_apart(model)
    with unpacked():
        seen["here"] = _told_apart(model)
        other = threading.Thread(target=lambda: seen.update(there=_told_apart(model)))
        other.start()
        other.join()
    assert seen == {"here": False, "there": True}
    assert _told_apart(model)


def test_what_is_not_packed_is_the_same_with_and_without(monkeypatch):
    model, ids = new_model("gpt-neo").eval(), torch.tensor([[5, 6, 7, 8, 9]])
    with torch.no_grad():
        asked = model(input_ids=ids, use_cache=False).logits
        with unpacked():
            assert torch.equal(model(input_ids=ids, use_cache=False).logits, asked)
    calls = []
    asks = masking_utils.find_packed_sequence_indices
    monkeypatch.setattr(masking_utils, "find_packed_sequence_indices", lambda *a: calls.append(a) or asks(*a))
    with torch.no_grad(), unpacked():
        assert torch.equal(model(input_ids=ids, use_cache=False).logits, asked)
    assert len(calls) == 1
