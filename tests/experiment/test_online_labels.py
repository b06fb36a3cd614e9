"""Labels for online methods: the recipe's noise, keyed by seed and pair, and one answer for all processes."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from light_farm import LightBackend, Make, light_farm
from light_plugin import CountingJudge, Online, WordPolicy

from afarm.cli.stage_lines import in_short
from afarm.core.interfaces import Annotator, MethodInputs, PairLabels, Policy, TrainContext
from afarm.core.judge import Price
from afarm.core.records import Instruction, Pair, Preference
from afarm.experiment import pipeline
from afarm.experiment.annotation import OnlineAnnotator
from afarm.experiment.components import Components
from afarm.experiment.dry_run import over_budget, plan_run
from afarm.experiment.evaluation_stages import label_flags
from afarm.experiment.farm import Farm
from afarm.experiment.process_info import ProcessInfo

PAIRS = [Pair(Instruction(f"task {n}"), "word", "word word") for n in range(400)]
"""The counting judge prefers the second of each."""

NOISY = "annotate.label_noise=0.25"

Ask = Callable[[PairLabels], None]


def asking(monkeypatch: pytest.MonkeyPatch, ask: Ask) -> None:
    """Have the online method call `ask` with `inputs.annotate`."""

    def train(self: Online, inputs: MethodInputs, context: TrainContext) -> Policy:
        assert inputs.annotate is not None
        ask(inputs.annotate)
        context.log_metrics(1, {})
        return WordPolicy(0.5)

    monkeypatch.setattr(Online, "train", train)


def labels(farm: Farm, monkeypatch: pytest.MonkeyPatch, pairs: list[Pair], noiseless: bool = False) -> list[Preference]:
    """The labels that the online method is given."""
    given: list[Preference] = []
    asking(
        monkeypatch, lambda annotate: given.extend(annotate(pairs, noiseless=True) if noiseless else annotate(pairs))
    )
    farm.train("online")
    return given


def test_what_is_learned_from_has_the_recipes_noise(farm: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    given = labels(farm(NOISY), monkeypatch, PAIRS)
    flipped = sum(preference.p2 == 0.0 for preference in given) / len(given)
    assert abs(flipped - 0.25) < 0.08, "four standard errors around"
    coins = [preference.source == "noise" for preference in given]
    assert abs(sum(coins) / len(coins) - 0.5) < 0.1
    assert all(preference.p2 == 1.0 for preference in given if preference.source == "judge")
    assert CountingJudge.asked == len(coins) - sum(coins), "a coin costs nothing"


def test_labels_to_learn_from_are_counted_each_once_and_coin_flips_are_flagged(
    farm: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    def ask(annotate: PairLabels) -> None:
        annotate(PAIRS[:150])
        annotate(PAIRS[100:200])  # as a resumed training asks again
        annotate(PAIRS[200:], noiseless=True)

    one = farm(NOISY)
    asking(monkeypatch, ask)
    one.train("online")
    history = one.workspace.history
    summary = history["train online"].artifact.meta["summary"]
    coins = summary["members"]["(noise)"]
    assert (summary["labels"], sum(summary["members"].values()), summary["outcomes"]) == (200, 200, {"decided": 200})
    assert 60 < coins < 140
    assert in_short(summary) == "labels 200"
    [flag] = label_flags(one.workspace, pipeline.train(one.workspace, "online"))
    assert (flag.name, flag.count, flag.of) == ("learned_noise", coins, 200)


def test_a_plan_says_how_many_pairs_people_must_label(farm: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Annotator, "count_waiting", lambda self, pairs: len(pairs))
    plan = {stage.label: stage.pairs for stage in plan_run(farm("annotate.label_noise=0").workspace, "stepwise")}
    assert re.fullmatch(
        r"train stepwise: people are asked for about \d+ labels \(pool\), in \d+ rounds: it stops in each until its "
        r"pairs are labelled\.",
        plan["train stepwise"],
    )


def test_checkpoints_are_selected_by_what_the_judge_says(farm: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    given = labels(farm(NOISY), monkeypatch, PAIRS, noiseless=True)
    assert [(preference.p2, preference.source) for preference in given] == [(1.0, "judge")] * len(PAIRS)
    assert farm(NOISY).annotate_pairs(PAIRS[:3])[0].source == "judge", "as pairs of one's own are"


def test_the_noise_of_a_pair_is_a_function_of_seed_and_pair(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = (NOISY, "sample.n=2")
    first = labels(light_farm(tmp_path / "a", *settings), monkeypatch, PAIRS)
    company = labels(light_farm(tmp_path / "b", *settings), monkeypatch, PAIRS[:150:-1])
    assert [(p.p2, p.source, p.member) for p in company] == [(p.p2, p.source, p.member) for p in first[:150:-1]]
    swapped = labels(light_farm(tmp_path / "c", *settings), monkeypatch, [pair.swapped() for pair in PAIRS])
    assert [label.p2 for label in swapped] == [1 - (label.p2 or 0.0) for label in first]
    other = labels(light_farm(tmp_path / "d", *settings, "seed=7"), monkeypatch, PAIRS)
    assert [label.source for label in other] != [label.source for label in first]


def test_a_pair_has_one_label_to_learn_from_whoever_asks(farm: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """So an online method is neither told the opposite of what its start learned from, nor charged for it again."""
    one = farm(NOISY)
    offline = one.annotate()
    assert {row.preference.source for row in offline} >= {"judge", "noise"}
    asked = CountingJudge.asked
    online = labels(one, monkeypatch, [row.pair for row in offline])
    assert online == [row.preference for row in offline]
    assert CountingJudge.asked == asked


def test_checkpoints_are_selected_by_draws_that_nothing_was_trained_on(
    farm: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the checkpoint that fits the drawn members and orders of its training labels is selected for that."""
    learned = labels(farm(), monkeypatch, PAIRS)
    selecting = farm().annotate_pairs(PAIRS)
    assert sum(a.member == b.member for a, b in zip(learned, selecting, strict=True)) < 0.25 * len(PAIRS), "1 in 13"


