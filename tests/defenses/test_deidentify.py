"""De-identification: no detected mention is left, nothing else changes, and the plan says what it looks at."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from heldin.corpus.document import Document
from heldin.corpus.entities.config import WordsConfig
from heldin.corpus.entities.spans import Span, Text
from heldin.defenses.data_side.apply import apply_defenses, as_trained
from heldin.defenses.data_side.contract import TrainingRecord
from heldin.defenses.data_side.deduplicate import Deduplicate
from heldin.defenses.data_side.deidentify import DeIdentify, deidentified
from tests.refusals import names as names_in
from tests.refusals import refused

SPANS = st.lists(
    st.builds(
        lambda start, length, kind: Span(start, start + length, kind),
        st.integers(0, 30),
        st.integers(1, 9),
        st.sampled_from(["person", "org"]),
    ),
    max_size=6,
)


@pytest.fixture
def names(tmp_path):
    path = tmp_path / "names.txt"
    path.write_text("Ann Lee\nLee\nBob\nEnron\torg\n")
    return WordsConfig(kind="words", path=path)


def applied(*defenses, texts):
    records = [TrainingRecord(10 + i, f"u{i % 2}", f"r{i}", Document.of(text)) for i, text in enumerate(texts)]
    left, did = apply_defenses(defenses, records, lengths=lambda _: [], losses=lambda _: [], seed=0)
    return [record.text for record in left], did


def test_mentions_become_the_names_of_their_categories(names):
    texts, (did,) = applied(DeIdentify(entities=names), texts=["Ann Lee of Enron met BOB.", "nobody", "Lee"])
    assert texts == ["[PERSON] of [ORG] met [PERSON].", "nobody", "[PERSON]"]
    assert (str(did.name), did.before, did.removed, did.changed, did.users) == ("de-identification (words)", 3, 0, 2, 1)
    assert names_in(did.line(), did.name, 2, 3, 1)


def test_only_the_categories_asked_for(names):
    only = DeIdentify(entities=names, categories=("org",))
    texts, (did,) = applied(only, texts=["Ann Lee of Enron"])
    assert texts == ["Ann Lee of [ORG]"]
    assert str(did.name) == "de-identification (words: org)"


def test_what_is_replaced_is_not_found_again(names):
    source = names.source()
    texts, _ = applied(DeIdentify(entities=names), texts=[f"Ann Lee and Lee {i}, Bob-Lee at Enron" for i in range(20)])
    assert all(not spans for spans in source.spans(Text("", text) for text in texts))


@settings(max_examples=200, deadline=None, derandomize=True)
@given(st.text(alphabet="abcdefgh ", min_size=40, max_size=40), SPANS)
def test_nothing_of_a_mention_stays_and_everything_else_does(text, spans):
    """Letter by letter: what no span covers stays in its order; each run of overlapping spans becomes one word."""
    found = deidentified(Document.of(text), spans).text
    covered = {i for span in spans for i in range(span.start, span.end)}
    stays = "".join(c for i, c in enumerate(text) if i not in covered)
    assert found.replace("[PERSON]", "").replace("[ORG]", "") == stays


def test_overlapping_mentions_are_one_by_the_longest():
    assert deidentified(Document.of("Ann Lee Corp x"), [Span(0, 7, "person"), Span(4, 12, "org")]).text == "[ORG] x"
    assert deidentified(Document.of("Ann Lee"), [Span(0, 3, "person"), Span(3, 7, "org")]).text == "[PERSON][ORG]"


def test_the_plan_lists_it_as_local_to_a_record(names):
    step = DeIdentify(entities=names).declared()
    assert (step.user_local, step.record_local) == (True, True)


def test_later_steps_see_the_changed_texts(names):
    texts, (_, copies) = applied(DeIdentify(entities=names), Deduplicate(), texts=["Ann Lee here", "x", "Bob here"])
    assert texts == ["[PERSON] here", "x"]
    assert copies.removed == 1


def test_a_source_that_is_not_there_is_one_line(tmp_path):
    missing = DeIdentify(entities=WordsConfig(kind="words", path=tmp_path / "none.txt"))
    with refused(by="existing"):
        applied(missing, texts=["x"])


def test_a_step_that_changes_nothing_is_still_told_as_one_that_changes(names):
    _, (did,) = applied(DeIdentify(entities=names), texts=["nobody", "here"])
    assert (did.changed, did.removed, did.users) == (0, 0, 0)
    assert names_in(did.line(), did.name, 0, 2)
    _, (removed,) = applied(Deduplicate(), texts=["a", "b"])
    assert removed.changed is None
    assert names_in(removed.line(), removed.name, 0, 2)


def test_texts_as_training_would_see_them(names):
    given = {"1": Document.of("Ann Lee"), "2": Document.of("Ann Lee")}
    assert as_trained([Deduplicate(), DeIdentify(entities=names)], given) == [Document.of("[PERSON]")] * 2
    assert as_trained([], given) == [Document.of("Ann Lee")] * 2
