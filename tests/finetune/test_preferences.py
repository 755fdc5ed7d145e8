"""Preference pairs: losses and gradients of units are the oracle's, and mistakes with pairs are seen by it."""

import functools
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from heldin.corpus.chat.columns import answered_text
from heldin.corpus.document import Counting
from heldin.defenses.gradients.per_unit_gradients import clipped_gradient_sum
from heldin.finetune.batches import collate, encode, plain_batch_gradient
from heldin.finetune.holding import PlainClipping, clipped_batch_gradient
from heldin.finetune.loop import train
from heldin.finetune.passes import Passes, whole_units
from heldin.finetune.preferences import PreferenceRecords, preference_records
from heldin.finetune.preparation import with_adapters
from heldin.finetune.private import private_gradient
from heldin.finetune.recipe import Lora, Recipe, Select
from heldin.finetune.token_store import TokenStore, bearing_of, lengths_of, sequences_digest, token_store
from heldin.models.loading import LanguageModel
from heldin.models.preference import DirectPreference, OddsRatioPreference, preference_objective
from heldin.models.preference_name import PreferenceName
from heldin.models.tokens import Pair, Tokens
from tests.documents import documents
from tests.finetune.test_private import _gradients, _training
from tests.oracles import preference_loss
from tests.oracles.per_unit_gradients import clipped_sum, norm_of
from tests.refusals import refused
from tests.tiny_models import V, llama, new_model, worst_error

CPU = torch.device("cpu")
RECIPE = Recipe(epochs=1, batch_size=8, learning_rate=1e-3, select=Select.LAST, sequence_length=31)
OBJECTIVES = {
    "dpo": (DirectPreference(0.5), functools.partial(preference_loss.dpo, beta=0.5)),
    "smoothed": (DirectPreference(0.3, 0.2), functools.partial(preference_loss.dpo, beta=0.3, smoothing=0.2)),
    "orpo": (OddsRatioPreference(0.4), functools.partial(preference_loss.orpo, beta=0.4)),
}


def made_pairs(count, seed=0):
    """Pairs of a prompt of 3 tokens and answers of 2 to 9."""
    dice = np.random.default_rng(seed)
    found = []
    for _ in range(count):
        prompt = dice.integers(1, V, 3).tolist()
        answers = [dice.integers(1, V, dice.integers(2, 10)).tolist() for _ in range(2)]
        rows = [Tokens([0, *prompt, *own], np.array([False] * 4 + [True] * len(own))) for own in answers]
        found.append(Pair.of(*rows))
    return found


def as_the_oracle_reads(pair):
    return tuple(tuple(list(map(int, part)) for part in row.inputs_and_targets()) for row in pair.rows())


def records_of(model, pairs, objective):
    return preference_records(LanguageModel(model, None, "the base", "base"), pairs, objective, "fp32")


def two_models(make=new_model):
    return make(seed=0), make(seed=1)


