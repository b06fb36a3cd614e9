"""Leaderboards: evaluated systems from wherever they are stored, each beside those that it may be compared with.

    from afarm.boards import read_boards
    boards, left_out = read_boards(["afarm-runs", "leaderboard.csv", "annotations.jsonl.gz"])

A board holds results of one protocol (`afarm.protocol`); what was judged in another way stands on another board.
"""

from __future__ import annotations

from afarm.boards.board import Board, Entry, Figure, Source
from afarm.boards.grouping import group
from afarm.boards.sources import read_boards

__all__ = ["Board", "Entry", "Figure", "Source", "group", "read_boards"]
