"""AlpacaEval's stored annotations: their raw completions read again, and their published results without a call."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from evaluator_directories import RANK, entry, weighted, write
from places import SHARED_DATA

from afarm.core.interfaces import AnnotateContext, EvaluationInputs
from afarm.core.records import JudgedPair, Output
from afarm.evaluation.matching import match_rows
from afarm.judging.client import JudgeClient
from afarm.judging.labelling import annotate_in_chunks
from afarm.judging.ledger import Ledger
from afarm.storage.rows import read_outputs, read_preferences
from afarm_plugins.alpaca_eval import AlpacaEvalConfig
from afarm_plugins.alpaca_eval.annotator import AlpacaEvalAnnotator, draw_like_alpaca_eval
from afarm_plugins.alpaca_eval.parsers import Parser
from afarm_plugins.evaluators.win_rate import WinRate
from afarm_plugins.judges.replay import ReplayJudge, read_stored
from afarm_plugins.judges.settings import ReplayConfig

DATA = SHARED_DATA / "alpaca_eval"
WEIGHTED = ["alpaca-7b", "gpt-3.5-turbo-0301"]
PUBLISHED = [
    ("alpaca_eval_gpt4", "alpaca-7b"),
    ("alpaca_eval_gpt4", "text_davinci_001"),  # one pair has no answer
    ("weighted_gpt4_turbo", "gpt-3.5-turbo-0301"),
]
NAMES = {"alpaca_eval_gpt4": "alpaca_eval_gpt4", "weighted_gpt4_turbo": "weighted_alpaca_eval_gpt4_turbo"}
"""What the annotators of the files are called in them."""

M_OR_M = Parser("logprob_parser", {"numerator_token": "m", "denominator_tokens": ["m", "M"], "is_binarize": False})
"""As the weighted annotator reads answers: m says that the first output is better, M the second."""

pytestmark = pytest.mark.skipif(not DATA.is_dir(), reason=f"AlpacaEval's published data is not at {DATA}")


def annotations(annotator: str, model: str) -> Path:
    return DATA / f"annotations.{annotator}.{model}.json.gz"


def evaluator(annotator: str, base: Path) -> AlpacaEvalAnnotator:
    own = weighted() if annotator == "weighted_gpt4_turbo" else entry(**RANK)
    return AlpacaEvalAnnotator(AlpacaEvalConfig(), write(base, {NAMES[annotator]: own}))


@contextmanager
def replayed(path: Path, base: Path, **settings: Any) -> Iterator[JudgeClient]:
    with Ledger(base / "ledger.sqlite") as ledger:
        asker = JudgeClient({"*": ReplayJudge(str(path), ReplayConfig(**settings))}, ledger)
        try:
            yield asker
        finally:
            asker.close()


@pytest.mark.parametrize("model", WEIGHTED)
def test_every_stored_completion_reads_as_the_stored_preference(model: str) -> None:
    """From the raw completion alone: AlpacaEval's order is drawn anew, and its parser's value is turned by it."""
    stored = [rows[0] for rows in read_stored(annotations("weighted_gpt4_turbo", model)).judged.values()]
    raw = [judged for judged in stored if judged.raw is not None]
    assert len(stored) == 805
    assert all(judged.raw is not None or judged.row.pair.identical for judged in stored)
    switched = 0
    for judged in raw:
        assert judged.raw is not None
        [read] = M_OR_M.read(judged.raw, 1)
        assert isinstance(read, float)
        flip = draw_like_alpaca_eval([False, True], "is_switched_outputs", judged.row.pair.instruction.instruction, 0)
        switched += flip
        assert (read if flip else 1 - read) == pytest.approx(judged.row.p2, abs=1e-9)
    assert 350 < switched < 450


@pytest.mark.parametrize(("annotator", "model"), PUBLISHED)
def test_published_results_are_recomputed_without_a_call(annotator: str, model: str, tmp_path: Path) -> None:
    path = annotations(annotator, model)
    stored = read_preferences(path)
    with replayed(path, tmp_path) as ask:
        context = AnnotateContext(0, ask)
        pairs = [row.pair for row in stored]
        judged = list(annotate_in_chunks(pairs, evaluator(annotator, tmp_path), "alpaca_eval", context))
    for again, row in zip(judged, stored, strict=True):
        assert again.preference.outcome == row.preference.outcome
        assert again.p2 == pytest.approx(row.p2, abs=1e-9)
    check_published(judged, annotator, model)


def check_published(judged: list[JudgedPair], annotator: str, model: str) -> None:
    outputs = [Output(row.pair.instruction, row.pair.output_2, model) for row in judged]
    found = WinRate().evaluate(EvaluationInputs(model, outputs, judgements=judged)).metrics
    with (DATA / f"leaderboard.{annotator}.csv").open() as handle:
        [published] = [row for row in csv.DictReader(handle) if row[""] == model]
    for name in ("win_rate", "standard_error"):
        assert found[name] == pytest.approx(float(published[name]), rel=0, abs=1e-9)
    for name in ("n_wins", "n_wins_base", "n_draws", "n_total"):
        assert found[name] == int(float(published[name]))


def test_outputs_of_two_systems_give_the_published_win_rate(tmp_path: Path) -> None:
    """As `afarm evaluate` goes: the pairs are made of two files of outputs, not taken from the annotations."""
    pairs = match_rows(
        read_outputs(DATA / "outputs.alpaca-7b.json.gz"), read_outputs(DATA / "outputs.gpt4_1106_preview.json.gz")
    ).pairs
    with replayed(annotations("weighted_gpt4_turbo", "alpaca-7b"), tmp_path) as ask:
        context = AnnotateContext(123, ask)
        judged = list(annotate_in_chunks(pairs, evaluator("weighted_gpt4_turbo", tmp_path), "alpaca_eval", context))
        assert ask.spend.dollars == 0
    check_published(judged, "weighted_gpt4_turbo", "alpaca-7b")


def test_another_seed_would_read_the_completions_the_wrong_way_round(tmp_path: Path) -> None:
    """That every row agrees is no accident: drawn with seed 1, the order is wrong for half of them."""
    stored = [rows[0] for rows in read_stored(annotations("weighted_gpt4_turbo", "alpaca-7b")).judged.values()]
    wrong = 0
    for judged in stored:
        if judged.raw is None:
            continue
        [read] = M_OR_M.read(judged.raw, 1)
        assert isinstance(read, float)
        flip = draw_like_alpaca_eval([False, True], "is_switched_outputs", judged.row.pair.instruction.instruction, 1)
        wrong += abs((read if flip else 1 - read) - (judged.row.p2 or 0)) > 1e-6
    assert 300 < wrong < 500
