"""What is wrong with a run and can be known before its first stage is said then, and all of it at once."""

from __future__ import annotations

import importlib.util
import json
import re
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import numpy as np
import pytest
from light_farm import Make, light_farm, light_plugins
from light_plugin import RAN, Nudge, Numbers, WordPolicy, WordReward, WordsSaid

from afarm.core.config import Config, setting
from afarm.core.errors import ConfigError, DataError, ModelError
from afarm.core.plugins import Plugins
from afarm.core.records import Output
from afarm.core.registry import Component
from afarm.experiment.dry_run import plan_run
from afarm.experiment.farm import Farm
from afarm.storage.model_files import require_on_hub
from afarm.storage.weight_files import require_whole_gguf


def problems(tmp_path: Path, *settings: str, **choices: object) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        light_farm(tmp_path, *settings, **choices)
    assert RAN == []
    return caught.value.problems


@pytest.fixture(autouse=True)
def nothing_has_run() -> None:
    RAN.clear()


def test_wrong_settings_names_and_needs_are_reported_at_once(tmp_path: Path) -> None:
    found = problems(tmp_path, "nudge.skil=1", "reward_model=word", "judge.*=countin", method="needy")
    for said in ("nudge.skil", "'word'", "'counting'", "needs 'reward_modell'", "'reward_model'"):
        assert said in "\n".join(found)
    assert len(found) == 4


class MustBeGiven(Config):
    skill: float = setting(..., "a setting without a default", ge=0)


def with_required_settings(**components: tuple[str, type]) -> Plugins:
    """The light plugins, and one component of each kind that is named, with a setting that must be given."""
    found = light_plugins()
    for name, (kind, cls) in components.items():
        found.registry.register(Component(kind, name, "afarm-x", "x:must", cls, MustBeGiven))
    return found


def test_a_required_setting_that_is_not_given_is_named_with_the_option_that_gives_it(tmp_path: Path) -> None:
    recipe, out = str(light_farm(tmp_path).workspace.settings.recipe), tmp_path / "out"
    plugins = with_required_settings(must=("methods", Nudge), counted=("evaluators", WordsSaid))
    model = f"model={tmp_path / 'base'}"
    settings = [model, "evaluate.evaluators=[win_rate,counted]"]
    with pytest.raises(ConfigError) as caught:
        Farm(recipe, settings=settings, plugins=plugins, method="must", output_dir=out)
    assert [problem.split(": ", 1)[0] for problem in caught.value.problems] == ["must.skill", "counted.skill"]
    assert all(f"--set {name}.skill=…" in str(caught.value) for name in ("must", "counted"))
    with pytest.raises(ConfigError, match=r"must\.skill: must be a number .* *$") as caught:
        Farm(recipe, settings=[model, "must.skill=much"], plugins=plugins, method="must", output_dir=out)
    assert len(caught.value.problems) == 1
    Farm(recipe, settings=[model, "must.skill=1"], plugins=plugins, method="must", output_dir=out).close()
    assert RAN == []


