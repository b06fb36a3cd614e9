"""afarm: a wind tunnel for learning from human feedback.

The names here and in `afarm.backend` are the public surface: plugins import from nowhere else. Importing afarm imports
no torch, transformers, openai or anthropic; a name is imported from its module when it is first used.
"""

from typing import TYPE_CHECKING

from afarm.lazy import lazy_names

if TYPE_CHECKING:
    from afarm.config import Config, setting
    from afarm.errors import (
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
    from afarm.figures import standard_error
    from afarm.hookspecs import Register, hookimpl
    from afarm.interfaces import (
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
    from afarm.judges import (
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
    from afarm.pipeline import Farm, Result
    from afarm.records import Evaluation, Instruction, JudgedPair, Message, Output, Pair, Preference, Sample, Score
    from afarm.version import __version__

_MODULES: dict[str, tuple[str, ...]] = {
    "config": ("Config", "setting"),
    "errors": (
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
    "figures": ("standard_error",),
    "hookspecs": ("Register", "hookimpl"),
    "interfaces": (
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
    "judges": (
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
    "pipeline": ("Farm", "Result"),
    "version": ("__version__",),
    "records": (
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
