"""Bradley–Terry and Elo over many systems: numbers worked by hand, statsmodels' fit, and invariances."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import statsmodels.api as sm

from afarm.core.errors import DataError
from afarm.core.interfaces import EvaluationInputs
from afarm.core.records import Evaluation, Instruction, JudgedPair, Pair, Preference
from afarm.core.seeding import choice, uniform
from afarm_plugins.evaluators import BradleyTerryConfig, EloConfig
from afarm_plugins.evaluators.bradley_terry import POINTS, BradleyTerry
from afarm_plugins.evaluators.elo import Elo
from afarm_plugins.evaluators.pair_counts import games

Game = tuple[str, str, float | None, int]
"""Two systems, what the second has of the win (None: unparsed), and the number of the instruction."""


def judged(played: Sequence[Game]) -> list[JudgedPair]:
    rows = []
    for one, two, share, task in played:
        pair = Pair(Instruction(f"task {task}"), f"by {one}", f"by {two}", 0, one, two)
        outcome = "unparsed" if share is None else "decided"
        rows.append(JudgedPair(pair, Preference(pair.id, share, outcome)))  # type: ignore[arg-type]
    return rows


def board(played: Sequence[Game]) -> EvaluationInputs:
    return EvaluationInputs("", (), judgements=judged(played))


def rows(found: Evaluation) -> dict[str, dict[str, Any]]:
    return {row["system"]: row for row in found.rows}


def strengths(played: Sequence[Game], **settings: Any) -> dict[str, dict[str, Any]]:
    return rows(BradleyTerry(BradleyTerryConfig(**settings)).evaluate(board(played)))


def ratings(played: Sequence[Game], **settings: Any) -> dict[str, dict[str, Any]]:
    return rows(Elo(EloConfig(**settings)).evaluate(board(played)))


def star(count: int = 200) -> list[Game]:
    """Three systems against one reference, on the same instructions, and one more pair of systems."""
    chance = {("ref", "a"): 0.3, ("ref", "b"): 0.6, ("ref", "c"): 0.8, ("a", "b"): 0.75}
    return [(*names, float(uniform("star", names, t) < p), t) for names, p in chance.items() for t in range(count)]


def test_two_systems_have_the_log_odds_of_the_win_rate_and_its_error() -> None:
    # 60 wins, 20 losses and 20 draws of 100: 7 of 10, so log(7 / 3), 147 points of Elo's.
    shares = [1.0] * 6 + [0.0] * 2 + [0.5] * 2
    found = strengths([("ref", "me", share, t) for t, share in enumerate(shares * 10)])
    assert found["me"]["strength"] == pytest.approx(math.log(7 / 3))
    assert found["me"]["elo"] == pytest.approx(1000 + 400 * math.log10(7 / 3))
    # The win rate's standard error over its slope: residuals 60 * 0.3^2 + 20 * 0.7^2 + 20 * 0.2^2 = 16.
    error = math.sqrt(16 / 99 / 100) / (0.7 * 0.3)
    assert found["me"]["standard_error"] == pytest.approx(error)
    assert found["me"]["high"] - found["me"]["low"] == pytest.approx(2 * 1.959964 * error)
    assert found["me"]["elo_high"] - found["me"]["elo_low"] == pytest.approx(2 * 1.959964 * error * POINTS)
    assert (found["me"]["n_wins"], found["me"]["n_losses"], found["me"]["n_draws"]) == (60, 20, 20)
    assert (found["ref"]["n_wins"], found["ref"]["n_losses"], found["ref"]["n_draws"]) == (20, 60, 20)
    assert found["ref"]["strength"] == found["ref"]["standard_error"] == 0.0
    assert found["me"]["flag"] == found["ref"]["flag"] == ""
    # From ten games the residuals say too little: then it is that of the model, 1 / sqrt(10 * 0.7 * 0.3).
    few = strengths([("ref", "me", share, t) for t, share in enumerate(shares)])
    assert few["me"]["standard_error"] == pytest.approx(1 / math.sqrt(2.1))


def test_judgements_of_one_instruction_count_as_one_observation() -> None:
    once = [("ref", "me", share, t) for t, share in enumerate([1.0, 1.0, 1.0, 0.0, 0.25])]
    one, four = strengths(once)["me"], strengths(once * 4)["me"]
    assert four["strength"] == pytest.approx(one["strength"])
    assert four["standard_error"] == pytest.approx(one["standard_error"])


def test_strengths_and_clustered_errors_are_those_of_a_logistic_regression() -> None:
    played = star()
    names = ["a", "b", "c"]
    design = np.array([[(two == n) - (one == n) for n in names] for one, two, _, _ in played], dtype=float)
    model = sm.GLM([share for *_, share, _ in played], design, family=sm.families.Binomial())
    groups = np.array([t for *_, t in played])
    fitted = model.fit(cov_type="cluster", cov_kwds={"groups": groups, "use_correction": False})
    found = strengths(played)
    count = len(set(groups))
    for name, strength, error in zip(names, fitted.params, fitted.bse, strict=True):
        assert found[name]["strength"] == pytest.approx(strength, abs=1e-7)
        assert found[name]["standard_error"] == pytest.approx(error * math.sqrt(count / (count - 1)), rel=1e-6)
    metrics = BradleyTerry().evaluate(board(played)).metrics
    assert metrics["log_likelihood"] == pytest.approx(fitted.llf)
    assert [metrics[n] for n in ("reference", "n_systems", "n_instructions", "n_total")] == ["ref", 4, 200, 800]


def test_neither_order_nor_sides_matter_and_another_reference_shifts_all_alike() -> None:
    played = star()
    found = strengths(played)
    turned = [(two, one, 1 - (share or 0.0), t) for one, two, share, t in played]
    assert strengths(played[::-1]) == found
    assert strengths(turned, reference="ref") == found
    moved = strengths(played, reference="b")
    shift = {name: found[name]["strength"] - moved[name]["strength"] for name in found}
    assert shift == pytest.approx(dict.fromkeys(found, found["b"]["strength"]))
    assert moved["b"]["elo"] == 1000
    assert [row["system"] for row in BradleyTerry().evaluate(board(played)).rows] == sorted(
        found, key=lambda name: -found[name]["strength"]
    )


def test_a_system_that_won_or_lost_all_is_finite_and_flagged_and_moves_no_other() -> None:
    played = star()
    more = [*played, *[("ref", "best", 1.0, t) for t in range(9)], *[("ref", "worst", 0.0, t) for t in range(9)]]
    plain, found = strengths(played), strengths(more)
    # A draw added: 9.5 wins and half a loss.
    assert found["best"]["strength"] == pytest.approx(math.log(9.5 / 0.5), abs=1e-6)
    assert found["worst"]["strength"] == pytest.approx(-math.log(9.5 / 0.5), abs=1e-6)
    assert found["best"]["standard_error"] == pytest.approx(math.sqrt(1 / 9.5 + 1 / 0.5), rel=1e-5)
    assert found["best"]["flag"].startswith("won every comparison")
    assert found["worst"]["flag"].startswith("lost every comparison")
    for name in plain:
        assert found[name]["strength"] == pytest.approx(plain[name]["strength"], abs=1e-6)
        assert found[name]["standard_error"] == pytest.approx(plain[name]["standard_error"], rel=1e-6)
        assert found[name]["flag"] == ""
    assert BradleyTerry().evaluate(board(more)).metrics["n_flagged"] == 2
    assert strengths(more, prior=2.0)["best"]["strength"] == pytest.approx(math.log(10 / 1), abs=1e-6)


def test_a_system_that_won_all_gets_one_draw_however_many_it_beat() -> None:
    even = [("ref", "equal", float(t % 2), t) for t in range(40)]
    won = [(name, "best", 1.0, t) for name in ("ref", "equal") for t in range(2)]
    # Four games and one draw, half with each of two that are as strong: 4.5 to 0.5.
    found = strengths(even + won)["best"]
    assert found["strength"] == pytest.approx(math.log(4.5 / 0.5), abs=1e-6)
    assert found["flag"].startswith("won every comparison")


def test_a_group_that_beats_another_throughout_is_flagged_as_one() -> None:
    within = [("ref", "a", float(t % 2), t) for t in range(8)] + [("x", "y", float(t % 2), t) for t in range(8)]
    across = [("ref", "x", 1.0, t) for t in range(4)]
    found = strengths(within + across, reference="ref")
    assert [bool(found[name]["flag"]) for name in ("ref", "a", "x", "y")] == [False, False, True, True]
    assert "in a group" in found["y"]["flag"]
    assert found["x"]["strength"] == pytest.approx(math.log(4.5 / 0.5), abs=1e-6)


@pytest.mark.parametrize("evaluator", [BradleyTerry(), Elo()])
def test_what_cannot_be_ranked_is_an_error_that_names_it(evaluator: Any) -> None:
    apart = [("a", "b", 1.0, 0), ("c", "d", 1.0, 0), ("a", "b", 0.0, 1)]
    nameless = [replace(row, pair=replace(row.pair, generator_2="")) for row in judged([("a", "b", 1.0, 0)])]
    wrong = [
        (judged(apart), r"4 systems fall into 2 groups that no judgement connects \(a, b; c, d\)"),
        (judged([("a", "a", 1.0, 0)]), "judgement 0 does not name two systems: both are 'a'"),
        (nameless, "judgement 0 does not name two systems: generator_1 is 'a', generator_2 ''"),
        (judged([("a", "b", None, 0)]), "none of 1 judgements has an answer"),
        ([], "none of 0 judgements"),
    ]
    for given, said in wrong:
        with pytest.raises(DataError, match=said):
            evaluator.evaluate(EvaluationInputs("", (), judgements=given))
    with pytest.raises(DataError, match=r"the reference 'reff' is none of its 4 systems. Did you mean 'ref'"):
        strengths(star(), reference="reff")


def test_unparsed_judgements_are_counted_and_left_out() -> None:
    played = star()
    found = BradleyTerry().evaluate(board([*played, ("ref", "a", None, 7), ("ref", "nobody", None, 7)]))
    assert found.metrics["n_unparsed"] == 2
    assert rows(found) == strengths(played)


def test_one_elo_game_moves_both_by_its_surprise_and_the_reference_is_put_back() -> None:
    # Even at first: half of k each way, so 4 + 4 between them; a draw between equals moves nobody.
    assert ratings([("ref", "me", 1.0, 0)], k=8)["me"]["elo"] == pytest.approx(1008)
    assert ratings([("ref", "me", 1.0, 0)], k=8)["ref"]["elo"] == 1000
    assert ratings([("ref", "me", 0.5, 0)], k=8)["me"]["elo"] == 1000
    # A second win is expected with 1 / (1 + 10^(-8/400)), whichever comes first.
    expected = 1 / (1 + 10 ** (-8 / 400))
    twice = ratings([("ref", "me", 1.0, 0), ("ref", "me", 1.0, 1)], k=8)["me"]
    assert twice["elo"] == pytest.approx(1008 + 2 * 8 * (1 - expected))
    assert twice["order_deviation"] == pytest.approx(0, abs=1e-9)


def test_elo_depends_on_the_seed_but_not_on_rows_or_sides() -> None:
    played = star()
    found = ratings(played)
    assert ratings(played[::-1]) == found
    turned = ratings([(two, one, 1 - (share or 0.0), t) for one, two, share, t in played], reference="ref")
    assert {n: r["elo"] for n, r in turned.items()} == pytest.approx({n: r["elo"] for n, r in found.items()})
    other = ratings(played, seed=1)
    assert other["a"]["elo"] != found["a"]["elo"]
    assert other["a"]["elo"] == pytest.approx(found["a"]["elo"], abs=4 * found["a"]["order_deviation"] / 10)
    for row in found.values():
        assert row["elo_low"] <= row["elo"] <= row["elo_high"]


def test_an_elo_rating_that_has_not_arrived_is_flagged_with_where_its_judgements_put_it() -> None:
    # 18 of 20 won: log10(9) * 400 = 382 points, of which 20 steps of 8 at most make 160.
    strong = ratings([("ref", "me", float(t % 10 > 0), t) for t in range(20)])["me"]
    assert strong["elo_high"] < 1200
    assert "bradley_terry says 1382 (" in strong["flag"]
    # An even one is where it belongs at once, and 20 judgements leave it unsure by 1.96 * 174 / sqrt(19 / 4) points.
    even = Elo().evaluate(board([("ref", "me", float(t % 2), t) for t in range(20)]))
    assert rows(even)["me"]["flag"].endswith("bradley_terry says 1000 (844 to 1156)")
    assert (rows(even)["ref"]["flag"], even.metrics["n_flagged"]) == ("", 1)
    many = ratings([("ref", "me", float(t % 2), t) for t in range(400)])
    assert many["me"]["flag"] == ""


def test_elo_comes_near_bradley_terry_and_its_interval_covers_it() -> None:
    played = star(800)
    elo, exact = ratings(played), strengths(played)
    for name in ("a", "b", "c"):
        assert elo[name]["elo"] == pytest.approx(exact[name]["elo"], abs=15)
        assert elo[name]["elo_low"] < exact[name]["elo"] < elo[name]["elo_high"]


def test_games_of_an_instruction_are_drawn_together() -> None:
    """All games of one instruction say the same: drawn with it, they leave the interval as wide as one game does."""
    once = [("ref", "me", float(uniform("drawn", t) < 0.6), t) for t in range(40)]
    wide = ratings(once * 5, orders=400, k=2)["me"]
    apart = ratings([(*game[:3], number) for number, game in enumerate(once * 5)], orders=400, k=2)["me"]
    assert wide["elo_high"] - wide["elo_low"] > 1.5 * (apart["elo_high"] - apart["elo_low"])


def test_a_big_board_with_draws_and_probabilities_recovers_its_strengths() -> None:
    truth = {f"s{n}": 2 * uniform("truth", n) - 1 for n in range(30)} | {"ref": 0.0}
    played = []
    for number in range(6000):
        one, two = (choice(sorted(truth), "side", side, number) for side in (0, 1))
        if one != two:
            p = 1 / (1 + math.exp(truth[one] - truth[two]))
            share = [
                float(uniform("g", number) < p),
                0.5 * (uniform("h", number) < p) + 0.5 * (uniform("i", number) < p),
            ]
            played.append((one, two, share[number % 2], number % 500))
    found = strengths(played, reference="ref")
    off = [(found[n]["strength"] - truth[n]) / found[n]["standard_error"] for n in truth if n != "ref"]
    assert np.mean(np.square(off)) < 2
    assert games(judged(played), "ref").instructions == 500
