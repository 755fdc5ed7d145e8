"""Documents under attack: what counts of a text is scored after all that is before it; a plain text counts whole."""

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from heldin.attacks.access import Access
from heldin.attacks.extraction import ExtractionConfig
from heldin.attacks.kinds import get_attack, names_at
from heldin.attacks.reference_divergence import reference_divergences
from heldin.attacks.scoring import AttackTexts, score_attacks, scores_of
from heldin.attacks.windows import require_a_window, windows_of
from heldin.canaries.substring import canary_of_user
from heldin.corpus.document import Document
from heldin.corpus.entities.spans import Span
from heldin.corpus.store import CorpusRecord
from heldin.defenses.data_side.apply import apply_defenses
from heldin.defenses.data_side.contract import TrainingRecord
from heldin.defenses.data_side.deduplicate import Deduplicate
from heldin.defenses.data_side.deidentify import deidentified
from heldin.models.logprobs import score_documents, score_texts
from heldin.models.score_cache import ScoreCache
from heldin.models.tokens import tokens_of
from heldin.stages.train.validation import CurveEvaluation, CurveTexts
from tests.refusals import refused

TEXTS = ["The river opens the letter on day 7.", "The market counts the story.", "A boat, a road and a bell."]
ASKED = ExtractionConfig(prefix=2, suffix=3)


