"""Checkpoints of a training stage, and its `metrics.jsonl`."""

from __future__ import annotations

import json
import operator
import shutil
import time
import zlib
from collections.abc import Callable, Mapping
from functools import partial, reduce
from pathlib import Path
from typing import TypeVar

from afarm.core.errors import StoreError
from afarm.storage.contents import recorded_files
from afarm.storage.disk import json_text, replacing, storage_errors, sync, sync_tree

T = TypeVar("T")

CHECKPOINTS = "checkpoints"
CHECKSUMS = ".checksums.json"
"""The checksums of a checkpoint's files, in its directory: a bit that flips is seen before it is trained on."""

PAUSE = 0.2
"""Seconds between two looks at the disk."""


def wait_for(look: Callable[[], T | None]) -> T:
    """Call `look` every `PAUSE` seconds until it returns something true, and return that."""
    while not (result := look()):
        time.sleep(PAUSE)
    return result


class DirectoryCheckpoints:
    """Implements `afarm.core.interfaces.Checkpoints` in one directory, keeping the newest."""

    def __init__(self, directory: Path):
        self.directory = directory / CHECKPOINTS

    def save(self, step: int, write: Callable[[Path], None]) -> None:
        """See `afarm.core.interfaces.Checkpoints.save`."""
        if operator.index(step) < 0:
            raise ValueError(f"a checkpoint's step is a whole number from 0, not {step}")
        with storage_errors(self.directory):
            self.directory.mkdir(parents=True, exist_ok=True)
            beside = self.directory / f".{step}.tmp"
            shutil.rmtree(beside, ignore_errors=True)
            beside.mkdir()
            write(beside)
            (beside / CHECKSUMS).write_text(_checksums(beside), encoding="utf-8")
            sync_tree(beside)
            final = self.directory / f"step-{step:08d}"
            shutil.rmtree(final, ignore_errors=True)
            beside.rename(final)
            sync(self.directory)
            for older in self._finished()[:-1]:
                shutil.rmtree(older, ignore_errors=True)

    def latest(self) -> tuple[int, Path] | None:
        """See `afarm.core.interfaces.Checkpoints.latest`."""
        finished = self._finished()
        return (int(finished[-1].name.removeprefix("step-")), finished[-1]) if finished else None

    def require_sound(self) -> None:
        """Raise `StoreError` if the newest checkpoint has other bytes than were written."""
        for path in self._finished()[-1:]:
            if (path / CHECKSUMS).is_file() and (path / CHECKSUMS).read_bytes() != _checksums(path).encode():
                how = "is damaged: it has other bytes than were written"
                raise StoreError(f"{path} {how}. Remove that directory, and the same command trains from the start")

    def _finished(self) -> list[Path]:
        return sorted(self.directory.glob("step-*")) if self.directory.is_dir() else []


def _checksums(directory: Path) -> str:
    """Write the CRC-32 of each file of a checkpoint as JSON."""
    sums = {}  # 4 GB/s, where SHA-256 takes 1.2: checkpoints may have tens of GB
    for name, path in recorded_files(directory).items():
        with path.open("rb") as file:
            sums[name] = reduce(lambda total, chunk: zlib.crc32(chunk, total), iter(partial(file.read, 2**23), b""), 0)
    return json.dumps(sums, indent=1)


class FollowedCheckpoints(DirectoryCheckpoints):
    """The main process's checkpoints as followers see them: `save` waits until that step is published.

    `latest` is what was there when this was made, and then what was saved: not what the main process, a step ahead, is
    about to remove. So all processes make theirs before any of them trains.
    """

    def __init__(self, directory: Path):
        super().__init__(directory)
        self._latest = super().latest()

    def save(self, step: int, write: Callable[[Path], None]) -> None:
        def look() -> tuple[int, Path] | None:
            newest = super(FollowedCheckpoints, self).latest()
            return newest if newest and newest[0] >= step else None

        self._latest = wait_for(look)

    def latest(self) -> tuple[int, Path] | None:
        return self._latest


class MetricsFile:
    """`metrics.jsonl` of a training stage, a line per step, without the lines after the step resumed from."""

    def __init__(self, path: Path, resume_from: int | None = None):
        self.path = path
        kept: list[str] = []
        if resume_from is not None and path.exists():
            text = path.read_text(encoding="utf-8")
            whole = text[: text.rfind("\n") + 1].splitlines()  # without a last line that a kill cut short
            kept = [line for line in whole if json.loads(line)["step"] <= resume_from]
        with storage_errors(path), replacing(path) as beside:
            beside.write_text("".join(line + "\n" for line in kept), encoding="utf-8")
        self.kept = frozenset(kept)

    def __call__(self, step: int, metrics: Mapping[str, float]) -> None:
        if taken := {"step", "stage"} & metrics.keys():
            raise ValueError(f"log_metrics takes the step beside the metrics: {taken.pop()!r} names none")
        numbers = {name: _number(name, value) for name, value in metrics.items()}
        line = json_text({"step": operator.index(step), **numbers})
        if line in self.kept:  # logged again by what was resumed at its very end
            return
        with storage_errors(self.path), self.path.open("a", encoding="utf-8") as handle:
            handle.write(line + "\n")


def _number(name: str, value: object) -> float:
    """Return a metric as a number of Python's, NaN and infinities too. Raises `TypeError` if it is none."""
    try:
        number = float(value)  # type: ignore[arg-type]  # numpy's and torch's too
    except (TypeError, ValueError, OverflowError) as error:
        raise TypeError(f"log_metrics takes numbers: metric {name!r} is {value!r:.80}") from error
    return value if isinstance(value, bool | int | float) else number
