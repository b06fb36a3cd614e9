"""Pools by their size: members that are drawn, and figures by size worked by hand."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from afarm import Bounded, ConfigError, Findings, FinishedRun, Instruction, JudgedPair, Pair, Preference, StudyRequest
from afarm.testing import check_study
from afarm_plugins.studies.pool_size import DRAW, SIZE, PoolSize, draw_pools
from afarm_plugins.studies.settings import PoolSizeConfig

REQUEST = StudyRequest("ppo", (1,))
SMALL: dict[str, Any] = {"members": "a,b,c,d", "sizes": "1,2,4", "pools": 2, "draws": 3}


def test_pools_of_a_size_differ_and_larger_ones_hold_smaller_ones() -> None:
    members = list("abcdefgh")
    by_size = {size: draw_pools(members, size, 4, seed=3) for size in (1, 2, 4, 8)}
    assert {size: len(pools) for size, pools in by_size.items()} == {1: 4, 2: 4, 4: 4, 8: 1}
    assert by_size[8] == [members]
    for small, large in ((1, 2), (2, 4)):
        assert all(set(one) < set(other) for one, other in zip(by_size[small], by_size[large], strict=True))
    assert set(Counter(m for pool in by_size[4] for m in pool).values()) == {2}, "each is in as many pools"
    assert draw_pools(members, 4, 4, seed=4) != by_size[4]
    assert len(draw_pools(members, 1, 20, seed=3)) == 8, "there are no more"


def test_people_and_pools_judge_the_same_outputs_and_methods_learn_from_pools() -> None:
    runs = PoolSize(PoolSizeConfig(**SMALL, methods="dpo")).grid(REQUEST)
    labelled = [run for run in runs if run.place[DRAW]]
    assert Counter(run.place[SIZE] for run in labelled) == {0: 3, 1: 6, 2: 6, 4: 3}
    assert {run.method for run in labelled} == {"sft"}
    of_all = [run.settings for run in labelled if run.place[SIZE] == 4]
    assert of_all[0][:2] == ("evaluate.annotator=pool", "evaluate.label_noise=0")
    assert [settings[2:] for settings in of_all] == [
        (f"evaluate.label_seed={draw}", "pool.members=[a, b, c, d]") for draw in (1, 2, 3)
    ]
    learned = [run for run in runs if not run.place[DRAW]]
    assert [run.place[SIZE] for run in learned] == [1, 1, 2, 2, 4]
    assert {run.settings[:3] for run in learned} == {
        ("annotate.annotator=pool", "annotate.label_noise=0.25", "evaluate.annotator=crowd")
    }


def finished(wins: Callable[[int, int, int, int], float], **settings: Any) -> tuple[PoolSize, list[FinishedRun]]:
    """Runs whose label of pair n, of ten, is `wins(size, pool, draw, n)`, and whose win rate is ten times the size."""
    study = PoolSize(PoolSizeConfig(**SMALL, **settings))

    def pairs(size: int, pool: int, draw: int) -> Sequence[JudgedPair]:
        made = [Pair(Instruction(f"task {n}"), "one", "two") for n in range(10)]
        return [JudgedPair(pair, Preference(pair.id, wins(size, pool, draw, n))) for n, pair in enumerate(made)]

    return study, [
        FinishedRun(run, run.label, {"win_rate": 10.0 * run.place[SIZE]}, pairs=lambda p=run.place: pairs(*p.values()))
        for run in study.grid(REQUEST)
    ]


def table(found: Findings, name: str) -> list[list[Any]]:
    [one] = [table for table in found.tables if table.name == name]
    return [list(row) for row in one.rows]


def test_figures_are_means_over_pools() -> None:
    # People always choose the second. Of size 1, pool 1 does so too and pool 2 in six pairs of ten; of size 2 both do
    # in eight; the pool of all does in two labels of three.
    def wins(size: int, pool: int, draw: int, pair: int) -> float:
        right = {0: 10, 1: {1: 10, 2: 6}.get(pool, 0), 2: 8, 4: 10 if draw < 3 else 0}[size]
        return float(pair < right)

    study, runs = finished(wins)
    rows = {row[0]: row[1:] for row in table(study.analyse(runs), "pools")}
    pools, agreement, bias, variance, least, most = rows[1]
    assert (pools, agreement.value, least, most) == (2, 80, 60, 100)
    assert (bias.value, variance.value) == (20, 0)
    assert (agreement.low, agreement.high) == (0, 100), "two pools so far apart tell little"
    assert rows[2][:2] == [2, Bounded(80, 80, 80)]
    # The mode of three is right. Beside a right and a wrong one each right label errs by half, beside two right ones
    # the wrong one errs.
    assert (rows[4][0], rows[4][1].value, rows[4][2].value) == (1, pytest.approx(200 / 3), 0)
    assert rows[4][3].value == pytest.approx(200 / 3)
    assert rows[4][1].low is not None, "of one pool, over pairs"
    halfway = study.analyse([run for run in runs if run.run.place[SIZE]])
    assert [row[2] for row in table(halfway, "pools")] == [None] * 3, "without people there is no agreement"


def test_what_methods_learn_is_tabled_by_size() -> None:
    study, runs = finished(lambda *_: 1.0, methods="dpo,ppo")
    rows = table(study.analyse(runs), "methods")
    assert [row[:3] for row in rows] == [[m, n, pools] for m in ("dpo", "ppo") for n, pools in ((1, 2), (2, 2), (4, 1))]
    assert [row[3].value for row in rows] == [10, 20, 40] * 2
    check_study(study)
    nothing = study.analyse([])
    assert (list(nothing.tables), list(nothing.plots)) == ([], [])


@pytest.mark.parametrize("sizes", ["5", "0", "two"])
def test_sizes_are_numbers_of_members(sizes: str) -> None:
    with pytest.raises(ConfigError, match="sizes: "):
        PoolSize(PoolSizeConfig(**{**SMALL, "sizes": sizes}))
