"""`reward:MODEL`: labels by a reward model's scores, of a formula or of a fitted model on disk."""

import math

import pytest
from scripted_ask import ScriptedAsk

from afarm import Farm
from afarm.core.errors import ConfigError, PluginError
from afarm.core.interfaces import AnnotateContext, BuildContext, RewardModel
from afarm.core.records import Instruction, Pair, Score
from afarm_plugins.annotators.reward_labels import RewardAnnotator
from afarm_plugins.annotators.settings import RewardAnnotatorConfig


class CountsX(RewardModel):
    scored = 0

    def score(self, instructions, outputs):
        self.scored += len(outputs)
        return [Score(float(output.count("x"))) for output in outputs]


TASK = Instruction("Say something.")
PAIRS = [Pair(TASK, "x", "xxx"), Pair(TASK, "xxx", "x"), Pair(TASK, "x", "xy")]


def label(pairs, model=None, **settings):
    context = BuildContext(reward_model=lambda name: model or CountsX())
    annotator = RewardAnnotator(RewardAnnotatorConfig(**settings), "any", context)
    ask = ScriptedAsk(lambda c: True)
    found = annotator.annotate(pairs, AnnotateContext(0, ask))
    assert ask.calls == []
    assert annotator.plan(pairs, AnnotateContext(0, ask)) == ()
    return found


def test_the_higher_reward_is_preferred_and_equal_ones_are_a_draw():
    assert [(p.p2, p.outcome) for p in label(PAIRS)] == [(1.0, "decided"), (0.0, "decided"), (None, "draw")]
    assert label([]) == []


def test_soft_labels_are_the_sigmoid_of_the_difference():
    one, two, even = (p.p2 for p in label(PAIRS, soft=True))
    assert one == pytest.approx(1 / (1 + math.exp(-2)))
    assert two == pytest.approx(1 / (1 + math.exp(2)))
    assert even == 0.5


def test_each_output_is_scored_once():
    model = CountsX()
    label([Pair(TASK, "a", "b"), Pair(TASK, "b", "c"), Pair(Instruction("Else."), "a", "b")], model)
    assert model.scored == 5


def test_a_registered_formula_labels_in_a_farm_and_costs_nothing(tmp_path):
    with Farm(annotator="reward:gold", output_dir=tmp_path) as farm:
        identity = farm.workspace.components.annotator_identity("reward:gold")
        asked = [row.instruction for row in farm.workspace.data.rows("evaluation")[:20]]
        pairs = [Pair(instruction, "it is big.", "it looks old. it is quiet.") for instruction in asked]
        gold = farm.workspace.components.fixed_reward_model("gold")
        one, two = (gold.score(asked, [getattr(p, side) for p in pairs]) for side in ("output_1", "output_2"))
        expected = [None if a.value == b.value else float(b.value > a.value) for a, b in zip(one, two, strict=True)]
        assert [p.p2 for p in farm.annotate_pairs(pairs)] == expected
        assert farm.workspace.judges.client.spend.calls == 0
        assert farm.workspace.components.annotator_identity("reward:text_utility") != identity


def test_what_cannot_be_opened_is_said_before_anything_runs(tmp_path):
    def farm(spec):
        return Farm(annotator=f"reward{spec}", output_dir=tmp_path / "out")

    with pytest.raises(ConfigError, match=r"name the reward model after a colon: reward:gold"):
        farm("")
    with pytest.raises((ConfigError, PluginError), match=r"unknown reward model 'golden'. Did you mean 'gold'"):
        farm(":golden")
    with pytest.raises(ConfigError, match="'bradley_terry' must be fitted first"):
        farm(":bradley_terry")
    for missing in ("runs/fit-reward/nope", "./nope", __file__):
        with pytest.raises(ConfigError, match=f"{missing} is no directory: name that of a fitted reward model"):
            farm(f":{missing}")


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "holds no fitted reward model: name a directory such as artifacts/fit-reward/KEY"),
        ('{"class"', "holds no fitted reward model"),
        ("[1]", "holds no fitted reward model"),
        ('{"class": 3, "kind": "reward_model"}', "holds no fitted reward model"),
        ('{"class": "afarm.backend.policy:CheckpointPolicy", "kind": "policy"}', "holds a CheckpointPoli"),
        ('{"class": "gone.module:Mine", "kind": "reward_model"}', "by gone.module:Mine, which is not inst"),
    ],
)
def test_a_directory_that_holds_no_reward_model_is_refused_before_anything_runs(tmp_path, content, said):
    named = tmp_path / "named"
    named.mkdir()
    if content is not None:
        (named / "class.json").write_text(content, encoding="utf-8")
    with pytest.raises(ConfigError, match=said):
        Farm(annotator=f"reward:{named}", output_dir=tmp_path / "out")


def test_a_fitted_model_is_opened_from_its_directory(tmp_path, monkeypatch):
    torch = pytest.importorskip("torch")
    torch.set_num_threads(1)
    from afarm.testing import separable_preferences, tiny_config, tiny_policy, train_context
    from afarm_plugins.reward_model import RewardModelConfig
    from afarm_plugins.reward_model.bradley_terry import BradleyTerryRewardModel

    preferences = separable_preferences(48)
    config = tiny_config(RewardModelConfig, num_train_epochs=4, per_device_train_batch_size=16)
    fitted = BradleyTerryRewardModel.fit(preferences, tiny_policy(), config, train_context(tmp_path / "fit"))
    directory = tmp_path / "artifacts" / "fit-reward" / "abc"
    directory.mkdir(parents=True)
    with Farm(output_dir=tmp_path / "out") as farm:
        farm.workspace.components.save(fitted, directory, "reward_models", "bradley_terry")
        annotator = farm.workspace.components.annotator(f"reward:{directory}")
        identity = farm.workspace.components.annotator_identity(f"reward:{directory}")
        found = annotator.annotate([j.pair for j in preferences], AnnotateContext(0, ScriptedAsk(lambda c: True)))
    right = sum(p.p2 == j.p2 for p, j in zip(found, preferences, strict=True))
    assert right > 36  # learned, not by chance: 24 expected, with a standard deviation of 3.5
    with Farm(output_dir=tmp_path / "out") as farm:
        monkeypatch.setenv("HOME", str(tmp_path))
        assert farm.workspace.components.annotator_identity(f"reward:{directory}") == identity
        assert farm.workspace.components.annotator_identity("reward:~/artifacts/fit-reward/abc") == identity
        (directory / "model" / "note.txt").write_text("edited", encoding="utf-8")
    with Farm(output_dir=tmp_path / "out") as farm:
        assert farm.workspace.components.annotator_identity(f"reward:{directory}") != identity
