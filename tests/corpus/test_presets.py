"""Each preset's steps and thresholds, at their edges; what a step may look at; config, plan and command line."""

import gzip
import random

import datasets
import pytest
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from heldin.corpus.build import build_store
from heldin.corpus.presets.catalogue import PRESETS, PresetSource, preset_outcome
from heldin.corpus.presets.posts import plain_text
from heldin.corpus.presets.published import WORDS, PresetTokens
from heldin.corpus.presets.source import preset_tokens
from heldin.corpus.presets.tables import arxiv_year, is_person
from heldin.corpus.sources.bad_rows import BadRows, OnBadRows
from heldin.corpus.user_filter import UserFilter
from heldin.stages.run_config import parse_config
from heldin.stages.train.plan import mechanism_of
from tests.published_files import (
    article,
    comment,
    csv_file,
    json_lines,
    maildir,
    paper,
    parquet,
    post,
    posts_xml,
    preset_rows,
    sent_mail,
    summary,
    words,
)
from tests.refusals import names, refused

SEPTEMBER, MARCH = 1441065600, 1456790400  # 2015-09-01 and 2016-03-01, 00:00 UTC


# Reddit


def test_reddit_keeps_long_comments_of_the_six_months_by_people(tmp_path):
    long, short = words(250), words(249)
    rows = [
        comment("ann", long + " first", SEPTEMBER, "a"),
        comment("ann", long + " last", str(MARCH - 1), "b"),
        comment("ann", long, SEPTEMBER - 1, "early"),
        comment("ann", long, MARCH, "late"),
        comment("ann", short, SEPTEMBER + 5, "short"),
        comment("AutoModerator", long, SEPTEMBER, "mod"),
        comment("RoBoT_9", long, SEPTEMBER, "bot"),
        comment("[deleted]", long, SEPTEMBER, "deleted"),
    ]
    kept = preset_rows("reddit", json_lines(tmp_path, rows, "RC_2015-09.zst"))
    assert [r["id"] for r in kept] == ["a", "b"]
    assert [r["date"] for r in kept] == ["2015-09-01T00:00:00+00:00", "2016-02-29T23:59:59+00:00"]
    assert not is_person("subModule")
    assert is_person("bo_t")


def test_the_small_reddit_ends_with_2015(tmp_path):
    last = SEPTEMBER + 122 * 86_400 - 1  # September to December
    rows = [comment("ann", words(250), second, f"{second}") for second in (SEPTEMBER, last, last + 1)]
    assert [r["id"] for r in preset_rows("reddit-small", json_lines(tmp_path, rows, "RC.zst"))] == [
        f"{SEPTEMBER}",
        f"{last}",
    ]


def test_two_thousand_comments_stay_and_one_more_drops_the_user_over_all_files_and_lengths(tmp_path):
    """The count is of comments of every length, before the short ones go, and over the whole folder."""
    rows = [comment("ann", "short", SEPTEMBER + i, f"a{i}") for i in range(1999)]
    rows += [comment("ann", words(250), SEPTEMBER, "long"), comment("bob", words(250), SEPTEMBER, "bob")]
    json_lines(tmp_path, rows, "RC_2015-09.zst")
    assert [r["id"] for r in preset_rows("reddit", tmp_path)] == ["long", "bob"]
    json_lines(tmp_path, [comment("ann", "early", SEPTEMBER - 1, "e")], "RC_2015-08.zst")
    assert [r["id"] for r in preset_rows("reddit", tmp_path)] == ["long", "bob"]
    json_lines(tmp_path, [comment("ann", "short", MARCH - 1, "one more")], "RC_2016-02.zst")
    assert [r["id"] for r in preset_rows("reddit", tmp_path)] == ["bob"]
    assert [step.record_local for step in PRESETS["reddit"].steps] == [True, True, False, True]


def test_tokens_are_words_unless_a_tokenizer_says_otherwise(tmp_path):
    path = json_lines(tmp_path, [comment("ann", "x" * 250, SEPTEMBER)], "RC_2015-09")
    letters = PresetTokens("letters", list)
    assert preset_rows("reddit", path) == []
    assert len(preset_rows("reddit", path, letters)) == 1
    preset = PRESETS["reddit"]
    assert PresetSource(preset, path).fingerprint() != PresetSource(preset, path, letters).fingerprint()
    assert preset_tokens(None) is WORDS


