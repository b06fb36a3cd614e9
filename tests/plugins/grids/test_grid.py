"""Grids that are too large to look at whole."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from afarm.experiment.studies.progress import read_checkpoints
from afarm_plugins.grids.grid import count_alike


@pytest.mark.parametrize(
    ("seen", "of_all"),
    [([[1], [1], [2], [2]], 50), ([[1, 1], [2, 2]], 10), ([[1, 2], [1, 2]], 5), ([[1, 1, 2, 2]], 1)],
    ids=["each run's own", "shared by a seed", "shared by a place", "shared by all"],
)
def test_stages_of_a_grid_are_counted_from_two_places_of_two_seeds(seen: list[list[int]], of_all: int) -> None:
    """Two of five places, for two of ten seeds."""
    assert sum(count_alike(Counter(seeds), 10 / 2, 5 / 2) for seeds in seen) == pytest.approx(of_all)


def test_checkpoints_are_read_from_what_training_logged(tmp_path: Path) -> None:
    rows = [
        {"stage": "train", "step": 20, "objective/kl": 0.5, "objective/scores": 1.0},
        {"stage": "train", "step": 20, "validation/win_rate": 99.0, "validation/standard_error": 2.0},
        {"stage": "train", "step": 30, "objective/kl": 0.7},
        {"stage": "fit-reward", "step": 40, "validation/win_rate": 1.0},
        {"stage": "train", "step": 10, "validation/win_rate": 55.0, "objective/kl": "NaN"},
        {"stage": "train", "step": 20, "objective/kl": 0.6},
    ]
    path = tmp_path / "metrics.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    late = {"step": 20.0, "win_rate": 99.0, "kl": 0.6, "reward": 1.0, "win_rate_low": 95.08, "win_rate_high": 100.0}
    assert read_checkpoints(path) == [{"step": 10.0, "win_rate": 55.0}, pytest.approx(late)]
    assert read_checkpoints(tmp_path / "none.jsonl") == []
