"""`check_sampler` goes red for engines that break one promise each."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import pytest

from afarm import Decoding
from afarm.backend import CheckpointPolicy, Generation, TorchEngine, TorchSampler
from afarm.testing import ConformanceError, check_sampler


class Altered(TorchEngine):
    """torch, whose sampler and what it is given are altered by subclasses."""

    def sampler(self, policy: CheckpointPolicy) -> Any:
        self.inner: TorchSampler = super().sampler(policy)
        return self

    def generate(
        self, prompts: Sequence[Sequence[int]], keys: Sequence[str], decoding: Decoding, *, seed: int
    ) -> Iterator[Generation]:
        yield from self.inner.generate(prompts, keys, decoding, seed=seed)


class DrawsByPlace(Altered):
    def generate(self, prompts: Any, keys: Any, decoding: Decoding, *, seed: int) -> Iterator[Generation]:
        yield from self.inner.generate(prompts, [str(i) for i in range(len(keys))], decoding, seed=seed)


class ForgetsTheSeed(Altered):
    def generate(self, prompts: Any, keys: Any, decoding: Decoding, *, seed: int) -> Iterator[Generation]:
        yield from self.inner.generate(prompts, keys, decoding, seed=0)


class LogprobsOfTheTemperature(Altered):
    def generate(self, prompts: Any, keys: Any, decoding: Decoding, *, seed: int) -> Iterator[Generation]:
        for made in super().generate(prompts, keys, decoding, seed=seed):
            yield replace(made, logprobs=[value / 1.3 for value in made.logprobs or ()])


class SaysStopAlways(Altered):
    def generate(self, prompts: Any, keys: Any, decoding: Decoding, *, seed: int) -> Iterator[Generation]:
        for made in super().generate(prompts, keys, decoding, seed=seed):
            yield replace(made, finish_reason="stop")


class Stale(TorchEngine):
    """It goes on with the first weights that it was given adapters with."""

    takes_whole_weights: ClassVar[bool] = False
    first: Any = None

    def sampler(self, policy: CheckpointPolicy) -> TorchSampler:
        if not hasattr(policy.model, "peft_config"):
            return super().sampler(policy)
        held = copy.copy(policy)
        held.model = self.first = self.first or copy.deepcopy(policy.model)
        return super().sampler(held)


@pytest.mark.parametrize(
    ("engine", "promise"),
    [
        (DrawsByPlace, "must depend on .seed, k, j. only"),
        (ForgetsTheSeed, "another seed must give other draws"),
        (LogprobsOfTheTemperature, "logprobs must be the policy's at temperature 1"),
        (SaysStopAlways, "finish_reason must say how it ended"),
        (Stale, "after adapters have changed must sample by them"),
    ],
)
def test_an_engine_that_breaks_a_promise_is_named(engine: type, promise: str) -> None:
    with pytest.raises(ConformanceError, match=promise):
        check_sampler(engine())
