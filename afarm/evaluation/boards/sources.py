"""Sources of leaderboards: runs, shared leaderboards, AlpacaEval's tables and annotations."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from afarm.core.errors import DataError, did_you_mean
from afarm.evaluation.boards.board import FIGURES, Leaderboard, ordered
from afarm.evaluation.boards.from_annotations import boards_of_annotations
from afarm.evaluation.boards.from_csv import TABLES, imported
from afarm.evaluation.boards.from_round_robin import round_robins
from afarm.evaluation.boards.from_runs import boards_of_runs
from afarm.evaluation.boards.merging import group, repeated
from afarm.evaluation.boards.ranking import Sections, evaluator_class, looks_at_all_systems
from afarm.storage.disk import decode_json
from afarm.storage.row_shapes import ANNOTATION_FIELDS, BATTLES
from afarm.storage.rows import read_rows

REFERENCE_BOARDS = ("paper",)
"""The leaderboards that ship with afarm."""
BATTLE_ORDER = "bradley_terry"
"""The evaluator that orders models by votes."""


def read_boards(
    sources: Sequence[Path | str],
    annotations: Sequence[Path | str] = (),
    orders: Sequence[str] = (),
    evaluators: Sequence[str] = (),
    settings: Sections | None = None,
) -> tuple[list[Leaderboard], list[str]]:
    """Read the leaderboards of `sources` and of files of stored `annotations`, one per protocol.

    A source is a directory of runs, the name of a leaderboard that ships ("paper"), or a file: a leaderboard (.json),
    an AlpacaEval leaderboard or another table of figures (.csv), annotations, or votes on models. `orders` are figures
    that `in_order` is to go by; if one is an evaluator over all systems, annotations make a leaderboard of all systems
    that met, in its order and with the metrics of `evaluators`, set by `settings`, beside, as votes always do. Returns
    the leaderboards, and sentences on results left out. Raises `DataError` naming the file, the row and the field that
    cannot be read.
    """
    boards: list[Leaderboard] = []
    left_out: list[str] = []
    judged = [Path(file) for file in annotations]
    for source in sources:
        path = Path(source)
        if str(source) in REFERENCE_BOARDS and not path.exists():
            path = Path(__file__).with_name(f"{source}.json")
        if path.is_dir():
            of_runs, unread = boards_of_runs(path)
            boards += of_runs
            left_out += unread
        elif path.name.endswith(TABLES) and not holds_battles(path):
            boards += imported(path, orders)
        elif path.name.endswith(TABLES) or holds_annotations(path):
            judged.append(path)
        else:
            boards += _shared_boards(path)
    over_all = next((name for name in orders if looks_at_all_systems(name)), "") if judged else ""
    if not over_all and any(map(holds_battles, judged)):  # without texts, and mostly without a common reference
        over_all = BATTLE_ORDER
    if over_all:
        boards += round_robins(judged, over_all, evaluators, settings)
    elif judged:
        boards += boards_of_annotations(judged)
    return group(boards), left_out + repeated(boards)


def in_order(boards: Sequence[Leaderboard], orders: Sequence[str]) -> list[Leaderboard]:
    """Order each leaderboard by the first of these figures that its systems have.

    Raises `DataError` naming those there are if none has any.
    """
    if not any(entry.figure(name) is not None for board in boards for entry in board.entries for name in orders):
        entries = [entry for board in boards for entry in board.entries]
        there = {name for name in FIGURES if name and any(entry.figure(name) is not None for entry in entries)}
        there |= {name for entry in entries for name in entry.metrics}
        name = orders[0]
        if "reward_model" in getattr(evaluator_class(name), "needs", ()):
            raise DataError(
                f"--order-by {name}: each run has this figure from its own reward model, so runs cannot be ranked by "
                f"it. Choose one of {', '.join(sorted(there))}"
            )
        raise DataError(
            f"--order-by {name}: no system has such a figure.{did_you_mean(name, there)} "
            f"Evaluators add theirs to runs: afarm evaluate … --evaluator {name}, then "
            f"afarm leaderboard --order-by {name}"
        )
    return [ordered(board, orders) for board in boards]


def holds_annotations(path: Path) -> bool:
    """Return True if `path` can only be a file of annotations: no directory, table or JSON object."""
    if path.is_dir() or path.name.endswith(TABLES):
        return False
    if path.suffix != ".json" or not path.is_file():
        return str(path) not in REFERENCE_BOARDS
    with path.open("rb") as handle:
        return handle.read(64).lstrip()[:1] != b"{"


def holds_battles(path: Path) -> bool:
    """Return True for a file of votes that name two models and the winner, and no outputs of a reference."""
    fields = next((row.keys() for row in read_rows(path)), {}.keys())
    return any(fields >= {*names} for names in BATTLES) and not fields >= {*ANNOTATION_FIELDS}


def _shared_boards(path: Path) -> list[Leaderboard]:
    """Read a file as `afarm leaderboard --format json` writes it."""
    try:
        shared = decode_json(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise DataError(f"{path}: not valid JSON: {error}") from error
    if isinstance(shared.get("standings"), list):
        raise DataError(f"{path}: `afarm compare` wrote it: name the directory of its runs, which has them all")
    if not isinstance(shared.get("boards"), list):
        raise DataError(f"{path}: holds no boards: `afarm leaderboard --format json --output FILE` writes such a file")
    return [Leaderboard.from_row(row, f"{path}: board {number}") for number, row in enumerate(shared["boards"])]
