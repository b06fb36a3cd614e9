"""The settings of the study `costs`."""

from __future__ import annotations

from functools import partial

from afarm import Config, setting

_option = partial(setting, changes_result=False)
"""Declares a setting of the study, which is in no artifact's key."""


class CostsConfig(Config):
    """Costs of stored runs, and a plan for others."""

    runs: list[str] = _option(list, "a run's directory, or one that holds runs; those of --output-dir, if left out")
    hour: float = _option(0.0, "dollars per hour of the machine that trains", ge=0)
    gpus: int = _option(1, "GPUs that each training used: records do not say", ge=1)
    spend: float = _option(0.0, "for a plan: the dollars that there are", ge=0)
    difference: float = _option(5.0, "for a plan: the difference of two win rates that is to be found, in points", gt=0)
    candidates: int = _option(8, "for a plan: methods or settings that compete", ge=2)
    steps: int = _option(0, "for a plan: steps of one simulated run; the stored runs' seconds, if left out", ge=0)
    step_seconds: float = _option(0.0, "for a plan: seconds per step", ge=0)
    judge_dollars: float | None = _option(
        None, "for a plan: what judges cost per simulated run; the stored runs', if left out", ge=0
    )
    minutes: float = _option(0.0, "for a plan: the minutes that people have to label, all together", ge=0)
    label_seconds: float = _option(30.0, "for a plan: seconds that a person takes for a label", gt=0)
    pay: float | None = _option(None, "for a plan: people's pay in dollars per hour, 0 for colleagues", ge=0)
    label_price: float = _option(
        0.25, "for a plan: dollars per human label, where --pay is left out; 0.25 in the paper", gt=0
    )
    run_spread: float | None = _option(
        None,
        "for a plan: standard deviation of a win rate over seeds, in points; the stored runs', or 2",
        gt=0,
    )
    label_spread: float = _option(
        70.7,
        "for a plan: standard deviation, over instructions, of two systems' difference in wins, in points",
        gt=0,
    )
    spread: float = _option(
        5.0, "for a plan: standard deviation of win rates by people over candidates, in points", gt=0
    )
    faith: float = _option(
        0.9, "for a plan: correlation of win rates simulated without chance and by people", gt=0, le=1
    )

    @property
    def dollars_per_label(self) -> float:
        """Return what a person gets for a label: their pay for its seconds, or the price of a label."""
        return self.label_price if self.pay is None else self.pay * self.label_seconds / 3600
