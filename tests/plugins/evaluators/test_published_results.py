"""The published win rates of AlpacaEval, from its stored judgements, to nine decimals."""

from __future__ import annotations

import csv

import pytest
from places import SHARED_DATA

from afarm.core.errors import DataError
from afarm.core.interfaces import EvaluationInputs
from afarm.core.records import Output
from afarm.evaluation.matching import match_rows
from afarm.storage.rows import read_outputs, read_preferences
from afarm_plugins.evaluators.win_rate import WinRate

DATA = SHARED_DATA / "alpaca_eval"
PUBLISHED = [
    ("alpaca_eval_gpt4", "alpaca-7b"),
    ("alpaca_eval_gpt4", "alpaca-farm-ppo-human"),
    ("alpaca_eval_gpt4", "gpt-3.5-turbo-0301"),
    ("alpaca_eval_gpt4", "text_davinci_001"),
    ("weighted_gpt4_turbo", "alpaca-7b"),
    ("weighted_gpt4_turbo", "gpt-3.5-turbo-0301"),
]

pytestmark = pytest.mark.skipif(not DATA.is_dir(), reason=f"AlpacaEval's published data is not at {DATA}")


@pytest.mark.parametrize(("annotator", "model"), PUBLISHED)
def test_the_published_win_rate_and_standard_error_are_reproduced(annotator: str, model: str) -> None:
    judged = read_preferences(DATA / f"annotations.{annotator}.{model}.json.gz")
    outputs = [Output(row.pair.instruction, row.pair.output_2, model) for row in judged]
    found = WinRate().evaluate(EvaluationInputs(model, outputs, judgements=judged)).metrics
    with (DATA / f"leaderboard.{annotator}.csv").open() as handle:
        (published,) = [row for row in csv.DictReader(handle) if row[""] == model]
    for name in ("win_rate", "standard_error", "discrete_win_rate"):
        value = found[name]
        assert isinstance(value, float)
        assert value == pytest.approx(float(published[name]), rel=0, abs=1e-9)
    for name in ("n_wins", "n_wins_base", "n_draws", "n_total"):
        assert found[name] == int(float(published[name]))
    assert found["avg_length"] == pytest.approx(float(published["avg_length"]), abs=1)
    assert len(judged) - int(found["n_total"] or 0) == found["n_unparsed"]


def test_real_outputs_pair_up_with_the_reference_by_instruction() -> None:
    reference = read_outputs(DATA / "outputs.text_davinci_003.json.gz")
    mine = read_outputs(DATA / "outputs.alpaca-7b.json.gz")
    pairs = match_rows(mine[::-1], reference).pairs
    assert len(pairs) == 805
    assert pairs[0].output_2 == mine[-1].output
    assert (pairs[0].generator_1, pairs[0].generator_2) == ("text_davinci_003", "alpaca-7b")
    with pytest.raises(DataError, match="do not match the reference"):
        match_rows(read_outputs(DATA / "outputs.text_davinci_001.json.gz"), reference)
