"""The light plugin of a run that waits until it is watched: its judge and its method go on once a file is there."""

from __future__ import annotations

import asyncio
from pathlib import Path

import light_plugin
import light_worker  # whose backend needs no torch
from gates import FREE, LABELS, STEPS
from light_plugin import CountingJudge, Direct, TeachConfig
from waiting import wait_until

from afarm.core.hooks import Register, hookimpl
from afarm.core.interfaces import MethodInputs, Policy, TrainContext
from afarm.core.judge import ChatRequest, Completion

register_datasets = light_plugin.register_datasets
register_evaluators = light_worker.register_evaluators
register_reward_models = light_worker.register_reward_models


class GatedJudge(CountingJudge):
    """Notes each answer in the file `answers`, for all processes to be counted."""

    async def complete(self, request: ChatRequest) -> Completion:
        while CountingJudge.asked >= FREE and not LABELS.exists():
            await asyncio.sleep(0.05)
        completion = await super().complete(request)
        with Path("answers").open("a") as handle:
            handle.write("x")
        return completion


class Gated(Direct):
    """Waits before it trains."""

    def train(self, inputs: MethodInputs, context: TrainContext) -> Policy:
        wait_until(STEPS.exists)
        return super().train(inputs, context)


@hookimpl
def register_methods(register: Register) -> None:
    register("gated", Gated, config=TeachConfig)


@hookimpl
def register_judges(register: Register) -> None:
    register("gated", GatedJudge)
