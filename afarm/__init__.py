"""afarm: a wind tunnel for learning from human feedback.

One of four doors for plugins; the others are `afarm.judging`, `afarm.backend` and `afarm.testing`. Importing afarm
loads no torch, transformers, openai or anthropic.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from afarm.comparison.compare import compare_outputs
    from afarm.core import seeding
    from afarm.core.config import (
        CheckpointChoice,
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
        ModelBackend,
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
    from afarm.evaluation.metrics import standard_error
    from afarm.experiment.farm import Farm
    from afarm.experiment.result import Result
    from afarm.experiment.setting_errors import explain_validation_error
    from afarm.launching.launcher import (
        Execute,
        FarmSpec,
        Launcher,
        Needs,
        Outcome,
        StageTask,
        TaskEvent,
        Tell,
    )
    from afarm.launching.schedule import Schedule
    from afarm.storage.conversations import with_turns
    from afarm.storage.hub import is_on_hub, load_from_hub
    from afarm.storage.label_scales import LabelReader
    from afarm.storage.model_files import local_path, model_identity, require_local, require_on_hub
    from afarm.storage.preference_files import Unusable, own_preferences
    from afarm.storage.prompt_templates import foreign_templates
    from afarm.storage.rows import placed_rows, read_outputs, read_rows, require_distinct, why_no_file, write_rows

    __version__: str

_ON_FIRST_USE = {
    "AfarmError": "core.errors",
    "AnnotateContext": "core.interfaces",
    "Annotator": "core.interfaces",
    "Ask": "core.judge",
    "BudgetError": "core.errors",
    "BuildContext": "core.interfaces",
    "Capabilities": "core.judge",
    "ChatRequest": "core.judge",
    "Checkpoints": "core.interfaces",
    "Completion": "core.judge",
    "Config": "core.config",
    "ConfigError": "core.errors",
    "DataError": "core.errors",
    "Dataset": "core.interfaces",
    "Decoding": "core.interfaces",
    "Evaluation": "core.records",
    "EvaluationInputs": "core.interfaces",
    "Evaluator": "core.interfaces",
    "Farm": "experiment.farm",
    "Instruction": "core.records",
    "Judge": "core.judge",
    "JudgeError": "core.errors",
    "JudgedPair": "core.records",
    "Judgement": "core.judge",
    "JudgementKey": "core.judge",
    "LabelReader": "storage.label_scales",
    "LoraConfig": "core.config",
    "Message": "core.records",
    "Method": "core.interfaces",
    "MethodInputs": "core.interfaces",
    "ModelBackend": "core.interfaces",
    "ModelError": "core.errors",
    "CheckpointChoice": "core.config",
    "OnPolicyConfig": "core.config",
    "Output": "core.records",
    "Pair": "core.records",
    "PluginError": "core.errors",
    "Policy": "core.interfaces",
    "Preference": "core.records",
    "Price": "core.judge",
    "Progress": "core.interfaces",
    "Register": "core.hooks",
    "Result": "experiment.result",
    "RewardModel": "core.interfaces",
    "Row": "core.records",
    "Sample": "core.records",
    "Scheduler": "core.config",
    "Score": "core.records",
    "ShownPair": "core.judge",
    "StoreError": "core.errors",
    "Tool": "core.judge",
    "TrainContext": "core.interfaces",
    "TrainerConfig": "core.config",
    "TrainingError": "core.errors",
    "Unusable": "storage.preference_files",
    "compare_outputs": "comparison.compare",
    "did_you_mean": "core.errors",
    "explain_validation_error": "experiment.setting_errors",
    "foreign_templates": "storage.prompt_templates",
    "hookimpl": "core.hooks",
    "is_on_hub": "storage.hub",
    "load_from_hub": "storage.hub",
    "local_path": "storage.model_files",
    "model_identity": "storage.model_files",
    "own_preferences": "storage.preference_files",
    "placed_rows": "storage.rows",
    "read_outputs": "storage.rows",
    "read_rows": "storage.rows",
    "require_distinct": "storage.rows",
    "require_local": "storage.model_files",
    "require_on_hub": "storage.model_files",
    "setting": "core.config",
    "standard_error": "evaluation.metrics",
    "why_no_file": "storage.rows",
    "with_turns": "storage.conversations",
    "write_rows": "storage.rows",
    "Execute": "launching.launcher",
    "FarmSpec": "launching.launcher",
    "Launcher": "launching.launcher",
    "Needs": "launching.launcher",
    "Outcome": "launching.launcher",
    "StageTask": "launching.launcher",
    "TaskEvent": "launching.launcher",
    "Tell": "launching.launcher",
    "Schedule": "launching.schedule",
}
"""The names by their module, imported when first used: `afarm --help` and light plugins do not wait for pydantic."""

__all__ = [
    "AfarmError",
    "AnnotateContext",
    "Annotator",
    "Ask",
    "BudgetError",
    "BuildContext",
    "Capabilities",
    "ChatRequest",
    "CheckpointChoice",
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
    "Execute",
    "Farm",
    "FarmSpec",
    "Instruction",
    "Judge",
    "JudgeError",
    "JudgedPair",
    "Judgement",
    "JudgementKey",
    "LabelReader",
    "Launcher",
    "LoraConfig",
    "Message",
    "Method",
    "MethodInputs",
    "ModelBackend",
    "ModelError",
    "Needs",
    "OnPolicyConfig",
    "Outcome",
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
    "Schedule",
    "Scheduler",
    "Score",
    "ShownPair",
    "StageTask",
    "StoreError",
    "TaskEvent",
    "Tell",
    "Tool",
    "TrainContext",
    "TrainerConfig",
    "TrainingError",
    "Unusable",
    "__version__",
    "compare_outputs",
    "did_you_mean",
    "explain_validation_error",
    "foreign_templates",
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
        if name == "__version__":
            return importlib.import_module("importlib.metadata").version("afarm")
        if name == "seeding":
            return importlib.import_module("afarm.core.seeding")
        if name not in _ON_FIRST_USE:
            raise AttributeError(f"module 'afarm' has no attribute {name!r}")
        return getattr(importlib.import_module(f"afarm.{_ON_FIRST_USE[name]}"), name)


def __dir__() -> list[str]:
    return __all__
