"""The time in which Python and torch give a device its work: `python benchmarks/host_time.py`.

The model is a GPT-Neo as deep as 125M but only 24 wide, so the computation itself takes almost no time. Measured are
forward and backward passes of one user with 16 records; for private training, also norms, clipping and the sum. They
are compared with plain passes that use the same attention. If a GPU computes a pass faster than this, it is not fully
used. Processor time, interleaved, one thread.
"""

import argparse
import time

import torch
import torch.nn.functional as F
from transformers import GPTNeoConfig, GPTNeoForCausalLM
from uls_step import compare

from heldin.finetune.passes import Passes, clipped_sum
from heldin.finetune.precision import Arithmetic, autocast
from heldin.models.attention import use_exact_attention
from heldin.models.tokens import Tokens

RECORDS, LENGTH, VOCABULARY = 16, 8, 64
CPU = torch.device("cpu")


def deep_model() -> GPTNeoForCausalLM:
    torch.manual_seed(0)
    shape = GPTNeoConfig(
        vocab_size=VOCABULARY,
        max_position_embeddings=32,
        hidden_size=24,
        num_layers=12,
        num_heads=12,
        window_size=4,
        attention_types=[[["global", "local"], 6]],
        resid_dropout=0.0,
        embed_dropout=0.0,
        attention_dropout=0.0,
        bos_token_id=0,
        eos_token_id=0,
    )
    model = GPTNeoForCausalLM(shape)
    use_exact_attention(model)
    return model


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--passes", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=12)
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    model = deep_model()
    ids = torch.randint(0, VOCABULARY, (RECORDS, LENGTH + 1))
    inputs, targets = ids[:, :-1], ids[:, 1:].flatten()
    runs = [[[Tokens(row) for row in ids.tolist()]]] * chosen.passes

    def plain(arithmetic: Arithmetic) -> None:
        with autocast(arithmetic, CPU):
            for _ in runs:
                logits = model(input_ids=inputs, use_cache=False).logits
                torch.autograd.backward(F.cross_entropy(logits.float().flatten(0, 1), targets))
        model.zero_grad(set_to_none=True)

    def private(arithmetic: Arithmetic) -> None:
        with autocast(arithmetic, CPU):
            clipped_sum(model, runs, 1.0, Passes(RECORDS))

    for arithmetic in ("fp32", "bf16"):
        print(f"{chosen.passes} passes, {arithmetic}")
        compare(
            lambda a=arithmetic: plain(a),
            {"private": lambda a=arithmetic: private(a)},
            chosen.rounds,
            time.process_time,
        )


if __name__ == "__main__":
    main()
