"""Records of which parts count: their loss is the mean over counted tokens, in plain and private training alike."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from heldin.corpus.document import Document
from heldin.defenses.choices import FlatClip
from heldin.defenses.gradients.per_unit_gradients import clipped_gradient_sum
from heldin.defenses.samplers import PoissonSampler
from heldin.finetune.batches import collate, encode, plain_batch_gradient
from heldin.finetune.holding import PlainClipping
from heldin.finetune.loop import train
from heldin.finetune.passes import whole_units
from heldin.finetune.private import private_gradient
from heldin.finetune.recipe import Recipe, Select
from heldin.finetune.token_store import TokenStore, bearing_of, sequences_digest, token_store
from heldin.finetune.units import random_chunks
from heldin.models.objective import LANGUAGE_MODELLING
from heldin.models.tokens import Tokens
from tests.finetune.test_private import _assert_same, _gradients, _training
from tests.oracles.plain_training import naive_training
from tests.oracles.private_step import naive_private_gradient
from tests.oracles.record_loss import record_loss
from tests.refusals import lacks, refused

RECIPE = Recipe(epochs=1, batch_size=8, learning_rate=1e-3, select=Select.LAST, sequence_length=31)
ENGINES = ("auto", "materialise", "ghost", "loop")


def masked(sequences):
    """Every other record with a random mask; each ninth has none that counts."""
    dice = np.random.default_rng(0)
    found = []
    for number, tokens in enumerate(sequences):
        counted = dice.random(len(tokens)) < 0.4
        counted[0] = False
        if number % 9 == 4:
            counted[:] = False
        elif not counted.any():
            counted[-1] = True
        found.append(tokens if number % 2 else Tokens(tokens.ids, counted))
    return found


@pytest.fixture
def records(sequences):
    return masked(sequences)


def test_a_documents_tokens_count_where_its_parts_do(make_lm):
    tokenizer = make_lm().tokenizer
    text, end = "The river opens the letter on day 7.", tokenizer.eos_token_id
    ends_at = len("The river")
    (plain,) = encode(tokenizer, [Document.of(text)], 100)
    first, last, nothing = encode(
        tokenizer, [Document(text, ((0, ends_at),)), Document(text, ((ends_at, len(text)),)), Document(text, ())], 100
    )
    assert plain.counted is None
    assert all(list(its.ids) == list(plain.ids) for its in (first, last, nothing))
    assert plain.ids[-1] == end
    # The start token is only read; the end token counts if the token before it does.
    assert (first.counted[0], first.counted[1], first.counted[-1]) == (False, True, False)
    assert (last.counted[0], last.counted[1], last.counted[-1]) == (False, False, True)
    assert (first.counted | last.counted)[1:].all()
    assert not nothing.counted.any()
    (cut,) = encode(tokenizer, [Document(text, ((ends_at, len(text)),))], 2)
    assert (len(cut), cut.counted.tolist()) == (3, last.counted[:3].tolist())


def test_losses_are_those_of_the_slow_loop_and_a_shifted_mask_has_others(make_lm, records):
    lm = make_lm()
    with torch.no_grad():
        found = LANGUAGE_MODELLING.losses(lm.model, collate(records, lm.device))
        expected = torch.stack([record_loss(lm.model, record) for record in records])
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
        empty = [i for i, record in enumerate(records) if not record.bearing]
        assert len(empty) > 1
        assert not found[empty].any()
        shifted = [its if its.counted is None else Tokens(its.ids, np.roll(its.counted, 1)) for its in records]
        others = LANGUAGE_MODELLING.losses(lm.model, collate(shifted, lm.device))
    parted = [i for i, its in enumerate(records) if its.counted is not None and its.bearing]
    assert ((others[parted] - expected[parted]).abs() > 1e-3).float().mean() > 0.8


def test_plain_training_equals_the_oracle(make_lm, records, tmp_path):
    result = train(make_lm(), records, RECIPE, tmp_path)
    expected = naive_training(make_lm(), records, RECIPE).state_dict()
    from safetensors.torch import load_file

    found = load_file(result.folder / "model.safetensors")
    for name, tensor in found.items():
        torch.testing.assert_close(tensor, expected[name], rtol=1e-3, atol=2e-5)


@pytest.mark.parametrize("kind", ["uls", "els", "example"])
def test_a_private_step_equals_the_oracle(make_lm, records, kind):
    training, lm = _training(records, kind), make_lm()
    for step in range(2):
        private_gradient(lm.model, training, step, records)
        _assert_same(_gradients(lm.model), naive_private_gradient(make_lm(), training, step, records))


@pytest.mark.parametrize("engine", ENGINES)
def test_every_engine_gives_each_unit_the_gradient_of_its_counted_tokens(make_lm, records, engine):
    lm = make_lm()
    units = [records[:3], records[4:5], records[5:7]]
    assert not units[1][0].bearing
    found = clipped_gradient_sum(lm.model, whole_units(units), clip_norm=0.5, engine=engine)
    total, norms = {name: torch.zeros_like(p) for name, p in lm.model.named_parameters()}, []
    for unit in units:
        lm.model.zero_grad()
        (sum(record_loss(lm.model, record) for record in unit) / len(unit)).backward()
        norms.append(math.sqrt(sum(float(p.grad.double().square().sum()) for p in lm.model.parameters())))
        for name, p in lm.model.named_parameters():
            total[name] += p.grad * min(1.0, 0.5 / max(norms[-1], 1e-30))
    assert norms[1] == 0
    assert not found.masked.any()
    np.testing.assert_allclose(found.norms.numpy(), norms, rtol=1e-3, atol=1e-6)
    _assert_same(found.gradients, total)


def test_without_clip_and_noise_the_private_step_is_the_plain_one(make_lm, records):
    batch = records[:12]
    plain, private = make_lm(), make_lm()
    loss = plain_batch_gradient(plain.model, batch, 5, "fp32")
    training = _training(
        batch, "example", sampler=PoissonSampler(rate=1.0), clip=FlatClip(norm=1e6), noise_multiplier=0.0
    )
    found = private_gradient(private.model, training, 0, batch)
    share = training.mechanism.divisor.value / len(batch)
    _assert_same({name: g * share for name, g in _gradients(private.model).items()}, _gradients(plain.model))
    assert found == pytest.approx(float(loss), rel=1e-4)


@pytest.mark.parametrize("path", ["plain", "clipped", "private"])
def test_records_of_which_nothing_counts_are_counted_and_train_on_nothing(make_lm, records, tmp_path, path):
    options = {"clipped": {"clipping": PlainClipping("example", 0.5)}, "private": {"private": _training(records)}}
    said = []
    result = train(make_lm(), records, RECIPE, tmp_path / "some", say=said.append, **options.get(path, {}))
    empty = sum(not record.bearing for record in records)
    assert result.uncounted == empty > 0
    assert sum(not lacks(line, empty, len(records)) for line in said) == 1
    # What they say changes nothing: the gradient of such a record is zero.
    others = [its if its.bearing else Tokens([*its.ids[:1], *its.ids[:0:-1]], its.counted) for its in records]
    again = train(make_lm(), others, RECIPE, tmp_path / "others", **options.get(path, {}))
    from safetensors.torch import load_file

    one, two = (load_file(its.folder / "model.safetensors") for its in (result, again))
    assert all(torch.isfinite(tensor).all() for tensor in one.values())
    for name, tensor in one.items():
        torch.testing.assert_close(tensor, two[name], rtol=1e-4, atol=1e-6)
    nothing = [Tokens(its.ids, np.zeros(len(its), dtype=np.bool_)) for its in records]
    with refused(by="_uncounted", naming=("finetune.sequence_length", "spans")):
        train(make_lm(), nothing, RECIPE, tmp_path / "nothing", **options.get(path, {}))


def test_of_plain_records_none_is_without_a_counted_token(make_lm, sequences, tmp_path):
    said = []
    assert train(make_lm(), sequences, RECIPE, tmp_path, say=said.append).uncounted == 0
    assert not any("counts" in line for line in said)


@pytest.mark.parametrize("vocabulary", [2**17, 500])
def test_masks_are_kept_on_disk_and_are_part_of_the_digest(vocabulary, records, tmp_path):
    plain = [Tokens(its.ids) for its in records]
    batches = [plain[:3], [], records[3:20], plain[20:30], records[30:]]
    made = [record for batch in batches for record in batch]
    store = token_store(tmp_path / "masked", batches, origin="x", vocabulary=vocabulary)
    for number, (kept, record) in enumerate(zip(store, made, strict=True)):
        assert list(kept.ids) == list(record.ids), number
        asked = [list(its) for its in record.inputs_and_targets()]
        assert [list(its) for its in kept.inputs_and_targets()] == asked, number
    whole = [len(record) if record.counted is None else record.bearing for record in made]
    assert store.bearing.tolist() == bearing_of(made).tolist() == whole
    assert store.digest == sequences_digest(made)
    assert TokenStore(tmp_path / "masked").digest == store.digest
    # A plain record and one of which all counts are one record; any other mask is another one.
    of_all = [Tokens(its.ids, np.ones(len(its), dtype=np.bool_)) for its in plain]
    assert sequences_digest(of_all) == sequences_digest(plain) != store.digest
    turned = [its if its.counted is None else Tokens(its.ids, ~its.counted) for its in made]
    assert sequences_digest(turned) != store.digest
    without = token_store(tmp_path / "plain", [plain], origin="x", vocabulary=vocabulary)
    assert without.digest == sequences_digest(plain)
    assert not (tmp_path / "plain" / "counted.bin").exists()
    assert without[0].counted is None
    (tmp_path / "masked" / "counted.bin").unlink()
    with refused(by=token_store, naming="masked"):
        token_store(tmp_path / "masked", [], origin="x", vocabulary=vocabulary)


def test_chunks_keep_what_counts_of_the_records_they_are_cut_from():
    first = Tokens([0, 1, 2, 3], np.array([False, True, False, True]))
    chunks = random_chunks([first, Tokens([0, 4, 5])], 4, [0.0, 0.99])
    assert [list(its.ids) for its in chunks] == [[0, 1, 2, 3], [2, 3, 4, 5]]
    assert [its.counted.tolist() for its in chunks] == [[False, True, False, True], [False, True, True, True]]


def test_another_mask_is_another_job(make_lm, records, tmp_path):
    train(make_lm(), records, RECIPE, tmp_path)
    with refused(by="load_state", naming=str(tmp_path)):
        train(make_lm(), [Tokens(its.ids) for its in records], replace(RECIPE), tmp_path)
