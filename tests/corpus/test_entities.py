"""Sources of mentions, the table of what was found, and what `heldin corpus entities` counts."""

import gzip
import json
import random
import socket
import unicodedata

import pytest

from heldin.base.errors import InputError
from heldin.corpus.build import build_store
from heldin.corpus.entities.agreement import agreement
from heldin.corpus.entities.exposure import entity_statistics
from heldin.corpus.entities.gold import Gold, tagged_spans
from heldin.corpus.entities.incidence import incidence
from heldin.corpus.entities.mentions import find_mentions
from heldin.corpus.entities.patterns import PATTERNS, Patterns
from heldin.corpus.entities.pipelines import Function, SpacyPipeline
from heldin.corpus.entities.sources import chosen_source, known_categories
from heldin.corpus.entities.spans import CATEGORIES, Span, Text, canonical, category_named, without_overlaps
from heldin.corpus.entities.word_list import WordList
from heldin.corpus.sources.iob import Iob, Sentence
from heldin.corpus.sources.rows import Columns
from heldin.corpus.sources.text_files import JsonLines
from heldin.defenses.texts.caps import caps_outcome

CONLL = """-DOCSTART- -X- O O

EU NNP I-NP I-ORG
rejects VBZ I-VP O
German JJ I-NP I-MISC
call NN I-NP O

Peter NNP I-NP I-PER
Blackburn NNP I-NP I-PER

-DOCSTART- -X- O O

Peter NNP I-NP I-PER
Blackburn NNP I-NP I-PER
met VBD I-VP O
EU NNP I-NP I-ORG
"""


class Quiet:
    """A reporter that counts what was searched."""

    def __init__(self):
        self.searched = 0

    def say(self, line):
        raise AssertionError(line)

    def track(self, title, total, unit):
        import contextlib

        def advance(done):
            self.searched += done

        return contextlib.nullcontext(advance)


@pytest.fixture(autouse=True)
def _no_network(monkeypatch):
    def refuse(*_args, **_kwargs):
        raise AssertionError("a socket was asked for")

    for name in ("connect", "connect_ex"):
        monkeypatch.setattr(socket.socket, name, refuse)
    for name in ("create_connection", "getaddrinfo", "gethostbyname"):
        monkeypatch.setattr(socket, name, refuse)


@pytest.fixture
def corpus(tmp_path):
    """Makes a store of (user, text) pairs."""

    def make(pairs, name="c"):
        path = tmp_path / f"{name}.jsonl"
        path.write_text("".join(json.dumps({"user": u, "text": t}) + "\n" for u, t in pairs))
        return build_store(JsonLines(path, Columns()), tmp_path)

    return make


@pytest.fixture
def words(tmp_path):
    def make(*lines):
        path = tmp_path / "names.txt"
        path.write_text("\n".join(lines), encoding="utf-8")
        return WordList(path)

    return make


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
    with pytest.raises(InputError, match="category 'people' is unknown"):
        known_categories(["people"])


