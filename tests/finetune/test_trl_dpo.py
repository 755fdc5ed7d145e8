"""Preference pairs become the same tokens, masks and losses as in TRL's DPOTrainer."""

import pyarrow as pa
import pytest
import torch

from heldin.corpus.chat.columns import TurnColumns
from heldin.corpus.chat.conversation import RowFormat
from heldin.corpus.chat.template import ChatTemplate
from heldin.corpus.document import Counting
from heldin.corpus.sources.rows import Columns
from heldin.corpus.store import documents_in
from heldin.finetune.batches import collate, encode
from heldin.finetune.preferences import preference_records
from heldin.models.loading import LanguageModel
from heldin.models.preference import DirectPreference, OddsRatioPreference
from tests.chats import TEMPLATES, chat, chat_model, tokenizer_with

pytestmark = [
    pytest.mark.slow,  # TRL alone takes seconds to import
    pytest.mark.filterwarnings("ignore::FutureWarning"),  # of what TRL calls in transformers
]

CPU = torch.device("cpu")
PAIRS = [
    (chat("What is new?"), "Nothing is.", "It rains."),
    (chat("What is new?", "Nothing is.", "And what else?"), "a longer answer here", "Fine, then."),
]


def rows(*, prompt=True):
    made = []
    for before, chosen, rejected in PAIRS:
        answers = [[{"role": "assistant", "content": answer}] for answer in (chosen, rejected)]
        if prompt:
            made.append({"prompt": before, "chosen": answers[0], "rejected": answers[1]})
        else:
            made.append({"chosen": before + answers[0], "rejected": before + answers[1]})
    return made


def of_trl(source, given, tmp_path, **options):
    """Ids, completion masks and loss of each pair, in a batch of one; the trained model is not its reference."""
    from datasets import Dataset
    from trl import DPOConfig, DPOTrainer

    how = {"use_cpu": True, "bf16": False, "activation_checkpointing": False, "report_to": []}
    config = DPOConfig(output_dir=str(tmp_path), max_length=None, **how, **options)
    trainer = DPOTrainer(
        chat_model(1),
        chat_model(),
        args=config,
        train_dataset=Dataset.from_list(given),
        processing_class=tokenizer_with(source),
    )
    trainer.model.eval()  # as DPO has no dropout
    found = []
    for row in trainer.train_dataset:
        batch = trainer.data_collator([row])
        with torch.no_grad():
            loss = trainer.compute_loss(trainer.model, batch)
        ids = [row["prompt_ids"] + row[name] for name in ("chosen_ids", "rejected_ids")]
        masks = [[False] * len(row["prompt_ids"]) + [True] * len(row[name]) for name in ("chosen_ids", "rejected_ids")]
        found.append((ids, masks, float(loss)))
    return found


def documents(source, given):
    template = None if source is None else ChatTemplate.of(tokenizer_with(source), "a model")
    columns = TurnColumns.of(Columns(), RowFormat.PREFERENCE, "chosen", template, Counting.COMPLETION)
    records = [columns.record({"user": "ann", **row}) for row in given]
    assert [wrong for _, wrong in records] == [None] * len(given)
    batch = pa.RecordBatch.from_pylist([record for record, _ in records], schema=columns.schema)
    return documents_in(batch)


def of_heldin(source, given, objective):
    tokenizer = tokenizer_with(source)
    base = LanguageModel(chat_model(), tokenizer, "the base", "")
    pairs = preference_records(base, encode(tokenizer, documents(source, given), None), objective, "fp32")
    model, found = chat_model(1), []
    for pair in pairs:
        with torch.no_grad():
            (loss,) = collate([pair], CPU).record_losses(model)
        answers = pair.rows()
        ids = [[int(id_) for id_ in row.ids] for row in answers]
        found.append((ids, [row.counted.tolist() for row in answers], float(loss)))
    return found


def require_same(ours, theirs):
    for (ids, masks, loss), (their_ids, their_masks, their_loss) in zip(ours, theirs, strict=True):
        assert ids == their_ids
        assert [mask[1:] for mask in masks] == [mask[1:] for mask in their_masks]  # nothing predicts the first token
        assert loss == pytest.approx(their_loss, abs=1e-5)


@pytest.mark.parametrize("prompt", [True, False])
@pytest.mark.parametrize("name", TEMPLATES)
def test_pairs_of_messages(name, prompt, tmp_path):
    theirs = of_trl(TEMPLATES[name], rows(prompt=prompt), tmp_path)
    require_same(of_heldin(TEMPLATES[name], rows(prompt=prompt), DirectPreference()), theirs)


@pytest.mark.parametrize("beta", [0.01, 0.5, 2.0])
def test_beta(beta, tmp_path):
    theirs = of_trl(TEMPLATES["chatml"], rows(), tmp_path, beta=beta)
    require_same(of_heldin(TEMPLATES["chatml"], rows(), DirectPreference(beta)), theirs)


def test_label_smoothing_takes_a_share_of_each_pair_the_other_way_round(tmp_path):
    # TRL's sigmoid loss has none since it moved to its robust loss.
    turned = [{**row, "chosen": row["rejected"], "rejected": row["chosen"]} for row in rows()]
    right, wrong = (of_trl(TEMPLATES["chatml"], given, tmp_path) for given in (rows(), turned))
    ours = of_heldin(TEMPLATES["chatml"], rows(), DirectPreference(label_smoothing=0.2))
    for (*_, loss), (*_, as_given), (*_, as_turned) in zip(ours, right, wrong, strict=True):
        assert loss == pytest.approx(0.8 * as_given + 0.2 * as_turned, abs=1e-5)


@pytest.mark.parametrize("prompt", [True, False])
def test_pairs_of_texts_but_for_the_start_token(prompt, tmp_path):
    texts = {"chosen": "Nothing is.", "rejected": "It rains."}
    asked = "What is new? "
    given = [{"prompt": asked, **texts} if prompt else {name: asked + text for name, text in texts.items()}]
    ((their_ids, their_masks, _),) = of_trl(None, given, tmp_path)
    ((ids, masks, _),) = of_heldin(None, given, DirectPreference())
    assert [row[1:] for row in ids] == their_ids
    assert [row[1:] for row in masks] == their_masks


@pytest.mark.filterwarnings("ignore")  # of a part of TRL that may change
def test_the_odds_ratio(tmp_path):
    from trl.experimental.orpo import ORPOConfig, ORPOTrainer

    given, tokenizer = rows(), tokenizer_with(TEMPLATES["chatml"])
    pairs = preference_records(
        LanguageModel(chat_model(), tokenizer, "the base", ""),
        encode(tokenizer, documents(TEMPLATES["chatml"], given), None),
        OddsRatioPreference(0.3),
        "fp32",
    )
    theirs = ORPOTrainer.__new__(ORPOTrainer)
    theirs.beta, theirs.accelerator = 0.3, type("Accelerator", (), {"device": CPU})()
    for pair in pairs:
        batch = collate([pair], CPU)
        with torch.no_grad():
            logits = chat_model(1)(input_ids=batch.inputs).logits
            means = -torch.nn.functional.cross_entropy(
                logits.transpose(1, 2), batch.targets, ignore_index=-100, reduction="none"
            ).sum(1) / (batch.targets != -100).sum(1)
            losses, *_ = theirs.odds_ratio_loss(means[:1], means[1:])
            expected = -means[0] - losses.mean()  # as its ``get_batch_loss_metrics`` adds them up
            (found,) = batch.record_losses(chat_model(1))
        assert float(found) == pytest.approx(float(expected), abs=1e-5)
    assert ORPOConfig.beta == 0.1
