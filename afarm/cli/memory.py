"""`afarm memory`: what each stage of a run holds on a card, by arithmetic."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape

from afarm.cli import completion
from afarm.cli.console import out, print_json
from afarm.cli.options import DEFAULT_RECIPE, RECIPE_HELP, Json
from afarm.core.errors import ConfigError

if TYPE_CHECKING:
    from afarm.backend.memory import Held, Workload
    from afarm.core.config import BackendConfig
    from afarm.core.registry import Component
    from afarm.experiment.recipe import Settings

GB = 10**9

TORCH = "torch"
"""The engine that samples in the process itself."""


def add_to(app: typer.Typer) -> None:
    app.command("memory")(memory)


def memory(
    recipe: Annotated[
        str, typer.Option("--recipe", autocompletion=completion.recipe_words, help=RECIPE_HELP)
    ] = DEFAULT_RECIPE,
    method: Annotated[
        str | None, typer.Option("--method", autocompletion=completion.methods, help="The method, if not the recipe's.")
    ] = None,
    model: Annotated[str | None, typer.Option("--model", help="The base model, if not the recipe's.")] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", help="Change a setting: SECTION.NAME=VALUE; repeatable.")
    ] = None,
    gpus: Annotated[int, typer.Option("--gpus", min=1, help="Processes with a card each; several shard all.")] = 1,
    card: Annotated[float, typer.Option("--card", min=0.1, help="Gigabytes of a card.")] = 80,
    as_json: Json = False,
) -> None:
    """Show what each stage of a run holds on a card, by arithmetic, and what to change if it does not fit."""
    from afarm.backend.memory import PARTS, Workload
    from afarm.backend.model_configs import read_model_config
    from afarm.core.plugins import discover
    from afarm.experiment.recipe import resolve

    plugins = discover()
    given = {name: value for name, value in (("method", method), ("model", model)) if value}
    resolved = resolve(recipe, [given, *(settings or [])], plugins)
    _require_even(resolved, gpus, plugins.get)
    workload = Workload(read_model_config(resolved.run.model), resolved.run.backend, gpus)
    rows = []
    for stage, section, moments in _stages(resolved, workload, plugins.get):
        fullest = max(moments, key=lambda held: held.total)
        fits = fullest.total <= card * GB
        change = "" if fits else _change(fullest, section, resolved.run.backend, gpus, card * GB)
        rows.append(
            {"stage": stage, "moment": fullest.moment, **{name: getattr(fullest, name) for name in PARTS}}
            | {"total": fullest.total, "fits": fits, "change": change}
        )
    if as_json:
        print_json(rows)
        return
    out().print(
        f"[bold]{resolved.recipe}[/] on {gpus} × {card:g} GB, {resolved.run.model}, {resolved.run.backend.dtype}: "
        "GB on each card at the fullest moment, by arithmetic",
        highlight=False,
        soft_wrap=True,
    )
    names = [*PARTS, "total"]
    wide = max(len(f"{row['stage']} ({row['moment']})") for row in rows)
    out().print(" " * wide + "".join(f"{name:>12}" for name in names), highlight=False, soft_wrap=True)
    for row in rows:
        figures = "".join(f"{row[name] / GB:12.1f}" for name in names)
        verdict = "" if row["fits"] else f"  [red]does not fit[/]: {escape(row['change'])}"
        out().print(
            f"{row['stage']} ({row['moment']})".ljust(wide) + figures + verdict, highlight=False, soft_wrap=True
        )


def _require_even(resolved: Settings, gpus: int, component: Any) -> None:
    """Raise `ConfigError` for sizes that a run in so many processes refuses, since they do not divide."""
    from afarm.backend.shares import uneven_sizes

    run = resolved.run
    trained = [component("reward_models", run.reward_model), component("methods", run.method)]
    trained += [component("methods", "sft")] if run.start == "sft" else []
    if problems := [p for one in trained for p in uneven_sizes(one.name, resolved.of(one), gpus, sharded=gpus > 1)]:
        raise ConfigError(problems)


def _stages(resolved: Settings, workload: Workload, component: Any) -> Iterator[tuple[str, str, list[Held]]]:
    """Yield each stage that puts a model on a card: its label, the section of its settings, its moments."""
    from afarm.core.config import OnPolicyConfig, TrainerConfig

    run, method = resolved.run, component("methods", resolved.run.method)
    prompt = _longest_prompt(resolved, method)
    if run.start == "sft":
        tuning: Any = resolved.of(component("methods", "sft"))
        yield "sft", "sft", workload.training(tuning)
    sampled, answered = run.sample, run.evaluate
    batch = sampled.per_device_batch_size, prompt, sampled.max_new_tokens
    yield "sample", "sample", _sampling(resolved, workload, *batch)
    fitted = component("reward_models", run.reward_model)
    is_fitted = fitted.config is not None and issubclass(fitted.config, TrainerConfig)
    if is_fitted:
        fitting: Any = resolved.of(fitted)
        yield "fit-reward", fitted.name, workload.training(fitting, scores=True)
    yield from _method(resolved, workload, method, prompt, is_fitted)
    trains = isinstance(resolved.of(method), OnPolicyConfig | TrainerConfig)
    scored = is_fitted and not trains and "reward_model" in method.load().needs  # best-of-n, of whatever it answers
    batch = answered.per_device_batch_size, prompt, answered.max_new_tokens
    yield "outputs", "evaluate", _sampling(resolved, workload, *batch, scored=scored)
    needs = {need for name in answered.evaluators for need in component("evaluators", name).load().needs}
    if is_fitted and "reward_model" in needs:
        yield "evaluate", "evaluate", workload.evaluation()


def _method(
    resolved: Settings, workload: Workload, method: Component, prompt: int, is_fitted: bool
) -> Iterator[tuple[str, str, list[Held]]]:
    from afarm.core.config import OnPolicyConfig, TrainerConfig

    config: Any = resolved.of(method)
    if isinstance(config, OnPolicyConfig):
        yield f"train {method.name}", method.name, workload.on_policy(config, served=_served(resolved))
    elif isinstance(config, TrainerConfig) and method.name != "sft":
        rows = getattr(config, "per_device_rollout_batch_size", None)  # of a method that samples before it learns
        learning = workload.training(
            config, pairs=getattr(type(config), "learns_pairs", False), scored=rows is not None and is_fitted
        )
        if rows is not None:
            longest: int = getattr(config, "response_length", prompt)
            learning += _sampling(resolved, workload, rows, config.max_length - longest, longest, scored=is_fitted)
        yield f"train {method.name}", method.name, learning


def _sampling(
    resolved: Settings, workload: Workload, rows: int, prompt: int, response: int, *, scored: bool = False
) -> list[Held]:
    """List the moments of sampling, here or by a server."""
    if _served(resolved):
        return workload.served(scored=scored)
    return workload.sampling(rows, prompt, response, scored=scored)


def _served(resolved: Settings) -> bool:
    return not resolved.run.backend.sampler.startswith(TORCH)


def _longest_prompt(resolved: Settings, method: Component) -> int:
    """Tokens of the prompts that are sampled for: the method's limit, or the paper's."""
    return int(getattr(resolved.of(method), "max_prompt_length", 192))


def _change(held: Held, section: str, backend: BackendConfig, gpus: int, card: float) -> str:
    """Say what takes less, by the largest part."""
    parts = {
        "states": held.weights + held.gradients + held.optimizer,
        "activations": held.activations + held.logits,
        "cache": held.cache,
        "gathered": held.gathered,
    }
    largest = max(parts, key=lambda name: parts[name])
    if held.moment == "evaluation":
        return "--set evaluate.evaluators=[win_rate]: the reward model that scores outputs is whole on one card"
    if held.moment in ("sampling", "scoring", "proof") and held.weights + held.gathered > card:
        return _change_of_whole_model(held, backend, card)
    if largest == "cache":
        name = {"sample": "sample.per_device_batch_size", "evaluate": "evaluate.per_device_batch_size"}
        return f"lower {name.get(section, f'{section}.per_device_rollout_batch_size')}, which changes no result"
    if largest == "activations":
        return (
            f"--set {section}.gradient_checkpointing=true, or lower {section}.per_device_train_batch_size"
            " (for training by epochs raise gradient_accumulation_steps as much)"
        )
    if held.moment != "learning" or largest == "gathered":
        return "--set backend.dtype=bfloat16, or sample on a server (backend.sampler)"
    more = "more cards" if gpus > 1 else "--gpus 8"
    return f"{more}, or --set {section}.lora={{}} with --set backend.dtype=bfloat16"


def _change_of_whole_model(held: Held, backend: BackendConfig, card: float) -> str:
    """Say how a model is sampled that is larger than a card."""
    half = "--set backend.dtype=bfloat16, or " if backend.dtype == "float32" and held.total < 2 * card else ""
    if held.gathered:
        return f"{half}a method that samples no shards: each process holds the whole policy while torch samples"
    host = "--set backend.device=cpu for this stage, whose models are whole"
    if not backend.sampler.startswith(TORCH):
        return f"{half}{host}"
    server = "sample on a vLLM server of several cards (--set backend.sampler=vllm@URL)"
    return f"{half}{server}: torch holds the whole model on one card"
