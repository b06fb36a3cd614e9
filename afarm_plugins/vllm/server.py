"""A vLLM server over HTTP: requests, bounded retries, and errors that say what to do.

Written for vLLM 0.32 (`vllm serve`): `/version`, `/v1/models`, `/tokenize`, `/v1/completions` with token ids, and the
loading of adapters at run time.
"""

from __future__ import annotations

import os
import time
from collections.abc import Container, Mapping, Sequence
from functools import cache
from typing import Any

import httpx2

from afarm import ModelError
from afarm_plugins.vllm.config import VllmConfig

PASSING = frozenset({408, 425, 429, 500, 502, 503, 504})
"""Statuses that are retried."""

LIKELIEST = 20
"""Log-probabilities per position, as many as a server gives by default."""

FIRST_PATIENCE = 5.0
"""Seconds that a server has for its first answer."""

FIRST_WAIT, LONGEST_WAIT = 0.05, 5.0
"""Seconds before the first retry, and the most between two."""


read_certificates = cache(httpx2.create_ssl_context)
"""The certificates that the system trusts, read once: that takes longer than a request."""


class Refused(ModelError):
    """The server answered with a `status` that a retry would not change; `told` is its message."""

    def __init__(self, message: str, status: int, told: str):
        super().__init__(message)
        self.status = status
        self.told = told


class Away(ModelError):
    """The server does not answer, or has been failing for too long."""


