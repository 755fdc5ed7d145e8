"""Reports are in plain English: short sentences, ordinary words, and a readability that is measured."""

import re

import pytest

from heldin.record.condition_words import control_line
from heldin.record.planted_facts import ControlFacts, ControlOutcome
from heldin.reports.blocks import Attachment, Banner, Paragraph, Place, Verbatim, texts
from tests.reports.golden_pages import made_cases, report_of, reports

MOST_WORDS = 25  # of a sentence, without numbers and what is in parentheses
LEAST_EASE = 45.0  # Flesch reading ease of a page
# Left out of the measure of readability: terms of the glossary, and names that a reader types.
TERMS = (
    "epsilon", "delta", "AUROC", "canary users", "canary user", "non-members", "differential privacy", "heldin",
    "white-box", "deduplication", "nats per token", "reconstruction", "attribute inference", "gradients",
)  # fmt: skip
# The unambiguous ones of the words that the style guide replaces.
REPLACED = (
    r"\bpromise", r"\bbeside\b", r"\bmend", r"\bwhoever\b", r"\banew\b", r"\bheld in\b", r"\bheld out\b",
    r"\bheld-in\b", r"\bheld-out\b", r"\bstands? (in|for)\b", r"\btells? apart\b", r"\btold apart\b", r"\bso that\b",
    r"\bviolated\b", r"\bhouse\b", r"\bgoes with\b",
)  # fmt: skip


def _texts():
    for name, case in made_cases().items():
        front = [section for section in report_of(case).sections if section.place is Place.FRONT]
        blocks = [block for section in front for block in section.blocks if isinstance(block, Banner | Paragraph)]
        yield name, [block.text for block in blocks]


TEXTS = dict(_texts())


def _later():
    """Every text behind page one, by its case and section."""
    cases = {**reports(), **{name: report_of(case) for name, case in made_cases().items()}}
    for name, report in cases.items():
        for section in report.sections:
            if section.place is not Place.FRONT:
                blocks = [block for block in section.blocks if not isinstance(block, Attachment | Verbatim)]
                yield f"{name}, {section.key}", list(texts([section.title, blocks]))


def sentences(text):
    """The sentences of a text; a full stop within a number or a path ends none."""
    return [part for part in re.split(r"(?<=[.!?])\s+(?=[A-Z0-9])", text) if part]


def words(sentence):
    """The words of a sentence, without numbers and what is in parentheses."""
    return re.findall(r"[A-Za-z][\w'/-]*", re.sub(r"\([^)]*\)", "", sentence))


def ease(texts):
    """Flesch reading ease of texts, without the terms of the glossary."""
    import textstat

    whole = " ".join(texts)
    for term in TERMS:
        whole = re.sub(re.escape(term), "it", whole, flags=re.IGNORECASE)
    return textstat.flesch_reading_ease(re.sub(r"\([^)]*\)", "", whole))


@pytest.mark.parametrize("name", TEXTS)
def test_sentences_are_short_and_words_are_ordinary(name):
    for text in TEXTS[name]:
        for sentence in sentences(text):
            assert len(words(sentence)) <= MOST_WORDS, sentence
        assert not [word for word in REPLACED if re.search(word, text)], text


def test_later_pages_have_short_sentences_and_ordinary_words_too():
    """There a colon or a semicolon may end a sentence."""
    for place, given in _later():
        for text in given:
            for sentence in sentences(text):
                assert all(len(words(part)) <= MOST_WORDS for part in re.split("[;:] ", sentence)), (place, sentence)
            assert not [word for word in REPLACED if re.search(word, text)], (place, text)


@pytest.mark.parametrize("outcome", ControlOutcome)
def test_every_outcome_of_a_positive_control_is_in_ordinary_words(outcome):
    line = control_line(
        ControlFacts(
            outcome=outcome,
            trained_rows=9,
            untrained_rows=9,
            rows_auroc=0.8,
            held_in=9,
            held_out=9,
            canary_auroc=0.7,
            level=0.01,
        )
    )
    assert not [word for word in REPLACED if re.search(word, line)], line


@pytest.mark.parametrize("name", TEXTS)
def test_page_one_can_be_read(name):
    assert ease(TEXTS[name]) >= LEAST_EASE


@pytest.mark.parametrize("name", [name for name in TEXTS if not name.startswith("sweep")])
def test_every_number_of_people_has_a_denominator(name):
    (people,) = [text for text in TEXTS[name] if "Guessing flags" in text or "cannot count" in text]
    numbers = re.findall(r"flags (\d+)( of| and \d+ of)?", people)
    assert all(denominator for _, denominator in numbers)


def test_what_the_old_pages_said_would_be_noticed():
    old = "Leaks, by the estimate within the promise (indicative only): it tells held-in from held-out users."
    assert [word for word in REPLACED if re.search(word, old)]
    long = "Of those named, most were held in, if as many people of each side are asked about; where most people were"
    long += " never in training, fewer of those who are named were held in than were held out."
    assert max(len(words(sentence)) for sentence in sentences(long)) > MOST_WORDS
    hard = "Verdicts of all cells: Holm over all planned cells, which holds under any dependence of the cells."
    hard += " Simultaneous intervals presuppose asymptotic normality of estimators."
    assert ease([hard]) < LEAST_EASE
