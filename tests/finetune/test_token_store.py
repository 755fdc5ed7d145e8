"""Token sequences on disk are those in memory, made once, named by all that they follow from."""

import json

import numpy as np
import pytest

from heldin.finetune import batches
from heldin.finetune.batches import encoded
from heldin.finetune.token_store import TokenStore, lengths_of, sequences_digest, token_store
from tests.documents import documents, encode, ids, tokens
from tests.refusals import raised_apart, refused

IDS = [[1, 2, 3], [70000, 5], [9] * 40, [4, 4]]
SEQUENCES = tokens(IDS)


def _made(folder, batches=(SEQUENCES[:2], SEQUENCES[2:]), *, of="this", vocabulary=70001):
    return token_store(folder, batches, origin=of, vocabulary=vocabulary)


def test_it_holds_what_was_encoded_in_owner_only_files(tmp_path):
    store = _made(tmp_path / "tokens")
    assert ids(store) == IDS
    assert ids(store[1:3]) == IDS[1:3]
    assert ids([store[-1]]) == IDS[-1:]
    assert store.lengths.tolist() == [3, 2, 40, 2]
    assert lengths_of(SEQUENCES).tolist() == [3, 2, 40, 2]
    with pytest.raises(IndexError):
        store[4]
    assert (tmp_path / "tokens").stat().st_mode & 0o777 == 0o700


def test_the_hash_is_that_of_lists_however_they_were_batched_and_changes_with_every_change(tmp_path):
    for number, several in enumerate([[SEQUENCES], [SEQUENCES[:1], SEQUENCES[1:2], SEQUENCES[2:]]]):
        assert _made(tmp_path / str(number), several).digest == sequences_digest(SEQUENCES)
    others = [
        SEQUENCES[:-1],
        tokens([[1, 2], [3, 70000, 5], *IDS[2:]]),
        tokens([*IDS[:-1], [4, 5]]),
        SEQUENCES[::-1],
        tokens([*IDS, []]),
    ]
    assert len({sequences_digest(its) for its in (SEQUENCES, *others)}) == 6


def test_small_vocabularies_take_two_bytes_a_token(tmp_path, make_lm):
    lm = make_lm()
    texts = ["The river.", "The market counts the story on day 7."]
    store = token_store(
        tmp_path / "t", encoded(lm.tokenizer, [documents(texts)], 9), origin="x", vocabulary=len(lm.tokenizer)
    )
    assert ids(store) == ids(encode(lm.tokenizer, texts, 9))
    assert (tmp_path / "t" / "ids.bin").stat().st_size == 2 * store.lengths.sum()


def test_it_is_made_once_and_refused_for_anything_else(tmp_path):
    _made(tmp_path / "tokens")

    def never():
        raise AssertionError
        yield

    again = token_store(tmp_path / "tokens", never(), origin="this", vocabulary=70001)
    assert ids(again) == IDS
    with refused(by=token_store, naming=("tokens", "finetune.sequence_length")) as another:
        _made(tmp_path / "tokens", of="that")
    (tmp_path / "tokens" / "ids.bin").write_bytes(b"12")
    with refused(by=token_store, naming="tokens") as damaged:
        _made(tmp_path / "tokens")
    assert raised_apart(another, damaged)


def test_a_byte_that_changed_is_seen_before_it_is_trained_on(tmp_path):
    _made(tmp_path / "tokens")
    path = tmp_path / "tokens" / "ids.bin"
    content = bytearray(path.read_bytes())
    content[4] ^= 1
    path.write_bytes(content)
    with refused(by=token_store, naming="tokens"):
        _made(tmp_path / "tokens")


@pytest.mark.parametrize(
    "damage",
    [
        '{"digest": {}}', '{"digest": null}', '{"type": "object"}', '{"type": []}', '{"records": "4"}',
        '{"records": 1e999}', '{"files": 3}', "[]", "3", "null", "", "{", "[" * 100_000,
    ],
)  # fmt: skip
def test_what_is_stated_of_the_tokens_is_checked(tmp_path, damage):
    _made(tmp_path / "tokens")
    about = tmp_path / "tokens" / "about.json"
    if damage.startswith("{") and damage.endswith("}"):
        damage = json.dumps({**json.loads(about.read_text(encoding="utf-8")), **json.loads(damage)})
    about.write_text(damage, encoding="utf-8")
    with refused(by=token_store, naming="tokens"):
        _made(tmp_path / "tokens")


def test_a_token_beyond_the_models_embeddings_is_refused(tmp_path):
    with refused(by=token_store, naming=("70000", "60,000")):
        _made(tmp_path / "tokens", vocabulary=60_000)
    assert not (tmp_path / "tokens").exists()


def test_a_text_without_tokens_is_named_by_its_number_of_all(tmp_path, make_lm):
    lm = make_lm()
    made = encoded(lm.tokenizer, [documents(["a", "b"]), documents([""])], 9)
    with refused(by=batches.encode, naming="3"):
        token_store(tmp_path / "t", made, origin="x", vocabulary=len(lm.tokenizer))


def test_what_was_not_finished_is_made_again(tmp_path):
    def broken():
        yield SEQUENCES[:1]
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        token_store(tmp_path / "tokens", broken(), origin="this", vocabulary=9)
    assert not (tmp_path / "tokens").exists()
    assert len(_made(tmp_path / "tokens")) == 4
    about = json.loads((tmp_path / "tokens" / "about.json").read_text(encoding="utf-8"))
    assert about["type"] == np.dtype(np.int32).name
    assert isinstance(TokenStore(tmp_path / "tokens").digest, str)
