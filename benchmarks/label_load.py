"""The page on which people label, under 50 browsers: `python -m benchmarks.label_load`, with afarm-people installed.

Each browser sends a request every two seconds, in turn the page of a pair and an answer. Times are from the request to
the answer read, in a process beside the server's; how late this client was itself is told apart.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from http.client import HTTPConnection
from pathlib import Path
from urllib.parse import urlencode, urlsplit

BROWSERS = 50
EVERY = 2.0
"""Seconds from one request of a browser to its next."""
HEADERS = {"Accept": "application/json", "Content-Type": "application/x-www-form-urlencoded"}
FIELD = re.compile(r'name="(token|version)" value="([^"]*)"')
LINK = re.compile(r"^  p\d+: (\S+)$")


class Client(threading.Thread):
    """A browser: opens pairs and answers them until the time is over."""

    def __init__(self, link: str, until: float):
        super().__init__()
        self.link, self.until = urlsplit(link), until
        self.times: list[float] = []
        self.late: list[float] = []
        self.labels = 0

    def ask(self, method: str, path: str, body: str = "") -> tuple[dict[str, str], str]:
        began = time.perf_counter()
        self.connection.request(method, path, body or None, {**HEADERS, "Cookie": self.cookie})
        answer = self.connection.getresponse()
        text = answer.read().decode()
        self.times.append(time.perf_counter() - began)
        return dict(answer.getheaders()), text

    def run(self) -> None:
        assert self.link.hostname
        self.cookie = ""
        self.connection = HTTPConnection(self.link.hostname, self.link.port, timeout=60)
        self.cookie = self.ask("GET", self.link.path)[0]["set-cookie"].partition(";")[0]
        path, due = self.ask("GET", "/")[0]["location"], time.perf_counter() + EVERY * random.random()
        self.times.clear()
        fields: dict[str, str] = {}
        while due < self.until:
            time.sleep(max(0.0, due - time.perf_counter()))
            self.late.append(time.perf_counter() - due)
            if fields:
                choice = random.choice(["-2", "-1", "0", "1", "2"])
                _, told = self.ask("POST", path, urlencode({**fields, "choice": choice, "seconds": "1.5"}))
                path, fields = json.loads(told)["next"], {}
                self.labels += 1
            else:
                fields = dict(FIELD.findall(self.ask("GET", path)[1]))
            due += EVERY


def measure(seconds: float, pairs: int) -> list[str]:
    """Label for so many seconds; return lines of figures."""
    with tempfile.TemporaryDirectory() as directory:
        place = Path(directory, "pairs.jsonl")
        words = " ".join(f"word{number}" for number in range(150))
        rows = [{"instruction": f"task {n}", "output_1": f"a {words}", "output_2": f"b {words}"} for n in range(pairs)]
        place.write_text("".join(json.dumps(row) + "\n" for row in rows))
        names = ",".join(f"p{number}" for number in range(BROWSERS))
        command = [sys.executable, "-m", "afarm", "label", str(place), "--people", names, "--each", "3", "--port", "0"]
        server = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        assert server.stderr
        try:
            links = []
            for line in server.stderr:
                links += LINK.findall(line)
                if " so far, in " in line:
                    break
            clients = [Client(link, time.perf_counter() + seconds) for link in links]
            for client in clients:
                client.start()
            for client in clients:
                client.join()
        finally:
            server.kill()
            server.wait()
        command = [sys.executable, "-m", "afarm", "label", str(place), "--export", str(place.with_name("labels.jsonl"))]
        subprocess.run(command, check=True, capture_output=True)
        stored = len(place.with_name("labels.jsonl").read_text().splitlines())
    times = [1000 * t for client in clients for t in client.times]
    late = [1000 * t for client in clients for t in client.late]
    sent = sum(client.labels for client in clients)
    p95 = [statistics.quantiles(values, n=20)[-1] for values in (times, late)]
    return [
        f"{BROWSERS} browsers, {len(times):,} requests in {seconds:.0f} s, {pairs:,} pairs for 3 people each",
        f"milliseconds: median {statistics.median(times):.1f}, p95 {p95[0]:.1f}, longest {max(times):.1f}",
        f"the client was late itself: median {statistics.median(late):.1f}, p95 {p95[1]:.1f}",
        f"labels sent {sent:,}, on disk after kill -9: {stored:,}",
    ]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--pairs", type=int, default=2000)
    given = parser.parse_args()
    print("\n".join(measure(given.seconds, given.pairs)))
