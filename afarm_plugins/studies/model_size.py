"""The study `model-size`: are methods worth as much on larger base models?

All systems are compared with the data set's own outputs, so that win rates on different base models can be held beside
each other. The gain of a method is over SFT of the same base model.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import PurePosixPath
from typing import Any

from afarm import (
    Bounded,
    ConfigError,
    Findings,
    FinishedRun,
    ModelError,
    Study,
    StudyPlot,
    StudyRequest,
    StudyRun,
    StudyTable,
)
from afarm_plugins.studies.over_seeds import draw_lines, gap_by_seed, grouped, measured_figures, over_seeds, say_highest
from afarm_plugins.studies.settings import ModelSizeConfig, split_names

MODEL, METHOD, SFT = "model", "method", "sft"


class ModelSize(Study):
    """Win rates and gains of methods by the size of the base model."""

    never_opened = ("models",)

    def __init__(self, config: ModelSizeConfig):
        self.methods = split_names(f"{SFT},{config.methods}")
        self.models = short_names(split_names(config.models) if config.models else [])
        self.sizes: dict[str, int | None] = {}

    def grid(self, request: StudyRequest) -> Sequence[StudyRun]:
        if len(self.models) < 2:
            raise ConfigError(
                "--models: sizes are compared: name two base models or more, such as --models small,large"
            )
        return [
            StudyRun(method, seed, {MODEL: name, METHOD: method}, (f"model={spec}", "evaluate.reference=data"))
            for (name, spec), method, seed in product(self.models.items(), self.methods, request.seeds)
        ]

    def look_up(self) -> Mapping[str, Any]:
        return {name: read_parameter_count(spec) for name, spec in self.models.items()}

    def know(self, facts: Mapping[str, Any]) -> None:
        self.sizes = {name: size for name, size in facts.items() if isinstance(size, int) and 0 < size < 2**63}

    def analyse(self, finished: Sequence[FinishedRun]) -> Findings:
        sizes = {name: self.sizes.get(name) for name in dict.fromkeys(done.run.place[MODEL] for done in finished)}
        return size_findings(finished, sizes) if finished else Findings()


def short_names(specs: Sequence[str]) -> dict[str, str]:
    """Name models by the last part of their spec; by the whole one if two share that."""
    lasts = [PurePosixPath(spec).name.removesuffix(".gguf") for spec in specs]
    return {last if lasts.count(last) == 1 else spec: spec for last, spec in zip(lasts, specs, strict=True)}


def read_parameter_count(spec: str) -> int | None:
    """Return the number of a base model's parameters, shared ones once; None if its config cannot be read."""
    import torch
    from transformers import AutoModelForCausalLM

    from afarm.backend import read_model_config

    try:
        with torch.device("meta"):
            model: Any = AutoModelForCausalLM.from_config(read_model_config(spec))
    except (ModelError, ValueError):
        return None
    return sum(parameter.numel() for parameter in model.parameters())


def size_findings(finished: Sequence[FinishedRun], sizes: Mapping[str, int | None]) -> Findings:
    """Table and plot win rates and gains by the parameters of base models."""
    figures, groups = measured_figures(finished), grouped(finished, MODEL, METHOD)
    columns = {MODEL: "", "parameters": ",d", METHOD: "", "seeds": "d", **dict(figures.values()), "over SFT": "+.1f"}
    models = sorted(sizes, key=lambda name: sizes[name] or 0)
    is_known = all(sizes.values())
    rates: dict[str, list[tuple[float | str, Bounded]]] = {}
    gains: dict[str, list[tuple[float | str, Bounded]]] = {}
    rows = []
    for method, name in product(dict.fromkeys(done.run.method for done in finished), models):
        runs, size = groups.get((name, method), ()), sizes[name]
        if not runs:
            continue
        gain = gap_by_seed(runs, groups.get((name, SFT), ())) if method != SFT else None
        rows.append([name, size, method, len(runs), *(over_seeds(runs, figure) for figure in figures), gain])
        at = float(size) if is_known and size else name
        if (rate := over_seeds(runs, "win_rate")) is not None:
            rates.setdefault(method, []).append((at, rate))
        if gain is not None:
            gains.setdefault(method, []).append((at, gain))
    across = "parameters" if is_known else MODEL
    plots = [
        StudyPlot(name, title, across, y_title, draw_lines(lines, is_known), is_known, level=level)
        for name, title, y_title, lines, level in (
            ("win-rates", "Win rate by base model", "win rate, %", rates, 50),
            ("gains", "Gain over SFT by base model", "points over SFT", gains, 0),
        )
        if lines
    ]
    title, notes = "Methods by base model, with 95% intervals", list(NOTES)
    if unknown := [name for name, size in sizes.items() if size is None]:
        notes.append(f"The parameters of {', '.join(unknown)} are not known: no config could be read.")
    table = StudyTable("model-size", title, columns, rows)
    return Findings([table], plots, notes, answer=say_highest(table))


NOTES = [
    "All win rates are over the data set's own outputs. Over SFT is the difference in win rate from SFT of the same "
    "base model, paired by seed.",
    "Base models differ in more than their size, and settings that suit one may not suit another: tune each "
    "(afarm tune --model) before a method is said to be worth more on one of them.",
]
