"""Wheels of afarm, of every contrib package and of a scaffold of each kind, installed by plain pip and run.

They share one environment, which has nothing else. The commands are forks of one process there, since most of what they
would take is the import of torch.
"""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple
from zipfile import ZipFile

import pytest
from clean_environment import BESIDE, CleanEnvironment, Ended, build_wheels, run
from pipeline_alone import ALONE
from places import ROOT

from afarm_plugins.scaffold.kinds import KINDS
from afarm_plugins.scaffold.package import write_package

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("install")]  # one environment for all

REPOSITORY = "https://host.example/us/afarm"
LARGEST_WHEEL = 2_600_000
"""Bytes. 1.3 million are the frozen weights of the toy world's base model, which do not compress."""

CONTRIB = sorted(path.parent.name for path in ROOT.glob("plugins-contrib/*/pyproject.toml"))


# -------------------------------------------------------------------------------------------------------- the commands


def to_set(*settings: str) -> list[str]:
    return [word for setting in settings for word in ("--set", setting)]


TINY = to_set(
    *("rows={sft: 16, preference: 24, unlabeled: 8, validation: 8, evaluation: 8}", "sft.num_train_epochs=1"),
    *("bradley_terry.num_train_epochs=1", "sample.max_new_tokens=8", "evaluate.max_new_tokens=8"),
)
STEPS = "{total_steps: 1, warmup_steps: 0, rollout_batch_size: 8, mini_batch_size: 8, response_length: 8}"
SHARED = ["--annotator", "pool", "--json", *TINY]
"""Of runs in one directory: of all but the first, the method's own stages are left."""


class Shown(NamedTuple):
    """A command of a package, without `afarm`, and what its output holds if it works."""

    command: list[str]
    holds: str


EVALUATE = ["evaluate", "mine.json", "--reference", "theirs.json", "--annotator"]
PLANNED = ["--dry-run", *TINY, "--output-dir", "planned"]

SMALL_STEP = STEPS.replace("mini_batch_size: 8", "mini_batch_size: 4")
HEAD = to_set("best_of_n.n=2", "uncertain_reward={num_train_epochs: 1, members: 2}")

PACKAGES: Mapping[str, Shown] = {
    "afarm-alpaca-eval": Shown(["alpaca-eval", "--help"], "AlpacaEval's board"),
    "afarm-data-check": Shown(["data", "check", "labels.jsonl"], "4 pairs"),
    "afarm-golden-traces": Shown(["traces", "show", "grpo"], "advantages"),
    "afarm-grpo": Shown(["run", "--method", "grpo", *SHARED, *to_set(f"grpo={STEPS}")], '"method": "grpo"'),
    "afarm-heuristics": Shown([*EVALUATE, "afarm-heuristics/longer"], "62.5"),
    "afarm-inspect": Shown(["inspect", "write", "--help"], "logs of Inspect"),
    "afarm-interchange": Shown(
        ["interchange", "export", "toy-ppo", "records", "--to", "eee", "--organization", "us", "--owner", "us"],
        "records/data/afarm-toy/us/ppo/",
    ),
    "afarm-judge-bench": Shown(["judge", "bench", "labels.jsonl", "--annotator", "fitted"], "own pairs"),
    "afarm-judge-card": Shown(["judge", "card", "--annotator", "fitted", "--limit", "10"], "Measured on 10 pairs"),
    "afarm-jury": Shown([*EVALUATE, "jury:jury.yaml"], "win rate"),
    "afarm-neighbours": Shown(["run", "--method", "chain_of_hindsight", *SHARED], '"method": "chain_of_hindsight"'),
    "afarm-online": Shown(
        ["run", "--method", "online_dpo", *SHARED, *to_set(f"online_dpo={SMALL_STEP}")], '"method": "online_dpo"'
    ),
    "afarm-people": Shown([*EVALUATE, "human:labels.jsonl"], "75.0"),
    "afarm-preferences": Shown(["run", "--method", "orpo", *SHARED], '"method": "orpo"'),
    "afarm-rewards": Shown(
        ["run", "--method", "best_of_n", "--reward-model", "uncertain_reward", *SHARED, *HEAD], '"method": "best_of_n"'
    ),
    "afarm-rubrics": Shown(["judge", "rubric", "show", "rubric.yaml"], "- It names a source. (+2)"),
    "afarm-slurm": Shown(
        ["run", "--method", "best_of_n", "--launcher", "slurm:all", *PLANNED], "Slurm's partition all"
    ),
}
"""By package, a command that takes seconds. With `SHARED`, a run learns from what the demo has made before it."""

MINE = ["bbbb", "bbbbb", "b", "bbb"]
CHOSEN = [word for kind in ("method", "annotator", "judge", "reward-model") for word in (f"--{kind}", f"my-{kind}")]
SCAFFOLDED = to_set(
    "start=model",  # it is sampled as it is: no SFT
    *("my-method.prompts=8", "my-method.max_new_tokens=8"),
    "evaluate={annotator: my-annotator, evaluators: [win_rate, my-evaluator], max_new_tokens: 8}",
)
IN_MINE = ["--output-dir", "mine"]

