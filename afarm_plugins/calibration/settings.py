"""The settings of the study `calibrate`."""

from __future__ import annotations

from typing import Literal

from afarm import Config, setting


class CalibrateConfig(Config):
    """A pool fitted to people's labels."""

    humans: list[str] = setting([], "a file of pairs with people's labels; repeatable", changes_result=False)
    pool: str = setting("", "the file of the pool that is fitted; afarm's own pool, if left out", changes_result=False)
    shown: Literal["unknown", "output_1"] = setting(
        "unknown", "which output people saw first, if rows do not say (order)", changes_result=False
    )
    resamples: int = setting(200, "fits to resampled instructions, for intervals", ge=20, changes_result=False)
    max_reasks: int = setting(
        2, "how often an answer that cannot be read is asked for again", ge=0, changes_result=False
    )
