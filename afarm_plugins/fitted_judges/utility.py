"""A fitted utility of outputs, as `judge.json` keeps it: a weighted sum in log-odds.

U(output) = Σ weight · feature + weights · embedding + relatedness · cos(instruction, output) + temperature · reward
            − offset, which makes the mean 0 over the outputs that it was fitted to
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import BaseModel, Field, ValidationError, field_validator

from afarm import BuildContext, ConfigError, DataError, Instruction, ModelError, Output, Pair, read_user_text, seeding
from afarm_plugins.fitted_judges.features import FEATURES, feature_values, request_text
from afarm_plugins.fitted_judges.settings import FittedConfig

if TYPE_CHECKING:
    from afarm_plugins.fitted_judges.encoder import SentenceEncoder

FILE = "judge.json"
REWARD_MODEL = "reward_model"
"""The folder with the reward model's artifact, if there is one."""
FORMAT = 1
AGAIN = "put it back as it was, or fit again into a new directory: afarm judge fit ANNOTATIONS --out DIR"
LARGEST = 1_000_000
"""The largest weight, in log-odds: with larger ones sums of features could overflow, and no label is that sure."""
Weight = Annotated[float, Field(ge=-LARGEST, le=LARGEST, allow_inf_nan=False)]
SHIPPED = Path(__file__).parent / "people"
"""The judge that ships, fitted to people's labels: see its card."""
AGREEMENT = "agrees with people on 69 % of PandaLM's 914 pairs (64 to 74), where the longer output is right on 67 %"
"""Its card's figures, on instructions that it never saw, with a 95% interval over instructions."""


class _Part(BaseModel, extra="forbid", strict=True):
    """A part of `judge.json`. An unknown field may be a misspelt one, so it is refused."""


class Embeddings(_Part):
    """Weights of a sentence encoder's vector of the output, and of its cosine to the instruction's."""

    model: str
    identity: str
    weights: list[Weight]
    relatedness: Weight


class RewardTerm(_Part):
    """The factor of the scores of the reward model beside the file."""

    temperature: Weight


class FittedWeights(_Part):
    """The contents of `judge.json`: all that its labels depend on, beside an encoder or a reward model."""

    format: int
    features: dict[str, Weight]
    offset: Weight = 0.0
    """The mean of all other terms over the outputs that it was fitted to."""
    embeddings: Embeddings | None = None
    reward_model: RewardTerm | None = None

    @field_validator("format")
    @classmethod
    def _require_known(cls, written: int) -> int:  # first, since another format has other fields
        if written != FORMAT:
            raise ValueError(f"this afarm reads format {FORMAT}, and it is {written}")
        return written

    def to_json(self) -> dict[str, Any]:
        """Return the file's contents, the parts that are not used left out."""
        return self.model_dump(exclude_none=True, exclude=set() if self.offset else {"offset"})

    @classmethod
    def read(cls, directory: Path) -> FittedWeights:
        """Read `judge.json`. Raises `ConfigError` if there is none, `DataError` if it cannot be used."""
        path = directory / FILE
        try:
            text = path.read_text(encoding="utf-8") if directory == SHIPPED else read_user_text(path)
        except (OSError, UnicodeDecodeError) as error:
            if path.is_file():
                raise DataError(f"{path}: cannot be read; {AGAIN}") from error
            if directory.is_file():
                raise ConfigError([f"{directory} is a file: name the directory of a fitted judge"]) from error
            raise ConfigError(
                f"{directory} holds no fitted judge: make one with afarm judge fit ANNOTATIONS --out {directory}"
            ) from error
        try:
            weights = cls.model_validate_json(text)
        except ValidationError as error:
            cause = error.errors()[0]
            field = ".".join(map(str, cause["loc"]))
            what = f"field {field!r}: {cause['msg']}" if field else str(cause["msg"])
            raise DataError(f"{path}: is no judge as afarm judge fit writes it ({what}); {AGAIN}") from error
        if strange := sorted(weights.features.keys() - FEATURES.keys()):
            raise DataError(f"{path}: this afarm has no feature {strange[0]!r}; {AGAIN}")
        if not (weights.features or weights.embeddings or weights.reward_model):
            raise DataError(f"{path}: has no term, so that no output is better than another; {AGAIN}")
        return weights


