"""What a plugin implements, and the small frozen contexts it is given.

A plugin class is built by afarm as `Class(config)`, where `config` is an instance of the pydantic model it was
registered with, or as `Class()` where it was registered with none; a judge gets its spec and a context as well.
Nothing reads globals or the environment: whatever a plugin needs arrives in its arguments.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol, TypeVar

from afarm.core.judge import Ask, ChatRequest, Price
from afarm.core.records import Evaluation, Instruction, JudgedPair, Output, Pair, Preference, Sample, Score

if TYPE_CHECKING:
    from afarm.backend import Backend

T = TypeVar("T")

# ---------------------------------------------------------------------------------------------- what contexts offer


class Progress(Protocol):
    """Shows how far a loop over `items` has come. The default shows nothing."""

    def __call__(self, items: Iterable[T], description: str, total: int | None = None) -> Iterator[T]: ...


def no_progress(items: Iterable[T], description: str, total: int | None = None) -> Iterator[T]:
    """A `Progress` that shows nothing."""
    yield from items


# ------------------------------------------------------------------------------------------------------- contexts


@dataclass(frozen=True, slots=True)
class AnnotateContext:
    """Given to annotators. Equal `seed`, equal labels; another seed means independent ones."""

    seed: int
    ask: Ask
    progress: Progress = no_progress


def _no_backend() -> Backend:
    raise NotImplementedError("this context gives no access to models")


@dataclass(frozen=True, slots=True)
class BuildContext:
    """Given to judges, and to annotators that take a spec.

    `reward_model` opens a reward model by name (the offline judge's utility, say) or from the directory of a fitted
    one, and `identify` gives a text that changes whenever its source, settings or files do. `source` digests the
    plugin's own source. A simulated judge puts both into its identity, so that editing a formula never reuses
    yesterday's answers. `backend` loads torch, when it is called, for what runs models itself. `price` gives the price
    of a provider's model, None where it is unknown, and `throttled` is told of every answer that asks to slow down,
    with the seconds to wait where it says how many.
    """

    reward_model: Callable[[str], RewardModel]
    identify: Callable[[str], str] = lambda name: name
    source: str = ""
    backend: Callable[[], Backend] = _no_backend
    price: Callable[[str, str], Price | None] = lambda provider, model: None
    throttled: Callable[[float | None], None] = lambda seconds: None


class Checkpoints(Protocol):
    """Where a training stage keeps what it needs to go on after a kill. Whole or absent, never half-written."""

    def save(self, step: int, write: Callable[[Path], None]) -> None:
        """Call `write(directory)` and publish what it wrote as the checkpoint of `step`, replacing older ones."""
        ...

    def latest(self) -> tuple[int, Path] | None:
        """The newest checkpoint's step and directory."""
        ...


@dataclass(frozen=True, slots=True)
class TrainContext:
    """Given to whatever trains or loads a model.

    `directory` is for the stage's own scratch files and survives a kill; `log_metrics(step, {...})` appends one line to
    `metrics.jsonl` (a resumed stage first drops the lines after its checkpoint).
    """

    seed: int
    directory: Path
    backend: Backend
    checkpoints: Checkpoints
    log_metrics: Callable[[int, Mapping[str, float]], None]
    progress: Progress = no_progress
    should_stop: Callable[[], bool] = lambda: False


# ------------------------------------------------------------------------------------------------------ interfaces


class Dataset(ABC):
    """Instructions in disjoint splits. Built as `Class(config)`.

    Splits: "sft" (demonstrations), "preference", "unlabeled", "validation" and "evaluation".
    """

    remote: ClassVar[bool] = False
    """Whether `load` may fetch over a network. What does not is looked at before a run starts."""

    @abstractmethod
    def load(self, split: str) -> list[Output]:
        """All rows of `split`. `output` is the demonstration or reference, empty where the split has none.

        Raises `DataError` where the split is missing, empty or holds an instruction twice.
        """


class Annotator(ABC):
    """Says which output of each pair is better. Built as `Class(config)`.

    One that was registered with a `spec` (`register("reward", …, spec="MODEL")`, used as `--annotator reward:gold`) is
    built as `Class(config, spec, context)`: the text after the colon, empty where there is none, and a `BuildContext`.

    Identical outputs and label noise are afarm's business: an annotator only sees the pairs it must judge.
    """

    rates: ClassVar[bool] = False
    """Whether its preferences hold a rating of each output (`Preference.scores`)."""

    @property
    def identity(self) -> str:
        """What changes its labels beside its source and settings: a digest of the file that its spec names, say."""
        return ""

    @abstractmethod
    def annotate(self, pairs: Sequence[Pair], context: AnnotateContext) -> list[Preference]:
        """One preference a pair, in order. What cannot be parsed is an "unparsed" preference, never a loss."""

    def plan(self, pairs: Sequence[Pair], context: AnnotateContext) -> Sequence[ChatRequest]:
        """The requests that `annotate` would send for `pairs`, for estimates. Sends nothing."""
        return ()


@dataclass(frozen=True, slots=True)
class Decoding:
    """How a policy generates: `n` samples an instruction, each of at most `max_new_tokens`.

    `temperature` 0 is greedy. `per_device_batch_size` bounds memory and changes no result.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    max_new_tokens: int = 300
    n: int = 1
    per_device_batch_size: int = 32


class Policy(ABC):
    """A checkpoint, or a sampler around one (so that best-of-n is an honest method)."""

    @abstractmethod
    def sample(self, instructions: Sequence[Instruction], decoding: Decoding, *, seed: int) -> Iterator[Sample]:
        """`decoding.n` samples for each instruction, consecutive, in the order of `instructions`, as they are ready.

        A row's draws depend on `seed`, its instruction and its number only, not on what shares its batch.
        """

    def decoding(self, default: Decoding) -> Decoding:
        """How this policy wants to be decoded for evaluation; best-of-n samples at a temperature of its own."""
        return default

    @abstractmethod
    def save(self, directory: Path) -> None:
        """Write all that `load` needs, the prompt template included."""

    @classmethod
    @abstractmethod
    def load(cls, directory: Path, context: TrainContext) -> Policy: ...


class RewardModel(ABC):
    """Scores outputs. Built as `Class(config)` where there is nothing to fit, otherwise by `fit` or `load`.

    One that was registered with a `spec` (`--reward-model classifier:MODEL`) is built as an annotator with one is:
    `Class(config, spec, context)`.
    """

    @property
    def identity(self) -> str:
        """What changes its scores beside its source and settings: the model that its spec names, say."""
        return ""

    @abstractmethod
    def score(self, instructions: Sequence[Instruction], outputs: Sequence[str]) -> Sequence[Score]:
        """One score for each (instruction, output); higher is better, finite, equal for equal input."""

    @classmethod
    def fit(cls, preferences: Sequence[JudgedPair], start: Policy, config: Any, context: TrainContext) -> RewardModel:
        """Learn from `preferences`, from the policy `start`. Draws are dropped and counted unless asked otherwise."""
        raise NotImplementedError(f"{cls.__name__} cannot be trained")

    def save(self, directory: Path) -> None:
        raise NotImplementedError(f"{type(self).__name__} has nothing to save")

    @classmethod
    def load(cls, directory: Path, context: TrainContext) -> RewardModel:
        raise NotImplementedError(f"{cls.__name__} has nothing to load")


@dataclass(frozen=True, slots=True)
class MethodInputs:
    """What a method may learn from; what it did not list in `needs` may be empty.

    `start` is the SFT policy (also the KL reference), or the base model for a method that begins there. `annotate` asks
    the run's annotator about new pairs under the run's budget, for online methods. `decoding` is how the evaluation
    will decode the policy, for methods that choose among checkpoints.
    """

    start: Policy
    preferences: Sequence[JudgedPair] = ()
    reward_model: RewardModel | None = None
    unlabeled: Sequence[Instruction] = ()
    demonstrations: Sequence[Output] = ()
    validation: Sequence[Instruction] = ()
    annotate: Callable[[Sequence[Pair]], list[Preference]] | None = None
    decoding: Decoding = Decoding()


class Method(ABC):
    """Learns a policy. Built as `Class(config)`."""

    needs: frozenset[str] = frozenset()
    """What it cannot do without: preferences, reward_model, unlabeled, demonstrations (those of the SFT split) or
    all_demonstrations (of every split that is not evaluated on), validation, annotator. A class says so, or an instance
    where it depends on the settings."""

    begins_with: ClassVar[Literal["start", "base"]] = "start"
    """The policy that `inputs.start` is: the SFT policy that methods start from, or the base model itself."""

    def __init__(self, config: Any = None):
        self.config = config

    @abstractmethod
    def train(self, inputs: MethodInputs, context: TrainContext) -> Policy:
        """Raises `TrainingError` naming the step where training cannot go on."""

    def decoding(self, default: Decoding) -> Decoding:
        """What its policies will say in `Policy.decoding`: a plan is made before there is one."""
        return default

    def plan_pairs(self, instructions: Mapping[str, Sequence[Instruction]]) -> Sequence[Instruction]:
        """The instruction of each pair that `train` will ask the annotator about, for estimates. `instructions` are
        those of the splits that its needs name."""
        return ()

    def check(self, reward_model: type[RewardModel] | None = None) -> Sequence[str]:
        """Problems that can be seen before a model is loaded, each a sentence. `reward_model` is what it will learn
        from, where it needs one and that is known."""
        return ()


@dataclass(frozen=True, slots=True)
class EvaluationInputs:
    """`judgements` compare `reference` (output_1) with the system's `outputs` (output_2), row by row; `scores` and
    `reference_scores` are the reward model's for both, empty where there is none."""

    system: str
    outputs: Sequence[Output]
    reference: Sequence[Output] = ()
    judgements: Sequence[JudgedPair] = ()
    scores: Sequence[Score] = ()
    reference_scores: Sequence[Score] = ()


class Evaluator(ABC):
    """Turns outputs and judgements into numbers: pure, no models, no calls. Built as `Class(config)`."""

    needs: ClassVar[frozenset[str]] = frozenset()
    """Of "judgements", "ratings" (judgements by an annotator that rates), "reward_model", "human": what must be
    there."""

    many: ClassVar[bool] = False
    """Over all systems of a board at once: `inputs.system` is empty, `judgements` are of every system, told apart by
    `generator_1` and `generator_2` of their pairs, whose outputs are left empty; `Evaluation.rows` has one row a
    system."""

    def check(self, instructions: Sequence[Instruction]) -> Sequence[str]:
        """Problems with evaluating answers to these that can be seen before anything runs, each a sentence."""
        return ()

    @abstractmethod
    def evaluate(self, inputs: EvaluationInputs) -> Evaluation:
        """Raises `DataError` naming the row where inputs do not belong together."""
