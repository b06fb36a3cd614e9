"""The options that commands share: who takes them, who does not, and which settings they give."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import pytest
from said import Afarm, failed

from afarm.cli.options import FarmOptions
from afarm.cli.stage_commands import UNUSED

SHARED = [
    "--method",
    "--annotator",
    "--both-orders",
    "--votes",
    "--vote",
    "--label-noise",
    "--judge",
    "--reward-model",
    "--recipe",
    "--model",
    "--dataset",
    "--data",
    "--preferences",
    "--on-unusable",
    "--labels",
    "--eval-set",
    "--set",
    "--seed",
    "--budget",
    "--price",
    "--max-concurrency",
    "--allow-degraded",
    "--batch-api",
    "--accelerate-config",
    "--output-dir",
    "--ledger",
    "--store",
    "--json",
]


def options_of(afarm: Afarm, *command: str) -> list[str]:
    """The options that a command's --help lists, in its order."""
    said = afarm(*command, "--help")
    assert said.code == 0
    return re.findall(r"^ +(--[a-z-]+)", said.out, re.MULTILINE)


@pytest.mark.parametrize(
    ("command", "before", "after"),
    [
        ("run", ["--launcher"], ["--dry-run"]),
        *((step, [], ["--dry-run"]) for step in ("sft", "annotate", "fit-reward", "train")),
        ("sample", ["--policy"], ["--dry-run"]),
        ("compare", ["--methods", "--seeds", "--launcher"], ["--dry-run"]),
        ("drift", ["--pairs", "--epoch"], ["--dry-run"]),
        (
            "evaluate",
            ["--reference", "--annotations", "--humans", "--until", "--alpha"],
            ["--evaluator", "--on-missing", "--on-duplicate", "--dry-run"],
        ),
    ],
)
def test_commands_that_make_a_farm_take_the_same_options(
    command: str, before: list[str], after: list[str], afarm: Afarm
) -> None:
    unused = {f"--{name.replace('_', '-')}" for name in {**UNUSED, "compare": {"method"}}.get(command, ())}
    shared = [option for option in SHARED if option not in unused]
    assert sorted(options_of(afarm, command)) == sorted([*before, *shared, *after])


@pytest.mark.parametrize(
    ("command", "own"),
    [
        ("report", ["--output-dir"]),
        ("artifacts list", ["--output-dir", "--json"]),
        ("artifacts verify", ["--output-dir", "--remove", "--json"]),
        ("artifacts gc", ["--output-dir", "--yes", "--unfinished", "--days", "--store"]),
        ("artifacts why", ["--output-dir"]),
        ("plugins", ["--check", "--json"]),
        ("recipes", []),
        ("diff", ["--flips", "--output-dir", "--json"]),
    ],
)
def test_commands_that_make_no_farm_refuse_the_options_of_one(command: str, own: list[str], afarm: Afarm) -> None:
    assert sorted(options_of(afarm, *command.split())) == sorted(own)
    failed(afarm(*command.split(), "--seed", "3"), "No such option: --seed", code=2)


@pytest.mark.parametrize(
    ("given", "settings"),
    [
        ({"judge": [], "settings": []}, {}),
        (
            {"method": "m", "reward_model": "r", "model": "b", "dataset": "d", "seed": 0, "budget": 0.0},
            {"method": "m", "reward_model": "r", "model": "b", "dataset": "d", "seed": 0, "budget": 0.0},
        ),
        ({"annotator": "a"}, {"annotate": {"annotator": "a"}}),
        ({"label_noise": 0.0}, {"annotate": {"label_noise": 0.0}}),
        ({"annotator": "a", "label_noise": 0.1}, {"annotate": {"annotator": "a", "label_noise": 0.1}}),
        ({"judge": ["offline", "strong=x:y"]}, {"judge": {"*": "offline", "strong": "x:y"}}),
        ({"eval_set": "e.json"}, {"eval_set": "e.json"}),
        ({"data": Path("d.json")}, {"dataset": "files", "files": {"path": "d.json"}}),
        ({"votes": 3, "both_orders": True}, {"pool": {"votes": 3, "both_orders": True}}),
        (
            {"annotator": "gpt4_4", "vote": "mean"},
            {"annotate": {"annotator": "gpt4_4"}, "gpt4_4": {"vote": "mean"}},
        ),
        (
            {"annotator": "pool:my.yaml", "votes": 2},
            {"annotate": {"annotator": "pool:my.yaml"}, "pool": {"votes": 2}},
        ),
        ({"votes": 2, "settings": ["annotate.annotator=greedy_gpt4"]}, {"greedy_gpt4": {"votes": 2}}),
        ({"as_json": True, "output_dir": Path("o"), "recipe": "smol"}, {}),
    ],
)
def test_an_option_gives_its_setting_and_one_that_is_not_given_gives_none(
    given: dict[str, Any], settings: dict[str, Any]
) -> None:
    assert FarmOptions(**given)._collect_given() == settings


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--annotator", "ratings", "--votes", "3"], "annotator 'ratings' takes no --votes"),
        (["--annotator", "crowd", "--both-orders"], "annotator 'crowd' takes no --both-orders"),
        (["--label-noise", "0.1", "--set", "annotate.label_noise=0.2"], "--label-noise 0.1 and --set annotate"),
        (["--vote", "best"], "pool.vote: must be 'majority' or 'mean'"),
        (["--vote", "best"], "Error: pool.vote"),
        (["--votes", "3", "--set", "pool.votes=5"], "--votes 3 and --set pool.votes=5 contradict"),
        (["--annotator", "pol", "--votes", "3"], "unknown annotator 'pol'. Did you mean 'pool'"),
    ],
)
def test_what_an_annotator_cannot_be_told_is_said(arguments: list[str], said: str, afarm: Afarm) -> None:
    failed(afarm("run", *arguments), said)


