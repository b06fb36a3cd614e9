"""Grids that are too large to look at whole."""

from __future__ import annotations

import pytest

from afarm.core.seeding import uniform
from afarm.studies.grid import estimate_distinct


@pytest.mark.parametrize("kinds", [1, 3, 8, 20])
def test_kinds_are_estimated_from_those_that_draws_have_shown(kinds: int) -> None:
    found = []
    for trial in range(200):
        seen = {int(kinds * uniform("kind", trial, draw)) for draw in range(24)}
        found.append(estimate_distinct(len(seen), 24, 1000))
    found.sort()
    assert found[100] == pytest.approx(kinds, rel=0.2)


def test_what_each_draw_has_of_its_own_all_have() -> None:
    assert estimate_distinct(24, 24, 1000) == 1000
    assert estimate_distinct(7, 24, 24) == 7, "all were looked at"
