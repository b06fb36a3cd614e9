"""Names of models and files: what may be part of a path, and files that are there already."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from afarm import ConfigError, DataError, write_whole

RESERVED = re.compile(r"(con|prn|aux|nul|com\d|lpt\d)(\..*)?", re.IGNORECASE)
"""Names that Windows gives to devices."""
PART = re.compile(r"[A-Za-z0-9_](?:[A-Za-z0-9._-]{0,94}[A-Za-z0-9_-])?")
"""A part of a model's name on the Hub."""
MOST_NAMED = 5


def is_part(name: str) -> bool:
    """Tell if a name can be a folder anywhere, and a part of a name on the Hub."""
    return bool(PART.fullmatch(name)) and not RESERVED.fullmatch(name) and ".." not in name and name != "data"


def is_repository(name: str) -> bool:
    """Tell if a text is OWNER/NAME, each a plain part."""
    owner, slash, rest = name.partition("/")
    return bool(slash) and is_part(owner) and is_part(rest)


def require_repository(name: str, option: str) -> str:
    """Return OWNER/NAME. Raises `ConfigError` naming the option for anything else."""
    if not is_repository(name):
        raise ConfigError(
            [f"{option}: {name!r} is not OWNER/NAME as the Hub writes it: letters, digits, '-', '_' and '.' in each"]
        )
    return name


def as_part(text: str) -> str:
    """Write a text as a part of a path: other characters become '-'. Empty if nothing is left."""
    shown = re.sub(r"[^A-Za-z0-9_-]+", "-", text).strip("-")[:80].strip("-")
    return shown if is_part(shown) else ""


def model_ids(names: Sequence[str], given: Sequence[str], owner: str = "") -> dict[str, str]:
    """Return OWNER/NAME of each system: as given by `--model-id`, its own name, or its name below `owner`.

    Raises `ConfigError` for a system without one, with all such systems, and for ids that two systems would share.
    """
    named: dict[str, str] = {}
    for text in given:
        system, equals, id = text.rpartition("=")
        if not equals and len(names) > 1:
            raise ConfigError([f"--model-id {text}: there are {len(names)} systems: say SYSTEM=OWNER/NAME"])
        system = system if equals else names[0]
        if system not in names:
            raise ConfigError([f"--model-id {text}: no system {system!r}; there are {_listed(names)}"])
        named[system] = require_repository(id, "--model-id")
    if owner and not is_part(owner):
        raise ConfigError([f"--owner {owner!r}: is no name of the Hub: letters, digits, '-', '_' and '.'"])
    for name in names:
        if name not in named and is_repository(name):
            named[name] = name
        elif name not in named and owner and as_part(name):
            named[name] = f"{owner}/{as_part(name)}"
    if lacking := [name for name in names if name not in named]:
        each = "OWNER/NAME" if len(names) == 1 else "SYSTEM=OWNER/NAME"
        raise ConfigError(
            [
                f"no id of the model is known for {_listed(lacking)}: add --model-id {each}, the name that the model "
                "has or will have on the Hub, or --owner OWNER for all"
            ]
        )
    if shared := {id for id in named.values() if [*named.values()].count(id) > 1}:
        raise ConfigError([f"{sorted(shared)[0]} would be the id of several systems: give each its own by --model-id"])
    return named


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
    return ", ".join(map(repr, names[:MOST_NAMED])) + more


def write_files(files: Mapping[Path, str]) -> list[Path]:
    """Write files, none if one is there already: raises `DataError` naming it, or `StoreError`."""
    if there := [path for path in files if path.exists() or path.is_symlink()]:
        raise DataError(f"{there[0]}: is there already, and is not overwritten: delete it, or name another directory")
    for path, text in files.items():
        write_whole(path, text, "make room or fix the rights, then the same command again")
    return [*files]
