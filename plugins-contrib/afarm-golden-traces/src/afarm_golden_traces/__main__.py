"""`python -m afarm_golden_traces`: check and show, without afarm. `afarm traces` calls the same."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

import numpy as np

from afarm_golden_traces.check import TOLERANCE, check
from afarm_golden_traces.dumps import read_dump
from afarm_golden_traces.traces import METHODS, Trace, TraceError, load_trace

EPILOG = "A dump is a JSON object, from names of quantities to values; give any subset. Exit code 1: a quantity leaves."


def describe_trace(trace: Trace) -> str:
    """A page of text: what is given, and each quantity with its shape and definition."""

    def listed(settings: Mapping[str, object]) -> str:
        return ", ".join(f"{name}={value}" for name, value in settings.items())

    shapes = {
        name: f"{len(value)} weights" if isinstance(value, dict) else " × ".join(map(str, np.shape(value))) or "number"
        for name, value in trace.quantities.items()
    }
    return "\n".join(
        [
            f"{trace.method.name}{f', variant {trace.variant}' if trace.variant else ''}: {trace.method.title}",
            f"variants: {'; '.join(f'{name} ({listed(s)})' for name, s in trace.method.variants.items())}",
            "\nGiven (all of it: show --json)",
            *(f"  {name} = {value}" for name, value in trace.inputs.items()),
            f"  hyperparameters: {listed(trace.hyperparameters)}",
            f"  model: {listed(trace.model)}",
            f"  weights, by transformers' names, of: {', '.join(trace.weights)}",
            "\nQuantities, in order",
            *(f"  {name} [{shapes[name]}]: {says}" for name, says in trace.method.definitions().items()),
            "  second/…: the second pass, all that hangs on the learned weights once more, at the new ones",
        ]
    )


def main(arguments: Sequence[str] | None = None, program: str = "python -m afarm_golden_traces") -> int:
    """Run a command: 0, 1 if a dump leaves the trace, 2 for bad input."""
    parser = argparse.ArgumentParser(program, description="At which quantity does a trainer leave?", epilog=EPILOG)
    commands = parser.add_subparsers(dest="command", required=True)
    checking = commands.add_parser("check", help="hold a trainer's dump against a trace", epilog=EPILOG)
    checking.add_argument("method", help=", ".join(METHODS))
    checking.add_argument("dump", type=Path)
    checking.add_argument("--tolerance", type=float, default=TOLERANCE, help="relative error allowed (%(default)s)")
    showing = commands.add_parser("show", help="show what a trainer is given, and each quantity's definition")
    showing.add_argument("method", nargs="?", default="", help="without it they are listed")
    for command in (checking, showing):
        command.add_argument("--variant", default="", help="another definition of the method: see show")
        command.add_argument("--json", action="store_true", help="print JSON: the report, or the trace itself")
    given = parser.parse_args(arguments)
    try:
        if given.command == "show" and not given.method:
            print("\n".join(f"{name:8}{method.title}" for name, method in METHODS.items()))
            return 0
        trace = load_trace(given.method, given.variant)
        if given.command == "show":
            print(json.dumps(trace.stored, ensure_ascii=False) if given.json else describe_trace(trace))
            return 0
        report = check(given.method, read_dump(given.dump), given.variant, given.tolerance)
    except TraceError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(json.dumps({"follows": report.follows, **asdict(report)}, ensure_ascii=False) if given.json else report)
    return int(not report.follows)


if __name__ == "__main__":
    sys.exit(main())
