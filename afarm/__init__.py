"""afarm: a wind tunnel for learning from human feedback.

    import afarm

    farm = afarm.Farm(recipe="toy", output_dir="afarm-runs")
    result = farm.evaluate("ppo")  # makes what is missing, and reuses the rest
    print(result.win_rate, result.standard_error)

An experiment needs `Farm`, and `compare_outputs`, `compare_annotators`, `read_outputs` and `read_labels` for files; the
other names are for plugins (docs/guides/write-a-plugin.md). Importing afarm loads no torch, transformers, openai or
anthropic.
"""

from typing import TYPE_CHECKING, Any

from afarm.core import open_door

if TYPE_CHECKING:
    from afarm.core import seeding as seeding
    from afarm.core.config import BackendConfig as BackendConfig
    from afarm.core.config import CheckpointChoice as CheckpointChoice
    from afarm.core.config import Config as Config
    from afarm.core.config import LoraConfig as LoraConfig
    from afarm.core.config import OnPolicyConfig as OnPolicyConfig
    from afarm.core.config import Scheduler as Scheduler
    from afarm.core.config import TrainerConfig as TrainerConfig
    from afarm.core.config import setting as setting
    from afarm.core.errors import AfarmError as AfarmError
    from afarm.core.errors import BudgetError as BudgetError
    from afarm.core.errors import ConfigError as ConfigError
    from afarm.core.errors import DataError as DataError
    from afarm.core.errors import JudgeError as JudgeError
    from afarm.core.errors import ModelError as ModelError
    from afarm.core.errors import PluginError as PluginError
    from afarm.core.errors import StoreError as StoreError
    from afarm.core.errors import TrainingError as TrainingError
    from afarm.core.errors import did_you_mean as did_you_mean
    from afarm.core.hooks import Register as Register
    from afarm.core.hooks import hookimpl as hookimpl
    from afarm.core.interfaces import AnnotateContext as AnnotateContext
    from afarm.core.interfaces import Annotator as Annotator
    from afarm.core.interfaces import BuildContext as BuildContext
    from afarm.core.interfaces import Checkpoints as Checkpoints
    from afarm.core.interfaces import Dataset as Dataset
    from afarm.core.interfaces import Decoding as Decoding
    from afarm.core.interfaces import EvaluationInputs as EvaluationInputs
    from afarm.core.interfaces import Evaluator as Evaluator
    from afarm.core.interfaces import Method as Method
    from afarm.core.interfaces import MethodInputs as MethodInputs
    from afarm.core.interfaces import MethodJudge as MethodJudge
    from afarm.core.interfaces import ModelBackend as ModelBackend
    from afarm.core.interfaces import Policy as Policy
    from afarm.core.interfaces import Progress as Progress
    from afarm.core.interfaces import RewardModel as RewardModel
    from afarm.core.interfaces import TrainContext as TrainContext
    from afarm.core.judge import Ask as Ask
    from afarm.core.judge import Capabilities as Capabilities
    from afarm.core.judge import ChatRequest as ChatRequest
    from afarm.core.judge import Completion as Completion
    from afarm.core.judge import Judge as Judge
    from afarm.core.judge import Judgement as Judgement
    from afarm.core.judge import JudgementKey as JudgementKey
    from afarm.core.judge import Price as Price
    from afarm.core.judge import ShownPair as ShownPair
    from afarm.core.judge import Tool as Tool
    from afarm.core.plugin_files import contain as contain
    from afarm.core.records import Evaluation as Evaluation
    from afarm.core.records import Feedback as Feedback
    from afarm.core.records import Instruction as Instruction
    from afarm.core.records import JudgedPair as JudgedPair
    from afarm.core.records import Message as Message
    from afarm.core.records import Output as Output
    from afarm.core.records import Pair as Pair
    from afarm.core.records import Preference as Preference
    from afarm.core.records import Row as Row
    from afarm.core.records import Sample as Sample
    from afarm.core.records import Score as Score
    from afarm.evaluation.agreement import AnnotatorReport as AnnotatorReport
    from afarm.evaluation.agreement import compare_annotators as compare_annotators
    from afarm.evaluation.labels import HUMANS as HUMANS
    from afarm.evaluation.labels import Label as Label
    from afarm.evaluation.labels import member_family as member_family
    from afarm.evaluation.labels import read_labels as read_labels
    from afarm.evaluation.labels import to_label as to_label
    from afarm.evaluation.labels import with_prices as with_prices
    from afarm.evaluation.matching import MatchPolicy as MatchPolicy
    from afarm.evaluation.metrics import NORMAL_95 as NORMAL_95
    from afarm.evaluation.metrics import Estimate as Estimate
    from afarm.evaluation.metrics import standard_error as standard_error
    from afarm.experiment.comparison.compare import compare_outputs as compare_outputs
    from afarm.experiment.config_files import read_config_file as read_config_file
    from afarm.experiment.config_files import read_user_yaml as read_user_yaml
    from afarm.experiment.farm import Farm as Farm
    from afarm.experiment.launching.launcher import Execute as Execute
    from afarm.experiment.launching.launcher import FarmSpec as FarmSpec
    from afarm.experiment.launching.launcher import Launcher as Launcher
    from afarm.experiment.launching.launcher import Needs as Needs
    from afarm.experiment.launching.launcher import Outcome as Outcome
    from afarm.experiment.launching.launcher import StageTask as StageTask
    from afarm.experiment.launching.launcher import TaskEvent as TaskEvent
    from afarm.experiment.launching.launcher import Tell as Tell
    from afarm.experiment.launching.schedule import Schedule as Schedule
    from afarm.experiment.plugin_code import files_digest as files_digest
    from afarm.experiment.result import Result as Result
    from afarm.experiment.setting_errors import explain_validation_error as explain_validation_error
    from afarm.experiment.studies.estimates import as_bounded as as_bounded
    from afarm.experiment.studies.estimates import correlate_boards as correlate_boards
    from afarm.experiment.studies.estimates import decided_side as decided_side
    from afarm.experiment.studies.estimates import mean_interval as mean_interval
    from afarm.experiment.studies.estimates import mean_percent as mean_percent
    from afarm.experiment.studies.estimates import rank_of_each as rank_of_each
    from afarm.experiment.studies.estimates import sample_size as sample_size
    from afarm.experiment.studies.estimates import undominated as undominated
    from afarm.experiment.studies.study import Bounded as Bounded
    from afarm.experiment.studies.study import DataStudy as DataStudy
    from afarm.experiment.studies.study import Findings as Findings
    from afarm.experiment.studies.study import FinishedRun as FinishedRun
    from afarm.experiment.studies.study import JudgingStudy as JudgingStudy
    from afarm.experiment.studies.study import Series as Series
    from afarm.experiment.studies.study import Study as Study
    from afarm.experiment.studies.study import StudyPlot as StudyPlot
    from afarm.experiment.studies.study import StudyRequest as StudyRequest
    from afarm.experiment.studies.study import StudyRun as StudyRun
    from afarm.experiment.studies.study import StudyTable as StudyTable
    from afarm.storage.conversations import Tasks as Tasks
    from afarm.storage.conversations import Unusable as Unusable
    from afarm.storage.conversations import task_key as task_key
    from afarm.storage.conversations import with_turns as with_turns
    from afarm.storage.conversations import without_system_turn as without_system_turn
    from afarm.storage.disk import storage_errors as storage_errors
    from afarm.storage.disk import write_json as write_json
    from afarm.storage.disk import write_whole as write_whole
    from afarm.storage.feedback import holds_feedback as holds_feedback
    from afarm.storage.feedback import own_feedback as own_feedback
    from afarm.storage.hub import is_on_hub as is_on_hub
    from afarm.storage.hub import load_from_hub as load_from_hub
    from afarm.storage.labelled_pairs import ANNOTATION as ANNOTATION
    from afarm.storage.labelled_pairs import PAIR as PAIR
    from afarm.storage.labelled_pairs import Form as Form
    from afarm.storage.labelled_pairs import in_canonical_order as in_canonical_order
    from afarm.storage.labelled_pairs import own_preferences as own_preferences
    from afarm.storage.labelled_pairs import read_annotations as read_annotations
    from afarm.storage.labelled_pairs import read_labelled_pairs as read_labelled_pairs
    from afarm.storage.labelled_pairs import why_left_out as why_left_out
    from afarm.storage.model_files import local_path as local_path
    from afarm.storage.model_files import model_identity as model_identity
    from afarm.storage.model_files import require_local as require_local
    from afarm.storage.model_files import require_on_hub as require_on_hub
    from afarm.storage.named_code import require_named as require_named
    from afarm.storage.prompt_templates import foreign_templates as foreign_templates
    from afarm.storage.record_fields import match_judgements as match_judgements
    from afarm.storage.row_shapes import people_columns as people_columns
    from afarm.storage.rows import named_file as named_file
    from afarm.storage.rows import named_files as named_files
    from afarm.storage.rows import parse_output as parse_output
    from afarm.storage.rows import read_outputs as read_outputs
    from afarm.storage.rows import read_placed_rows as read_placed_rows
    from afarm.storage.rows import read_rows as read_rows
    from afarm.storage.rows import require_distinct as require_distinct
    from afarm.storage.rows import stem as stem
    from afarm.storage.rows import why_no_file as why_no_file
    from afarm.storage.rows import write_rows as write_rows
    from afarm.storage.runs import RunRecord as RunRecord
    from afarm.storage.runs import read_run as read_run
    from afarm.storage.runs import run_directories as run_directories
    from afarm.storage.shared_store import SharedStore as SharedStore
    from afarm.storage.user_files import open_user_file as open_user_file
    from afarm.storage.user_files import read_user_text as read_user_text

    __version__: str
else:
    _names, _find, _ = open_door(__name__)
    __all__ = [*_names, "__version__"]

    def __getattr__(name: str) -> Any:
        if name == "__version__":
            from importlib.metadata import version

            return version("afarm")
        return _find(name)

    def __dir__() -> list[str]:
        return __all__
