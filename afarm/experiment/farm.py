"""The experiment as an object: what is missing is made, what is there is reused, live objects come back.

    farm = afarm.Farm(recipe="toy")
    policy = farm.train("ppo")        # SFT, samples, preferences and the reward model are made first, or reused
    result = farm.evaluate("ppo")     # result.win_rate, result.evaluations, result.judgements

The command line is a thin face on this class; the stages themselves are in `afarm.experiment.training_stages`.
"""

from __future__ import annotations

import importlib.metadata
import platform
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache, cached_property, partial
from pathlib import Path
from types import TracebackType
from typing import Any

from afarm.comparison.outputs import OutputComparison
from afarm.core.interfaces import AnnotateContext, Policy, Progress, RewardModel, no_progress
from afarm.core.judge import Judge
from afarm.core.plugins import Plugins, discover
from afarm.core.processes import SINGLE_PROCESS, ProcessInfo
from afarm.core.records import Evaluation, Instruction, JudgedPair, Output, Pair, Preference
from afarm.core.seeding import digest, integer
from afarm.evaluation.matching import STRICT, MatchPolicy
from afarm.experiment import evaluation_stages as evaluation
from afarm.experiment import training_stages as stages
from afarm.experiment.components import Components
from afarm.experiment.data import DataSplits
from afarm.experiment.preflight import problems_ahead
from afarm.experiment.processes import announce, follow
from afarm.experiment.recipe import Settings, parse_overrides, resolve
from afarm.experiment.training_stages import Stage
from afarm.judging.client import JudgeClient, Spend
from afarm.judging.labelling import annotate_in_chunks
from afarm.judging.ledger import Ledger
from afarm.storage.artifacts import Artifact, Store, artifact_key
from afarm.storage.disk import source_digest
from afarm.storage.reuse import why_not_reused
from afarm.storage.rows import preferences_on_disk, read_outputs, read_preferences, read_rows

KEPT_MODELS = 2
"""Models held loaded between stages: the starting policy and the reward model, as training needs both."""


@dataclass(frozen=True, slots=True)
class StageRun:
    """What happened to a stage: reused, or made in so many seconds.

    `why` says why it was not reused, or that what is reused was made with other library versions.
    """

    kind: str
    label: str
    artifact: Artifact
    reused: bool
    seconds: float
    why: str = ""
    inputs: tuple[str, ...] = ()
    """The labels of the stages it was made from."""


@dataclass(frozen=True, slots=True)
class Result:
    """A system's evaluations, each with the name of its reference, and the judgements behind them."""

    system: str
    evaluations: tuple[tuple[str, Evaluation], ...]
    judgements: Mapping[str, Sequence[JudgedPair]] = field(default_factory=dict)

    def metric(self, name: str) -> float:
        """A number by its name, from the first evaluation that has it. Raises `KeyError`."""
        for _, found in self.evaluations:
            if isinstance(value := found.metrics.get(name), int | float):
                return float(value)
        raise KeyError(name)

    @property
    def win_rate(self) -> float:
        """Percent, against the first reference."""
        return self.metric("win_rate")

    @property
    def standard_error(self) -> float:
        """Of the win rate, in percentage points."""
        return self.metric("standard_error")

    def degraded(self, reference: str) -> dict[str, int]:
        """How many judgements against `reference` were made without a parameter, by its name."""
        return dict(Counter(name for row in self.judgements[reference] for name in row.preference.degraded))


