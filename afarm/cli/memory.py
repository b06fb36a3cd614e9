"""`afarm memory`: what each stage of a run holds on a card, by arithmetic."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from afarm.cli import completion
from afarm.cli.console import out, print_json
from afarm.cli.options import DEFAULT_RECIPE, RECIPE_HELP, Json
from afarm.core.errors import ModelError

if TYPE_CHECKING:
    from afarm.backend.memory import Held, Workload
    from afarm.core.registry import Component
    from afarm.experiment.recipe import Settings

SHAPES = {
    "huggyllama/llama-7b": (4096, 11008, 32, 32, 32, 32000),
    "meta-llama/Llama-2-70b-hf": (8192, 28672, 80, 64, 8, 32000),
}
"""Sizes of models that need not be at hand: width, inner width, layers, heads, heads of keys, vocabulary."""

GB = 10**9


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
    from afarm.core.plugins import discover
    from afarm.experiment.recipe import resolve

    plugins = discover()
    given = {name: value for name, value in (("method", method), ("model", model)) if value}
    resolved = resolve(recipe, [given, *(settings or [])], plugins)
    workload = Workload(_config_of(resolved.run.model), resolved.run.backend, gpus)
    rows = []
    for stage, section, moments in _stages(resolved, workload, plugins.get):
        fullest = max(moments, key=lambda held: held.total)
        fits = fullest.total <= card * GB
        rows.append(
            {"stage": stage, "moment": fullest.moment, **{name: getattr(fullest, name) for name in PARTS}}
            | {"total": fullest.total, "fits": fits, "change": "" if fits else _change(fullest, section, gpus)}
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
    out().print(f"{'':28}" + "".join(f"{name:>12}" for name in names), highlight=False, soft_wrap=True)
    for row in rows:
        figures = "".join(f"{row[name] / GB:12.1f}" for name in names)
        verdict = "" if row["fits"] else f"  [red]does not fit[/]: {row['change']}"
        out().print(f"{row['stage']} ({row['moment']})".ljust(28) + figures + verdict, highlight=False, soft_wrap=True)


def _stages(resolved: Settings, workload: Workload, component: Any) -> Iterator[tuple[str, str, list[Held]]]:
    """Yield each stage that puts a model on a card: its label, the section of its settings, its moments."""
    run = resolved.run
    prompt = _longest_prompt(resolved, component("methods", run.method))
    if run.start == "sft":
        tuning: Any = resolved.of(component("methods", "sft"))
        yield "sft", "sft", workload.training(tuning)
    sampled = run.sample
    yield "sample", "sample", workload.sampling(sampled.per_device_batch_size, prompt, sampled.max_new_tokens)
    fitted = component("reward_models", run.reward_model)
    if fitted.config is not None and "gradient_checkpointing" in fitted.config.model_fields:
        fitting: Any = resolved.of(fitted)
        yield "fit-reward", fitted.name, workload.training(fitting, scores=True)
    yield from _method(resolved, workload, component("methods", run.method))
    answered = run.evaluate
    yield "outputs", "evaluate", workload.sampling(answered.per_device_batch_size, prompt, answered.max_new_tokens)


def _method(resolved: Settings, workload: Workload, method: Component) -> Iterator[tuple[str, str, list[Held]]]:
    from afarm.core.config import OnPolicyConfig, TrainerConfig

    config: Any = resolved.of(method)
    if isinstance(config, OnPolicyConfig):
        yield f"train {method.name}", method.name, workload.on_policy(config)
    elif isinstance(config, TrainerConfig) and method.name != "sft":
        learning = workload.training(config, pairs=getattr(type(config), "learns_pairs", False))
        yield f"train {method.name}", method.name, learning


def _longest_prompt(resolved: Settings, method: Component) -> int:
    """Tokens of the prompts that are sampled for: the method's limit, or the paper's."""
    return int(getattr(resolved.of(method), "max_prompt_length", 192))


def _config_of(spec: str) -> Any:
    """Read a model's config from its files or the Hub; of `SHAPES` without either. Raises `ModelError`."""
    from transformers import AutoConfig, LlamaConfig

    from afarm.storage.model_files import local_path

    if spec in SHAPES:
        width, inner, layers, heads, key_heads, vocabulary = SHAPES[spec]
        return LlamaConfig(
            hidden_size=width,
            intermediate_size=inner,
            num_hidden_layers=layers,
            num_attention_heads=heads,
            num_key_value_heads=key_heads,
            vocab_size=vocabulary,
        )
    path = local_path(spec)
    try:
        if path and path.suffix == ".gguf":
            return AutoConfig.from_pretrained(str(path.parent), gguf_file=path.name)
        return AutoConfig.from_pretrained(str(path or spec))
    except (OSError, ValueError) as error:
        cause = str(error).partition("\n")[0].rstrip(".")
        raise ModelError(f"the config of {spec!r} cannot be read: {cause}; check --model") from error


def _change(held: Held, section: str, gpus: int) -> str:
    """Say what takes less, by the largest part."""
    parts = {
        "states": held.weights + held.gradients + held.optimizer,
        "activations": held.activations + held.logits,
        "cache": held.cache,
        "gathered": held.gathered,
    }
    largest = max(parts, key=lambda name: parts[name])
    if largest == "cache":
        name = {"sample": "sample.per_device_batch_size", "evaluate": "evaluate.per_device_batch_size"}
        return f"lower {name.get(section, f'{section}.per_device_rollout_batch_size')}, which changes no result"
    if largest == "activations":
        return (
            f"--set {section}.gradient_checkpointing=true, or lower {section}.per_device_train_batch_size"
            " (for training by epochs raise gradient_accumulation_steps as much)"
        )
    if section in ("sample", "evaluate") or largest == "gathered":
        return "--set backend.dtype=bfloat16, or sample on a server (backend.sampler)"
    more = "more cards" if gpus > 1 else "--gpus 8"
    return f"{more}, or --set {section}.lora={{}} with --set backend.dtype=bfloat16"
