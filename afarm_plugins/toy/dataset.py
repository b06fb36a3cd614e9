"""The toy data set: instructions of the world in disjoint splits, each with an author's answer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import islice
from random import Random

from afarm import DataError, Dataset, Instruction, Output, did_you_mean
from afarm_plugins.toy import ToyConfig
from afarm_plugins.toy.authors import draw_author, write_answer
from afarm_plugins.toy.frozen import require_frozen
from afarm_plugins.toy.world import draw_instruction, read_task

NAME = "toy"
SPLITS = ("evaluation", "validation", "sft", "preference", "unlabeled")
PATIENCE = 100_000


class ToyDataset(Dataset):
    """Unique instructions, none in two splits, each with an answer by a random author."""

    def __init__(self, config: ToyConfig | None = None):
        self.config = config or ToyConfig()

    def load(self, split: str) -> list[Output]:
        """See `Dataset.load`. Raises as `instructions`."""
        return list(_rows(*self._place(split)))

    def instructions(self, split: str) -> list[Instruction]:
        """See `Dataset.instructions`.

        Raises `DataError` also if the world has fewer instructions than the splits, or a file of its edition is not the
        frozen one.
        """
        seed, size, start, stop = self._place(split)
        return list(_instructions(seed, size)[start:stop])

    def check(self, instructions: Sequence[Instruction]) -> Sequence[str]:
        """Name the first instruction that is not of the world: neither its model nor its judge knows others."""
        for task in instructions:
            try:
                read_task(task.instruction, task.input)
            except DataError:
                return [
                    f"the toy world does not know the instruction {task.instruction[:60]!r}, and its model and judge "
                    "know only its own. Real text takes a real model: afarm run --recipe smol --model MODEL, with your "
                    "other options"
                ]
        return ()

    def _place(self, split: str) -> tuple[int, int, int, int]:
        """Return seed and number of all instructions, and where a split begins and ends. Raises `DataError`."""
        require_frozen(self.config.world)
        if split not in SPLITS:
            raise DataError(f"the toy data set has no split {split!r}.{did_you_mean(split, SPLITS)}")
        sizes = [getattr(self.config, name) for name in SPLITS]
        place = SPLITS.index(split)
        start, size = sum(sizes[:place]), sizes[place]
        if not size:
            raise DataError(f"the toy split {split!r} is empty; give it a size with --set toy.{split}=500")
        return self.config.world_seed, sum(sizes), start, start + size


def _row(seed: int, instruction: Instruction) -> Output:
    random = Random(f"{NAME}:{seed}:demonstration:{instruction.id}")
    task = read_task(instruction.instruction, instruction.input)
    return Output(instruction, write_answer(task, draw_author(random), random), "demonstrator")


@lru_cache(maxsize=8)
def _rows(seed: int, size: int, start: int, stop: int) -> tuple[Output, ...]:
    """Answer the instructions of a place: once, as a comparison opens a workspace for each method."""
    return tuple(_row(seed, instruction) for instruction in _instructions(seed, size)[start:stop])


@lru_cache(maxsize=4)
def _instructions(seed: int, size: int) -> tuple[Instruction, ...]:
    return tuple(islice(unique_instructions(seed), size))


def unique_instructions(seed: int) -> Iterator[Instruction]:
    """Yield instructions of the world in a fixed order, none twice. Raises `DataError` if none is left."""
    random = Random(f"{NAME}:{seed}:instructions")
    seen: set[tuple[str, str]] = set()
    misses = 0
    while misses < PATIENCE:
        drawn = draw_instruction(random)
        key = (drawn.instruction, drawn.input)
        if key in seen:
            misses += 1
            continue
        misses = 0
        seen.add(key)
        yield Instruction(drawn.instruction, drawn.input, NAME)
    raise DataError(f"the toy world has no more than {len(seen)} instructions; ask for smaller splits")