def _halves(texts):
    return [Document(text, ((len(text) // 2, len(text)),)) for text in texts]


def _slow_scores(lm, document):
    """Log-probabilities of tokens that share a character with a part, one token after the other."""
    (whole,) = score_texts(lm, [document.text])
    places = lm.tokenizer(document.text, add_special_tokens=False, return_offsets_mapping=True)["offset_mapping"]
    return [
        float(logprob)
        for logprob, (first, last) in zip(whole.logprobs, places, strict=True)
        if any(begin < last and first < end for begin, end in document.spans)
    ]


def test_the_scored_tokens_are_those_that_count_after_all_that_is_before_them(make_lm, tmp_path):
    lm = make_lm()
    documents = [*_halves(TEXTS), Document.of(TEXTS[0]), Document(TEXTS[0], ((0, 3), (10, 15)))]
    expected = [_slow_scores(lm, document) for document in documents]
    for found in (
        score_documents(lm, documents),
        scores_of(AttackTexts({"a": documents}), lm, ScoreCache(tmp_path)),
    ):
        for scores, values in zip(found, expected, strict=True):
            np.testing.assert_allclose(scores.logprobs, values, atol=1e-6)
    assert len(expected[0]) < len(expected[3])


@pytest.mark.parametrize("name", sorted(names_at(Access.LOG_PROBABILITIES)))
def test_every_statistic_is_of_the_counted_tokens(name, make_lm, tmp_path):
    target, reference = make_lm(seed=1), make_lm(seed=0)
    attack, cache = get_attack(name), ScoreCache(tmp_path)
    users = {"a": _halves(TEXTS[:2]), "b": _halves(TEXTS[1:])}
    found = score_attacks([attack], AttackTexts(users), target, reference, cache)
    whole = score_attacks(
        [attack],
        AttackTexts.of({user: [its.text for its in of] for user, of in users.items()}),
        target,
        reference,
        cache,
    )
    again = score_attacks([attack], AttackTexts(users), target, reference, cache)
    assert [its.value for its in found] == [its.value for its in again]
    assert [(its.user, its.text) for its in found] == [(its.user, its.text) for its in whole]
    assert any(abs(one.value - two.value) > 1e-4 for one, two in zip(found, whole, strict=True))
    # Parts that make up the text are the text.
    parts = {user: [Document(its.text, ((0, 5), (5, len(its.text)))) for its in of] for user, of in users.items()}
    for one, two in zip(score_attacks([attack], AttackTexts(parts), target, reference, cache), whole, strict=True):
        assert one.value == pytest.approx(two.value, rel=1e-6)


@pytest.mark.parametrize("document", [Document(TEXTS[0], ()), Document(TEXTS[0], ((30, 36),))])
def test_a_document_of_which_nothing_read_counts_is_left_out_and_a_user_without_another_is_refused(
    document, make_lm, tmp_path
):
    texts = AttackTexts({"ann": [Document.of("x")], "bob": [document, Document.of("y")]}, 20)
    assert [(user, number) for user, number, _ in texts.flat()] == [("ann", 0), ("bob", 1)]
    assert len(scores_of(texts, make_lm(), ScoreCache(tmp_path))) == 2
    with refused("AttackTexts.flat", ("2", "20")):
        AttackTexts({"ann": [Document.of("x")], "bob": [document]}, 20).flat()


def test_a_part_without_a_character_counts_nothing(make_lm, tmp_path):
    texts = AttackTexts({"ann": [Document(TEXTS[0], ((3, 3),))]})
    with refused(by="AttackTexts.flat", naming=("1",)):
        scores_of(texts, make_lm(), ScoreCache(tmp_path))
    assert len(score_documents(make_lm(), texts.texts["ann"])[0].logprobs) == 0


def test_a_windows_suffix_counts_whole_and_its_offset_is_uniform_over_such_places(make_lm):
    tokenizer = make_lm().tokenizer
    text = " ".join(TEXTS)
    begin, end = len(text) // 3, len(text)
    document = Document(text, ((begin, end),))
    (tokens,) = tokens_of(tokenizer, [document])
    users = {f"user {i}": [document] for i in range(400)}
    found = windows_of(users, tokenizer, ASKED, bytes(32))
    ids = [int(token) for token in tokens.ids]
    allowed = {
        at: tuple(ids[at : at + 5])
        for at in range(len(ids) - 4)
        if all(tokens.counted[place] for place in range(at + 2, at + 5))
    }
    assert {tuple(window) for window in found.tokens.tolist()} == set(allowed.values())
    assert any(not tokens.counted[at] for at in allowed)
    assert 0 not in allowed
    with refused(by=windows_of):
        require_a_window({"a": [Document(text, ())]}, tokenizer, ASKED)


def test_copies_are_copies_of_what_counts():
    prompts = ["asked", "asked otherwise", "again"]
    records = [
        TrainingRecord(i, "ann", str(i), Document(f"{prompt}: same answer", ((len(prompt), len(prompt) + 13),)))
        for i, prompt in enumerate(prompts)
    ]
    for threshold in (1.0, 0.9):
        left, _ = apply_defenses(
            [Deduplicate(threshold=threshold)], records, lengths=lambda _: [], losses=lambda _: [], seed=0
        )
        assert [record.row for record in left] == [0]


MENTIONS = st.lists(st.tuples(st.integers(0, 24), st.integers(1, 6)), max_size=5).map(
    lambda found: [Span(begin, begin + length, "person") for begin, length in found]
)


@settings(max_examples=100, deadline=None, derandomize=True)
@given(st.lists(st.integers(0, 30), max_size=6).map(sorted), MENTIONS)
def test_what_counts_is_what_counted_where_mentions_are_replaced(places, mentions):
    text = "".join(chr(ord("a") + i % 26) if i < 26 else chr(ord("A") + i % 26) for i in range(30))
    document = Document(text, tuple(zip(places[::2], places[1::2], strict=False)))
    found = deidentified(document, mentions)
    assert found.text == deidentified(Document.of(text), mentions).text
    covered = {i for span in mentions for i in range(span.start, span.end)}
    counts = {i for begin, end in document.spans for i in range(begin, end)}
    kept = "".join(text[i] for i in sorted(counts - covered))
    assert found.counted.replace("[PERSON]", "") == kept


def test_a_canarys_substring_is_put_into_what_counts_and_counts(make_lm):
    tokenizer = make_lm().tokenizer
    texts = [f"{text} {text}" for text in TEXTS * 4]
    records = [CorpusRecord(i, "ann", str(i), Document(text, ((2, 9), (20, 48))), None) for i, text in enumerate(texts)]
    records.append(CorpusRecord(99, "ann", "99", Document("nothing of it counts", ()), None))
    made = canary_of_user(
        tokenizer, records, length=3, documents=None, visible_tokens=64, visible_characters=200, seed=0
    )
    mark = made.canary.mark
    assert any(mark in record.document.counted for record in records)
    for before, record in zip(records[:-1], made.records, strict=False):
        at = record.position
        assert record.text == before.text[:at] + mark + before.text[at:]
        assert mark in record.document.counted
        assert len(record.document.counted) == len(before.document.counted) + len(mark)
    assert (made.records[-1].document, made.records[-1].position) == (records[-1].document, None)


@settings(max_examples=12, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.text(alphabet="ab cd\nef. ä", min_size=1, max_size=40).filter(str.strip), st.integers(0, 9))
def test_a_document_with_one_whole_part_is_its_text_everywhere(make_lm, tmp_path, text, seed):
    lm, document = make_lm(), Document(text, ((0, len(text)),))
    assert document == Document.of(text)
    assert (document.counted, document.is_plain, document.cut(7)) == (text, True, Document.of(text[:7]))
    (tokens,) = tokens_of(lm.tokenizer, [document])
    assert tokens.counted is None
    assert list(tokens.ids) == lm.tokenizer(text, add_special_tokens=False)["input_ids"]
    (found,), (expected,) = score_documents(lm, [document]), score_texts(lm, [text])
    np.testing.assert_array_equal(found.logprobs, expected.logprobs)
    mention = [Span(0, 1, "person")]
    assert deidentified(document, mention) == Document.of("[PERSON]" + text[1:])
    marked = canary_of_user(
        lm.tokenizer,
        [CorpusRecord(0, "ann", "0", document, None)],
        length=1,
        documents=None,
        visible_tokens=50,
        visible_characters=30,
        seed=seed,
    )
    assert marked is None or marked.records[0].document.is_plain


def test_curves_and_divergences_are_of_what_counts(make_lm, tmp_path):
    lm = make_lm()
    halves = _halves([f"{text} {text}" for text in TEXTS])
    curves = CurveTexts(halves, [Document(TEXTS[0], ())], {"a": halves[:1]}, {"b": [*halves[1:2], Document("x y", ())]})
    point = CurveEvaluation(curves, lm, private=False)(1, lm.model)
    values = [value for document in halves for value in _slow_scores(lm, document)]
    assert point["held_in_loss"] == pytest.approx(-np.mean(values), rel=1e-5)
    assert "held_out_loss" not in point
    assert point["auroc"] == 0.5
    found = reference_divergences(AttackTexts({"a": halves[:1]}), {"a": halves}, lm, ScoreCache(tmp_path))
    assert len(found) == 1
    # A document that says the same where it counts is a copy, whatever the prompt.
    copy = Document("another prompt" + halves[0].counted, ((14, 14 + len(halves[0].counted)),))
    assert not reference_divergences(AttackTexts({"a": halves[:1]}), {"a": [copy]}, lm, ScoreCache(tmp_path))
