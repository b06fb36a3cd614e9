"""Wrong settings and files in plain words: the nearest name, the fault, and everything at once."""

from __future__ import annotations

import json
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest

from afarm import Farm, read_rows
from afarm.core.errors import ConfigError, DataError, PluginError
from afarm.core.plugins import Plugins, discover
from afarm.core.records import Instruction, Output
from afarm.core.registry import Component
from afarm.evaluation.boards.from_csv import imported
from afarm.experiment.recipe import resolve
from afarm.storage.rows import require_distinct
from afarm_plugins.ppo import PPOConfig


@pytest.fixture(scope="module")
def plugins() -> Plugins:
    """Everything installed, a stranger's `grpo`, and two strangers' `rloo`."""
    found = discover()
    for package, name in (("afarm-x", "grpo"), ("afarm-x", "rloo"), ("afarm-y", "rloo")):
        found.registry.register(Component("methods", name, package, f"{package}:{name}", "nowhere:M", PPOConfig))
    return found


def problems(plugins: Plugins, *settings: str | dict[str, Any]) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        resolve("toy", settings, plugins)
    return caught.value.problems


@pytest.mark.parametrize(
    ("setting", "problem"),
    [
        ("ppo.lr=1", "ppo.lr: unknown setting. Did you mean 'learning_rate'?"),
        ("ppo.kl=0.1", "ppo.kl: unknown setting. Did you mean 'kl_coef'?"),
        ("ppo.bs=8", "ppo.bs: unknown setting. Did you mean 'rollout_batch_size' or 'per_device_train_batch_size'?"),
        ("sft.epochs=8", "sft.epochs: unknown setting. Did you mean 'num_train_epochs'?"),
        ("dpo.beta=-1", "dpo.beta: must be greater than 0 (given: -1)"),
        ("ppo.learing_rate=1", "ppo.learing_rate: unknown setting. Did you mean 'learning_rate'"),
        ("grop.total_steps=3", "unknown setting or section 'grop'. Did you mean 'grpo'"),
        ("xyzzyx.total_steps=3", "unknown setting or section 'xyzzyx'. `afarm settings` lists them."),
        ("rloo.total_steps=3", "section 'rloo' is ambiguous: write 'afarm-x/rloo' or 'afarm-y/rloo'"),
        ("method=grop", "unknown method 'grop'. Did you mean 'grpo'?"),
        ("method=afarm-x/grop", "unknown method 'afarm-x/grop'. Did you mean 'afarm-x/grpo' or "),
        ("start=foo", "start: must be 'sft' or 'model' (given: 'foo')"),
        ("seed=many", "seed: must be a whole number (given: 'many')"),
        ("seed=-1", "seed: must be greater than or equal to 0 (given: -1)"),
        ("evaluate.top_p=2", "evaluate.top_p: must be less than or equal to 1 (given: 2)"),
        ("annotate.label_noise=much", "annotate.label_noise: must be a number (given: 'much')"),
        ("allow_degraded=perhaps", "allow_degraded: must be true or false (given: 'perhaps')"),
        ("judge=foo", "unknown judge 'foo'. Known: "),
        ('judge="fitted:"', "'fitted:': nothing follows the colon: say what, or leave it out"),
        ('annotate.annotator="fitted:"', "'fitted:': nothing follows the colon: say what, or leave it out"),
        ("judge=[a]", "judge: must map names to values, such as {name: value} (given: ['a'])"),
        ("rows=3", "rows: must be a section of settings (given: 3)"),
        ("rows={sft:64}", "--set 'rows={sft:64}': a colon needs a space after it, or write --set rows.sft=64"),
    ],
)
def test_a_wrong_setting_is_explained(setting: str, problem: str, plugins: Plugins) -> None:
    [said] = problems(plugins, setting)
    assert said.startswith(problem)


def test_a_bare_setting_by_another_name_names_its_sections(plugins: Plugins) -> None:
    [said] = problems(plugins, "lr=1e-5")
    assert "Name its section, such as bradley_terry.learning_rate: " in said
    assert "ppo, quark, reward_conditioning, sft have it" in said


def test_a_setting_that_cannot_be_read_hides_no_other(plugins: Plugins) -> None:
    said = problems(plugins, "seed", "ppo.lr=1", "ppo.lora={r: 1", "budget=-1")
    assert [text.split(":")[0].split(" is ")[0] for text in said] == [
        *("--set 'seed'", "--set 'ppo.lora={r", "budget", "ppo.lr"),
    ]


