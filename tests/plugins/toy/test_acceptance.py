"""The acceptance bounds of the toy world, which name facts about data, base and annotators alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from afarm import Farm
from afarm_plugins.toy.frozen import base_directory
from tools.toy.acceptance import BOUNDS, MeasuredBase, failures, load, measure_sft

WITHIN = {name: (bound.least + bound.most) / 2 for name, bound in BOUNDS.items()}


def test_bounds_hold_inside_and_break_outside() -> None:
    assert failures(WITHIN) == []
    for name, bound in BOUNDS.items():
        assert failures({**WITHIN, name: bound.least}) == failures({**WITHIN, name: bound.most}) == []
        for value in (bound.least - 0.01, bound.most + 0.01):
            (problem,) = failures({**WITHIN, name: value})
            assert problem.startswith(f"{name}: {value:.3g} is not from")
        beyond = bound.most + 0.09 * (bound.most - bound.least)
        assert failures({**WITHIN, name: beyond})
        assert not failures({**WITHIN, name: beyond}, slack=0.1)


def test_a_figure_that_is_missing_or_no_number_is_a_failure() -> None:
    assert len(failures({})) == len(BOUNDS)
    assert len(failures({**WITHIN, "SFT's gold above the base's": float("nan")})) == 1


def test_a_base_that_follows_is_not_accepted() -> None:
    first = {"base's win rate against SFT": 56.1, "SFT's gold above the base's": -0.449}  # its base follows
    broken = failures({**WITHIN, **first, "right cores of the base in running text": 0.016})
    assert [problem.partition(":")[0] for problem in broken] == [*first, "right cores of the base in running text"]


SLACK = 0.1
"""The share of a bound's width by which another machine's last bits may move a figure."""


@pytest.fixture(scope="module")
def base() -> MeasuredBase:
    return MeasuredBase.of(*load(base_directory(2)))


def test_the_base_and_the_recipes_sft_keep_their_bounds(base: MeasuredBase, tmp_path: Path) -> None:
    with Farm("toy", output_dir=tmp_path, progress=False) as farm:
        sft = farm.sft()
    assert failures({**base.figures, **measure_sft(base, cast(Any, sft).model)}, slack=SLACK) == []
