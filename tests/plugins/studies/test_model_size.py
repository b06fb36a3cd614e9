"""Base models of several sizes: parameters counted by hand, gains paired by seed, and what is refused."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from afarm import Bounded, ConfigError, FinishedRun, StudyRequest
from afarm.testing import check_study
from afarm_plugins.studies.model_size import ModelSize, read_parameter_count, short_names, size_findings
from afarm_plugins.studies.settings import ModelSizeConfig

REQUEST = StudyRequest("ppo", (1, 2, 3))
TOY = "pkg:afarm_plugins.toy/base2"


def test_models_are_called_by_their_last_part_unless_two_share_it() -> None:
    assert short_names(["org/small", "lib/models/large.gguf"]) == {
        "small": "org/small",
        "large": "lib/models/large.gguf",
    }
    assert list(short_names(["a/base", "b/base", "c/other"])) == ["a/base", "b/base", "other"]


def test_parameters_are_those_of_the_config() -> None:
    # Three layers of width 96, inner width 256, with two norms each; one norm, and 167 words that head and input share.
    layer = 4 * 96 * 96 + 3 * 96 * 256 + 2 * 96
    assert read_parameter_count(TOY) == 3 * layer + 96 + 167 * 96 == 348_480
    assert read_parameter_count("./no-such-model") is None


def test_every_model_is_tuned_by_every_method_and_by_sft_against_one_reference() -> None:
    study = ModelSize(ModelSizeConfig(models="org/small, org/large", methods="dpo,sft"))
    runs = study.grid(REQUEST)
    assert len(runs) == 2 * 2 * 3
    assert {run.method for run in runs} == {"sft", "dpo"}
    assert {run.settings for run in runs} == {
        (f"model=org/{name}", "evaluate.reference=data") for name in ("small", "large")
    }


def finished(rates: Mapping[tuple[str, str], float]) -> list[FinishedRun]:
    """Runs whose win rate is that of their model and method, and ten more per seed."""
    runs = ModelSize(ModelSizeConfig(models="small,large", methods="dpo")).grid(REQUEST)
    return [
        FinishedRun(run, run.label, {"win_rate": rates[str(run.place["model"]), run.method] + 10 * run.seed})
        for run in runs
        if (run.place["model"], run.method) in rates
    ]


RATES = {("small", "sft"): 10.0, ("small", "dpo"): 15.0, ("large", "sft"): 30.0, ("large", "dpo"): 50.0}


def test_gains_are_over_sft_of_the_same_model_and_in_the_order_of_size() -> None:
    found = size_findings(finished(RATES), {"large": 1000, "small": 10})
    [table] = found.tables
    rows: list[list[Any]] = [list(row) for row in table.rows]
    assert [row[:4] for row in rows] == [
        ["small", 10, "sft", 3],
        ["large", 1000, "sft", 3],
        ["small", 10, "dpo", 3],
        ["large", 1000, "dpo", 3],
    ]
    assert [row[-1] for row in rows] == [None, None, Bounded(5, 5, 5), Bounded(20, 20, 20)]
    rates, gains = found.plots
    assert (rates.log_x, rates.x_title, [series.name for series in rates.series]) == (
        True,
        "parameters",
        ["sft", "dpo"],
    )
    [gain] = gains.series
    assert (list(gain.x), [y.value for y in gain.y]) == ([10, 1000], [5, 20])


def test_unknown_sizes_and_a_lost_sft_leave_what_is_known() -> None:
    lost = {place: rate for place, rate in RATES.items() if place != ("large", "sft")}
    found = size_findings(finished(lost), {"small": 10, "large": None})
    assert [row[-1] for row in found.tables[0].rows] == [None, None, Bounded(5, 5, 5)]
    assert found.plots[0].series[0].x == ["small"]
    assert not found.plots[0].log_x
    assert "The parameters of large are not known" in found.notes[-1]


@pytest.mark.parametrize("models", ["", "one", "one, one"])
def test_one_model_has_no_sizes_to_compare(models: str) -> None:
    with pytest.raises(ConfigError, match="name two base models or more"):
        ModelSize(ModelSizeConfig(models=models)).grid(REQUEST)


def test_the_study_keeps_the_promises_of_one() -> None:
    check_study(ModelSize(ModelSizeConfig(models=f"{TOY},./no-such-model")))
