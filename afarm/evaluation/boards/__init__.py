"""Leaderboards: evaluated systems, each ranked among those that it may be compared with.

    from afarm.evaluation.boards import read_boards
    boards, left_out = read_boards(["afarm-runs", "leaderboard.csv", "annotations.jsonl.gz"])

A leaderboard holds results of one protocol (`afarm.evaluation.protocol`); results of another are on another.
"""

from __future__ import annotations

from afarm.evaluation.boards.board import Entry, Leaderboard, Metric, Source
from afarm.evaluation.boards.merging import group
from afarm.evaluation.boards.sources import read_boards

__all__ = ["Entry", "Leaderboard", "Metric", "Source", "group", "read_boards"]
