"""Over-optimisation: grids, and peaks and falls that are known because the curves were made up."""

from __future__ import annotations

import math
from typing import Any

import pytest

from afarm import Bounded, ConfigError, Findings, FinishedRun, Study, StudyRequest
from afarm_plugins.studies.labels import Labels
from afarm_plugins.studies.over_optimization import LabelNoise, OverOptimization, fit_peak
from afarm_plugins.studies.settings import LabelNoiseConfig, OverOptimizationConfig


def table(findings: Findings, name: str) -> list[dict[str, Any]]:
    [found] = [table for table in findings.tables if table.name == name]
    return [dict(zip(found.columns, row, strict=True)) for row in found.rows]


def finished(study: Study, rate: Any, seeds: tuple[int, ...] = (1, 2, 3)) -> list[FinishedRun]:
    """Every run of the grid, with the win rate that `rate` gives (labels, reach, seed)."""
    return [
        FinishedRun(
            run,
            run.label,
            {
                "win_rate": rate(str(run.place["labels"]), int(run.place["reach"]), run.seed),
                "reward": math.log(run.place["reach"]),
                "gold": 0.5,
                **({"kl": run.place["reach"] / 20} if run.method == "ppo" else {}),
            },
        )
        for run in study.grid(StudyRequest("ppo", seeds))
    ]


def test_each_reach_is_a_run_under_each_label() -> None:
    study = OverOptimization(
        OverOptimizationConfig(methods="best_of_n,ppo", n="4,1", steps="20", labelled_by="pool+0.25,crowd")
    )
    runs = study.grid(StudyRequest("ppo", (1, 2)))
    assert len(runs) == 2 * 2 * 2 + 2 * 2
    assert runs[0].settings == (
        "annotate.annotator=pool",
        "annotate.label_noise=0.25",
        "evaluate.annotator=pool",
        "best_of_n.n=1",
    )
    assert {run.place["labels"] for run in runs} == {"pool + 25% flipped", "crowd"}


def test_along_checkpoints_one_run_goes_as_far_as_all_and_its_checkpoints_are_the_points() -> None:
    study = OverOptimization(
        OverOptimizationConfig(
            methods="ppo,best_of_n", n="1,4", steps="20,80,200", labelled_by="pool", along="checkpoints"
        )
    )
    runs = study.grid(StudyRequest("ppo", (1, 2)))
    long = [run for run in runs if run.method == "ppo"]
    assert [(run.seed, run.place["reach"]) for run in long] == [(1, 200), (2, 200)]
    assert long[0].settings[-3:] == ("ppo.total_steps=200", "ppo.checkpoint=best", "ppo.save_steps=20")
    assert len(runs) == 2 + 2 * 2, "best-of-n has runs of its own"
    rates = {20: 54.0, 80: 60.0, 140: 58.0, 200: 51.0}
    done = [
        FinishedRun(
            run,
            run.label,
            {"win_rate": 99.0},
            [{"step": float(step), "win_rate": rate + 4 * run.seed, "kl": step / 20} for step, rate in rates.items()],
        )
        for run in long
    ]
    findings = study.analyse(done)
    [peak] = table(findings, "peaks")
    assert (peak["best reach"], peak["last reach"], peak["fall to it"]) == (80, 200, Bounded(-9, -9, -9))
    assert peak["win rate there"].value == 66
    assert [row["reach"] for row in table(findings, "curves")] == [20, 80, 140, 200]
    assert any("checkpoints of one run" in note for note in findings.notes)
    assert study.analyse([]).notes == []