# ------------------------------------------------------------------------------------------------------ near misses


@pytest.mark.parametrize(
    ("arguments", "nearest"),
    [
        (["--method", "pppo"], "Did you mean 'ppo'"),
        (["--annotator", "gpt4-4"], "Did you mean 'gpt4_4'"),
        (["--recipe", "tpy"], "Did you mean 'toy'"),
        (["--set", "ppo.learning_rte=1"], "Did you mean 'learning_rate'"),
        (["--set", "pppo.learning_rate=1"], "Did you mean 'ppo'"),
        (["--set", "sead=1"], "Did you mean 'seed'"),
        (["--set", "learning_rate=1"], "Name its section, such as "),
        (["--set", "label_noise=0.1"], "'annotate.label_noise'"),
        (["--set", "evaluate.anotator=pool"], "Did you mean 'annotator'"),
        (["--set", "evaluate.evaluators=[win_rat]"], "Did you mean 'win_rate'"),
        (["--judge", "strng=offline"], "Did you mean 'strong'"),
    ],
)
def test_a_near_miss_of_a_name_names_the_nearest(arguments: list[str], nearest: str, afarm: Afarm) -> None:
    failed(afarm("run", *arguments), nearest)


@pytest.mark.parametrize("arguments", [["--method", "grpo"], ["--method", "rloo"], ["--set", "dapo.total_steps=2"]])
def test_a_name_that_a_package_brings_names_the_package(arguments: list[str], afarm: Afarm) -> None:
    failed(afarm("run", *arguments), "'afarm-grpo' brings it; install it with: pip install ")


@pytest.mark.parametrize(
    ("arguments", "nearest"),
    [
        (["evalute"], "'evaluate'"),
        (["artifacts", "lst"], "'list'"),
        (["run", "--outputdir", "x"], "--output-dir"),
        (["run", "--dry_run"], "--dry-run"),
        (["evaluate", "--refrence", "x"], "--reference"),
    ],
)
def test_a_near_miss_of_a_command_or_an_option_names_the_nearest(
    arguments: list[str], nearest: str, afarm: Afarm
) -> None:
    failed(afarm(*arguments), nearest, code=2)


def test_an_empty_recipe_starts_nothing(afarm: Afarm) -> None:
    said = afarm("run", "--recipe", "", "--set", "rows.sft=8")
    assert (said.code, "--recipe names none: leave it out for toy" in said.err) == (1, True)
    assert not Path("afarm-runs").exists()


def test_a_broken_recipe_is_told_by_name_line_and_column(afarm: Afarm) -> None:
    Path("bad.yaml").write_text("seed: 1\nppo: [1\n")
    said = afarm("run", "--recipe", "bad.yaml")
    assert said.code == 1
    assert "recipe bad.yaml is no valid YAML: line 3, column 1: " in said.err
    assert "<unicode string>" not in said.err
    Path("folder.yaml").mkdir()
    failed(afarm("run", "--recipe", "folder.yaml"), "recipe folder.yaml cannot be read: Is a directory")


NAMED = [
    ["run", "--recipe", "{file}.yaml"],
    ["run", "--set", "prices={file}.yaml"],
    ["run", "--set", "prompt_template={file}.jinja"],
    ["run", "--annotator", "pool:{file}.yaml"],
    ["run", "--judge", "replay:{file}.json"],
    ["run", "--model", "{file}.gguf"],
    ["run", "--data", "{file}.json"],
    ["run", "--ledger", "{file}.json"],
    ["evaluate", "{file}.json", "--reference", "{file}.json"],
    ["leaderboard", "{file}.csv"],
    ["replay", "{file}.zip"],
    ["study", "calibrate", "--humans", "{file}.json"],
    ["judge", "fit", "{file}.json", "--out", "judge"],
]
"""Commands, and what each names for a file."""


def test_a_device_or_a_pipe_is_named_and_never_read(afarm: Afarm) -> None:
    """Reading one may never end."""
    for ending in ("yaml", "jinja", "json", "gguf", "csv", "zip"):
        Path(f"odd.{ending}").symlink_to(os.devnull)
    said = {" ".join(command): afarm(*(word.format(file="odd") for word in command)) for command in NAMED}
    odd = "no regular file but a pipe or a device"
    assert {command: one.err for command, one in said.items() if odd not in one.err or "odd" not in one.err} == {}
    assert {one.code for one in said.values()} == {1}
