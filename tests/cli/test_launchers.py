"""`--launcher`: the same artifacts, made side by side in other processes, and every failure told once."""

from __future__ import annotations

import json
import os
import re
import sqlite3
import subprocess
from collections.abc import Iterator
from pathlib import Path

import light_forks
import pytest
from counting_server import CountingServer
from purchases import purchases
from said import Afarm, Said
from waiting import LIMIT

from afarm.cli import launch
from afarm.experiment import tasks
from afarm.experiment.process_info import ProcessInfo
from afarm_plugins.local_workers.launcher import LocalLauncher

LIGHT = ["--recipe", "light.yaml"]
TWO = ["--launcher", "local:2"]


@pytest.fixture
def workers(afarm: Afarm, own_site: Path) -> Afarm:
    """The command line with the light plugin installed for worker processes as well."""
    (own_site / "light-1.2.dist-info" / "entry_points.txt").write_text("[afarm]\nlight = light_worker\n")
    return afarm


@pytest.fixture
def forks(workers: Afarm, monkeypatch: pytest.MonkeyPatch) -> Afarm:
    """The same with worker processes that start faster."""
    light_forks.workers_are_forks(monkeypatch)
    return workers


def contents(output_dir: str) -> dict[str, str]:
    """The digest of the files of each artifact, by its name."""
    found = Path(output_dir).glob("artifacts/*/*/artifact.json")
    return {str(path.parent.relative_to(output_dir)): json.loads(path.read_text())["content"] for path in found}


def lines(said: Said, mark: str) -> list[str]:
    return [line for line in said.err.splitlines() if line.startswith(mark)]


def test_stages_side_by_side_make_what_one_process_makes(workers: Afarm) -> None:
    compared = ["compare", *LIGHT, "--methods", "nudge,direct", "--json"]
    alone = workers(*compared, "--output-dir", "alone")
    together = workers(*compared, "--output-dir", "together", *TWO)
    assert together.code == 0, together.err
    assert contents("together") == contents("alone")
    for ours, theirs in zip(together.json["standings"], alone.json["standings"], strict=True):
        assert (ours["system"], ours["win_rate"]) == (theirs["system"], theirs["win_rate"])
    assert "on 2 worker processes of this machine, at most 2 at once" in together.err
    made = lines(together, "✓")
    assert len(made) == len(set(made)) == len(contents("alone")), "each stage is made, and told of, once"
    assert len({task["place"] for task in together.json["tasks"]}) == 2, "two processes made them"
    paid, answers = purchases(Path("together/ledger.sqlite"))
    assert paid == answers > 0, "no answer is bought twice"
    assert (paid, answers) == purchases(Path("alone/ledger.sqlite")), "none that one process would not buy"


