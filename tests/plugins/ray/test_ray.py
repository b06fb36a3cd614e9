"""The launcher `ray`: on a cluster made here, and on two machines of which one is killed."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from launches import finish, launched
from places import ROOT
from plugin_site import installed, light_recipe
from postgres_server import USER, PostgresServer
from postgres_server import why_not as no_server
from purchases import purchases
from s3_server import moto_command, s3_environment
from two_machines import ADDRESSES, LIMIT, PORT, SETTINGS, TwoMachines, contents, why_not
from waiting import wait_until

from afarm.backend.resume import SHARDS
from afarm.core.errors import ConfigError, PluginError
from afarm.core.plugins import discover
from afarm.experiment.launching.launcher import FarmSpec, Launcher, Needs, Outcome, StageTask, TaskEvent
from afarm.testing import check_launcher, judge_context

pytest.importorskip("psycopg")
pytest.importorskip("ray.exceptions", reason="Ray is not installed: make test-cluster")
pytestmark = pytest.mark.cluster

Environment = dict[str, str]


def launcher(spec: str, **settings: object) -> Launcher:
    component = discover().get("launchers", "ray")
    made: Launcher = component.load()(component.settings(settings), spec, judge_context())
    return made


def test_it_keeps_the_promises_of_launchers(tmp_path: Path) -> None:
    check_launcher(launcher(""), tmp_path)


def test_an_address_that_is_none_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="write ray:HOST:PORT"):
        check_launcher(launcher("nonsense"), tmp_path)


def test_what_the_cluster_never_has_is_named_before_the_first_stage(tmp_path: Path) -> None:
    farm = FarmSpec("", {}, {}, str(tmp_path), str(tmp_path), "", "")
    for settings, problem in (
        ({"cpus": 9999}, "a stage asks for 9999 CPUs, which no node of the Ray cluster has"),
        ({"processes": 9999}, "9999 processes with 1 CPU each, and there is room for"),
    ):
        never, told = launcher("", **settings), list[TaskEvent]()
        task = StageTask("train", "train", "train", (), Needs(never.processes), farm)
        with pytest.raises(ConfigError, match=problem):
            never.run([task], lambda task, tell: Outcome(task.id), told.append)
        assert told == []


def test_a_head_that_does_not_answer_is_named_with_what_starts_one(tmp_path: Path) -> None:
    with pytest.raises(PluginError, match=r"nothing answers at 127\.0\.0\.1:1 .*ray start --head --port 1"):
        check_launcher(launcher("127.0.0.1:1"), tmp_path)


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """That of all processes: with a judge that has a price."""
    paths = [str(ROOT), *installed(tmp_path_factory.mktemp("site"), "priced")]
    return {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(paths)}


@pytest.fixture
def machines(environment: Environment) -> Iterator[TwoMachines]:
    if reason := why_not():
        pytest.skip(reason)
    two = TwoMachines(environment)
    try:
        yield two
    finally:
        two.close()


def command(output_dir: Path, *more: str) -> list[str]:
    compared = ["compare", "--methods", "best_of_n,feedme,ppo", "--seeds", "42,43", "--judge", "priced:gold", *SETTINGS]
    return [sys.executable, "-m", "afarm", *compared, "--output-dir", str(output_dir), *more]


def bought(output_dir: Path) -> int:
    """Return how many answers were bought, each once."""
    paid, answers = purchases(output_dir / "ledger.sqlite")
    assert paid == answers > 0
    return paid


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory, environment: Environment) -> Path:
    """The output directory of the comparison as one process makes it."""
    directory = tmp_path_factory.mktemp("alone")
    own = {**os.environ, **environment}
    subprocess.run(command(directory), check=True, capture_output=True, env=own, timeout=LIMIT)
    return directory


def wait_for_ppo(output_dir: Path, driver: subprocess.Popen[str], screen: Path) -> None:
    """Wait until PPO has a checkpoint."""

    def there() -> bool:
        assert driver.poll() is None, screen.read_text()
        trained = output_dir.glob("artifacts/train/*.partial/checkpoints/step-*")
        return any("objective/kl" in (step.parents[1] / "metrics.jsonl").read_text() for step in trained)

    wait_until(there)


def test_a_comparison_outlives_a_machine_that_dies_in_training(
    machines: TwoMachines, alone: Path, tmp_path: Path
) -> None:
    together, screen = tmp_path / "together", tmp_path / "screen"
    machines.start_head()
    machines.join(1)
    with screen.open("w") as written:
        options = ["--launcher", f"ray:{ADDRESSES[0]}:{PORT}"]
        driver = machines.begin(0, command(together, *options), stdout=written, stderr=written)

    wait_for_ppo(together, driver, screen)
    assert machines.kill(1) > 3
    machines.join(0)
    assert driver.wait(LIMIT) == 0, screen.read_text()
    said = screen.read_text()
    assert f"the node it was running on is dead or unavailable, {ADDRESSES[1]}), run again" in said
    assert ": train ppo: going on from step" in said
    assert contents(together) == contents(alone)
    assert bought(together) == bought(alone)


def test_the_same_command_goes_on_after_its_own_end_and_its_cluster_s(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The budget ends first; then the command is killed in training, and given again the head of its cluster is."""
    if reason := why_not():
        pytest.skip(reason)
    monkeypatch.chdir(tmp_path)
    light_recipe(tmp_path)
    environment = {
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join([str(ROOT), *installed(tmp_path / "site", "light_worker")]),
    }
    compare = [sys.executable, "-m", "afarm", "compare", "--recipe", "light.yaml", "--methods", "direct,waits"]
    alone, together, screen = tmp_path / "alone", tmp_path / "together", tmp_path / "screen"
    own = {**os.environ, **environment}
    subprocess.run([*compare, "--output-dir", "alone"], check=True, capture_output=True, env=own, timeout=LIMIT)
    machines = TwoMachines({**environment, "WAITS": "for its end"})

    def begun(*more: str) -> subprocess.Popen[str]:
        options = ["--output-dir", "together", "--launcher", f"ray:{ADDRESSES[0]}:{PORT}", *more]
        with screen.open("w") as written:
            return machines.begin(1, [*compare, *options], stdout=written, stderr=written)

    def wait_for_step(step: int, driver: subprocess.Popen[str]) -> None:
        def there() -> bool:
            assert driver.poll() is None, screen.read_text()
            return any(together.glob(f"artifacts/train/*.partial/checkpoints/step-*{step}/waits"))

        wait_until(there)

    try:
        machines.start_head()
        machines.join(1)
        assert begun("--budget", "0.003").wait(LIMIT) == 1, screen.read_text()
        assert "budget" in screen.read_text().splitlines()[-1]
        assert 0 < bought(together) <= 3
        driver = begun("--budget", "1")
        wait_for_step(1, driver)
        driver.kill()
        driver.wait()
        driver = begun("--budget", "1")
        wait_for_step(2, driver)
        machines.kill(0)
        assert driver.wait(LIMIT) != 0, screen.read_text()
        assert re.search("no longer answers|Ray could not run it", screen.read_text()), "by who noticed it first"
        machines.kill(1)
        machines.start_head()
        machines.join(1)
        assert begun("--budget", "1").wait(LIMIT) == 0, screen.read_text()
    finally:
        machines.close()
    assert "train waits: train waits: going on from step 2" in screen.read_text()
    assert contents(together) == contents(alone)
    assert bought(together) == bought(alone)


