"""Costs of runs and of the next one: quality, tokens per label, prices, and curves over n."""

from __future__ import annotations

import json
import math
import shlex
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import quote

from afarm import Row, RunRecord
from afarm.results import EvaluationProtocol, Place, finite_number, listed, sum_costs
from afarm_plugins.view.commands import place_words, quote_command
from afarm_plugins.view.run_table import describe_row, own_settings
from afarm_plugins.view.sources import SeenRun
from afarm_plugins.view.stores import STUDY_PAGE, documents, read_command
from afarm_plugins.view.values import mapping, rows, text

CURVE = "curve.json"
"""The file of `afarm best-of-n` beside its page."""

VENDORS = ("openai", "anthropic")
"""The vendors of genai-prices that judges of the same name ask."""

SPENT = ("calls", "input_tokens", "output_tokens", "dollars", "unpriced_calls")
USES = {"annotate": "training", "evaluate": "evaluation"}
"""The kinds of stages that labels are bought in, by what they are for."""


def describe_costs(runs: Iterable[SeenRun], output_dirs: Sequence[Path], ledger: Place | None = None) -> Row:
    """Describe what the page of costs and plans draws: runs, curves over n, and list prices."""
    finished = [run for run in runs if run.status == "finished"]
    own, alike = own_settings(finished), judged_alike(finished)
    several = [word for place in output_dirs for word in ("--runs", str(place))] if len(output_dirs) > 1 else []
    return {
        "runs": [
            {
                **describe_cost(run),
                "settings": own[run.id],
                "is_compared": run.id in alike,
                "places": shlex.join(place_words(run.output_dir, ledger)),
            }
            for run in finished
        ],
        "curves": list(stored_curves(output_dirs)),
        "prices": list_prices(),
        "command": quote_command("study", "costs", *several, *place_words(output_dirs[0], ledger)),
    }


def judged_alike(runs: Iterable[SeenRun]) -> set[str]:
    """Return the ids of most runs of methods that were judged alike, and of those without a result.

    Others' win rates are no part of one frontier, and a comparison of files trains nothing.
    """
    unjudged, by_protocol = set[str](), dict[str, set[str]]()
    for run in runs:
        if not run.about.get("method"):
            continue
        result = next(iter(run.record.results), None)
        alike = by_protocol.setdefault(EvaluationProtocol.from_row(result.protocol).id, set()) if result else unjudged
        alike.add(run.id)
    return unjudged | max(by_protocol.values(), key=len, default=set())


@cache
def list_prices() -> Sequence[Row]:
    """List the vendors' prices of the judges that afarm has, by judge; empty without genai-prices."""
    try:
        from genai_prices.data_snapshot import get_snapshot
    except ImportError:
        return []
    models = sorted((of.id, model.id) for of in get_snapshot().providers if of.id in VENDORS for model in of.models)
    priced = [(f"{vendor}:{model}", price) for vendor, model in models if (price := listed(vendor, model)) is not None]
    return [{"judge": judge, "input": price.input, "output": price.output} for judge, price in priced]


def describe_cost(run: SeenRun) -> Row:
    """Describe quality and cost of a run that shares nothing: what was reused counts as when it was made.

    `deviation` is the standard deviation of a win over instructions, in points, of the main evaluation.
    """
    row, record = describe_row(run), run.record
    names = ("id", "name", "recipe", "method", "annotator", "judge", "seed", "win_rate", "standard_error", "gold")
    seconds, dollars = sum_costs(record.stages)
    metrics: Mapping[str, Any] = next((r.metrics for r in record.results if "win_rate" in r.metrics), {})
    error, n = finite_number(metrics.get("standard_error")), finite_number(metrics.get("n_instructions"))
    return {
        **{name: row[name] for name in names},
        "seconds": seconds,
        "dollars": dollars,
        "labels": label_costs(record),
        "deviation": None if error is None or not n else error * math.sqrt(n),
    }


def label_costs(record: RunRecord) -> dict[str, Row]:
    """Count the labels, calls and tokens that training and the main evaluation of a run took."""
    found: dict[str, Row] = {}
    for stage in record.stages:
        use = USES.get(text(stage.get("kind")), "")
        labels = finite_number(mapping(stage.get("summary")).get("rows"))
        if use and labels and use not in found:
            spend = mapping(stage.get("spend"))
            found[use] = {"labels": labels, **{name: finite_number(spend.get(name)) or 0 for name in SPENT}}
    return found


def stored_curves(output_dirs: Iterable[Path]) -> Iterable[Row]:
    """Yield the curves over n that `afarm best-of-n` has stored, with the address of their pages."""
    found = documents(output_dirs)
    for address, path in found.items():
        if path.name != CURVE:
            continue
        try:
            points = rows(json.loads(path.read_text(encoding="utf-8")))
        except (OSError, ValueError, RecursionError):  # being written, or no file of afarm's
            continue
        points = [point for point in points if finite_number(point.get("n"))]
        page, text_page = (address.removesuffix(CURVE) + name for name in ("report.html", STUDY_PAGE))
        if points:
            yield {
                "name": path.parent.name,
                "page": quote(page) if page in found else "",
                "command": read_command(found[text_page]) if text_page in found else "",
                "points": [{name: finite_number(value) for name, value in point.items()} for point in points],
            }
