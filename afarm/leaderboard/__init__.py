"""Leaderboards: evaluated systems from wherever they are stored, each beside those that it may be compared with.

    from afarm.leaderboard import read_boards
    boards, left_out = read_boards(["afarm-runs", "leaderboard.csv", "annotations.jsonl.gz"])

A board holds results of one protocol (`evaluation.protocol`); what was judged in another way stands on another board.
"""

from __future__ import annotations

from afarm.leaderboard.board import Entry, Leaderboard, Metric, Source
from afarm.leaderboard.merging import group
from afarm.leaderboard.sources import read_boards

__all__ = ["Entry", "Leaderboard", "Metric", "Source", "group", "read_boards"]
