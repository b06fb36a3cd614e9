"""`afarm plugin new`: a package of a plugin's own, from a template per kind."""

from typing import Any

from afarm import hookimpl


@hookimpl
def register_commands(app: Any) -> None:
    """Add `afarm plugin`."""
    from afarm_plugins.scaffold.command import add_commands

    add_commands(app)
