"""For plugin authors: a conformance check for each interface, fakes of each context, and tiny inputs.

    from afarm.testing import check_annotator

    def test_my_annotator_conforms():
        check_annotator(MyAnnotator())

Each check exercises what `afarm.core.interfaces` promises and raises `ConformanceError` saying which promise is broken.
Importing this package loads no torch; checks of components that train do.
"""

from __future__ import annotations

from afarm.testing.annotators import check_annotator
from afarm.testing.component import check_component
from afarm.testing.conformance import ConformanceError
from afarm.testing.contexts import (
    KeyedReward,
    MetricsRecorder,
    annotate_context,
    judge_context,
    load_context,
    train_context,
)
from afarm.testing.datasets import check_dataset
from afarm.testing.evaluators import check_evaluator
from afarm.testing.examples import (
    HOSTILE_TEXTS,
    board_inputs,
    evaluation_inputs,
    make_instructions,
    make_pairs,
    separable_preferences,
)
from afarm.testing.fake_judge import FakeJudgeClient, first_at_random, render, unreadable
from afarm.testing.judges import check_judge
from afarm.testing.launchers import check_launcher
from afarm.testing.methods import check_method, check_policy
from afarm.testing.models import tiny_config, tiny_inputs, tiny_policy, tiny_reward_model
from afarm.testing.reward_models import check_fitted_reward_model, check_reward_model
from afarm.testing.samplers import check_sampler
from afarm.testing.studies import check_study

__all__ = [
    "HOSTILE_TEXTS",
    "ConformanceError",
    "FakeJudgeClient",
    "KeyedReward",
    "MetricsRecorder",
    "annotate_context",
    "board_inputs",
    "check_annotator",
    "check_component",
    "check_dataset",
    "check_evaluator",
    "check_fitted_reward_model",
    "check_judge",
    "check_launcher",
    "check_method",
    "check_policy",
    "check_reward_model",
    "check_sampler",
    "check_study",
    "evaluation_inputs",
    "first_at_random",
    "judge_context",
    "load_context",
    "make_instructions",
    "make_pairs",
    "render",
    "separable_preferences",
    "tiny_config",
    "tiny_inputs",
    "tiny_policy",
    "tiny_reward_model",
    "train_context",
    "unreadable",
]
