"""A server that generates text with real tiny models, and misbehaves in the ways of real ones."""

import torch

from tests.completions_server import CompletionsServer


class TextServer(CompletionsServer):
    """Answers chats and plain completions with sampled text.

    Attributes:
        chat, completions: which of the two it answers.
        seeded, several, sampling: whether it heeds seed, n and temperature.
        top_k: next tokens that it lists at most.
        prefill: whether it goes on with an answer that is begun.
        length: tokens of its answers, whatever is asked; None: as asked.
        repeats: whether it repeats what it should continue.
        refuses: every how many answers it refuses; 0: none.
        filters: every how many requests are refused for their content; 0: none.
        switches_at: number of requests after which it serves another model; None: never.
        bias: what logit_bias does: "moves" what is drawn and listed, moves what is "drawn" alone, is "refused", is put
            on the "next" token of the vocabulary, or moves those it names "unequally".
        decimals: of what is listed; None: all.
    """

    def __init__(self, models, *, chat=True, completions=True, **conduct):
        super().__init__(models)
        self.chat, self.completions = chat, completions
        usual = {
            "seeded": True,
            "several": True,
            "sampling": True,
            "top_k": 20,
            "prefill": False,
            "answer_tokens": None,
        }
        usual |= {"repeats": False, "refuses": 0, "filters": 0, "switches_at": None, "has_template": True}
        usual |= {"bias": "moves", "decimals": None}
        assert not conduct.keys() - usual.keys()
        self.__dict__.update(usual | conduct)
        self.drawn = 0

    def complete(self, body):
        lm = self.models.get(body["model"])
        is_chat = "messages" in body
        if lm is None or not (self.chat if is_chat else self.completions):
            return 404, {"error": {"message": "Not Found"}}
        if body.get("echo") or "prompt_logprobs" in body:
            return 400, {"error": {"message": "echo is not supported"}}
        if is_chat and not self.has_template:
            return 400, {"error": {"message": "default chat template is no longer allowed, so you must provide one"}}
        if "logit_bias" in body and self.bias == "refused":
            return 400, {"error": {"message": "logit_bias is not supported"}}
        self.asked.append(body)
        if self.filters and len(self.asked) > 12 and len(self.asked) % self.filters == 0:
            return 400, {"error": {"message": "content_filter: the request was blocked"}}
        if self.switches_at is not None and len(self.asked) > self.switches_at:
            lm = list(self.models.values())[-1]
        text, ended = self._prompt(body)
        of_text = [] if isinstance(text, list) else lm.tokenizer(text, add_special_tokens=False)["input_ids"]
        ids = text if isinstance(text, list) else [lm.start_token, *of_text]
        with self._model_lock:
            choices = [self._choice(lm, body, ids, number) for number in range(body.get("n", 1) if self.several else 1)]
        tokens = (self.answer_tokens or body["max_tokens"]) * len(choices)
        usage = {"prompt_tokens": len(ids) + ended, "completion_tokens": tokens}
        return 200, {"model": body["model"], "choices": choices, "usage": usage}

    def _prompt(self, body):
        if "messages" not in body:
            return body["prompt"], 0
        last = body["messages"][-1]
        if last["role"] == "assistant" and self.prefill and body.get("continue_final_message"):
            return last["content"], 0
        return "".join(f"<{m['role']}> {m['content']}\n" for m in body["messages"]) + "<assistant> ", 3

    def _choice(self, lm, body, ids, number):
        self.drawn += 1
        if self.refuses and self.drawn > 10 and self.drawn % self.refuses == 0:
            return self._said(body, "I'm sorry, but I can't help with that.", None)
        seed = body.get("seed", self.drawn) if self.seeded else self.drawn
        generator = torch.Generator().manual_seed(1000 * (seed % 10**6) + number)
        drawn, listed = [], None
        for _ in range(min(self.answer_tokens or body["max_tokens"], lm.context - 2)):
            window = [*ids, *drawn][-(lm.context - 1) :]
            with torch.no_grad():
                law = lm.model(input_ids=torch.tensor([window])).logits[0, -1].double().log_softmax(-1)
            moved = self._biased(law, body)
            if listed is None:
                listed = (law if self.bias == "drawn" else moved).topk(min(20, len(law)))
            law = moved
            sampling = self.sampling and body.get("temperature", 1) > 0
            token = torch.multinomial(law.exp(), 1, generator=generator) if sampling else law.argmax()
            drawn.append(int(token))
        text = lm.tokenizer.decode(drawn, skip_special_tokens=True)
        if self.repeats:
            asked = body["messages"][-1]["content"] if "messages" in body else body["prompt"]
            text = asked.removeprefix("Continue this text. Write only what comes next.\n\n") + text
        return self._said(body, text, listed, lm)

    def _biased(self, law, body):
        law = law.clone()
        for number, (token, bias) in enumerate(body.get("logit_bias", {}).items()):
            share = 0.9 if number and self.bias == "unequally" else 1
            law[(int(token) + (self.bias == "next")) % len(law)] += share * bias
        return law.log_softmax(-1)

    def _said(self, body, text, listed, lm=None):
        pairs = []
        count = body.get("top_logprobs", body.get("logprobs")) if body.get("logprobs") else 0
        if listed is not None and self.top_k and count:
            values, tokens = listed
            pairs = [
                (lm.tokenizer.decode([token]), value if self.decimals is None else round(value, self.decimals))
                for value, token in zip(values.tolist(), tokens.tolist(), strict=True)
            ][: min(count, self.top_k)]
        if "messages" not in body:
            logprobs = {"top_logprobs": [dict(pairs)]} if pairs else None
            return {"text": text, "finish_reason": "length", "logprobs": logprobs}
        top = [{"token": token, "logprob": value} for token, value in pairs]
        logprobs = {"content": [{"token": "x", "logprob": -1.0, "top_logprobs": top}]} if pairs else None
        return {"message": {"content": text}, "finish_reason": "length", "logprobs": logprobs}
