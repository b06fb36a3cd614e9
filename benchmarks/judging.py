"""How fast judging is, and what it costs the machine: `python -m benchmarks.judging`, part of `make bench`.

805 pairs, one a prompt, against `benchmarks.judge_server` at 200 ms a call; each figure in a process of its own. The
peer is alpaca_eval 0.6.6 with its evaluator alpaca_eval_gpt4, in an environment of its own, whose Python is named by
`AFARM_BENCH_ALPACA_EVAL`; without it the peer's rows are left out. Memory is measured against a judge in the process
that answers at once, with pairs that are made as they are read.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from afarm.core.interfaces import AnnotateContext, BuildContext
from afarm.core.judge import Capabilities, ChatRequest, Completion, Judge
from afarm.core.records import Instruction, Pair
from afarm.judging.client import JudgeClient
from afarm.judging.labelling import annotate_in_chunks
from afarm.judging.ledger import Ledger
from afarm.judging.rate_limit import Limiter

PAIRS = 805
LATENCY = 0.2
SENTENCE = "The quick answer is that it depends on what is asked, and a longer one says on what it depends and why. "

PEER = """
import json, os, resource, sys, time
from alpaca_eval.annotators import PairwiseAnnotator
rows = [{"instruction": f"Question {i}: " + sys.argv[2], "output_1": f"One {i}. " + sys.argv[2] * 5,
         "output_2": f"Two {i}. " + sys.argv[2] * 5} for i in range(int(sys.argv[1]))]
annotator = PairwiseAnnotator(annotators_config="alpaca_eval_gpt4", caching_path=None)
begin, cpu = time.perf_counter(), time.process_time()
annotator.annotate_pairs(rows)
usage = resource.getrusage(resource.RUSAGE_SELF)
print(json.dumps({"wall": time.perf_counter() - begin, "cpu": time.process_time() - cpu,
                  "memory_mb": usage.ru_maxrss / 1024}))