@pytest.mark.parametrize("name", OBJECTIVES)
def test_losses_are_those_of_the_oracle(name):
    objective, slow = OBJECTIVES[name]
    base, model = two_models()
    records = records_of(base, made_pairs(12), objective)
    with torch.no_grad():
        found = collate(records, CPU).record_losses(model)
        alone = torch.cat([collate([record], CPU).record_losses(model) for record in records])
        expected = [float(slow(model, base, as_the_oracle_reads(pair))) for pair in made_pairs(12)]
    torch.testing.assert_close(found, torch.tensor(expected), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(found, alone, rtol=1e-4, atol=1e-5)


def test_a_model_that_is_its_own_reference_guesses():
    base = new_model()
    with torch.no_grad():
        found = collate(records_of(base, made_pairs(5), DirectPreference(2.0)), CPU).record_losses(base)
    torch.testing.assert_close(found, torch.full((5,), preference_loss.guess()), rtol=0, atol=1e-4)


@pytest.mark.parametrize("name", OBJECTIVES)
@pytest.mark.parametrize("engine", ["loop", "materialise", "ghost", "auto"])
def test_clipped_sums_of_units_are_those_of_the_oracle(name, engine):
    objective, slow = OBJECTIVES[name]
    base, model = two_models()
    records = list(records_of(base, made_pairs(14), objective))
    units = [records[:3], records[3:4], [], records[4:9], records[9:]]
    read = [[as_the_oracle_reads(pair) for pair in unit] for unit in units]
    oracle = preference_loss.unit_gradients(model, base, read, slow)
    bound = sorted(norm_of(gradients) for _, gradients in oracle)[-2] * 0.9
    expected, norms = clipped_sum(oracle, bound)
    for most in (None, 2, 1):
        if most is not None and engine != "auto":
            continue
        found = clipped_gradient_sum(model, whole_units(units), clip_norm=bound, engine=engine, most_records=most)
        assert worst_error(found.gradients, expected, norm_of(expected)) < 1e-4
        torch.testing.assert_close(found.norms.double(), torch.tensor(norms).double(), rtol=1e-4, atol=1e-7)
        torch.testing.assert_close(found.losses, torch.tensor([loss for loss, _ in oracle]).float(), rtol=1e-4, atol=0)


@pytest.mark.parametrize("lora", [Lora(rank=2), Lora(rank=2, dora=True)])
def test_gradients_of_adapters_are_those_of_the_oracle(lora):
    objective, slow = OBJECTIVES["dpo"]
    torch.manual_seed(2)
    base = llama()
    torch.manual_seed(3)
    model = with_adapters(llama(), replace(RECIPE, lora=lora))
    for name, parameter in model.named_parameters():
        if "lora_B" in name:  # zero at the start
            nn.init.normal_(parameter, std=0.1)
    records = list(records_of(base, made_pairs(6), objective))
    units = [records[:2], records[2:]]
    read = [[as_the_oracle_reads(pair) for pair in unit] for unit in units]
    oracle = preference_loss.unit_gradients(model, base, read, slow)
    bound = norm_of(oracle[0][1]) * 0.5
    expected, _ = clipped_sum(oracle, bound)
    found = clipped_gradient_sum(model, whole_units(units), clip_norm=bound)
    assert found.gradients.keys() == expected.keys()
    assert worst_error(found.gradients, expected, norm_of(expected)) < 1e-4


def test_a_plain_batch_has_the_mean_over_its_pairs():
    objective, slow = OBJECTIVES["dpo"]
    base, model = two_models()
    records = list(records_of(base, made_pairs(7), objective))
    ((loss, expected),) = preference_loss.unit_gradients(model, base, [[*map(as_the_oracle_reads, records)]], slow)
    for micro_batch in (1, 3, 7):
        found = plain_batch_gradient(model, records, micro_batch, "fp32")
        assert float(found) == pytest.approx(loss, abs=1e-5)
        assert worst_error(_gradients(model), expected, norm_of(expected)) < 1e-4
    mean, norms = clipped_batch_gradient(model, PlainClipping("example", 1e9), records, Passes(2))
    assert (mean, len(norms)) == (pytest.approx(loss, abs=1e-5), 7)
    assert worst_error(_gradients(model), expected, norm_of(expected)) < 1e-4


BUGS = {
    "the reference is left out": lambda pair: replace(pair, reference=(0.0, 0.0)),
    "the answers are exchanged": lambda pair: replace(
        Pair.of(*reversed(pair.rows())), reference=pair.reference[::-1], objective=pair.objective
    ),
    "the reference is exchanged": lambda pair: replace(pair, reference=pair.reference[::-1]),
    "one token of the prompt counts in one answer": lambda pair: replace(pair, counted=_with(pair.counted, 3)),
    "the last token is lost": lambda pair: replace(pair, counted=_with(pair.counted, len(pair) - 1, value=False)),
    "another beta": lambda pair: replace(pair, objective=DirectPreference(0.1)),
    "masks are shifted": lambda pair: replace(pair, counted=np.roll(pair.counted, 1)),
}


def _with(counted, place, *, value=True):
    changed = counted.copy()
    changed[place] = value
    return changed


@pytest.mark.parametrize("bug", BUGS)
def test_a_mistake_with_pairs_is_seen(bug):
    objective, slow = OBJECTIVES["dpo"]
    base, model = two_models()
    records = list(records_of(base, made_pairs(8), objective))
    with torch.no_grad():
        expected = [float(slow(model, base, as_the_oracle_reads(pair))) for pair in records]
        right = collate(records, CPU).record_losses(model).tolist()
        wrong = collate([BUGS[bug](pair) for pair in records], CPU).record_losses(model).tolist()
    assert right == pytest.approx(expected, abs=1e-4)
    assert wrong != pytest.approx(expected, abs=1e-3)


def test_a_mean_over_the_batchs_tokens_is_no_clipped_pair():
    """Each pair has the same weight whatever the lengths of others."""
    base, model = two_models()
    records = list(records_of(base, made_pairs(3), DirectPreference()))
    alone, beside = (collate(some, CPU).record_losses(model)[0] for some in (records[:1], records))
    torch.testing.assert_close(alone, beside, rtol=1e-5, atol=1e-6)


def test_pairs_and_other_records_do_not_share_a_batch():
    base = new_model()
    pairs = list(records_of(base, made_pairs(1), DirectPreference()))
    with pytest.raises(ValueError, match="several objectives"):
        collate([*pairs, Tokens([0, 1, 2])], CPU)


def test_what_an_objective_does_not_take_is_refused():
    for values in ((0.0, 0.0), (-1.0, 0.0), (0.1, 0.5), (0.1, -0.1)):
        with refused(by="DirectPreference.__post_init__", naming="finetune."):
            preference_objective(PreferenceName.DPO, *values)
    with refused(by="preference_objective", naming="finetune.label_smoothing"):
        preference_objective(PreferenceName.ORPO, 0.1, 0.2)


@pytest.fixture
def pairs(make_lm, english):
    """Pairs of sentences as the product reads them."""
    both = zip(english[:40], english[40:80], strict=True)
    texts = [answered_text(text[:9], text[9:], other[5:]) for text, other in both]
    return encode(make_lm().tokenizer, [text.counting(Counting.COMPLETION) for text in texts], 31)


def test_both_answers_are_cut_to_the_length(make_lm, english):
    lm = make_lm()
    document = answered_text("Why? ", english[0] * 20, "no").counting(Counting.COMPLETION)
    (pair,) = encode(lm.tokenizer, [document], 31)
    assert len(pair.rows()[0]) == 32
    assert pair.predicted == sum(len(row) - 1 for row in pair.rows())
    plain, again = encode(lm.tokenizer, documents(["Why? no"]), 31), pair.rows()[1]
    assert list(plain[0].ids) == list(again.ids)
    assert len(pair.shortest()) == 4


def test_a_store_keeps_pairs(pairs, tmp_path):
    kept = token_store(tmp_path / "tokens", [pairs[:7], pairs[7:]], origin="a", vocabulary=2**16)
    assert isinstance(kept, TokenStore)
    assert sequences_digest(kept) == sequences_digest(pairs)
    for one, other in zip(kept, pairs, strict=True):
        assert (one.second, list(one.ids), list(one.counted)) == (other.second, list(other.ids), list(other.counted))
    moved = [replace(pairs[0], second=pairs[0].second + 1), *pairs[1:]]
    assert sequences_digest(moved) != sequences_digest(pairs)


def test_the_reference_is_computed_once_and_belongs_to_its_pairs(make_lm, pairs, tmp_path):
    lm, folder = make_lm(), tmp_path / "reference"
    first = preference_records(lm, pairs, DirectPreference(), "fp32", folder)
    other = replace(lm, model=make_lm(1).model)  # would give other values
    again = preference_records(other, pairs, DirectPreference(), "fp32", folder)
    assert first.digest == again.digest
    assert lengths_of(first).tolist() == [len(pair) for pair in pairs]
    assert bearing_of(first).tolist() == [pair.bearing for pair in pairs]
    with refused(by="_kept", naming=str(folder)):
        preference_records(lm, pairs[1:], DirectPreference(), "fp32", folder)
    (folder / "reference.bin").write_bytes(b"0" * (folder / "reference.bin").stat().st_size)
    with refused(by="_kept", naming=str(folder)):
        preference_records(lm, pairs, DirectPreference(), "fp32", folder)
    # Another objective, or another reference, is another training.
    changed = [replace(first, objective=DirectPreference(0.2)), replace(first, reference=first.reference + 1)]
    assert len({records.digest for records in (first, *changed)}) == 3


@pytest.mark.parametrize("kind", ["uls", "els", "example", None])
def test_a_training_learns_the_preference_and_goes_on_after_a_stop(make_lm, pairs, tmp_path, kind):
    base = make_lm()
    records = preference_records(base, pairs, DirectPreference(0.5), "fp32")

    def training():
        return _training(pairs, kind, micro_records=4) if kind else None

    recipe = replace(RECIPE, epochs=4, learning_rate=3e-3, checkpoint_every=2)
    whole = train(make_lm(), records, recipe, tmp_path / "whole", private=training())

    class Stop(Exception):
        pass

    def stop(step):
        if step and stopped.pop():
            raise Stop

    stopped = [True, False, False]
    with pytest.raises(Stop):
        train(make_lm(), records, recipe, tmp_path / "stopped", private=training(), advance=stop)
    again = train(make_lm(), records, recipe, tmp_path / "stopped", private=training())
    weights = [(result.folder / "model.safetensors").read_bytes() for result in (whole, again)]
    assert weights[0] == weights[1]


def test_plain_training_lowers_the_loss_of_its_pairs(make_lm, pairs, tmp_path):
    lm = make_lm()
    records = preference_records(lm, pairs, DirectPreference(0.5), "fp32")
    train(lm, records, replace(RECIPE, epochs=6, learning_rate=3e-3), tmp_path)
    with torch.no_grad():
        after = float(collate(list(records), CPU).record_losses(lm.model.eval()).mean())
    assert after < 0.8 * preference_loss.guess()


@pytest.mark.parametrize("kind", ["uls", "els", "example"])
def test_a_private_step_is_the_clipped_sum_of_pairs(make_lm, pairs, kind):
    lm, base = make_lm(1), make_lm()
    records = preference_records(base, pairs, DirectPreference(0.5), "fp32")
    training = _training(pairs, kind, micro_records=4, noise_multiplier=0.0)
    loss = private_gradient(lm.model, training, 0, records)
    slow = functools.partial(preference_loss.dpo, beta=0.5)
    read = [
        [as_the_oracle_reads(pair) for pair in training.contribution(unit, 0, records)] for unit in training.drawn(0)
    ]
    oracle = preference_loss.unit_gradients(lm.model, base.model, read, slow)
    clip = training.mechanism.clip.of_units()
    total, _ = clipped_sum(oracle, clip.norm)
    expected = {name: gradient / training.mechanism.divisor.constant for name, gradient in total.items()}
    assert worst_error(_gradients(lm.model), expected, norm_of(expected)) < 1e-3
    assert loss == pytest.approx(np.mean([loss for loss, _ in oracle]), abs=1e-4)


def test_some_pairs_of_a_series_are_the_same_as_all(make_lm, pairs):
    records = preference_records(make_lm(), pairs, DirectPreference(), "fp32")
    assert isinstance(records, PreferenceRecords)
    assert [list(pair.ids) for pair in records[2:5]] == [list(records[i].ids) for i in range(2, 5)]
    assert records[3].reference == tuple(records.reference[3].tolist())


def test_pairs_without_an_objective_are_not_trained_on_as_texts():
    with pytest.raises(ValueError, match="objective"):
        collate(made_pairs(2), CPU)
