"""The table of what was found, and what `heldin corpus entities` counts in it."""

import pytest

from heldin.corpus.build import build_store
from heldin.corpus.entities.exposure import entity_statistics
from heldin.corpus.entities.gold import Gold
from heldin.corpus.entities.incidence import incidence
from heldin.corpus.entities.mentions import find_mentions
from heldin.corpus.entities.recognisers import Function
from heldin.corpus.entities.spans import Span, Text
from heldin.corpus.entities.study import agreement
from heldin.corpus.sources.iob import Iob
from heldin.defenses.texts.caps import caps_outcome
from tests.corpus.conftest import CONLL, Quiet
from tests.refusals import refused

pytestmark = pytest.mark.usefixtures("no_network")


def test_gold_belongs_to_its_own_file(tmp_path, corpus):
    path = tmp_path / "a.conll"
    path.write_text(CONLL)
    with refused(by="Gold.spans", naming="a.conll"):
        list(Gold(path).spans([Text("1-1", "another text")]))
    with refused(by="Gold.spans", naming="a.conll"):
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
    """The counts of docs/replication/lai.md; the paper's own could not be reproduced."""
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
