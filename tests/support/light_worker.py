"""The light plugin as worker processes find it: with a backend that needs no torch, and a method that is killed."""

from __future__ import annotations

import os
import signal
import time

import light_plugin
from counting_server import HttpJudge
from light_farm import LightBackend
from light_plugin import RAN, Teach, TeachConfig, WordPolicy

from afarm.core.hooks import Register, hookimpl
from afarm.core.interfaces import BuildContext, MethodInputs, Policy, TrainContext
from afarm.core.judge import Capabilities
from afarm.experiment.components import Components

Components.backend = property(lambda self: LightBackend(WordPolicy))  # type: ignore[assignment,method-assign]

register_datasets = light_plugin.register_datasets
register_evaluators = light_plugin.register_evaluators
register_reward_models = light_plugin.register_reward_models


class Killed(Teach):
    """Its process is killed after its second step, unless it goes on from a checkpoint."""

    needs = frozenset({"preferences"})

    def train(self, inputs: MethodInputs, context: TrainContext) -> Policy:
        newest = context.checkpoints.latest()
        if newest is None:
            context.log_metrics(1, {"objective/kl": 0.1})
            context.checkpoints.save(1, lambda directory: (directory / "x").write_text("state") and None)
            os.kill(os.getpid(), signal.SIGKILL)
        return super().train(inputs, context)


class Waits(Teach):
    """Takes a step and waits for its end, twice, where the environment has it wait; then it goes on to the last."""

    needs = frozenset({"preferences"})

    def train(self, inputs: MethodInputs, context: TrainContext) -> Policy:
        newest = context.checkpoints.latest()
        step = newest[0] + 1 if newest else 1
        if "WAITS" in os.environ and step < 3:
            context.log_metrics(step, {"objective/kl": step / 10})
            context.checkpoints.save(step, lambda directory: (directory / "waits").write_text("state") and None)
            signal.pause()
        return super().train(inputs, context)


class Long(Teach):
    """Goes through a loop that has a bar, and would for hours."""

    needs = frozenset()

    def train(self, inputs: MethodInputs, context: TrainContext) -> Policy:
        for _ in context.progress(range(2**20), "long", 2**20):
            time.sleep(0.01)
        return super().train(inputs, context)


@hookimpl
def register_methods(register: Register) -> None:
    light_plugin.register_methods(register)
    register("long", Long, config=TeachConfig)
    register("killed", Killed, config=TeachConfig)
    register("waits", Waits, config=TeachConfig)


class Asked(HttpJudge):
    """Asks the counting server at the port that its spec names."""

    capabilities = Capabilities(chat=True, completion=True, logit_bias=True)

    def __init__(self, spec: str, config: None, context: BuildContext):
        super().__init__(int(spec))


@hookimpl
def register_judges(register: Register) -> None:
    light_plugin.register_judges(register)
    register("asked", Asked)


__all__ = ["RAN"]
