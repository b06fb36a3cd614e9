"""A stage alone is checked for what it needs itself, and for nothing of a later one."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest
from light_farm import light_plugins, light_workspace
from light_plugin import CountingJudge, Nudge

from afarm import Farm, compare_outputs
from afarm.core.errors import ConfigError
from afarm.core.interfaces import RewardModel
from afarm.core.plugins import discover
from afarm.core.records import Instruction, Output
from afarm.experiment import pipeline, preflight
from afarm.experiment.recipe import resolve

STAGES = ("sft", "sample", "annotate", "fit-reward", "train")


def refused(tmp_path: Path, stage: str, *settings: str) -> str:
    """What is said before the stage is made; empty if it can be."""
    checks = [*preflight.stage_checks(stage), *preflight.access_checks(stage=stage)] if stage else None
    try:
        light_workspace(tmp_path, *settings, checks=checks).close()
    except ConfigError as error:
        return str(error)
    return ""


@pytest.fixture
def dislikes_words(monkeypatch: pytest.MonkeyPatch) -> None:
    def check(self: Nudge, reward_model: type[RewardModel] | None = None) -> Sequence[str]:
        return ["the reward model has no trunk"]

    monkeypatch.setattr(Nudge, "check", check)


def test_a_reward_model_is_fitted_whatever_the_method_says_of_it(dislikes_words: None, tmp_path: Path) -> None:
    assert "no trunk" in refused(tmp_path, "")
    assert "no trunk" in refused(tmp_path, "train")
    for stage in ("sft", "sample", "annotate", "fit-reward"):
        assert refused(tmp_path, stage) == ""
    checks = [*preflight.stage_checks("fit-reward"), *preflight.access_checks(stage="fit-reward")]
    with light_workspace(tmp_path, checks=checks) as workspace:
        fitted = pipeline.fit_reward(workspace)
        assert fitted is not None
        assert workspace.ensure(fitted).stage == "fit-reward"


def test_a_farm_checks_a_method_when_it_is_named(dislikes_words: None, tmp_path: Path) -> None:
    recipe = str(light_workspace(tmp_path, checks=()).settings.recipe)
    given = {"model": str(tmp_path / "base"), "plugins": light_plugins(), "output_dir": tmp_path / "out"}
    with pytest.raises(ConfigError, match="no trunk"):
        Farm(recipe, method="nudge", **given)
    with Farm(recipe, **given) as farm, pytest.raises(ConfigError, match="no trunk"):
        farm.train()


def test_settings_of_a_method_that_does_not_train_need_not_fit_each_other() -> None:
    settings, plugins = ["ppo.total_steps=2", "ppo.warmup_steps=5"], discover()
    with pytest.raises(ConfigError, match=r"ppo: warmup_steps \(5\) must be below total_steps"):
        resolve("toy", settings, plugins)
    assert resolve("toy", settings, plugins, trains=False).run.method == "ppo"
    with pytest.raises(ConfigError, match="total_steps"):
        resolve("toy", ["ppo.total_steps=many"], plugins, trains=False)


@pytest.mark.parametrize(
    ("settings", "stages"),
    [
        ("rows.sft=99", STAGES),
        ("rows.preference=99", ("sample", "annotate", "fit-reward", "train")),
        ("rows.unlabeled=99", ("train",)),
        ("rows.evaluation=99", ()),
        ("evaluate.evaluators=[pointwise]", ()),
        ("backend.device=warp", STAGES),
    ],
)
def test_a_stage_is_checked_for_what_it_reads(settings: str, stages: Sequence[str], tmp_path: Path) -> None:
    assert refused(tmp_path, "", settings), "the whole run needs it"
    assert [stage for stage in STAGES if refused(tmp_path, stage, settings)] == list(stages)


def test_a_key_is_asked_for_by_stages_that_ask(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CountingJudge, "check_access", lambda self: ["no key"])
    assert [stage for stage in STAGES if refused(tmp_path, stage)] == ["annotate", "fit-reward", "train"]


def test_all_rows_have_a_word(tmp_path: Path) -> None:
    with light_workspace(tmp_path, "rows.sft=all", "rows.evaluation=5") as workspace:
        assert (workspace.config.rows.sft, len(workspace.data.rows("sft"))) == ("all", 12)
        assert len(workspace.data.rows("evaluation")) == 5


def test_outputs_are_compared_by_their_files(tmp_path: Path) -> None:
    files = []
    for name, words in (("mine", "a longer answer than that"), ("theirs", "short")):
        rows = [{"instruction": f"task {n}", "output": f"{words} {n}"} for n in range(4)]
        files.append(tmp_path / f"{name}.json")
        files[-1].write_text(json.dumps(rows))
    result = compare_outputs(files[0], str(files[1]), judge="offline", output_dir=tmp_path / "out")
    assert (result.system, result.evaluations[0][0], result.metric("n_total")) == ("mine", "theirs", 4)


def test_what_are_no_outputs_is_said(tmp_path: Path) -> None:
    rows = [Output(Instruction("x"), "y", "mine")]
    with pytest.raises(ConfigError, match=r"outputs must be a list of afarm\.Output, or a file of them, not dict"):
        compare_outputs([{"instruction": "x", "output": "y"}], rows, output_dir=tmp_path)  # type: ignore[list-item]
    with pytest.raises(ConfigError, match=r"reference must be .* not None"):
        compare_outputs(rows, None, output_dir=tmp_path)  # type: ignore[arg-type]
