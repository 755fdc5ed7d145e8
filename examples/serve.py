"""Serve a model behind an endpoint that returns log-probabilities of a prompt. The script does not use heldin.

    python examples/serve.py model --name tuned --port 8000

Then: heldin audit-planted planted --endpoint http://localhost:8000/v1 --model tuned --set tokenizer=model

For large models, use vLLM (vllm serve model --served-model-name tuned), which answers in the same way.
"""

import argparse
import json
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Lock

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

parser = argparse.ArgumentParser(description="Serve log-probabilities of prompts in the style of OpenAI's completions.")
parser.add_argument("model", help="folder or hub name")
parser.add_argument("--name", default="tuned", help="name of the model at the endpoint")
parser.add_argument("--port", type=int, default=8000)
options = parser.parse_args()

tokenizer = AutoTokenizer.from_pretrained(options.model)
model, one_at_a_time = AutoModelForCausalLM.from_pretrained(options.model).eval(), Lock()
listed = {"data": [{"id": options.name, "max_model_len": model.config.max_position_embeddings}]}


class Completions(BaseHTTPRequestHandler):
    """GET /v1/models, and POST /v1/completions with echo, logprobs and one prompt of text or token ids."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        """Send the names of the served models."""
        self.answer(listed)

    def do_POST(self) -> None:
        """Send the log-probability of every token of the prompt except the first."""
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        prompt = asked["prompt"]
        ids = tokenizer(prompt, add_special_tokens=False)["input_ids"] if isinstance(prompt, str) else prompt
        with one_at_a_time, torch.inference_mode():
            logprobs = model(input_ids=torch.tensor([ids])).logits[0, :-1].float().log_softmax(-1)
        values = [None, *logprobs.gather(1, torch.tensor(ids[1:])[:, None])[:, 0].tolist()]
        its = {"tokens": [tokenizer.decode([token]) for token in ids], "token_logprobs": values}
        text = tokenizer.decode(ids)
        self.answer({"choices": [{"index": 0, "text": text, "logprobs": its, "finish_reason": "length"}]})

    def answer(self, content: object) -> None:
        """Send JSON."""
        body = json.dumps(content).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


ThreadingHTTPServer(("127.0.0.1", options.port), Completions).serve_forever()
