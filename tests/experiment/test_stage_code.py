"""Artifact keys by room: each kind of stage digests all code that it can reach, and nothing else."""

from __future__ import annotations

import ast
import shutil
import sys
import threading
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from light_farm import Make, light_farm
from light_plugin import RAN, CountingJudge
from syntax import AFARM, ALL, Module, within

from afarm import compare_outputs
from afarm.core.plugins import discover
from afarm.core.records import Instruction, Output
from afarm.core.registry import FIRST_PARTY, Component
from afarm.experiment.stage_code import DOOR_CODE, DOORS, PACKAGE, STAGE_CODE, code_digest
from afarm.experiment.workspace import Workspace

MODULES = {module.name: module for module in ALL}
DOOR = next(module for module in AFARM if module.name == "afarm")

STAGE_MODULES = {
    "base": "afarm.experiment.training_stages",
    "train": "afarm.experiment.training_stages",
    "fit-reward": "afarm.experiment.training_stages",
    "sample": "afarm.experiment.sampling_stages",
    "outputs": "afarm.experiment.sampling_stages",
    "answers": "afarm.experiment.llm_baselines",
    "annotate": "afarm.experiment.annotation",
    "preferences": "afarm.experiment.preferences",
    "feedback": "afarm.experiment.preferences",
    "evaluate": "afarm.experiment.evaluation_stages",
    "compare": "afarm.experiment.comparison.outputs",
    "decide": "afarm.experiment.comparison.until_decided",
    "stored annotations": "afarm.experiment.comparison.annotations",
}
"""The module with the function that lays out each kind of stage."""

JUDGES = "afarm.experiment.judges"
"""What a workspace hands to stages that ask judges, without their module importing it."""

TRAINS = frozenset({"base", "train", "fit-reward"})
SAMPLES = frozenset({"sample", "outputs"})
COMPARES = frozenset({"compare", "decide", "stored annotations"})
EVALUATES = COMPARES | {"evaluate"}
ASKS = EVALUATES | {"annotate", "answers"}

PLUGINS_OF = {
    "train": ("methods", "reward_models", "samplers"),
    "fit-reward": ("reward_models",),
    "sample": ("methods", "samplers"),
    "outputs": ("methods", "samplers"),
    "answers": ("judges",),
    "annotate": ("annotators", "judges", "reward_models"),
    "evaluate": ("annotators", "judges", "reward_models", "evaluators"),
    "compare": ("annotators", "judges", "reward_models", "evaluators"),
    "stored annotations": ("evaluators",),
}
"""The kinds of component that a kind of stage runs."""

OF_ANOTHER_COMPONENT = {"afarm_plugins.toy.gold": "its evaluator takes the standard error, its reward model does not"}
"""Modules with several components, which take names for the one that other stages run."""


# ---------------------------------------------------------------------------------------------- what a stage reaches


def imported(module: Module) -> Iterator[str]:
    """The modules that running `module` can import: inside functions too, and through the door that a name is of."""
    for found in module.imports:
        if found.typing or found.module.endswith(".command"):  # a plugin's command line is no part of what it makes
            continue
        if found.module == "afarm" and found.name:  # the module of the name, not the door, which only hands it on
            yield from (behind.module for behind in DOOR.imports if found.name in (behind.name, behind.module))
        elif found.module in MODULES and found.module != "afarm":
            yield found.module


@cache
def neighbours(name: str) -> tuple[str, ...]:
    """What `name` imports, and the package that it lies in."""
    package = name.rpartition(".")[0]
    return *imported(MODULES[name]), *([package] if package not in ("", "afarm", "afarm_plugins") else [])


def reached(roots: Iterable[str]) -> set[str]:
    """All modules of ours that the roots can reach, with the packages that they lie in."""
    found: set[str] = set()
    waiting = list(roots)
    while waiting:
        name = waiting.pop()
        if name not in found:
            found.add(name)
            waiting += neighbours(name)
    return found


def reached_by(stage: str) -> set[str]:
    return reached([STAGE_MODULES[stage], *([JUDGES] if stage in ASKS else [])])


@cache
def first_party() -> list[Component]:
    return [component for component in discover().registry if component.package == FIRST_PARTY]


def reached_by_plugins(stage: str) -> set[str]:
    """What the components of ours can reach that a kind of stage runs."""
    kinds = PLUGINS_OF.get(stage, ())
    registered = [component.target for component in first_party() if component.kind in kinds]
    targets = {target.partition(":")[0] if isinstance(target, str) else target.__module__ for target in registered}
    return reached(targets if "evaluators" in kinds else targets - OF_ANOTHER_COMPONENT.keys())


def digested(stage: str, path: Path) -> bool:
    """Tell if a file of the package is part of the key of a kind of stage."""
    return any(path.is_relative_to(PACKAGE / part) for part in STAGE_CODE[stage])


def missing(stage: str, names: Collection[str]) -> list[str]:
    return sorted(n for n in names if within(n, "afarm") and not digested(stage, MODULES[n].path))


def test_every_kind_of_stage_has_a_module() -> None:
    assert STAGE_MODULES.keys() == STAGE_CODE.keys()


