"""The row of a run in the table of runs."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from afarm.results import RECORD, finite_number, is_simulated, stopped_why, sum_costs
from afarm_plugins.view.commands import place_words, quote_command
from afarm_plugins.view.sources import SeenRun
from afarm_plugins.view.values import mapping, rows, text

Row = dict[str, Any]

READ_LEDGER = ("ledger", "annotators")
"""Commands about a run that read the ledger."""


def describe_row(run: SeenRun) -> Row:
    """Describe a run in one row; what it does not have is None."""
    about: Mapping[str, Any] = run.about
    record: Mapping[str, Any] = run.record if run.record is not None else {}
    headline, config = mapping(record.get("headline")), mapping(about.get("config"))
    files = mapping(record.get("files"))
    results = record.get("results")
    gold = next((mapping(r.get("metrics")) for r in rows(results) if r.get("evaluator") == "gold"), {})
    main = next(iter(rows(results)), {})
    return {
        "id": run.id,
        "name": run.name,
        "output_dir": str(run.output_dir),
        "status": run.status,
        "problem": describe_problem(run),
        "method": text(about.get("method") or files.get("outputs")),
        "reference": text(main.get("reference") or files.get("reference")),
        "recipe": text(about.get("recipe")),
        "annotator": text(about.get("annotator")),
        "judge": list_judges(about),
        "simulated": is_simulated(about),
        "seed": finite_number(about.get("seed")),
        "win_rate": finite_number(headline.get("win_rate")),
        "standard_error": finite_number(headline.get("standard_error")),
        "gold": finite_number(gold.get("gold")),
        "reward": finite_number(headline.get("reward")),
        "kl": finite_number(headline.get("kl")),
        "length": finite_number(headline.get("length")),
        "dollars": finite_number(mapping(about.get("spend")).get("dollars")),
        "calls": finite_number(mapping(about.get("spend")).get("calls")),
        "budget": finite_number(config.get("budget")),
        "seconds": sum_seconds(run),
        "created": finite_number(about.get("created")),
        "stage": describe_current_stage(run),
    }


def describe_problem(run: SeenRun) -> str:
    """Describe a run's problem and its remedy; empty without a problem."""
    live = run.live or {}
    if run.status == "unreadable":
        return (
            run.problem
            or f"it finished, but its {RECORD} is gone; the same command writes it again: {live.get('command')}"
        )
    if run.status == "stopped":
        why = stopped_why(live) if live.get("status") == "running" else "it was interrupted"
        return f"{why}; the same command goes on: {live.get('command')}"
    if run.status == "failed":
        return text(live.get("error")) or "it failed"
    return run.problem


def describe_current_stage(run: SeenRun) -> str:
    """Describe a run's current stage, as "train ppo, 6 of 9"; empty for a finished run."""
    if run.status == "finished" or not run.live:
        return ""
    stages = mapping(run.live.get("stages"))
    done = sum(mapping(stage).get("status") in ("made", "reused") for stage in stages.values())
    working = next((name for name, stage in stages.items() if mapping(stage).get("status") == "working"), "")
    return f"{working}, {min(done + 1, len(stages))} of {len(stages)}" if working else f"{done} of {len(stages)}"


def sum_seconds(run: SeenRun) -> float | None:
    """Sum the seconds of a run's stages: reused ones count as when made, the current one until now.

    None if no stage records its time.
    """
    if run.status == "finished" and run.record is not None:
        stages: list[Mapping[str, Any]] = run.record.stages
    else:
        stages = [mapping(stage) for stage in mapping((run.live or {}).get("stages")).values()]
    now = time.time() if run.status == "running" else finite_number((run.live or {}).get("updated")) or 0.0
    begun = [finite_number(stage.get("began")) for stage in stages if stage.get("status") == "working"]
    at_work = sum(max(0.0, now - began) for began in begun if began is not None)
    if not any(begun) and all(finite_number(stage.get("seconds")) is None for stage in stages):
        return None
    return round(sum_costs(stages)[0] + at_work, 1)


def list_judges(about: Mapping[str, Any]) -> str:
    """List the identities of a run's judges, each once, as text."""
    names = [text(judge.get("identity")) for judge in rows(about.get("judges"))]
    return ", ".join(dict.fromkeys(filter(None, names)))


def write_run_command(run: SeenRun, *words: str) -> str:
    """Write a command of afarm's about a run, ready to be pasted into a shell."""
    ledger = run.ledger if words[0] in READ_LEDGER else None
    return quote_command(*words, *place_words(run.output_dir, ledger))
