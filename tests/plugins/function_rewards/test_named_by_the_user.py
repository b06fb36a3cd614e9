"""Functions in whole runs: only the command line or a Python call lets their code in, wherever stages are made."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import Any

import light_forks
import pytest
import yaml
from light_farm import Make
from light_plugin import RAN
from said import Afarm

from afarm import ConfigError, Instruction, Score, TrainContext
from afarm.experiments import merge
from afarm.storage import named_code
from afarm_plugins.bundles.archive import MANIFEST, write_archive

CODE = """
from pathlib import Path

Path(__file__).with_suffix(".ran").touch()

def length(completions):
    return [float(len(c)) for c in completions]

def seeds(completions):
    import torch

    torch.manual_seed(len(completions))
    return [float(torch.rand(1)) for c in completions]

def half(completions):
    return [len(c) / 2 for c in completions]
"""
NAMED = "function:rewards.py:length"


@pytest.fixture(autouse=True)
def code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file of functions in the current directory, which nobody has named yet."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(named_code, "_given", [])
    path = tmp_path / "rewards.py"
    path.write_text(CODE)
    return path


def ran(code: Path) -> bool:
    """Tell if the file was executed since it was last asked."""
    mark = code.with_suffix(".ran")
    was_there = mark.exists()
    mark.unlink(missing_ok=True)
    return was_there


def test_a_python_call_names_a_function_and_an_edit_of_its_file_trains_again(farm: Make, code: Path) -> None:
    farm(reward_model=NAMED).train("nudge")
    assert "fit-reward" not in " ".join(RAN)
    same = farm(reward_model="function:./rewards.py:length")
    same.train("nudge")
    assert same.workspace.history["train nudge"].reused
    other = farm(reward_model="function:rewards.py:half")
    other.train("nudge")
    assert not other.workspace.history["train nudge"].reused
    code.write_text(CODE + "\n")
    edited = farm(reward_model=NAMED)
    edited.train("nudge")
    assert not edited.workspace.history["train nudge"].reused


def test_a_sum_weighs_what_it_names_and_its_weights_are_in_the_key(farm: Make) -> None:
    one = farm(reward_model="sum:function:rewards.py:length=2,function:rewards.py:half=-1")
    result = one.evaluate("nudge")
    alone = farm(reward_model="function:rewards.py:length").evaluate("nudge")
    assert result.metric("reward_reference") == pytest.approx(1.5 * alone.metric("reward_reference"))
    other = farm(reward_model="sum:function:rewards.py:length=2,function:rewards.py:half=-2")
    other.train("nudge")
    assert not other.workspace.history["train nudge"].reused


def test_a_recipe_cannot_name_code_unless_the_command_line_does(afarm: Afarm, code: Path) -> None:
    recipe = yaml.safe_load(Path("light.yaml").read_text())
    for settings in ({"reward_model": NAMED}, {"annotate": {"annotator": f"reward:{NAMED}"}}):
        Path("theirs.yaml").write_text(yaml.safe_dump(merge(recipe, settings)))
        said = afarm("run", "--recipe", "theirs.yaml", "--dry-run")
        assert said.code == 1
        assert "'rewards.py:length' names code, and a recipe or a stored file may be anybody's" in said.err
    theirs = {**recipe, "sweep": {"values": [f"reward_model={NAMED}"]}}
    Path("theirs.yaml").write_text(yaml.safe_dump(theirs))
    said = afarm("study", "sweep", "--recipe", "theirs.yaml", "--method", "nudge", "--dry-run")
    assert "a recipe or a stored file may be anybody's" in said.err
    assert not ran(code)
    Path("theirs.yaml").write_text(yaml.safe_dump({**recipe, "reward_model": NAMED}))
    said = afarm("run", "--recipe", "theirs.yaml", "--reward-model", NAMED, "--json")
    assert said.code == 0, said.err
    assert ran(code)
    assert said.json["headline"]["reward"] > 0


def test_a_run_is_bundled_and_replayed_without_its_function(
    afarm: Afarm, code: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert afarm("run", "--recipe", "light.yaml", "--reward-model", NAMED).code == 0
    [run] = Path("afarm-runs/runs").iterdir()
    assert ran(code)
    monkeypatch.setattr(named_code, "_given", [])
    assert afarm("bundle", run.name, "--out", "mine.zip").code == 0
    assert afarm("replay", "mine.zip").code == 0
    with zipfile.ZipFile("mine.zip") as archive:
        files = {name: archive.read(name) for name in archive.namelist() if name != MANIFEST}
    record = json.loads(files[f"runs/{run.name}/run.json"])
    hostile = {"judge": {"*": "offline:function:evil.py:length"}, "reward_model": "function:evil.py:length"}
    record["config"] = merge(record["config"], hostile)
    files[f"runs/{run.name}/run.json"] = json.dumps(record).encode()
    write_archive(Path("theirs.zip"), {"name": run.name}, files)
    evil = code.with_name("evil.py")
    evil.write_text(CODE)
    named_code.name_code("function:evil.py:length")  # even if this process was told of it
    said = afarm("replay", "theirs.zip", "--json")
    assert said.code in (0, 1), said.err
    assert not ran(evil)
    assert not ran(code)


def test_workers_of_a_launcher_load_what_the_command_named(
    afarm: Afarm, own_site: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (own_site / "light-1.2.dist-info" / "entry_points.txt").write_text("[afarm]\nlight = light_worker\n")
    light_forks.workers_are_forks(monkeypatch)
    command = ["run", "--recipe", "light.yaml", "--reward-model", f"sum:{NAMED}=0.5", "--json"]
    together = afarm(*command, "--launcher", "local:2", "--output-dir", "together")
    assert together.code == 0, together.err
    alone = afarm(*command, "--output-dir", "alone")
    assert together.json["headline"] == alone.json["headline"]
    assert together.json["headline"]["reward"] > 0


def test_files_are_judged_by_a_function_that_the_command_line_names(afarm: Afarm) -> None:
    for name, words in (("mine", "two words"), ("theirs", "one")):
        rows = [{"instruction": f"i{n}", "output": words} for n in range(4)]
        Path(f"{name}.json").write_text(json.dumps(rows))
    said = afarm("evaluate", "mine.json", "--reference", "theirs.json", "--annotator", f"reward:{NAMED}", "--json")
    assert said.code == 0, said.err
    assert said.json["headline"]["win_rate"] == 100


def test_a_stored_policy_opens_its_function_only_if_it_is_named(tmp_path: Path, policy: object) -> None:
    import torch

    from afarm.testing import KeyedReward, judge_context, train_context
    from afarm_plugins.best_of_n.best_of_n import BestOfNPolicy
    from afarm_plugins.function_rewards import FunctionConfig
    from afarm_plugins.function_rewards.function import FunctionReward

    named_code.name_code(NAMED)
    reward = FunctionReward(FunctionConfig(), "rewards.py:length", judge_context(KeyedReward()))
    (tmp_path / "saved").mkdir()
    BestOfNPolicy(policy, reward, n=2).save(tmp_path / "saved")  # type: ignore[arg-type]
    named_code.name_code("function:rewards.py:seeds")
    seeds, state = (
        FunctionReward(FunctionConfig(), "rewards.py:seeds", judge_context(KeyedReward())),
        torch.get_rng_state(),
    )
    seeds.score([Instruction("p")] * 3, ["a", "b", "c"])
    assert torch.equal(torch.get_rng_state(), state)
    context = train_context(tmp_path / "training")
    loaded = BestOfNPolicy.load(tmp_path / "saved", context)
    assert loaded.reward_model.identity == reward.identity
    named_code._given.clear()
    with pytest.raises(ConfigError, match="may be anybody's"):
        BestOfNPolicy.load(tmp_path / "saved", context)


def test_a_run_fits_the_part_of_a_sum_that_learns(farm: Make, tmp_path: Path) -> None:
    one = farm(reward_model=f"sum:words=1,{NAMED}=0.01")
    result = one.evaluate("nudge")
    assert "fit-reward" in one.workspace.history
    fitted = farm().evaluate("nudge")
    rule = farm(reward_model=NAMED).evaluate("nudge")
    expected = fitted.metric("reward_reference") + 0.01 * rule.metric("reward_reference")
    assert result.metric("reward_reference") == pytest.approx(expected)
    other = farm(reward_model=f"sum:words=1,{NAMED}=0.02")
    other.train("nudge")
    assert other.workspace.history["fit-reward"].reused
    assert not other.workspace.history["train nudge"].reused
    saved = tmp_path / "saved"
    saved.mkdir()
    model = one.fit_reward()
    model.save(saved)
    opened: Any = TrainContext(
        0,
        tmp_path,
        *[None] * 3,
        reward_model=one.workspace.components.reward_model,  # type: ignore[arg-type]
    )
    loaded = type(model).load(saved, opened)
    rows = [Instruction("p")], ["three words said"]
    assert loaded.score(*rows) == model.score(*rows) == [Score(3 + 0.01 * 16)]
    with pytest.raises(ConfigError, match="a run fits one reward model, not words and more_words"):
        farm(reward_model="sum:words=1,more_words=1").train("nudge")


@pytest.mark.parametrize("part", ["ewards.py:length", "rewards.py:len", "other.py:length"])
def test_a_part_of_a_name_lets_nothing_in(part: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(named_code, "_given", [])
    named_code.name_code("sum:bradley_terry=1,function:rewards.py:length=0.1")
    named_code.require_named("rewards.py:length")
    with pytest.raises(ConfigError, match="may be anybody's"):
        named_code.require_named(part)
