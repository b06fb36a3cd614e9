"""`afarm plugin new KIND NAME`: writes a package that installs, passes its test and runs."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated, Any

import typer

from afarm.cli.options import markup, option, out, write_examples
from afarm_plugins.scaffold.kinds import KINDS


def add_commands(app: typer.Typer) -> None:
    group = typer.Typer(name="plugin", help="Write a plugin.", no_args_is_help=True)
    group.callback()(lambda: None)  # a group, although it has one command
    examples = write_examples("plugin new", "method my-grpo", "judge house --directory ~/code")
    group.command("new", epilog=examples, no_args_is_help=True)(new)
    app.add_typer(group)


def new(
    context: typer.Context,
    kind: Annotated[str, typer.Argument(help=f"{', '.join(KINDS)}.", autocompletion=lambda: list(KINDS))],
    name: Annotated[str, typer.Argument(help="The name that it is chosen by.")],
    directory: Annotated[Path, option("--directory DIR", "Where the package's folder is made.")] = Path(),
) -> None:
    """Make a package for a plugin of your own: afarm-NAME, with a module, a test and pyproject.toml."""
    from afarm_plugins.scaffold.package import write_package

    root = context.find_root()
    afarm: Any = root.command
    package = write_package(kind, name, directory, commands=afarm.list_commands(root))
    out().print(f"Made {markup(str(package.folder))}: {', '.join(package.files)}")
    out().print("Try it:")
    for command in (f"cd {shlex.quote(str(package.folder))}", *package.first_commands):
        out().print(f"  {command}", markup=False)
