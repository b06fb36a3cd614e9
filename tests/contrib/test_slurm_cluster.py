"""Job arrays on a Slurm cluster of two nodes in network namespaces."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from light_farm import RECIPE
from places import ROOT, SUPPORT
from purchases import purchases
from slurm_cluster import SlurmCluster
from slurm_cluster import why_not as no_slurm
from two_machines import LIMIT, TwoMachines, contents, why_not

pytestmark = pytest.mark.cluster

COMPARE = [sys.executable, "-m", "afarm", "compare", "--recipe", "light.yaml", "--methods", "direct,killed"]


@pytest.fixture
def environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """That of all processes, in a directory with the light recipe: the light plugin and this one are installed."""
    for name, module in (("light", "light_worker"), ("slurm", "afarm_slurm")):
        metadata = tmp_path / "site" / f"{name}-1.0.dist-info"
        metadata.mkdir(parents=True)
        (metadata / "METADATA").write_text(f"Name: {name}\nVersion: 1.0\n")
        (metadata / "entry_points.txt").write_text(f"[afarm]\n{name} = {module}\n")
    (tmp_path / "base").mkdir()
    (tmp_path / "base" / "config.json").write_text("{}")
    (tmp_path / "light.yaml").write_text(yaml.safe_dump({**RECIPE, "start": "model", "model": "./base"}))
    monkeypatch.chdir(tmp_path)
    paths = [tmp_path / "site", SUPPORT, ROOT, ROOT / "plugins-contrib" / "afarm-slurm" / "src"]
    return {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(map(str, paths))}


@pytest.fixture
def cluster(environment: dict[str, str]) -> Iterator[SlurmCluster]:
    if reason := why_not() or no_slurm():
        pytest.skip(reason)
    machines = TwoMachines(environment)
    try:
        yield SlurmCluster(machines)
    finally:
        machines.close()


def test_a_killed_job_is_begun_again_and_all_is_as_in_one_process(
    cluster: SlurmCluster, environment: dict[str, str]
) -> None:
    alone = [*COMPARE, "--output-dir", "alone"]
    killed, gone_on = (subprocess.run(alone, env={**os.environ, **environment}, timeout=LIMIT) for _ in range(2))
    assert (killed.returncode, gone_on.returncode) == (-signal.SIGKILL, 0), "a method kills its process, once"

    together = [*COMPARE, "--output-dir", "together", "--launcher", "slurm:all"]
    driver = cluster.machines.begin(0, together, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    said, _ = driver.communicate(timeout=LIMIT)
    assert driver.returncode == 0, said
    assert "↻ train killed: lost (job " in said
    assert "train killed: train killed: going on from step 1" in said
    assert contents(Path("together")) == contents(Path("alone"))
    paid, answers = purchases(Path("together/ledger.sqlite"))
    assert paid == answers > 0
    assert (paid, answers) == purchases(Path("alone/ledger.sqlite"))
    assert set(cluster.asked("squeue", "--states=all", "--noheader", "--format=%N")) == {"m1", "m2"}
