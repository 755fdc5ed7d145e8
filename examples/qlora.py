"""Train a LoRA adapter on a 4-bit base model (QLoRA) with transformers' Trainer. The script does not use heldin.

    python examples/qlora.py planted/training/train.jsonl base-model adapter --epochs 3

The script is for a GPU; on a CPU bitsandbytes is slow. To score the model in its training precision, use --dtype nf4.
"""

import argparse

import torch
from datasets import load_dataset
from peft import LoraConfig, get_peft_model, prepare_model_for_kbit_training
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    BitsAndBytesConfig,
    DataCollatorForLanguageModeling,
    Trainer,
    TrainingArguments,
)

parser = argparse.ArgumentParser(description="Fine-tune a LoRA adapter on a base model of 4 bits.")
parser.add_argument("data", help="JSON lines, one text each")
parser.add_argument("base", help="folder or hub name of the model to start from")
parser.add_argument("out", help="folder for the adapter")
parser.add_argument("--column", default="text", help="column that holds the text")
parser.add_argument("--epochs", type=float, default=3)
parser.add_argument("--learning-rate", type=float, default=2e-4)
parser.add_argument("--tokens", type=int, default=128, help="length at which a text is cut")
options = parser.parse_args()

tokenizer = AutoTokenizer.from_pretrained(options.base)
tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token
on_gpu = torch.cuda.is_available()
four_bits = BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype=torch.bfloat16)
where = {"": 0 if on_gpu else "cpu"}
model = AutoModelForCausalLM.from_pretrained(options.base, quantization_config=four_bits, device_map=where)
model = prepare_model_for_kbit_training(model, use_gradient_checkpointing=on_gpu)
lora = LoraConfig(r=16, lora_alpha=32, target_modules="all-linear", task_type="CAUSAL_LM")

rows = load_dataset("json", data_files=options.data, split="train").select_columns(options.column)
rows = rows.map(
    lambda row: tokenizer(row[options.column], truncation=True, max_length=options.tokens),
    remove_columns=options.column,
)
arguments = TrainingArguments(
    options.out,
    num_train_epochs=options.epochs,
    learning_rate=options.learning_rate,
    per_device_train_batch_size=16,
    bf16=on_gpu,
    use_cpu=not on_gpu,
    save_strategy="no",
    report_to=[],
)
collator = DataCollatorForLanguageModeling(tokenizer, mlm=False)
trainer = Trainer(get_peft_model(model, lora), arguments, train_dataset=rows, data_collator=collator)
trainer.train()
trainer.save_model(options.out)
tokenizer.save_pretrained(options.out)
