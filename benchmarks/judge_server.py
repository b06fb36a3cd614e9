"""A language model's stand-in for benchmarks: answers OpenAI's chat format after a fixed latency, on this machine.

What it answers is drawn from the prompt: `Output (a)` or `Output (b)`, or the ranking that AlpacaEval's asks for.
`python -m benchmarks.judge_server --latency 0.2` prints its port and serves until its standard input closes.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import zlib

RANKINGS = ["[{'model': 'model_1', 'rank': 1}, {'model': 'model_2', 'rank': 2}]"]
RANKINGS.append(RANKINGS[0].replace("1}", "x}").replace("2}", "1}").replace("x}", "2}"))
LABELS = ["Output (a)", "Output (b)"]


class Connection(asyncio.Protocol):
    """One client: requests one after the other, as HTTP/1.1 has them."""

    latency = 0.2

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
        asyncio.get_running_loop().call_later(self.latency, self.answer, body)

    def answer(self, body: bytes) -> None:
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


async def serve(latency: float) -> None:
    Connection.latency = latency
    server = await asyncio.get_running_loop().create_server(Connection, "127.0.0.1", 0, backlog=1024)
    sys.stdout.write(f"{server.sockets[0].getsockname()[1]}\n")
    sys.stdout.flush()
    await asyncio.to_thread(sys.stdin.read)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--latency", type=float, default=0.2, help="seconds")
    asyncio.run(serve(parser.parse_args().latency))
