"""Interfaces that plugins implement, and the small frozen contexts they receive.

afarm builds a plugin class as `Class(config)` from the pydantic model it was registered with (`Class()` without one); a
judge gets its spec and a context as well. All a plugin needs is in its arguments: nothing reads globals or environment.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import wraps
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar, Literal, Protocol, TypeVar, overload

from afarm.core.config import BackendConfig, CheckpointChoice
from afarm.core.errors import ConfigError, attribute_failures, did_you_mean, require_promise, type_name
from afarm.core.judge import Ask, ChatRequest, Price
from afarm.core.records import Evaluation, Feedback, Instruction, JudgedPair, Output, Pair, Preference, Sample, Score

T = TypeVar("T")


class Progress(Protocol):
    """Shows the progress of a loop over `items`. The default shows nothing."""

    def __call__(self, items: Iterable[T], description: str, total: int | None = None) -> Iterator[T]: ...


def no_progress(items: Iterable[T], description: str, total: int | None = None) -> Iterator[T]:
    """Yield `items` and show nothing: the default `Progress`."""
    yield from items


@dataclass(frozen=True, slots=True)
class AnnotateContext:
    """The context of annotators. Equal seeds give equal labels; another seed gives independent ones."""

    seed: int
    ask: Ask
    progress: Progress = no_progress
    order: str = ""  # in which judges are shown each pair: "12" (`output_1` first), "21", or drawn by the seed


class ModelBackend(Protocol):
    """The device and precision of models, as contexts give them: see `afarm.backend.Backend`."""

    config: BackendConfig
    device: Any
    dtype: Any
    session: str
    sharded: bool
    offloads: bool
    engine: Any
    progress: Progress

    def autocast(self) -> AbstractContextManager[Any]: ...
    def seed(self, seed: int) -> None: ...
    def together(self, *calls: Callable[[], T]) -> list[T]: ...
    def load(self, spec: str | Path, kind: Any) -> tuple[Any, Any, dict[str, Any]]: ...
    def load_policy(self, spec: str | Path, *, prompt_template: Any = "auto") -> Any: ...


def _no_backend() -> ModelBackend:
    raise NotImplementedError("this context gives no access to models")


def _no_component(name: str) -> Any:
    raise NotImplementedError(f"this context opens no component such as {name!r}")


@dataclass(frozen=True, slots=True)
class BuildContext:
    """The context of judges, and of annotators and reward models that take a spec.

    `reward_model` opens a reward model by name (the offline judge's utility, say) or from the directory of a fitted
    one, and `identify` gives a text that changes whenever its source, settings or files do. `source` digests the
    plugin's own source. A simulated judge puts both into its identity, so that editing a formula never reuses
    yesterday's answers. `annotator` opens an annotator by name, with a text as `identify` gives. `backend` loads torch
    when it is called. `price` gives the price of a provider's model, None if it is unknown. Tell `allowed` the requests
    that an answer's headers allow, the seconds to their reset, their words.
    """

    reward_model: Callable[[str], RewardModel]
    identify: Callable[[str], str] = lambda name: name
    source: str = ""
    backend: Callable[[], ModelBackend] = _no_backend
    price: Callable[[str, str], Price | None] = lambda provider, model: None
    allowed: Callable[[float, float, str], None] = lambda requests, seconds, words: None
    annotator: Callable[[str], tuple[Annotator, str]] = _no_component


class Checkpoints(Protocol):
    """The checkpoints a training stage resumes from after a kill. Whole or absent, never half-written."""

    def save(self, step: int, write: Callable[[Path], None]) -> None:
        """Call `write(directory)` and publish what it wrote as the checkpoint of `step`, replacing older ones."""
        ...

    def latest(self) -> tuple[int, Path] | None:
        """Return the newest checkpoint's step and directory; None if there is none."""
        ...


@dataclass(frozen=True, slots=True)
class TrainContext:
    """The context of methods, and of all that trains or loads a model.

    `directory` is for the stage's own scratch files and survives a kill; `log_metrics(step, {...})` appends one line to
    `metrics.jsonl` (a resumed stage first drops the lines after its checkpoint). `reward_model` opens one by name, as
    that of a `BuildContext` does: a policy that was saved with the name of one builds it again.
    """

    seed: int
    directory: Path
    backend: ModelBackend
    checkpoints: Checkpoints
    log_metrics: Callable[[int, Mapping[str, float]], None]
    progress: Progress = no_progress
    should_stop: Callable[[], bool] = lambda: False
    reward_model: Callable[[str], RewardModel] = _no_component


class Dataset(ABC):
    """Instructions in disjoint splits. Built as `Class(config)`.

    Splits: "sft" (demonstrations), "preference", "unlabeled", "validation" and "evaluation".
    """

    remote: bool = False
    """True if `load` may use the network. Other data sets are read before a run starts, to check them."""

    @abstractmethod
    def load(self, split: str) -> list[Output]:
        """Return all rows of `split`. `output` is the demonstration or reference, empty if it has none.

        Raises `DataError` if the split is missing, empty or holds an instruction twice.
        """

    def instructions(self, split: str) -> list[Instruction] | None:
        """Return the instructions of `load` without writing slow answers; None if that saves nothing."""
        return None

    def check(self, instructions: Sequence[Instruction]) -> Sequence[str]:
        """List why these instructions cannot be learned from or evaluated beside this data set."""
        return ()


class Annotator(ABC):
    """Labels pairs: which output is better. Built as `Class(config)`.

    One that was registered with a `spec` (`register("reward", …, spec="MODEL")`, used as `--annotator reward:gold`) is
    built as `Class(config, spec, context)`: the text after the colon, empty if there is none, and a `BuildContext`.

    afarm handles identical outputs and label noise: an annotator only sees the pairs it must judge.
    """

    rates: ClassVar[bool] = False
    """True if its preferences hold a rating of each output (`Preference.scores`)."""
    agreement: str = ""
    """As `Judge.agreement`, of one that is a formula itself and asks no judge."""
    source: str = ""
    """A digest of its plugin's code, set by afarm."""
    judges: Sequence[str] = ()
    """Specs of judges that it asks beside those of the roles: the role of such a request is the spec itself."""

    @property
    def identity(self) -> str:
        """Text that changes with its labels, beyond source and settings: a digest of its spec's file, say."""
        return ""

    @abstractmethod
    def annotate(self, pairs: Sequence[Pair], context: AnnotateContext) -> list[Preference]:
        """Return one preference per pair, in order. An unreadable answer is "unparsed", never a loss."""

    def plan(self, pairs: Sequence[Pair], context: AnnotateContext) -> Sequence[ChatRequest]:
        """Return the requests that `annotate` would send for `pairs`, for estimates. Sends nothing."""
        return ()

    def count_waiting(self, pairs: Sequence[Pair]) -> int:
        """Count the pairs that people must label first; 0 unless the annotator reads people's labels."""
        return 0


@dataclass(frozen=True, slots=True)
class Decoding:
    """Decoding parameters: `n` samples per instruction, each of at most `max_new_tokens`.

    `temperature` 0 is greedy. `per_device_batch_size` bounds memory and changes no result. With `clipped` a response is
    no longer than its prompt leaves room for in the model; else that is an error. Raises `ConfigError` out of range.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    max_new_tokens: int = 300
    n: int = 1
    per_device_batch_size: int = 32
    clipped: bool = False

    def __post_init__(self) -> None:
        for name, low in zip(self.__slots__, (0, 0, 1, 1, 1), strict=False):
            if not hasattr(value := getattr(self, name), "__float__") or not value >= low or (low and value % 1):
                raise ConfigError(f"{name} must be a {'whole ' if low else ''}number from {low}, not {value!r}")


class Policy(ABC):
    """A checkpoint, or a sampler around one (so that best-of-n is an honest method)."""

    default_decoding: Decoding = Decoding()  # what `generate` uses; in a run, the evaluation's
    counted: Mapping[str, int] = MappingProxyType({})  # of what `sample` drew last, for its stage's summary

    @abstractmethod
    def sample(self, instructions: Sequence[Instruction], decoding: Decoding, *, seed: int) -> Iterator[Sample]:
        """Yield `decoding.n` consecutive samples per instruction, in order, as they are ready.

        A row's draws depend on `seed`, its instruction and its number only, not on what shares its batch.
        """

    def decoding(self, default: Decoding) -> Decoding:
        """Return the decoding to evaluate this policy with; best-of-n has a temperature of its own."""
        return default

    @overload
    def generate(self, prompts: str | Instruction, *, seed: int = 0, **decoding: Any) -> str: ...
    @overload
    def generate(self, prompts: Iterable[str | Instruction], *, seed: int = 0, **decoding: Any) -> list[str]: ...
    def generate(self, prompts: Any, *, seed: int = 0, **decoding: Any) -> str | list[str]:
        """Answer one text, or each of a list. `decoding` are fields of `Decoding` (`temperature=0.7`).

        Others are as in `default_decoding`. Raises `ConfigError` for what is no text, no field, or out of range.
        """
        alone = isinstance(prompts, str | Instruction | Mapping) or not isinstance(prompts, Iterable)
        tasks = [Instruction(task) if isinstance(task, str) else task for task in ([prompts] if alone else prompts)]
        if not tasks or not all(isinstance(t, Instruction) and f"{t.instruction}{t.input}".strip() for t in tasks):
            raise ConfigError(f"generate takes a text or an Instruction, or a list, none empty, not {prompts!r:.80}")
        names = {"seed", *Decoding.__slots__} - {"n", "clipped"}
        if unknown := [f"generate takes no {n!r}.{did_you_mean(n, names)}" for n in decoding if n not in names]:
            raise ConfigError(unknown)
        chosen = replace(self.decoding(self.default_decoding), clipped="max_new_tokens" not in decoding)
        texts = [s.text for s in self.sample(tasks, replace(chosen, **decoding, n=1), seed=seed)]
        return texts[0] if alone else texts

    @abstractmethod
    def save(self, directory: Path) -> None:
        """Write everything `load` needs, the prompt template included, into `directory`, which exists."""

    def export(self, directory: Path) -> None:
        """Write what other software reads, for `afarm export`: `save` unless there is a better form."""
        self.save(directory)

    @classmethod
    @abstractmethod
    def load(cls, directory: Path, context: TrainContext) -> Policy: ...


def _one_score_per_row(score: Callable[..., Sequence[Score]]) -> Callable[..., Sequence[Score]]:
    """Hold `score` to its promise whoever calls it, so that no annotator or method is blamed for it."""

    @wraps(score)
    def checked(self: RewardModel, *rows: Any, **named: Any) -> Sequence[Score]:
        name = f"{type(self).__module__}:{type(self).__qualname__}"
        with attribute_failures("reward_models", name, self):
            scores = score(self, *rows, **named)
        listed, wanted = isinstance(scores, Sequence), len(named["outputs"] if "outputs" in named else rows[-1])
        strange = {type_name(row) for row in scores if not isinstance(row, Score)} if listed else {type_name(scores)}
        broken = f"not {', '.join(sorted(strange))}" if strange else f"{len(scores)} for {wanted} rows"
        fits = not strange and len(scores) == wanted
        require_promise(fits, "reward_models", name, f"score must return one afarm.Score per row, {broken}", self)
        with attribute_failures("reward_models", name, self):
            return [replace(row) for row in scores]  # made anew: each checks that it is finite

    vars(checked)["is_checked"] = True
    return checked


class RewardModel(ABC):
    """Scores outputs. Built as `Class(config)` if there is nothing to fit, else by `fit` or `load`.

    One that was registered with a `spec` (`--reward-model classifier:MODEL`) is built like such an annotator, as
    `Class(config, spec, context)`. A `score` that fails or breaks its promise raises `PluginError` naming the class.
    """

    has_backbone: ClassVar[bool] = False  # True for a `TorchRewardModel`: PPO's value model can start from it
    fewest_instructions: ClassVar[int] = 1  # which preferences must be of, for `fit`

    def __init_subclass__(cls, **arguments: Any) -> None:
        super().__init_subclass__(**arguments)
        for name in ("score", "score_outputs"):  # also one that a base beside this class brings
            function = getattr(cls, name)
            if function is not getattr(RewardModel, name) and not hasattr(function, "is_checked"):
                setattr(cls, name, _one_score_per_row(function))

    @property
    def identity(self) -> str:
        """Text that changes with its scores, beyond source and settings: the model its spec names, say."""
        return ""

    @abstractmethod
    def score(self, instructions: Sequence[Instruction], outputs: Sequence[str]) -> Sequence[Score]:
        """Return one score per (instruction, output): higher is better, finite, equal for equal input."""

    def score_outputs(self, outputs: Sequence[Output]) -> Sequence[Score]:
        """Return one score per output; override to read more of them than their texts, such as finish reasons."""
        return self.score([o.instruction for o in outputs], [o.output for o in outputs])

    @classmethod
    def fit(cls, preferences: Sequence[JudgedPair], start: Policy, config: Any, context: TrainContext) -> RewardModel:
        """Learn from `preferences`, from the policy `start`. Draws are dropped and counted by default."""
        raise NotImplementedError(f"{cls.__name__} cannot be trained")

    @classmethod
    def is_fitted(cls) -> bool:
        """Tell if it is learned from preferences, rather than a formula or a finished model."""
        return cls.fit.__func__ is not RewardModel.fit.__func__  # type: ignore[attr-defined]

    @classmethod
    def parts(cls, spec: str) -> Sequence[str]:
        """Return the names of the reward models that `spec` makes it of; a run fits one of them, if need be."""
        return ()

    def save(self, directory: Path) -> None:
        """Write everything `load` needs into `directory`, which exists."""
        raise NotImplementedError(f"{type(self).__name__} has nothing to save")

    @classmethod
    def load(cls, directory: Path, context: TrainContext) -> RewardModel:
        raise NotImplementedError(f"{cls.__name__} has nothing to load")


class PairLabels(Protocol):
    """Labels for pairs, one each in order: with the recipe's label noise, unless `noiseless`."""

    def __call__(self, pairs: Sequence[Pair], *, noiseless: bool = False) -> list[Preference]: ...


class MethodJudge(Protocol):
    """The run's judge for responses that a method makes while it trains, within the run's budget.

    Answers depend on seed, method, task and response alone, and those in the ledger are not bought again. An answer
    that cannot be read is asked for once more, then it is None and counted: learn nothing from it. `rubric` says in
    plain words what to go by; a text of afarm's if empty. Raises `BudgetError` and `JudgeError` as `Ask` does, and
    `JudgeError` if none of the first 20 answers to questions of a kind is in the form that the prompt asks for.
    """

    def rate(
        self,
        instructions: Sequence[Instruction],
        outputs: Sequence[str],
        *,
        rubric: str = "",
        scale: tuple[int, int] = (1, 7),
    ) -> list[float | None]:
        """Return a mark per output, each rated alone, on `scale`: its ends, whole numbers at most 100 apart."""
        ...

    def rank(
        self, instructions: Sequence[Instruction], groups: Sequence[Sequence[str]], *, rubric: str = ""
    ) -> list[list[float] | None]:
        """Return, for each group of outputs to one instruction, their places in the group's order.

        Place 1.0 is the best, so that a reward is its negative. Outputs that tie share the mean of their places, as
        equal ones always do: of three, `[1.0, 2.5, 2.5]`. The judge sees a group in an order drawn for it, unless all
        its outputs are equal.
        """
        ...

    def criticise(
        self, instructions: Sequence[Instruction], outputs: Sequence[str], *, rubric: str = ""
    ) -> list[str | None]:
        """Return what is wrong with each output, in a few sentences; None where the judge writes nothing."""
        ...


@dataclass(frozen=True, slots=True)
class MethodInputs:
    """The inputs of a method. An input that it did not list in `needs` may be empty.

    `start` is the SFT policy (also the KL reference), or the base model for a method that begins there. `feedback` is
    unpaired: own outputs with a thumb each, or both outputs of each pair that has a better one. `annotate` asks
    the run's annotator about new pairs within the run's budget: to learn from, or `noiseless` to select checkpoints by.
    `judge` rates, ranks and criticises responses within it. Of several processes all ask the same of both, and get the
    main one's answers. `decoding` is the evaluation's.
    """

    start: Policy
    preferences: Sequence[JudgedPair] = ()
    reward_model: RewardModel | None = None
    unlabeled: Sequence[Instruction] = ()
    demonstrations: Sequence[Output] = ()
    validation: Sequence[Instruction] = ()
    annotate: PairLabels | None = None
    decoding: Decoding = Decoding()
    feedback: Sequence[Feedback] = ()
    judge: MethodJudge | None = None


class Method(ABC):
    """Learns a policy. Built as `Class(config)`, also for a dry run: `train` is the place to import torch."""

    needs: frozenset[str] = frozenset()
    """Required inputs: preferences, feedback, reward_model, unlabeled, validation, annotator, judge, demonstrations (of
    the SFT split), all_demonstrations (of splits not evaluated on). Of the class, or the instance if settings do."""
    judge_role: str = "strong"
    """The family role of the judge that answers `inputs.judge`: strong, light or one of your own (`--judge ROLE=…`)."""
    begins_with: ClassVar[Literal["start", "base"]] = "start"
    """The policy in `inputs.start`: the SFT policy that methods start from, or the base model itself."""
    search_space: ClassVar[Mapping[str, tuple[Any, Any] | list[Any]]] = {}
    """The settings that `afarm tune` searches: ranges (low, high), or lists of values to choose from."""
    samples: ClassVar[bool] = True
    """False if `train` samples no policy, other than to compare checkpoints: the engine is then in none of its keys."""
    measures_kl: ClassVar[bool] = False
    """True if it logs its KL to the start policy, `objective/kl`: `afarm tune --max-kl` takes no other method."""

    def __init__(self, config: Any = None):
        self.config = config
        if isinstance(config, CheckpointChoice) and config.checkpoint == "best":
            self.needs |= {"validation", "annotator"}

    @abstractmethod
    def train(self, inputs: MethodInputs, context: TrainContext) -> Policy:
        """Learn a policy. Raises `TrainingError` naming the step if training cannot go on."""

    def decoding(self, default: Decoding) -> Decoding:
        """Return what `Policy.decoding` of its policies will: an estimate is made before there is one."""
        return default

    def plan_pairs(self, instructions: Mapping[str, Sequence[Instruction]]) -> Sequence[Instruction]:
        """Return the instruction of each pair that `train` will have annotated, for estimates.

        `instructions` has a list for each split that its needs name. Choosing a checkpoint is counted without it.
        """
        return ()

    def plan_judging(self, instructions: Mapping[str, Sequence[Instruction]], judge: MethodJudge) -> None:  # noqa: B027
        """Ask `judge` all that `train` will ask it, for estimates: nothing is sent, and every answer is None.

        `instructions` are as in `plan_pairs`. Outputs do not exist yet: any text stands for one as long as the data's.
        """

    def check(self, reward_model: type[RewardModel] | None = None) -> Sequence[str]:
        """List problems that show before a model is loaded; it learns from `reward_model`, if that is known."""
        return ()


@dataclass(frozen=True, slots=True)
class EvaluationInputs:
    """The inputs of an evaluator, row by row.

    `judgements` compare `reference` (output_1) with the system's `outputs` (output_2); `scores` and `reference_scores`
    are the reward model's for both, empty if there is none. `human` are people's judgements of some of the pairs.
    """

    system: str
    outputs: Sequence[Output]
    reference: Sequence[Output] = ()
    judgements: Sequence[JudgedPair] = ()
    scores: Sequence[Score] = ()
    reference_scores: Sequence[Score] = ()
    human: Sequence[JudgedPair] = ()


class Evaluator(ABC):
    """Turns outputs and judgements into numbers: pure, no models, no calls. Built as `Class(config)`."""

    needs: ClassVar[frozenset[str]] = frozenset()
    """Required inputs: "judgements", "ratings" (judgements by an annotator that rates), "reward_model", "human" (labels
    of people beside those)."""

    many: ClassVar[bool] = False
    """True if it takes all systems of a leaderboard at once: `inputs.system` and the outputs of pairs are empty, pairs
    name systems in `generator_1` and `generator_2`, and `Evaluation.rows` has one row per system."""

    def check(self, instructions: Sequence[Instruction]) -> Sequence[str]:
        """List problems with evaluating answers to these, one sentence each, before anything runs."""
        return ()

    @abstractmethod
    def evaluate(self, inputs: EvaluationInputs) -> Evaluation:
        """Compute metrics. Raises `DataError` naming the row if inputs do not belong together."""
