"""A launch of torchrun over two machines: a cut link ends it in time, and a killed worker is started again."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from places import ROOT
from two_machines import ADDRESSES, LIMIT, SETTINGS, TwoMachines, contents, why_not
from waiting import wait_until

pytestmark = pytest.mark.cluster

TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--nnodes", "2", "--nproc-per-node", "1"]


@pytest.fixture
def machines() -> Iterator[TwoMachines]:
    if reason := why_not():
        pytest.skip(reason)
    # Else the second round of torchrun's agents meets through the first one's addresses.
    own_store = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
    two = TwoMachines({"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), **own_store})
    try:
        yield two
    finally:
        two.close()


class Launch:
    """One process on each of two machines, which make one run in `output_dir`."""

    def __init__(self, machines: TwoMachines, output_dir: Path, *, elastic: bool):
        run = ["-m", "afarm", "run", "--method", "ppo", "--output-dir", str(output_dir), *SETTINGS]
        run += ["--set", "backend.timeout=15"]
        self.output_dir, self.agents = output_dir, []
        self.screens = [output_dir.with_name(f"{output_dir.name} {machine}") for machine in (0, 1)]
        for machine, screen in enumerate(self.screens):
            place = ["--node-rank", str(machine), "--master-addr", ADDRESSES[0], "--master-port", "29533"]
            if elastic:
                place = ["--rdzv-backend", "c10d", "--rdzv-endpoint", f"{ADDRESSES[0]}:29533", "--max-restarts", "2"]
                place += ["--rdzv-conf", f"is_host={int(machine == 0)}", "--local-addr", ADDRESSES[machine]]
            with screen.open("w") as written:
                begun = machines.begin(machine, [*TORCHRUN, *place, *run], stdout=written, stderr=written)
            self.agents.append(begun)

    def wait_for_ppo(self) -> None:
        """Wait until PPO has a checkpoint."""
        wait_until(self._ppo_has_a_checkpoint)

    def _ppo_has_a_checkpoint(self) -> bool:
        assert self.agents[0].poll() is None, self.said(0)
        trained = self.output_dir.glob("artifacts/train/*.partial/checkpoints/step-*")
        return any("objective/kl" in (step.parents[1] / "metrics.jsonl").read_text() for step in trained)

    def end(self) -> list[int]:
        return [agent.wait(LIMIT) for agent in self.agents]

    def said(self, machine: int) -> str:
        return self.screens[machine].read_text()


def test_a_run_outlives_a_cut_link_and_a_killed_worker(machines: TwoMachines, tmp_path: Path) -> None:
    cut = Launch(machines, tmp_path / "cut", elastic=False)
    cut.wait_for_ppo()
    machines.set_link("down")
    assert all(cut.end()), "neither ends as if all was well"
    for machine, other in ((0, 1), (1, 0)):  # the second may see first that the launch's store does not answer
        lost = f"Error in process {machine}: (train ppo: )?no word from process {other} on .* for 15 s"
        assert re.search(lost, cut.said(machine)), cut.said(machine)
    machines.set_link("up")
    again = Launch(machines, tmp_path / "cut", elastic=False)
    assert again.end() == [0, 0], again.said(0)
    assert "train ppo: going on from step" in again.said(0)

    elastic = Launch(machines, tmp_path / "elastic", elastic=True)
    elastic.wait_for_ppo()
    (worker,) = [p for p in machines.processes(1) if "torch.distributed.run" not in p.cmdline()]
    worker.kill()
    assert elastic.end() == [0, 0], elastic.said(0)
    assert "train ppo: going on from step" in elastic.said(0)
    assert contents(tmp_path / "elastic") == contents(tmp_path / "cut")
