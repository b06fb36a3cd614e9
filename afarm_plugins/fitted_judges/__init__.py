"""Judges fitted to labels that exist, people's or a judge's: `afarm judge fit`, and `fitted:DIR`.

The hooks import the settings themselves: the help needs the command alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from afarm import Register, hookimpl

if TYPE_CHECKING:
    import typer


@hookimpl
def register_judges(register: Register) -> None:
    from afarm_plugins.fitted_judges.settings import FittedConfig

    register(
        "fitted",
        "afarm_plugins.fitted_judges.judge:FittedJudge",
        config=FittedConfig,
        summary="fitted to labels that exist (afarm judge fit), no call: fitted:DIRECTORY; alone, the one that ships",
    )


@hookimpl
def register_annotators(register: Register) -> None:
    from afarm_plugins.fitted_judges.settings import FittedAnnotatorConfig

    register(
        "fitted",
        "afarm_plugins.fitted_judges.annotator:FittedAnnotator",
        config=FittedAnnotatorConfig,
        summary="a fitted judge as annotator, no prompt: fitted:DIRECTORY; alone, the one that ships",
        spec="DIRECTORY",
    )


@hookimpl
def register_reward_models(register: Register) -> None:
    from afarm_plugins.fitted_judges.settings import FittedConfig

    register(
        "fitted",
        "afarm_plugins.fitted_judges.reward:FittedReward",
        config=FittedConfig,
        summary="a fitted judge's utility, in log-odds: fitted:DIRECTORY; alone, the one that ships",
        spec="DIRECTORY",
    )
    register(
        "features",
        "afarm_plugins.fitted_judges.learned_features:FeaturesRewardModel",
        summary="stated features of the text (length, lists, overlap …), their weights learned from the preferences",
    )


@hookimpl
def register_evaluators(register: Register) -> None:
    from afarm_plugins.fitted_judges.settings import FittedConfig

    register(
        "fitted",
        "afarm_plugins.fitted_judges.second_reading:SecondReading",
        config=FittedConfig,
        summary="a second reading: the win rate that a fitted judge, fitted:DIRECTORY, expects of the same pairs",
        spec="DIRECTORY",
    )


@hookimpl
def register_commands(app: typer.Typer) -> None:
    from afarm_plugins.fitted_judges.command import add_commands

    add_commands(app)
