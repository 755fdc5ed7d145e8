"""Train a LoRA adapter on chats with TRL's SFTTrainer, with loss on the assistant's turns.

The script does not use heldin.

    python examples/trl_lora.py planted/training/chats.jsonl base-model adapter --epochs 3

If heldin plant prepared an audit, only the name of the training file changes (docs/plant.md).
"""

import argparse

from datasets import load_dataset
from peft import LoraConfig
from trl import SFTConfig, SFTTrainer

parser = argparse.ArgumentParser(description="Fine-tune a LoRA adapter on JSON lines of chat messages.")
parser.add_argument("data", help="JSON lines, each with a list of messages")
parser.add_argument("base", help="folder or hub name of the model to start from, with a chat template")
parser.add_argument("out", help="folder for the adapter")
parser.add_argument("--epochs", type=float, default=3)
parser.add_argument("--learning-rate", type=float, default=2e-3)
parser.add_argument("--tokens", type=int, default=128, help="length at which a conversation is cut")
options = parser.parse_args()

trainer = SFTTrainer(
    model=options.base,
    args=SFTConfig(
        options.out,
        num_train_epochs=options.epochs,
        learning_rate=options.learning_rate,
        per_device_train_batch_size=16,
        max_length=options.tokens,
        # The template marks the assistant's turns by {% generation %}.
        assistant_only_loss=True,
        gradient_checkpointing=False,
        bf16=False,
        save_strategy="no",
        report_to=[],
    ),
    train_dataset=load_dataset("json", data_files=options.data, split="train").select_columns("messages"),
    peft_config=LoraConfig(r=16, lora_alpha=32, target_modules="all-linear", task_type="CAUSAL_LM"),
)
trainer.train()
trainer.save_model(options.out)
