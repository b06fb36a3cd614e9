"""A method is a folder, a line among the entry points and a page of documentation: nothing else is touched for one."""

from __future__ import annotations

import importlib.metadata
import json
from pathlib import Path

import pytest
import warm
from syntax import ROOT

from afarm.core.plugins import discover
from afarm.core.registry import FIRST_PARTY, Component

WITHOUT_A_PAGE = {"sft_all", "base"}
"""Baselines, which the page of `sft` and the index describe."""

INIT = """
from afarm import hookimpl, setting
from afarm.core.config import Config


class ScratchConfig(Config):
    copies: int = setting(2, "times that the best demonstration is learned", ge=1)


@hookimpl
def register_methods(register):
    register("scratch", "scratch.scratch:Scratch", config=ScratchConfig, summary="SFT on the best half")
"""

METHOD = '''
from afarm import Method
from afarm import TrainerConfig
from afarm.backend import CheckpointPolicy, fit_supervised


class Scratch(Method):
    """Learns the half of the demonstrations that the reward model prefers."""

    needs = frozenset({"demonstrations", "reward_model"})

    def train(self, inputs, context) -> CheckpointPolicy:
        rows = inputs.demonstrations
        scores = inputs.reward_model.score([row.instruction for row in rows], [row.output for row in rows])
        ranked = sorted(zip(scores, rows), key=lambda scored: -scored[0].value)
        best = [row for _, row in ranked[: len(ranked) // 2]] * self.config.copies
        examples, _ = inputs.start.template.encode([r.instruction for r in best], [r.output for r in best], 96)
        config = TrainerConfig(num_train_epochs=1, per_device_train_batch_size=8, max_length=96)
        return fit_supervised(inputs.start.copy(), examples, config, context, "scratch", {})
'''

TINY = [
    "toy={sft: 48, preference: 32, unlabeled: 16, validation: 16, evaluation: 16}",
    *("rows={sft: 24, preference: 16, unlabeled: 8, validation: 8, evaluation: 8}", "sft.num_train_epochs=1"),
    *("bradley_terry.num_train_epochs=1", "evaluate.max_new_tokens=8", "sample.max_new_tokens=8"),
]


@pytest.fixture
def scratch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory to work in, on Python's path: the folder, and the entry point as an installed package has it."""
    (tmp_path / "scratch").mkdir()
    (tmp_path / "scratch" / "__init__.py").write_text(INIT)
    (tmp_path / "scratch" / "scratch.py").write_text(METHOD)
    info = tmp_path / "scratch-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Name: scratch\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[afarm]\nscratch = scratch\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def afarm(*arguments: str) -> tuple[int | None, str, str]:
    """Run the command in a process that has its imports: its exit code, and what it printed on stdout and stderr."""
    said = Path("said")
    process = warm.start(arguments, said)
    process.join(300)
    return process.exitcode, (said / "stdout").read_text(), (said / "stderr").read_text()


@pytest.mark.xdist_group("end_to_end")  # which imports what trains in one process, for all of its tests
def test_a_scratch_method_runs_with_everything_that_methods_share(scratch: Path) -> None:
    settings = [word for setting in TINY for word in ("--set", setting)]
    code, out, err = afarm("run", "--method", "scratch", "--set", "scratch.copies=1", *settings, "--json")
    assert code == 0, err
    record = json.loads(out)
    assert record["method"] == "scratch"
    assert {"train scratch", "fit-reward", "outputs scratch"} <= {stage["stage"] for stage in record["stages"]}
    assert record["headline"]["win_rate"] is not None
    assert (scratch / record["report"]).is_file()


@pytest.mark.xdist_group("end_to_end")
@pytest.mark.usefixtures("scratch")
def test_it_is_listed_and_its_settings_are_checked_like_any_other_s() -> None:
    _, listed, _ = afarm("plugins")
    assert "scratch" in listed
    code, _, refused = afarm("run", "--method", "scratch", "--set", "scratch.copys=3")
    assert code == 1
    assert "scratch.copys: unknown setting. Did you mean 'copies'?" in refused


def first_party_methods() -> list[Component]:
    return [c for c in discover().registry if c.kind == "methods" and c.package == FIRST_PARTY]


@pytest.mark.parametrize("method", first_party_methods(), ids=lambda method: method.name)
def test_each_of_our_methods_is_a_folder_an_entry_point_and_a_page(method: Component) -> None:
    if method.name in WITHOUT_A_PAGE:
        assert f"`{method.name}`" in (ROOT / "docs" / "methods" / "README.md").read_text()
        return
    assert (ROOT / "afarm_plugins" / method.name / "__init__.py").is_file()
    ours = {point.name for point in importlib.metadata.entry_points(group="afarm")}
    assert method.name in ours
    page = (ROOT / "docs" / "methods" / f"{method.name}.md").read_text()
    assert method.config is not None
    for name in method.config.model_fields:
        assert f"`{name}" in page or f" `{name}`" in page, f"docs/methods/{method.name}.md says nothing of {name}"
    index = (ROOT / "docs" / "reference" / "methods.md").read_text()
    assert f"(../methods/{method.name}.md)" in index