def test_settings_of_a_method_that_does_not_run_need_not_fit_together(plugins: Plugins, tmp_path: Path) -> None:
    with Farm(settings="quark.total_steps=1", output_dir=tmp_path) as farm:
        with pytest.raises(ConfigError, match=r"quark: warmup_steps \(\d+\) must be below total_steps \(1\)"):
            farm.train("quark")
        assert farm.workspace.history == {}, "before anything runs"
    assert "quark: warmup_steps" in problems(plugins, "quark.total_steps=1", "method=quark")[0]
    assert problems(plugins, "quark.total_steps=many") == ["quark.total_steps: must be a whole number (given: 'many')"]


def test_one_judge_is_for_all_roles(plugins: Plugins) -> None:
    assert resolve("toy", ["judge=offline"], plugins).run.judge == {"*": "offline"}


# --------------------------------------------------------------------------------------------------- the Python API


@pytest.mark.parametrize(
    ("choices", "problem"),
    [
        ({"plans_only": True}, "there is no argument 'plans_only', and no field of a recipe is called so."),
        ({"outptu_dir": "x"}, "there is no argument 'outptu_dir', and .* Did you mean 'output_dir'"),
        ({"rows": None}, r"rows: must be a section of settings \(given: None\)"),
    ],
)
def test_a_farm_refuses_arguments_that_it_does_not_know(choices: dict[str, Any], problem: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=problem):
        Farm(**{"output_dir": tmp_path, **choices})


def test_none_is_a_value_of_settings_that_may_have_none(tmp_path: Path) -> None:
    with Farm(budget=None, settings="budget=3", output_dir=tmp_path) as farm:
        assert farm.workspace.config.budget == 3


def test_a_config_error_is_made_of_a_text_like_other_exceptions() -> None:
    assert ConfigError("a typo").problems == ["a typo"]
    assert str(ConfigError("a typo")) == "a typo"
    assert str(ConfigError(["one", "two"])) == "2 problems in the configuration:\n- one\n- two"


# ----------------------------------------------------------------------------------------------------------- hooks


def test_a_hook_without_its_argument_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = "from afarm import hookimpl\n@hookimpl\ndef register_methods():\n    pass\n"
    (tmp_path / "forgetful.py").write_text(source)
    monkeypatch.syspath_prepend(str(tmp_path))
    plugins = discover([EntryPoint("forgetful", "forgetful", "afarm")])
    assert [plugin.error for plugin in plugins.found] == [
        "TypeError: register_methods() must take the argument 'register': without it nothing is brought"
    ]
    with pytest.raises(PluginError, match="must take the argument 'register'"):
        plugins.get("methods", "forgetful")


# ----------------------------------------------------------------------------------------------------------- files


def test_a_directory_is_not_a_missing_file(tmp_path: Path) -> None:
    (tmp_path / "b.jsonl").write_text("{}\n")
    message = rf"{tmp_path}: a directory: name a file in it, such as {tmp_path}/b\.jsonl"
    with pytest.raises(DataError, match=message):
        list(read_rows(tmp_path))
    with pytest.raises(DataError, match=message):
        imported(tmp_path)
    with pytest.raises(ConfigError, match=f"files.path: {message}"):
        Farm(settings=["dataset=files", f"files.path={tmp_path}"], output_dir=tmp_path / "out")
    with pytest.raises(DataError, match=r"nowhere\.json: no such file"):
        list(read_rows("nowhere.json"))


def test_all_duplicates_are_said_at_once() -> None:
    rows = [Output(Instruction(text), "x") for text in "abcdabcda"]
    with pytest.raises(DataError) as caught:
        require_distinct(rows, "mine.json")
    assert str(caught.value) == (
        "mine.json: rows 0, 4 and 8 hold the same instruction ('a'); rows 1 and 5 hold the same instruction ('b'); "
        "rows 2 and 6 hold the same instruction ('c'); and 1 more instruction; remove 5 rows"
    )


def test_a_missing_field_lists_the_fields_that_are_there(tmp_path: Path) -> None:
    path = tmp_path / "mine.jsonl"
    path.write_text(json.dumps({"prompt": "a", "response": "b"}) + "\n")
    with pytest.raises(DataError, match="row 0: field 'instruction' is missing; its fields are 'prompt', 'response'"):
        [Output.from_row(row, f"{path}: row 0") for row in read_rows(path)]