"""


class Prompt(Judge):
    """Answers at once, in the process: what is left is the engine, the ledger and the prompts."""

    capabilities = Capabilities(completion=True, logit_bias=True)
    identity = "prompt"

    def worst_case_price(self, request: ChatRequest) -> float:
        return 1e-4

    async def complete(self, request: ChatRequest) -> Completion:
        await asyncio.sleep(0)
        return Completion("Output (a)", 500, 4, price=1e-4)


def pairs(count: int) -> Iterator[Pair]:
    for i in range(count):
        yield Pair(Instruction(f"Question {i}: {SENTENCE}"), f"One {i}. {SENTENCE * 5}", f"Two {i}. {SENTENCE * 5}")


def work(port: int, count: int, in_flight: int, directory: Path) -> dict[str, float]:
    """Judge `count` pairs and measure; port 0 is the judge in the process."""
    from afarm_plugins.annotators.pool import PoolAnnotator
    from afarm_plugins.annotators.settings import PoolConfig

    limiter = Limiter(in_flight)
    judge = _served(port, limiter) if port else Prompt()
    annotator = PoolAnnotator(PoolConfig(members=["chatgpt_1"]))
    begin, cpu = time.perf_counter(), time.process_time()
    with Ledger(directory / "ledger.sqlite") as ledger:
        ask = JudgeClient(
            {"*": judge}, ledger, max_concurrency=in_flight, allow_degraded=True, limiters={judge: limiter}
        )
        context = AnnotateContext(1, ask)
        decided = sum(
            j.preference.outcome == "decided" for j in annotate_in_chunks(pairs(count), annotator, "bench", context)
        )
        ask.close()
    assert decided == count, f"{decided} of {count} pairs were decided"
    return {
        "wall": time.perf_counter() - begin,
        "cpu": time.process_time() - cpu,
        "memory_mb": peak_memory(),
        "calls": ask.spend.calls,
    }


def _served(port: int, limiter: Limiter) -> Judge:
    from afarm.core.plugins import discover

    component = discover().get("judges", "openai-compatible")

    def no_reward_model(name: str) -> Any:
        raise NotImplementedError(name)

    context = BuildContext(no_reward_model, allowed=limiter.allowed)
    judge: Judge = component.load()(f"bench@http://127.0.0.1:{port}/v1", component.settings({}), context)
    return judge


# ------------------------------------------------------------------------------------------------------ measuring


@contextmanager
def server(*limits: str) -> Iterator[int]:
    """The port of a server in a process of its own, with the options `limits`."""
    command = [sys.executable, "-m", "benchmarks.judge_server", "--latency", str(LATENCY), *limits]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        yield int(process.stdout.readline())
    finally:
        process.stdin.close()
        process.wait(10)


def measured(port: int, count: int, in_flight: int, directory: str) -> dict[str, float]:
    arguments = ["--port", str(port), "--pairs", str(count), "--in-flight", str(in_flight), "--directory", directory]
    command = [sys.executable, "-m", "benchmarks.judging", *arguments]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def peer(python: str, port: int, in_flight: int) -> dict[str, float]:
    address = {"OPENAI_API_BASE": f"http://127.0.0.1:{port}/v1", "OPENAI_BASE_URL": f"http://127.0.0.1:{port}/v1"}
    environment = {**os.environ, **address, "OPENAI_API_KEY": "none", "OPENAI_MAX_CONCURRENCY": str(in_flight)}
    command = [python, "-c", PEER, str(PAIRS), SENTENCE]
    done = subprocess.run(command, check=True, capture_output=True, text=True, env=environment)
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def row(name: str, in_flight: int, found: dict[str, float], count: int = PAIRS) -> str:
    rate, milliseconds = count / found["wall"], 1000 * found["cpu"] / count
    return (
        f"| {name} | {in_flight} | {found['wall']:.1f} | {rate:.0f} | {milliseconds:.2f} | {found['memory_mb']:.0f} |"
    )


def rate_limits() -> list[str]:
    """Finishing rates against servers that refuse what exceeds a fixed rate with a 429."""
    lines = ["| server | in flight | seconds | pairs/s | share of its rate |", "|---|---|---|---|---|"]
    cases: list[tuple[str, tuple[str, ...], int, float, int]] = [
        ("8 at once", ("--at-once", "8"), 64, 8 / LATENCY, PAIRS),
        ("8 at once, Retry-After 1 s", ("--at-once", "8", "--retry-after", "1"), 64, 8 / LATENCY, PAIRS),
        ("20 at once", ("--at-once", "20"), 256, 20 / LATENCY, 2 * PAIRS),
        ("40 per second", ("--per-second", "40"), 256, 40, PAIRS),
        ("2 per second, Retry-After 5 s", ("--per-second", "2", "--retry-after", "5"), 64, 2, 200),
    ]
    for name, limits, in_flight, rate, count in cases:
        with server(*limits) as port, tempfile.TemporaryDirectory() as scratch:
            wall = measured(port, count, in_flight, scratch)["wall"]
        lines.append(f"| {name} | {in_flight} | {wall:.1f} | {count / wall:.1f} | {100 * count / wall / rate:.0f}% |")
    return lines


def judging() -> list[str]:
    """The rows of the table in docs/notes/benchmarks.md."""
    python = os.environ.get("AFARM_BENCH_ALPACA_EVAL", "")
    lines = [
        "| work | in flight | seconds | pairs/s | CPU ms a pair | peak memory, MB |",
        "|---|---|---|---|---|---|",
    ]
    ratios = []
    with server() as port, tempfile.TemporaryDirectory() as scratch:
        for in_flight in (5, 128, 256):
            theirs = peer(python, port, in_flight) if python else None
            ours = measured(port, PAIRS, in_flight, f"{scratch}/{in_flight}")
            lines.append(row(f"afarm, {PAIRS} pairs at {LATENCY * 1000:.0f} ms", in_flight, ours))
            if theirs:
                lines.append(row("alpaca_eval 0.6.6, the same", in_flight, theirs))
                rate, cpu = theirs["wall"] / ours["wall"], theirs["cpu"] / ours["cpu"]
                ratios.append(f"{rate:.1f} times the rate and 1/{cpu:.0f} of the CPU at {in_flight} in flight")
        again = measured(port, PAIRS, 128, f"{scratch}/128")
        assert again["calls"] == 0
        lines.append(row("afarm again, all in the ledger", 128, again))
    for count in (1_000, 100_000):
        with tempfile.TemporaryDirectory() as scratch:
            lines.append(
                row(
                    f"afarm, {count:,} pairs, a judge that answers at once",
                    256,
                    measured(0, count, 256, scratch),
                    count,
                )
            )
    if ratios:
        lines += ["", f"afarm against alpaca_eval: {'; '.join(ratios)}."]
    return lines


def peak_memory() -> float:
    """MB of this process alone: `ru_maxrss` starts from what the process that made it held."""
    status = Path("/proc/self/status")
    if not status.exists():
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    peak = next(line for line in status.read_text().splitlines() if line.startswith("VmHWM"))
    return int(peak.split()[1]) / 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, help="measure one run, in this process, and print it as JSON")
    parser.add_argument("--pairs", type=int, default=PAIRS)
    parser.add_argument("--in-flight", type=int, default=128)
    parser.add_argument("--directory", type=Path, default=Path())
    options = parser.parse_args()
    if options.port is None:
        sys.stdout.write("\n".join(judging()) + "\n")
        return
    options.directory.mkdir(parents=True, exist_ok=True)
    sys.stdout.write(json.dumps(work(options.port, options.pairs, options.in_flight, options.directory)) + "\n")


if __name__ == "__main__":
    main()