@pytest.fixture
def server(machines: TwoMachines) -> Iterator[PostgresServer]:
    """A database on the first machine, whose password is in the environment of both."""
    if reason := no_server():
        pytest.skip(reason)
    started = PostgresServer(ADDRESSES[0], machines.inside(0))
    started.sql(f"ALTER ROLE {USER} PASSWORD 'secret'", "CREATE DATABASE lab")
    machines.environment["PGPASSWORD"] = "secret"
    yield started
    started.remove()


@pytest.fixture
def bucket(machines: TwoMachines) -> str:
    """A bucket on the first machine."""
    started = moto_command(ADDRESSES[0], 5000)
    machines.begin(0, started, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    machines.environment |= s3_environment(ADDRESSES[0], 5000)
    make = f"from urllib.request import *; urlopen(Request('http://{ADDRESSES[0]}:5000/lab', method='PUT'))"
    wait_until(lambda: machines.begin(0, [sys.executable, "-c", make], stderr=subprocess.DEVNULL).wait() == 0)
    return "s3://lab/afarm"


def test_all_machines_share_a_ledger_and_a_store_on_servers(
    machines: TwoMachines, server: PostgresServer, bucket: str, tmp_path: Path
) -> None:
    """The database crashes in the middle. Afterwards a machine that shares no directory makes and buys nothing."""
    together, other, screen = tmp_path / "together", tmp_path / "other", tmp_path / "screen"
    machines.start_head()
    for machine in (0, 1):
        machines.join(machine, cpus=1)
    places = ["--ledger", server.url("lab", server.port), "--store", bucket]
    options = [*places, "--launcher", f"ray:{ADDRESSES[0]}:{PORT}"]
    with screen.open("w") as written:
        driver = machines.begin(0, command(together, *options), stdout=written, stderr=written)
    wait_for_ppo(together, driver, screen)
    server.stop("immediate")
    server.start()
    assert driver.wait(LIMIT) == 0, screen.read_text()
    assert not (together / "ledger.sqlite").exists()

    paid, answers = purchases(server.url("lab"))
    assert paid == answers > 0
    again = machines.begin(1, command(other, *places), stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    said, _ = again.communicate(timeout=LIMIT)
    assert again.returncode == 0, said
    assert contents(other) == contents(together)
    assert not [line for line in said.splitlines() if line.startswith("✓") and "reused" not in line], said
    assert purchases(server.url("lab")) == (paid, answers)


def test_a_check_looks_at_each_machine(machines: TwoMachines, tmp_path: Path) -> None:
    machines.start_head()
    for machine in (0, 1):
        machines.join(machine)
    options = ["--launcher", f"ray:{ADDRESSES[0]}:{PORT}", "--output-dir", str(tmp_path / "runs"), "--json"]
    command = [sys.executable, "-m", "afarm", "cluster", "check", *options]
    driver = machines.begin(0, command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    shown, told = driver.communicate(timeout=LIMIT)
    assert driver.returncode == 0, shown + told
    nodes = json.loads(shown)["nodes"]
    assert [node["node"] for node in nodes] == list(ADDRESSES)
    assert len({node["place"] for node in nodes}) == 2
    assert [node["problems"] for node in nodes] == [[], []]


@pytest.mark.parametrize("sharded", [False, True], ids=["whole", "sharded"])
def test_a_group_outlives_a_killed_process(machines: TwoMachines, tmp_path: Path, sharded: bool) -> None:
    """Each process has whole models, or with FSDP2 shards of them, of which each then writes its own."""
    run = ["-m", "afarm", "run", "--method", "ppo", *SETTINGS, "--output-dir"]
    together, torchrun, screen = tmp_path / "together", tmp_path / "torchrun", tmp_path / "screen"
    finish(launched([*run, str(torchrun)], **({"ACCELERATE_USE_FSDP": "true"} if sharded else {})))
    machines.start_head()
    for machine in (0, 1):
        machines.join(machine, cpus=1)
    options = ["--launcher", f"ray:{ADDRESSES[0]}:{PORT}", "--set", "ray.processes=2"]
    options += ["--set", "ray.sharded=true"] if sharded else []
    with screen.open("w") as written:
        driver = machines.begin(0, [sys.executable, *run, str(together), *options], stdout=written, stderr=written)
    wait_for_ppo(together, driver, screen)
    assert any(together.glob(f"artifacts/train/*.partial/checkpoints/step-*/{SHARDS}")) == sharded
    (member,) = [found for found in machines.processes(1) if "TrainWorker" in " ".join(found.cmdline())]
    member.kill()
    assert driver.wait(LIMIT) == 0, screen.read_text()
    said = screen.read_text()
    assert re.search(r"↻ train ppo: lost \(process [01] of its 2 was lost: .*run again", said), said
    assert ": train ppo: going on from step" in said
    assert contents(together) == contents(torchrun)
