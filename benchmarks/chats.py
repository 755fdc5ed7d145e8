"""The cost of masks and pairs; all measurements alternate in one run.

Three comparisons are made. The first is a user-level step on chats in which only answers count, against the same tokens
if all count. The second is a step of direct preference optimisation against supervised fine-tuning on the same tokens;
it includes the reference's passes, spread over three epochs. The third is the scoring of answers against bare forward
passes over the same conversations.

    .venv/bin/python benchmarks/chats.py
"""

import statistics
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from transformers import PreTrainedTokenizerBase

from heldin.base.coins import seed_key
from heldin.corpus.chat.conversation import Conversation
from heldin.corpus.chat.template import CHATML, ChatTemplate
from heldin.corpus.document import Counting
from heldin.corpus.made_up.chats import MadeUpRows, made_up_rows
from heldin.corpus.made_up.synthetic import SyntheticCorpus
from heldin.defenses.choices import ConstantDivisor, FlatClip, NoiseGenerator
from heldin.defenses.mechanism import Mechanism
from heldin.defenses.samplers import PoissonSampler
from heldin.finetune.batches import encode
from heldin.finetune.preferences import PreferenceRecords, reference_of
from heldin.finetune.private import private_gradient
from heldin.finetune.units import PrivateRecords, PrivateTraining, plan_private_training
from heldin.models.loading import LanguageModel
from heldin.models.logprobs import batches_by_length, score_documents, tokens_per_batch
from heldin.models.model_config import TinyModel
from heldin.models.preference import DirectPreference
from heldin.models.tiny import new_tiny_model, train_tokenizer
from heldin.models.tokens import Tokens

PAIRS, USERS, EPOCHS = 9, 64, 3


def main() -> None:
    """Print the ratios of each round, and their medians."""
    torch.set_num_threads(2)
    rows = list(made_up_rows(SyntheticCorpus(USERS, 12, 10), MadeUpRows.CHATS))
    template = ChatTemplate(CHATML, {})
    whole = [template.document(Conversation(row["messages"])) for row in rows]
    answers = [document.counting(Counting.ASSISTANT) for document in whole]
    tokenizer = train_tokenizer([document.text for document in whole], 2048, CHATML)
    model = new_tiny_model(TinyModel(2048, context=256), tokenizer, 0)
    plain, masked = (encode(tokenizer, documents, 255) for documents in (whole, answers))
    users = [row["user"] for row in rows]
    steps = [_steps(users, sequences) for sequences in (plain, masked)]
    lm = LanguageModel(model, tokenizer, "tiny", "")
    pairs, singles = _pairs_and_singles(tokenizer, template)
    # All records of a user, so that both have the same tokens.
    paired, supervised = (_steps(users_of, records, 1000) for users_of, records in (pairs, singles))
    reference = partial(reference_of, LanguageModel(model, tokenizer, "tiny", ""), advance=lambda _: None)
    of_steps, of_scores, of_pairs = [], [], []
    for number in range(PAIRS):
        seconds = [_timed(partial(private_gradient, model, training, number, its)) for training, its in steps]
        of_steps.append(seconds[1] / seconds[0])
        bare = _timed(lambda: _forward(lm, plain))
        of_scores.append(_timed(lambda: score_documents(lm, answers)) / bare)
        dpo, sft = (_timed(partial(private_gradient, model, t, number, its)) for t, its in (paired, supervised))
        drawn = [pair for unit in paired[0].drawn(number) for pair in paired[0].contribution(unit, number, pairs[1])]
        once = _timed(partial(reference, drawn, "fp32")) / EPOCHS
        of_pairs.append((dpo + once) / sft)
        print(
            f"masked step / unmasked step {of_steps[-1]:.3f}, scoring / bare passes {of_scores[-1]:.3f},"
            f" DPO / SFT {of_pairs[-1]:.3f} ({once / sft:.3f} of it the reference)"
        )
    print("medians: {:.3f}, {:.3f} and {:.3f}".format(*map(statistics.median, (of_steps, of_scores, of_pairs))))


def _pairs_and_singles(tokenizer: PreTrainedTokenizerBase, template: ChatTemplate) -> list[tuple[list[str], Any]]:
    """Return users and records of preference pairs, and records in which each answer is separate."""
    rows = list(made_up_rows(SyntheticCorpus(USERS, 12, 10), MadeUpRows.PAIRS))
    documents = []
    for row in rows:
        before, chosen = row["prompt"], row["chosen"]
        # An answer as long as the chosen one, as in real pairs.
        rejected = [{"role": "assistant", "content": chosen[0]["content"][::-1]}]
        conversation = Conversation(before + chosen, 1, before + rejected)
        documents.append(template.document(conversation).counting(Counting.COMPLETION))
    users = [row["user"] for row in rows]
    pairs = encode(tokenizer, documents, 255)
    values = np.zeros((len(pairs), 2), dtype=np.float32)
    singles = [tokens for pair in pairs for tokens in pair.rows()]
    both = [user for user in users for _ in range(2)]
    return [(users, PreferenceRecords(pairs, DirectPreference(), values)), (both, singles)]


def _steps(
    users: Sequence[str], sequences: Sequence[Tokens], group_size: int = 8
) -> tuple[PrivateTraining, Sequence[Tokens]]:
    mechanism = Mechanism(
        unit="user",
        sampled="user",
        sampler=PoissonSampler(rate=0.5),
        group_size=group_size,
        clip=FlatClip(norm=0.5),
        noise_multiplier=0.8,
        steps=PAIRS,
        delta=1e-4,
        divisor=ConstantDivisor(value=32),
    )
    records = PrivateRecords([str(i) for i in range(len(users))], list(users), [len(s) for s in sequences])
    return plan_private_training(mechanism, seed_key(1), records, NoiseGenerator.PHILOX), sequences


@torch.no_grad()
def _forward(lm: LanguageModel, sequences: Sequence[Tokens]) -> None:
    lengths = [len(s) - 1 for s in sequences]
    for batch in batches_by_length(lengths, max_tokens=tokens_per_batch(lm.model)):
        ids = torch.zeros(len(batch), max(lengths[i] for i in batch), dtype=torch.long)
        for row, i in enumerate(batch):
            ids[row, : lengths[i]] = torch.as_tensor(list(sequences[i].ids[:-1]))
        lm.model(input_ids=ids, use_cache=False)


def _timed(work: Callable[[], object]) -> float:
    begun = time.perf_counter()
    work()
    return time.perf_counter() - begun


if __name__ == "__main__":
    main()
