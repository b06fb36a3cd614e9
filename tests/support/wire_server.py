"""A local HTTP server that speaks OpenAI's and Anthropic's formats, faults included, and keeps a log of what it got.

    with WireServer(answer=lambda received: "Output (a)") as server:
        server.script(Status(429, retry_after_ms=1), Drop(), None)   # what the next requests for an answer meet
        ...  # ask at server.openai_url or server.anthropic_url
        assert server.bodies == [...]

It listens on 127.0.0.1 at a port of its own and stops with the `with` block. Uploads, batches and their results work
too: a batch is "in_progress" until `server.finish_batches()`.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import random
import re
import threading
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

USAGE = (100, 20, 7)
"""Input tokens (the cached ones among them), cached input tokens, output tokens of every answer."""


@dataclass(frozen=True)
class Received:
    """One request as it came in."""

    method: str
    path: str
    headers: Mapping[str, str]
    raw: bytes

    @property
    def body(self) -> Any:
        return json.loads(self.raw)


# ------------------------------------------------------------------------------------------------------------- faults


@dataclass(frozen=True)
class Status:
    """An error status. SDKs wait as they are told: next to nothing, unless `retry_after` says otherwise."""

    code: int
    message: str = "it did not work"
    retry_after: str | None = None
    retry_after_ms: float | None = 1
    error: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Drop:
    """The connection is closed without an answer, or after `sent` bytes of it."""

    sent: int = 0


@dataclass(frozen=True)
class Hang:
    """No answer, and the connection stays open."""


@dataclass(frozen=True)
class Drip:
    """Status 200 and headers, then a space every so many seconds, for ever."""

    gap: float = 0.05


@dataclass(frozen=True)
class Told:
    """An answer with these headers as well."""

    headers: Mapping[str, str]


@dataclass(frozen=True)
class Body:
    """A status with this body, bytes as they are. A header "connection: close" is kept."""

    body: Any
    code: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Flood:
    """Status 200 and a body that never ends, as fast as it is read."""


Fault = Status | Drop | Hang | Drip | Told | Body | Flood | None


# ------------------------------------------------------------------------------------------------------------- server


def answer_in_form(received: Received) -> str:
    """Mark, rank or criticise as a method's prompt asks, by a digest of it: one of seven cannot be read at first."""
    text = " ".join(str(message["content"]) for message in received.body["messages"])
    drawn = int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "big")
    if drawn % 7 == 0 and "exactly the form" not in text:
        return "Hm."
    if found := re.search(r"Mark from (\d+) to (\d+):", text):
        low, high = map(int, found.groups())
        return str(low + drawn % (high - low + 1))
    if found := re.search(r"Ranking of the (\d+) answers:", text):
        return " > ".join(map(str, random.Random(drawn).sample(range(1, 1 + int(found[1])), int(found[1]))))
    return "Say it in fewer words." if "Criticism:" in text else "Output (a)"


