"""Judges for tests of the engine: they answer at once or slowly, count what they are asked, and fail on cue."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

from afarm.core.judge import Capabilities, ChatRequest, Completion, Judge


class ScriptedJudge(Judge):
    """Answers with the prompt's echo after `seconds`. `asked` lists prompts, in order; `most` is the peak in flight.

    `fail` maps a prompt to an exception to raise instead. With `log`, every prompt is appended to that file before the
    answer, so that calls are counted across processes and kills.
    """

    capabilities = Capabilities(completion=True)

    def __init__(
        self,
        name: str = "scripted",
        *,
        seconds: float = 0.0,
        price: float | None = 0.0,
        worst: float | None = 0.0,
        fail: Callable[[str], BaseException | None] = lambda prompt: None,
        log: Path | None = None,
    ):
        self.name = name
        self.seconds = seconds
        self.charge = price
        self.worst = worst
        self.fail = fail
        self.log = log
        self.asked: list[str] = []
        self.in_flight = self.most = 0

    @property
    def identity(self) -> str:
        return self.name

    async def complete(self, request: ChatRequest) -> Completion:
        self.asked.append(request.prompt)
        if self.log is not None:
            with self.log.open("a") as handle:
                handle.write(request.prompt + "\n")
        self.in_flight += 1
        self.most = max(self.most, self.in_flight)
        try:
            await asyncio.sleep(self.seconds)
        finally:
            self.in_flight -= 1
        if error := self.fail(request.prompt):
            raise error
        return Completion(f"echo {request.prompt}", 10, 2, price=self.charge)

    def worst_case_price(self, request: ChatRequest) -> float | None:
        return self.worst


def question(prompt: str, role: str = "strong", **more: object) -> ChatRequest:
    return ChatRequest(role, prompt=prompt, annotator="someone", **more)  # type: ignore[arg-type]


def questions(count: int) -> list[ChatRequest]:
    return [question(f"q{number}") for number in range(count)]
