"""Fine-tune with example-level DP, with plain Opacus code. The script does not use heldin.

    python examples/opacus_dp.py planted/training/train.jsonl base-model private --epsilon 1

Its epsilon is about one row, and guarantees little to a user with many rows (docs/plant.md, unit=example).
"""

import argparse
import json
import pathlib

import torch
from opacus import PrivacyEngine
from opacus.utils.batch_memory_manager import BatchMemoryManager
from transformers import AutoModelForCausalLM, AutoTokenizer

parser = argparse.ArgumentParser(description="Fine-tune a causal language model on JSON lines under example-level DP.")
parser.add_argument("data", help="JSON lines, one text each")
parser.add_argument("base", help="folder or hub name of the model to start from")
parser.add_argument("out", help="folder for the fine-tuned model")
parser.add_argument("--column", default="text", help="which holds the text")
parser.add_argument("--epsilon", type=float, default=1.0)
parser.add_argument("--epochs", type=int, default=4)
parser.add_argument("--batch", type=int, default=64, help="expected number of rows in a step")
parser.add_argument("--learning-rate", type=float, default=2e-3)
parser.add_argument("--tokens", type=int, default=64, help="length at which a text is cut")
options = parser.parse_args()

tokenizer = AutoTokenizer.from_pretrained(options.base)
model = AutoModelForCausalLM.from_pretrained(options.base).train()
lines = pathlib.Path(options.data).read_text(encoding="utf-8").splitlines()
rows = [tokenizer(json.loads(line)[options.column])["input_ids"][: options.tokens] for line in lines]


def collate(batch: list[list[int]]) -> tuple[torch.Tensor, torch.Tensor]:
    """Return padded token ids, and labels without the padding."""
    tokens = torch.zeros(len(batch), options.tokens, dtype=torch.long)
    labels = torch.full_like(tokens, -100)
    for i, its in enumerate(batch):
        tokens[i, : len(its)] = labels[i, : len(its)] = torch.tensor(its)
    return tokens, labels


noise = {"target_epsilon": options.epsilon, "target_delta": 1e-5, "epochs": options.epochs, "max_grad_norm": 1.0}
optimizer = torch.optim.AdamW(model.parameters(), lr=options.learning_rate)
batches = torch.utils.data.DataLoader(rows, batch_size=options.batch, collate_fn=collate)
model, optimizer, batches = PrivacyEngine().make_private_with_epsilon(
    module=model, optimizer=optimizer, data_loader=batches, **noise
)
rate, steps = 1 / len(batches), options.epochs * len(batches)
print(f"noise_multiplier={optimizer.noise_multiplier},sampling_rate={rate},steps={steps},delta=1e-5")
for _ in range(options.epochs):
    with BatchMemoryManager(data_loader=batches, max_physical_batch_size=64, optimizer=optimizer) as pieces:
        for tokens, labels in pieces:
            optimizer.zero_grad()
            places = torch.arange(options.tokens).expand(len(tokens), -1)  # Opacus needs a row for each example
            model(input_ids=tokens, labels=labels, position_ids=places).loss.backward()
            optimizer.step()
model._module.save_pretrained(options.out)
tokenizer.save_pretrained(options.out)
