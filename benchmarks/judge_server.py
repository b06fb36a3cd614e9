"""A language model's stand-in for benchmarks: answers OpenAI's chat format after a fixed latency, on this machine.

What it answers is drawn from the prompt: `Output (a)` or `Output (b)`, or the ranking that AlpacaEval's asks for.
`python -m benchmarks.judge_server --latency 0.2` prints its port and serves until its standard input closes. With
`--at-once` or `--per-second` it refuses what exceeds that with a 429, and with `--retry-after` says for how long.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
import zlib
from collections import deque
from typing import ClassVar

RANKINGS = ["[{'model': 'model_1', 'rank': 1}, {'model': 'model_2', 'rank': 2}]"]
RANKINGS.append(RANKINGS[0].replace("1}", "x}").replace("2}", "1}").replace("x}", "2}"))
LABELS = ["Output (a)", "Output (b)"]


class Connection(asyncio.Protocol):
    """One client: requests one after the other, as HTTP/1.1 has them."""

    latency = 0.2
    at_once = per_second = retry_after = 0.0
    running = 0
    taken: ClassVar[deque[float]] = deque()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        self.received = b""

    def data_received(self, data: bytes) -> None:
        self.received += data
        head, found, rest = self.received.partition(b"\r\n\r\n")
        if not found:
            return
        length = int(head.lower().partition(b"content-length:")[2].partition(b"\r\n")[0] or 0)
        if len(rest) < length:
            return
        body, self.received = rest[:length], rest[length:]
        if not self.takes():
            wait = b"Retry-After: %d\r\n" % self.retry_after if self.retry_after else b""
            self.transport.write(b"HTTP/1.1 429 Too Many Requests\r\n%sContent-Length: 2\r\n\r\n{}" % wait)
            return
        Connection.running += 1
        asyncio.get_running_loop().call_later(self.latency, self.answer, body)

    def takes(self) -> bool:
        """True if the fixed rate allows one more request."""
        now, taken = time.monotonic(), Connection.taken
        while taken and taken[0] <= now - 1:
            taken.popleft()
        if (self.at_once and Connection.running >= self.at_once) or (self.per_second and len(taken) >= self.per_second):
            return False
        taken.append(now)
        return True

    def answer(self, body: bytes) -> None:
        Connection.running -= 1
        if self.transport.is_closing():
            return
        drawn = zlib.crc32(body) & 1
        text = (RANKINGS if b"'rank'" in body else LABELS)[drawn]
        usage = {"prompt_tokens": len(body) // 4, "completion_tokens": 6, "total_tokens": len(body) // 4 + 6}
        message = {"role": "assistant", "content": text}
        choice = {"index": 0, "finish_reason": "stop", "message": message}
        said = {"id": "x", "object": "chat.completion", "created": 1, "model": "x", "choices": [choice], "usage": usage}
        answer = json.dumps(said).encode()
        head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(answer)
        self.transport.write(head + answer)


async def serve(options: argparse.Namespace) -> None:
    Connection.latency, Connection.at_once = options.latency, options.at_once
    Connection.per_second, Connection.retry_after = options.per_second, options.retry_after
    server = await asyncio.get_running_loop().create_server(Connection, "127.0.0.1", 0, backlog=1024)
    sys.stdout.write(f"{server.sockets[0].getsockname()[1]}\n")
    sys.stdout.flush()
    await asyncio.to_thread(sys.stdin.read)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--latency", type=float, default=0.2, help="seconds")
    for name in ("--at-once", "--per-second", "--retry-after"):
        parser.add_argument(name, type=float, default=0.0)
    asyncio.run(serve(parser.parse_args()))
