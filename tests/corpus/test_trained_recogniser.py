"""A recogniser trained here on gold columns, without any download: what it finds is measured against them."""

import itertools
import random

import pytest

from heldin.base.progress import SilentReporter
from heldin.corpus.build import build_store
from heldin.corpus.entities.gold import tagged_spans
from heldin.corpus.entities.recognisers import SpacyPipeline
from heldin.corpus.entities.study import study_entities
from heldin.corpus.sources.iob import Iob, sentences

pytestmark = pytest.mark.usefixtures("spacy")

LABELS = {"person": "PERSON", "loc": "LOC", "org": "ORG", "misc": "MISC"}


def trained(gold, folder, steps, texts, rate=0.001, seed=0):
    """A spaCy pipeline with an entity recogniser of its own, trained on a CoNLL file and written to a folder."""
    import spacy
    from spacy.training import Example

    spacy.util.fix_random_seed(seed)
    pipeline = spacy.blank("en")
    pipeline.add_pipe("ner")
    examples = []
    for sentence in itertools.islice(sentences(gold), texts):
        spans = [(s.start, s.end, LABELS[s.category]) for s in tagged_spans(sentence)]
        examples.append(Example.from_dict(pipeline.make_doc(sentence.text), {"entities": spans}))
    generator = random.Random(seed)
    optimizer = pipeline.initialize(lambda: examples)
    optimizer.learn_rate = rate
    for _ in range(steps):
        pipeline.update(generator.sample(examples, min(64, len(examples))), sgd=optimizer, drop=0.1)
    pipeline.to_disk(folder)
    return SpacyPipeline(str(folder))


def measured(source, corpus, tmp_path):
    return study_entities(build_store(corpus, tmp_path), source, corpus, reporter=SilentReporter())


@pytest.mark.slow
def test_twenty_steps_learn_a_handful_of_sentences(data_dir, tmp_path):
    gold = tmp_path / "few.conll"
    few = itertools.islice(sentences(data_dir / "conll2003" / "eng.train.gz"), 40)
    gold.write_text("\n".join("".join(f"{a} {b}\n" for a, b in zip(s.tokens, s.tags, strict=True)) for s in few))
    source = trained(gold, tmp_path / "ner", steps=20, texts=40, rate=0.01)
    whole, *_ = measured(source, Iob(gold), tmp_path).agreement
    assert whole.annotated > 60
    assert whole.recall > 0.3
    assert whole.precision > 0.3


@pytest.mark.long
@pytest.mark.slow
def test_a_short_training_finds_most_of_it(data_dir, tmp_path):
    conll = data_dir / "conll2003"
    source = trained(conll / "eng.train.gz", tmp_path / "ner", steps=600, texts=14_041)
    found = measured(source, Iob(conll / "eng.testb.gz"), tmp_path)
    whole, *by_category = found.agreement
    print({row.category: (round(row.recall, 3), round(row.precision, 3)) for row in found.agreement})
    assert whole.recall > 0.55
    assert whole.precision > 0.55
    assert {row.category for row in by_category} == set(LABELS)
    assert found.statistics.records_with_any > 1_500
