"""Train a small Llama-shaped chat model on conversations of made-up people, who are in no other corpus.

The model stands for a released chat model, because tests cannot reach a hub. Adapters need a model that already knows
words and turns, because there would otherwise be nothing to adapt.
"""

from collections.abc import Callable
from pathlib import Path

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from heldin.base.errors import InputError
from heldin.corpus.chat.conversation import Conversation
from heldin.corpus.chat.template import CHATML, ChatTemplate
from heldin.corpus.document import Counting
from heldin.corpus.made_up.chats import MadeUpRows, made_up_rows
from heldin.corpus.made_up.synthetic import SyntheticCorpus
from heldin.finetune.batches import encode
from heldin.finetune.pretraining import train_once
from heldin.finetune.recipe import Recipe, Select
from heldin.models.devices import default_device, seed_generators
from heldin.models.loading import LanguageModel
from heldin.models.tiny import train_tokenizer

CONTEXT = 96
PUBLIC = SyntheticCorpus(users=600, mean_records=8, min_records=6, distinctiveness=0.6, seed=977)
RECIPE = Recipe(
    epochs=4,
    batch_size=32,
    learning_rate=3e-3,
    warmup_steps=50,
    sequence_length=CONTEXT,
    select=Select.LAST,
    evaluations=1,
)


def write_chat_base(
    to: Path,
    *,
    public: SyntheticCorpus = PUBLIC,
    recipe: Recipe = RECIPE,
    hidden: int = 128,
    layers: int = 2,
    advance: Callable[[int], object] = lambda _: None,
) -> LanguageModel:
    """Train the model on public chats, and write it to a new folder.

    Args:
        to: new folder for the model.
        public: corpus of the conversations; its seed must differ from the seed of every audited corpus.
        recipe: recipe of the training.
        hidden: size of a token's hidden state.
        layers: number of layers.
        advance: called with the number of steps done.

    Raises:
        InputError: the folder exists.
    """
    if to.exists():
        raise InputError(f"'{to}' exists: give a new folder")
    template = ChatTemplate(CHATML, {})
    rows = made_up_rows(public, MadeUpRows.CHATS)
    chats = [template.document(Conversation(row["messages"])) for row in rows]
    tokenizer = train_tokenizer([chat.text for chat in chats], 1024, CHATML)
    seed_generators(recipe.seed, torch.device("cpu"))
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=len(tokenizer),
            hidden_size=hidden,
            intermediate_size=2 * hidden,
            num_hidden_layers=layers,
            num_attention_heads=4,
            num_key_value_heads=2,
            max_position_embeddings=CONTEXT,
            bos_token_id=tokenizer.eos_token_id,
            eos_token_id=tokenizer.eos_token_id,
            tie_word_embeddings=False,
        )
    ).to(default_device())
    fresh = LanguageModel(model, tokenizer, "a Llama-shaped chat model", "")
    sequences = encode(tokenizer, [chat.counting(Counting.ALL) for chat in chats], recipe.sequence_length)
    train_once(fresh, sequences, recipe, to, advance=advance)
    return fresh


def steps_of(public: SyntheticCorpus = PUBLIC, recipe: Recipe = RECIPE) -> int:
    """Return the number of steps of the training."""
    return recipe.steps(sum(1 for _ in made_up_rows(public, MadeUpRows.MAILS)))