def test_a_word_list_finds_whole_words_in_any_case(words):
    source = words("Ann Lee", "Lee", "Enron Corp\torg", "Jean-Luc Picard")
    texts = (
        "ANN LEE of Enron Corp.",
        "annlee, Leeds",
        "Ann  Lee's; jean luc picard",
        "Ann, as Lee said",
        "Ann\n\n\n\nLee",
    )
    assert found_in(source, *texts) == [
        ["ANN LEE", "Enron Corp"],
        [],
        ["Ann  Lee", "jean luc picard"],
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
    with pytest.raises(InputError, match="names.txt line 2: what follows the tab is no category") as error:
        list(words("Ann", "person\tJohn Smith").spans([Text("1", "Ann")]))
    assert "smith" not in str(error.value).lower(), "columns may be exchanged: no name is quoted"
    with pytest.raises(InputError, match="holds no name"):
        list(words("", " . ").spans([Text("1", "Ann")]))
    (tmp_path / "cut.txt.gz").write_bytes(gzip.compress(b"Ann Lee\n" * 500)[:-20])
    with pytest.raises(InputError, match="corrupt gzip data"):
        list(WordList(tmp_path / "cut.txt.gz").spans([Text("1", "Ann")]))
    (tmp_path / "bytes.txt").write_bytes(b"Ann\n\xff\xfe\n")
    with pytest.raises(InputError, match=r"bytes.txt line 2: invalid UTF-8"):
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


@pytest.mark.parametrize("name", PATTERNS)
def test_each_pattern_on_its_own_string_without_network(name):
    pytest.importorskip("presidio_analyzer", reason="the extra 'entities' is not installed")
    text, wanted = STRINGS[name]
    assert found_in(Patterns((name,)), text, "nothing of the kind") == [[wanted], []]


def test_patterns_have_fingerprints_of_their_own():
    pytest.importorskip("presidio_analyzer", reason="the extra 'entities' is not installed")
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
    with pytest.raises(InputError, match="f, sentence from line 7 on: a label is none of") as error:
        tagged("A", "B-XYZ")
    assert "XYZ" not in str(error.value)


def test_gold_belongs_to_its_own_file(tmp_path, corpus):
    path = tmp_path / "a.conll"
    path.write_text(CONLL)
    assert found_in(Gold(path)) == []
    with pytest.raises(InputError, match="no sentence of"):
        list(Gold(path).spans([Text("1-1", "another text")]))
    with pytest.raises(InputError, match="no sentence of"):
        find_mentions(corpus([("u", "text")]), Gold(path), Quiet())


def test_conll_file_to_statistics(tmp_path):
    path = tmp_path / "a.conll"
    path.write_text(CONLL)
    store = build_store(Iob(path), tmp_path)
    stats = entity_statistics(find_mentions(store, Gold(path), Quiet()))
    assert (stats.records, stats.users, stats.records_with_any, stats.entities) == (3, 2, 3, 3)
    counts = {c.category: (c.mentions, c.entities, c.records) for c in stats.categories}
    assert counts == {"person": (2, 1, 2), "org": (2, 1, 2), "misc": (1, 1, 1)}
    assert stats.records_per_entity == (1, 1, 2, 2, 2)
    assert stats.authors_per_entity == (1, 1, 2, 2, 2)
    assert stats.histogram == ((1, 1, 1), (2, 3, 2))
    assert [(e.pseudonym, e.records, e.authors) for e in stats.most_exposed[:1]] == [("entity 1", 2, 2)]
    assert "peter" not in str(stats).lower(), "no name"
    people = entity_statistics(find_mentions(store, Gold(path), Quiet()), categories=("person",))
    assert (people.entities, people.records_with_any) == (1, 2)


def test_aliases_join_names_to_each_other_and_to_users(corpus, words):
    store = corpus([("ann", "Bob Ray called"), ("bob@x.com", "Bob Ray here"), ("cid", "Robert Ray and Ann")])
    mentions = find_mentions(store, words("Bob Ray", "Robert Ray", "Ann"), Quiet())
    apart = entity_statistics(mentions)
    assert (apart.entities, apart.users_named) == (3, 1), "ann is named by the very name she writes under"
    joined = entity_statistics(mentions, aliases={"Bob Ray": "bob@x.com", "robert  ray": "bob@x.com"})
    assert (joined.entities, joined.users_named) == (2, 2)
    assert joined.records_per_entity[-1] == 3, "Bob Ray, Bob Ray and Robert Ray are one person"
    assert apart.records_per_user == (1, 1, 1, 2, 2), "ann wrote one and is named in another"
    assert joined.records_per_user == (1, 1, 2, 3, 3), "bob wrote one and is named in two others"
    nobody = entity_statistics(mentions, aliases={"Bob Ray": "Robert Ray"})
    assert (nobody.entities, nobody.users_named) == (2, 1)


def test_what_was_found_is_kept_and_found_again(corpus, words, tmp_path):
    store = corpus([("u", f"Ann {i}") for i in range(50)])
    searched = Quiet()
    first = find_mentions(store, words("Ann"), searched)
    again = find_mentions(store, words("Ann"), searched)
    assert (searched.searched, first.path) == (50, again.path)
    other = find_mentions(store, words("Ann", "Bob"), searched)
    assert (searched.searched, other.path == first.path) == (100, False), "another list is another search"
    elsewhere = find_mentions(corpus([("u", "Ann")], "d"), words("Ann", "Bob"), searched)
    assert elsewhere.path.parent != other.path.parent
    assert first.path.stat().st_mode & 0o077 == 0, "names of people are for the owner alone"


def test_nothing_half_searched_is_kept(corpus):
    store = corpus([("u", "one"), ("u", "two")])
    seen = []

    def breaks(text):
        seen.append(text)
        if len(seen) == 2:
            raise RuntimeError("stopped")
        return [Span(0, 1, "person")]

    with pytest.raises(RuntimeError):
        find_mentions(store, Function(breaks, "breaks 1"), Quiet())
    assert list(store.folder.glob("entities/*")) == []
    assert find_mentions(store, Function(lambda _: [Span(0, 1, "person")], "breaks 1"), Quiet()).table().num_rows == 2


def test_a_source_sees_one_record_at_a_time(corpus, words):
    """What is found in a text does not change with the texts around it."""
    texts = [f"Ann Lee {i} and Bob" for i in range(30)] + ["Ann", "Lee"]
    source = words("Ann Lee", "Bob", "Lee")
    together = found_in(source, *texts)
    assert together == [found_in(source, text)[0] for text in texts]
    assert found_in(source, *reversed(texts)) == together[::-1]


def test_functions_must_stay_inside_the_text():
    with pytest.raises(InputError, match=r"mine: span 0..9 lies outside record 7, which has 3 characters"):
        list(Function(lambda _: [Span(0, 9, "person")], "mine").spans([Text("7", "abc")]))


def test_agreement_counts_matches_and_touches(corpus):
    store = corpus([("u", "Ann Lee met Bob")])

    def mentions(name, *spans):
        return find_mentions(store, Function(lambda _: list(spans), name), Quiet())

    gold = mentions("gold", Span(0, 7, "person"), Span(12, 15, "person"))
    found = mentions("found", Span(0, 3, "person"), Span(12, 15, "person"), Span(8, 11, "org"))
    whole, people, orgs = agreement(found, gold)
    assert (whole.category, whole.annotated, whole.found, whole.matched, whole.covered) == ("all", 2, 3, 1, 2)
    assert (people.recall, people.precision) == (0.5, 0.5)
    assert (orgs.recall, orgs.precision) == (None, 0.0)
    assert all(row.recall == row.precision == 1.0 for row in agreement(gold, gold))


def test_exactly_one_source_is_asked_for(tmp_path):
    path = tmp_path / "a.conll"
    path.write_text(CONLL)
    assert chosen_source(Iob(path), gold=True) == Gold(path)
    assert chosen_source(Iob(path), patterns=["url", "email"]) == Patterns(("email", "url"))
    wrong = [
        ({}, "give one source"),
        ({"gold": True, "pipeline": "x"}, "give one source"),
        ({"patterns": ["name"]}, "--pattern name is unknown"),
        ({"words": tmp_path / "none.txt"}, "no such file"),
    ]
    for asked, said in wrong:
        with pytest.raises(InputError, match=said):
            chosen_source(Iob(path), **asked)
    with pytest.raises(InputError, match="the corpus is none"):
        chosen_source(JsonLines(tmp_path / "x.jsonl"), gold=True)


def test_a_missing_pipeline_and_one_without_entities_are_one_line(tmp_path):
    spacy = pytest.importorskip("spacy", reason="the extra 'entities' is not installed")
    with pytest.raises(InputError, match="no spaCy pipeline 'nowhere'"):
        SpacyPipeline("nowhere").fingerprint()
    spacy.blank("en").to_disk(tmp_path / "blank")
    with pytest.raises(InputError, match="finds no entities"):
        list(SpacyPipeline(str(tmp_path / "blank")).spans([Text("1", "Ann")]))


def test_a_pipeline_from_a_folder_is_known_by_its_files(tmp_path):
    spacy = pytest.importorskip("spacy", reason="the extra 'entities' is not installed")
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
    with pytest.raises(InputError, match=r"pip install 'heldin\[entities\]'"):
        list(source.spans([Text("1", "Ann")]))


def test_caps_are_tried_on_what_was_found(corpus, words):
    store = corpus([("ann", "Bob"), ("cid", "Bob and Dee"), ("cid", "Dee"), ("cid", "nobody"), ("eve", "Bob")])
    found = find_mentions(store, words("Bob", "Dee"), Quiet())
    named = incidence(found)
    assert [sorted(named.entities[named.starts[i] : named.starts[i + 1]].tolist()) for i in range(5)] == [
        [0],
        [0, 1],
        [1],
        [],
        [0],
    ]
    assert (named.count, named.records_of().tolist()) == (2, [3, 2])
    outcome = caps_outcome(found, group_size=2, entity_cap=1)
    assert outcome.kept_by_group_size == 4
    assert outcome.kept in (2, 3), "one text of Bob's, one of Dee's or one of both, and the one that names nobody"
    assert caps_outcome(found, group_size=9, entity_cap=9).kept == 5
    joined = incidence(found, aliases={"Dee": "Bob"})
    assert (joined.count, joined.records_of().tolist()) == (1, [4])


def test_published_counts_of_conll(data_dir, tmp_path):
    """The counts of docs/user-entity-dp.md; the paper's own come out under no reading of the file."""
    gold = data_dir / "conll2003" / "eng.train.gz"
    store = build_store(Iob(gold), tmp_path)
    found = find_mentions(store, Gold(gold), Quiet())
    stats = entity_statistics(found)
    counts = {c.category: c.records for c in stats.categories}
    assert (stats.records, stats.users, stats.records_with_any) == (14_041, 946, 11_132)
    assert counts == {"loc": 5_127, "org": 4_587, "person": 4_373, "misc": 2_698}
    assert counts.items().isdisjoint({"loc": 5_433, "org": 5_187, "person": 4_406, "misc": 3_438}.items())
    outcome = caps_outcome(found, group_size=16, entity_cap=4)
    assert outcome.kept_by_group_size == 10_374
    assert 7_000 < outcome.kept < 7_400


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


def test_a_text_that_is_too_long_for_spacy_is_one_line(tmp_path):
    spacy = pytest.importorskip("spacy", reason="the extra 'entities' is not installed")
    pipeline = spacy.blank("en")
    pipeline.add_pipe("entity_ruler").add_patterns([{"label": "PERSON", "pattern": "Ann"}])
    pipeline.to_disk(tmp_path / "ruler")
    source = SpacyPipeline(str(tmp_path / "ruler"))
    with pytest.raises(InputError, match="record 7 has 1,000,001 characters"):
        list(source.spans([Text("7", "x" * 1_000_001)]))
    (tmp_path / "ruler" / "meta.json").write_text("{}")
    (tmp_path / "ruler" / "config.cfg").write_text("[nlp]\nbroken")
    with pytest.raises(InputError, match="no spaCy pipeline"):
        list(SpacyPipeline(str(tmp_path / "ruler")).spans([Text("1", "x")]))