class WireServer:
    """See the module. `answer` makes the text of an answer; `latency` is in seconds.

    Before the first answer, as many requests have to be there as `together` says.
    """

    def __init__(
        self, answer: Callable[[Received], str] = lambda received: "Output (a)", latency: float = 0.0, together: int = 0
    ):
        self.answer = answer
        self.latency = latency
        self.together = together
        self.received: list[Received] = []
        self.charged = 0
        """Requests for an answer that a vendor could have charged for: all that were not refused by a status."""
        self.in_flight = self.most_in_flight = 0
        self.refuses_beyond: int | None = None
        """Requests for an answer beyond this number at once are refused with a 429."""
        self.refuses: Callable[[Any], Fault] = lambda body: None
        """What a request for an answer meets by its body, where the script has nothing."""
        self._faults: deque[Fault] = deque()
        self._files: dict[str, bytes] = {}
        self.batches: dict[str, dict[str, Any]] = {}
        """What was handed in, by name: "asked" in pairs of name and body. "refused" with a reason fails one."""
        self.batch_faults: deque[Fault] = deque()
        """What the next requests for a batch meet."""
        self.hung: Callable[[Received], None] = lambda received: None
        """Called with each request that is never answered."""
        self._finished = False
        self._failing: set[str] = set()

    def script(self, *faults: Fault) -> None:
        """What the next requests for an answer meet, in turn; None is answered. Later ones are answered."""
        self._faults.extend(faults)

    @property
    def asked(self) -> list[Received]:
        """The requests for an answer."""
        return [r for r in self.received if is_question(r)]

    @property
    def bodies(self) -> list[Any]:
        return [r.body for r in self.asked]

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    @property
    def openai_url(self) -> str:
        return f"{self.url}/v1"

    def finish_batches(self, failing: set[str] | None = None) -> None:
        """End every batch; the requests at the places `failing` have no answer."""
        self._finished, self._failing = True, failing or set()

    # ------------------------------------------------------------------------------------------------ start and stop

    def __enter__(self) -> WireServer:
        started = threading.Event()
        self._loop = asyncio.new_event_loop()

        async def start() -> None:
            self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, backlog=1024)
            self._port = self._server.sockets[0].getsockname()[1]
            started.set()

        def run() -> None:
            asyncio.set_event_loop(self._loop)
            self._loop.create_task(start())
            self._loop.run_forever()
            for task in asyncio.all_tasks(self._loop):
                task.cancel()
            self._loop.run_until_complete(asyncio.sleep(0))
            self._loop.close()

        self._thread = threading.Thread(target=run, name="wire-server", daemon=True)
        self._thread.start()
        started.wait()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._loop.call_soon_threadsafe(self._server.close)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    # -------------------------------------------------------------------------------------------------- connections

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while (received := await read_request(reader)) is not None:
                self.received.append(received)
                self.in_flight += 1
                self.most_in_flight = max(self.most_in_flight, self.in_flight)
                try:
                    goes_on = await self._respond(received, writer)
                finally:
                    self.in_flight -= 1
                if not goes_on:
                    break
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass  # the other side is gone, or the server stops
        finally:
            writer.close()

    async def _respond(self, received: Received, writer: asyncio.StreamWriter) -> bool:
        """Whether the connection stays open."""
        if self.refuses_beyond is not None and self.in_flight > self.refuses_beyond:
            writer.write(refusal(Status(429, retry_after_ms=50), anthropic="messages" in received.path))
            await writer.drain()
            return True
        if self.latency:
            await asyncio.sleep(self.latency)
        while self.most_in_flight < self.together:
            await asyncio.sleep(0.001)
        fault = self._next_fault(received)
        if isinstance(fault, Drop):
            if fault.sent:
                writer.write(response(200, json.dumps(self._answered(received)).encode())[: fault.sent])
                await writer.drain()
            return False
        if isinstance(fault, Hang):
            self.hung(received)
            await asyncio.Event().wait()
        if isinstance(fault, Drip):
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 100000\r\n\r\n")
            while True:
                writer.write(b" ")
                await writer.drain()
                await asyncio.sleep(fault.gap)
        if isinstance(fault, Flood):
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n")
            while True:
                writer.write(b"10000\r\n" + b" " * 0x10000 + b"\r\n")
                await writer.drain()
        if isinstance(fault, Status):
            writer.write(refusal(fault, anthropic="messages" in received.path))
        elif isinstance(fault, Body):
            body = fault.body if isinstance(fault.body, bytes) else json.dumps(fault.body).encode()
            writer.write(response(fault.code, body, fault.headers))
        else:
            told = fault.headers if isinstance(fault, Told) else None
            writer.write(response(*self._route(received), told))
        await writer.drain()
        return not (isinstance(fault, Body) and fault.headers.get("connection") == "close")

    def _next_fault(self, received: Received) -> Fault:
        if is_question(received):
            fault = self._faults.popleft() if self._faults else self.refuses(received.body)
            self.charged += not isinstance(fault, Status)
            return fault
        if received.method == "POST" and received.path.endswith("/batches"):
            return self.batch_faults.popleft() if self.batch_faults else None
        return None

    # -------------------------------------------------------------------------------------------------------- routes

    def _route(self, received: Received) -> tuple[int, bytes]:
        parts = received.path.strip("/").split("/")
        if is_question(received):
            return 200, json.dumps(self._answered(received)).encode()
        if parts[-1] == "files":
            name = f"file-{len(self._files)}"
            start = received.raw.index(b'{"custom_id"')
            self._files[name] = received.raw[start : received.raw.rindex(b"}") + 1]
            return 200, json.dumps({"id": name, "object": "file", "purpose": "batch"}).encode()
        if parts[-1] == "content":
            return 200, self._files[parts[-2]]
        if parts[-1] == "batches":
            return 200, json.dumps(self._new_batch(received)).encode()
        if parts[-1] == "results":
            return 200, self._results(parts[-2])
        if "batches" in parts and parts[-1] in self.batches:
            return 200, json.dumps(self._state(parts[-1])).encode()
        return 404, json.dumps({"error": {"type": "not_found_error", "message": "no such thing"}}).encode()

    def _answered(self, received: Received) -> dict[str, Any]:
        text, asked = self.answer(received), received.body
        if received.path.endswith("/messages"):
            return message(asked, text)
        return completion(asked, text, chat=received.path.endswith("/chat/completions"))

    def _new_batch(self, received: Received) -> dict[str, Any]:
        name = f"batch_{len(self.batches)}"
        body = received.body
        if "requests" in body:
            asked = [(r["custom_id"], r["params"]) for r in body["requests"]]
            path = "/v1/messages"
        else:
            lines = [json.loads(line) for line in self._files[body["input_file_id"]].splitlines()]
            asked = [(line["custom_id"], line["body"]) for line in lines]
            path = body["endpoint"]
        self.batches[name] = {"asked": asked, "path": path}
        return self._state(name)

    def _state(self, name: str) -> dict[str, Any]:
        if self.batches[name]["path"] == "/v1/messages":
            return {
                "id": name,
                "type": "message_batch",
                "processing_status": "ended" if self._finished else "in_progress",
                "request_counts": {"processing": 0, "succeeded": 0, "errored": 0, "canceled": 0, "expired": 0},
                "created_at": "2026-11-01T00:00:00Z",
                "expires_at": "2026-11-02T00:00:00Z",
            }
        state = {"id": name, "object": "batch", "status": "in_progress", "endpoint": self.batches[name]["path"]}
        if "refused" in self.batches[name]:
            reason = {"code": "invalid", "message": self.batches[name]["refused"]}
            state |= {"status": "failed", "errors": {"object": "list", "data": [reason]}}
        elif self._finished:
            self._files[f"{name}-output"] = self._results(name)
            state |= {"status": "completed", "output_file_id": f"{name}-output"}
        return state

    def _results(self, name: str) -> bytes:
        """In reverse order: vendors promise none."""
        batch, rows = self.batches[name], []
        for place, asked in reversed(batch["asked"]):
            works = place.split("-")[0] not in self._failing
            answered = self._answered(Received("POST", batch["path"], {}, json.dumps(asked).encode()))
            if batch["path"] == "/v1/messages":
                result = {"type": "succeeded", "message": answered} if works else {"type": "expired"}
                rows.append({"custom_id": place, "result": result})
            else:
                result = {"status_code": 200 if works else 500, "body": answered if works else {"error": {}}}
                rows.append({"custom_id": place, "response": result, "error": None})
        return "\n".join(map(json.dumps, rows)).encode()


