"""A completions server on loopback: real HTTP, real tiny models, and as ill-behaved as a test wants it."""

import functools
import json
import ssl
import threading
import time
from collections.abc import Callable
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
import torch

from heldin.models.endpoint_client import Connection, Endpoint

# Reading this machine's certificates takes longer than most tests that open a connection.
_certificates = functools.cache(ssl.create_default_context)


class CompletionsServer:
    """Serves language models by name in the styles of OpenAI (echo with logprobs) and vLLM (prompt_logprobs).

    Attributes:
        faults: number of a completions request, from 1, to what goes wrong with it: an HTTP status or a name.
        tamper: changes an answer before it is sent.
        asked: the body of every completions request that got as far as a model.
        times: when each completions request came in.
    """

    def __init__(self, models, *, echo=True, prompt_logprobs=True, key=None, own_start=False, length=None):
        self.models, self.echo, self.prompt_logprobs = models, echo, prompt_logprobs
        self.key, self.own_start, self.length = key, own_start, length
        self.faults: dict[int, int | str] = {}
        self.fault_headers: dict[str, str] = {}
        self.tamper: Callable[[dict[str, Any]], dict[str, Any]] = lambda answer: answer
        self.asked: list[dict[str, Any]] = []
        self.times: list[float] = []
        self.headers: list[dict[str, str]] = []
        self.busy = self.busiest = 0
        self._lock, self._model_lock = threading.Lock(), threading.Lock()

    def arrive(self, headers):
        with self._lock:
            self.times.append(time.monotonic())
            self.headers.append(headers)
            self.busy += 1
            self.busiest = max(self.busiest, self.busy)
            return self.faults.get(len(self.times))

    def leave(self):
        with self._lock:
            self.busy -= 1

    def complete(self, body):
        """(HTTP status, answer)."""
        lm = self.models.get(body["model"])
        if lm is None:
            return 404, _error(f"The model `{body['model']}` does not exist.")
        if body.get("echo") and not self.echo:
            return 400, _error("echo is not supported")
        prompt = body["prompt"]
        ids = list(prompt) if isinstance(prompt, list) else self._ids(lm, prompt)
        most = self.length or lm.context
        if len(ids) + body["max_tokens"] > most:
            return 400, _error(f"This model's maximum context length is {most} tokens")
        self.asked.append(body)
        with self._model_lock, torch.no_grad():
            values = [None, *_logprobs(lm, ids)]
            new = [lm.start_token] * body["max_tokens"]
        written = [lm.tokenizer.decode([token]) for token in ids + new]
        text = prompt if isinstance(prompt, str) else lm.tokenizer.decode(ids)
        choice = {"index": 0, "text": (text if body.get("echo") else "") + "".join(written[len(ids) :])}
        choice |= {"finish_reason": "length", "logprobs": None}
        if body.get("logprobs") is not None:
            shown = slice(0, None) if body.get("echo") else slice(len(ids), None)
            all_values = values + [-1.5] * len(new)
            choice["logprobs"] = {"tokens": written[shown], "token_logprobs": all_values[shown], "text_offset": []}
        if body.get("prompt_logprobs") is not None and self.prompt_logprobs:
            entries = [{str(t): {"logprob": v, "rank": 1}} for t, v in zip(ids[1:], values[1:], strict=True)]
            choice["prompt_logprobs"] = [None, *({**e, "3": {"logprob": -0.1}} | e for e in entries)]
        usage = {"prompt_tokens": len(ids), "completion_tokens": len(new)}
        return 200, {"object": "text_completion", "choices": [choice], "usage": usage}

    def _ids(self, lm, text):
        return [lm.start_token] * self.own_start + lm.tokenizer(text, add_special_tokens=False)["input_ids"]

    def listed(self):
        return {"data": [{"id": name, "max_model_len": self.length} for name in self.models]}


def _logprobs(lm, ids):
    """Of every token but the first, one forward pass, float64 arithmetic after it."""
    if len(ids) == 1:
        return []
    logits = lm.model(input_ids=torch.tensor([ids[:-1]])).logits[0].double()
    return logits.log_softmax(-1)[torch.arange(len(ids) - 1), torch.tensor(ids[1:])].tolist()


def _error(message):
    return {"error": {"message": message, "type": "invalid_request_error"}}


def _handler(server: CompletionsServer):
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_):
            pass

        def do_GET(self):
            self._send(200, json.dumps(server.listed()).encode())

        def do_POST(self):
            fault = server.arrive(dict(self.headers))
            try:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                self._misbehave(fault) if fault else self._behave(body)
            finally:
                server.leave()

        def _behave(self, body):
            if server.key and self.headers.get("Authorization") != f"Bearer {server.key}":
                self._send(401, json.dumps(_error(f"Incorrect API key: {self.headers.get('Authorization')}")).encode())
                return
            status, answer = server.complete(body)
            self._send(status, json.dumps(server.tamper(answer) if status == 200 else answer).encode())

        def _misbehave(self, fault):
            match fault:
                case int():
                    self._send(fault, json.dumps(_error("not now")).encode(), server.fault_headers)
                case "dropped":
                    self.close_connection = True
                case "cut off":
                    self._send(200, b'{"choices": [{"logprobs": {"token_lo')
                case "slow":
                    time.sleep(0.6)
                    self._send(200, b"{}")

        def _send(self, status, content, headers=()):
            try:
                self.send_response(status)
                for name, value in dict(headers).items():
                    self.send_header(name, value)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)
            except (BrokenPipeError, ConnectionResetError):
                self.close_connection = True

    return Handler


@contextmanager
def serving(server: CompletionsServer):
    """The address of the running server."""
    http = ThreadingHTTPServer(("127.0.0.1", 0), _handler(server))
    http.daemon_threads = True
    thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(ssl, "create_default_context", _certificates)
            yield f"http://127.0.0.1:{http.server_address[1]}/v1"
    finally:
        http.shutdown()
        thread.join()
        http.server_close()


@contextmanager
def opened(server, **settings):
    settings = {"first_wait": 0.01, "timeout": 5.0} | settings
    with serving(server) as url, Connection(Endpoint(url, **settings)) as connection:
        yield connection


def tiny_server(lm, **settings):
    """Takes two tokens more than the model's context: the last of a prompt is not run, nor the generated one."""
    return CompletionsServer({"tiny": lm}, **{"length": lm.context + 2} | settings)
