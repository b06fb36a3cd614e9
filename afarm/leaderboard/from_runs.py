"""Several systems' runs as one board: how they stand against the reference they share."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from afarm.core.seeding import digest
from afarm.evaluation.red_flags import flag_sentences
from afarm.storage.disk import write_json
from afarm.storage.text import markdown


@dataclass(frozen=True, slots=True)
class Standing:
    """A system against `reference`, in percent: the mean over `seeds`.

    `standard_error` is that of the mean over seeds, or, with one, the evaluation's over instructions. `differences`:
    other evaluators' figures less the reference's. `length` in characters; `seconds` of training and sampling that were
    the system's own, reused stages at what they took when they were made. `prefers_longer` and `prefers_lists` are the
    judge's shares of choices for the longer output and the one with a list, `flags` what the guards said of any seed.
    """

    system: str
    reference: str
    win_rate: float
    standard_error: float | None
    seeds: tuple[int, ...]
    win_rates: tuple[float, ...]
    differences: Mapping[str, float] = field(default_factory=dict)
    length: float | None = None
    seconds: float = 0.0
    prefers_longer: float | None = None
    prefers_lists: float | None = None
    flags: tuple[str, ...] = ()


def standings(records: Iterable[Mapping[str, Any]]) -> list[Standing]:
    """One for each system of `records` (as `run.json` holds them), the highest win rate first."""
    by_system: dict[str, list[Mapping[str, Any]]] = {}
    for record in records:
        by_system.setdefault(record["method"], []).append(record)
    found = [_standing(system, runs) for system, runs in by_system.items()]
    return sorted(found, key=lambda standing: -standing.win_rate)


def _standing(system: str, runs: Sequence[Mapping[str, Any]]) -> Standing:
    reference = runs[0]["results"][0]["reference"]
    main = [_main_metrics(run) for run in runs]
    win_rates = [metrics["win_rate"]["win_rate"] for metrics in main]
    error = main[0]["win_rate"]["standard_error"]
    if len(runs) > 1:
        error = statistics.stdev(win_rates) / math.sqrt(len(runs))
    others = dict.fromkeys(name for metrics in main for name in metrics if name != "win_rate")
    gained = {name: [_difference(metrics, name) for metrics in main] for name in others}
    differences = {
        name: statistics.fmean(values) for name, values in gained.items() if not any(map(math.isnan, values))
    }
    lengths = [metrics["win_rate"]["avg_length"] for metrics in main]
    own = (f"train {system}", f"outputs {system}")
    seconds = [sum(s["seconds"] for s in run["stages"] if s["stage"] in own) for run in runs]
    return Standing(
        system,
        reference,
        statistics.fmean(win_rates),
        error,
        tuple(run["seed"] for run in runs),
        tuple(win_rates),
        differences,
        statistics.fmean(lengths),
        statistics.fmean(seconds),
        _taste(runs, "prefers_longer"),
        _taste(runs, "prefers_lists"),
        tuple(dict.fromkeys(flag for run in runs for flag in flag_sentences(run["results"][0].get("guards")))),
    )


def _taste(runs: Sequence[Mapping[str, Any]], name: str) -> float | None:
    """The mean over seeds of what the judge prefers, of those where its choices tell."""
    known = [(run["results"][0].get("guards") or {}).get(name) for run in runs]
    return statistics.fmean(figure["value"] for figure in known if figure) if any(known) else None


def _difference(metrics: Mapping[str, Mapping[str, Any]], name: str) -> float:
    """An evaluator's figure less the reference's; NaN where it has none."""
    value = metrics.get(name, {}).get(f"{name}_difference")
    return math.nan if value is None else float(value)


def _main_metrics(run: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """The figures of each evaluator against the first reference."""
    reference = run["results"][0]["reference"]
    return {result["evaluator"]: result["metrics"] for result in run["results"] if result["reference"] == reference}


def account_of(runs: Sequence[str]) -> str:
    """The name under which these runs are compared and paid for: the same command goes on with the same budget."""
    return f"compare-{digest(sorted(runs), length=8)}"


def write_board(
    path: Path,
    found: Sequence[Standing],
    records: Sequence[Mapping[str, Any]],
    command: str,
    left_out: Mapping[str, str],
) -> Path:
    """Write the board as Markdown at `path`, and as JSON beside it. Returns `path`."""
    names = [record["name"] for record in records]
    path.parent.mkdir(parents=True, exist_ok=True)
    rows = [asdict(standing) for standing in found]
    write_json(path.with_suffix(".json"), {"command": command, "runs": names, "standings": rows, "left_out": left_out})
    path.write_text(_markdown(found, command, left_out), encoding="utf-8")
    return path


TASTES = ("longer", "lists")
"""What the columns of the judge's taste are called."""


def tastes(standing: Standing) -> list[str]:
    """The judge's taste as it is written; empty where its choices do not tell."""
    return ["" if v is None else f"{v:.2f}" for v in (standing.prefers_longer, standing.prefers_lists)]


def compared_figures(found: Sequence[Standing]) -> list[str]:
    """The evaluators beside the win rate that some standing has a difference of, in their order."""
    return list(dict.fromkeys(name for standing in found for name in standing.differences))


def _markdown(found: Sequence[Standing], command: str, left_out: Mapping[str, str]) -> str:
    extras = compared_figures(found)
    gains = [f"{name} gained" for name in extras]
    head = ["system", "reference", "win rate", "± SE", *gains, "characters", *TASTES, "seeds"]
    lines = [f"`{command}`", "", f"| {' | '.join(head)} |", "|" + "---|" * len(head)]
    for s in found:
        error = "" if s.standard_error is None else f"{s.standard_error:.1f}"
        gained = ["" if (v := s.differences.get(name)) is None else f"{v:+.3f}" for name in extras]
        length = "" if s.length is None else f"{s.length:.0f}"
        cells = [s.system, s.reference, f"{s.win_rate:.1f}", error, *gained, length, *tastes(s)]
        cells.append(", ".join(map(str, s.seeds)))
        lines.append(f"| {' | '.join(cells)} |")
    lines += ["", *(f"Flag: {s.system}: {markdown(flag)}" for s in found for flag in s.flags)]
    lines += ["", *(f"Left out: {name}: {why}" for name, why in left_out.items())]
    return "\n".join(lines).rstrip() + "\n"