def test_label_noise_is_the_product_of_shares_and_annotators() -> None:
    study = LabelNoise(LabelNoiseConfig(noise="0,0.35", annotators="pool,gpt4_1"))
    assert study.labels == [Labels("pool", 0), Labels("pool", 0.35), Labels("gpt4_1", 0), Labels("gpt4_1", 0.35)]


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        ({"methods": "dpo"}, "'dpo' is none that goes further"),
        ({"n": "1,0"}, "n: '0': whole numbers from 1"),
        ({"steps": ""}, "steps: '': whole numbers from 1"),
        ({"labelled_by": "pool+0.6"}, "'pool\\+0.6'"),
        ({"labelled_by": "pool+x"}, "such as pool\\+0.25"),
    ],
)
def test_what_is_no_grid_is_refused(config: dict[str, str], reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        OverOptimization(OverOptimizationConfig(**config))


@pytest.mark.parametrize("share", ["17.5", "0.6", "nan", "a quarter", ""])
def test_a_share_that_is_none_is_named_by_its_own_option(share: str) -> None:
    with pytest.raises(ConfigError, match=f"^noise: '{share}': shares from 0 to 0.5"):
        LabelNoise(LabelNoiseConfig(noise=f"0,{share}", annotators="pool"))


def test_a_fall_is_paired_by_seed() -> None:
    rates = {1: 40, 4: 52, 16: 56, 64: 50}
    study = OverOptimization(OverOptimizationConfig(methods="best_of_n", n="1,4,16,64", labelled_by="pool"))
    [row] = table(study.analyse(finished(study, lambda labels, n, seed: rates[n] + 10 * seed)), "peaks")
    assert (row["best reach"], row["last reach"], row["seeds"]) == (16, 64, 3)
    assert row["win rate there"].value == 76
    assert row["fall to it"] == Bounded(-6, -6, -6), "seeds differ by tens of points, and each falls by six"


def test_a_curve_that_still_rises_has_neither_fall_nor_peak() -> None:
    study = OverOptimization(OverOptimizationConfig(methods="best_of_n", n="1,4,16,64", labelled_by="pool"))
    [row] = table(study.analyse(finished(study, lambda labels, n, seed: float(n))), "peaks")
    assert (row["best reach"], row["fall to it"], row["fitted peak, √KL"]) == (64, None, None)


@pytest.mark.parametrize(
    ("method", "curve", "peak"),
    [
        ("best_of_n", lambda d: 50 + 8 * d - 2 * d * d, 2.0),
        ("ppo", lambda d: 50 + 8 * d - 6 * d * math.log(d), math.exp(8 / 6 - 1)),
    ],
)
def test_the_fit_finds_the_peak_of_its_own_form(method: str, curve: Any, peak: float) -> None:
    points = [(d, curve(d)) for d in (0.3, 0.8, 1.2, 1.9, 2.6, 3.0)]
    assert fit_peak(points, method) == pytest.approx(peak)
    assert fit_peak(points[:3], method) is None, "three places fit any curve"
    assert fit_peak([(d, rate) for d, rate in points if d < 1.3] + [(1.3, curve(1.3))], method) is None or peak < 1.4
    assert fit_peak([(d, 100 - rate) for d, rate in points], method) is None, "a valley is no peak"


def test_the_peaks_interval_is_over_seeds() -> None:
    study = OverOptimization(OverOptimizationConfig(methods="ppo", steps="20,40,80,120,200", labelled_by="pool"))

    def rate(labels: str, steps: int, seed: int) -> float:
        d = math.sqrt(steps / 20)
        return 50 + 8 * d - (1.6 + 0.1 * seed) * d * d

    [row] = table(study.analyse(finished(study, rate, (1, 2, 3, 4))), "peaks")
    at = row["fitted peak, √KL"]
    assert at.low < at.value < at.high
    assert row["KL there"] == tuple(pytest.approx(end**2) for end in at)
    [alone] = table(study.analyse(finished(study, rate, (1,))), "peaks")
    assert alone["fitted peak, √KL"].low is None


def test_plots_are_over_the_square_root_of_the_kl_and_over_the_proxy() -> None:
    study = OverOptimization(OverOptimizationConfig(methods="best_of_n", n="1,4,16,64", labelled_by="pool,crowd"))
    plots = {plot.name: plot for plot in study.analyse(finished(study, lambda *_: 50.0)).plots}
    assert set(plots) == {"best_of_n-win-rate", "best_of_n-gold", "best_of_n-by-proxy"}
    [one, two] = plots["best_of_n-win-rate"].series
    assert (one.name, two.name) == ("pool", "crowd")
    assert one.x == pytest.approx([0, *(math.sqrt(math.log(n) - (n - 1) / n) for n in (4, 16, 64))])
    assert plots["best_of_n-by-proxy"].series[0].x == pytest.approx([math.log(n) for n in (1, 4, 16, 64)])
