"""The loss of a chat, token by token: each token of the assistant's turns after all that stands before it.

Written against the tokenizer's own template and the model alone; shares no code with heldin.
"""

import torch


def chat_loss(model, tokenizer, messages):
    """Mean negative log-probability of the tokens of the assistant's turns, nats; 0 without any."""
    ids = _ids(tokenizer, messages)
    total, count = 0.0, 0
    for number, message in enumerate(messages):
        if message["role"] != "assistant":
            continue
        begin = len(_ids(tokenizer, messages[:number], prompt=True))
        end = len(_ids(tokenizer, messages[: number + 1]))
        for place in range(begin, end):
            with torch.no_grad():
                logits = model(input_ids=torch.tensor([ids[:place]])).logits[0, -1]
            total -= float(torch.log_softmax(logits.double(), dim=-1)[ids[place]])
            count += 1
    return total / count if count else 0.0


def _ids(tokenizer, messages, *, prompt=False):
    text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=prompt)
    return tokenizer(text, add_special_tokens=False)["input_ids"]
