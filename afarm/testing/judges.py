"""Conformance of judges, as far as possible without a network or a key."""

from __future__ import annotations

import asyncio
import gc
import json
import re
import sys
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from typing import Any

from afarm.core.errors import JudgeError
from afarm.core.judge import Capabilities, ChatRequest, Completion, Judge, ShownPair
from afarm.core.records import Instruction, Message
from afarm.judging.return_checks import identify_judge, require_completion, require_judge
from afarm.testing.conformance import as_in_a_run, require
from afarm.testing.examples import HOSTILE_TEXTS, make_instructions, make_pairs

FORMATS = ("single", "list", "json")


def check_judge(judge: Judge, *, answers: bool | None = None, instructions: Sequence[Instruction] = ()) -> None:
    """Check identity, prices and, if the judge `answers` here, its answers and declared capabilities.

    `answers` (default: `judge.simulated`) is True for a judge behind a fake transport. `instructions` are for a judge
    that accepts no others. Raises `ConformanceError` naming the broken promise.
    """
    with as_in_a_run():
        require_judge(judge, type(judge).__name__)
        identity, takes = identify_judge(judge), judge.capabilities
    require(judge.identity == identity, "identity must be the same whenever it is read")
    require(takes.chat or takes.completion, "a judge takes chats, or text completions, or both")

    async def check() -> None:
        try:
            if judge.simulated if answers is None else answers:
                await _check_answers(judge, list(instructions) or make_instructions(8))
        finally:
            await judge.close()  # in the loop that its connections were opened in
        require(len(asyncio.all_tasks()) == 1, "close must end what the judge began: tasks of its own still run")
        found = [one for one in gc.get_objects() if issubclass(type(one), asyncio.Transport) and not one.is_closing()]
        mine = [one for one in found if getattr(one, "_loop", None) is asyncio.get_running_loop()]
        require(not mine, "close must end what the judge began: its client's connections are still open")

    _heard_waiting().clear()
    asyncio.run(check())
    waits = ", ".join({*_heard_waiting()})
    require(not waits, f"complete must not block the event loop, in which other requests wait: {waits}")


@cache
def _heard_waiting() -> list[str]:
    """Listen to this process for calls that make an event loop wait (sleeps from Python 3.13 on)."""
    heard: list[str] = []

    def hear(event: str, arguments: tuple[Any, ...]) -> None:
        if event == "time.sleep" or (event == "socket.connect" and arguments[0].gettimeout() != 0):
            heard.extend([event] if asyncio._get_running_loop() else [])

    sys.addaudithook(hear)  # which cannot be taken away
    return heard


async def _check_answers(judge: Judge, instructions: Sequence[Instruction]) -> None:
    takes, identity = judge.capabilities, judge.identity
    for answer_format in FORMATS:
        for count in (1,) if answer_format == "single" else (1, 3):
            request = _request(instructions, answer_format, count, takes)
            completion = await judge.complete(request)
            _check_completion(judge, request, completion)
            if judge.simulated:
                verdicts = read(completion.text, answer_format)
                readable = f"a simulated judge must answer {count} comparisons readably as {answer_format!r}"
                require(len(verdicts) == count, f"{readable}: {completion.text[:200]!r}")
                again = await judge.complete(request)
                require(again.text == completion.text, "a simulated judge must answer equal requests equally")
    if judge.simulated:
        await _check_order_of_requests(judge, instructions)
    await _check_capabilities(judge, _request(instructions, "single", 1, takes))
    await _check_hostile_text(judge, instructions)
    require(judge.identity == identity, "identity must not change while the judge answers")


async def _check_order_of_requests(judge: Judge, instructions: Sequence[Instruction]) -> None:
    requests = [
        replace(_request([*instructions[i:], *instructions[:i]], "single", 1, judge.capabilities), sample_index=draw)
        for i in range(len(instructions))
        for draw in (0, 1)
    ]
    together = [c.text for c in await asyncio.gather(*(judge.complete(request) for request in requests))]
    alone = [(await judge.complete(request)).text for request in reversed(requests)]
    broken = "a simulated judge's answers must not depend on the order or the concurrency of requests"
    require(together == alone[::-1], broken)


async def _check_capabilities(judge: Judge, request: ChatRequest) -> None:
    """Check that declared capabilities are accepted, and that using others is a `JudgeError`."""
    takes, text = judge.capabilities, request.prompt or request.messages[0].content
    examples = {
        "chat": (takes.chat, replace(request, messages=(Message("user", text),), prompt="")),
        "completion": (takes.completion, replace(request, messages=(), prompt=text)),
        "temperature": (takes.temperature, replace(request, temperature=0.5)),
        "logit_bias": (takes.logit_bias, replace(request, favoured_tokens=("a",), penalised_tokens=("Neither",))),
    }
    for name, (declared, example) in examples.items():
        try:
            await judge.complete(example)
            answered = True
        except JudgeError as error:
            answered = False
            require(not declared, f"{judge.identity} declares {name} and then refuses it: {error}")
        require(
            declared or not answered, f"{judge.identity} does not declare {name}, so asking for it must be a JudgeError"
        )


async def _check_hostile_text(judge: Judge, instructions: Sequence[Instruction]) -> None:
    for number, text in enumerate(HOSTILE_TEXTS):
        request = _request(instructions, "list", 2, judge.capabilities)
        shown = replace(request.comparisons[0], pair_id=f"hostile {number}", first=text)
        request = replace(request, comparisons=(shown, *request.comparisons[1:]))
        _check_completion(judge, request, await judge.complete(request))


def _check_completion(judge: Judge, request: ChatRequest, completion: Completion) -> None:
    with as_in_a_run():
        require_completion(completion, judge.identity, judge)
    most, came = judge.most_output_tokens(request), completion.output_tokens
    require(came <= most, f"{came} tokens came, above most_output_tokens: {most}")
    worst = judge.worst_case_price(request)
    if worst is not None and completion.price is not None:
        require(completion.price <= worst + 1e-12, f"it cost ${completion.price}, above the worst case of ${worst}")


def _request(instructions: Sequence[Instruction], answer_format: str, count: int, takes: Capabilities) -> ChatRequest:
    pairs = make_pairs(instructions)[:count]
    comparisons = tuple(ShownPair(p.id, p.instruction, *p.canonical) for p in pairs)
    text = "\n\n".join(
        f"{n}. Instruction: {c.instruction.instruction}\n{c.instruction.input}\n(a) {c.first}\n(b) {c.second}"
        for n, c in enumerate(comparisons, start=1)
    )
    prompt = f"Which output is better, Output (a) or Output (b)? Answer as {answer_format}.\n\n{text}\n"
    return ChatRequest(
        role="strong",
        messages=(Message("user", prompt),) if takes.chat else (),
        prompt="" if takes.chat else prompt,
        comparisons=comparisons,
        answer_format=answer_format,
        annotator="conformance",
        seed=7,
    )


def read(text: str, answer_format: str) -> list[bool]:
    """Parse the verdicts (true: the first is better) in an answer that `afarm.judging.render` wrote."""
    if answer_format == "json":
        return [row["first_is_better"] for row in json.loads(text) if isinstance(row["first_is_better"], bool)]
    lines = text.strip().splitlines()
    if answer_format == "list":
        numbered = [re.fullmatch(r"(\d+)\. (Output \([ab]\))", line) for line in lines]
        lines = [found[2] for n, found in enumerate(numbered, start=1) if found and int(found[1]) == n]
    return [line == "Output (a)" for line in lines if line in ("Output (a)", "Output (b)")]
