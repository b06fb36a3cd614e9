"""A judge behind HTTP on this machine that counts what it is asked, and the judge that asks it."""

from __future__ import annotations

import asyncio
import json
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from afarm.core.judge import Capabilities, ChatRequest, Completion, Judge
from afarm.core.seeding import uniform
from afarm.judging import render

UNREADABLE = 0.02


class CountingServer:
    """Answers on an ephemeral port of 127.0.0.1 after `seconds`. What it says about a comparison depends on the whole
    prompt, so that a batch with other companions would be answered otherwise."""

    def __init__(self, seconds: float = 0.0):
        self.seconds = seconds
        self.calls: Counter[str] = Counter()
        self.port = 0

    @property
    def count(self) -> int:
        return self.calls.total()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = int(head.lower().partition(b"content-length:")[2].partition(b"\r\n")[0])
                asked = await reader.readexactly(length)
                self.calls[asked.decode()] += 1
                await asyncio.sleep(self.seconds)
                answer = self.answer(json.loads(asked)).encode()
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(answer) + answer)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            pass
        finally:
            writer.close()

    def answer(self, asked: dict[str, object]) -> str:
        drawn = [uniform(asked["prompt"], asked["draw"], i) for i in range(int(str(asked["comparisons"])))]
        verdicts = [None if u < UNREADABLE else u < (1 + UNREADABLE) / 2 for u in drawn]
        return render(verdicts, str(asked["format"]))

    @contextmanager
    def running(self) -> Iterator[CountingServer]:
        """The server on a thread of its own."""
        loop = asyncio.new_event_loop()
        ready = threading.Event()

        async def serve() -> None:
            server = await asyncio.start_server(self._serve, "127.0.0.1", 0, backlog=512)
            self.port = server.sockets[0].getsockname()[1]
            ready.set()

        def run() -> None:
            loop.run_until_complete(serve())
            loop.run_forever()
            for task in asyncio.all_tasks(loop):
                task.cancel()
            loop.run_until_complete(asyncio.sleep(0.05))
            loop.close()

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        ready.wait(30)
        try:
            yield self
        finally:
            loop.call_soon_threadsafe(loop.stop)
            thread.join(30)


class HttpJudge(Judge):
    """Asks a `CountingServer`, over one connection for each request in flight."""

    capabilities = Capabilities(completion=True, logit_bias=True)
    identity = "http"

    def __init__(self, port: int):
        self.port = port
        self._idle: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []

    def worst_case_price(self, request: ChatRequest) -> float:
        return 0.001

    async def complete(self, request: ChatRequest) -> Completion:
        reader, writer = self._idle.pop() if self._idle else await asyncio.open_connection("127.0.0.1", self.port)
        body = json.dumps(
            {
                "prompt": request.prompt + "".join(message.content for message in request.messages),
                "annotator": request.annotator,
                "draw": request.sample_index,
                "format": request.answer_format,
                "comparisons": len(request.comparisons),
            }
        ).encode()
        writer.write(b"POST / HTTP/1.1\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        head = await reader.readuntil(b"\r\n\r\n")
        text = await reader.readexactly(int(head.lower().partition(b"content-length:")[2].partition(b"\r\n")[0]))
        self._idle.append((reader, writer))
        return Completion(text.decode(), 10, 2, price=0.001)

    async def close(self) -> None:
        for _, writer in self._idle:
            writer.close()
        self._idle.clear()
