"""Quark over two processes gives the statistics and the weights of one."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from test_quark import train
from tiny_models import make_context
from torch import multiprocessing

from afarm.storage.checkpoints import DirectoryCheckpoints, FollowedCheckpoints


def train_steps(rank: int, processes: int, directory: Path) -> None:
    """Three steps with 9 responses each, in minibatches of 3 or fewer: neither divides by two."""
    if processes > 1:
        meeting = f"file://{directory}/meeting"
        dist.init_process_group("gloo", init_method=meeting, rank=rank, world_size=processes)
    found = {}
    for variant in ("top", "all"):
        place = directory / f"{processes}-{variant}"
        place.mkdir(exist_ok=True)
        context, log = make_context(place)
        context = replace(context, checkpoints=(FollowedCheckpoints if rank else DirectoryCheckpoints)(place))
        settings = {"variant": variant, "rollout_batch_size": 9, "mini_batch_size": 3, "pool": "keep"}
        policy = train(context, total_steps=3, **settings)
        found[variant] = {"metrics": [row for _, row in log.lines], "weights": policy.model.state_dict()}
    torch.save(found, directory / f"{processes}-{rank}.pt")
    if processes > 1:
        dist.destroy_process_group()


@pytest.mark.slow
def test_two_processes_learn_what_one_does(tmp_path: Path) -> None:
    for processes in (1, 2):
        multiprocessing.spawn(train_steps, (processes, tmp_path), nprocs=processes)
    alone, first, second = (torch.load(tmp_path / name) for name in ("1-0.pt", "2-0.pt", "2-1.pt"))
    for variant in ("top", "all"):
        torch.testing.assert_close(first[variant]["weights"], second[variant]["weights"], rtol=0, atol=0)
        torch.testing.assert_close(first[variant]["weights"], alone[variant]["weights"], rtol=1e-4, atol=1e-5)
        for one, two, whole in zip(*(found[variant]["metrics"] for found in (first, second, alone)), strict=True):
            assert one == two
            assert one == pytest.approx(whole, rel=1e-4, abs=1e-5)
