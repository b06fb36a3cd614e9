"""Stages as tasks of a Ray cluster."""

from __future__ import annotations

from afarm import Register, hookimpl


@hookimpl
def register_launchers(register: Register) -> None:
    from afarm_plugins.ray.config import RayConfig  # the help needs no config

    register(
        "ray",
        "afarm_plugins.ray.launcher:RayLauncher",
        config=RayConfig,
        spec="HOST:PORT",
        summary="stages as tasks of a Ray cluster: the one at HOST:PORT, or one made here",
    )
