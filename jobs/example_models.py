"""The example's models: a base model trained only on public users, and a model fine-tuned from the base model."""

import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from heldin.base.artefacts import INDEX
from heldin.base.files import cache_directory
from heldin.base.progress import Reporter
from heldin.corpus.chat.conversation import Conversation, conversation_of, format_of_row
from heldin.corpus.chat.template import CHATML, ChatTemplate
from heldin.corpus.document import Document
from heldin.corpus.made_up.chats import MadeUpRows
from heldin.corpus.made_up.synthetic import SyntheticRecord
from heldin.corpus.sources.rows import Columns
from heldin.finetune.batches import encode
from heldin.finetune.precision import arithmetic_of
from heldin.finetune.preferences import preference_records
from heldin.finetune.pretraining import pretrain, pretrained_folder, train_once
from heldin.finetune.recipe import Select
from heldin.models.preference import DirectPreference
from heldin.models.tokens import Tokens, as_read
from heldin.stages.run_config import parse_config
from heldin.stages.starting.files import contents


def train_models(
    folder: Path,
    public: Sequence[SyntheticRecord],
    training: Sequence[SyntheticRecord],
    reporter: Reporter,
    rows: MadeUpRows,
) -> None:
    """Train ``folder``/base on public users only. Fine-tune this model on the members' texts as ``folder``/model.

    Args:
        public: records of public users.
        training: records of members.
        rows: type of the rows; for preference pairs, fine-tuning is direct preference optimisation.
    """
    built_in = parse_config(contents("built_in"), "the built-in config")
    assert built_in.model.pretrain is not None
    shape, recipe = built_in.model.pretrain.shape, built_in.model.pretrain.recipe
    template = ChatTemplate(CHATML, {}) if rows.have_turns else None

    def document(mail: SyntheticRecord) -> Document:
        if template is None:
            return Document.of(mail.text)
        row = rows.content(mail)
        form, column = format_of_row(row, Columns())
        conversation = conversation_of(row, form, column)
        assert isinstance(conversation, Conversation)
        return template.document(conversation).counting(form.counting)

    texts = [as_read(document(mail).branches()[0]) for mail in public]
    source = None if template is None else template.source
    with reporter.track("base model", recipe.steps(len(texts)), "steps") as advance:
        # On public users only, so that the base model is a fair reference for both sides.
        base = pretrain(texts, shape, recipe, cache_directory(), source, advance=advance)
    shutil.copytree(
        pretrained_folder(texts, shape, recipe, cache_directory(), source),
        folder / "base",
        ignore=shutil.ignore_patterns(INDEX),
    )
    # There are no validation texts to choose a checkpoint by.
    plain = replace(built_in.finetune, select=Select.LAST)
    documents = list(map(document, training))
    sequences: Sequence[Tokens] = encode(base.tokenizer, documents, plain.sequence_length)
    if rows is MadeUpRows.PAIRS:
        arithmetic = arithmetic_of(plain.precision, base.device)
        sequences = preference_records(base, sequences, DirectPreference(), arithmetic)
    with reporter.track("fine-tuned model", plain.steps(len(sequences)), "steps") as advance:
        train_once(base, sequences, plain, folder / "model", advance=advance)