def test_a_models_tokenizer_counts_its_own_tokens(tmp_path):
    def save(name, vocabulary):
        words = Tokenizer(models.WordLevel(vocabulary, unk_token="?"))
        words.pre_tokenizer = pre_tokenizers.Split("-", "removed")
        PreTrainedTokenizerFast(tokenizer_object=words, unk_token="?").save_pretrained(tmp_path / name)
        return preset_tokens(str(tmp_path / name))

    tokens = save("t", {"?": 0, "a": 1})
    assert len(tokens.split("a-b-a a-a")) == 4
    assert tokens.name != save("t", {"?": 0, "a": 1, "b": 2}).name
    path = json_lines(
        tmp_path, [comment("ann", "-".join("a" * n), SEPTEMBER, f"{n}") for n in (249, 250)], "RC_2015-09"
    )
    assert [r["id"] for r in preset_rows("reddit", path, tokens)] == ["250"]


def test_a_comment_without_a_time_is_a_bad_row(tmp_path):
    rows = [comment("ann", words(250), SEPTEMBER, "a"), comment("ann", words(250), None, "b"), ["no", "comment"]]
    path = json_lines(tmp_path, rows, "RC_2015-09")
    with refused(by="kept", naming=("RC_2015-09", "row 2", "'created_utc'")):
        preset_rows("reddit", path)
    bad = BadRows(OnBadRows.SKIP)
    assert [r["id"] for r in preset_rows("reddit", path, bad=bad)] == ["a"]
    assert bad.skipped == 2


# CC News, ArXiv, BookSum


def test_cc_news_by_domain_with_duplicates_from_parquet_and_a_saved_dataset(tmp_path):
    rows = [article("a.org", "Text.", 1), article("a.org", "Text.", 2), article("b.org", "Other.", 3)]
    datasets.Dataset.from_list(rows).save_to_disk(str(tmp_path / "saved"))
    path = parquet(tmp_path, rows, "train-00000-of-00001.parquet")
    expected = [("a.org", "Text."), ("a.org", "Text."), ("b.org", "Other.")]
    for place in (path, tmp_path / "saved"):
        assert [(r["user"], r["text"]) for r in preset_rows("cc_news", place)] == expected
    assert PresetSource(PRESETS["cc_news"], tmp_path / "saved").fingerprint()
    datasets.DatasetDict({"train": datasets.Dataset.from_list(rows)}).save_to_disk(str(tmp_path / "splits"))
    with refused(by="table_files", naming="splits"):
        preset_rows("cc_news", tmp_path / "splits")


def test_arxiv_by_submitter_through_2021(tmp_path):
    rows = [
        paper("0704.0001", "Ann One", "  We count.\n"),
        paper("math/9912001", "Ann One", "  Old.\n"),
        paper("2112.99999", "Ann One", "  Last.\n"),
        paper("2201.00001", "Ann One", "  Too late.\n"),
        paper("0704.0002", None, "  Nobody's.\n"),
    ]
    kept = preset_rows("arxiv", json_lines(tmp_path, rows, "arxiv-metadata-oai-snapshot.json"))
    assert [(r["id"], r["user"], r["text"]) for r in kept] == [
        ("0704.0001", "Ann One", "  We count.\n"),
        ("math/9912001", "Ann One", "  Old.\n"),
        ("2112.99999", "Ann One", "  Last.\n"),
    ]
    assert [arxiv_year(i) for i in ("astro-ph/9107001", "hep-th/0001001", "1501.00001", "what")] == [
        1991,
        2000,
        2015,
        None,
    ]
    with refused(by="kept", naming=("row 1", "'id'", "arXiv")):
        preset_rows("arxiv", json_lines(tmp_path, [paper("what", "Ann", "x")], "a.json"))


