from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tiny_models import make_context
from torch import nn

from afarm.backend import continued_context
from afarm.backend.resume import restore, training_state, write_training_state
from afarm.core.errors import TrainingError


def test_steps_follow_those_before_and_none_of_their_checkpoints_is_shown(tmp_path: Path) -> None:
    context, log = make_context(tmp_path)
    context.checkpoints.save(3, lambda directory: None)
    second = continued_context(context, 4, seed=9)
    assert (second.seed, context.seed) == (9, 0)
    assert second.checkpoints.latest() is None
    second.log_metrics(1, {"loss": 0.5})
    second.checkpoints.save(2, lambda directory: (directory / "weights").touch())
    assert log.lines == [(5, {"loss": 0.5})]
    newest = context.checkpoints.latest()
    assert newest is not None
    assert newest[0] == 6
    assert second.checkpoints.latest() == (2, newest[1])
    assert (newest[1] / "weights").exists()
    assert continued_context(context, 6, seed=0).checkpoints.latest() is None


@pytest.mark.parametrize("kept", [0, 10, 300])
def test_a_checkpoint_cut_short_is_named_with_the_way_out(tmp_path: Path, kept: int) -> None:
    context, _ = make_context(tmp_path)
    weight = nn.Parameter(torch.ones(100))
    optimizer = torch.optim.SGD([weight])

    def write(directory: Path) -> None:
        write_training_state(training_state({"w": weight}, optimizer), directory)

    context.checkpoints.save(3, write)
    _, directory = context.checkpoints.latest() or (0, Path())
    [file] = directory.iterdir()
    file.write_bytes(file.read_bytes()[:kept])
    with pytest.raises(TrainingError, match=r"step-0*3/trainer\.pt is truncated or damaged .*remove that directory"):
        restore(context.checkpoints, {"w": weight}, optimizer)
