"""The length-controlled win rate: numbers worked by hand, invariances, and AlpacaEval's published figures."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from places import SHARED_DATA

from afarm.core.errors import DataError
from afarm.core.interfaces import EvaluationInputs
from afarm.core.records import Instruction, JudgedPair, Output, Pair, Preference
from afarm.core.seeding import uniform
from afarm.storage.rows import read_outputs, read_preferences
from afarm_plugins.evaluators import LengthControlledConfig
from afarm_plugins.evaluators.length_controlled import LengthControlled
from afarm_plugins.evaluators.length_glm import Rows, fit, length_feature, sampling_error, solve
from afarm_plugins.evaluators.win_rate import WinRate

DATA = SHARED_DATA / "alpaca_eval"
WITHOUT_GAMED = "rows that bound what length can do"
FITTED_ALONE = f"fit without AlpacaEval's difficulties of instructions and {WITHOUT_GAMED}"
published = pytest.mark.skipif(not DATA.is_dir(), reason=f"AlpacaEval's published data is not at {DATA}")


def inputs(rows: Sequence[tuple[int, int, float | None]], system: str = "me") -> EvaluationInputs:
    """One judged output for each (characters of the reference's, characters of mine, p2); None is unparsed."""
    judged = []
    for number, (theirs, mine, p2) in enumerate(rows):
        pair = Pair(Instruction(f"instruction {number}"), "y" * theirs, "x" * mine, 0, "them", system)
        judged.append(JudgedPair(pair, Preference(pair.id, p2, "unparsed" if p2 is None else "decided")))
    return of(judged, system)


def of(judged: Sequence[JudgedPair], system: str = "me") -> EvaluationInputs:
    return EvaluationInputs(system, [Output(r.pair.instruction, r.pair.output_2) for r in judged], judgements=judged)


def metrics(given: EvaluationInputs, **files: Any) -> dict[str, Any]:
    return dict(LengthControlled(LengthControlledConfig(**files)).evaluate(given).metrics)


def lengthy(count: int = 600) -> list[tuple[int, int, float | None]]:
    """Judgements that a longer output wins more often: logit = 0.5 - 2 tanh(z) on keyed draws."""
    gaps = [round(200 * (uniform("gap", i) - 0.7)) for i in range(count)]
    mean = sum(gaps) / count
    deviation = math.sqrt(sum((gap - mean) ** 2 for gap in gaps) / (count - 1))
    return [
        (500 + gap, 500, float(uniform("judged", i) < 1 / (1 + math.exp(2 * math.tanh(gap / deviation) - 0.5))))
        for i, gap in enumerate(gaps)
    ]


def write(path: Path, rows: Sequence[Mapping[str, Any]]) -> str:
    with path.open("w", newline="") as handle:
        writer = csv.DictWriter(handle, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return str(path)


def test_without_a_difference_in_length_it_is_the_win_rate_less_the_penalty() -> None:
    # The slope of the loss in the only coefficient is n (mean - sigmoid(a)) = 1 / C at its minimum.
    given = inputs([(10, 10, 1.0)] * 30 + [(10, 10, 0.0)] * 10)
    found = metrics(given)
    assert found["length_controlled_winrate"] == pytest.approx(75 - 100 / (found["lc_C"] * 40), abs=1e-2)
    assert found["lc_length"] == 0.0
    assert found["lc_sampling_error"] == pytest.approx(WinRate().evaluate(given).metrics["standard_error"], rel=1e-3)
    assert (found["lc_standard_error"], found["lc_difficulty"]) == (None, None)
    assert (found["lc_source"], found["n_total"]) == (FITTED_ALONE, 40)


def test_several_labels_of_an_instruction_make_no_error_smaller(tmp_path: Path) -> None:
    given = inputs(lengthy(40))
    hard = [
        {"instruction": r.pair.instruction.instruction, "difficulty": i % 7} for i, r in enumerate(given.judgements)
    ]
    weights = [{"model": "me", "not_gamed": 0.5, "length": 1, "difficulty": 0.3}]
    files = {"difficulty": write(tmp_path / "d.csv", hard), "weights": write(tmp_path / "w.csv", weights)}
    once, thrice = metrics(given, **files), metrics(of([r for r in given.judgements for _ in range(3)]), **files)
    assert thrice["lc_standard_error"] == pytest.approx(once["lc_standard_error"])
    assert thrice["length_controlled_winrate"] == pytest.approx(once["length_controlled_winrate"])


def test_what_length_alone_wins_is_taken_out() -> None:
    given = inputs(lengthy(3000))
    found = metrics(given)
    assert WinRate().evaluate(given).metrics["win_rate"] > 70
    assert found["length_controlled_winrate"] == pytest.approx(100 / (1 + math.exp(-0.5)), abs=3)
    assert found["lc_length"] == pytest.approx(-2, abs=0.3)


def test_neither_the_order_of_rows_nor_a_constant_length_matters_and_swapping_mirrors() -> None:
    rows = lengthy()
    found = metrics(inputs(rows))
    turned = of(inputs(rows).judgements[::-1])
    assert metrics(turned) == found
    longer = inputs([(theirs + 1000, mine + 1000, p2) for theirs, mine, p2 in rows])
    assert metrics(longer)["length_controlled_winrate"] == pytest.approx(found["length_controlled_winrate"], abs=1e-6)
    mirrored = metrics(inputs([(mine, theirs, 1 - (p2 or 0.0)) for theirs, mine, p2 in rows]))
    assert mirrored["length_controlled_winrate"] == pytest.approx(100 - found["length_controlled_winrate"], abs=0.02)
    assert mirrored["lc_sampling_error"] == pytest.approx(found["lc_sampling_error"], rel=1e-2)


def test_unparsed_judgements_are_left_out_of_the_fit() -> None:
    rows = lengthy(100)
    unparsed = [(500, 500, None)] * 3
    found = metrics(inputs(rows + unparsed))
    # They count in the standard deviation of the lengths, as they do at AlpacaEval, and in nothing else.
    assert found["n_total"] == 100
    assert found["length_controlled_winrate"] == pytest.approx(
        metrics(inputs(rows))["length_controlled_winrate"], abs=0.5
    )


@pytest.mark.parametrize(("p2", "low", "high"), [(1.0, 99, 100), (0.0, 0, 1)])
def test_a_system_that_won_or_lost_all_has_a_finite_figure(p2: float, low: float, high: float) -> None:
    found = metrics(inputs([(10 + i, 30, p2) for i in range(40)]))
    assert low < found["length_controlled_winrate"] <= high
    assert math.isfinite(found["lc_not_gamed"])


def test_fewer_than_five_judged_instructions_are_an_error() -> None:
    with pytest.raises(DataError, match="me: 4 instructions have a judgement"):
        metrics(inputs([(10, 20, 1.0)] * 4 + [(10, 20, None)]))
    assert metrics(inputs([(10, 20 + i, i % 2) for i in range(5)]))["n_total"] == 5


def rows_of(features: Any, share: Any, group: Any = None) -> Rows:
    count = len(share)
    group = np.arange(count) if group is None else np.asarray(group)
    return Rows(np.asarray(features, dtype=float), np.asarray(share, dtype=float), np.ones(count), group)


def test_lengths_are_measured_in_their_standard_deviation_from_nothing() -> None:
    # Differences 0 and 2: mean 1, s = sqrt(1 + 1); not centred, so 0 stays 0.
    assert length_feature(np.array([0.0, 2.0])).tolist() == pytest.approx([0.0, math.tanh(2 / math.sqrt(2))])


def test_a_coefficient_appears_where_the_loss_is_steeper_than_the_penalty() -> None:
    # 30 won and 10 lost: the slope at 0 is 40 (0.75 - 0.5) = 10, so nothing up to C = 0.1.
    given = rows_of(np.ones((40, 1)), [1.0] * 30 + [0.0] * 10)
    assert solve(given, 0.0999).tolist() == [0.0]
    for C in (0.11, 0.2, 5.0):
        assert solve(given, C) == pytest.approx([math.log(1 / (1 / (0.75 - 1 / (40 * C)) - 1))], abs=2e-3)


def test_rows_of_one_instruction_share_a_fold() -> None:
    """Copies of an instruction on either side of a fold would make chance look like knowledge: a high C."""
    draws = np.random.default_rng(0)
    features, share = draws.normal(size=(40, 8)), draws.integers(2, size=40)
    copied = [np.repeat(values, 5, axis=0) for values in (features, share)]
    assert fit(rows_of(*copied, np.repeat(np.arange(40), 5)))[1] < 0.1
    assert fit(rows_of(*copied, np.arange(200)))[1] > 1


def test_the_sampling_error_is_the_spread_of_predictions_where_the_fit_is_exact() -> None:
    features = np.stack([np.ones(4), np.zeros(4), [1.0, 1.0, -1.0, -1.0]], axis=1)
    coefficients = np.array([0.5, 0.0, 2.0])
    p = 1 / (1 + np.exp(-features @ coefficients))
    found = sampling_error(coefficients, rows_of(features, p), None, features)
    assert found == pytest.approx(p.std(ddof=1) / 2)
    assert sampling_error(coefficients, rows_of(features[:1], p[:1]), None, features[:1]) is None


def files(tmp_path: Path, given: EvaluationInputs) -> dict[str, str]:
    """The three files for the instructions of `given`: difficulty 1 for the first half, -1 for the others."""
    tasks = [row.pair.instruction for row in given.judgements]
    difficulty = [
        {"instruction": t.instruction, "difficulty": 1 - 2 * (2 * i // len(tasks))} for i, t in enumerate(tasks)
    ]
    (tmp_path / "difficulty.jsonl").write_text("".join(json.dumps(row) + "\n" for row in difficulty[::-1]))
    gamed = [
        {"model": m, "preference": p, "index": i, "std_delta_len": z, "instruction_difficulty": 0.0}
        for i in range(len(tasks))
        for m, p, z in (("concise", 0.1, 1.5), ("verbose", 0.9, -1.5))
    ]
    weights = [{"model": "me", "not_gamed": 0.5, "length": -9.0, "difficulty": 2.0}]
    return {
        "weights": write(tmp_path / "weights.csv", weights),
        "difficulty": str(tmp_path / "difficulty.jsonl"),
        "gamed": write(tmp_path / "gamed.csv", gamed),
    }


def test_published_coefficients_predict_by_hand_and_by_instruction(tmp_path: Path) -> None:
    given = inputs([(10, 90, 0.0)] * 4)
    found = metrics(given, **files(tmp_path, given))
    # sigmoid(0.5 + 2) and sigmoid(0.5 - 2), each for two instructions: 0.924142 and 0.182426.
    high, low = 1 / (1 + math.exp(-2.5)), 1 / (1 + math.exp(1.5))
    assert found["length_controlled_winrate"] == pytest.approx(50 * (high + low))
    deviation = math.sqrt(4 * ((high - low) / 2) ** 2 / 3)
    assert found["lc_standard_error"] == pytest.approx(100 * deviation / 2)
    assert (found["lc_source"], found["lc_length"]) == ("weights", -9.0)
    # Of fewer instructions, the difficulties are still their own: the last two are the easy ones.
    last = metrics(of(given.judgements[2:]), **files(tmp_path, given))
    assert last["length_controlled_winrate"] == pytest.approx(100 * low)
    other = metrics(inputs(lengthy(40), "another"), weights=files(tmp_path, given)["weights"])
    assert other["lc_source"] == FITTED_ALONE


def own_weights(path: Path, rows: Sequence[tuple[int, int, float | None]], system: str = "me") -> str:
    fitted = metrics(inputs(rows))
    row = {"model": system, "not_gamed": fitted["lc_not_gamed"], "length": fitted["lc_length"], "difficulty": 0.0}
    return write(path, [row])


def test_coefficients_of_other_judgements_are_told_and_impossible_ones_not_used(tmp_path: Path) -> None:
    rows = lengthy()
    path = own_weights(tmp_path / "w.csv", rows)
    theirs = metrics(inputs(rows), weights=path)
    assert (theirs["lc_source"], theirs["lc_warning"]) == ("weights", None)
    # A stricter judge: of the wins one in fifteen is lost.
    stricter = [(one, two, 0.0 if p and i % 15 == 0 else p) for i, (one, two, p) in enumerate(rows)]
    told = metrics(inputs(stricter), weights=path)
    assert told["lc_source"] == "weights"
    assert told["lc_warning"].startswith(f"the coefficients of 'me' in {path} predict a win rate of ")
    assert told["lc_warning"].endswith(": they were fitted to other judgements")
    # Another system that is called so as well: what it wins, they say it loses.
    mirrored = [(one, two, 1 - (p or 0)) for one, two, p in rows]
    refused, fitted = metrics(inputs(mirrored), weights=path), metrics(inputs(mirrored))
    assert refused["lc_source"] == FITTED_ALONE
    assert refused["length_controlled_winrate"] == fitted["length_controlled_winrate"]
    assert refused["lc_sampling_error"] == fitted["lc_sampling_error"]
    assert "they are of something else, and not used" in refused["lc_warning"]
    # Four instructions cannot be fitted, nor tell that coefficients are wrong.
    assert metrics(inputs(mirrored[:4]), weights=path)["lc_source"] == "weights"


@published
def test_a_stray_row_of_the_published_coefficients_is_no_systems_figure() -> None:
    rows = [
        JudgedPair(replace(row.pair, generator_2="example"), row.preference)
        for row in judged("gpt-3.5-turbo-0301").judgements
    ]
    found = metrics(of(rows, "example"), **PREDICTED, gamed=FITTED["gamed"])
    assert found["lc_source"] == "fit"
    assert found["length_controlled_winrate"] == pytest.approx(18.1, abs=0.35)
    assert "'example'" in found["lc_warning"]
    assert "predict a win rate of 0.1, and these judgements have 9.6" in found["lc_warning"]


def test_difficulties_and_regularising_rows_enter_the_fit(tmp_path: Path) -> None:
    rows = [(100, 100, float(uniform(i) < (0.9 if i < 200 else 0.2))) for i in range(400)]
    given = inputs(rows)
    named = files(tmp_path, given)
    plain = metrics(given)
    hard = metrics(given, difficulty=named["difficulty"])
    whole = metrics(given, difficulty=named["difficulty"], gamed=named["gamed"])
    assert (plain["lc_difficulty"], plain["lc_length"]) == (None, 0.0)
    assert hard["lc_difficulty"] == pytest.approx((math.log(9) + math.log(4)) / 2, abs=0.3)
    assert (hard["lc_source"], hard["lc_length"]) == (f"fit without AlpacaEval's {WITHOUT_GAMED}", 0.0)
    # Lengths do not differ, so the coefficient of length comes from the regularising rows: b tanh(1.5) = -logit(0.9).
    assert whole["lc_length"] == pytest.approx(-math.log(9) / math.tanh(1.5), abs=0.2)
    assert whole["lc_source"] == "fit"
    ignored = metrics(given, **{k: v for k, v in named.items() if k != "weights"}, gamed_weight=0.0)
    assert ignored["lc_length"] == 0.0


def test_what_is_wrong_with_a_file_is_said_with_file_row_and_field(tmp_path: Path) -> None:
    given = inputs(lengthy(20))
    named = files(tmp_path, given)
    wrong = {
        "difficulty": [
            ("gone.json", None, "gone.json: no such file"),
            ("d.csv", "instruction,difficulty\ninstruction 0,hard\n", "line 2: field 'difficulty' must be a number"),
            ("d.csv", "index,instruction_difficulty\n0,1.0\n", "line 2: field 'instruction' is missing"),
            ("d.csv", "instruction,difficulty\ninstruction 0,1.0\n", "19 of 20 instructions have no difficulty"),
        ],
        "gamed": [
            ("g.csv", "preference,std_delta_len,difficulty,index\n1.5,1,0,0\n", r"line 2: field 'preference' must lie"),
            ("g.csv", "preference,difficulty,index\n0.5,0,0\n", "line 2: field 'std_delta_len' is missing"),
        ],
        "weights": [
            ("w.csv", "model,not_gamed,length\nme,1,2\n", "line 2: field 'difficulty' is missing"),
            ("w.csv", "model,not_gamed,length,difficulty\nme,1,2,nan\n", "line 2: field 'difficulty' must be a number"),
        ],
    }
    for name, cases in wrong.items():
        for file, text, said in cases:
            if text is not None:
                (tmp_path / file).write_text(text)
            system = "another" if name == "gamed" else "me"
            with pytest.raises(DataError, match=said):
                metrics(replace(given, system=system), **{**named, name: str(tmp_path / file)})
    alone = LengthControlled(LengthControlledConfig(weights=named["weights"]))
    with pytest.raises(DataError, match=r"length_controlled\.difficulty=FILE"):
        alone.evaluate(given)


def test_the_contents_of_the_files_are_part_of_what_the_result_was_made_from(tmp_path: Path) -> None:
    named = files(tmp_path, inputs(lengthy(20)))
    before = LengthControlledConfig(**named).result_fields()
    moved = tmp_path / "moved.csv"
    moved.write_bytes(Path(named["gamed"]).read_bytes())
    assert LengthControlledConfig(**{**named, "gamed": str(moved)}).result_fields() == before
    moved.write_bytes(moved.read_bytes() + b"\n")
    assert LengthControlledConfig(**{**named, "gamed": str(moved)}).result_fields() != before


# ------------------------------------------------------------------------------------------ the published figures

ANNOTATED = ("alpaca-7b", "gpt-3.5-turbo-0301")
OF_NO_COEFFICIENTS = {"NullModel", "dbrx-instruct"}
"""Models whose published figure is not the one that follows from their published coefficients."""


@cache
def board() -> dict[str, dict[str, str]]:
    with (DATA / "leaderboard.weighted_gpt4_turbo.csv").open() as handle:
        return {row[""]: row for row in csv.DictReader(handle)}


def judged(model: str) -> EvaluationInputs:
    return of(read_preferences(DATA / f"annotations.weighted_gpt4_turbo.{model}.json.gz"), model)


PREDICTED = {
    "weights": str(DATA / "length_controlled_weights.csv"),
    "difficulty": str(DATA / "instruction_difficulty.json.gz"),
}
FITTED = {"gamed": str(DATA / "gamed_synthetic.csv"), "difficulty": PREDICTED["difficulty"]}


@published
@pytest.mark.parametrize("model", ANNOTATED)
def test_the_published_length_controlled_win_rate_is_predicted_from_its_judgements(model: str) -> None:
    found = metrics(judged(model), **PREDICTED)
    assert found["length_controlled_winrate"] == pytest.approx(
        float(board()[model]["length_controlled_winrate"]), rel=0, abs=1e-6
    )
    assert (found["lc_source"], found["lc_warning"]) == ("weights", None)


@published
def test_the_published_figure_of_every_model_follows_from_its_coefficients() -> None:
    instructions = [row.instruction for row in read_outputs(DATA / "outputs.gpt4_1106_preview.json.gz")]
    pairs = [Pair(instruction, "", "") for instruction in instructions]
    rows = [JudgedPair(pair, Preference(pair.id, None, "unparsed")) for pair in pairs]
    evaluator = LengthControlled(LengthControlledConfig(**PREDICTED))
    with Path(PREDICTED["weights"]).open() as handle:
        models = [row[""] for row in csv.DictReader(handle) if row[""] in board()]
    off: dict[str, dict[str, str]] = {}
    inputs: dict[int, EvaluationInputs] = {}
    for model in models:
        row = board()[model]
        # Where outputs were missing, AlpacaEval took the difficulties of as many instructions from the first on.
        counts = {len(rows), int(row["n_total"])}
        inputs.update({count: of(rows[:count]) for count in counts - inputs.keys()})
        found = [evaluator.evaluate(replace(inputs[count], system=model)).metrics for count in counts]
        if not any(abs(f["length_controlled_winrate"] - float(row["length_controlled_winrate"])) < 1e-6 for f in found):
            off[model] = row
        elif row["lc_standard_error"]:
            assert any(abs(f["lc_standard_error"] - float(row["lc_standard_error"])) < 1e-6 for f in found), model
    assert len(models) == 199
    assert set(off) == OF_NO_COEFFICIENTS


@published
@pytest.mark.parametrize("model", ANNOTATED)
def test_the_fit_comes_near_the_published_figure(model: str) -> None:
    found = metrics(judged(model), **FITTED)
    assert found["length_controlled_winrate"] == pytest.approx(
        float(board()[model]["length_controlled_winrate"]), abs=0.35
    )
    assert found["lc_source"] == "fit"


@published
def test_the_fit_takes_fewer_rows_than_there_are_difficulties_in_any_order() -> None:
    given = judged("gpt-3.5-turbo-0301")
    fewer = of([row for i, row in enumerate(given.judgements) if i % 10][::-1], given.system)
    found = metrics(fewer, **FITTED)
    assert found["n_total"] == len(fewer.outputs) < 805
    assert found["length_controlled_winrate"] == pytest.approx(
        metrics(given, **FITTED)["length_controlled_winrate"], abs=1.5
    )


def test_weights_of_another_reference_are_refused(tmp_path: Path) -> None:
    given = inputs(lengthy(40))
    reference = given.judgements[0].pair.generator_1
    rows = [
        {"model": "me", "not_gamed": 0.5, "length": -9.0, "difficulty": 0.0},
        {"model": "somebody else", "not_gamed": 0.0, "length": 0.0, "difficulty": 0.0},
    ]
    assert reference
    path = write(tmp_path / "weights.csv", rows)
    with pytest.raises(DataError, match=f"against somebody else, and me was compared with {reference}"):
        metrics(given, weights=path)
    rows[1]["model"] = reference
    assert metrics(given, weights=write(tmp_path / "right.csv", rows))["lc_source"] == "weights"
