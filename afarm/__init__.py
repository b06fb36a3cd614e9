"""afarm: a wind tunnel for learning from human feedback.

The names here and in `afarm.backend` are the public surface: plugins import from nowhere else. Importing afarm imports
no torch, transformers, openai or anthropic; a name is imported from its module when it is first used.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

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
    from afarm.hookspecs import Register, hookimpl
    from afarm.interfaces import (
        AnnotateContext,
        Annotator,
        Ask,
        Capabilities,
        ChatRequest,
        Checkpoints,
        Comparison,
        Completion,
        Dataset,
        Decoding,
        EvaluationInputs,
        Evaluator,
        Judge,
        JudgeContext,
        Judgement,
        JudgementKey,
        Method,
        MethodInputs,
        Policy,
        Progress,
        RewardModel,
        TrainContext,
    )
    from afarm.pipeline import Farm, Result
    from afarm.records import Evaluation, Instruction, JudgedPair, Message, Output, Pair, Preference, Sample, Score

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
    "hookspecs": ("Register", "hookimpl"),
    "interfaces": (
        "AnnotateContext",
        "Annotator",
        "Ask",
        "Capabilities",
        "ChatRequest",
        "Checkpoints",
        "Comparison",
        "Completion",
        "Dataset",
        "Decoding",
        "EvaluationInputs",
        "Evaluator",
        "Judge",
        "JudgeContext",
        "Judgement",
        "JudgementKey",
        "Method",
        "MethodInputs",
        "Policy",
        "Progress",
        "RewardModel",
        "TrainContext",
    ),
    "pipeline": ("Farm", "Result"),
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
_HOME = {name: module for module, names in _MODULES.items() for name in names}

__all__ = [
    "AfarmError",
    "AnnotateContext",
    "Annotator",
    "Ask",
    "BudgetError",
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
    "JudgeContext",
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
    "Progress",
    "Register",
    "Result",
    "RewardModel",
    "Sample",
    "Score",
    "StoreError",
    "TrainContext",
    "TrainingError",
    "hookimpl",
    "setting",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return __all__
