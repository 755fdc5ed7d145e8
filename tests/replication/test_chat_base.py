"""The Llama-shaped chat model of the replication: what it has read, and that adapters train on it."""

from dataclasses import replace

import pytest
from transformers import AutoConfig

from heldin.corpus.chat.template import CHATML
from heldin.corpus.made_up.synthetic import SyntheticCorpus
from heldin.models.opening import load_language_model
from replication.chat_base import PUBLIC, RECIPE, steps_of, write_chat_base
from tests.refusals import refused

FEW = SyntheticCorpus(users=6, mean_records=4, min_records=4, seed=977)
SHORT = replace(RECIPE, epochs=1)


def test_a_chat_model_is_left_in_a_new_folder(tmp_path):
    steps = []
    write_chat_base(tmp_path / "base", public=FEW, recipe=SHORT, hidden=16, layers=1, advance=steps.append)
    assert len(steps) == steps_of(FEW, SHORT)
    assert AutoConfig.from_pretrained(tmp_path / "base").model_type == "llama"
    assert load_language_model(str(tmp_path / "base")).tokenizer.chat_template == CHATML
    with refused(by="write_chat_base", naming=f"'{tmp_path / 'base'}'"):
        write_chat_base(tmp_path / "base", public=FEW, recipe=SHORT)


@pytest.mark.parametrize("seed", [0, 1])
def test_its_people_are_in_no_corpus_of_a_usual_seed(seed):
    from heldin.corpus.made_up.synthetic import generate

    texts = {record.text for record in generate(replace(PUBLIC, users=40))}
    assert not texts & {record.text for record in generate(replace(PUBLIC, users=40, seed=seed))}
