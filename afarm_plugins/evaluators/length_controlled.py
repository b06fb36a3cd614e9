"""The length-controlled win rate of AlpacaEval 2: the win rate if outputs were equally long.

The model is in `length_glm`. Of a system that the file of weights knows, the coefficients are taken from there and the
win rate predicted, unless they cannot be these judgements' (`length_checks.describe_misfit`); of any other they are
fitted to its judgements. Either way

    length_controlled_winrate = 100 * mean over instructions of sigmoid(a + c * difficulty)

Difficulties are looked up by instruction, so that rows may be missing or stand in any order.

Source: Dubois et al. 2024, "Length-Controlled AlpacaEval", arXiv 2404.04475.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
from scipy.special import expit

from afarm import (
    DataError,
    Evaluation,
    EvaluationInputs,
    Evaluator,
    Instruction,
    match_judgements,
    read_placed_rows,
    standard_error,
)
from afarm_plugins.evaluators import LengthControlledConfig
from afarm_plugins.evaluators.data_files import cell, digest_file, number
from afarm_plugins.evaluators.length_checks import describe_misfit, error_and_warnings, vanished
from afarm_plugins.evaluators.length_glm import FOLDS, Floats, Rows, fit, length_feature, sampling_error

NEEDS_DIFFICULTY = (
    "has a coefficient for the difficulty of instructions, which is not given: --set length_controlled.difficulty=FILE"
)
LACKED = {"difficulty": "difficulties of instructions", "gamed": "rows that bound what length can do"}
COLUMNS = {
    "not_gamed": ("not_gamed", "not_gamed_baseline.astype(float)"),
    "length": ("length", "np.tanh(std_delta_len)"),
    "difficulty": ("difficulty", "instruction_difficulty"),
}
"""The coefficients in the order of the features, by their names in a file, AlpacaEval's second."""
FILES = ("weights", "difficulty", "gamed")
"""The settings that name files."""
MODEL = ("model", "")
"""The column of a file of weights that names the model; AlpacaEval's has no name."""


@dataclass(frozen=True, slots=True)
class Fitted:
    """Coefficients in the order of `COLUMNS`, without the last if there are no difficulties.

    `C` and `error` (`length_glm.sampling_error`) are None if they were read from a file, and `error` if it would not
    hold; `warnings` are clauses.
    """

    coefficients: Floats
    C: float | None = None
    error: float | None = None
    warnings: tuple[str, ...] = ()

    @property
    def fitted(self) -> bool:
        return self.C is not None


@dataclass(frozen=True, slots=True)
class Compared:
    """N judged outputs, by column.

    `tasks` are their instructions' ids; `gap` [N] characters by which the reference's output is longer; `share` [N] the
    system's win, NaN without an answer; `difficulty` [N] if it is known; `references` the names of the references.
    """

    tasks: list[str]
    gap: Floats
    share: Floats
    difficulty: Floats | None
    references: Set[str]


