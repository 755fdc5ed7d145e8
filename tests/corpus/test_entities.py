"""Sources of mentions: what each finds in a text by itself, without a network, and what it refuses."""

import gzip
import random
import unicodedata

import pytest

from heldin.corpus.entities.gold import Gold, tagged_spans
from heldin.corpus.entities.recognisers import Function, Patterns, SpacyPipeline, WordList
from heldin.corpus.entities.spans import CATEGORIES, PATTERNS, Span, Text, canonical, category_named, without_overlaps
from heldin.corpus.entities.study import chosen_source, known_categories
from heldin.corpus.sources.iob import Iob, Sentence
from heldin.corpus.sources.json_rows import Json
from tests.corpus.conftest import CONLL
from tests.refusals import raised_apart, refused

pytestmark = pytest.mark.usefixtures("no_network")


def found_in(source, *texts):
    """The mentions of each text, as they stand in it."""
    spans = source.spans(Text(str(i), text) for i, text in enumerate(texts))
    return [
        [text[s.start : s.end] for s in without_overlaps(of_text)] for of_text, text in zip(spans, texts, strict=True)
    ]


def test_overlapping_mentions_keep_the_longest():
    spans = [Span(0, 4, "person"), Span(0, 10, "org"), Span(8, 12, "loc"), Span(11, 14, "loc"), Span(20, 22, "gpe")]
    assert without_overlaps(spans) == [Span(0, 10, "org"), Span(11, 14, "loc"), Span(20, 22, "gpe")]
    shuffled = list(spans)
    for seed in range(20):
        random.Random(seed).shuffle(shuffled)
        assert without_overlaps(shuffled) == without_overlaps(spans), "the order of discovery does not matter"
    # Neighbours do not overlap, equally long ones go by place and then by category.
    assert without_overlaps([Span(0, 2, "loc"), Span(2, 4, "loc")]) == [Span(0, 2, "loc"), Span(2, 4, "loc")]
    assert without_overlaps([Span(0, 2, "person"), Span(0, 2, "loc")]) == [Span(0, 2, "loc")]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("Jeff  Skilling", "jeff skilling"),
        ("ＥＮＲＯＮ", "Enron"),
        ("Jeff-Skilling,", "(jeff skilling)"),
        ("STRASSE", "straße"),
    ],
)
def test_canonical_strings_join_ways_to_write_a_name(one, other):
    assert canonical(one) == canonical(other)
    assert canonical(canonical(one)) == canonical(one)
    assert canonical("Ann Lee") != canonical("Anne Lee")


def test_categories_go_by_the_names_that_data_sets_and_pipelines_use():
    labels = {"PER": "person", "PERSON": "person", "I-": None, "Org": "org", "WORK_OF_ART": "work_of_art", "XYZ": None}
    assert {label: category_named(label) for label in labels} == labels
    assert len(CATEGORIES) == 20
    assert known_categories([]) == CATEGORIES
    with refused(by=known_categories, naming="'people'"):
        known_categories(["people"])


def test_a_word_list_finds_whole_words_in_any_case(words):
    source = words("Ann Lee", "Lee", "Enron Corp\torg", "Jean-Luc Picard")
    texts = (
        "ANN LEE of Enron Corp.",
        "annlee, Leeds",
        "Ann  Lee's; jean luc PICARD",
        "Ann, as Lee said",
        "Ann\n\n\n\nLee",
    )
    assert found_in(source, *texts) == [
        ["ANN LEE", "Enron Corp"],
        [],
        ["Ann  Lee", "jean luc PICARD"],
        ["Lee"],
        ["Lee"],
    ]
    (spans,) = source.spans([Text("1", "Enron Corp")])
    assert spans == [Span(0, 10, "org")]


@pytest.mark.parametrize(
    "name",
    [
        "jeff@enron.com",
        "AT&T",
        "Smith (Bob)",
        "Anne\u2013Marie",
        "O`Brien",
        "\u092a\u094d\u0930\u093f\u092f\u093e",
        "\u0130stanbul",
        "Jose\u0301 Ortega",
        "J. R. Ewing",
        "3M",
    ],
)
def test_every_listed_name_finds_itself(words, name):
    source = words(name)
    written = [name, name.upper(), unicodedata.normalize("NFC", name), unicodedata.normalize("NFD", name)]
    assert all(len(found) == 1 for found in found_in(source, *(f"ask {form} today" for form in written)))
    assert found_in(source, f"x{name}") == [[]], "whole words only"


