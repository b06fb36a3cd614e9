"""A local page over output directories: runs as they go, outputs, votes, artifacts and costs.

`server` is the web server, `export` writes the same pages as files. Starlette and uvicorn are in the extra `view`.
"""

from typing import Any

from afarm import hookimpl


@hookimpl
def register_commands(app: Any) -> None:
    from afarm_plugins.view.command import add_commands

    add_commands(app)


@hookimpl
def register_followers(followers: list[Any]) -> None:
    """Have each run keep a record of how far it is, which the page shows."""
    from afarm_plugins.view.live_record import followed

    followers.append(followed)
