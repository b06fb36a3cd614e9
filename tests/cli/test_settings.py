"""`afarm settings`: what can be set, where, and what a recipe sets."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from afarm.cli import main
from afarm.core.errors import ConfigError
from afarm.core.plugins import discover
from afarm.experiment.recipe import resolve
from afarm.experiment.setting_list import section_settings, sections

Say = Callable[..., str]


@pytest.fixture
def say(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Say:
    monkeypatch.setenv("COLUMNS", "120")

    def run(*arguments: str) -> str:
        with pytest.raises(SystemExit):
            main(["settings", *arguments])
        captured = capsys.readouterr()
        return captured.out + captured.err

    return run


def rows(say: Say, *arguments: str) -> dict[str, dict[str, Any]]:
    return {row["name"]: row for row in json.loads(say(*arguments, "--json"))}


def test_sections_are_listed_and_each_can_be_shown(say: Say) -> None:
    listed = json.loads(say("--json"))
    assert listed["ppo"] == "method of afarm"
    assert listed["run"] == "the run itself"
    plugins = discover()
    for name in sections(plugins):
        assert any(section_settings(name, plugins).values()), name


def test_a_setting_has_its_default_its_meaning_and_the_recipes_value(say: Say) -> None:
    found = rows(say, "ppo", "--recipe", "toy")
    assert (found["kl_coef"]["default"], found["kl_coef"]["recipe"]) == ("0.002", 0.185)
    assert found["max_kl"]["recipe"] is None
    assert found["kl_coef"]["changes_result"] is True
    assert found["per_device_train_batch_size"]["changes_result"] is False
    text = say("ppo")
    assert "ppo.kl_coef" in text
    assert "weight of the per-token KL penalty" in text


def test_descriptions_have_room_on_a_narrow_terminal(say: Say, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    lines = say("ppo", "--recipe", "toy").splitlines()
    assert "ppo.kl_coef = 0.002 (toy: 0.185)" in [line.rstrip() for line in lines]
    assert max(map(len, lines)) <= 80
    below = lines[[line.rstrip() for line in lines].index("ppo.kl_coef = 0.002 (toy: 0.185)") + 1]
    assert below.startswith("    ")
    assert "weight of the per-token KL penalty" in below
    assert len(say("run", "--recipe", "toy").splitlines()) < 400, "no column of single letters"


def test_the_runs_own_settings_are_found_by_name_and_by_part(say: Say) -> None:
    assert {"seed", "annotate.label_noise", "evaluate.temperature"} <= rows(say, "run").keys()
    found = rows(say, "annotate", "--recipe", "toy")
    assert found["annotate.label_noise"]["recipe"] == 0.25
    assert all(name.startswith("annotate.") for name in found)


def test_what_has_no_settings_is_an_error_with_the_nearest_name(say: Say) -> None:
    assert "Did you mean 'ppo'" in say("pppo")
    assert "unknown recipe 'toyy'" in say("ppo", "--recipe", "toyy")


@pytest.mark.parametrize("name", ["lr", "learning_rate", "beta", "num_samples"])
def test_a_setting_or_what_others_call_it_is_found_in_the_same_sections_as_by_set(name: str, say: Say) -> None:
    with pytest.raises(ConfigError) as caught:
        resolve("toy", [f"{name}=1"], discover())
    hint = str(caught.value).partition(f"{name!r}.")[2]
    assert hint.startswith((" Name its section, such as ", " Did you mean "))
    assert f"no settings are called {name!r}.{hint}" in " ".join(say(name).split())


def test_one_setting_is_shown_by_its_name_in_full(say: Say) -> None:
    assert list(rows(say, "ppo.kl_coef", "--recipe", "toy").items()) == [
        ("kl_coef", {**rows(say, "ppo")["kl_coef"], "recipe": 0.185})
    ]
    assert "ppo.kl_coef" in say("ppo.kl_coef")
    assert list(rows(say, "annotate.label_noise")) == ["annotate.label_noise"]
    assert list(rows(say, "run.seed")) == ["seed"]
    assert "no setting is called 'ppo.lr'. Did you mean 'learning_rate'?" in say("ppo.lr")
    assert "Did you mean 'ppo'" in say("pppo.lr")
