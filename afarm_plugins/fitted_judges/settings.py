"""The settings of a fitted judge: as judge, annotator, reward model and evaluator."""

from __future__ import annotations

from afarm import Config, setting


class FittedConfig(Config):
    """A judge that `afarm judge fit` made; the one that ships unless a directory is named."""

    encoder: str = setting(
        "", "the sentence encoder's directory or Hub id, if it is not where the judge was fitted", changes_result=False
    )


class FittedAnnotatorConfig(FittedConfig):
    """A fitted judge as annotator."""

    soft: bool = setting(False, "label with the fitted probability, not with a draw from it")
