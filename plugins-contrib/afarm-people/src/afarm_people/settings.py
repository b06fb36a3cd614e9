"""Settings of `human:FILE` and of `--people FILE`."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar, Literal

from afarm import Config, Preference, setting

Slight = Literal["plain", "soft", "drop"]
SLIGHT = "slightly better counts as better (plain), as 0.75 (soft), or as no label (drop)"


def weigh_slight(label: Preference, slight: Slight) -> Preference | None:
    """Count "slightly better", a strength of 0.5, as it is wanted: None if it is no label."""
    if label.strength != 0.5 or slight == "plain" or label.p2 not in (0.0, 1.0):
        return label
    return None if slight == "drop" else replace(label, p2=0.25 + 0.5 * label.p2)


class HumanConfig(Config):
    """The way from several people's labels to one, and what "slightly better" counts for."""

    default_label_noise: ClassVar[float | None] = 0.0

    vote: Literal["majority", "mean", "one"] = setting(
        "majority",
        "several labels of a pair: the majority's (a draw if even), their mean, or one person's, drawn by seed",
    )
    slight: Slight = setting("plain", SLIGHT)
    scale: str = setting("", 'the labels in FILE for the first output, the second and a draw, if not "1,2,0"')


class PeoplesConfig(Config):
    """The reading of people's labels for `afarm leaderboard --people FILE`."""

    slight: Slight = setting("plain", SLIGHT)
    scale: str = setting("", 'the labels in FILE for the first output, the second and a draw, if not "1,2,0"')
