"""Settings of `human:FILE` and of `--people FILE`."""

from __future__ import annotations

from typing import ClassVar, Literal

from afarm import Config, setting


class HumanConfig(Config):
    """The way from several people's labels to one, and what "slightly better" counts for."""

    default_label_noise: ClassVar[float | None] = 0.0

    vote: Literal["majority", "mean", "one"] = setting(
        "majority",
        "several labels of a pair: the majority's (a draw if even), their mean, or one person's, drawn by seed",
    )
    slight: Literal["plain", "soft", "drop"] = setting(
        "plain", "slightly better counts as better (plain), as 0.75 (soft), or as no label (drop)"
    )
    scale: str = setting("", 'the labels in FILE for the first output, the second and a draw, if not "1,2,0"')


class PeoplesConfig(Config):
    """How people's labels are read for `afarm leaderboard --people FILE`."""

    scale: str = setting("", 'the labels in FILE for the first output, the second and a draw, if not "1,2,0"')
