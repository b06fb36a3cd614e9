"""What a small local model can do as a judge, on real pairs, against the GPT-4 judgements stored with them.

    python -m benchmarks.local_judge MODEL ANNOTATIONS --pairs 100

MODEL is what `--model` takes; ANNOTATIONS an annotation file of alpaca_eval (JSON, plain or gzipped). Prints two
Markdown tables: the agreement of label probabilities with the stored judgements, with the outputs in one order and in
both, and the share of answers by text that cannot be read, for each answer format.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
import time
from collections.abc import Sequence
from math import exp, sqrt
from typing import NoReturn

from afarm.backend import Backend
from afarm.core.config import BackendConfig
from afarm.core.interfaces import BuildContext
from afarm.core.judge import Completion, ShownPair
from afarm.core.records import JudgedPair, Pair
from afarm.core.seeding import uniform
from afarm.storage.rows import read_preferences
from afarm_plugins.annotators.parsing import parse
from afarm_plugins.annotators.prompt_library import load_member
from afarm_plugins.judges.local import LocalJudge
from afarm_plugins.judges.settings import LocalConfig

BY_TEXT = ("chatgpt_4", "chatgpt_1", "gpt4_4", "davinci003_2", "chatgpt_2", "gpt4_3", "davinci003_3", "gpt4_1")
BY_PROBABILITIES = ("chatgpt_4", "chatgpt_1", "gpt4_4", "davinci003_2", "davinci003_4")
SEED = 0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("model")
    parser.add_argument("annotations")
    parser.add_argument("--pairs", type=int, default=100)
    parser.add_argument("--by-text", nargs="*", default=BY_TEXT)
    parser.add_argument("--by-probabilities", nargs="*", default=BY_PROBABILITIES)
    given = parser.parse_args()
    decided = [row for row in read_preferences(given.annotations) if row.p2 is not None and row.p2 != 0.5]
    rows = sorted(decided, key=lambda row: uniform(SEED, "sample", row.pair.id))[: given.pairs]
    backend = Backend(BackendConfig(device="auto"))
    context = BuildContext(reward_model=lambda name: _none(), backend=lambda: backend)
    print(f"{given.model}, {len(rows)} pairs of {given.annotations.rsplit('/', 1)[-1]}\n", flush=True)
    weighing = LocalConfig(answer="probabilities", per_device_batch_size=4)
    if given.by_probabilities:
        probabilities(LocalJudge(given.model, weighing, context), rows, given.by_probabilities)
    if given.by_text:
        text(LocalJudge(given.model, LocalConfig(per_device_batch_size=8), context), rows, given.by_text)


def _none() -> NoReturn:
    raise NotImplementedError


def shown(pair: Pair, order: str) -> ShownPair:
    return ShownPair(pair.id, pair.instruction, *(pair.canonical if order == "ab" else pair.canonical[::-1]), order)


async def ask(judge: LocalJudge, name: str, comparisons: Sequence[ShownPair]) -> list[Completion]:
    member = load_member(name)
    size = member.spec.batch_size
    requests = [
        member.request(comparisons[i : i + size], seed=SEED, sample_index=0) for i in range(0, len(comparisons), size)
    ]
    return await asyncio.gather(*(judge.complete(request) for request in requests))


def probabilities(judge: LocalJudge, rows: Sequence[JudgedPair], names: Sequence[str]) -> None:
    """The table of agreement. One order is drawn for each pair; p is the probability of GPT-4's choice."""
    print("| prompt | one order | both, mean | same label in both | of those, right | first shown | s/pair |")
    print("|---|---|---|---|---|---|---|", flush=True)
    for name in names:
        started = time.monotonic()
        p: dict[str, list[float]] = {}
        firsts: list[float] = []
        for order in ("ab", "ba"):
            answers = asyncio.run(ask(judge, name, [shown(row.pair, order) for row in rows]))
            read = [exp(answer.logprobs[0]["Output (a)"]) for answer in answers if answer.logprobs]
            firsts += [float(value > 0.5) for value in read]
            p[order] = [
                value if (order == "ab") == (row.pair.is_canonical == (row.p2 == 0)) else 1 - value
                for value, row in zip(read, rows, strict=True)
            ]
        one = [float(p["ab" if uniform(SEED, "order", r.pair.id) < 0.5 else "ba"][i] > 0.5) for i, r in enumerate(rows)]
        mean = [float(a + b > 1) for a, b in zip(p["ab"], p["ba"], strict=True)]
        same = [float(a > 0.5) for a, b in zip(p["ab"], p["ba"], strict=True) if (a > 0.5) == (b > 0.5)]
        seconds = (time.monotonic() - started) / len(firsts)
        print(
            f"| {name} | {share(one)} | {share(mean)} | {share([1.0] * len(same) + [0.0] * (len(rows) - len(same)))} "
            f"| {share(same)} | {share(firsts)} | {seconds:.1f} |",
            flush=True,
        )


def text(judge: LocalJudge, rows: Sequence[JudgedPair], names: Sequence[str]) -> None:
    """The table of what can be read."""
    print("\n| prompt | answer | pairs a prompt | unparsed | agreement where parsed | first shown | s/pair |")
    print("|---|---|---|---|---|---|---|", flush=True)
    for name in names:
        started = time.monotonic()
        member = load_member(name)
        entry = member.spec
        orders = ["ab" if uniform(SEED, "order", row.pair.id) < 0.5 else "ba" for row in rows]
        bare = [row for row in rows if not row.pair.instruction.input]
        comparisons = [shown(row.pair, order) for row, order in zip(bare, orders, strict=False)]
        answers = asyncio.run(ask(judge, name, comparisons))
        verdicts = [v for a in answers for v in parse(a.text, entry.answer_format, entry.batch_size)][: len(bare)]
        read = [(v, c, row) for v, c, row in zip(verdicts, comparisons, bare, strict=True) if v is not None]
        right = [
            float(((v == 1) == (c.order == "ab")) == (row.pair.is_canonical == (row.p2 == 0))) for v, c, row in read
        ]
        seconds = (time.monotonic() - started) / len(bare)
        kind = f"{entry.kind}, {entry.answer_format}"
        unread = [float(v is None) for v in verdicts]
        print(
            f"| {name} | {kind} | {entry.batch_size} | {share(unread)} | {share(right)} "
            f"| {share([v for v, _, _ in read])} | {seconds:.1f} |",
            flush=True,
        )
        example = next((a.text for a in answers if None in parse(a.text, entry.answer_format, entry.batch_size)), "")
        print(f"    unread, for example: {example[:120]!r}", file=sys.stderr, flush=True)


def share(values: Sequence[float]) -> str:
    """Percent ± its standard error."""
    if not values:
        return "–"
    error = statistics.stdev(values) / sqrt(len(values)) if len(values) > 1 else 0.0
    return f"{100 * statistics.fmean(values):.0f} ± {100 * error:.0f}%"


if __name__ == "__main__":
    main()
