"""A plugin with the simulated judge's answers at a cent each: its requests are claimed and counted as a vendor's."""

from __future__ import annotations

from dataclasses import replace

from afarm.core.hooks import Register, hookimpl
from afarm.core.judge import ChatRequest, Completion
from afarm_plugins.judges.offline import OfflineJudge

PRICE = 0.01


class Priced(OfflineJudge):
    simulated = False  # what is simulated is free, and needs no claims

    def worst_case_price(self, request: ChatRequest) -> float:
        return PRICE

    async def complete(self, request: ChatRequest) -> Completion:
        return replace(await super().complete(request), price=PRICE)


@hookimpl
def register_judges(register: Register) -> None:
    register("priced", Priced)