class VllmServer:
    """The server at `url`, thread-safe.

    A request is retried after an outage, a 429 or a 5xx until `config.patience` is over. `outages` counts failed
    connections: after one, it may be another server.
    """

    def __init__(self, url: str, config: VllmConfig):
        self.url = url
        self.config = config
        self.outages = 0
        key = os.environ.get(config.key_variable, "").strip() if config.key_variable else ""
        self._client = httpx2.Client(
            base_url=url,
            headers={"Authorization": f"Bearer {key}"} if key else {},
            timeout=httpx2.Timeout(config.request_timeout, connect=10.0, pool=None),
            verify=read_certificates(),
            limits=httpx2.Limits(max_connections=config.max_concurrency + 1),
        )

    # ---------------------------------------------------------------------------------------------- what it is asked

    def first_version(self) -> str:
        """Ask for vLLM's version at the start, with little patience. Raises `ModelError` if no server answers."""
        try:
            return self.version(min(FIRST_PATIENCE, self.config.patience))
        except Away as error:
            raise ModelError(
                f"{error}. Start it: vllm serve MODEL; or give its version (--set vllm.version=…)"
            ) from error

    def version(self, patience: float | None = None) -> str:
        """Ask for vLLM's version. Raises `ModelError` if what answers is no vLLM server."""
        try:
            version = self._ask("GET", "/version", patience=patience).get("version")
        except Refused as error:
            if error.status in (401, 403):
                raise
            version = None
        if not isinstance(version, str):
            raise ModelError(f"what answers at {self.url} is no vLLM server (GET /version gives no version)")
        return version

    def models(self) -> list[Mapping[str, Any]]:
        """List the model that it was started with, first, and its adapters: id, max_model_len and more."""
        return self._ask("GET", "/v1/models")["data"]

    def tokenize(self, text: str) -> list[int]:
        """Encode `text` by the server's tokenizer, without special tokens."""
        return self._ask("POST", "/tokenize", {"prompt": text, "add_special_tokens": False})["tokens"]

    def complete(self, model: str, prompts: Any, **settings: Any) -> list[Mapping[str, Any]]:
        """Continue token ids, one prompt or a list of them. Returns the choices, in the order of prompts."""
        answer = self._ask("POST", "/v1/completions", {"model": model, "prompt": prompts, **settings})
        return sorted(answer["choices"], key=lambda choice: choice["index"])

    def likeliest(self, model: str, prompts: Sequence[Sequence[int]]) -> list[dict[int, float]]:
        """Read the log-probabilities of the likeliest tokens after each prompt, by token id.

        Not by `prompt_logprobs`: with --enable-lora that ended vLLM 0.32 on CPUs.
        """
        rows = [list(prompt) for prompt in prompts]
        told: Mapping[str, Any] = {"logprobs": LIKELIEST, "return_tokens_as_token_ids": True}
        choices = self.complete(model, rows, max_tokens=1, temperature=0, **told)
        tops = [choice["logprobs"]["top_logprobs"][0] for choice in choices]
        return [{int(token.removeprefix("token_id:")): value for token, value in top.items()} for top in tops]

    def load_adapter(self, name: str, directory: str) -> None:
        """Load the adapter in `directory` as `name`. Raises `ModelError` that says how to enable it."""
        try:
            # A 500 may mean that the rank is too high, so it is not retried.
            self._ask("POST", "/v1/load_lora_adapter", {"lora_name": name, "lora_path": directory}, PASSING - {500})
        except Refused as error:
            if "already been loaded" in error.told:
                return  # by another process of this run, or in an earlier try
            if error.status == 404 and "lora" not in error.told.lower():  # of the route, not of the adapter
                raise ModelError(
                    f"the vLLM server at {self.url} loads no adapters at run time: start it with the environment "
                    "variable VLLM_ALLOW_RUNTIME_LORA_UPDATING=True and the option --enable-lora"
                ) from error
            raise ModelError(
                f"{error}. It must see {directory} (--set vllm.adapter_dir=DIR names another), and run with "
                "--enable-lora and a --max-lora-rank of the adapter's rank at least"
            ) from error

    def unload_adapter(self, name: str) -> None:
        """Unload an adapter, if it is loaded."""
        try:
            self._ask("POST", "/v1/unload_lora_adapter", {"lora_name": name})
        except Refused as error:
            if error.status not in (400, 404):
                raise

    # ------------------------------------------------------------------------------------------------ bounded patience

    def _ask(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None = None,
        passing: Container[int] = PASSING,
        patience: float | None = None,
    ) -> Any:
        """Send a request with a JSON `body`, and retry on outages and `passing` statuses.

        `patience` is in seconds (default: the settings'). Raises `Refused`, and `Away` once patience is over.
        """
        begun, wait, limit = time.monotonic(), FIRST_WAIT, self.config.patience if patience is None else patience
        advice = " (vllm.patience). Once it runs again, the same command goes on" if patience is None else ""
        while True:
            asked_for = None
            try:
                answer = self._client.request(method, path, json=body)
            except httpx2.TransportError as error:
                self.outages += 1
                what = f"does not answer ({type(error).__name__}{f': {error}' if str(error) else ''})"
            else:
                if answer.status_code not in passing:
                    return self._content(answer)
                what = f"gives {answer.status_code} ({_message(answer)})"
                asked_for = _retry_after(answer)
            wait, pause = min(2 * wait, LONGEST_WAIT), wait if asked_for is None else asked_for
            if time.monotonic() - begun + pause > limit:
                raise Away(f"the vLLM server at {self.url} {what}, for {limit:g} s now{advice}")
            time.sleep(pause)

    def _content(self, answer: httpx2.Response) -> Any:
        if answer.is_success:
            try:
                return answer.json() if "json" in answer.headers.get("content-type", "") else {}
            except ValueError as error:
                raise ModelError(f"the vLLM server at {self.url} gives no JSON: {answer.text[:200]!r}") from error
        key = f"; its key goes into {self.config.key_variable}" if answer.status_code in (401, 403) else ""
        where = answer.request.url.path
        told = _message(answer)
        message = f"the vLLM server at {self.url} refuses {where} ({answer.status_code}): {told}{key}"
        raise Refused(message, answer.status_code, told)


def _message(answer: httpx2.Response) -> str:
    """Read the server's message from an answer."""
    try:
        body = answer.json()
        told = body["error"]["message"] if "error" in body else body["detail"]
    except (ValueError, LookupError, TypeError):
        told = answer.text
    return " ".join(str(told).split())[:300].rstrip(".")


def _retry_after(answer: httpx2.Response) -> float | None:
    """Read the seconds after which to try again; None if the server does not say."""
    try:
        return max(0.0, float(answer.headers["retry-after"]))
    except (KeyError, ValueError):
        return None
