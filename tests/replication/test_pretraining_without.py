"""Pre-training without the fine-tuning data: planted copies and URLs go, others stay; nobody is given a guarantee."""

import json
import random

import pytest
import yaml

from heldin.base.progress import LineReporter
from heldin.defenses.data_side.deduplicate import shingles
from heldin.defenses.texts import near_duplicates
from heldin.jobs.check.check_run import check_run
from heldin.jobs.run import run
from heldin.record.document import read_record
from heldin.stages.run_config import load_config, parse_config
from heldin.stages.sides.public import CHOSEN, require_unchosen
from heldin.stages.train.plan import mechanism_of
from replication.pretraining_without import _address
from tests.conftest import SMALL
from tests.refusals import names, refused

ULS = {
    "kind": "uls",
    "population": 60,
    "cohort": 6,
    "steps": 5,
    "delta": 1e-3,
    "noise_multiplier": 1.0,
    "group_size": 4,
}


def text_of(dice, words=60):
    return " ".join(f"w{dice.randrange(5000)}" for _ in range(words))


def changed(dice, text, words):
    """The text with its last words changed: of n words and 5-grams, n - 4 - words n-grams stay."""
    return " ".join([*text.split()[:-words], *text_of(dice, words).split()])


def write(path, lines):
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return path


@pytest.fixture
def corpora(tmp_path):
    """Private mails with URLs; and a public corpus, by what is planted in it."""
    dice = random.Random(4)
    private = [text_of(dice) for _ in range(40)]
    where = [f"https://www.news.example/{i}/" for i in range(40)]
    own = [{"user": f"u{i % 5}", "text": t, "page": where[i]} for i, t in enumerate(private)]
    own += [{"user": "u0", "text": "Thanks, see you", "page": None}, {"user": "u1", "text": "Bye now", "page": " "}]
    public = {
        "copy": (private[0], "http://a.example/0"),
        "short copy": ("Thanks,  see\nyou", "http://a.example/1"),
        # 53 of 59 n-grams in common, and 36 of 76.
        "near copy": (changed(dice, private[1], 3), "http://a.example/2"),
        "far copy": (changed(dice, private[2], 20), "http://a.example/3"),
        "page": (text_of(dice), "http://news.example/7#top"),
        "page of another": (text_of(dice), "http://news.example/70"),
        "host": (text_of(dice), "https://www.Forum.example:443/q?id=1"),
        "subdomain": (text_of(dice), "meta.forum.example"),
        "other host": (text_of(dice), "http://notforum.example/"),
        "no url": (text_of(dice), None),
        "blank url": (text_of(dice), ""),
        "broken url": (text_of(dice), "http://[forum.example/"),
    }
    twice = text_of(dice)
    public |= {"own copy 1": (twice, "http://a.example/4"), "own copy 2": (twice, "http://a.example/5")}
    write(tmp_path / "own.jsonl", own)
    write(tmp_path / "web.jsonl", [{"who": name, "body": t, "url": u} for name, (t, u) in public.items()])
    return tmp_path, public


def config_of(folder, **sections):
    web = {"kind": "jsonl", "path": str(folder / "web.jsonl"), "columns": {"user": "who", "text": "body"}}
    pretrain = {**SMALL["model"]["pretrain"], "source": web}
    corpus = {"source": {"kind": "jsonl", "path": str(folder / "own.jsonl")}, "users": {"min_records": 4}}
    content = {**SMALL, "corpus": corpus, "model": {"pretrain": pretrain}, **sections}
    (folder / "run.yaml").write_text(yaml.safe_dump(content), encoding="utf-8")
    return folder / "run.yaml"


def users_in(path):
    return {json.loads(line)["user"] for line in path.read_text(encoding="utf-8").splitlines()}