class Farm:
    """One experiment: a recipe with its overrides, and a directory where everything it makes is kept.

    `settings` are overrides, one or several, as `"ppo.learning_rate=1e-5"` or as mappings; keyword `choices` are fields
    of `RunConfig` (`seed=1, model=…`). `annotator` is short for `annotate.annotator`. A farm that
    `compares_only` needs no model, no data and no torch; one that `plans_only`, no keys to judges. `answering` are
    judge LLMs that will be systems of their own. Where several processes run the same, `process_info` says which of
    them this one is. Raises `ConfigError` with every problem at once, before any model is loaded.
    """

    def __init__(
        self,
        recipe: str = "toy",
        *,
        settings: str | Mapping[str, Any] | Iterable[str | Mapping[str, Any]] = (),
        output_dir: Path | str = "afarm-runs",
        annotator: str | None = None,
        plugins: Plugins | None = None,
        progress: Progress = no_progress,
        on_stage: Callable[[str, StageRun | None], None] = lambda label, run: None,
        tell: Callable[[str], None] = lambda text: None,
        compares_only: bool = False,
        plans_only: bool = False,
        answering: Sequence[str] = (),
        process_info: ProcessInfo = SINGLE_PROCESS,
        **choices: Any,
    ):
        given = [{k: v for k, v in choices.items() if v is not None}]
        if annotator is not None:
            given.append({"annotate": {"annotator": annotator}})
        given += parse_overrides(settings)
        plugins = plugins or discover()

        def look_ahead(settings: Settings) -> list[str]:
            # What is opened to look at it (data, a device) is kept: nothing is read twice.
            self.components = Components(plugins, settings, progress, tell, process_info)
            self.splits = DataSplits(self.components)
            return problems_ahead(self.components, self.splits, Path(output_dir), compares_only, plans_only, answering)

        self.settings: Settings = resolve(recipe, given, plugins, look_ahead)
        self.config = self.settings.run
        self.progress = progress
        self.on_stage = on_stage
        self.store = Store(Path(output_dir), notify=tell)
        self.history: dict[str, StageRun] = {}
        self._live: OrderedDict[str, Any] = OrderedDict()
        self._making = ""  # the name of the artifact that is being written
        self.process_info = process_info
        # All meet here: later, nobody could say for how long the first is busy with stages that are its own.
        self.session = self.components.backend.session if process_info.is_distributed and not compares_only else ""

    def __enter__(self) -> Farm:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # ------------------------------------------------------------------------------------------- the Python API

    def sft(self) -> Policy:
        """The policy that everything starts from: SFT on demonstrations, or the model as it is (`start: model`)."""
        policy: Policy = self.load(self.ensure(stages.start(self)))
        return policy

    def sample(self) -> list[Output]:
        """The outputs to be compared, `sample.n` in turn for each preference instruction."""
        return read_outputs(self.ensure(stages.sample(self)).path / "outputs.jsonl")

    def annotate(self) -> list[JudgedPair]:
        """The training preferences."""
        return read_preferences(self.ensure(stages.annotate(self)).path / "preferences.jsonl")

    def fit_reward(self) -> RewardModel:
        """The reward model, fitted where it is one that learns."""
        stage = stages.fit_reward(self)
        if stage is None:
            return self.components.fixed_reward_model(self.config.reward_model)
        model: RewardModel = self.load(self.ensure(stage))
        return model

    def train(self, method: str | None = None) -> Policy:
        """The policy learned by `method` (the recipe's, unless named), with all that it needs."""
        policy: Policy = self.load(self.ensure(stages.train(self, method or self.config.method)))
        return policy

    def outputs(self, method: str | None = None) -> list[Output]:
        """The answers of a method's policy to the evaluation instructions."""
        return read_outputs(self.ensure(evaluation.outputs(self, method or self.config.method)).path / "outputs.jsonl")

    def evaluate(self, method: str | None = None) -> Result:
        """How a method's policy compares with its reference."""
        name = method or self.config.method
        return read_result(name, [self.ensure(stage) for stage in evaluation.evaluations(self, name)])

    def compare(
        self,
        outputs: Sequence[Output],
        reference: Sequence[Output],
        annotator: str | None = None,
        match_policy: MatchPolicy = STRICT,
    ) -> Result:
        """The win rate of any outputs over any others, judged by the evaluation's annotator unless one is named.

        It is kept and reused, on a budget of its own. Raises `DataError` where rows do not fit and `joining` is strict.
        """
        compared = self.head_to_head(outputs, reference, annotator, match_policy=match_policy)
        return read_result(compared.system, [compared.run().artifact])

    def head_to_head(
        self,
        outputs: Sequence[Output],
        reference: Sequence[Output],
        annotator: str | None = None,
        names: tuple[str, str] | None = None,
        match_policy: MatchPolicy = STRICT,
    ) -> OutputComparison:
        """What `compare` makes, before it is made. The systems' `names` are their outputs' `generator` unless given."""
        given = [next((row.generator for row in rows), "") for rows in (outputs, reference)]
        system, other = names or (given[0] or "outputs", given[1] or "reference")
        return OutputComparison(
            self, outputs, reference, annotator or self.config.evaluate.annotator, system, other, match_policy
        )

    def annotate_pairs(self, pairs: Sequence[Pair]) -> list[Preference]:
        """The run's annotator on pairs of one's own, under the run's budget and without label noise."""
        name = self.config.annotate.annotator
        context = AnnotateContext(self.seed("online"), self.ask, self.progress)
        return [
            judged.preference for judged in annotate_in_chunks(pairs, self.components.annotator(name), name, context)
        ]

    def close(self) -> None:
        """Stop the judges' thread and close the ledger. The farm can be used again."""
        for name in ("ask", "ledger"):
            if name in self.__dict__:
                self.__dict__.pop(name).close()

    # ---------------------------------------------------------------------------------------- making and reusing

    def ensure(self, stage: Stage) -> Artifact:
        """The artifact of `stage`, made now if it is missing, after its inputs."""
        if stage.label in self.history:
            return self.history[stage.label].artifact
        inputs = {name: self.ensure(earlier) for name, earlier in stage.inputs.items()}
        upstream = tuple(earlier.label for earlier in stage.inputs.values())
        key_fields = with_inputs(stage, inputs)
        started = time.perf_counter()
        why = ""
        if self.store.find(stage.kind, artifact_key(key_fields)) is None:
            why = why_not_reused(key_fields, self.store.of_stage(stage.kind, stage.label))
            self.on_stage(stage.label, None)
        name = f"{stage.kind}/{artifact_key(key_fields)}"

        def write(directory: Path) -> Mapping[str, Any]:
            self._making = name
            if stage.join and self.process_info.is_distributed:
                announce(directory, self.session)
            try:
                return stage.write(directory, inputs)
            finally:
                self._making = ""

        if self.process_info.is_main_process:
            artifact, reused = self.store.make(
                stage.kind, key_fields, write, versions(), label=stage.label, spend=lambda: self._bought_for(name)
            )
        else:
            join = partial(stage.join, inputs=inputs) if stage.join else None
            artifact, reused = follow(self.store, stage.kind, artifact_key(key_fields), self.session, join), True
        why = version_changes(artifact.meta.get("versions", {})) if reused else why
        run = StageRun(stage.kind, stage.label, artifact, reused, time.perf_counter() - started, why, upstream)
        self.history[stage.label] = run
        self.on_stage(stage.label, run)
        return artifact

    def _bought_for(self, artifact: str) -> Mapping[str, float]:
        """What judges cost to make an artifact, by this process or by those that were stopped at it before."""
        return self.ledger.stage_spend(artifact) if self.store.ledger_path.exists() else {}

    def load(self, artifact: Artifact) -> Any:
        """The policy or reward model of an artifact. The last few are kept, not all: each is a whole model."""
        if artifact.name not in self._live:
            while len(self._live) >= KEPT_MODELS:
                self._live.popitem(last=False)
            self._live[artifact.name] = self.components.load(artifact.path)
        self._live.move_to_end(artifact.name)
        return self._live[artifact.name]

    def key_fields(self, stage: str, **ingredients: Any) -> dict[str, Any]:
        """What every stage's result depends on, and the given ingredients of this one."""
        backend = self.config.backend.result_fields()
        return {"stage": stage, "afarm": core_source(), **backend, "seed": self.config.seed, **ingredients}

    def seed(self, purpose: str) -> int:
        """An independent seed for each purpose, from the run's."""
        return integer(self.config.seed, purpose)

    @cached_property
    def judges(self) -> dict[str, Judge]:
        """The judge for each family role."""
        return self.components.judges()

    @cached_property
    def ask(self) -> JudgeClient:
        """The metered way to this run's judges."""
        return JudgeClient(
            self.judges,
            self.ledger,
            run=self.name(),
            max_concurrency=self.config.max_concurrency,
            budget=self.config.budget,
            allow_degraded=self.config.allow_degraded,
            batch_api=self.config.batch_api,
            batch_poll_seconds=self.config.batch_poll_seconds,
            limiters=self.components.limiters,
            stage=lambda: self._making,
        )

    @cached_property
    def ledger(self) -> Ledger:
        """What was paid and learned under the output directory."""
        return Ledger(self.store.ledger_path)

    @property
    def spend(self) -> Spend | None:
        """What the judges have cost so far, None before the first was asked."""
        return self.ask.spend if "ask" in self.__dict__ else None

    def name(self, method: str | None = None) -> str:
        """The run's name: the same command has the same one, so that it goes on where it stopped."""
        config = self.config
        fields = {k: v for k, v in config.result_fields().items() if k != "method"}
        settings = digest(fields, self.settings.result_sections(self.components.plugins.registry), length=6)
        chosen = method or config.method
        parts = [Path(self.settings.recipe).stem, chosen, config.annotate.annotator, f"seed{config.seed}", settings]
        return "-".join(part.replace("/", "_") for part in parts)

    # ----------------------------------------------------------------------------------------------------- data

    @property
    def start_name(self) -> str:
        """What the starting policy is called: "sft", or "base" where SFT is skipped."""
        return "sft" if self.config.start == "sft" else "base"

    def rows(self, split: str) -> list[Output]:
        """The rows of a split that this run uses. Raises `DataError` where it is empty or repeats an instruction."""
        return self.splits.rows(split)

    def instructions(self, split: str) -> list[Instruction]:
        """The instructions of a split."""
        return self.splits.instructions(split)

    def data_digest(self, split: str) -> str:
        """A digest of a split's rows, so that changed data is another ingredient."""
        return self.splits.digest(split)


