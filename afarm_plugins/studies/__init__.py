"""Studies: the questions of the AlpacaFarm paper, and any setting over values. See docs/studies."""

from typing import Any

from afarm import Register, hookimpl


@hookimpl
def register_studies(register: Register) -> None:
    from afarm_plugins.studies.settings import STUDIES, SWEEPS, SweepConfig  # the help needs the command alone

    for name, (target, config) in STUDIES.items():
        line = (config.__doc__ or "").removesuffix(".")
        register(name, f"afarm_plugins.studies.{target}", config=config, summary=line[:1].lower() + line[1:])
    for name, (summary, defaults) in SWEEPS.items():
        register(name, "afarm_plugins.studies.sweep:Sweep", config=SweepConfig, summary=summary, defaults=defaults)


@hookimpl
def register_commands(app: Any) -> None:
    """Add `afarm annotators compare`."""
    from afarm_plugins.studies.compare_command import add_commands

    add_commands(app)
