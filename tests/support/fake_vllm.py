"""A server of vLLM's protocol over `TorchSampler`, on 127.0.0.1, with the faults of real ones.

    with FakeVllm(tiny_policy()) as server:
        server.script(429, 500, "reset")     # what the next requests for a completion meet; then they are answered
        ...  # sample by vllm@{server.url}

It holds a copy of the policy's model, and loads adapters as PEFT saves them.
"""

from __future__ import annotations

import copy
import json
import socket
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any

import torch

from afarm import Decoding
from afarm.backend import CheckpointPolicy, TorchSampler, pad, quiet_transformers

Fault = int | str | Callable[[], None] | None


class FakeVllm:
    """See the module.

    `dynamic_lora` false is a server without VLLM_ALLOW_RUNTIME_LORA_UPDATING; `stale` true is one that says that it has
    loaded an adapter and goes on with the first. `version` None is no vLLM at all.
    """

    def __init__(self, policy: CheckpointPolicy, *, dynamic_lora: bool = True, max_model_len: int = 256):
        self.policy = policy
        self.base = copy.deepcopy(policy.model)
        self.dynamic_lora = dynamic_lora
        self.max_model_len = max_model_len
        self.max_lora_rank = 16
        self.version: str | None = "0.32.0"
        self.stale = False
        self.adapters: dict[str, Any] = {}
        self.loaded: list[str] = []
        """The names of all adapters that were ever loaded."""
        self.requests: list[Any] = []
        """The bodies of requests for completions."""
        self._faults: deque[Fault] = deque()
        self._computing = threading.Lock()
        self._connections: list[socket.socket] = []

    def script(self, *faults: Fault) -> None:
        """What the next requests for responses meet, in turn: a status, "reset", or a call before they are answered."""
        self._faults.extend(faults)

    def tokenize(self, text: str) -> list[int]:
        """Encode without special tokens."""
        ids: list[int] = self.policy.tokenizer.encode(text, add_special_tokens=False)
        return ids

    def restart(self) -> None:
        """Lose all adapters and connections, as a server that was started again has."""
        self.adapters.clear()
        while self._connections:
            with suppress(OSError):
                self._connections.pop().shutdown(socket.SHUT_RDWR)

    def stop(self) -> None:
        """Answer nobody any more, and keep the port, where a server of another test would answer instead."""
        self._http.shutdown()
        self._http.server_close()
        self._held = socket.socket()  # bound and not listening: who connects is refused
        self._held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._held.bind(self._http.server_address[:2])
        self._thread.join()
        self.restart()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._http.server_address[1]}"

    def __enter__(self) -> FakeVllm:
        fake = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def setup(self) -> None:
                super().setup()
                fake._connections.append(self.connection)

            def do_GET(self) -> None:
                self.answer(*fake.get(self.path))

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["content-length"])))
                self.answer(*fake.post(self.path, body))

            def answer(self, status: int, content: Any) -> None:
                if status == 0:  # a reset instead of an answer
                    self.close_connection = True
                    self.connection.shutdown(socket.SHUT_RDWR)
                    return
                data = json.dumps(content).encode()
                self.send_response(status)
                self.send_header("content-type", "application/json")
                self.send_header("content-length", str(len(data)))
                if status == 429:
                    self.send_header("retry-after", "0")
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *arguments: Any) -> None:
                """Say nothing."""

        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._http.handle_error = lambda *arguments: None  # type: ignore[method-assign]  # who is gone is gone
        self._http.daemon_threads = True
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.01,), daemon=True)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._thread.is_alive():
            self.stop()

    # ------------------------------------------------------------------------------------------------------- protocol

    def get(self, path: str) -> tuple[int, Any]:
        """Answer a GET with (status, content)."""
        if path == "/version" and self.version is not None:
            return 200, {"version": self.version}
        if path == "/v1/models":
            base = {"id": "tiny", "owned_by": "vllm", "max_model_len": self.max_model_len, "parent": None}
            return 200, {"data": [base, *({"id": name, "parent": "tiny"} for name in self.adapters)]}
        return 404, {"detail": "Not Found"}

    def post(self, path: str, body: Mapping[str, Any]) -> tuple[int, Any]:
        """Answer a POST with (status, content); status 0 resets the connection."""
        if path == "/tokenize":
            return 200, {"tokens": self.tokenize(body["prompt"])}
        if path == "/v1/load_lora_adapter" and self.dynamic_lora:
            return self._load(body["lora_name"], body["lora_path"])
        if path == "/v1/unload_lora_adapter" and self.dynamic_lora:
            known = self.adapters.pop(body["lora_name"], None)
            return (200, {}) if known else refusal(404, "The lora adapter cannot be found.")
        if path == "/v1/completions":
            return self._complete(body)
        return 404, {"detail": "Not Found"}

    def _load(self, name: str, path: str) -> tuple[int, Any]:
        from peft import PeftModel

        with self._computing, quiet_transformers():
            if name in self.adapters:
                return refusal(400, f"The lora adapter '{name}' has already been loaded.")
            adapted = PeftModel.from_pretrained(copy.deepcopy(self.base), path).eval()
            if (rank := adapted.peft_config["default"].r) > self.max_lora_rank:
                return refusal(500, f"LoRA rank {rank} is greater than max_lora_rank {self.max_lora_rank}.")
            first = next(iter(self.adapters.values()), adapted)
            self.adapters[name] = first if self.stale else adapted
            self.loaded.append(name)
            return 200, {}

    def _complete(self, body: Mapping[str, Any]) -> tuple[int, Any]:
        is_proof = body["logprobs"] > 0
        if not is_proof and self._faults:
            fault = self._faults.popleft()
            if callable(fault):
                fault()
            elif fault is not None:
                return (0, None) if fault == "reset" else refusal(int(fault), "it did not work")
        model = self.base if body["model"] == "tiny" else self.adapters.get(body["model"])
        if model is None:
            return refusal(404, f"The model `{body['model']}` does not exist.")
        if is_proof:
            return 200, {"choices": self._read(model, body["prompt"])}
        self.requests.append(body)
        return 200, {"choices": [self._continue(model, body)]}

    def _read(self, model: Any, rows: Sequence[list[int]]) -> list[Mapping[str, Any]]:
        ids, _ = pad(rows, self.policy.pad_id, "right", torch.device("cpu"))
        with self._computing, torch.inference_mode():
            logits = model(ids).logits  # no token sees the pads behind it
        choices: list[Mapping[str, Any]] = []
        for index, row in enumerate(rows):
            best = logits[index, len(row) - 1].log_softmax(-1).topk(20)
            top = {f"token_id:{i}": value for i, value in zip(best.indices.tolist(), best.values.tolist(), strict=True)}
            choices.append({"index": index, "token_ids": [best.indices[0].item()], "logprobs": {"top_logprobs": [top]}})
        return choices

    def _continue(self, model: Any, body: Mapping[str, Any]) -> Mapping[str, Any]:
        decoding = Decoding(body["temperature"], body["top_p"], body["max_tokens"], 1, 1)
        bias = {int(token): value for token, value in body.get("logit_bias", {}).items()}
        sampler = TorchSampler(model, body["stop_token_ids"], self.policy.pad_id, bias)
        with self._computing:
            [made] = sampler.generate([body["prompt"]], [str(body["seed"])], decoding, seed=0)
        logprobs = {"token_logprobs": made.logprobs}
        return {"index": 0, "token_ids": made.token_ids, "logprobs": logprobs, "finish_reason": made.finish_reason}


def refusal(status: int, message: str) -> tuple[int, Any]:
    """An error as vLLM words it."""
    return status, {"error": {"message": message, "code": status}}
