"""Stages side by side in worker processes of this machine."""

from __future__ import annotations

from afarm import Register, hookimpl


@hookimpl
def register_launchers(register: Register) -> None:
    """Bring the launcher `local`, of which `local` alone is the process of the command."""
    register(
        "local",
        "afarm_plugins.local_workers.launcher:LocalLauncher",
        spec="N",
        summary="this process, or local:N for N worker processes",
    )
