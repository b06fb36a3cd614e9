"""The offline judge: its probabilities by hand, its formats, and what its answers may depend on."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Sequence
from dataclasses import replace

import pytest

from afarm.core.errors import JudgeError
from afarm.core.interfaces import BuildContext, RewardModel
from afarm.core.judge import ChatRequest, Completion, ShownPair
from afarm.core.records import Instruction, Message, Score
from afarm_plugins.judges.offline import UNPARSED, OfflineJudge
from afarm_plugins.judges.settings import OfflineConfig, RoleNoise

TASK = Instruction("Say something.")


class CountsX(RewardModel):
    """The utility of these tests: how often the output has an x. Counts the outputs it scored."""

    scored = 0

    def score(self, instructions: Sequence[Instruction], outputs: Sequence[str]) -> list[Score]:
        type(self).scored += len(outputs)
        return [Score(float(output.count("x"))) for output in outputs]


def judge(spec: str = "", **settings: object) -> OfflineJudge:
    return OfflineJudge(spec, OfflineConfig(**settings), BuildContext(reward_model=lambda name: CountsX()))  # type: ignore[arg-type]


def comparison(number: int, first: str = "x", second: str = "y", **fields: object) -> ShownPair:
    return ShownPair(f"pair-{number}", TASK, first, second, **fields)  # type: ignore[arg-type]


def request(*comparisons: ShownPair, **fields: object) -> ChatRequest:
    return ChatRequest(
        **{  # type: ignore[arg-type]
            "role": "strong",
            "messages": (Message("user", "Which is better?"),),
            "comparisons": comparisons,
            "answer_format": "list",
            "annotator": "gpt4_3",
            **fields,
        }
    )


def ask(offline: OfflineJudge, asked: ChatRequest) -> Completion:
    return asyncio.run(offline.complete(asked))


def sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x))


def test_probability_by_hand() -> None:
    noise = RoleNoise(noise=2.0, length_bias=0.5, position_bias=0.25)
    offline = judge(light=noise)
    shown = comparison(1, first="x x x", second="x")  # utilities 3 and 1, word counts 3 and 1
    expected = sigmoid((2 + 0.5 * math.log(4 / 2)) / 2 + 0.25)
    assert offline.first_is_better(shown, "light") == pytest.approx(expected)
    assert offline.first_is_better(shown, "light", temperature=0.5) == pytest.approx(
        sigmoid(2 * ((2 + 0.5 * math.log(2)) / 2 + 0.25))
    )


def test_each_role_has_its_own_noise_and_others_have_theirs() -> None:
    offline = judge()
    shown = comparison(1)
    chances = [offline.first_is_better(shown, role) for role in ("strong", "light", "completion")]
    assert chances == sorted(chances, reverse=True)
    assert offline.first_is_better(shown, "my_own_role") == offline.first_is_better(shown, "light")


def test_answers_follow_the_probability() -> None:
    offline = judge(strong=RoleNoise(noise=1.0))
    asked = request(*(comparison(i) for i in range(4000)))
    share = ask(offline, asked).text.count("Output (a)") / 4000
    assert share == pytest.approx(sigmoid(1.0), abs=0.03)  # 4.3 standard errors


def test_formats_are_exact() -> None:
    offline = judge(strong=RoleNoise(noise=1e-3))
    first, second = comparison(1), comparison(2, "y", "x")
    assert ask(offline, request(first, answer_format="single")).text == "Output (a)"
    assert ask(offline, request(second, answer_format="single")).text == "Output (b)"
    assert ask(offline, request(first, second)).text == "1. Output (a)\n2. Output (b)"
    listed = json.loads(ask(offline, request(first, second, answer_format="json")).text)
    assert [(item["index"], item["first_is_better"]) for item in listed] == [(1, True), (2, False)]
    assert all(isinstance(item["explanation"], str) and item["explanation"] for item in listed)


def test_an_answer_does_not_depend_on_its_batch() -> None:
    shown = [comparison(i, "x", "xy") for i in range(40)]
    batch = ask(judge(), request(*shown, role="completion")).text.splitlines()
    alone = [ask(judge(), request(c, role="completion", answer_format="single")).text for c in reversed(shown)]
    assert [line.partition(". ")[2] for line in batch] == alone[::-1]
    assert len(set(alone)) == 2


@pytest.mark.parametrize("change", [{"seed": 1}, {"annotator": "gpt4_2"}])
def test_seed_and_annotator_draw_anew(change: dict[str, object]) -> None:
    asked = request(*(comparison(i, "x", "z") for i in range(40)), role="completion")
    assert ask(judge(), asked).text != ask(judge(), replace(asked, **change)).text  # type: ignore[arg-type]


@pytest.mark.parametrize("change", [{"sample_index": 1}, {"order": "ba"}])
def test_draw_and_order_draw_anew(change: dict[str, object]) -> None:
    shown = [comparison(i, "x", "z") for i in range(40)]
    changed = [replace(c, **change) for c in shown]  # type: ignore[arg-type]
    answers = [ask(judge(), request(*c, role="completion")).text for c in (shown, changed)]
    assert answers[0] != answers[1]


def test_temperature_zero_takes_the_better_one() -> None:
    shown = [comparison(i, *(("x", "y") if i % 2 else ("y", "x"))) for i in range(50)]
    answer = ask(judge(), request(*shown, role="completion", temperature=0.0)).text.splitlines()
    assert answer == [f"{i + 1}. Output ({'a' if i % 2 else 'b'})" for i in range(50)]


def test_dummies_are_answered_without_being_scored() -> None:
    CountsX.scored = 0
    dummy = ShownPair("", Instruction("dummy"), "", "")
    text = ask(judge(), request(comparison(1), dummy, dummy)).text
    assert len(text.splitlines()) == 3
    assert CountsX.scored == 2


def test_outputs_are_scored_once() -> None:
    CountsX.scored = 0
    offline = judge()
    asked = request(comparison(1), comparison(2), comparison(3, "y", "x"))
    ask(offline, asked)
    ask(offline, asked)
    assert CountsX.scored == 2


def test_unparsed_share_is_of_comparisons_and_a_new_draw_mends_it() -> None:
    offline = judge(unparsed_rate=0.3)
    shown = [comparison(i) for i in range(1000)]
    lines = ask(offline, request(*shown)).text.splitlines()
    lost = [c for c, line in zip(shown, lines, strict=True) if "Output" not in line]
    assert 240 < len(lost) < 360
    again = ask(offline, request(*(replace(c, sample_index=1) for c in lost))).text.splitlines()
    assert any("Output" in line for line in again)


def test_cost_is_estimated_and_free() -> None:
    answer = ask(judge(), request(comparison(1), answer_format="single"))
    assert answer.price == 0
    assert answer.input_tokens == 4  # 16 characters
    assert answer.output_tokens == 3  # 10 characters
    assert judge().worst_case_price(request(comparison(1))) == 0


def test_identity_holds_everything_that_changes_answers() -> None:
    names = {
        judge().identity,
        judge("gold").identity,
        judge(unparsed_rate=0.1).identity,
        judge(light=RoleNoise(noise=9.0)).identity,
        judge(strong=RoleNoise(noise=1.4, length_bias=1.2, position_bias=0.2)).identity,
    }
    assert len(names) == 5
    assert judge("gold").identity == judge(utility="gold").identity
    assert all(name.startswith("offline:") for name in names)


def test_it_says_that_it_is_simulated() -> None:
    assert OfflineJudge.simulated


def test_requests_it_cannot_answer_are_errors() -> None:
    with pytest.raises(JudgeError, match="no comparisons"):
        ask(judge(), request())
    with pytest.raises(JudgeError, match=r"'essay'.*single, list, json"):
        ask(judge(), request(comparison(1), answer_format="essay"))


# ---------------------------------------------------------------------------------------------------------- ratings


def rated(number: int, output: str) -> ShownPair:
    return ShownPair(f"output-{number}", TASK, output, "", "alone")


def rate(offline: OfflineJudge, shown: ShownPair, **fields: object) -> int:
    return int(ask(offline, request(shown, answer_format="rating", **fields)).text)


def test_without_noise_a_rating_counts_the_thresholds_that_the_utility_reaches() -> None:
    offline = judge(strong=RoleNoise(noise=1.0), rating_thresholds=[1, 2, 3, 4, 5, 6])
    marks = [rate(offline, rated(x, "x" * x), temperature=0.0) for x in range(9)]
    assert marks == [1, 2, 3, 4, 5, 6, 7, 7, 7]
    # Ten words are no advantage; 21 add b * log(22 / 11) = 1.0 to the utility of 2.
    longer = judge(strong=RoleNoise(length_bias=1.01 / math.log(2)), rating_thresholds=[1, 2, 3, 4, 5, 6])
    ten, twenty_one = (" ".join(["x", "x", *["y"] * (n - 2)]) for n in (10, 21))
    assert [rate(longer, rated(i, text), temperature=0.0) for i, text in enumerate((ten, twenty_one))] == [3, 4]


def test_noise_moves_ratings_as_it_moves_comparisons() -> None:
    """Of two outputs, the latent value behind the better one is higher as often as the comparison prefers it."""
    role = RoleNoise(noise=2.0)
    offline = judge(strong=role, rating_thresholds=[-9, -8, 2, 90, 91, 92])
    # One threshold between: P(mark of 4) = P(U + 2 * (gumbel - mean) >= 2) = 1 - exp(-exp(-(2 - U) / 2 - mean)).
    for utility in (0, 2, 4):
        marks = [rate(offline, rated(i, "x" * utility)) for i in range(4000)]
        expected = 1 - math.exp(-math.exp(-(2 - utility) / 2 - 0.5772156649))
        assert sum(mark == 4 for mark in marks) / 4000 == pytest.approx(expected, abs=0.03)


def test_a_rating_depends_on_seed_output_and_draw_only() -> None:
    offline = judge()
    shown = rated(1, "x y")
    marks = {rate(offline, shown, seed=seed, role="completion") for seed in range(40)}
    assert len(marks) > 2
    assert {rate(judge(), shown, seed=3, role="completion") for _ in range(3)} == {
        rate(offline, shown, seed=3, role="completion")
    }
    again = {rate(offline, replace(shown, sample_index=draw), role="completion") for draw in range(40)}
    assert len(again) > 2
    assert ask(judge(unparsed_rate=1.0), request(shown, answer_format="rating")).text == "I cannot choose."


def test_another_scale_is_interpolated_between_the_thresholds() -> None:
    offline = judge(strong=RoleNoise(noise=1.0), rating_thresholds=[1, 2, 3, 4, 5, 6])

    def marks(*labels: str) -> list[str]:
        asked = [request(rated(x, "x" * x), answer_format="rating", labels=labels, temperature=0.0) for x in range(9)]
        return [ask(offline, one).text for one in asked]

    assert marks(*"1234567") == [*"123456777"], "the scale that the thresholds are of"
    assert marks(*"ABCDEFG") == [*"ABCDEFGGG"]
    # A utility of x is x/7 of the way from 0, where the lowest mark would begin, to 7, where the highest would end.
    assert marks(*map(str, range(1, 15))) == ["1", "3", "5", "7", "9", "11", "13", "14", "14"]
    assert marks("0", "1") == [*"000011111"]


def test_outputs_are_ranked_as_comparisons_would_prefer_them() -> None:
    offline = judge(strong=RoleNoise(noise=2.0))

    def ranking(draw: int, *counts: int, **fields: object) -> str:
        shown = [replace(rated(n, "x" * count), sample_index=draw) for n, count in enumerate(counts)]
        return ask(offline, request(*shown, answer_format="ranking", **fields)).text

    assert ranking(0, 2, 9, 4, temperature=0.0) == "2 > 3 > 1"
    first = sum(ranking(draw, 3, 1).startswith("1") for draw in range(4000)) / 4000
    assert first == pytest.approx(sigmoid((3 - 1) / 2.0), abs=0.03)
    assert (
        ask(judge(unparsed_rate=1.0), request(rated(1, "x"), rated(2, "y"), answer_format="ranking")).text == UNPARSED
    )


def test_a_criticism_is_the_mark_for_it_has_no_reasons() -> None:
    offline = judge(strong=RoleNoise(noise=1.0), rating_thresholds=[1, 2, 3, 4, 5, 6])
    asked = request(rated(1, "xxx"), answer_format="critique", temperature=0.0)
    assert ask(offline, asked).text == "This answer gets 4 of 7."
    assert ask(judge(unparsed_rate=1.0), asked).text == ""
