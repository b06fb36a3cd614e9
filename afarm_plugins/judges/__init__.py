"""Judges: the language models behind prompt annotators, and their stand-ins `offline` and `fitted`.

The hooks import the settings themselves: the help needs the commands alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from afarm import Register, hookimpl

if TYPE_CHECKING:
    import typer


@hookimpl
def register_judges(register: Register) -> None:
    from afarm_plugins.judges.settings import FittedConfig, LocalConfig, OfflineConfig, ReplayConfig, VendorConfig

    register(
        "openai",
        "afarm_plugins.judges.openai_judge:OpenAIJudge",
        config=VendorConfig,
        defaults={"key_variable": "OPENAI_API_KEY"},
        summary="openai:MODEL asks OpenAI; the key is taken from OPENAI_API_KEY",
    )
    register(
        "anthropic",
        "afarm_plugins.judges.anthropic_judge:AnthropicJudge",
        config=VendorConfig,
        defaults={"key_variable": "ANTHROPIC_API_KEY"},
        summary="anthropic:MODEL asks Anthropic; the key is taken from ANTHROPIC_API_KEY",
    )
    register(
        "openai-compatible",
        "afarm_plugins.judges.openai_judge:CompatibleJudge",
        config=VendorConfig,
        defaults={"key_variable": "OPENAI_COMPATIBLE_API_KEY"},
        summary="openai-compatible:MODEL@URL asks a server that speaks OpenAI's format (vLLM, Ollama, llama.cpp …)",
    )
    register(
        "offline",
        "afarm_plugins.judges.offline:OfflineJudge",
        config=OfflineConfig,
        summary="simulated: a stated utility plus noise; offline:NAME takes the reward model NAME as its utility",
    )
    register(
        "local",
        "afarm_plugins.judges.local:LocalJudge",
        config=LocalConfig,
        summary="a language model of your own: local:MODEL takes a Hub id, a directory or a .gguf file",
    )
    register(
        "replay",
        "afarm_plugins.judges.replay:ReplayJudge",
        config=ReplayConfig,
        summary="replay:FILE answers from stored annotations: AlpacaEval's, preferences, or an export of the ledger",
    )
    register(
        "fitted",
        "afarm_plugins.judges.fitted.judge:FittedJudge",
        config=FittedConfig,
        summary="fitted to labels that exist (afarm judge fit), no call: fitted:DIRECTORY; alone, the one that ships",
    )


@hookimpl
def register_annotators(register: Register) -> None:
    from afarm_plugins.judges.settings import FittedAnnotatorConfig

    register(
        "fitted",
        "afarm_plugins.judges.fitted.annotator:FittedAnnotator",
        config=FittedAnnotatorConfig,
        summary="a fitted judge as annotator, no prompt: fitted:DIRECTORY; alone, the one that ships",
        spec="DIRECTORY",
    )


@hookimpl
def register_reward_models(register: Register) -> None:
    from afarm_plugins.judges.settings import FittedConfig

    register(
        "fitted",
        "afarm_plugins.judges.fitted.reward:FittedReward",
        config=FittedConfig,
        summary="a fitted judge's utility, in log-odds: fitted:DIRECTORY; alone, the one that ships",
        spec="DIRECTORY",
    )
    register(
        "features",
        "afarm_plugins.judges.fitted.learned_features:FeaturesRewardModel",
        summary="stated features of the text (length, lists, overlap …), their weights learned from the preferences",
    )
    register(
        "text_utility",
        "afarm_plugins.judges.text_utility:TextUtility",
        summary="a stated formula on real text (length, overlap, repetition, completeness); not quality",
    )


@hookimpl
def register_evaluators(register: Register) -> None:
    from afarm_plugins.judges.settings import FittedConfig

    register(
        "fitted",
        "afarm_plugins.judges.fitted.second_reading:SecondReading",
        config=FittedConfig,
        summary="a second reading: the win rate that a fitted judge, fitted:DIRECTORY, expects of the same pairs",
        spec="DIRECTORY",
    )


@hookimpl
def register_commands(app: typer.Typer) -> None:
    from afarm_plugins.judges.fitted.command import add_to

    add_to(app)