class FittedUtility:
    """The utility in a directory that `afarm judge fit` wrote; the shipped one if none is named."""

    def __init__(self, spec: str, context: BuildContext, encoder: str = ""):
        """Read the weights; what is large is opened when there is something to score.

        `encoder` names the sentence encoder's place if it is not where it was. Raises `ConfigError` for a directory
        without a judge, `ModelError` for an encoder that is not there or is another than it was fitted with.
        """
        self.directory = Path(spec).expanduser() if spec else SHIPPED
        self.weights = FittedWeights.read(self.directory)
        self.agreement = AGREEMENT if self.directory == SHIPPED else _measured_agreement(self.directory)
        self._context = context
        self._reward_directory = str(self.directory / REWARD_MODEL)
        if embeddings := self.weights.embeddings:
            self._encoder_place = encoder or embeddings.model
            if (now := self.encoder.identity) != embeddings.identity:
                raise ModelError(
                    f"the sentence encoder {self._encoder_place!r} is not the one that {self.directory} was fitted "
                    f"with ({embeddings.identity}, not {now}); name that one with --set fitted.encoder=DIRECTORY, or "
                    "fit again with --embeddings"
                )
        if self.weights.reward_model:
            if not Path(self._reward_directory).is_dir():
                raise DataError(f"{self._reward_directory} is missing, whose scores {FILE} weighs; {AGAIN}")
            context.identify(self._reward_directory)

    @property
    def name(self) -> str:
        """The name of its directory, for people."""
        return self.directory.name

    @cached_property
    def digest(self) -> str:
        """Digest of all that its labels depend on: weights, features' source, encoder, reward model."""
        learned = self._context.identify(self._reward_directory) if self.weights.reward_model else ""
        return seeding.digest(self.weights.to_json(), self._context.source, learned, length=12)

    @cached_property
    def encoder(self) -> SentenceEncoder:
        from afarm_plugins.fitted_judges.encoder import SentenceEncoder

        return SentenceEncoder(self._encoder_place, "--set fitted.encoder=DIRECTORY")

    def of_outputs(self, outputs: Sequence[Output]) -> list[float]:
        """Return one utility per output, in order."""
        totals = [utility_of_features(self.weights, o.instruction, o.output) for o in outputs]
        if embeddings := self.weights.embeddings:
            from afarm_plugins.fitted_judges.encoder import relatedness

            answered = self.encoder.embed([output.output for output in outputs])
            asked = self.encoder.embed([request_text(output.instruction) for output in outputs])
            totals = [
                total
                + (
                    math.fsum(w * x for w, x in zip(embeddings.weights, map(float, vector), strict=True))
                    + embeddings.relatedness * relatedness(question, vector)
                )
                for total, question, vector in zip(totals, asked, answered, strict=True)
            ]
        if learned := self.weights.reward_model:
            scores = self._context.reward_model(self._reward_directory).score_outputs(outputs)
            totals = [total + learned.temperature * score.value for total, score in zip(totals, scores, strict=True)]
        return totals

    def p_second(self, pairs: Sequence[Pair]) -> list[float]:
        """Return the probability that each pair's second output *in canonical order* is better."""
        return [logistic(difference) for difference in self.differences(pairs)]

    def differences(self, pairs: Sequence[Pair]) -> list[float]:
        """Return by how much the utility of each pair's second output *in canonical order* is the larger."""
        utilities = self.of_outputs([output for pair in pairs for output in _canonical_outputs(pair)])
        return [second - first for first, second in zip(utilities[::2], utilities[1::2], strict=True)]


class FittedPart:
    """Base of parts that label or score by the utility in the directory `spec`, or by the shipped judge."""

    def __init__(self, config: FittedConfig | None, spec: str, context: BuildContext):
        """Raises as `FittedUtility` does."""
        self.utility = FittedUtility(spec, context, (config or FittedConfig()).encoder)

    @property
    def identity(self) -> str:
        """A digest of all that its labels or scores depend on."""
        return self.utility.digest


def _measured_agreement(directory: Path) -> str:
    """Say how often the judge agreed with held-out labels; empty if that is not known."""
    with suppress(OSError, ValueError, LookupError, TypeError):
        held_out = json.loads((directory / "figures.json").read_text(encoding="utf-8"))["chosen"]
        share, pairs = 100 * held_out["agreement"]["value"], int(held_out["pairs"])
        return f"agrees with the labels that it was fitted to on {share:.0f} % of {pairs:,} pairs that it had not seen"
    return ""


def utility_of_features(weights: FittedWeights, instruction: Instruction, output: str) -> float:
    """Return the utility of an output as far as features tell it."""
    values = feature_values(instruction, output)
    return math.fsum([*(weight * values[name] for name, weight in weights.features.items()), -weights.offset])


def _canonical_outputs(pair: Pair) -> tuple[Output, Output]:
    reasons = (pair.finish_reason_1, pair.finish_reason_2)
    reasons = reasons if pair.is_canonical else reasons[::-1]
    first, second = (
        Output(pair.instruction, text, details={"finish_reason": reason} if reason else {})
        for text, reason in zip(pair.canonical, reasons, strict=True)
    )
    return first, second


def logistic(logit: float) -> float:
    """Logistic function of one number, without overflow."""
    return 0.5 * (1 + math.tanh(logit / 2))


def second_wins(p: float, seed: int, pair_id: str, sample_index: int = 0) -> bool:
    """Draw with probability `p` if the second output, in canonical order, wins: once per sample."""
    return seeding.uniform(seed, "fitted judge", pair_id, sample_index) < p