COMMANDS: Mapping[str, list[str]] = {
    "demo": [ALONE, "run", "--method", "ppo", *SHARED, *to_set(f"ppo={STEPS}")],
    **{package: ["afarm", *shown.command] for package, shown in PACKAGES.items() if package in CONTRIB},
    "longer": ["afarm", *EVALUATE, "longer", "--json"],
    "margin": ["afarm", *EVALUATE, "longer", "--json", *to_set("longer.margin=1")],
    "tests of scaffolds": ["pytest", "-q", "-p", "no:cacheprovider", "scaffolds"],
    "run": ["afarm", "run", "--json", *CHOSEN, *TINY, *SCAFFOLDED, *IN_MINE],
    "command": ["afarm", "my-command", "--json", *IN_MINE],
    "study": ["afarm", "study", "my-study", "--seeds", "1,2", *PLANNED],
    "dataset": ["afarm", "plugins", "--check", "my-dataset"],
}
"""Run in this order, in one directory."""


# ------------------------------------------------------------------------------------------------------ the environment


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("install")


@pytest.fixture(scope="module")
def wheels(directory: Path) -> Path:
    """The folder of all wheels as releases have them, of copies, so that no build folder is left behind."""
    scaffolds = directory / "scaffolds"
    scaffolds.mkdir()
    made = [write_package(kind, f"my-{kind}", scaffolds).folder for kind in KINDS]
    (directory / "afarm" / "afarm-runs" / "runs").mkdir(parents=True)  # as runs in a clone leave it
    (directory / "afarm" / "afarm-runs" / "runs" / "run.json").write_text("{}")
    for part in ("afarm", "afarm_plugins", "pyproject.toml", "setup.py", "README.md", "LICENSE"):
        (directory / "afarm" / part).symlink_to(ROOT / part)
    packages = [ROOT / "plugins-contrib" / name for name in CONTRIB]
    build_wheels([directory / "afarm", *packages, *made], directory / "wheels", {"AFARM_REPOSITORY": REPOSITORY})
    return directory / "wheels"


@pytest.fixture(scope="module")
def wheel(wheels: Path) -> Path:
    [built] = wheels.glob("afarm-*.whl")
    return built


@pytest.fixture(scope="module")
def clean(directory: Path, wheels: Path, wheel: Path) -> CleanEnvironment:
    """An environment with afarm, its core dependencies, every contrib package and the scaffolds."""
    return CleanEnvironment(directory / "venv", wheel, sorted({*wheels.glob("*.whl")} - {wheel}))


@pytest.fixture(scope="module")
def ended(directory: Path, clean: CleanEnvironment) -> Callable[[str], str]:
    """What a command of `COMMANDS` has printed on stdout, once it has ended well."""
    write_outputs(directory / "mine.json", "mine", MINE)
    write_outputs(directory / "theirs.json", "theirs", ["aaa"] * 4)
    labels = [
        {"instruction": f"task {n}", "output_1": "aaa", "output_2": mine, "preference": 1 if mine == "b" else 2}
        for n, mine in enumerate(MINE)
    ]
    (directory / "jury.yaml").write_text("jurors: {alice: fitted, bob: {annotator: chatgpt_4, judge: offline}}")
    (directory / "rubric.yaml").write_text("criteria: [{text: It names a source., weight: 2}]")
    (directory / "labels.jsonl").write_text("".join(json.dumps(row) + "\n" for row in labels))
    every: dict[str, Ended] = clean.run_all(COMMANDS, directory)

    def printed(name: str) -> str:
        assert every[name].code == 0, f"{' '.join(COMMANDS[name])}\n{every[name].out}\n{every[name].err}"
        return every[name].out

    return printed


def write_outputs(path: Path, generator: str, outputs: list[str]) -> None:
    rows: list[dict[str, Any]] = [
        {"instruction": f"task {number}", "input": "", "output": output, "generator": generator}
        for number, output in enumerate(outputs)
    ]
    path.write_text(json.dumps(rows), encoding="utf-8")


# -------------------------------------------------------------------------------------------------------- afarm's wheel


def test_the_wheel_is_small_and_its_page_holds_on_an_index(wheel: Path) -> None:
    """README's links and pictures lead to the tag of this version."""
    assert wheel.stat().st_size < LARGEST_WHEEL
    with ZipFile(wheel) as files:
        [metadata] = [files.read(name).decode() for name in files.namelist() if name.endswith(".dist-info/METADATA")]
        folders = {name.partition("/")[0] for name in files.namelist()}
    assert {name for name in folders if not name.endswith(".dist-info")} == {"afarm", "afarm_plugins"}
    [version] = re.findall(r"^Version: (.*)$", metadata, re.M)
    targets = re.findall(r"\]\(([^)\s]+)\)", metadata)
    assert f"{REPOSITORY}/raw/v{version}/docs/images/report.png" in targets
    assert f"{REPOSITORY}/blob/v{version}/CONTRIBUTING.md" in targets
    assert [target for target in targets if not target.startswith("https://")] == []
    assert f"Project-URL: Repository, {REPOSITORY}\n" in metadata


