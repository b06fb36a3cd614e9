"""A weighted sum of reward models: `sum:NAME=WEIGHT,NAME=WEIGHT`."""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Mapping, Sequence
from functools import cached_property
from importlib import import_module
from pathlib import Path
from statistics import pstdev

from afarm import BuildContext, ConfigError, Instruction, ModelError, Output, RewardModel, Score, TrainContext

logger = logging.getLogger(__name__)

SAVED = "sum.json"
ENOUGH = 16
"""Outputs that tell on which scale a reward model's scores are."""
UNEVEN = 10
"""How many times as far as another part's a part's scores may spread before that is told."""


class WeightedSum(RewardModel):
    """The sum of the scores of several reward models, each times its weight (1 if none is given)."""

    def __init__(self, config: None, spec: str, context: BuildContext):
        """Open nothing yet. Raises `ConfigError` for a spec that names no part or has no number for a weight."""
        self.spec = spec
        self.weights = parse_weights(spec)
        self._context = context
        self._seen: list[list[float]] | None = [[] for _ in self.weights]

    @classmethod
    def parts(cls, spec: str) -> Sequence[str]:
        """See `RewardModel.parts`."""
        return list(parse_weights(spec))

    @cached_property
    def opened(self) -> Mapping[str, RewardModel]:
        """The parts by their names, opened when they first score: one may have been fitted by then."""
        return {name: self._context.reward_model(name) for name in self.weights}

    @property
    def identity(self) -> str:
        """The identities of the parts, with their weights."""
        return json.dumps([[self._context.identify(name), weight] for name, weight in self.weights.items()])

    def score(self, instructions: Sequence[Instruction], outputs: Sequence[str]) -> Sequence[Score]:
        return self.score_outputs([Output(i, text) for i, text in zip(instructions, outputs, strict=True)])

    def score_outputs(self, outputs: Sequence[Output]) -> Sequence[Score]:
        """Return the weighted sums; their spread is that of independent parts."""
        scores = [part.score_outputs(outputs) for part in self.opened.values()]
        self._look_at_scales([[score.value for score in of_part] for of_part in scores])
        weights = list(self.weights.values())
        return [self._add(row, weights) for row in zip(*scores, strict=True)]

    def save(self, directory: Path) -> None:
        """Write the weights and the parts that have anything to save; others are opened by their names again."""
        saved: dict[str, str] = {}
        for number, (name, part) in enumerate(self.opened.items()):
            place = directory / str(number)
            place.mkdir()
            try:
                part.save(place)
            except NotImplementedError:
                place.rmdir()
            else:
                saved[name] = f"{type(part).__module__}:{type(part).__qualname__}"
        (directory / SAVED).write_text(json.dumps({"spec": self.spec, "saved": saved}) + "\n", "utf-8")

    @classmethod
    def load(cls, directory: Path, context: TrainContext) -> WeightedSum:
        card = json.loads((directory / SAVED).read_text("utf-8"))
        parts: dict[str, RewardModel] = {}
        for number, name in enumerate(parse_weights(card["spec"])):
            if name in card["saved"]:
                module, _, kind = card["saved"][name].partition(":")
                found = getattr(import_module(module), kind, None)
                if not (isinstance(found, type) and issubclass(found, RewardModel)):
                    raise ModelError(f"{directory}: part {name} was saved by {module}:{kind}, which is no reward model")
                parts[name] = found.load(directory / str(number), context)
        opened = BuildContext(lambda name: parts.get(name) or context.reward_model(name))
        return cls(None, card["spec"], opened)

    @staticmethod
    def _add(row: Sequence[Score], weights: Sequence[float]) -> Score:
        spreads = [
            weight * score.spread for score, weight in zip(row, weights, strict=True) if score.spread is not None
        ]
        value = math.fsum(weight * score.value for score, weight in zip(row, weights, strict=True))
        return Score(value, spread=math.hypot(*spreads) if spreads else None)

    def _look_at_scales(self, values: Sequence[Sequence[float]]) -> None:
        """Tell once if one part's scores, times its weight, decide the sum alone, or a part's are all equal."""
        if self._seen is None:
            return
        for seen, new in zip(self._seen, values, strict=True):
            seen += new
        if (count := len(self._seen[0])) < ENOUGH:
            return
        own = {name: pstdev(seen) for name, seen in zip(self.weights, self._seen, strict=True)}
        self._seen = None
        spreads = {name: abs(self.weights[name]) * spread for name, spread in own.items()}
        for name in (name for name, spread in own.items() if spread == 0):
            logger.warning("sum: %s gives the same reward to each of the first %d outputs", name, count)
        widest = max(spreads, key=spreads.__getitem__)
        for name, spread in spreads.items():
            if 0 < spread * UNEVEN < spreads[widest]:
                even = math.copysign(spreads[widest] / own[name], self.weights[name])
                logger.warning(
                    "sum: over %d outputs %s varies by %.2g and %s by %.2g, each times its weight: the sum is hardly "
                    "more than %s. With %s=%.3g they vary alike", count, widest, spreads[widest], name, spread, widest,
                    name, even,
                )  # fmt: skip


def parse_weights(spec: str) -> dict[str, float]:
    """Parse `NAME=WEIGHT,NAME`. Raises `ConfigError` for a wrong name, or no number as a weight."""
    weights: dict[str, float] = {}
    for part in spec.split(","):
        name, equals, text = part.strip().rpartition("=")
        name, text = (name, text) if equals else (text, "1")
        try:
            weight = float(text)
        except ValueError:
            weight = math.nan
        if not name or not math.isfinite(weight) or name in weights:
            why = "is named twice" if name in weights else "must be NAME or NAME=WEIGHT, with a number"
            example = "sum:classifier:ORG/NAME=1,function:rewards.py:length=0.1"
            raise ConfigError([f"sum:{spec}: {part.strip()!r} {why}, such as {example}"])
        weights[name] = weight
    return weights
