"""The row of a run in the table of runs, and the settings that set it apart from others of its method."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable
from typing import Any

from afarm import RunRecord
from afarm.report import one_line
from afarm.results import RECORD, finite_number, flag_sentences, flatten, is_simulated, sum_costs
from afarm_plugins.view.commands import place_words, quote_command
from afarm_plugins.view.live_record import stopped_why
from afarm_plugins.view.sources import SeenRun
from afarm_plugins.view.values import as_shown, mapping, rows, text

Row = dict[str, Any]

OF_HEADLINE = ("win_rate", "standard_error", "reward", "kl", "length")
"""Figures of a run's headline in its row."""

NO_VARIANTS = ("budget", "method", "seed", "evaluate.label_seed")
"""Settings that make no other experiment of a run, or a repetition of it."""

LONGEST_VALUE = 40
"""Characters of a value that are told."""

READ_LEDGER = ("ledger", "annotators")
"""Commands about a run that read the ledger."""


def describe_row(run: SeenRun) -> Row:
    about, record = run.about, run.record
    headline, config, files = record.section("headline"), about.section("config"), record.section("files")
    results = record.get("results")
    gold = next((mapping(r.get("metrics")) for r in rows(results) if r.get("evaluator") == "gold"), {})
    main = next(iter(rows(results)), {})
    return {
        "id": run.id,
        "name": run.name,
        "output_dir": str(run.output_dir),
        "status": run.status,
        "problem": describe_problem(run),
        "method": text(about.get("method") or main.get("system") or files.get("outputs")),
        "reference": text(main.get("reference") or files.get("reference")),
        **{name: text(about.get(name)) for name in ("recipe", "annotator")},
        "judge": ", ".join(
            dict.fromkeys(name for judge in rows(about.get("judges")) if (name := text(judge.get("identity"))))
        ),
        "judged_by": text(record.get("judged_by")),
        "simulated": is_simulated(about),
        **{name: finite_number(about.get(name)) for name in ("seed", "created")},
        **{name: finite_number(headline.get(name)) for name in OF_HEADLINE},
        **{name: finite_number(about.section("spend").get(name)) for name in ("dollars", "calls")},
        "gold": finite_number(gold.get("gold")),
        "budget": finite_number(config.get("budget")),
        "seconds": sum_seconds(run),
        "stage": describe_current_stage(run),
        "flags": list_flags(record),
    }


def list_flags(run: RunRecord) -> list[str]:
    """List what makes a run's figures doubtful, each once however many evaluators raise it."""
    return list(dict.fromkeys(sentence for result in run.results for sentence in flag_sentences(result.red_flags)))


def describe_problem(run: SeenRun) -> str:
    """Describe a run's problem and its remedy; empty without a problem."""
    live = run.live
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
    stages = run.about.stages
    done = sum("reused" in stage for stage in stages)
    working = next((text(stage.get("stage")) for stage in stages if stage.get("status") == "working"), "")
    return f"{working}, {min(done + 1, len(stages))} of {len(stages)}" if working else f"{done} of {len(stages)}"


def sum_seconds(run: SeenRun) -> float | None:
    """Sum stages' seconds, reused ones as when made, the current one until now; None if unrecorded."""
    stages = run.about.stages
    now = time.time() if run.status == "running" else finite_number(run.live.get("updated")) or 0.0
    begun = [finite_number(stage.get("began")) for stage in stages if stage.get("status") == "working"]
    at_work = sum(max(0.0, now - began) for began in begun if began is not None)
    if not any(begun) and all(finite_number(stage.get("seconds")) is None for stage in stages):
        return None
    return round(sum_costs(stages)[0] + at_work, 1)


def write_run_command(run: SeenRun, *words: str) -> str:
    """Write a command of afarm's about a run, ready to be pasted into a shell."""
    ledger = run.ledger if words[0] in READ_LEDGER else None
    return quote_command(*words, *place_words(run.output_dir, ledger))


def own_settings(runs: Iterable[SeenRun]) -> dict[str, list[str]]:
    """Map run ids to NAME=VALUE settings that most runs of their recipe and method have otherwise."""
    groups: dict[tuple[str, str], dict[str, dict[str, Any]]] = {}
    for run in runs:
        group = groups.setdefault((text(run.about.get("recipe")), text(run.about.get("method"))), {})
        group[run.id] = flatten(run.about.section("config"))
    told: dict[str, list[str]] = {}
    for group in groups.values():
        usual: dict[str, str] = {}
        for name in {name for settings in group.values() for name in settings} - set(NO_VARIANTS):
            values = [settings[name] for settings in reversed(group.values()) if name in settings]
            if any(value != values[0] for value in values):
                usual[name] = Counter(map(as_shown, values)).most_common(1)[0][0]
        for run_id, settings in group.items():
            shown = {name: as_shown(settings[name]) for name in sorted(usual) if name in settings}
            own = [name for name, value in shown.items() if value != usual[name]]
            told[run_id] = [f"{name}={one_line(shown[name], LONGEST_VALUE)}" for name in own]
    return told
