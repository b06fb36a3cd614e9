"""afarm: a wind tunnel for learning from human feedback.

The names here and in `afarm.backend` are the public surface: plugins import from nowhere else. Importing afarm imports
no torch, transformers, openai or anthropic; a name is imported from its module when it is first used.
"""

from typing import TYPE_CHECKING

from afarm.core.lazy import lazy_names

if TYPE_CHECKING:
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
        Comparison,
        Completion,
        Judge,
        Judgement,
        JudgementKey,
        Price,
        Tool,
        answer_lost,
    )
    from afarm.core.records import Evaluation, Instruction, JudgedPair, Message, Output, Pair, Preference, Sample, Score
    from afarm.core.version import __version__
    from afarm.evaluation.metrics import standard_error
    from afarm.experiment.farm import Farm, Result
    from afarm.experiment.settings import Config, setting

_MODULES: dict[str, tuple[str, ...]] = {
    "experiment.settings": ("Config", "setting"),
    "core.errors": (
        "AfarmError",
        "BudgetError",
        "ConfigError",
        "DataError",
        "JudgeError",
        "ModelError",
        "PluginError",
        "StoreError",
        "TrainingError",
    ),
    "evaluation.metrics": ("standard_error",),
    "core.hooks": ("Register", "hookimpl"),
    "core.interfaces": (
        "AnnotateContext",
        "Annotator",
        "Checkpoints",
        "Dataset",
        "Decoding",
        "EvaluationInputs",
        "Evaluator",
        "BuildContext",
        "Method",
        "MethodInputs",
        "Policy",
        "Progress",
        "RewardModel",
        "TrainContext",
    ),
    "core.judge": (
        "Ask",
        "Capabilities",
        "ChatRequest",
        "Comparison",
        "Completion",
        "Judge",
        "Judgement",
        "JudgementKey",
        "Price",
        "Tool",
        "answer_lost",
    ),
    "experiment.farm": ("Farm", "Result"),
    "core.version": ("__version__",),
    "core.records": (
        "Evaluation",
        "Instruction",
        "JudgedPair",
        "Message",
        "Output",
        "Pair",
        "Preference",
        "Sample",
        "Score",
    ),
}

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
    "Comparison",
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
    "Message",
    "Method",
    "MethodInputs",
    "ModelError",
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
    "Sample",
    "Score",
    "StoreError",
    "Tool",
    "TrainContext",
    "TrainingError",
    "__version__",
    "answer_lost",
    "hookimpl",
    "setting",
    "standard_error",
]

if not TYPE_CHECKING:  # to a checker, a misspelt name stays an error
    __getattr__ = lazy_names(__name__, _MODULES)


def __dir__() -> list[str]:
    return __all__