def test_planted_copies_and_urls_are_removed_and_others_stay(replicate, corpora):
    folder, public = corpora
    config, out = config_of(folder), folder / "clean.jsonl"
    options = ("--url", "url", "--fine-tuning-url", "page", "--host", "Forum.example")
    code, printed, err = replicate("pretraining-without", config, "--out", out, *options)
    assert code == 0, err
    copies, from_urls = {"copy", "short copy", "near copy"}, {"page", "host", "subdomain"}
    assert users_in(out) == set(public) - copies - from_urls
    facts = json.loads((folder / "clean.json").read_text(encoding="utf-8"))
    counts = {"compared": 42, "records": 14, "near_duplicates": 3, "urls": 3, "without_url": 2, "left": 8}
    assert counts.items() <= facts.items()
    assert names(printed, "14", "3", "8", "no DP guarantee", "base_model_saw_protected")
    assert (out.stat().st_mode & 0o077, (folder / "clean.json").stat().st_mode & 0o077) == (0, 0)
    # Without URLs, only copies go; and what is written is a corpus to pre-train on.
    code, printed, err = replicate("pretraining-without", config, "--out", folder / "texts.jsonl", "--json")
    assert (code, json.loads(printed)["urls"], users_in(folder / "texts.jsonl")) == (0, 0, set(public) - copies)
    cleaned = load_config(config, [f"model.pretrain.source={{kind: jsonl, path: {folder}/texts.jsonl}}"])
    run(cleaned, folder / "run", LineReporter(lambda line: None), command="heldin run")
    record = read_record(folder / "run" / "record.json")
    assert (record.corpus.public_users, record.split.overlaps.audited_texts_in_public.count) == (11, 0)


@pytest.mark.parametrize("direct", [1000, 20])
def test_the_slow_twin_compares_every_pair_of_n_grams(replicate, tmp_path, monkeypatch, direct):
    monkeypatch.setattr(near_duplicates, "DIRECT", direct)
    dice = random.Random(direct)
    private = [text_of(dice) for _ in range(60)]
    # Public texts also resemble each other, which removes none of them.
    public = [changed(dice, dice.choice(private), dice.choice([1, 2, 40, 50])) for _ in range(90)]
    public += [changed(dice, dice.choice(public), 1) for _ in range(30)] + [text_of(dice) for _ in range(30)]
    write(tmp_path / "own.jsonl", [{"user": f"u{i % 6}", "text": t} for i, t in enumerate(private)])
    write(tmp_path / "web.jsonl", [{"who": f"{i:03}", "body": t} for i, t in enumerate(public)])
    code, _, err = replicate("pretraining-without", config_of(tmp_path), "--out", tmp_path / "out.jsonl")
    assert code == 0, err

    def jaccard(a, b):
        first, second = set(shingles(a, 5)), set(shingles(b, 5))
        return len(first & second) / len(first | second)

    closest = [max(jaccard(text, other) for other in private) for text in public]
    # None so near to the threshold that the estimate could err.
    assert not [its for its in closest if 0.5 < its < 0.88]
    expected = {f"{i:03}" for i, its in enumerate(closest) if its < 0.8}
    assert users_in(tmp_path / "out.jsonl") == expected
    assert 30 < len(expected) < 120


@pytest.mark.parametrize(
    ("sections", "options", "naming"),
    [
        ({"defense": ULS}, (), ("uls", "defense.base_model_saw_protected")),
        # No guarantee, and yet an epsilon that holds without the assumption would be stated.
        ({"defense": {**ULS, "sampler": "shuffled"}}, (), "defense.base_model_saw_protected"),
        ({"model": {"base": "some/model"}}, (), "model.pretrain.source"),
        ({"model": SMALL["model"]}, (), "model.pretrain.source"),
        ({}, ("--host", "forum.example"), "--url"),
        ({}, ("--url", "url"), ("--fine-tuning-url", "--host")),
        ({}, ("--url", "link", "--host", "forum.example"), "'link'"),
        ({}, ("--url", "url", "--fine-tuning-url", "link"), "'link'"),
        ({"corpus": SMALL["corpus"]}, ("--url", "url", "--fine-tuning-url", "page"), ("synthetic", "'page'")),
        ({}, ("--threshold", "0"), "--threshold"),
        ({}, ("--set", "model.pretrain.source={kind: jsonl, path: FOLDER/own.jsonl}"), "42"),
        ({}, ("--url", "url", "--host", " "), "--host"),
    ],
)
def test_what_cannot_be_cleaned_is_refused_in_one_line(replicate, corpora, sections, options, naming):
    folder, _ = corpora
    options = [option.replace("FOLDER", str(folder)) for option in options]
    code, _, err = replicate(
        "pretraining-without", config_of(folder, **sections), "--out", folder / "x.jsonl", *options
    )
    assert code == 2
    assert names(err, *([naming] if isinstance(naming, str) else naming))
    assert not list(folder.glob("x.*"))


