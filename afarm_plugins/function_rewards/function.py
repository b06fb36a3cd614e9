"""A Python function as a reward model, called as TRL calls one: `f(prompts, completions, **columns)`.

It returns one number for each completion, or None for "no reward", which counts as 0.
"""

from __future__ import annotations

import inspect
import json
import logging
import math
import traceback
from collections.abc import Mapping, Sequence, Set
from pathlib import Path
from typing import Any

from afarm import (
    BuildContext,
    ConfigError,
    DataError,
    Instruction,
    PluginError,
    RewardModel,
    Score,
    Tasks,
    contain,
    read_placed_rows,
    with_turns,
)
from afarm_plugins.function_rewards import FunctionConfig
from afarm_plugins.function_rewards.named_function import load_function

logger = logging.getLogger(__name__)

RESTORED = "restored after each call: draw from a generator of its own"
PROMPT_COLUMNS = frozenset({"prompt", "prompts", "completion", "completions"})
"""Columns that the function is not called with: it has its own prompts and completions."""


class FunctionReward(RewardModel):
    """The reward that the function `spec` gives: `FILE.py:NAME`, or `package.module:NAME`.

    What it prints goes to stderr, and the global random state is as before after each call.
    """

    def __init__(self, config: FunctionConfig, spec: str, context: BuildContext):
        """Load the function and the columns.

        Raises `ConfigError` if nobody named the function on the command line, it cannot be loaded or asks for an
        argument that there is not, and `DataError` for a file of columns that cannot be read.
        """
        self.config, self.spec = config, spec
        place, _, name = spec.rpartition(":")
        self._name = f"reward function {name!r} ({place})"
        self._file = place
        self._told: list[str] = []
        with contain(self._name, self._told, restored=RESTORED):
            self.function, self._digest = load_function(spec)
        self._columns = Columns(config.columns) if config.columns else None
        given = ["prompts", "completions", *(self._columns.names if self._columns else ())]
        self._accepted, lacking = _arguments(self.function, given)
        if lacking:
            columns = f"{config.columns} has no such column" if config.columns else "name a file with such a column"
            known = f"it is given {', '.join(given)}"
            raise ConfigError(
                [f"{self._name} asks for {lacking[0]!r}, and {known}: {columns}: --set function.columns=FILE"]
            )

    @property
    def identity(self) -> str:
        """The function's name and a digest of its code."""
        return f"{self.spec.rpartition(':')[2]} {self._digest}"

    def score(self, instructions: Sequence[Instruction], outputs: Sequence[str]) -> Sequence[Score]:
        """Return the function's rewards. Raises `PluginError` naming the function, its file and the row."""
        if not outputs:
            return []
        rows = list(zip(instructions, outputs, strict=True))
        columns = self._columns.of(instructions) if self._columns else {}
        try:
            returned = self._call(rows, columns)
        except (Exception, SystemExit) as error:
            raise PluginError(self._explain(error, rows, columns)) from error
        values = self._checked(returned, rows)
        if (none := values.count(None)) and "none" not in self._told:
            self._told.append("none")
            logger.warning("%s gives no reward (None) to %d of %d, which counts as 0", self._name, none, len(rows))
        return [Score(value or 0.0) for value in values]

    def _call(self, rows: Sequence[tuple[Instruction, str]], columns: Mapping[str, list[Any]]) -> Any:
        given = {
            "prompts": [self._prompt(instruction) for instruction, _ in rows],
            "completions": [self._completion(output) for _, output in rows],
            **{name: [*values] for name, values in columns.items()},
        }
        if self._accepted is not None:
            given = {name: value for name, value in given.items() if name in self._accepted}
        with contain(self._name, self._told, restored=RESTORED):
            return self.function(**given)

    def _prompt(self, instruction: Instruction) -> Any:
        asked = "\n\n".join(filter(None, (instruction.instruction, instruction.input)))
        if self.config.format == "text":
            return asked
        before = [{"role": turn.role, "content": turn.content} for turn in instruction.messages]
        return [*before, {"role": "user", "content": asked}]

    def _completion(self, output: str) -> Any:
        return output if self.config.format == "text" else [{"role": "assistant", "content": output}]

    def _checked(self, returned: Any, rows: Sequence[tuple[Instruction, str]]) -> list[float | None]:
        wanted = "return a list with a number (or None) for each completion"
        if inspect.iscoroutine(returned):
            returned.close()
            raise PluginError(f"{self._name} is asynchronous: define it with `def`, and {wanted}")
        if isinstance(returned, str | bytes | Mapping | Set) or not hasattr(returned, "__len__"):
            raise PluginError(f"{self._name} returned {type(returned).__name__}: {wanted}")
        if len(returned) != len(rows):
            raise PluginError(f"{self._name} returned {len(returned)} rewards for {len(rows)} completions: {wanted}")
        return [self._number(value, number, rows) for number, value in enumerate(returned)]

    def _number(self, value: Any, number: int, rows: Sequence[tuple[Instruction, str]]) -> float | None:
        if value is None:
            return None
        try:
            reward = math.nan if isinstance(value, str | bytes) else float(value)
        except (TypeError, ValueError, RuntimeError):
            reward = math.nan
        if not math.isfinite(reward):
            where = _describe(number, rows)
            raise PluginError(f"{self._name} returned {value!r:.60}, no finite number, for {where}")
        return reward

    def _explain(
        self, error: BaseException, rows: Sequence[tuple[Instruction, str]], columns: Mapping[str, list[Any]]
    ) -> str:
        """Say what the function raised, at which line and for which row: the first that it raises for alone."""
        frames = [
            f for f in traceback.extract_tb(error.__traceback__) if Path(f.filename).name == Path(self._file).name
        ]
        frames = frames or traceback.extract_tb(error.__traceback__)[-1:]
        where = f"a batch of {len(rows)} rows, though for none of them alone"
        for number, row in enumerate(rows):
            try:
                self._call([row], {name: [values[number]] for name, values in columns.items()})
            except (Exception, SystemExit):
                where = _describe(number, rows)
                break
        what = f"{type(error).__name__}: {error} ({Path(frames[-1].filename).name}:{frames[-1].lineno})"
        return f"{self._name} raised {what} for {where}"


