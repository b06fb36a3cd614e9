"""Methods as commands: `afarm dpo` is `afarm train --method dpo`."""

from __future__ import annotations

from typing import Any

import typer

from afarm.cli.help_pages import Commands
from afarm.core.plugins import discover


class CommandsAndMethods(Commands):
    """The commands, and beside them each method by its name, for its training."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Return the command that `args` name, and the arguments that are left for it."""
        if args and args[0] not in self.commands and args[0] in _methods():
            if any(word.partition("=")[0] == "--method" for word in args):
                raise typer.BadParameter(f"{args[0]!r} is the method; leave --method out")
            args = ["train", "--method", *args]
        return super().resolve_command(ctx, args)


def _methods() -> set[str]:
    registry = discover(check_configs=False).registry
    return {name for c in registry if c.kind == "methods" for name in registry.names_of(c)}
