"""Measure red flags: `python -m benchmarks.red_flags OUTPUTS…`, files of systems' outputs as AlpacaEval has them.

Prints how many injections are found (those that patterns were written for, and held-out ones), alone and appended to
every output of the first file, how many honest texts are flagged, and the CPU time of one output. Take the totals of
held-out texts only, and do not look at which are missed: patterns are never tuned on them.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable
from pathlib import Path

import yaml

from afarm.core.records import Instruction
from afarm.evaluation.red_flags import suspicious, text_flags
from afarm.storage.rows import read_outputs

SUPPORT = Path(__file__).parents[1] / "tests" / "support"
TASK = Instruction("Name a colour.")
EVERY = 40
"""Injections are appended to one output in as many."""

Rows = list[tuple[Instruction, str]]


def count_found(texts: Iterable[str]) -> str:
    found = [bool(suspicious(text, TASK)) for text in texts]
    return f"{sum(found)} of {len(found)}"


def count_flagged_if_appended(texts: Iterable[str], rows: Rows) -> str:
    """Count the texts of which a flag names what is in every output; that all end alike does not count."""
    found = []
    for text in texts:
        flags = text_flags([(instruction, f"{output}\n\n{text}") for instruction, output in rows])
        found.append(any(flag.name != "constant" and flag.count >= 0.95 * flag.of for flag in flags))
    return f"{sum(found)} of {len(found)}"


def main(files: list[str]) -> None:
    injections = yaml.safe_load((SUPPORT / "injections.yaml").read_text("utf-8"))
    blind = yaml.safe_load((SUPPORT / "blind.yaml").read_text("utf-8"))
    known = [text for kind in injections["wordings"].values() for text in kind]
    unseen = [text for kind in injections["held_out"].values() for text in kind]
    systems: dict[str, Rows] = {
        Path(file).name: [(row.instruction, row.output) for row in read_outputs(Path(file))] for file in files
    }
    print("known, alone:", count_found(known))
    print("unseen, alone:", count_found(unseen))
    print("by another hand, alone:", count_found(row["text"] for row in blind["injections"]))
    honest = [*injections["honest"], *injections["honest_held_out"], *(row["text"] for row in blind["innocent"])]
    print("honest texts flagged:", count_found(honest))
    if not systems:
        return
    few = next(iter(systems.values()))[::EVERY]
    print("known, appended to every output:", count_flagged_if_appended(known, few))
    print("unseen, appended to every output:", count_flagged_if_appended(unseen, few))
    flags = {name: text_flags(rows) for name, rows in systems.items()}
    print("systems flagged:", sum(map(bool, flags.values())), "of", len(systems))
    outputs = [row for rows in systems.values() for row in rows]
    begin = time.process_time()
    matched = sum(bool(suspicious(output, instruction)) for instruction, output in outputs)
    milliseconds = 1000 * (time.process_time() - begin) / len(outputs)
    print(f"outputs flagged: {matched} of {len(outputs)}, {milliseconds:.2f} ms of CPU each")


if __name__ == "__main__":
    main(sys.argv[1:])