def test_wrong_word_lists_are_refused(words, tmp_path):
    with refused(by="WordList._name", naming=("names.txt", "line 2")) as error:
        list(words("Ann", "person\tJohn Smith").spans([Text("1", "Ann")]))
    assert "smith" not in str(error.value).lower(), "columns may be exchanged: no name is quoted"
    with refused(by="WordList._names", naming="names.txt") as empty:
        list(words("", " . ").spans([Text("1", "Ann")]))
    (tmp_path / "cut.txt.gz").write_bytes(gzip.compress(b"Ann Lee\n" * 500)[:-20])
    with refused(by="WordList._names", naming=("cut.txt.gz", "gzip")) as cut:
        list(WordList(tmp_path / "cut.txt.gz").spans([Text("1", "Ann")]))
    assert raised_apart(empty, cut)
    (tmp_path / "bytes.txt").write_bytes(b"Ann\n\xff\xfe\n")
    with refused(by="WordList._name", naming=("bytes.txt", "line 2", "UTF-8")):
        list(WordList(tmp_path / "bytes.txt").spans([Text("1", "Ann")]))


STRINGS = {
    "email": ("write to ann.lee@example.com today", "ann.lee@example.com"),
    "phone": ("call me at 713-853-6161 today", "713-853-6161"),
    "credit_card": ("my card 4111111111111111 expired", "4111111111111111"),
    "iban": ("pay to DE89370400440532013000 now", "DE89370400440532013000"),
    "ip_address": ("the server 192.168.13.7 is down", "192.168.13.7"),
    "us_ssn": ("number 536-90-4399 is mine", "536-90-4399"),
    "crypto": ("send to 1BvBMSEYstWetqTFn5Au4m4GFg7xJaNVN2", "1BvBMSEYstWetqTFn5Au4m4GFg7xJaNVN2"),
    "url": ("see https://example.com/page now", "https://example.com/page"),
}


@pytest.mark.usefixtures("presidio")
@pytest.mark.parametrize("name", PATTERNS)
def test_each_pattern_on_its_own_string_without_network(name):
    text, wanted = STRINGS[name]
    assert found_in(Patterns((name,)), text, "nothing of the kind") == [[wanted], []]


@pytest.mark.usefixtures("presidio")
def test_patterns_have_fingerprints_of_their_own():
    prints = {Patterns((name,)).fingerprint() for name in PATTERNS} | {Patterns().fingerprint()}
    assert len(prints) == len(PATTERNS) + 1


def test_gold_spans_of_all_tagging_schemes():
    def tagged(text, tags):
        sentence = Sentence("f", 7, 1, 1, text.split(), tags.split())
        return [(sentence.text[s.start : s.end], s.category) for s in tagged_spans(sentence)]

    assert tagged("A B C", "I-PER I-PER I-LOC") == [("A B", "person"), ("C", "loc")]
    assert tagged("A B C", "I-PER B-PER I-PER") == [("A", "person"), ("B C", "person")]
    assert tagged("A B C", "B-PER O I-PER") == [("A", "person"), ("C", "person")]
    assert tagged("A B C", "S-PER B-PER E-PER") == [("A", "person"), ("B C", "person")]
    assert tagged("A B C", "B-PER L-PER U-ORG") == [("A B", "person"), ("C", "org")]
    assert tagged("A B", "O O") == []
    with refused(by=tagged_spans, naming="line 7") as error:
        tagged("A", "B-XYZ")
    assert "XYZ" not in str(error.value)


def test_a_source_sees_one_record_at_a_time(corpus, words):
    """What is found in a text does not change with the texts around it."""
    texts = [f"Ann Lee {i} and Bob" for i in range(30)] + ["Ann", "Lee"]
    source = words("Ann Lee", "Bob", "Lee")
    together = found_in(source, *texts)
    assert together == [found_in(source, text)[0] for text in texts]
    assert found_in(source, *reversed(texts)) == together[::-1]


def test_functions_must_stay_inside_the_text():
    with refused(by="Function.spans", naming=("0..9", "record number 1", "3")):
        list(Function(lambda _: [Span(0, 9, "person")], "mine").spans([Text("7", "abc")]))


