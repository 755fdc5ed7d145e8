"""Chat templates as model families have them, tokenizers with them, and a tiny chat model."""

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

WORDS = [
    "You help.",
    "What is new?",
    "Nothing is.",
    "And what else?",
    "It rains.",
    " Fine, then. ",
    "a longer answer here",
]
SAID = {
    "chatml": "{{ m['content'] + '<|im_end|>\n' }}",
    "llama3": "{{ m['content'] | trim + '<|eot_id|>' }}",
    "gemma": "{{ m['content'] | trim + '<end_of_turn>\n' }}",
    "phi": "{{ m['content'] + '<|end|>\n' }}",
}  # what a turn says, and its end
CHATML = (
    f"{{% for m in messages %}}{{{{ '<|im_start|>' + m['role'] + '\n' }}}}{SAID['chatml']}{{% endfor %}}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
LLAMA3 = (
    "{% for m in messages %}{% if loop.first %}{{ bos_token }}{% endif %}"
    f"{{{{ '<|start_header_id|>' + m['role'] + '<|end_header_id|>\n\n' }}}}{SAID['llama3']}{{% endfor %}}"
    "{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}"
)
MISTRAL = (
    "{{ bos_token }}{% for m in messages %}{% if m['role'] == 'user' %}{{ '[INST] ' + m['content'] + ' [/INST]' }}"
    "{% elif m['role'] == 'assistant' %}{{ ' ' + m['content'] + eos_token }}"
    "{% else %}{{ raise_exception('Only user and assistant roles are supported!') }}{% endif %}{% endfor %}"
)
GEMMA = (
    "{{ bos_token }}{% for m in messages %}"
    "{% if (m['role'] == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('Roles must alternate') }}{% endif %}"
    "{{ '<start_of_turn>' + ('model' if m['role'] == 'assistant' else m['role']) + '\n' }}"
    f"{SAID['gemma']}{{% endfor %}}{{% if add_generation_prompt %}}{{{{ '<start_of_turn>model\n' }}}}{{% endif %}}"
)
PHI = (
    f"{{% for m in messages %}}{{{{ '<|' + m['role'] + '|>\n' }}}}{SAID['phi']}{{% endfor %}}"
    "{% if add_generation_prompt %}{{ '<|assistant|>\n' }}{% endif %}"
)


def with_marks(name: str) -> str:
    """The template of this name with generation marks around what the assistant says."""
    said = SAID[name]
    of_assistant = f"{{% if m['role'] == 'assistant' %}}{{% generation %}}{said}{{% endgeneration %}}"
    return TEMPLATES[name].replace(said, f"{of_assistant}{{% else %}}{said}{{% endif %}}")


TEMPLATES = {"chatml": CHATML, "llama3": LLAMA3, "mistral": MISTRAL, "gemma": GEMMA, "phi": PHI}
TEMPLATES["marked"] = with_marks("chatml")
SPECIAL = [
    *("<s>", "</s>", "<|im_start|>", "<|im_end|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>", "[INST]"),
    *("[/INST]", "<start_of_turn>", "<end_of_turn>", "<|user|>", "<|assistant|>", "<|system|>", "<|end|>"),
]


def tokenizer_with(template: str | None) -> PreTrainedTokenizerFast:
    """A byte-level tokenizer with every family's markers, and this template."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=330, special_tokens=SPECIAL, initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(WORDS * 20, trainer)
    made = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", clean_up_tokenization_spaces=False
    )
    made.chat_template = template
    return made


def chat_model(seed: int = 0) -> LlamaForCausalLM:
    """A tiny Llama of random weights for ``tokenizer_with``."""
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=330,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=256,
        bos_token_id=0,
        eos_token_id=1,
    )
    return LlamaForCausalLM(config).eval()


def chat(*turns: str, system: str | None = None) -> list[dict[str, str]]:
    """Messages of a user and an assistant in turns."""
    roles = ("user", "assistant")
    first = [] if system is None else [{"role": "system", "content": system}]
    return [*first, *({"role": roles[i % 2], "content": text} for i, text in enumerate(turns))]