def test_a_method_that_keeps_its_settings_to_itself_is_planned_and_trains(
    farm: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    def own(self: Nudge, config: Any = None) -> None:
        self.mine = config

    monkeypatch.setattr(Nudge, "__init__", own)
    monkeypatch.setattr(Nudge, "train", lambda self, inputs, context: WordPolicy(self.mine.skill))
    opened = farm("nudge.skill=0.75")
    assert "train nudge" in [stage.label for stage in plan_run(opened.workspace, "nudge")]
    assert opened.evaluate("nudge").win_rate > 50


def test_everything_that_only_a_look_at_the_machine_can_tell_is_reported_beside_them(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    (tmp_path / "model.gguf").write_bytes(b"<!DOCTYPE html>")
    settings = ("backend.device=warp", "backend.trackers=[abacus]", "rows.preference=13", "evaluate.evaluators=[nope]")
    with pytest.raises(ConfigError) as caught:
        Farm(
            str(light_farm(tmp_path).workspace.settings.recipe),
            settings=settings,
            plugins=light_plugins(),
            model=str(tmp_path / "model.gguf"),
            output_dir=tmp_path / "file" / "out",
        )
    expected = [
        "file/out cannot be written",
        "is not a GGUF file",
        "backend.device 'warp' is not available here",
        "unknown tracker 'abacus'",
        "rows.preference asks for 13 rows",
        "unknown evaluator 'nope'",
    ]
    for said in expected:
        assert any(said in problem for problem in caught.value.problems), (said, caught.value.problems)
    assert len(caught.value.problems) == len(expected)


# ---------------------------------------------------------------------------------------------------------- models


def tiny_gguf(path: Path) -> None:
    """A file with a text, a list of texts and two tensors, as its format's own writer lays it out."""
    gguf = pytest.importorskip("gguf")
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_token_list(["a", "b"])
    writer.add_tensor("one", np.ones((3, 5), np.float32))
    writer.add_tensor("two", np.ones((4, 32), np.float16))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def test_a_gguf_file_that_ends_early_is_found_out_wherever_it_ends(tmp_path: Path) -> None:
    tiny_gguf(tmp_path / "whole.gguf")
    require_whole_gguf(tmp_path / "whole.gguf")
    content = (tmp_path / "whole.gguf").read_bytes()
    # What pads the last tensor is no part of it.
    data = content.rstrip(b"\0")
    for end in (4, 8, 20, 24, 60, len(data) // 2, len(data) - 2):
        (tmp_path / "cut.gguf").write_bytes(content[:end])
        with pytest.raises(ModelError, match=r"cut\.gguf' is truncated or damaged.*download it again"):
            require_whole_gguf(tmp_path / "cut.gguf")


def test_a_model_that_is_not_there_is_a_problem_of_the_configuration(tmp_path: Path) -> None:
    (said,) = problems(tmp_path, "model=/nowhere/at/all")
    assert "/nowhere/at/all" in said
    assert "--model" in said


def test_what_no_model_was_saved_in_or_as_is_named(tmp_path: Path) -> None:
    for name in ("empty", "adapter"):
        (tmp_path / name).mkdir()
    (tmp_path / "adapter" / "adapter_config.json").write_text("{}")
    (tmp_path / "model.safetensors").write_bytes(b"GGUF")
    (tmp_path / "cut.gguf").write_bytes(b"GG")
    tiny_gguf(tmp_path / "whole.gguf")
    (tmp_path / "short.gguf").write_bytes((tmp_path / "whole.gguf").read_bytes()[:-1])
    for name, why in (
        ("empty", "no config.json"),
        ("model.safetensors", "only .gguf"),
        ("cut.gguf", "b'GG'"),
        ("short.gguf", "truncated"),
    ):
        (said,) = problems(tmp_path, f"model={tmp_path / name}")
        assert name in said
        assert why in said
        assert "--model" in said
    for name in ("adapter", "whole.gguf"):
        light_farm(tmp_path, f"model={tmp_path / name}")


def test_a_recipe_without_a_model_is_told_so_and_nothing_else(tmp_path: Path) -> None:
    recipe = tmp_path / "own.yaml"
    recipe.write_text("dataset: numbers\nmethod: nudge\nreward_model: words\nstart: model\n")
    with pytest.raises(ConfigError) as caught:
        Farm(str(recipe), plugins=light_plugins(), settings=["judge.*=counting"], output_dir=tmp_path / "out")
    (said,) = caught.value.problems
    assert said.startswith("model: is required")


class KnowsNothing(BaseHTTPRequestHandler):
    """A Hub without a model, as huggingface.co answers for a name that it does not have."""

    def do_GET(self) -> None:
        self.send_response(404)
        self.send_header("X-Error-Code", "RepoNotFound")
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def hub() -> Iterator[str]:
    server = HTTPServer(("127.0.0.1", 0), KnowsNothing)
    Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def at_the_hub(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    require_on_hub.cache_clear()
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", address)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)


def test_without_the_hub_nothing_runs_and_the_message_says_what_works(
    farm: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    at_the_hub("http://127.0.0.1:9", monkeypatch)  # the port of "discard", where nobody answers
    one = farm("model=nope/nope")
    for begin in (one.evaluate, lambda: plan_run(one.workspace, "nudge")):
        with pytest.raises(ModelError, match=r"'nope/nope'.*Hub cannot be reached.*--model FILE\.gguf"):
            begin()
    assert RAN == []
    assert one.workspace.store.all() == [], "not even the pointer to the model"


def test_a_name_that_the_hub_does_not_know_is_told_apart(hub: str, monkeypatch: pytest.MonkeyPatch) -> None:
    at_the_hub(hub, monkeypatch)
    with pytest.raises(ModelError, match=r"'nope/nope'.*the Hub has no model of that name.*--model.*hf auth login"):
        require_on_hub("nope/nope")
    with pytest.raises(ModelError, match="no Hub id either"):
        require_on_hub("no name!")


# --------------------------------------------------------------------------------------------- devices and trackers


def test_a_tracker_must_be_known_and_installed(tmp_path: Path) -> None:
    absent = next(name for name in ("aim", "swanlab", "clearml", "wandb") if importlib.util.find_spec(name) is None)
    found = problems(tmp_path, f"backend.trackers=[{absent}, tensorbord, tensorboard]")
    assert found == [
        f"backend.trackers: {absent} is not installed: pip install {absent}",
        "backend.trackers: unknown tracker 'tensorbord'. Did you mean 'tensorboard'?",
    ]


# ------------------------------------------------------------------------------------------------------------ rows


def test_more_rows_than_there_are_names_the_setting_and_what_there_is(tmp_path: Path) -> None:
    found = problems(tmp_path, "rows.preference=13", "rows.evaluation=40")
    assert [p.partition(":")[0] for p in found] == [
        "rows.preference asks for 13 rows, but split 'preference' of data set 'numbers' has 12",
        "rows.evaluation asks for 40 rows, but split 'evaluation' of data set 'numbers' has 12",
    ]


def test_splits_that_the_method_does_not_read_are_left_alone(tmp_path: Path) -> None:
    light_farm(tmp_path, "rows.unlabeled=13", "rows.validation=13", method="direct")
    (said,) = problems(tmp_path, "rows.unlabeled=13", "rows.validation=13", method="nudge")
    assert "rows.unlabeled" in said


def test_the_preferences_that_a_reward_model_is_fitted_to_are_read(tmp_path: Path) -> None:
    (said,) = problems(tmp_path, "rows.preference=13", method="hot")
    assert "rows.preference" in said


def test_too_few_instructions_for_the_reward_model_are_refused_before_anything_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(WordReward, "fewest_instructions", 12)
    refused = r"words needs preferences on 12 .* of 11: --set rows\.preference=12"
    (said,) = problems(tmp_path, "rows.preference=11", method="nudge")
    assert re.search(refused, said)
    with light_farm(tmp_path, "rows.preference=11", method="direct") as one:  # which needs none
        with pytest.raises(ConfigError, match=refused):
            one.train("nudge")
        with pytest.raises(ConfigError, match=refused):
            plan_run(one.workspace, "hot")
        assert RAN == []
        one.train()
    with light_farm(tmp_path, "rows.preference=12") as one:
        one.train()


def test_a_file_that_cannot_be_read_is_a_problem_of_the_configuration_and_said_once(tmp_path: Path) -> None:
    data = tmp_path / "rows.json"
    data.write_text(json.dumps([{"instruction": "a", "output": "b"}, {"instrction": "c"}]))
    with pytest.raises(ConfigError) as caught:
        Farm("smol", settings=[f"files.path={data}"], model="pkg:afarm_plugins.toy/base2", output_dir=tmp_path / "out")
    (said,) = caught.value.problems
    assert f"{data}: row 1" in said
    assert "'instruction'" in said


def test_the_toy_recipe_refuses_text_that_is_not_of_its_world(tmp_path: Path) -> None:
    data = tmp_path / "rows.json"
    data.write_text(json.dumps([{"instruction": f"Name {i} rivers.", "output": "The Rhine."} for i in range(40)]))
    settings: list[str | dict[str, object]] = [
        {"files": {"path": str(data), "shares": dict.fromkeys(("sft", "preference", "unlabeled", "evaluation"), 0.25)}},
        {"rows": dict.fromkeys(("sft", "preference", "unlabeled", "validation", "evaluation"), None)},
    ]
    with pytest.raises(ConfigError) as caught:
        Farm("toy", settings=settings, dataset="files", output_dir=tmp_path / "out")
    [world] = caught.value.problems
    assert "the toy world does not know the instruction 'Name " in world
    assert "afarm run --recipe smol --model MODEL" in world


def test_a_split_that_is_missing_stops_only_what_reads_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def load(self: Numbers, split: str) -> list[Output]:
        if split == "evaluation":
            raise DataError("there is no evaluation split")
        return whole(self, split)

    whole = Numbers.load
    monkeypatch.setattr(Numbers, "load", load)
    one = light_farm(tmp_path)
    one.train()
    with pytest.raises(DataError, match="there is no evaluation split"):
        one.evaluate()


def test_what_comes_over_the_network_is_left_until_a_stage_is_laid_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Numbers, "remote", True)
    one = light_farm(tmp_path, "rows.preference=13")
    with pytest.raises(DataError, match=r"rows\.preference asks for 13 rows"):
        one.evaluate()
    assert RAN == []


# ---------------------------------------------------------------------------------------------- the output directory


def test_a_look_at_the_output_directory_leaves_nothing_there(tmp_path: Path) -> None:
    problems(tmp_path, "rows.preference=13")
    assert {p.name for p in tmp_path.iterdir()} == {"base", "light.yaml"}