# ------------------------------------------------------------------------------------------------------- wire formats


def is_question(received: Received) -> bool:
    return received.method == "POST" and received.path.endswith(("/completions", "/messages"))


def completion(asked: Mapping[str, Any], text: str, chat: bool = True) -> dict[str, Any]:
    """OpenAI's answer, chat or text completion: a tool is called where one is given."""
    choice: dict[str, Any] = {"index": 0, "finish_reason": "stop"}
    if not chat:
        choice["text"] = text
    elif asked.get("tools"):
        function = {"name": asked["tools"][0]["function"]["name"], "arguments": text}
        call = {"id": "call_0", "type": "function", "function": function}
        choice |= {
            "message": {"role": "assistant", "content": None, "tool_calls": [call]},
            "finish_reason": "tool_calls",
        }
    else:
        choice["message"] = {"role": "assistant", "content": text, "refusal": None}
    if chat and asked.get("logprobs"):
        likely = [{"token": "m", "logprob": -0.1}, {"token": "M", "logprob": -2.5}]
        choice["logprobs"] = {"content": [{"token": "m", "logprob": -0.1, "top_logprobs": likely}]}
    elif asked.get("logprobs"):
        choice["logprobs"] = {"tokens": ["m"], "top_logprobs": [{"m": -0.1, "M": -2.5}]}
    given, cached, made = USAGE
    usage = {"prompt_tokens": given, "completion_tokens": made, "prompt_tokens_details": {"cached_tokens": cached}}
    return {
        "id": "chatcmpl-0",
        "object": "chat.completion" if chat else "text_completion",
        "created": 0,
        "model": asked["model"],
        "choices": [choice],
        "usage": usage,
    }


