"""Chats become the same tokens, masks and losses as in TRL's SFTTrainer."""

from pathlib import Path

import pyarrow as pa
import pytest
import torch

from heldin.corpus.chat.columns import TurnColumns
from heldin.corpus.chat.conversation import RowFormat
from heldin.corpus.chat.template import ChatTemplate, MaskFrom
from heldin.corpus.document import Counting
from heldin.corpus.sources.rows import Columns
from heldin.corpus.store import documents_in
from heldin.finetune.batches import collate, encode
from heldin.models.objective import LANGUAGE_MODELLING
from heldin.models.tokens import IGNORED
from tests.chats import SAID, TEMPLATES, chat, chat_model, tokenizer_with, with_marks

pytestmark = pytest.mark.slow  # TRL alone takes seconds to import

CHATS = [
    chat("What is new?", "Nothing is."),
    chat("And what else?", "It rains.", "Fine, then.", "a longer answer here"),
]
# Templates of which TRL has a variant with generation marks that writes the same text.
KNOWN = ("llama3", "gemma", "phi3", "qwen2_5", "gemma3", "cohere", "deepseekv3")


def trl_template(name):
    import trl

    return (Path(trl.__file__).parent / "chat_templates" / f"{name}.jinja").read_text(encoding="utf-8")


def of_trl(source, rows, tmp_path, **options):
    """A trainer, and its ids, labels and loss of each row, in a batch of one."""
    from datasets import Dataset
    from trl import SFTConfig, SFTTrainer

    how = {"use_cpu": True, "bf16": False, "activation_checkpointing": False, "report_to": []}
    config = SFTConfig(output_dir=str(tmp_path), max_length=None, **how, **options)
    data = Dataset.from_list(rows)
    trainer = SFTTrainer(chat_model(), config, train_dataset=data, processing_class=tokenizer_with(source))
    found = []
    for row in trainer.train_dataset:
        batch = trainer.data_collator([row])
        with torch.no_grad():
            loss = trainer.compute_loss(trainer.model, batch)
        found.append((row["input_ids"], batch["labels"][0].tolist(), float(loss)))
    return found


def of_heldin(source, rows, form, counting):
    tokenizer = tokenizer_with(source)
    template = None if source is None else ChatTemplate.of(tokenizer, "a model")
    column = "prompt" if form is RowFormat.PROMPT_COMPLETION else "messages"
    columns = TurnColumns.of(Columns(), form, column, template, counting)
    records = [columns.record({"user": "ann", **row}) for row in rows]
    assert [wrong for _, wrong in records] == [None] * len(rows)
    batch = pa.RecordBatch.from_pylist([record for record, _ in records], schema=columns.schema)
    sequences = encode(tokenizer, documents_in(batch), None)
    model, found = chat_model(), []
    for tokens in sequences:
        counted = [True] * len(tokens) if tokens.counted is None else tokens.counted.tolist()
        labels = [int(id_) if counts else IGNORED for id_, counts in zip(tokens.ids, counted, strict=True)]
        with torch.no_grad():
            loss = LANGUAGE_MODELLING.losses(model, collate([tokens], torch.device("cpu")))
        found.append(([int(id_) for id_ in tokens.ids], labels, float(loss)))
    return template, found


def require_same(ours, theirs):
    for (ids, labels, loss), (their_ids, their_labels, their_loss) in zip(ours, theirs, strict=True):
        assert ids == their_ids
        assert labels[1:] == their_labels[1:]  # nothing predicts the first token
        assert loss == pytest.approx(their_loss, abs=1e-5)


@pytest.mark.parametrize("name", TEMPLATES)
def test_whole_chats(name, tmp_path):
    rows = [{"messages": messages} for messages in CHATS]
    theirs = of_trl(TEMPLATES[name], rows, tmp_path)
    require_same(of_heldin(TEMPLATES[name], rows, RowFormat.MESSAGES, Counting.ALL)[1], theirs)


@pytest.mark.parametrize("name", TEMPLATES)
def test_completions_of_messages(name, tmp_path):
    rows = [{"prompt": messages[:-1], "completion": messages[-1:]} for messages in CHATS]
    theirs = of_trl(TEMPLATES[name], rows, tmp_path)
    require_same(of_heldin(TEMPLATES[name], rows, RowFormat.PROMPT_COMPLETION, Counting.COMPLETION)[1], theirs)


@pytest.mark.parametrize("name", ["marked", *KNOWN])
def test_the_assistants_turns(name, tmp_path):
    source = TEMPLATES[name] if name == "marked" else trl_template(name)
    rows = [{"messages": messages} for messages in CHATS]
    theirs = of_trl(source, rows, tmp_path, assistant_only_loss=True)
    template, ours = of_heldin(source, rows, RowFormat.MESSAGES, Counting.ASSISTANT)
    assert template.mask_from is (MaskFrom.MARKS if name == "marked" else MaskFrom.VARIANT)
    require_same(ours, theirs)


@pytest.mark.parametrize("name", SAID)
def test_positions_find_the_turns_that_marks_enclose(name, tmp_path):
    # TRL trains on a template without marks only where it knows it: it gets the same template with marks.
    rows = [{"messages": messages} for messages in CHATS]
    theirs = of_trl(with_marks(name), rows, tmp_path, assistant_only_loss=True)
    template, ours = of_heldin(TEMPLATES[name], rows, RowFormat.MESSAGES, Counting.ASSISTANT)
    assert template.mask_from is MaskFrom.POSITIONS
    require_same(ours, theirs)


def test_a_text_and_its_completion_but_for_the_start_token(tmp_path):
    rows = [{"prompt": "What is new? ", "completion": "Nothing is."}]
    theirs = of_trl(None, rows, tmp_path)
    ((ids, labels, _),) = of_heldin(None, rows, RowFormat.PROMPT_COMPLETION, Counting.COMPLETION)[1]
    ((their_ids, their_labels, _),) = theirs
    assert (ids[1:], labels[1:]) == (their_ids, their_labels)
