"""Hold the numbers in the keys of a release to the code that they stand for.

    python tools/release_numbers.py                      # what has changed since its number was set
    python tools/release_numbers.py --same train doors   # no result changes: the numbers stay ("all" for all)
    python tools/release_numbers.py --raise train        # results change: these artifacts are made again

It writes `afarm/experiment/release_numbers.json`. A name is a kind of stage, a folder of `afarm_plugins`, or "doors".
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from afarm.experiment.plugin_code import PLUGINS, files_digest
from afarm.experiment.release_numbers import NUMBERS, PACKAGE
from afarm.experiment.stage_code import DOORS, STAGE_CODE, code_digest


def digest_code() -> dict[str, str]:
    """Digest the code that each number stands for."""
    folders = sorted(path.parent.name for path in (PACKAGE.parent / PLUGINS).glob("*/__init__.py"))
    plugins = {f"{PLUGINS}.{folder}": files_digest("", (f"{PLUGINS}.{folder}",)) for folder in folders}
    return {**{name: code_digest(name) for name in (*STAGE_CODE, DOORS)}, **plugins}


def find_changes(numbers: dict[str, Any], digests: dict[str, str]) -> list[str]:
    """Name the entries whose code is not the one that the number was set for."""
    return [name for name, found in digests.items() if numbers.get(name, {}).get("digest") != found]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--same", nargs="+", default=[], metavar="NAME")
    parser.add_argument("--raise", nargs="+", default=[], metavar="NAME", dest="raised")
    chosen = parser.parse_args()
    numbers = json.loads(NUMBERS.read_text(encoding="utf-8")) if NUMBERS.is_file() else {}
    digests = digest_code()
    changes = find_changes(numbers, digests)
    same = changes if chosen.same == ["all"] else chosen.same
    if unknown := {*same, *chosen.raised} - digests.keys():
        parser.error(f"no stage or plugin is called {', '.join(sorted(unknown))}")
    for name in {*same, *chosen.raised}:
        number = numbers.get(name, {}).get("number", 0 if name in chosen.raised else 1)
        numbers[name] = {"number": number + (name in chosen.raised), "digest": digests[name]}
    if same or chosen.raised:
        kept = {name: numbers[name] for name in digests if name in numbers}
        NUMBERS.write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")
    for name in (left := find_changes(numbers, digests)):
        named = shlex.quote(name)
        print(f"{name}: changed; --same {named} if no result changes, --raise {named} if one does")
    return bool(left)


if __name__ == "__main__":
    sys.exit(main())