def message(asked: Mapping[str, Any], text: str, stop_reason: str = "end_turn") -> dict[str, Any]:
    """Anthropic's answer, a thought before it where the model may think."""
    content: list[dict[str, Any]] = [{"type": "thinking", "thinking": "Output (b)?", "signature": ""}]
    if asked.get("tools"):
        content.append({"type": "tool_use", "id": "t", "name": asked["tools"][0]["name"], "input": json.loads(text)})
        stop_reason = "tool_use"
    elif text:
        content.append({"type": "text", "text": text})
    given, cached, made = USAGE
    return {
        "id": "msg_0",
        "type": "message",
        "role": "assistant",
        "model": asked["model"],
        "content": content,
        "stop_reason": stop_reason,
        "stop_sequence": None,
        "usage": {"input_tokens": given - cached, "cache_read_input_tokens": cached, "output_tokens": made},
    }


def refusal(fault: Status, anthropic: bool) -> bytes:
    error = {"type": "an_error", "message": fault.message, **fault.error}
    body = {"type": "error", "error": error} if anthropic else {"error": error}
    headers = {}
    if fault.retry_after is not None:
        headers["retry-after"] = fault.retry_after
    elif fault.retry_after_ms is not None:
        headers["retry-after-ms"] = str(fault.retry_after_ms)
    return response(fault.code, json.dumps(body).encode(), headers)


def response(status: int, body: bytes, headers: Mapping[str, str] | None = None) -> bytes:
    lines = [f"HTTP/1.1 {status} Some"]
    headers = {"content-length": str(len(body)), "content-type": "application/json", **(headers or {})}
    lines += [f"{name}: {value}" for name, value in headers.items()]
    return "\r\n".join([*lines, "", ""]).encode() + body


async def read_request(reader: asyncio.StreamReader) -> Received | None:
    """None where the other side has closed."""
    try:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin1")
    except asyncio.IncompleteReadError:
        return None
    first, *rest = head.split("\r\n")
    method, path, _ = first.split(" ", 2)
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in rest if line)}
    if headers.get("transfer-encoding") == "chunked":
        raw = b""
        while size := int((await reader.readline()).split(b";")[0], 16):
            raw += (await reader.readexactly(size + 2))[:-2]
        await reader.readline()
    else:
        raw = await reader.readexactly(int(headers.get("content-length") or 0))
    return Received(method, path, headers, raw)
