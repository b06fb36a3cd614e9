"""PostgreSQL: ledgers that several machines share, and `afarm ledger-copy`, which moves one there."""

from __future__ import annotations

from typing import Any

from afarm import Register, hookimpl


@hookimpl
def register_databases(register: Register) -> None:
    for scheme in ("postgresql", "postgres"):
        register(
            scheme,
            "afarm_plugins.postgres.postgres_database:PostgresDatabase",
            summary="a ledger in a database of PostgreSQL: --ledger postgresql://HOST/DATABASE",
        )


@hookimpl
def register_commands(app: Any) -> None:
    from afarm_plugins.postgres.command import add_commands

    add_commands(app)
