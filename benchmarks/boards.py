"""How fast boards are: `python -m benchmarks.boards`, part of `make bench`.

100,000 stored annotations, 200 systems on 500 instructions with outputs of a thousand characters or so, to one board
with ranks and differences; and the runs of 200 systems. Each command in a process of its own, interpreter included.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from afarm.core.seeding import uniform
from afarm.evaluation.protocol import EvaluationProtocol

SYSTEMS, INSTRUCTIONS, RUNS = 200, 500, 200
SENTENCE = "The answer depends on what is asked, and a longer one says on what it depends, and why. "
MEASURED = """
import resource, sys
from afarm.cli import main
try:
    main(sys.argv[1:])
except SystemExit as stop:
    assert not stop.code
status = open("/proc/self/status").read() if sys.platform == "linux" else ""
peak = [int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM")]
sys.stderr.write(str(peak[0] if peak else resource.getrusage(resource.RUSAGE_SELF).ru_maxrss))
"""


def write_annotations(path: Path) -> None:
    with path.open("w", encoding="utf-8") as handle:
        for system in range(SYSTEMS):
            for task in range(INSTRUCTIONS):
                draw = uniform("board", system, task)
                row = {
                    "instruction": f"Question {task}: {SENTENCE}",
                    "output_1": f"Reference {task}. {SENTENCE * 12}",
                    "output_2": f"System {system} on {task}.\n- {draw}\n- {SENTENCE * int(1 + 22 * draw)}",
                    "generator_1": "reference",
                    "generator_2": f"system-{system}",
                    "annotator": "judge",
                    "preference": 1 + (draw < (100 + system) / 400),
                }
                handle.write(json.dumps(row) + "\n")


def write_runs(directory: Path) -> None:
    protocol = EvaluationProtocol("pool", "s", "p", "1", {"*": "openai:x"}, 0.0, "sft", "o", "i").to_row()
    for number in range(RUNS):
        metrics = {"win_rate": 20 + number / 4, "standard_error": 1.7, "n_total": 805, "avg_length": 300.0}
        result = {"system": f"system-{number}", "reference": "sft", "evaluator": "win_rate", "metrics": metrics}
        # The settings, stages and versions of a run beside it, of the size that they have.
        rest = {
            "config": {f"setting_{i}": i for i in range(200)},
            "stages": [{"summary": {"rows": i}} for i in range(9)],
        }
        path = directory / "runs" / f"run-{number}"
        path.mkdir(parents=True)
        record = {"name": path.name, "results": [{**result, "protocol": protocol, "red_flags": {}}], **rest}
        (path / "run.json").write_text(json.dumps(record, indent=2))


def measured(*arguments: str) -> tuple[float, float]:
    """Seconds and peak MB of `afarm ARGUMENTS`."""
    begin = time.perf_counter()
    command = [sys.executable, "-c", MEASURED, *arguments]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return time.perf_counter() - begin, int(done.stderr.split()[-1]) / 1024


def boards(repeats: int = 3) -> list[str]:
    """The rows of the table in docs/notes/benchmarks.md."""
    lines = ["| work | seconds | peak memory, MB |", "|---|---|---|"]
    with tempfile.TemporaryDirectory() as scratch:
        annotations = Path(scratch) / "annotations.jsonl"
        write_annotations(annotations)
        write_runs(Path(scratch) / "out")
        size = annotations.stat().st_size / 1e6
        works = {
            f"{SYSTEMS * INSTRUCTIONS:,} annotations ({size:.0f} MB) to a board of {SYSTEMS} systems, with ranks": (
                *("leaderboard", "--annotations", str(annotations), "--format", "csv"),
            ),
            f"`afarm leaderboard` over {RUNS} runs": ("leaderboard", "--output-dir", str(Path(scratch) / "out")),
        }
        for name, arguments in works.items():
            found = [measured(*arguments) for _ in range(repeats)]
            seconds = statistics.median(wall for wall, _ in found)
            lines.append(f"| {name} | {seconds:.2f} | {max(memory for _, memory in found):.0f} |")
    return lines


if __name__ == "__main__":
    sys.stdout.write("\n".join(boards()) + "\n")
