"""Components from their names: classes built from settings, trained objects from their files."""

from __future__ import annotations

import importlib
import importlib.util
import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from afarm.core.errors import (
    ConfigError,
    PluginError,
    StoreError,
    attribute_failures,
    require_promise,
    type_name,
)
from afarm.core.interfaces import (
    Annotator,
    BuildContext,
    Dataset,
    EvaluationInputs,
    Evaluator,
    Method,
    Policy,
    Progress,
    RewardModel,
    TrainContext,
    no_progress,
)
from afarm.core.plugins import Plugins
from afarm.core.records import Evaluation
from afarm.core.registry import FIRST_PARTY, Component
from afarm.experiment.plugin_code import files_digest, find_package, plugin_identity
from afarm.experiment.process_info import SINGLE_PROCESS, ProcessInfo
from afarm.experiment.recipe import Settings
from afarm.experiment.return_checks import own_identity, require_needs, require_returned
from afarm.experiment.stage_code import DOORS, code_identity
from afarm.storage.artifacts import require_sound_directory
from afarm.storage.checkpoints import DirectoryCheckpoints, FollowedCheckpoints, MetricsFile
from afarm.storage.contents import content_digest
from afarm.storage.disk import decode_json, storage_errors, write_json
from afarm.storage.model_files import local_path
from afarm.storage.prompt_templates import TemplateSource
from afarm.storage.record_fields import require_evaluation

if TYPE_CHECKING:
    from afarm.backend import Backend, SamplingEngine
    from afarm.backend.device import LogMetrics

TORCH = "torch"
"""The sampler that is the backend's own."""

FITTED = "artifacts/fit-reward/KEY"
"""Where fitted reward models lie, for messages."""

MOVED_CLASSES = {
    "afarm_plugins.judges.fitted.learned_features:FeaturesRewardModel": (
        "afarm_plugins.fitted_judges.learned_features:FeaturesRewardModel"
    ),
}
"""Where the class that a stored `class.json` names is today, for classes that have moved since."""


def log_nothing(step: int, metrics: Mapping[str, float]) -> None:
    """Log no metrics: of several processes one does, and what loads a model writes nothing."""