class Columns:
    """Columns of a file by the prompt that they stand beside, however it is written."""

    def __init__(self, source: str):
        """Read the file. Raises `DataError` for a prompt that is there twice, or for a file without prompts."""
        self.source = source
        self._tasks, self._rows = Tasks(), dict[str, Mapping[str, Any]]()
        self.names = dict[str, None]()
        for where, row in read_placed_rows(source):
            instruction = Instruction.from_row(with_turns(row, where), where)
            if instruction in self._tasks:
                raise DataError(f"{where}: its prompt is there twice, and only one row can be the function's: drop one")
            self._tasks.add(instruction)
            self._rows[instruction.id] = row
            self.names |= dict.fromkeys(name for name in row if name not in PROMPT_COLUMNS)

    def of(self, instructions: Sequence[Instruction]) -> dict[str, list[Any]]:
        """Return a list for each column. Raises `DataError` for an instruction that the file does not have."""
        found = []
        for instruction in instructions:
            if not (alike := self._tasks.alike(instruction)):
                raise DataError(f"{self.source}: has no row with the prompt {instruction.instruction!r:.80}")
            found.append(self._rows[alike[0].id])
        return {name: [row.get(name) for row in found] for name in self.names}


def _arguments(function: Any, given: Sequence[str]) -> tuple[frozenset[str] | None, list[str]]:
    """Return the names that a function accepts, None for any, and those it requires that are not `given`."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # nobody knows
        return None, []
    fixed = [p for p in parameters if p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)]
    lacking = [p.name for p in fixed if p.default is p.empty and p.name not in given]
    takes_any = any(p.kind is p.VAR_KEYWORD for p in parameters)
    return None if takes_any else frozenset(p.name for p in fixed), lacking


def _describe(number: int, rows: Sequence[tuple[Instruction, str]]) -> str:
    instruction, output = rows[number]
    shown = (json.dumps(text if len(text) <= 60 else f"{text[:57]}…", ensure_ascii=False) for text in (
        instruction.instruction, output
    ))  # fmt: skip
    return "row {} of {}: prompt {}, completion {}".format(number, len(rows), *shown)
