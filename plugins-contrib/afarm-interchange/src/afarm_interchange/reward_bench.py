"""RewardBench's files of results, as the package `rewardbench` 0.1.4 writes them.

| file | holds |
|---|---|
| `eval-set/OWNER/NAME.json` | `model`, `model_type`, `chat_template`, and the share of each subset |
| `eval-set-scores/OWNER/NAME.json` | columns `id`, `subset`, `text`, `scores`, `num_correct`, `results` (version 2) |
| `OWNER/NAME.json` | `accuracy`, `num_prompts`, and the subsets in `extra_results` (pairs) |
| `OWNER/NAME_outputs.jsonl` | `prompt`, `results`, `scores_chosen`, `scores_rejected`, the two texts (pairs) |
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import PurePosixPath
from typing import Any

from afarm import DataError, Row
from afarm.results import finite_number, json_text
from afarm_interchange.systems import BenchRow, System

CUSTOM = "Custom Classifier"
"""RewardBench's type of a model that gives no scores."""
SCORED = "Seq. Classifier"
GENERATIVE = "Generative RM"
NO_FIGURES = {"model", "model_type", "model_beaker", "ref_model", "chat_template", "tokenizer", "extra_results"}
SUBSET = "score of "


def files_of(system: System, id: str) -> dict[PurePosixPath, str]:
    """Return the text of each file of a measured judge or reward model, by its place.

    Raises `DataError` for another system, and for a file of measured judges without rows.
    """
    if not any(figure.name == "score" for figure in system.evaluations[0].figures):
        raise DataError(
            f"{system.name}: is no measured judge or reward model, which RewardBench's files are of: `afarm judge "
            "bench FILE --reward-model NAME --output bench.json` measures one"
        )
    if not system.rows:
        raise DataError(f"{system.name}: has figures and no rows: `afarm judge bench … --output FILE` keeps both")
    subsets = {
        figure.name.removeprefix(SUBSET): figure.value / 100
        for figure in system.evaluations[0].figures
        if figure.name.startswith(SUBSET)
    }
    kind = SCORED if system.name.startswith("reward:") else GENERATIVE
    head = {"model": id, "model_type": kind, "chat_template": None}
    named = PurePosixPath(f"{id}.json")
    if system.rows[0].label is None:
        columns = _columns(system.name, system.rows)
        return {"eval-set" / named: _dump({**head, **subsets}), "eval-set-scores" / named: _dump({**head, **columns})}
    rows = [_pair_row(system.name, row, row.right[0]) for row in system.rows if row.right]
    if not rows:
        raise DataError(f"{system.name}: all its pairs are ties, and RewardBench has a better answer in each")
    summary = {
        "accuracy": sum(row["results"] for row in rows) / len(rows),
        "num_prompts": len(rows),
        "model": id,
        "ref_model": None,
        "tokenizer": None,
        "chat_template": None,
        "extra_results": _by_subset(rows) or None,
    }
    outputs = "".join(json_text(row) + "\n" for row in rows)
    return {named: _dump(summary), PurePosixPath(f"{id}_outputs.jsonl"): outputs}


def _by_subset(rows: Sequence[Row]) -> dict[str, float]:
    found: dict[str, list[float]] = {}
    for row in rows:
        found.setdefault(row["subset"], []).append(row["results"])
    return {name: sum(values) / len(values) for name, values in found.items()} if len(found) > 1 else {}


def _dump(value: Mapping[str, Any]) -> str:
    return json_text(value, indent=4, sort_keys=True) + "\n"


def _columns(name: str, rows: Sequence[BenchRow]) -> dict[str, list[Any]]:
    """Return RewardBench 2's columns: the right answers first, and a score of each answer."""
    return {
        "id": [row.id for row in rows],
        "subset": [row.subset for row in rows],
        "prompt": [row.prompt for row in rows],
        "text": [row.outputs for row in rows],
        "num_correct": [len(row.right) for row in rows],
        "scores": [row.judges[name] for row in rows],
        "results": [row.credit[name] for row in rows],
    }


def _pair_row(name: str, row: BenchRow, better: int) -> Row:
    return {
        "prompt": row.prompt,
        "results": row.credit[name],
        "scores_chosen": None,
        "scores_rejected": None,
        "text_chosen": row.outputs[better],
        "text_rejected": row.outputs[1 - better],
        "id": row.id,
        "subset": row.subset,
    }


# ----------------------------------------------------------------------------------------------------------- reading


def is_results(document: object) -> bool:
    """Tell RewardBench's results from other JSON: a model with shares beside it."""
    if not isinstance(document, Mapping) or not isinstance(document.get("model"), str):
        return False
    return "num_prompts" in document or ("chat_template" in document and any(_shares(document)))


def _shares(document: Mapping[str, Any]) -> Iterator[str]:
    for name, value in document.items():
        if name not in NO_FIGURES and finite_number(value) is not None:
            yield name


def read_figures(document: Mapping[str, Any], where: str) -> Iterator[Row]:
    """Yield a row for each figure of a results file. Raises `DataError` for a share that cannot be one."""
    further = document.get("extra_results")
    shares = {
        **(further if isinstance(further, Mapping) else {}),
        **{name: document[name] for name in _shares(document)},
    }
    count = shares.pop("num_prompts", None)
    for name, value in shares.items():
        if (share := finite_number(value)) is None or not -0.01 <= share <= 1.01:
            raise DataError(f"{where}: field {name!r} is {value!r}; RewardBench's figures are shares from 0 to 1")
        yield {
            "system": document["model"],
            "evaluation": "RewardBench" if count is None else f"RewardBench, {count} prompts",
            "metric": name,
            "value": 100 * share,
            "unit": "percent",
        }