def read_result(system: str, artifacts: Iterable[Artifact]) -> Result:
    """What is stored of the evaluations of `system`."""
    found: list[tuple[str, Evaluation]] = []
    judgements: dict[str, Sequence[JudgedPair]] = {}
    for artifact in artifacts:
        for row in read_rows(artifact.path / "results.jsonl"):
            found.append((row["reference"], Evaluation.from_row(row)))
            judgements[row["reference"]] = preferences_on_disk(artifact.path / "judgements.jsonl")
    return Result(system, tuple(found), judgements)


def with_inputs(stage: Stage, inputs: Mapping[str, Artifact]) -> dict[str, Any]:
    """All that a stage's result depends on: data by its content, models by their key as well.

    What a model does is not in its files alone: a best-of-n policy whose source is edited writes the same files.
    """
    given = {
        name: f"{artifact.content} of {artifact.key}" if artifact.stage in stages.MODELS else artifact.content
        for name, artifact in inputs.items()
    }
    return {**stage.key_fields, "inputs": given}


RESULT_ROOMS = ("core", "storage", "judging", "statistics", "evaluation", "backend", "experiment", "comparison")


@cache
def core_source() -> str:
    """A digest of afarm's own code that results depend on: not the command line, the report or the test kit."""
    package = Path(__file__).parents[1]
    return source_digest([package / room for room in RESULT_ROOMS])


LIBRARIES = ["afarm", "torch", "transformers", "trl", "peft", "accelerate", "datasets", "numpy"]


@cache
def versions() -> dict[str, str]:
    """Of Python and of every library that numbers can depend on."""
    found = {"python": platform.python_version()}
    for name in LIBRARIES:
        with suppress(importlib.metadata.PackageNotFoundError):
            found[name] = importlib.metadata.version(name)
    return found


def version_changes(before: Mapping[str, str]) -> str:
    """The libraries whose version is another now, as a clause; empty where there is none."""
    changed = [
        f"{name} {old} (now {versions().get(name)})" for name, old in before.items() if versions().get(name) != old
    ]
    return f"made with {', '.join(changed)}" if changed else ""