def test_booksum_by_book(tmp_path):
    rows = [summary(27681, 'They set\nout, "early".', 1), summary(27681, "They return.", 2), summary(84, "Ice.", 3)]
    kept = preset_rows("booksum", csv_file(tmp_path, rows, "train.csv"))
    assert [(r["user"], r["text"]) for r in kept] == [
        ("27681", 'They set\nout, "early".'),
        ("27681", "They return."),
        ("84", "Ice."),
    ]


# Stack Overflow


def test_posts_of_the_dump_as_plain_text(tmp_path):
    body = (
        "<p>How do I use <code>a &lt; b</code>?</p>\n\n<pre><code>if a &lt; b:\n    go()\n</code></pre>\n<p>R&amp;D</p>"
    )
    rows = [
        post(4, 1, 8, body),
        post(7, 2, 9, "<p>So.</p>"),
        post(8, 5, 9, "<p>A tag's wiki.</p>"),
        post(9, 2, None, "<p>Nobody's.</p>"),
    ]
    kept = preset_rows("stackoverflow", posts_xml(tmp_path, rows))
    assert [(r["user"], r["id"], r["text"]) for r in kept] == [
        ("8", "4", "How do I use a < b?\n\nif a < b:\n    go()\n\nR&D"),
        ("9", "7", "So."),
    ]
    assert plain_text("<ul><li>one</li><li>two</li></ul>") == "one\n\ntwo"


def test_a_dump_that_was_cut_off_and_comments_in_its_place(tmp_path):
    path = posts_xml(tmp_path, [post(i, 1, 8, "<p>x</p>") for i in range(1, 4)])
    content = path.read_text(encoding="utf-8")
    path.write_text(content[: content.index("</posts>")], encoding="utf-8")
    with refused(by="_posts", naming=("Posts.xml", "XML", "post 3")):
        preset_rows("stackoverflow", path)
    path = posts_xml(tmp_path, [{"Id": "1", "PostId": "4", "Text": "hm", "UserId": "8"}])
    with refused(by="_posts", naming=("PostId", "UserId")):
        preset_rows("stackoverflow", path)


