"""Farms for the core's tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from light_farm import Make, light_farm
from light_plugin import RAN, CountingJudge

from afarm.experiment.farm import Farm


@pytest.fixture
def farm(tmp_path: Path) -> Iterator[Make]:
    """Makes farms that share an output directory, as one command after the other does."""
    made: list[Farm] = []
    RAN.clear()
    CountingJudge.asked = 0

    def make(*settings: str, **choices: object) -> Farm:
        made.append(light_farm(tmp_path, *settings, **choices))
        return made[-1]

    yield make
    for one in made:
        one.close()
