"""The stages of a run that put a model on a card, and what each holds there."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial
from typing import TYPE_CHECKING, Any

from afarm import AfarmError, ConfigError, OnPolicyConfig, TrainerConfig
from afarm.experiments import Components, Plugins, ProcessInfo, Settings, failures, require_method, resolve

if TYPE_CHECKING:
    from afarm_plugins.memory.estimate import Held, Workload

GB = 10**9


@dataclass(frozen=True)
class StageOnCard:
    """A stage that puts a model on a card, with its settings and their section."""

    label: str
    section: str
    config: Any
    moments: Callable[[], list[Held]]

    def fullest(self) -> Held:
        return max(self.moments(), key=lambda held: held.total)


@dataclass(frozen=True)
class Choices:
    """A recipe with its overrides, on as many cards as processes."""

    recipe: str
    overrides: tuple[Any, ...]
    gpus: int
    plugins: Plugins
    offload: bool = False
    _changed: dict[Any, list[StageOnCard]] = field(default_factory=dict, init=False, compare=False, repr=False)

    def settled(self) -> Settings:
        """Return the settings. Raises `ConfigError` for what a run in as many processes would refuse."""
        resolved = resolve(self.recipe, self.overrides, self.plugins, native_dtype=lambda card: "bfloat16")
        if self.offload and self.gpus == 1:
            raise ConfigError("--offload is of shards, and one process has none: add --gpus 2, or more")
        run = resolved.run
        info = ProcessInfo(0, self.gpus, sharded=self.gpus > 1)
        components = Components(self.plugins, resolved, process_info=info)
        if problems := list(failures([components.engine_class])):
            raise ConfigError(problems)
        name, _, address = run.backend.sampler.partition("@")
        samplers = [c for c in self.plugins.registry if c.kind == "samplers" and c.name == name]
        is_placeholder = any(address == sampler.spec != "" for sampler in samplers)  # vllm@URL, as in the help
        problems = [] if is_placeholder else list(failures([components.engine]))
        trained = [components.component("reward_models", run.reward_model)]
        trained += [components.component("methods", "sft")] if run.start == "sft" and run.method != "sft" else []
        problems += [problem for one in trained for problem in components.uneven_sizes(one)]
        problems += failures([lambda: require_method(components, run.method)])
        if problems:
            raise ConfigError(problems)
        return resolved

    def stages(self) -> Iterator[StageOnCard]:
        """Yield each stage that puts a model on a card. Raises as `settled`, or `ModelError` without a config."""
        from afarm_plugins.memory.estimate import Workload

        resolved = self.settled()
        config, counted = _model_config(resolved.run.model)
        workload = Workload(config, resolved.run.backend, self.gpus, counted, self.offload)
        yield from _stages(resolved, workload, self.plugins.get)

    def host_if_held(self, label: str, more: Sequence[str], gpus: int, offload: bool, card: float) -> int | None:
        """Return a process's bytes on the host if a card holds that stage with `more` settings, else None.

        0 if there is no such stage then; None if a run would refuse them.
        """
        key = (*more, gpus, offload)  # many stages try the same
        try:
            if key not in self._changed:
                changed = replace(self, overrides=(*self.overrides, *more), gpus=gpus, offload=offload)
                self._changed[key] = list(changed.stages())
            fullest = [stage.fullest() for stage in self._changed[key] if stage.label == label]
        except AfarmError:
            return None
        return max((held.host for held in fullest), default=0) if all(h.total <= card for h in fullest) else None


@cache
def _model_config(model: str) -> tuple[Any, dict[Any, Any]]:
    """Read a model's config, with a cache for its counts, which most changes share."""
    from afarm.backend import read_model_config

    return read_model_config(model), {}


def _stages(resolved: Settings, workload: Workload, component: Any) -> Iterator[StageOnCard]:
    """Yield each stage that puts a model on a card."""
    run, method = resolved.run, component("methods", resolved.run.method)
    engine = run.backend.sampler.partition("@")[0]
    served = engine != "torch" and not component("samplers", engine).load().runs_here
    prompt = int(getattr(resolved.of(method), "max_prompt_length", 192))  # the method's limit, or the paper's
    if run.start == "sft":
        tuning: Any = resolved.of(component("methods", "sft"))
        yield StageOnCard("sft", "sft", tuning, lambda: workload.training(tuning))
    sampled, answered = run.sample, run.evaluate
    batch = sampled.per_device_batch_size, prompt, sampled.max_new_tokens
    yield StageOnCard("sample", "sample", sampled, lambda: _sampling(served, workload, *batch))
    fitted = component("reward_models", run.reward_model)
    is_fitted = fitted.config is not None and issubclass(fitted.config, TrainerConfig)
    if is_fitted:
        fitting: Any = resolved.of(fitted)
        yield StageOnCard("fit-reward", fitted.name, fitting, lambda: workload.training(fitting, scores=True))
    config: Any = resolved.of(method)
    trains = isinstance(config, OnPolicyConfig | TrainerConfig)
    if trains and method.name != "sft":
        training = partial(_method, config, workload, prompt, is_fitted, served)
        yield StageOnCard(f"train {method.name}", method.name, config, training)
    scored = is_fitted and not trains and "reward_model" in method.load().needs  # best-of-n, of whatever it answers
    answers = answered.per_device_batch_size, prompt, answered.max_new_tokens
    yield StageOnCard("outputs", "evaluate", answered, lambda: _sampling(served, workload, *answers, scored=scored))
    needs = {need for name in answered.evaluators for need in component("evaluators", name).load().needs}
    if is_fitted and "reward_model" in needs:
        yield StageOnCard("evaluate", "evaluate", answered, workload.evaluation)


def _method(config: Any, workload: Workload, prompt: int, is_fitted: bool, served: bool) -> list[Held]:
    """List the moments of training the method."""
    if isinstance(config, OnPolicyConfig):
        return workload.on_policy(config, served=served)
    rows = getattr(config, "per_device_rollout_batch_size", None)  # of a method that samples before it learns
    pairs = getattr(type(config), "learns_pairs", False)
    learning = workload.training(config, pairs=pairs, scored=rows is not None and is_fitted)
    if rows is None:
        return learning
    longest: int = getattr(config, "response_length", prompt)
    return learning + _sampling(served, workload, rows, config.max_length - longest, longest, scored=is_fitted)


def _sampling(
    served: bool, workload: Workload, rows: int, prompt: int, response: int, *, scored: bool = False
) -> list[Held]:
    """List the moments of sampling, here or by a server."""
    if served:
        return workload.served(scored=scored)
    return workload.sampling(rows, prompt, response, scored=scored)
