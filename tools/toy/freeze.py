"""Freeze an edition of the toy world: `python -m tools.toy.freeze 2`.

It writes the edition's file and prints the digest that the code must hold. Done once per edition, when its bounds are
met (`tools.toy.acceptance`) and before any method has run in it.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from afarm_plugins.toy.fingerprint import fingerprint
from afarm_plugins.toy.frozen import EDITIONS, base_directory, description, sha256


def describe(edition: int) -> str:
    """Describe an edition in its file's text: the digests of its language and of its base model's files."""
    files = {file.name: sha256(file) for file in sorted(base_directory(edition).iterdir()) if file.suffix != ".md"}
    return json.dumps({"edition": edition, "language": fingerprint(), "base": files}, indent=1) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("edition", type=int)
    edition = parser.parse_args().edition
    file: Path = description(edition)
    file.write_text(describe(edition), encoding="utf-8")
    digest = sha256(file)
    if EDITIONS.get(edition) != digest:
        print(f"afarm_plugins/toy/frozen.py must say {edition}: {digest!r}")


if __name__ == "__main__":
    main()