@pytest.mark.parametrize("stage", STAGE_CODE)
def test_every_module_that_a_stage_can_reach_is_in_its_key(stage: str) -> None:
    assert missing(stage, reached_by(stage)) == []


@pytest.mark.parametrize("stage", STAGE_CODE)
def test_nothing_is_in_a_key_that_the_stage_cannot_reach(stage: str) -> None:
    paths = [MODULES[name].path for name in reached_by(stage) | reached_by_plugins(stage)]
    code = [part for part in STAGE_CODE[stage] if not part.endswith(".yaml")]
    assert [part for part in code if not any(p.is_relative_to(PACKAGE / part) for p in paths)] == []


@pytest.mark.parametrize("stage", STAGE_CODE)
def test_what_shows_results_is_in_no_key(stage: str) -> None:
    for room in ("report", "cli", "testing"):
        assert not any(digested(stage, module.path) for module in AFARM if module.room == room)


@pytest.mark.parametrize("stage", PLUGINS_OF)
def test_what_plugins_take_from_the_doors_is_in_the_keys_of_the_stages_that_run_them(stage: str) -> None:
    assert missing(stage, reached_by_plugins(stage)) == []


def test_what_trains_and_samples_never_touches_the_judges() -> None:
    """Its key would have to digest how judges are asked. A method that asks is given an annotator, its key has that."""
    for stage in TRAINS | SAMPLES:
        tree = MODULES[STAGE_MODULES[stage]].tree
        assert not any(isinstance(node, ast.Attribute) and node.attr == "judges" for node in ast.walk(tree)), stage


def test_the_door_only_hands_names_on() -> None:
    """It is in no key."""
    functions = {node.name for node in DOOR.functions()}
    assert functions <= {"__getattr__", "__dir__"}
    assert not any(isinstance(node, ast.ClassDef) for node in ast.walk(DOOR.tree))


# ------------------------------------------------------------------------------------------------- what a stage runs


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch) -> Mapping[str, set[str]]:
    """The files of afarm whose code ran while stages were written, by their kind."""
    files: dict[str, set[str]] = {}
    writing: list[str] = []
    make: Any = Workspace._make
    # The judge of the light plugin writes its answers with the kit for tests.
    ours, kit = f"{PACKAGE}/", f"{PACKAGE}/testing/"

    def watch(frame: FrameType, event: str, argument: object) -> None:
        file = frame.f_code.co_filename
        if event == "call" and writing and file.startswith(ours) and not file.startswith(kit):
            files[writing[-1]].add(file)

    def watched(self: Workspace, stage: Any, *others: Any) -> Any:
        def write(directory: Path, inputs: Any) -> Any:
            kind = stage.key_fields["stage"]
            files.setdefault(kind, set())
            writing.append(kind)
            threading.setprofile(watch)
            sys.setprofile(watch)
            try:
                return stage.write(directory, inputs)
            finally:
                sys.setprofile(None)
                threading.setprofile(None)
                writing.pop()

        return make(self, replace(stage, write=write), *others)

    monkeypatch.setattr(Workspace, "_make", watched)
    return files


def test_every_module_that_runs_while_a_stage_is_written_is_in_its_key(
    farm: Make, ran: Mapping[str, set[str]], tmp_path: Path
) -> None:
    one = farm()
    one.evaluate("nudge")
    one.evaluate("writing:9")
    words = [Output(Instruction(f"i{n}"), "word " * (1 + n), "mine") for n in range(4)]
    compare_outputs(words, [replace(row, output="word", generator="theirs") for row in words], farm=one)
    (tmp_path / "own.jsonl").write_text('{"prompt": "p", "chosen": "x", "rejected": "y"}')
    farm(preferences=tmp_path / "own.jsonl").annotate()
    thumb = '{"prompt": "p", "completion": "word", "label": %s}\n'
    (tmp_path / "thumbs.jsonl").write_text(thumb % "true" + thumb % "false")
    farm(preferences=tmp_path / "thumbs.jsonl").train("thumbs")
    assert ran.keys() == STAGE_CODE.keys() - {"decide", "stored annotations"}
    for stage, files in ran.items():
        assert files, stage
        assert {file for file in files if not digested(stage, Path(file))} == set(), stage


def test_what_a_strangers_component_can_reach_through_the_doors_is_in_its_identity(farm: Make) -> None:
    components = farm().workspace.components
    ours, theirs = components.component("annotators", "pool"), components.component("methods", "nudge")
    assert (ours.package == FIRST_PARTY, theirs.package == FIRST_PARTY) == (True, False)
    assert "doors" not in components.identity(ours)
    assert components.identity(theirs)["doors"] == code_digest(DOORS)
    behind = [DOOR, *(MODULES[f"afarm.{room}"] for room in ("judging", "backend"))]
    imported = {found.module for door in behind for found in door.imports} & MODULES.keys()
    whole_farms = {"afarm.experiment.farm", "afarm.experiment.result", "afarm.experiment.comparison.compare"}
    whole_farms |= {
        name
        for name in imported
        if name.startswith(("afarm.experiment.studies.", "afarm.evaluation.agreement", "afarm.evaluation.labels"))
    }
    where_stages_run = {"afarm.experiment.launching.launcher", "afarm.experiment.launching.schedule"}
    others = imported - whole_farms - where_stages_run
    paths = {name: MODULES[name].path.relative_to(PACKAGE).as_posix() for name in others}
    missing = {name for name, path in paths.items() if not path.startswith(DOOR_CODE)}
    assert {"afarm.judging.pairwise", "afarm.backend.policy", "afarm.evaluation.metrics"} <= paths.keys()
    assert missing == set()


