"""Full fine-tuning with plain transformers' Trainer code.

    python examples/trainer.py planted/training/train.jsonl base-model fine-tuned --epochs 3 --planted planted

If heldin plant prepared an audit (docs/plant.md), two things change: the name of the training file, and a callback that
logs the model's inputs.
"""

import argparse

from datasets import load_dataset
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    DataCollatorForLanguageModeling,
    Trainer,
    TrainingArguments,
)

import heldin

parser = argparse.ArgumentParser(description="Fine-tune a causal language model on JSON lines.")
parser.add_argument("data", help="JSON lines, one text each")
parser.add_argument("base", help="folder or hub name of the model to start from")
parser.add_argument("out", help="folder for the fine-tuned model")
parser.add_argument("--column", default="text", help="column that holds the text")
parser.add_argument("--epochs", type=float, default=3)
parser.add_argument("--learning-rate", type=float, default=1e-3)
parser.add_argument("--tokens", type=int, default=64, help="length at which a text is cut")
parser.add_argument("--planted", help="folder that heldin plant wrote; the log of this training is written there")
options = parser.parse_args()

tokenizer = AutoTokenizer.from_pretrained(options.base)
tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token
rows = load_dataset("json", data_files=options.data, split="train")
rows = rows.map(
    lambda batch: tokenizer(batch[options.column], truncation=True, max_length=options.tokens),
    batched=True,
    remove_columns=rows.column_names,
)
trainer = Trainer(
    AutoModelForCausalLM.from_pretrained(options.base),
    TrainingArguments(
        options.out,
        num_train_epochs=options.epochs,
        learning_rate=options.learning_rate,
        per_device_train_batch_size=16,
        save_strategy="no",
        report_to=[],
    ),
    train_dataset=rows,
    data_collator=DataCollatorForLanguageModeling(tokenizer, mlm=False),
    callbacks=[heldin.AuditCallback(options.planted)] if options.planted else [],
)
trainer.train()
trainer.save_model(options.out)
tokenizer.save_pretrained(options.out)