def test_urls_of_a_published_file_are_read_beside_its_preset(replicate, corpora):
    folder, public = corpora
    lines = [json.loads(line) for line in (folder / "own.jsonl").read_text(encoding="utf-8").splitlines()]
    articles = [
        {"domain": its["user"], "text": its["text"], "date": "2018-01-01", "page": its["page"]} for its in lines
    ]
    write(folder / "news.jsonl", articles)
    corpus = {"source": {"kind": "preset", "name": "cc_news", "path": str(folder / "news.jsonl")}}
    config, options = config_of(folder, corpus=corpus), ("--url", "url", "--fine-tuning-url")
    assert replicate("pretraining-without", config, "--out", folder / "x.jsonl", *options, "page")[0] == 0
    assert users_in(folder / "x.jsonl") == set(public) - {"copy", "short copy", "near copy", "page"}
    code, _, err = replicate("pretraining-without", config, "--out", folder / "y.jsonl", *options, "link")
    assert (code, names(err, "'link'", "news.jsonl")) == (2, True)


def test_files_are_not_replaced(replicate, corpora):
    folder, _ = corpora
    for taken in ("x.jsonl", "x.json"):
        (folder / taken).touch()
        code, _, err = replicate("pretraining-without", config_of(folder), "--out", folder / "x.jsonl")
        assert (code, names(err, "--out")) == (2, True)
        (folder / taken).unlink()
    assert replicate("pretraining-without", config_of(folder), "--out", folder / "x.parquet")[0] == 2


def test_a_private_run_on_what_was_cleaned_has_no_guarantee(replicate, corpora):
    folder, _ = corpora
    config = config_of(folder, defense={**ULS, "base_model_saw_protected": True})
    assert replicate("pretraining-without", config, "--out", folder / "x.jsonl")[0] == 0
    mechanism = mechanism_of(parse_config(yaml.safe_load(config.read_text(encoding="utf-8")), "test"), plain_steps=1)
    assert mechanism.epsilon() == float("inf")


def test_a_private_run_on_what_a_plain_config_cleaned_is_refused(replicate, corpora):
    """The file next to the corpus says what chose it, whoever wrote the config of the run."""
    folder, _ = corpora
    assert replicate("pretraining-without", config_of(folder), "--out", folder / "x.jsonl")[0] == 0
    assert json.loads((folder / "x.json").read_text(encoding="utf-8"))[CHOSEN] is True
    on_it = [f"model.pretrain.source={{kind: jsonl, path: {folder}/x.jsonl}}"]
    reporter = LineReporter(lambda line: None)
    private = load_config(config_of(folder, defense=ULS), on_it)
    with refused(by=require_unchosen, naming=("x.json", "base_model_saw_protected")):
        run(private, folder / "run", reporter, command="heldin run")
    assert any("base_model_saw_protected" in problem for problem in check_run(private, folder / "run").problems)
    packed = load_config(config_of(folder, defense=ULS), [on_it[0].replace("x.jsonl", "x.jsonl.gz")])
    with refused(by=require_unchosen, naming="x.json"):
        require_unchosen(packed)
    declared = load_config(config_of(folder, defense={**ULS, "base_model_saw_protected": True}), on_it)
    for config in (declared, load_config(config_of(folder), on_it), load_config(config_of(folder, defense=ULS))):
        require_unchosen(config)


@pytest.mark.parametrize(
    ("one", "another", "same"),
    [
        ("http://www.a.example/x/", "HTTPS://A.example:8080/x#y", True),
        ("a.example/x", "http://a.example/x", True),
        ("http://a.example/x?y=1", "http://a.example/x?y=2", False),
        ("http://a.example/X", "http://a.example/x", False),
        ("a.example/?u=http://b.example", "http://b.example", False),
    ],
)
def test_addresses_that_are_one_page(one, another, same):
    assert (_address(one) == _address(another)) is same