@dataclass(slots=True)
class Components:
    """The components that the settings name, built by name, and the backend, made when first needed."""

    plugins: Plugins
    settings: Settings
    progress: Progress = no_progress
    notify: Callable[[str], None] = lambda text: None
    process_info: ProcessInfo = SINGLE_PROCESS
    _backend: Any = None
    _engine: Any = None
    _reward_models: dict[str, RewardModel] = field(default_factory=dict)
    _identities: dict[str, dict[str, Any]] = field(default_factory=dict)

    @staticmethod
    def native_dtype(device: str) -> str:
        """Return the dtype that a device computes in. Loads torch."""
        from afarm.backend import cpu

        return cpu.native_dtype(device)

    def component(self, kind: str, name: str) -> Component:
        return self.plugins.get(kind, name)

    def identity(self, component: Component) -> dict[str, Any]:
        """Return what changes a component's results: its name, its plugin's source, and its settings."""
        name = f"{component.kind}/{component.full_name}"
        if name not in self._identities:
            config = self.settings.of(component)
            self._identities[name] = {
                "name": component.full_name,
                "source": plugin_identity(component),
                "settings": config.result_fields() if config else {},
            }
            if component.package != FIRST_PARTY:  # for ours, a test follows the imports
                self._identities[name]["doors"] = code_identity(DOORS)
        return self._identities[name]

    def annotator_identity(self, name: str) -> dict[str, Any]:
        """`identity` of an annotator, with what its spec names."""
        return self._with_spec("annotators", name, own_identity(self.annotator(name), "annotators", name))

    def evaluator_identity(self, name: str) -> dict[str, Any]:
        """`identity` of an evaluator, with what its spec names and the name that results are stored under."""
        found = self._with_spec("evaluators", name, getattr(self.evaluator(name), "identity", ""))
        return {**found, "named": name} if ":" in name else found

    def fixed_reward_identity(self, name: str) -> dict[str, Any]:
        """`identity` of a reward model that is not fitted, with what its spec names."""
        own = own_identity(self.fixed_reward_model(name), "reward_models", name)
        return self._with_spec("reward_models", name, own)

    def unfitted_reward_identity(self) -> Mapping[str, Any] | str:
        """The identity of the run's reward model; empty if its fit, an input, is all of it."""
        name = self.settings.run.reward_model
        return "" if self.learned_part(name) == name else self.fixed_reward_identity(name)

    def _with_spec(self, kind: str, name: str, own: str) -> dict[str, Any]:
        found = self.identity(self.component(kind, name))
        return {**found, "spec": own} if own else found

    def uneven_sizes(self, component: Component) -> list[str]:
        """Say which settings of a component that trains do not divide among the processes of this launch."""
        if not self.process_info.is_distributed:
            return []
        from afarm.backend.distributed import uneven_sizes

        several, sharded = self.process_info.size, self.process_info.sharded
        return uneven_sizes(component.name, self.settings.of(component), several, sharded=sharded)

    def engine(self) -> SamplingEngine | None:
        """Return the engine that `backend.sampler` names, built once; None for torch's own. Loads no torch.

        Raises as `engine_class` does, and what the engine's class raises for its spec.
        """
        cls, (component, spec) = self.engine_class(), self._sampler()
        if self._engine is None and component is not None:
            with attribute_failures("samplers", component.name, cls):
                self._engine = cls(self.settings.of(component), spec, self.context(component))
        return self._engine

    def engine_class(self) -> Any:
        """Return the class of the engine that `backend.sampler` names; None for torch's own. Builds none.

        Raises `PluginError` if there is none of that name, and `ConfigError` for an address of torch's.
        """
        component, _ = self._sampler()
        if component is None:
            return None
        cls, broken = component.load(), f"{component.target} is no afarm.backend.SamplingEngine"
        is_one = all(hasattr(cls, promised) for promised in ("takes_whole_weights", "runs_here", "version", "sampler"))
        require_promise(is_one, "samplers", component.name, broken, cls)
        return cls

    def _sampler(self) -> tuple[Component | None, str]:
        name, at, spec = self.settings.run.backend.sampler.partition("@")
        if name == TORCH and at:
            raise ConfigError([f"backend.sampler=torch@{spec}: torch takes no address: --set backend.sampler=torch"])
        return None if name == TORCH else self.plugins.get("samplers", name, also=[TORCH]), spec

    def sampler_identity(self) -> Mapping[str, Any] | str:
        """Return what changes samples beside the policy: "torch", or the engine's identity and version.

        Raises `ModelError` if the engine is not there to be asked.
        """
        engine, (component, _) = self.engine(), self._sampler()
        if engine is None or component is None:
            return TORCH
        with attribute_failures("samplers", component.name, engine):
            return {**self.identity(component), "version": engine.version}

    def _build(self, kind: str, name: str, interface: type, parts: Mapping[str, RewardModel] | None = None) -> Any:
        component = self.component(kind, name)
        cls, config = component.load(), self.settings.of(component)
        is_other = isinstance(cls, type) and not issubclass(cls, interface)
        require_promise(not is_other, kind, name, f"{component.target} is no afarm.{interface.__name__}", cls)
        with attribute_failures(kind, name, cls):
            if component.spec:
                made = cls(config, name.partition(":")[2], self.context(component, parts))
            else:
                made = cls() if config is None else cls(config)
        broken = f"{component.target} makes {type_name(made)}, no afarm.{interface.__name__}"
        require_promise(isinstance(made, interface), kind, name, broken, cls)
        return made

    def dataset(self, name: str = "") -> Dataset:
        """The data set of that name, the run's unless one is given."""
        return self._build("datasets", name or self.settings.run.dataset, Dataset)

    def annotator(self, name: str) -> Annotator:
        made: Annotator = self._build("annotators", name, Annotator)
        with suppress(AttributeError):  # a class with slots, say, can hold no attribute that it has not declared
            made.source = plugin_identity(self.component("annotators", name))
        return made

    def method(self, name: str) -> Method:
        made: Method = self._build("methods", name, Method)
        require_needs(made, "methods", name)
        return made

    def evaluator(self, name: str) -> Evaluator:
        made: Evaluator = self._build("evaluators", name, Evaluator)
        require_needs(made, "evaluators", name)
        return made

    def evaluate(self, name: str, inputs: EvaluationInputs) -> Evaluation:
        """Run the evaluator `name`. Raises `PluginError` if it fails, or returns no figures."""
        evaluator, component = self.evaluator(name), self.component("evaluators", name)
        with attribute_failures("evaluators", name, evaluator):
            returned = evaluator.evaluate(inputs)
        return require_evaluation(returned, name, self.plugins.registry, component, inputs.system, evaluator)

    def reward_model_class(self, name: str) -> type[RewardModel]:
        loaded: type[RewardModel] = self.component("reward_models", name).load()
        fits = isinstance(loaded, type) and issubclass(loaded, RewardModel)
        require_promise(fits, "reward_models", name, f"{loaded!r} is no class of afarm.RewardModel", loaded)
        for method in ("fit", "load"):
            why = f"{method} must be a class method: put @classmethod above it"
            require_promise(hasattr(getattr(loaded, method), "__func__"), "reward_models", name, why, loaded)
        return loaded

    def learned_part(self, name: str) -> str:
        """Return what must be fitted before a reward model scores: its name, that of a part of it, or nothing.

        Raises `ConfigError` if it has several such parts.
        """
        cls = self.reward_model_class(name)
        if cls.is_fitted():
            return name
        parts = [part for part in cls.parts(name.partition(":")[2]) if not Path(part).is_dir()]
        learned = list(filter(None, map(self.learned_part, parts)))
        if len(learned) > 1:
            raise ConfigError(
                f"reward model {name!r}: a run fits one reward model, not {' and '.join(learned)}: fit the other first "
                f"(afarm fit-reward --reward-model {learned[1]}), and name its directory"
            )
        return "".join(learned)

    def fixed_reward_model(self, name: str, parts: Mapping[str, RewardModel] | None = None) -> RewardModel:
        """A reward model that is built, of fitted `parts`. Raises `ConfigError` for one to be fitted."""
        if self.reward_model_class(name).is_fitted():
            raise ConfigError([f"reward model {name!r} must be fitted first: name one that needs no fitting here"])
        made: RewardModel = self._build("reward_models", name, RewardModel, parts)
        if self.component("reward_models", name).spec:
            with suppress(AttributeError):  # a class with slots, say
                made.spec = name.partition(":")[2]  # type: ignore[attr-defined]  # a policy that keeps it builds it so
        return made

    def reward_model(self, name: str) -> RewardModel:
        """One that is built, by its name, or a fitted one by its artifact's directory. Opened once."""
        if name not in self._reward_models:
            directory = Path(name)
            if directory.is_dir():
                _module_of_fitted(directory)
                self._reward_models[name] = self.load(directory)
            elif directory.exists() or name.startswith((".", "~", "/")) or name.partition(":")[0].count("/") > 1:
                raise ConfigError([f"{name} is no directory: name that of a fitted reward model, {FITTED}"])
            else:
                self._reward_models[name] = self.fixed_reward_model(name)
        return self._reward_models[name]

    def reward_model_identity(self, name: str) -> str:
        """Return a text that changes with a reward model's source and settings, or its files and their code."""
        directory = Path(name)
        if not directory.is_dir() and self.reward_model_class(name).is_fitted():  # a part, which the run will fit
            return json.dumps(self.identity(self.component("reward_models", name)), sort_keys=True)
        if not directory.is_dir():
            return json.dumps(self.fixed_reward_identity(name), sort_keys=True)
        require_sound_directory(directory)
        if name not in self._identities:
            module = _module_of_fitted(directory)
            package = find_package(module)
            component = next((c for c in self.plugins.registry if package in map(find_package, c.modules)), None)
            if package == FIRST_PARTY:
                source = code_identity(DOORS)
            else:
                source = plugin_identity(component) if component else files_digest("", (module,))
            self._identities[name] = {"files": content_digest(directory), "source": source}
        return json.dumps(self._identities[name], sort_keys=True)

    def context(self, component: Component, parts: Mapping[str, RewardModel] | None = None) -> BuildContext:
        """Return what a component that has a spec is built with; `parts` are fitted reward models."""
        return BuildContext(
            reward_model=lambda name: (parts or {}).get(name) or self.reward_model(name),
            identify=self.reward_model_identity,
            source=plugin_identity(component),
            backend=lambda: self.backend,
            annotator=lambda name: (self.annotator(name), json.dumps(self.annotator_identity(name), sort_keys=True)),
        )

    # --------------------------------------------------------------------------------------------- models on disk

    @property
    def backend(self) -> Backend:
        """The one door to torch: whoever asks for the backend is about to train or sample."""
        if self._backend is None:
            try:
                from afarm.backend import Backend
            except ModuleNotFoundError as error:
                if error.name is None:  # something that is there could not be imported
                    raise
                raise PluginError(f"training needs {error.name!r}: pip install 'afarm[train]'") from error
            info = self.process_info
            self._backend = Backend(
                self.settings.run.backend,
                is_distributed=info.is_distributed,
                sharded=info.sharded,
                offloads=info.offloads,
                engine=self.engine(),
                progress=self.progress if info.is_main_process else no_progress,
            )
        return self._backend

    @property
    def device_in_use(self) -> str:
        """The device that models are on; empty if no model was loaded."""
        return "" if self._backend is None else str(self._backend.device)

    def autocast(self) -> AbstractContextManager[Any]:
        """The backend's mixed precision; nothing where no model has been loaded (a policy behind an API, say)."""
        return nullcontext() if self._backend is None else self._backend.autocast()

    @contextmanager
    def training(self, kind: str, name: str, label: str, directory: Path, seed: int) -> Iterator[TrainContext]:
        """A context for the training stage `label` in `directory`, going on from the checkpoint found there.

        Inside it, models compute in the backend's mixed precision; at its end trackers are closed. What a full disk
        makes a trainer say becomes a `StoreError`, what else goes wrong a `PluginError` naming the component of that
        kind and name. Of several processes all but the first only read what is in `directory`, and none leaves before
        the others.
        """
        is_main = self.process_info.is_main_process
        checkpoints = DirectoryCheckpoints(directory) if is_main else FollowedCheckpoints(directory)
        log: LogMetrics = log_nothing
        progress: Progress = no_progress
        with ExitStack() as opened:
            opened.enter_context(attribute_failures(kind, name, self.component(kind, name).load()))
            if is_main:
                checkpoints.require_sound()
                newest = checkpoints.latest()
                if newest:
                    self.notify(f"{label}: going on from step {newest[0]}")
                metrics = MetricsFile(directory / "metrics.jsonl", resume_from=newest[0] if newest else None)
                opened.enter_context(storage_errors(directory))
                log = opened.enter_context(self.backend.tracked(label, directory / "trackers", metrics))
                progress = self.progress
            opened.enter_context(self.backend.autocast())
            opened.enter_context(self.backend.naming_lost(label))
            if self.process_info.is_distributed:  # all have seen the newest checkpoint before one saves the next
                self.backend.barrier()
            yield TrainContext(
                seed, directory, self.backend, checkpoints, log, progress, reward_model=self.reward_model
            )
            if self.process_info.is_distributed:
                self.backend.barrier()

    def save(self, made: Policy | RewardModel, directory: Path, kind: str, name: str) -> None:
        """Write what the component of that kind and name trained, and which class reads it."""
        model = directory / "model"
        model.mkdir(exist_ok=True)
        with attribute_failures(kind, name, made), storage_errors(model):
            made.save(model)
        read_by = f"{type(made).__module__}:{type(made).__qualname__}"
        holds = "reward_model" if isinstance(made, RewardModel) else "policy"
        write_json(directory / "class.json", {"class": read_by, "kind": holds})

    def save_pointer(self, identity: str, template: TemplateSource, directory: Path) -> None:
        """Name the run's base model by its content, without copying it, since files move."""
        write_json(directory / "class.json", {"model": identity, "prompt_template": template})

    def load(self, directory: Path) -> Any:
        """The policy or reward model that `save` or `save_pointer` wrote.

        Raises `PluginError` if its class cannot read it, and `StoreError` if that is gone.
        """
        local_path(str(directory))  # raises where models are closed
        record = _read_class_record(directory)
        if "model" in record:
            loaded = self.backend.load_policy(self.settings.run.model, prompt_template=record["prompt_template"])
            loaded.default_decoding = self.settings.run.evaluate.decoding
            return loaded
        module, _, name = record["class"].partition(":")
        try:
            cls: Any = getattr(importlib.import_module(module), name)
        except (ImportError, AttributeError) as error:
            raise StoreError(
                f"{directory} was made by {record['class']}, which cannot be loaded ({error}); install its plugin again"
            ) from error
        kind, interface = ("reward model", RewardModel) if record["kind"] == "reward_model" else ("policy", Policy)
        fits = isinstance(cls, type) and issubclass(cls, interface)
        if not fits:  # some other `load` might unpickle
            raise StoreError(f"{directory} names {record['class']} as its class, which is no {kind}: delete it")
        with attribute_failures(kind, record["class"], cls):
            kept = DirectoryCheckpoints(directory)
            context = TrainContext(
                0, directory, self.backend, kept, log_nothing, self.progress, reward_model=self.reward_model
            )
            loaded = cls.load(directory / "model", context)
        require_returned(interface, loaded, kind, record["class"], "load", cls)
        if isinstance(loaded, Policy):
            with suppress(AttributeError):  # as for the source of an annotator
                loaded.default_decoding = self.settings.run.evaluate.decoding
        return loaded


def _read_class_record(directory: Path) -> Mapping[str, Any]:
    """Read `class.json`, with today's place of the class. Raises `OSError`, and `ValueError` for no JSON."""
    record: Mapping[str, Any] = decode_json((directory / "class.json").read_text(encoding="utf-8"))
    return record if "class" not in record else {**record, "class": MOVED_CLASSES.get(record["class"], record["class"])}


def _module_of_fitted(directory: Path) -> str:
    """The name of the module whose class reads the fitted reward model in `directory`, not imported.

    Raises `ConfigError` where there is none in it, `StoreError` where its plugin is gone.
    """
    try:
        record = _read_class_record(directory)
        kind, (module, _, name) = record["kind"], record["class"].partition(":")
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise ConfigError([f"{directory} holds no fitted reward model: name a directory such as {FITTED}"]) from error
    if kind != "reward_model":
        raise ConfigError([f"{directory} holds a {name}, no reward model: name a directory such as {FITTED}"])
    try:
        found = importlib.util.find_spec(module)
    except (ImportError, ValueError):
        found = None
    if found is None or found.origin is None:
        raise StoreError(f"{directory} was made by {module}:{name}, which is not installed; install its plugin again")
    return module
