from __future__ import annotations

from pathlib import Path

from tiny_models import make_context

from afarm.backend import continued_context


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
