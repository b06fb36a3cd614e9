"""afarm: a wind tunnel for learning from human feedback.

One of four doors for plugins; the others are `afarm.judging`, `afarm.backend` and `afarm.testing`. Importing afarm
loads no torch, transformers, openai or anthropic.
"""

import importlib
import importlib.metadata
from typing import TYPE_CHECKING, Any

from afarm.core import seeding
from afarm.core.config import (
    Config,
    LoraConfig,
    OnPolicyConfig,
    Scheduler,
    TrainerConfig,
    setting,
)
from afarm.core.errors import (
    AfarmError,
    BudgetError,
    ConfigError,
    DataError,
    JudgeError,
    ModelError,
    PluginError,
    StoreError,
    TrainingError,
    did_you_mean,
)
from afarm.core.hooks import Register, hookimpl
from afarm.core.interfaces import (
    AnnotateContext,
    Annotator,
    BuildContext,
    Checkpoints,
    Dataset,
    Decoding,
    EvaluationInputs,
    Evaluator,
    Method,
    MethodInputs,
    Policy,
    Progress,
    RewardModel,
    TrainContext,
)
from afarm.core.judge import (
    Ask,
    Capabilities,
    ChatRequest,
    Completion,
    Judge,
    Judgement,
    JudgementKey,
    Price,
    ShownPair,
    Tool,
    answer_lost,
)
from afarm.core.records import (
    Evaluation,
    Instruction,
    JudgedPair,
    Message,
    Output,
    Pair,
    Preference,
    Row,
    Sample,
    Score,
)

if TYPE_CHECKING:
    from afarm.comparison.compare import compare_outputs
    from afarm.evaluation.metrics import standard_error
    from afarm.experiment.farm import Farm
    from afarm.experiment.result import Result
    from afarm.experiment.setting_errors import explain_validation_error
    from afarm.storage.conversations import with_turns
    from afarm.storage.hub import is_on_hub, load_from_hub
    from afarm.storage.model_files import local_path, model_identity, require_local, require_on_hub
    from afarm.storage.preference_files import Unusable, own_preferences
    from afarm.storage.rows import placed_rows, read_outputs, read_rows, require_distinct, why_no_file, write_rows

__version__ = importlib.metadata.version("afarm")

_ON_FIRST_USE = {
    "Farm": "experiment.farm",
    "Result": "experiment.result",
    "Unusable": "storage.preference_files",
    "compare_outputs": "comparison.compare",
    "explain_validation_error": "experiment.setting_errors",
    "is_on_hub": "storage.hub",
    "load_from_hub": "storage.hub",
    "local_path": "storage.model_files",
    "model_identity": "storage.model_files",
    "placed_rows": "storage.rows",
    "own_preferences": "storage.preference_files",
    "read_outputs": "storage.rows",
    "read_rows": "storage.rows",
    "require_distinct": "storage.rows",
    "require_local": "storage.model_files",
    "require_on_hub": "storage.model_files",
    "standard_error": "evaluation.metrics",
    "why_no_file": "storage.rows",
    "with_turns": "storage.conversations",
    "write_rows": "storage.rows",
}
"""Names above the core, by their module: `afarm --help` and a plugin that needs none of them do not wait for it."""

__all__ = [
    "AfarmError",
    "AnnotateContext",
    "Annotator",
    "Ask",
    "BudgetError",
    "BuildContext",
    "Capabilities",
    "ChatRequest",
    "Checkpoints",
    "Completion",
    "Config",
    "ConfigError",
    "DataError",
    "Dataset",
    "Decoding",
    "Evaluation",
    "EvaluationInputs",
    "Evaluator",
    "Farm",
    "Instruction",
    "Judge",
    "JudgeError",
    "JudgedPair",
    "Judgement",
    "JudgementKey",
    "LoraConfig",
    "Message",
    "Method",
    "MethodInputs",
    "ModelError",
    "OnPolicyConfig",
    "Output",
    "Pair",
    "PluginError",
    "Policy",
    "Preference",
    "Price",
    "Progress",
    "Register",
    "Result",
    "RewardModel",
    "Row",
    "Sample",
    "Scheduler",
    "Score",
    "ShownPair",
    "StoreError",
    "Tool",
    "TrainContext",
    "TrainerConfig",
    "TrainingError",
    "Unusable",
    "__version__",
    "answer_lost",
    "compare_outputs",
    "did_you_mean",
    "explain_validation_error",
    "hookimpl",
    "is_on_hub",
    "load_from_hub",
    "local_path",
    "model_identity",
    "own_preferences",
    "placed_rows",
    "read_outputs",
    "read_rows",
    "require_distinct",
    "require_local",
    "require_on_hub",
    "seeding",
    "setting",
    "standard_error",
    "why_no_file",
    "with_turns",
    "write_rows",
]

if not TYPE_CHECKING:  # to a checker, a misspelt name stays an error

    def __getattr__(name: str) -> Any:
        if name not in _ON_FIRST_USE:
            raise AttributeError(f"module 'afarm' has no attribute {name!r}")
        return getattr(importlib.import_module(f"afarm.{_ON_FIRST_USE[name]}"), name)


def __dir__() -> list[str]:
    return __all__