def test_a_method_that_asks_has_the_code_of_labels_in_its_key(farm: Make, ran: Mapping[str, set[str]]) -> None:
    one = farm()
    one.train("online")
    key_fields = one.workspace.history["train online"].artifact.key_fields
    assert key_fields["annotator"]["afarm"] == code_digest("annotate")
    files = [Path(file) for file in ran["train"]]
    assert all(digested("train", file) or digested("annotate", file) for file in files)
    assert not all(digested("train", file) for file in files), "or it has not asked"


# ---------------------------------------------------------------------------------------------------- what an edit does

EVERYTHING = frozenset(STAGE_CODE)
EDITS: dict[str, Collection[str]] = {
    "core/records.py": EVERYTHING,
    "storage/rows.py": EVERYTHING,
    "backend/objectives.py": EVERYTHING,
    "judging/dispatch.py": ASKS,
    "evaluation/matching.py": EVALUATES,
    "evaluation/statistics/sequential.py": {"decide"},
    "evaluation/judge_flags.py": EVALUATES,
    "experiment/components.py": EVERYTHING,
    "experiment/training_stages.py": TRAINS,
    "experiment/sampling_stages.py": SAMPLES,
    "experiment/preferences.py": {"preferences", "feedback"},
    "experiment/annotation.py": ASKS - {"answers"},
    "experiment/llm_baselines.py": {"answers"},
    "experiment/evaluation_stages.py": EVALUATES,
    **dict.fromkeys(
        (
            f"experiment/{name}.py"
            for name in ("dry_run", "farm", "opening", "pipeline", "preflight", "run_record", "tasks")
        ),
        (),
    ),
    "experiment/comparison/outputs.py": COMPARES,
    "experiment/comparison/until_decided.py": {"decide"},
    "experiment/comparison/annotations.py": {"stored annotations"},
    "experiment/launching/schedule.py": (),
    "evaluation/boards/board.py": (),
    "evaluation/agreement.py": (),
    "report/run_page.py": (),
    "results/stored_run.py": (),
    "experiments/__init__.py": (),
    "experiment/studies/study.py": (),
    "cli/run.py": (),
    "testing/methods.py": (),
    "recipes/toy.yaml": (),
}
"""A file of each room, and the kinds of stage that are made again when it is edited."""


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    copy = tmp_path_factory.mktemp("edited") / "afarm"
    shutil.copytree(PACKAGE, copy, ignore=shutil.ignore_patterns("__pycache__"))
    return copy


def digests(package: Path) -> dict[str, str]:
    code_digest.cache_clear()  # the code is looked at once per process: this is the next one
    return {stage: code_digest(stage, package) for stage in STAGE_CODE}


@pytest.fixture(scope="module")
def unedited(package: Path) -> dict[str, str]:
    return digests(package)


def test_a_file_of_each_room_is_edited() -> None:
    rooms = {path.name for path in PACKAGE.iterdir() if path.is_dir() and path.name != "__pycache__"}
    assert {name.partition("/")[0] for name in EDITS} == rooms


@pytest.mark.parametrize("file", EDITS)
def test_an_edit_changes_the_keys_of_the_stages_that_it_can_change(
    file: str, package: Path, unedited: dict[str, str]
) -> None:
    text = (package / file).read_text()
    (package / file).write_text(f"{text}# an edited comment\n")
    try:
        after = digests(package)
    finally:
        (package / file).write_text(text)
    assert {stage for stage in STAGE_CODE if unedited[stage] != after[stage]} == set(EDITS[file])


@pytest.mark.parametrize(
    ("room", "again"),
    [
        ("judging", {"annotate", "evaluate nudge against base"}),
        ("evaluation/metrics.py", {"evaluate nudge against base"}),
        ("evaluation/statistics", set()),
        ("experiment/comparison/outputs.py", set()),
    ],
)
def test_after_an_edit_only_the_stages_that_it_can_change_are_made_again(
    room: str, again: set[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with light_farm(tmp_path, "start=model") as first:
        first.evaluate()
    RAN.clear()
    asked = CountingJudge.asked

    def edited(stage: str) -> str:
        return f"{'edited ' if room in STAGE_CODE[stage] else ''}{code_digest(stage)}"

    monkeypatch.setattr("afarm.experiment.workspace.code_identity", edited)
    with light_farm(tmp_path, "start=model") as second:
        second.evaluate()
    assert {label for label, run in second.workspace.history.items() if not run.reused} == again
    assert RAN == [], "nothing trains or samples"
    assert CountingJudge.asked == asked, "labels come from the ledger"