def test_a_damaged_archive_of_posts_and_a_folder_are_one_line(tmp_path):
    dice = random.Random(0)
    posts = [post(i, 1, 8, "".join(dice.choices("abcdefgh ", k=3000))) for i in range(1, 400)]
    whole = gzip.compress(posts_xml(tmp_path, posts).read_bytes())
    cut = tmp_path / "Posts.xml.gz"
    cut.write_bytes(whole[: len(whole) // 2])
    with refused(by="_posts", naming=("Posts.xml.gz", "gzip")):
        preset_rows("stackoverflow", cut)
    cut.write_bytes(bytes(dice.choices(range(256), k=999)))
    with refused(by="_require_what_the_name_says", naming=("Posts.xml.gz", ".gz")):
        preset_rows("stackoverflow", cut)
    for use in (lambda source: preset_rows("stackoverflow", source), lambda source: store_of("stackoverflow", source)):
        with refused(by="posts_file"):
            use(tmp_path)


def test_a_corpus_of_which_the_steps_leave_nothing_is_told_with_its_file(tmp_path):
    path = json_lines(tmp_path, [comment("ann", "too short", SEPTEMBER, "1")], "RC.zst")
    with refused(by=build_store, naming="RC.zst"):
        store_of("reddit", path)


# Users, config, plan, command line


def test_the_thresholds_are_the_papers():
    assert {name: preset.minimum for name, preset in PRESETS.items()} == {
        "enron-kandpal": 150,
        "enron-chua": None,
        "booksum": None,
        "reddit": 100,
        "reddit-small": 100,
        "cc_news": 30,
        "arxiv": 20,
        "stackoverflow": None,
    }


def store_of(name, path):
    return build_store(PresetSource(PRESETS[name], path), path.parent)


def test_the_outcome_prints_our_minimum_beside_the_papers(tmp_path):
    mails = [sent_mail("phillip.allen@enron.com", f"number {i}\n") for i in range(150)]
    mails += [sent_mail("eric.bass@enron.com", f"number {i}\n", "bass-e") for i in range(149)]
    store = build_store(PresetSource(PRESETS["enron-kandpal"], maildir(tmp_path, mails)), tmp_path)
    said = preset_outcome(PRESETS["enron-kandpal"], store)
    assert names(said, "150 records per user", "1 user", "P0 150")
    assert names(said, "136 users", "91K records", "28")


def _config(source, **corpus):
    return parse_config(
        {
            "name": "x",
            "corpus": {"source": {"kind": "preset", "path": "p", **source}, **corpus},
            "model": {"base": "some/model"},
            "finetune": {"select": "last"},
            "defense": {
                "kind": "uls", "steps": 10, "cohort": 4, "population": 100, "group_size": 2, "clip_norm": 1.0,
                "noise_multiplier": 1.0, "delta": 1e-5,
            },
        },
        "test",
    )  # fmt: skip


def test_a_config_takes_of_the_presets_users_what_it_does_not_state():
    assert _config({"name": "reddit"}).corpus.users == UserFilter(min_records=100)
    assert _config({"name": "enron-chua"}).corpus.users == UserFilter(min_records=4)
    stated = _config({"name": "reddit"}, users={"min_records": 30, "max_users": 9}).corpus.users
    assert stated == UserFilter(min_records=30, max_users=9)
    assert _config({"name": "reddit"}, users={"max_users": 9}).corpus.users == UserFilter(min_records=100, max_users=9)
    assert isinstance(_config({"name": "arxiv"}).corpus.source.source(), PresetSource)


@pytest.mark.parametrize(
    ("source", "by", "naming"),
    [
        ({"name": "enron-kandpall"}, "preset_named", ("'enron-kandpall'", "'enron-kandpal'")),
        ({"name": "arxiv", "tokeniser": "x"}, "checked", ("corpus.source.tokeniser", "'tokenizer'")),
    ],
)
def test_a_misspelt_preset_is_told(source, by, naming):
    with refused(by=by, naming=naming):
        _config(source)


def test_the_plan_takes_over_the_steps_and_voids_a_user_level_epsilon_where_one_is_not_user_local():
    def promised(name):
        mechanism = mechanism_of(_config({"name": name}), plain_steps=1)
        return mechanism.guarantee(), {str(step.name): step for step in mechanism.data_steps}

    void, steps = promised("enron-kandpal")
    not_local = [str(step.text()) for step in PRESETS["enron-kandpal"].steps if not step.user_local]
    assert len(not_local) == 1
    assert not steps[f"enron-kandpal: {not_local[0]}"].user_local
    assert type(void).__name__ != "Guarantee"
    assert not_local[0] in void.label
    for name in ("reddit", "enron-chua", "arxiv"):
        promise, steps = promised(name)
        assert type(promise).__name__ == "Guarantee", promise
        assert {f"{name}: {step.text()}" for step in PRESETS[name].steps} <= set(steps)


def test_the_command_line_builds_counts_and_lists(tmp_path, call, monkeypatch):
    monkeypatch.setenv("HELDIN_CACHE_DIR", str(tmp_path / "cache"))
    rows = [paper(f"0704.{i:04}", "Ann One", f"Abstract {i}.") for i in range(20)]
    rows += [paper(f"0705.{i:04}", "Bob Two", f"Other {i}.") for i in range(19)]
    path = json_lines(tmp_path, rows, "arxiv-metadata-oai-snapshot.json")

    for command in ("build", "stats"):
        code, out, err = call("corpus", command, "--preset", "arxiv", path)
        assert code == 0, err
        assert names(out, "arxiv", "20 records per user", "1 user", "20 records")
    code, out, _ = call("corpus", "presets")
    assert code == 0
    assert all(name in out for name in PRESETS)
    assert names(out, "2,000", "[user-local, not record-local]")
    for arguments, data in [
        (("--preset", "arxiv", "--user", "who", path), ("--preset", "--user")),
        (("--preset", "arxiv", path, path), ("--preset", "2")),
        (("--preset", "arxiv", "--ray", path), ("--preset",)),
        (("--preset", "arxif", path), ("'arxif'", "'arxiv'")),
        (("--preset", "reddit", path), (path.name, "Reddit")),
        (("--tokenizer", "x", path), ("--preset", "--tokenizer")),
    ]:
        code, out, err = call("corpus", "build", *arguments)
        assert code == 2, (arguments, out, err)
        assert names(err, *data)