def test_the_environment_is_clean(clean: CleanEnvironment) -> None:
    code = "import importlib.metadata; print(*(found.name for found in importlib.metadata.distributions()))"
    installed = set(run(clean.binaries / "python", "-c", code).lower().split())
    assert {"afarm", *CONTRIB, *(f"afarm-my-{kind}" for kind in KINDS)} <= installed
    assert not {"torch", "transformers", "numpy"} & installed


def test_the_demo_runs_from_the_wheel_with_the_parts_of_the_pipeline_alone(
    ended: Callable[[str], str], directory: Path
) -> None:
    """Smaller than `make release-check` runs it, and beside the packages that the tests have."""
    record = json.loads(ended("demo"))
    assert 0 <= record["headline"]["win_rate"] <= 100
    report = directory / "afarm-runs" / "runs" / record["name"] / "report.html"
    assert "plotly" in report.read_text(encoding="utf-8")


def test_training_without_torch_says_what_to_install(clean: CleanEnvironment, tmp_path: Path) -> None:
    done = subprocess.run([clean.binaries / "afarm", "sft"], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 1
    assert "pip install 'afarm[train]'" in done.stderr
    assert "Traceback" not in done.stderr


# --------------------------------------------------------------------------------------------------- contrib packages


LISTED = """
import sys
from afarm.cli import main
try:
    main(["plugins", "--json"])
finally:
    assert "torch" not in sys.modules
"""


def test_all_of_them_are_loaded_without_torch(clean: CleanEnvironment) -> None:
    listed = json.loads(run(clean.binaries / "python", "-c", LISTED, env=BESIDE))
    assert {row["plugin"]: (row["error"], row["notes"]) for row in listed if row["error"] or row["notes"]} == {}
    assert {*CONTRIB, *(f"afarm-my-{kind}" for kind in KINDS)} <= {row["package"] for row in listed}
    [heuristics] = [row for row in listed if row["package"] == "afarm-heuristics"]
    assert (heuristics["plugin"], heuristics["version"]) == ("heuristics", "0.1.0")
    assert [(c["kind"], c["name"]) for c in heuristics["components"]] == [
        ("annotator", "afarm-heuristics/longer"),
        ("evaluator", "afarm-heuristics/length_balance"),
    ]


@pytest.mark.parametrize("package", CONTRIB)
def test_a_package_works_as_installed(package: str, ended: Callable[[str], str]) -> None:
    assert package in PACKAGES, f"{package} has no command here: add one that takes seconds to PACKAGES"
    assert PACKAGES[package].holds in ended(package)


def test_a_method_of_a_package_has_all_that_methods_share(ended: Callable[[str], str], directory: Path) -> None:
    record = json.loads(ended("afarm-grpo"))
    stages = {stage["stage"] for stage in record["stages"]}
    assert {"train grpo", "fit-reward", "outputs grpo"} <= stages
    assert record["headline"]["win_rate"] is not None
    assert (directory / record["report"]).is_file()


def test_the_table_names_packages_that_exist() -> None:
    assert PACKAGES.keys() <= set(CONTRIB)


def test_settings_of_a_plugin_are_set_on_the_command_line(ended: Callable[[str], str]) -> None:
    """Against "aaa" four times: two longer, one shorter, one equally long. Within a margin of 1, 4 to 3 is a draw."""
    found = {name: json.loads(ended(name))["metrics"] for name in ("longer", "margin")}
    wins = {name: [metrics[f"n_{what}"] for what in ("wins", "wins_base", "draws")] for name, metrics in found.items()}
    assert wins == {"longer": [2, 1, 1], "margin": [1, 1, 2]}
    assert found["longer"]["win_rate"] == 62.5


# ----------------------------------------------------------------------------------------------------------- scaffolds


def test_each_kind_passes_its_test(ended: Callable[[str], str]) -> None:
    assert f"{len(KINDS)} passed" in ended("tests of scaffolds")


def test_a_run_of_a_method_an_annotator_a_judge_a_reward_model_and_an_evaluator(ended: Callable[[str], str]) -> None:
    record = json.loads(ended("run"))
    figures = {result["evaluator"]: result["metrics"] for result in record["results"]}
    assert 0 <= figures["my-evaluator"]["my_evaluator_win_rate"] <= 100
    assert record["judged_by"] == "the formula my-judge:shorter, margin 0"
    assert [row["win_rate"] for row in json.loads(ended("command"))] == [figures["win_rate"]["win_rate"]]


def test_a_study_and_a_data_set(ended: Callable[[str], str]) -> None:
    assert "4 runs" in ended("study")
    assert "keeps what its interface promises" in ended("dataset")
