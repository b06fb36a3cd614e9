"""For plugin authors: a conformance check for each interface, fake contexts, and tiny inputs.

    from afarm.testing import check_annotator

    def test_my_annotator_conforms():
        check_annotator(MyAnnotator())

Each check exercises what `afarm.core.interfaces` promises and raises `ConformanceError` saying which promise is broken.
Importing this package loads no torch; checks of components that train do.
"""

from typing import TYPE_CHECKING

from afarm.core import open_door

if TYPE_CHECKING:
    from afarm.testing.annotators import check_annotator as check_annotator
    from afarm.testing.component import check_component as check_component
    from afarm.testing.conformance import ConformanceError as ConformanceError
    from afarm.testing.contexts import KeyedReward as KeyedReward
    from afarm.testing.contexts import MetricsRecorder as MetricsRecorder
    from afarm.testing.contexts import annotate_context as annotate_context
    from afarm.testing.contexts import judge_context as judge_context
    from afarm.testing.contexts import train_context as train_context
    from afarm.testing.datasets import check_dataset as check_dataset
    from afarm.testing.evaluators import check_evaluator as check_evaluator
    from afarm.testing.examples import HOSTILE_TEXTS as HOSTILE_TEXTS
    from afarm.testing.examples import board_inputs as board_inputs
    from afarm.testing.examples import evaluation_inputs as evaluation_inputs
    from afarm.testing.examples import make_instructions as make_instructions
    from afarm.testing.examples import make_pairs as make_pairs
    from afarm.testing.examples import separable_preferences as separable_preferences
    from afarm.testing.fake_judge import FakeJudgeClient as FakeJudgeClient
    from afarm.testing.fake_judge import first_at_random as first_at_random
    from afarm.testing.fake_judge import unreadable as unreadable
    from afarm.testing.judges import check_judge as check_judge
    from afarm.testing.launchers import check_launcher as check_launcher
    from afarm.testing.methods import check_method as check_method
    from afarm.testing.methods import check_policy as check_policy
    from afarm.testing.models import scripted_judge as scripted_judge
    from afarm.testing.models import tiny_config as tiny_config
    from afarm.testing.models import tiny_inputs as tiny_inputs
    from afarm.testing.models import tiny_policy as tiny_policy
    from afarm.testing.models import tiny_reward_model as tiny_reward_model
    from afarm.testing.reward_models import check_fitted_reward_model as check_fitted_reward_model
    from afarm.testing.reward_models import check_reward_model as check_reward_model
    from afarm.testing.samplers import check_sampler as check_sampler
    from afarm.testing.studies import check_study as check_study
else:
    __all__, __getattr__, __dir__ = open_door(__name__)