class LengthControlled(Evaluator):
    """See the module.

    Metrics, percent: `length_controlled_winrate`, None if the fit's penalty leaves nothing of a few judgements;
    `lc_sampling_error`, with the fit's uncertainty in it, None if it would not hold; and `lc_standard_error`, the
    published one: the spread of the prediction over instructions, None then too, and without difficulties. `lc_source`
    is "weights", "fit", or "fit without" the files that it lacked; `lc_warning` says why figure or error are doubtful.
    An instruction without an output has no length, and is left out.
    """

    needs = frozenset({"judgements"})

    def __init__(self, config: LengthControlledConfig | None = None):
        """Read the files, so that a wrong one is an error before anything is judged. Raises `DataError`."""
        self.config = config = config or LengthControlledConfig()
        files = {name: (getattr(config, name), digest_file(getattr(config, name))) for name in FILES}
        self.weights = weights(*files["weights"]) if config.weights else {}
        self.difficulty = difficulties(*files["difficulty"]) if config.difficulty else None
        self.gamed = gamed(*files["gamed"], config.gamed_weight) if config.gamed else None

    def check(self, instructions: Sequence[Instruction]) -> Sequence[str]:
        if self.difficulty is None and any(known[-1] for known in self.weights.values()):
            return [f"{self.config.weights} {NEEDS_DIFFICULTY}"]
        known, asked = self.difficulty, {row.id: row.instruction for row in instructions}
        if not self.weights and len(asked) < FOLDS:
            return [f"length control is fitted to {FOLDS} instructions or more, and here are {len(asked)}"]
        lacking = [text for id, text in asked.items() if known is not None and id not in known]
        return [self._lacks(lacking, len(asked))] if lacking else []

    def _lacks(self, asked: Sequence[str], of: int) -> str:
        return (
            f"{self.config.difficulty}: {len(asked)} of {of} instructions have no difficulty in it, such as "
            f"{asked[0][:60]!r}; fit without: --set length_controlled.difficulty="
        )

    def evaluate(self, inputs: EvaluationInputs) -> Evaluation:
        """Fit or look up the coefficients, and predict the win rate at equal length.

        Raises `DataError` if an instruction has no difficulty in the file, if fewer than five instructions have a
        judgement to fit, or if judgements and outputs do not belong together.
        """
        compared = self._compared(inputs)
        known = self.weights.get(inputs.system)
        found = self._fit(inputs.system, compared) if known is None else self._checked(inputs.system, known, compared)
        count = len(compared.tasks)
        p = expit(_features(count, None, compared.difficulty) @ found.coefficients)
        withheld = found.fitted and found.error is None
        spread = None
        if compared.difficulty is not None and not withheld:
            spread = standard_error((100 * p).tolist(), compared.tasks)
        a, b, c = (*map(float, found.coefficients), None)[:3]
        lacks = [words for name, words in LACKED.items() if not getattr(self.config, name)]
        fitted = f"fit without AlpacaEval's {' and '.join(lacks)}" if lacks else "fit"
        undefined = vanished(found.coefficients, compared.share) if withheld else ""
        warnings = [*found.warnings, *filter(None, [undefined])]
        if absent := len(inputs.outputs) - count:
            warnings.append(f"{absent} instructions without an output are left out, and lost in the win rate alone")
        return Evaluation(
            "length_controlled",
            inputs.system,
            {
                "length_controlled_winrate": None if undefined else 100 * float(p.mean()),
                "lc_sampling_error": None if found.error is None else 100 * found.error,
                "lc_standard_error": spread,
                "lc_source": fitted if found.fitted else "weights",
                "lc_warning": "; ".join(warnings) or None,
                "lc_not_gamed": a,
                "lc_length": b,
                "lc_difficulty": c,
                "lc_C": found.C,
                "n_total": int((~np.isnan(compared.share)).sum()),
            },
        )

    def _compared(self, inputs: EvaluationInputs) -> Compared:
        """Read the rows once. Raises `DataError` for rows that do not match, none, or no difficulty."""
        tasks, gaps, shares, references, difficulty = list[str](), array("d"), array("d"), set[str](), array("d")
        lacking: list[str] = []
        for row in match_judgements(inputs):
            if row.unanswered:
                continue
            pair, won = row.pair, row.win
            tasks.append(pair.instruction.id)
            gaps.append(len(pair.output_1) - len(pair.output_2))
            shares.append(math.nan if won is None else won)
            references.add(pair.generator_1)
            if self.difficulty is not None:
                difficulty.append(self.difficulty.get(tasks[-1], math.nan))
                if math.isnan(difficulty[-1]):
                    lacking.append(pair.instruction.instruction[:60])
        if not tasks:
            raise DataError(f"{inputs.system}: there are no outputs")
        if lacking:
            raise DataError(self._lacks(lacking, len(tasks)))
        known = None if self.difficulty is None else np.array(difficulty)
        return Compared(tasks, np.array(gaps), np.array(shares), known, references - {""})

    def _checked(self, system: str, known: Floats, compared: Compared) -> Fitted:
        """Take coefficients from the file, or fit them if the file's do not apply. Raises `DataError`."""
        # The reference of the file is the model whose coefficients are all 0.
        of, here = [name for name, weights in self.weights.items() if not weights.any()], compared.references
        if of and here and not here <= {*of}:
            raise DataError(
                f"{self.config.weights} has coefficients against {' or '.join(of)}, and {system} was compared "
                f"with {' and '.join(sorted(here))}: leave length_controlled.weights out to fit them"
            )
        if compared.difficulty is None and known[-1]:
            raise DataError(f"{self.config.weights} {NEEDS_DIFFICULTY}")
        coefficients = known if compared.difficulty is not None else known[:-1]
        features = _features(len(compared.tasks), length_feature(compared.gap), compared.difficulty)
        misfit, applicable = describe_misfit(expit(features @ coefficients), compared.share, compared.tasks)
        if not misfit:
            return Fitted(coefficients)
        said = f"the coefficients of {system!r} in {self.config.weights} {misfit}"
        if applicable:
            return Fitted(coefficients, warnings=(f"{said}: they were fitted to other judgements",))
        fitted = self._fit(system, compared)
        return replace(fitted, warnings=(f"{said}: they are of something else, and not used", *fitted.warnings))

    def _fit(self, system: str, compared: Compared) -> Fitted:
        """Fit the coefficients to the judgements, whatever their order."""
        tasks, gaps, shares, difficulty = compared.tasks, compared.gap, compared.share, compared.difficulty
        order = sorted(range(len(tasks)), key=lambda i: (tasks[i], gaps[i], str(shares[i])))
        length = length_feature(gaps[order])
        features = _features(len(order), length, None if difficulty is None else difficulty[order])
        share = shares[order]
        answered = ~np.isnan(share)
        group = np.unique(np.array(tasks)[order][answered], return_inverse=True)[1]
        count = int(group.max(initial=-1)) + 1
        if count < FOLDS:
            raise DataError(
                f"{system}: {count} instructions have a judgement; length control is fitted to {FOLDS} or more"
            )
        judged = Rows(features[answered], share[answered], np.ones(len(group)), group)
        rows, extra = judged, self.gamed
        if extra is not None:
            parts = judged, (extra := replace(extra, features=extra.features[:, : features.shape[1]]))
            columns = ("features", "share", "weight", "group")
            rows = Rows(*(np.concatenate([getattr(part, name) for part in parts]) for name in columns))
        coefficients, C = fit(rows)
        equal = judged.features[np.unique(judged.group, return_index=True)[1]]  # of each instruction in turn
        equal[:, 1] = 0
        error = sampling_error(coefficients, judged, extra, equal)
        error, warnings = error_and_warnings(coefficients, error, rows, judged, gaps[order][answered], equal)
        return Fitted(coefficients, C, error, tuple(warnings))


