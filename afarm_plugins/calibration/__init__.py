"""Calibration of pools of annotators: the study `calibrate` fits one to people's labels."""

from __future__ import annotations

from afarm import Register, hookimpl


@hookimpl
def register_studies(register: Register) -> None:
    from afarm_plugins.calibration.settings import CalibrateConfig  # the help needs no settings

    register(
        "calibrate",
        "afarm_plugins.calibration.study:Calibrate",
        config=CalibrateConfig,
        summary="weights, noise, length and position bias of a pool fitted to people's labels",
    )
