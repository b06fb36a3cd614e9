"""Pairs that people labelled, and the command that calibrates a pool on them."""

from __future__ import annotations

import json
from pathlib import Path

from afarm.core.seeding import uniform

CALIBRATE = ["study", "calibrate", "--recipe", "light.yaml", "--humans", "people.json", "--resamples", "20"]


def write_people(path: Path, count: int = 80) -> None:
    """People like more words, as the judge does, and err in a fifth of the pairs."""
    rows = []
    for n in range(count):
        lengths = 1 + n % 5, 1 + (n // 5) % 4
        better = 1 if lengths[0] >= lengths[1] else 2
        better = 3 - better if uniform("people", n) < 0.2 else better
        outputs = {f"output_{place}": " ".join(["word"] * k) for place, k in enumerate(lengths, 1)}
        names = {"generator_1": f"system {n % 3}", "generator_2": f"system {(n + 1) % 3}"}
        rows.append({"instruction": f"say {n}", **outputs, **names, "preference": better})
    path.write_text(json.dumps(rows))
