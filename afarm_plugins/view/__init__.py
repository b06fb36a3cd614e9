"""A local page over output directories (runs, outputs, votes, artifacts, costs), and `afarm diff`.

`server` is the web server, `export` writes the same pages as files. Starlette and uvicorn are in the extra `view`.
"""

from typing import Any

from afarm import hookimpl


@hookimpl
def register_commands(app: Any) -> None:
    """Add `afarm view` and `afarm diff`."""
    from afarm_plugins.view import command, diff_command

    command.add_commands(app)
    diff_command.add_commands(app)


@hookimpl
def register_followers(followers: list[Any]) -> None:
    """Have each run keep a record of how far it is, which the page shows."""
    from afarm_plugins.view.live_record import followed

    followers.append(followed)