@pytest.mark.parametrize(("directories", "launcher"), [(("one", "one"), TWO), (("one", "other"), [])])
def test_two_commands_at_once_buy_each_answer_once(
    forks: Afarm, directories: tuple[str, str], launcher: list[str]
) -> None:
    """Two real commands of one comparison, in one output directory or with only a ledger in common. The judge counts.

    In one directory a lock lets one of them make an artifact; else both want each answer at once, and claims decide.
    """
    with CountingServer(seconds=0.05).running() as server:
        compared = ["compare", *LIGHT, "--methods", "nudge,direct", "--judge", f"asked:{server.port}", "--json"]
        alone = forks(*compared, "--output-dir", "alone")
        assert alone.code == 0, alone.err
        asked_alone, said_by = dict(server.calls), [Path("first"), Path("second")]
        drivers = [
            light_forks.start([*compared, *launcher, "--ledger", "ledger.sqlite", "--output-dir", directory], said)
            for directory, said in zip(directories, said_by, strict=True)
        ]
        for driver in drivers:
            driver.join(LIMIT)
    assert [driver.exitcode for driver in drivers] == [0, 0], [(said / "stderr").read_text() for said in said_by]
    for directory in directories:
        assert contents(directory) == contents("alone")
    assert server.calls == dict.fromkeys(asked_alone, 2), "once by one process, once by both commands"
    assert purchases(Path("ledger.sqlite")) == (len(asked_alone), len(asked_alone))


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of half a megabyte, mounted where policies go."""
    (disk := tmp_path / "together/artifacts/train").mkdir(parents=True)
    mount = ["mount", "-t", "tmpfs", "-o", "size=512k", "tmpfs", str(disk)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True).returncode != 0:
        pytest.skip("needs root, to mount a small disk")
    yield disk
    subprocess.run(["umount", "--lazy", str(disk)], check=True)


def test_a_full_disk_is_named_by_the_stage_and_nothing_is_lost(forks: Afarm, small_disk: Path) -> None:
    """The disk of a worker is full where a policy is written; what came before stays."""
    asked = ["run", *LIGHT, "--method", "direct", "--ledger", "ledger.sqlite"]
    assert forks(*asked, "--output-dir", "alone").code == 0
    ballast = small_disk / "ballast"
    ballast.write_bytes(bytes(2**19 - 2**13))
    full = forks(*asked, "--output-dir", "together", *TWO)
    assert full.code == 1
    assert re.search(r"✗ train direct: .* cannot be written: No space left on device", full.err), full.err
    made = contents("together")
    assert made
    ballast.unlink()
    again = forks(*asked, "--output-dir", "together", *TWO)
    assert again.code == 0, again.err
    assert made.items() < contents("together").items() == contents("alone").items()
    paid, answers = purchases(Path("ledger.sqlite"))
    assert paid == answers, "what was bought before the disk was full is not bought again"


def test_the_record_says_what_this_command_made(forks: Afarm) -> None:
    record = forks("run", *LIGHT, "--json", *TWO).json
    assert not any(stage["reused"] for stage in record["stages"])
    spend = record["spend"]
    assert spend["this_time"]["calls"] == spend["calls"] > 0, "what the workers bought, this command bought"
    again = forks("run", *LIGHT, "--json", *TWO)
    assert (again.json["spend"]["this_time"]["calls"], again.json["spend"]["calls"]) == (0, spend["calls"])
    assert all(stage["reused"] for stage in again.json["stages"])
    assert lines(again, "…") == [], "nothing is left to be launched"


def test_a_killed_worker_is_told_of_and_its_stage_goes_on_from_its_checkpoint(forks: Afarm) -> None:
    said = forks("compare", *LIGHT, "--methods", "direct,killed", *TWO)
    assert said.code == 0, said.err
    assert "↻ train killed: lost (process" in said.err
    assert "ended by SIGKILL), run again" in said.err
    assert "train killed: train killed: going on from step 1" in said.err
    alone = forks("run", *LIGHT, "--method", "direct", "--output-dir", "alone")
    assert alone.code == 0
    assert contents("alone").items() <= contents("afarm-runs").items()


def test_a_node_with_another_code_is_named_before_any_stage_begins(
    forks: Afarm, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LocalLauncher, "nodes_at_once", LocalLauncher.nodes)
    assert forks("run", *LIGHT, "--output-dir", "same", *TWO).code == 0
    monkeypatch.setattr(tasks, "code_digest", lambda kind: f"edited {kind}")  # in the command's process alone
    said = forks("run", *LIGHT, *TWO)
    assert said.code == 1
    assert ": another code of afarm: install the same on every machine" in " ".join(said.err.split())
    assert lines(said, "…") == []
    assert contents("afarm-runs") == {}


def test_a_failed_stage_stops_only_what_comes_after_it(forks: Afarm) -> None:
    said = forks("compare", *LIGHT, "--methods", "diverges,direct", "--json", *TWO)
    assert said.code == 1
    assert "✗ train diverges: step 3: the loss is [nan]" in said.err
    assert "– outputs diverges: not begun, since train diverges failed" in said.err
    assert [row["system"] for row in said.json["standings"]] == ["direct"]
    assert "the loss is [nan] (in train diverges" in said.json["left_out"]["diverges"]


def test_all_workers_share_one_budget(forks: Afarm) -> None:
    said = forks("run", *LIGHT, "--budget", "0.014", *TWO)
    assert said.code == 1
    assert "budget" in said.err.splitlines()[-1]
    spent = sqlite3.connect("afarm-runs/ledger.sqlite").execute("select sum(price) from completions").fetchone()[0]
    assert 0 < spent <= 0.014 + 1e-9


def test_a_study_makes_its_runs_side_by_side(forks: Afarm) -> None:
    swept = ["study", "sweep", *LIGHT, "--method", "nudge", "--values", "nudge.skill=0.1,0.9", "--json"]
    alone = forks(*swept, "--output-dir", "alone")
    together = forks(*swept, "--output-dir", "together", *TWO)
    assert together.code == 0, together.err
    assert together.json["runs"] == alone.json["runs"]
    assert contents("together") == contents("alone")


def test_a_study_whose_budget_ends_reports_the_runs_that_are_whole(forks: Afarm) -> None:
    swept = ["study", "sweep", *LIGHT, "--method", "nudge", "--values", "nudge.skill=0.1,0.4,0.6,0.9"]
    first = forks("run", *LIGHT, "--method", "nudge", "--set", "nudge.skill=0.1", "--json", "--output-dir", "first")
    budget = first.json["spend"]["dollars"] + 0.004
    said = forks(*swept, "--budget", str(budget), *TWO)
    assert said.code == 1
    assert "budget" in said.err
    [page] = Path("afarm-runs/studies").glob("*/report.md")
    assert "Not all is here: 1 of 4 runs are there, 3 missing" in page.read_text()


def test_tuning_makes_its_trials_side_by_side_and_decides_as_one_process_does(forks: Afarm) -> None:
    searched = ["tune", *LIGHT, "--methods", "nudge,direct", "--space", "nudge.skill=0.1:0.9", "--trials", "2"]
    searched += ["--space", "direct.skill=0.1:0.9"]
    searched += ["--finalists", "2", "--seeds", "1,2", "--json"]
    alone = forks(*searched, "--output-dir", "alone")
    together = forks(*searched, "--output-dir", "together", *TWO)
    assert together.code == 0, together.err
    assert contents("together") == contents("alone")
    for part in ("trials", "finals"):
        for method in ("nudge", "direct"):
            rates = [[trial["win_rate"] for trial in said.json[part][method]] for said in (together, alone)]
            assert rates[0] == rates[1]
    first = together.err.index("nudge, trial 1 of 2")
    assert "✓ train direct" in together.err[:first], "the first trials of both methods are made at once"
    assert "train nudge, seed 2" in together.err


@pytest.mark.parametrize(
    ("launcher", "problem"),
    [
        ("locla:2", "unknown launcher 'locla'. Did you mean 'local'?"),
        ("slurm:gpu", "unknown launcher 'slurm'. 'afarm-slurm' brings it; install it with: pip install afarm-slurm"),
        ("local:none", "launcher local:none: write how many stages may run at once, such as local:2"),
        ("local:0", "launcher local:0: write how many"),
    ],
)
def test_a_wrong_launcher_is_named_before_anything_runs(afarm: Afarm, launcher: str, problem: str) -> None:
    for command in (["run"], ["compare", "--methods", "nudge"], ["compare", "--methods", "nudge", "--dry-run"]):
        said = afarm(*command, *LIGHT, "--launcher", launcher)
        assert said.code == 1
        assert problem in " ".join(said.err.split())
        assert "AFARM_TRACEBACK" not in said.err, "no plugin failed"
        assert said.out == "", "no plan is shown before"
    assert contents("afarm-runs") == {}


@pytest.mark.parametrize("command", [["run"], ["compare", "--methods", "nudge,direct"]])
def test_a_launcher_and_accelerate_contradict_each_other(
    command: list[str], afarm: Afarm, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Processes that each began the launcher's workers would wait for each other for ever."""
    monkeypatch.setattr(launch, "relaunch", lambda name: pytest.fail(f"several processes by {name}"))
    said = afarm(*command, *LIGHT, *TWO, "--accelerate-config", "two_processes")
    assert said.code == 1
    assert "--launcher and --accelerate-config contradict each other" in said.err