def test_exactly_one_source_is_asked_for(tmp_path):
    path = tmp_path / "a.conll"
    path.write_text(CONLL)
    assert chosen_source(Iob(path), gold=True) == Gold(path)
    assert chosen_source(Iob(path), patterns=["url", "email"]) == Patterns(("email", "url"))
    wrong = [
        ({}, chosen_source, ("--gold", "--words", "--pattern", "--pipeline")),
        ({"gold": True, "pipeline": "x"}, chosen_source, ("--gold", "--words", "--pattern", "--pipeline")),
        ({"patterns": ["name"]}, chosen_source, "--pattern name"),
        ({"words": tmp_path / "none.txt"}, "existing", "none.txt"),
    ]
    for asked, by, naming in wrong:
        with refused(by=by, naming=naming):
            chosen_source(Iob(path), **asked)
    with refused(by=chosen_source, naming=("--gold", "CoNLL")):
        chosen_source(Json(tmp_path / "x.jsonl"), gold=True)


def test_a_missing_pipeline_and_one_without_entities_are_one_line(spacy, tmp_path):
    with refused(by="SpacyPipeline._pipeline", naming="'nowhere'") as missing:
        SpacyPipeline("nowhere").fingerprint()
    spacy.blank("en").to_disk(tmp_path / "blank")
    with refused(by="SpacyPipeline._pipeline", naming="blank") as empty:
        list(SpacyPipeline(str(tmp_path / "blank")).spans([Text("1", "Ann")]))
    assert raised_apart(missing, empty)


def test_a_pipeline_from_a_folder_is_known_by_its_files(spacy, tmp_path):
    prints = []
    for name in ("Ann", "Bob"):
        pipeline = spacy.blank("en")
        ruler = pipeline.add_pipe("entity_ruler")
        ruler.add_patterns([{"label": "PERSON", "pattern": name}, {"label": "XYZ", "pattern": "other"}])
        pipeline.to_disk(tmp_path / name)
        source = SpacyPipeline(str(tmp_path / name))
        prints.append(source.fingerprint())
        assert found_in(source, "Ann and Bob and other") == [[name]], "labels beyond Table I are left out"
    assert len(set(prints)) == 2


@pytest.mark.parametrize("missing", ["spacy", "presidio_analyzer"])
def test_without_the_extra_one_line_says_which(monkeypatch, missing):
    monkeypatch.setitem(__import__("sys").modules, missing, None)
    if missing == "presidio_analyzer":
        monkeypatch.setitem(__import__("sys").modules, "presidio_analyzer.predefined_recognizers", None)
    source = SpacyPipeline("x") if missing == "spacy" else Patterns()
    with refused(naming="'.[entities]'"):
        list(source.spans([Text("1", "Ann")]))


def test_kept_mentions_are_those_of_a_slow_comparison_of_all_pairs():
    dice = random.Random(5)
    for _ in range(300):
        spans = [
            Span(start, start + dice.randint(1, 8), dice.choice(["person", "org"]))
            for start in (dice.randint(0, 40) for _ in range(dice.randint(0, 20)))
        ]
        kept = []
        for span in sorted(spans, key=lambda s: (s.start - s.end, s.start, s.category)):
            if all(span.end <= other.start or other.end <= span.start for other in kept):
                kept.append(span)
        assert without_overlaps(spans) == sorted(kept)


def test_a_text_that_is_too_long_for_spacy_is_one_line(spacy, tmp_path):
    pipeline = spacy.blank("en")
    pipeline.add_pipe("entity_ruler").add_patterns([{"label": "PERSON", "pattern": "Ann"}])
    pipeline.to_disk(tmp_path / "ruler")
    source = SpacyPipeline(str(tmp_path / "ruler"))
    with refused(by="SpacyPipeline._short", naming=("record number 1", "1,000,001")):
        list(source.spans([Text("7", "x" * 1_000_001)]))
    (tmp_path / "ruler" / "meta.json").write_text("{}")
    (tmp_path / "ruler" / "config.cfg").write_text("[nlp]\nbroken")
    with refused(by="SpacyPipeline._pipeline", naming="ruler"):
        list(SpacyPipeline(str(tmp_path / "ruler")).spans([Text("1", "x")]))
