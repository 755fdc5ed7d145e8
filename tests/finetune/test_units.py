"""Random chunks: of one user's own text, new each step, averaged over what there is."""

from heldin.base.coins import seed_key
from heldin.defenses.choices import NoiseGenerator
from heldin.defenses.samplers import PoissonSampler
from heldin.finetune.private import private_gradient
from heldin.finetune.units import PrivateRecords, plan_private_training, random_chunks
from tests.documents import ids, tokens
from tests.finetune.test_private import _assert_same, _gradients, _mechanism
from tests.oracles.private_step import naive_private_gradient
from tests.refusals import refused


def _records():
    return PrivateRecords(["a", "b", "c"], ["ann", "ann", "bob"], [9, 9, 3])


SEQUENCES = tokens([[0, *range(1, 9)], [0, *range(11, 19)], [0, 5, 6]])


def _training(size=4, **changes):
    mechanism = _mechanism(
        record_selection="random_chunk", group_size=size, sampler=PoissonSampler(rate=1.0), **changes
    )
    return plan_private_training(mechanism, seed_key(3), _records(), NoiseGenerator.PHILOX, chunk=5)


def test_chunks_are_runs_of_the_users_own_text_with_one_start_token():
    text = [0, *range(1, 9), *range(11, 19)]
    places = {tuple(text[i : i + 5]) for i in range(len(text) - 4)}
    seen = set()
    training = _training(steps=60)
    for step in range(60):
        chunks = ids(training.contribution(training.drawn(step)[0], step, SEQUENCES))
        assert len(chunks) == 4
        assert {tuple(c) for c in chunks} <= places
        seen |= {tuple(c) for c in chunks}
    assert seen == places


def test_a_text_no_longer_than_a_chunk_is_taken_once():
    training = _training()
    assert ids(training.contribution(training.drawn(0)[1], 0, SEQUENCES)) == [[0, 5, 6]]
    assert ids(random_chunks(tokens([[0, 1, 2, 3, 4]]), 5, [0.0, 0.99])) == [[0, 1, 2, 3, 4]]
    assert ids(random_chunks(tokens([[0, 1, 2, 3, 4, 5]]), 5, [0.0, 0.99])) == [[0, 1, 2, 3, 4], [1, 2, 3, 4, 5]]


def test_one_users_chunks_depend_on_no_other_user():
    whole, records = _training(), _records()
    alone = plan_private_training(
        whole.mechanism,
        seed_key(3),
        PrivateRecords(records.ids[:2], records.users[:2], records.lengths[:2]),
        NoiseGenerator.PHILOX,
        chunk=5,
    )
    for step in range(5):
        a, b = (its.contribution(its.units[0], step, SEQUENCES) for its in (whole, alone))
        assert ids(a) == ids(b)


def test_a_step_on_chunks_equals_the_oracle(make_lm):
    training = _training(noise_multiplier=0.7)
    expected = naive_private_gradient(make_lm(), training, 2, SEQUENCES)
    lm = make_lm()
    private_gradient(lm.model, training, 2, SEQUENCES)
    _assert_same(_gradients(lm.model), expected)


def test_chunks_where_examples_are_sampled_are_refused():
    mechanism = _mechanism("els", record_selection="random_chunk")
    with refused(by=plan_private_training, naming="'random_chunk'"):
        plan_private_training(mechanism, seed_key(3), _records(), NoiseGenerator.PHILOX, chunk=5)