def test_a_launcher_is_no_matter_of_several_processes(afarm: Afarm, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "process_info", lambda: ProcessInfo(0, 2))
    said = afarm("run", *LIGHT, *TWO)
    assert said.code == 1
    assert "--launcher local:2 is started in one process, and these are several" in said.err


def test_a_dry_run_says_what_would_be_asked_for(afarm: Afarm) -> None:
    compared = ["compare", *LIGHT, "--methods", "nudge,direct", "--seeds", "1,2", "--dry-run"]
    said = afarm(*compared, *TWO)
    assert said.code == 0, said.err
    [asked] = [line for line in said.out.splitlines() if line.startswith("Asked of")]
    assert asked == "Asked of 2 worker processes of this machine: 22 stages, at most 2 at once."
    asked_for = afarm(*compared, "--launcher", "local:9", "--json").json["launcher"]
    assert asked_for["at_once"] == 4, "no more stages can run side by side, whatever the processes"
    kinds = {row["kind"]: row for row in asked_for["kinds"]}
    assert sum(row["stages"] for row in kinds.values()) == asked_for["stages"] == 22
    assert (kinds["evaluate"]["stages"], kinds["evaluate"]["at_once"]) == (4, 2), "those of a seed wait for each other"
    assert [kind for kind, row in kinds.items() if row["asks_judges"]] == ["annotate", "evaluate"]
    assert {row["cpus"] for row in kinds.values()} == {0}, "worker processes reserve nothing"
    assert not Path("afarm-runs").exists()


def test_a_dry_run_of_a_study_says_what_its_runs_would_ask_for(afarm: Afarm) -> None:
    swept = ["study", "sweep", *LIGHT, "--method", "nudge", "--values", "nudge.skill=0.1,0.9", "--dry-run"]
    said = afarm(*swept, *TWO)
    assert "Asked of 2 worker processes of this machine: " in said.out, said.err
    asked_for = afarm(*swept, *TWO, "--json").json["launcher"]
    kinds = {row["kind"]: row["stages"] for row in asked_for["kinds"]}
    assert (asked_for["runs"], kinds["train"], kinds["annotate"]) == (2, 2, 1), "what runs share is asked for once"


def test_the_local_launcher_without_a_number_is_this_process(afarm: Afarm) -> None:
    assert afarm("run", *LIGHT, "--launcher", "local").code == 0