# ----------------------------------------------------------------------------------------------------- the user's files


@lru_cache(maxsize=4)
def weights(path: str, contents: str) -> Mapping[str, Floats]:
    """Read coefficients by model; `contents`: the file's digest. Raises `DataError` naming row and field."""
    return {
        str(cell(row, MODEL, where)): np.array([number(row, names, where) for names in COLUMNS.values()])
        for where, row in read_placed_rows(path)
    }


@lru_cache(maxsize=4)
def difficulties(path: str, contents: str) -> Mapping[str, float]:
    """Read the difficulty of each instruction in a file, by its id."""
    return {
        Instruction.from_row(row, where).id: number(row, COLUMNS["difficulty"], where)
        for where, row in read_placed_rows(path)
    }


@lru_cache(maxsize=4)
def gamed(path: str, contents: str, weight: float) -> Rows:
    """Read the regularising rows, their difficulty last. Rows with one `index` count `weight` together."""
    table = list(read_placed_rows(path))
    z = np.array([number(row, ("std_delta_len",), where) for where, row in table])
    share = np.array([number(row, ("preference",), where) for where, row in table])
    if outside := [where for (where, _), s in zip(table, share, strict=True) if not 0 <= s <= 1]:
        raise DataError(f"{outside[0]}: field 'preference' must lie in [0, 1]: what the model has of the win")
    difficulty = np.array([number(row, COLUMNS["difficulty"], where) for where, row in table])
    index = [str(cell(row, ("index",), where)) for where, row in table]
    _, group, size = np.unique(index, return_inverse=True, return_counts=True)
    features = np.stack([np.zeros(len(z)), np.tanh(z), difficulty], axis=1)
    return Rows(features, share, weight / size[group], group)


def _features(count: int, length: Floats | None, difficulty: Floats | None) -> Floats:
    """Features [count, 2 or 3]: not gamed, length (0 for equal lengths) and any difficulties."""
    columns = [np.ones(count), np.zeros(count) if length is None else length]
    return np.stack(columns if difficulty is None else [*columns, difficulty], axis=1)
