"""A fitted judge at work: as judge, annotator and reward, in a run, and with files that are not as they were."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from light_farm import Make

from afarm import BuildContext, ChatRequest, Completion, ConfigError, DataError, Instruction, JudgeError, Message, Pair
from afarm.core.plugins import discover
from afarm.experiment.recipe import resolve
from afarm.judging import show_pair
from afarm.storage.runs import simulated_judges
from afarm.testing import (
    annotate_context,
    check_annotator,
    check_judge,
    check_reward_model,
    make_instructions,
    make_pairs,
)
from afarm_plugins.fitted_judges.annotator import FittedAnnotator
from afarm_plugins.fitted_judges.features import FEATURES, feature_values
from afarm_plugins.fitted_judges.judge import FittedJudge
from afarm_plugins.fitted_judges.reward import FittedReward
from afarm_plugins.fitted_judges.settings import FittedAnnotatorConfig, FittedConfig
from afarm_plugins.fitted_judges.utility import SHIPPED, FittedUtility

TASK = Instruction("Name trees.")
PAIR = Pair(TASK, "An oak.", "An oak, a birch and a beech.")


def context() -> BuildContext:
    def no_model(name: str) -> Any:
        raise AssertionError(name)

    return BuildContext(reward_model=no_model, source="the source")


@pytest.fixture
def directory(tmp_path: Path) -> str:
    return fitted(tmp_path / "by length", {"length": 1.0})


def fitted(directory: Path, features: Mapping[str, Any]) -> str:
    directory.mkdir(exist_ok=True)
    (directory / "judge.json").write_text(json.dumps({"format": 1, "features": features}), encoding="utf-8")
    return str(directory)


def judge(directory: str = "") -> FittedJudge:
    return FittedJudge(directory, FittedConfig(), context())


def annotator(directory: str = "", **settings: Any) -> FittedAnnotator:
    return FittedAnnotator(FittedAnnotatorConfig(**settings), directory, context())


def request(*pairs: Pair, order: str = "ab", **fields: Any) -> ChatRequest:
    shown = tuple(show_pair(pair, order) for pair in pairs)
    given = {"role": "strong", "messages": (Message("user", "Which?"),), "answer_format": "list", **fields}
    return ChatRequest(comparisons=shown, **given)


def ask(judge: FittedJudge, request: ChatRequest) -> Completion:
    return asyncio.run(judge.complete(request))


def by_length(pair: Pair) -> float:
    """The probability that the second output is better: (1 + its characters) over both sums."""
    first, second = 1 + len(pair.output_1), 1 + len(pair.output_2)
    return second / (first + second)


# ------------------------------------------------------------------------------------------------- promises and numbers


def test_the_shipped_judge_keeps_all_promises() -> None:
    check_judge(judge())
    check_annotator(annotator(soft=True))
    check_reward_model(FittedReward(FittedConfig(), "", context()))


def test_the_probability_is_the_logistic_of_the_weighted_difference(directory: str) -> None:
    [soft] = annotator(directory, soft=True).annotate([PAIR], annotate_context(seed=0))
    assert soft.p2 == pytest.approx(by_length(PAIR))


def test_swapping_the_outputs_mirrors_every_label_exactly(directory: str) -> None:
    pairs = make_pairs(make_instructions(12))
    swapped = [pair.swapped() for pair in pairs]
    for labeller in (annotator(directory), annotator()):
        labels = labeller.annotate(pairs, annotate_context(seed=3))
        assert labeller.annotate(swapped, annotate_context(seed=3)) == [label.swapped() for label in labels]


def test_labels_are_drawn_as_often_as_the_probability_says(directory: str) -> None:
    pairs = [Pair(Instruction(f"Task {n}"), "x" * 9, "y" * 29) for n in range(2000)]  # 30 of 40: p = 3/4
    labels = annotator(directory).annotate(pairs, annotate_context(seed=0))
    share = sum(label.p2 or 0.0 for label in labels) / len(labels)
    assert abs(share - 0.75) < 4 * math.sqrt(0.75 * 0.25 / 2000)
    again = annotator(directory).annotate(pairs, annotate_context(seed=1))
    assert again != labels


def test_a_label_depends_on_no_other_pair(directory: str) -> None:
    pairs = make_pairs(make_instructions(12))
    together = annotator(directory).annotate(pairs, annotate_context(seed=0))
    alone = [annotator(directory).annotate([pair], annotate_context(seed=0))[0] for pair in pairs]
    assert together == alone


def test_judge_and_annotator_give_one_label_whatever_the_order_the_prompt_and_the_temperature(directory: str) -> None:
    pairs = make_pairs(make_instructions(12))
    labels = [label.p2 for label in annotator(directory).annotate(pairs, annotate_context(seed=5))]
    for fields in ({}, {"order": "ba"}, {"temperature": 0.0}, {"annotator": "other"}, {"answer_format": "json"}):
        asked = request(*pairs, seed=5, **fields)
        text = ask(judge(directory), asked).text
        firsts = (
            [row["first_is_better"] for row in json.loads(text)]
            if asked.answer_format == "json"
            else ["(a)" in line for line in text.splitlines()]
        )
        shown_first = [c.first for c in asked.comparisons]
        found = [
            float(first != (shown == pair.output_1))
            for first, shown, pair in zip(firsts, shown_first, pairs, strict=True)
        ]
        assert found == labels


def test_votes_are_independent_draws() -> None:
    pair = Pair(TASK, "x" * 20, "y" * 20)
    answers = set()
    for index in range(40):
        shown = request(pair).comparisons[0]
        drawn = ChatRequest("strong", comparisons=(type(shown)(*_fields(shown, index)),), answer_format="single")
        answers.add(ask(judge(), drawn).text)
    assert len(answers) == 2


def _fields(shown: Any, index: int) -> tuple[Any, ...]:
    return shown.pair_id, shown.instruction, shown.first, shown.second, shown.order, index


def test_labels_of_an_annotators_own_are_written(directory: str) -> None:
    text = ask(judge(directory), request(PAIR, PAIR, answer_format="labels", labels=("m", "M", "draw"))).text
    assert text in ("m\nm", "M\nM")


@pytest.mark.parametrize("order", ["ab", "ba"])
def test_asked_for_log_probabilities_it_gives_the_fitted_ones(directory: str, order: str) -> None:
    answer = ask(judge(directory), request(PAIR, order=order, answer_format="tokens", labels=("m", "M")))
    assert answer.logprobs is not None
    second = by_length(PAIR) if PAIR.is_canonical else 1 - by_length(PAIR)
    first = 1 - second if order == "ab" else second
    assert {label: math.exp(p) for label, p in answer.logprobs[0].items()} == pytest.approx(
        {"m": first, "M": 1 - first}
    )


def test_it_costs_nothing(directory: str) -> None:
    asked = request(PAIR)
    assert ask(judge(directory), asked).price == 0
    assert judge(directory).worst_case_price(asked) == 0


def test_what_compares_nothing_is_refused(directory: str) -> None:
    for fields in ({"answer_format": "rating"}, {"answer_format": "criteria"}, {"answer_format": ""}):
        with pytest.raises(JudgeError, match="only compares two outputs"):
            ask(judge(directory), request(PAIR, **fields))
    with pytest.raises(JudgeError, match="only compares"):
        ask(judge(directory), request())


def test_the_reward_is_the_utility(directory: str) -> None:
    reward = FittedReward(FittedConfig(), directory, context())
    assert [score.value for score in reward.score([TASK, TASK], ["", "oak"])] == pytest.approx([0, math.log(4)])


# ------------------------------------------------------------------------------------------------- files and identity


def test_identity_follows_the_weights_and_not_the_place(tmp_path: Path, directory: str) -> None:
    same = fitted(tmp_path / "by length again", {"length": 1.0})
    other = fitted(tmp_path / "other", {"length": 1.5})
    assert annotator(same).identity == annotator(directory).identity
    assert annotator(other).identity != annotator(directory).identity
    assert judge(directory).identity.startswith("fitted:by length@")
    (Path(directory) / "README.md").write_text("a card may be edited")
    assert annotator(same).identity == annotator(directory).identity


def test_a_directory_without_a_judge_names_the_command(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"holds no fitted judge.*afarm judge fit"):
        judge(str(tmp_path))
    with pytest.raises(ConfigError, match="holds no fitted judge"):
        annotator(str(tmp_path / "nowhere"))
    (tmp_path / "rows.json").touch()
    with pytest.raises(ConfigError, match=r"rows.json is a file: name the directory of a fitted judge"):
        annotator(str(tmp_path / "rows.json"))
    (tmp_path / "judge.json").write_text('{"format": 1, "features": {}, "reward_model": {"temperature": 1.0}}')
    with pytest.raises(DataError, match=r"reward_model is missing, whose scores judge.json weighs; .*fit again"):
        annotator(str(tmp_path))


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("{", "is no judge as afarm judge fit writes it .Invalid JSON"),
        ("[]", "is no judge"),
        ('{"format": 9, "features": {}, "scale": 2}', "this afarm reads format 1, and it is 9"),
        ('{"format": 1, "features": {"length": 1}, "ofset": 2}', r"is no judge .*\(field 'ofset': Extra inputs"),
        ('{"format": 1}', "is no judge"),
        ('{"format": 1, "features": {"length": "long"}}', r"is no judge .*\(field 'features.length': Input should be"),
        ('{"format": 1, "features": {}, "embeddings": 3}', "is no judge .*field 'embeddings'"),
        ('{"format": 1, "features": {"wisdom": 1}}', "no feature 'wisdom'"),
        ('{"format": 1, "features": {"length": NaN}}', "field 'features.length': Input should be a finite number"),
        ('{"format": 1, "features": {"length": 1e308}}', "field 'features.length': Input should be less than or"),
        ('{"format": 1, "features": {}}', "has no term, so that no output is better than another"),
    ],
)
def test_a_damaged_judge_is_an_error_with_its_file(text: str, problem: str, tmp_path: Path) -> None:
    (tmp_path / "judge.json").write_text(text)
    with pytest.raises(DataError, match=f"judge.json: .*{problem}") as caught:
        FittedUtility(str(tmp_path), context())
    assert str(caught.value).endswith("fit again into a new directory: afarm judge fit ANNOTATIONS --out DIR")
    assert "TypeError" not in str(caught.value)


# ------------------------------------------------------------------------------------------------- in a run


def test_a_run_is_labelled_and_evaluated_by_it(farm: Make, directory: str, tmp_path: Path) -> None:
    spec = f"fitted:{directory}"
    first = farm(judge={"*": spec}, annotator=spec)
    result = first.evaluate("nudge")
    assert result.win_rate is not None
    assert {row.annotator for row in first.annotate()} == {spec}
    judges = {row.preference.judge for rows in result.judgements.values() for row in rows if not row.pair.identical}
    assert [name.startswith("fitted:by length@") for name in judges] == [True]
    again = farm(judge={"*": spec}, annotator=spec)
    again.evaluate("nudge")
    assert all(run.reused for run in again.workspace.history.values())
    fitted(Path(directory), {"length": -1.0})
    changed = farm(judge={"*": spec}, annotator=spec)
    changed.evaluate("nudge")
    made = {label for label, run in changed.workspace.history.items() if not run.reused}
    assert "annotate" in made
    assert any(label.startswith("evaluate") for label in made)


def test_the_screen_and_the_record_call_it_a_formula(directory: str) -> None:
    record = {"judges": [{"identity": judge(directory).identity, "simulated": FittedJudge.simulated}]}
    assert simulated_judges(record) == ["fitted"]
    assert simulated_judges({"judges": [{"identity": "openai:gpt-5", "simulated": False}]}) == []
    assert simulated_judges({"judges": None}) == []


def test_features_beyond_the_weights_do_not_count(directory: str) -> None:
    assert FittedUtility(directory, context()).of_outputs([]) == []
    [p] = FittedUtility(directory, context()).p_second([Pair(TASK, "oak", "oak.")])
    low, high = (feature_values(TASK, text)["length"] for text in ("oak", "oak."))
    assert p == pytest.approx(1 / (1 + math.exp(low - high)))


def test_the_shipped_judge_is_smols_and_knows_its_card() -> None:
    recipe = resolve("smol", [], discover())
    assert recipe.run.judge == {"*": "fitted"}
    assert judge().identity.startswith("fitted:people@")
    card = (SHIPPED / "README.md").read_text(encoding="utf-8")
    assert "Apache-2.0" in card
    assert "(no better than length)" in card
    weights = FittedUtility("", context()).weights
    assert set(weights.features) == set(FEATURES)
    assert all(f"| {name} | {weight:+.3f} |" in card for name, weight in weights.features.items())