def test_another_label_noise_trains_an_online_method_anew(farm: Make) -> None:
    keys = {}
    for noise in (0.0, 0.25):
        one = farm(f"annotate.label_noise={noise}")
        one.train("online")
        keys[noise] = one.workspace.history["train online"].artifact.key
    assert keys[0.0] != keys[0.25]


# ---------------------------------------------------------------------------------------------------- estimates


@pytest.fixture
def in_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """The online method asks about three pairs of each unlabeled instruction in each of `skill` steps."""

    def train(self: Online, inputs: MethodInputs, context: TrainContext) -> Policy:
        assert inputs.annotate is not None
        for step in range(int(self.config.skill)):
            for n in range(3):
                inputs.annotate([Pair(task, f"{step} {n}", f"word {step} {n}") for task in inputs.unlabeled])
        context.log_metrics(1, {})
        return WordPolicy(0.5)

    monkeypatch.setattr(Online, "train", train)
    monkeypatch.setattr(Online, "plan_pairs", lambda self, rows: [*rows["unlabeled"]] * 3 * int(self.config.skill))


@pytest.mark.parametrize("annotator", ["ratings", "gpt4_4"])
@pytest.mark.parametrize("steps", [2, 7])
@pytest.mark.parametrize("noise", [0.0, 0.25, 0.4])
def test_what_training_asks_is_estimated_up_to_a_third(
    annotator: str, steps: int, noise: float, farm: Make, in_steps: None
) -> None:
    settings = (f"annotate.label_noise={noise}", f"annotate.annotator={annotator}", f"online.skill={steps}")
    one = farm(*settings, "numbers.count=40")
    [planned] = [stage.calls for stage in plan_run(one.workspace, "online") if stage.label == "train online"]
    CountingJudge.asked = 0
    one.train("online")
    assert CountingJudge.asked == pytest.approx(planned, rel=0.33)
    assert planned > steps * 20


def test_steps_and_checkpoints_are_asked_about_apart_and_short_answers_repeat(farm: Make) -> None:
    """Demonstrations have 9 characters on average, 2.25 tokens: 0.95 ** 2.25 of the later checkpoints' are the same."""
    one = farm(NOISY)
    tasks = one.workspace.data.instructions("unlabeled")
    plan = OnlineAnnotator(one.workspace).plan(tasks * 2, tasks * 3, 4, 3)
    assert plan.groups == [3, 3, 3, 3, 12, 12, 12], "noise leaves half"
    assert plan.new == pytest.approx((12 + 12 + 24 * (1 - 0.95**2.25)) / 48)


def test_of_several_pairs_of_an_instruction_a_rater_rates_each_output(farm: Make) -> None:
    one = farm("annotate.annotator=ratings", "sample.n=6", "annotate.label_noise=0")
    [planned] = [stage.calls for stage in plan_run(one.workspace, "nudge") if stage.label == "annotate"]
    assert planned == 12 * 6


def test_advice_on_a_budget_names_what_makes_the_training_ask_less(
    farm: Make, in_steps: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(CountingJudge, "price", lambda judge: Price(1.0, 100.0))
    one = farm("online.skill=5")
    advice = "the rows (rows.unlabeled, rows.preference, rows.evaluation) and of online.skill"
    plan = [*plan_run(one.workspace, "online"), *plan_run(one.workspace, "nudge")]
    assert f"% of {advice}. What is bought" in over_budget(plan, 0.01, 0.0, "evaluation")


class SharedBackend(LightBackend):
    """What two threads that play two processes have in common."""

    session = "this launch"
    meeting = threading.Barrier(2)

    def barrier(self) -> None:
        self.meeting.wait(300)


def test_all_processes_get_what_the_first_is_answered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Components, "backend", property(lambda self: SharedBackend(WordPolicy)))
    given: list[list[list[Preference]]] = []
    asking(monkeypatch, lambda ask: given.append([ask(PAIRS), ask([]), ask(PAIRS[:9], noiseless=True), ask(PAIRS)]))
    CountingJudge.asked = 0
    farms = [light_farm(tmp_path, NOISY, process_info=ProcessInfo(rank, 2)) for rank in range(2)]
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda farm: farm.train("online"), farms))
    farms[0].close()
    one, other = given
    assert one == other
    assert [len(labelled) for labelled in one] == [400, 0, 9, 400]
    assert one[0] == one[3]
    assert farms[1].workspace.judges.spend is None, "it has asked no judge"
    artifact = farms[0].workspace.history["train online"].artifact
    assert not [path for path in artifact.path.rglob("*asked-*") if not path.name.startswith(".")]
