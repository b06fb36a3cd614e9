"""An opened configuration, in which stages are made or reused."""

from __future__ import annotations

import importlib.metadata
import platform
import time
from collections.abc import Callable, Mapping
from contextlib import chdir, suppress
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from afarm.core.interfaces import RewardModel
from afarm.core.seeding import integer
from afarm.experiment import release_numbers
from afarm.experiment.components import Components
from afarm.experiment.data import DataSplits
from afarm.experiment.process_info import ProcessInfo
from afarm.experiment.processes import announce, follow
from afarm.experiment.stage import Inputs, Stage, StageRun, walk
from afarm.experiment.stage_code import code_identity
from afarm.storage.artifacts import Artifact, Store, artifact_key
from afarm.storage.reuse import why_not_reused

if TYPE_CHECKING:
    from afarm.experiment.judges import Judges  # which training never reaches

JUDGING = "evaluate"
"""The purpose of the seed of judgements."""

JUDGED = frozenset({"evaluate", "compare", "decide"})
"""The stages that hold judgements."""

OnStage = Callable[[str, StageRun | None], None]
"""Called with a stage's label when it begins, and with what came of it when it is there."""


def ignore(*news: object) -> None:
    """Take no notice of news, such as stages."""


def tell_once(told: set[str], tell: OnStage, label: str, run: StageRun | None) -> None:
    """Report a stage that systems share only the first time; `told` are the keys of those that were."""
    if run is None or not (run.reused and run.artifact.key in told):
        tell(label, run)
    if run is not None:
        told.add(run.artifact.key)


@dataclass(eq=False, repr=False)
class Workspace:
    """One configuration with all that it names: components, data, judges and the store of artifacts.

    `history` holds each stage that was made or reused here, by its label, and `planned` each of them and of those that
    are to come. `open_workspace` makes workspaces.
    """

    components: Components
    data: DataSplits
    judges: Judges
    store: Store
    on_stage: OnStage = ignore
    history: dict[str, StageRun] = field(default_factory=dict)
    planned: dict[str, Stage] = field(default_factory=dict)
    session: str = ""

    def __post_init__(self) -> None:
        self.settings = self.components.settings
        self.config = self.settings.run
        self.progress = self.components.progress

    @property
    def process_info(self) -> ProcessInfo:
        """This process among those that run the same command."""
        return self.components.process_info

    @property
    def start_name(self) -> str:
        """The name of the starting policy: "sft", or "base" if SFT is skipped."""
        return "sft" if self.config.start == "sft" else "base"

    def run_name(self, method: str | None = None) -> str:
        """Return the run's name. The same command has the same one, so that it goes on where it stopped."""
        return self.settings.run_name(self.components.plugins.registry, method)

    def seed(self, purpose: str) -> int:
        """Return an independent seed for each purpose, from the run's seed (or the labels', if it is set)."""
        labels = self.config.evaluate.label_seed if purpose == JUDGING else None
        return integer(self.config.seed if labels is None else labels, purpose)

    def key_fields(self, stage: str, **ingredients: Any) -> dict[str, Any]:
        """Return what every stage's result depends on, with the ingredients of this kind of stage.

        What a stage samples by is an ingredient of those that do.
        """
        backend = {name: value for name, value in self.config.backend.result_fields().items() if name != "sampler"}
        seeds = {"seed": self.config.seed}
        if stage in JUDGED and self.config.evaluate.label_seed is not None:
            seeds |= {"label_seed": self.config.evaluate.label_seed}
        return {"stage": stage, "afarm": code_identity(stage), **backend, **seeds, **ingredients}

    # ---------------------------------------------------------------------------------------- making and reusing

    def meet(self) -> None:
        """Meet the other processes of this launch: later, the main one may be busy alone for hours."""
        if self.process_info.is_distributed:
            self.session = self.components.backend.session

    def plan(self, stage: Stage) -> None:
        """Note that a stage and all before it will be wanted: so it can be said how far a command is."""
        self.planned |= {label: one for label, one in walk(stage).items() if label not in self.planned}

    def ensure(self, stage: Stage) -> Artifact:
        """Return the artifact of `stage`. What is missing, of it and of those before it, is made now."""
        self.plan(stage)
        for label, one in walk(stage).items():
            if label not in self.history:
                self._make_or_reuse(one)
        return self.history[stage.label].artifact

    def _make_or_reuse(self, stage: Stage) -> None:
        inputs = {name: self.history[upstream.label].artifact for name, upstream in stage.inputs.items()}
        key_fields = stage.build_key_fields(inputs)
        key = artifact_key(key_fields)
        started = time.perf_counter()
        why = ""
        if self.store.find(stage.kind, key) is None:
            why = why_not_reused(key_fields, self.store.of_stage(stage.kind, stage.label))
            self.on_stage(stage.label, None)
        if self.process_info.is_main_process:
            artifact, reused = self._make(stage, key_fields, inputs)
        else:
            collective = partial(stage.run_collective, inputs=inputs) if stage.run_collective else None
            artifact, reused = follow(self.store, stage.kind, key, self.session, collective), True
        if reused:
            before = artifact.meta["versions"].items()
            changed = [
                f"{name} {old} (now {versions().get(name)})" for name, old in before if versions().get(name) != old
            ]
            why = f"made with {', '.join(changed)}" if changed else ""
        upstream_labels = tuple(upstream.label for upstream in stage.inputs.values())
        run = StageRun(stage.kind, stage.label, artifact, reused, time.perf_counter() - started, why, upstream_labels)
        self.history[stage.label] = run
        self.on_stage(stage.label, run)

    def _make(self, stage: Stage, key_fields: Mapping[str, Any], inputs: Inputs) -> tuple[Artifact, bool]:
        name = f"{stage.kind}/{artifact_key(key_fields)}"

        def write(directory: Path) -> Mapping[str, Any]:
            if stage.run_collective and self.process_info.is_distributed:
                announce(directory, self.session)
            with self.judges.charge_artifact(name), chdir("."):  # a plugin may go elsewhere, and paths are from here
                return stage.write(directory.absolute(), inputs)

        spend = partial(self.judges.spent_on, name)
        code = release_numbers.released_version()  # a number in the key stands for more than one release
        return self.store.make(stage.kind, key_fields, write, versions(), label=stage.label, code=code, spend=spend)

    def load(self, artifact: Artifact) -> Any:
        """Load the policy or reward model of an artifact, anew at each call.

        So what a stage, a plugin or a user does to a model reaches no other stage, and none holds another's memory.
        """
        return self.components.load(artifact.path)

    def reward_model(self, fitted: Artifact | None) -> RewardModel:
        """Return the run's reward model: the fitted one or what it is a part of, or one that needs no fitting."""
        name = self.config.reward_model
        if fitted is None:
            return self.components.fixed_reward_model(name)
        model, learned = self.load(fitted), self.components.learned_part(name)
        return model if learned == name else self.components.fixed_reward_model(name, {learned: model})

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop the judges' thread, close the ledger, and let go of artifacts. The workspace can be used again."""
        self.judges.close()
        self.store.release()


LIBRARIES = ["afarm", "torch", "transformers", "trl", "peft", "accelerate", "datasets", "numpy"]


@cache
def versions() -> dict[str, str]:
    """Return the versions of Python and of every library that numbers can depend on."""
    installed = {"python": platform.python_version()}
    for name in LIBRARIES:
        with suppress(importlib.metadata.PackageNotFoundError):
            installed[name] = importlib.metadata.version(name)
    return installed
