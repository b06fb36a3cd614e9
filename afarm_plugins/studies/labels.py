"""Kinds of training labels: an annotator, and the share of its labels that is flipped."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from afarm import ConfigError, FinishedRun, Label, named_file, to_label

STAND_IN = "crowd"
"""The annotator that stands for people unless another is named, or their own preferences are."""


@dataclass(frozen=True, slots=True)
class Labels:
    """An annotator whose labels are learned from, with the share of them that is flipped."""

    annotator: str
    noise: float

    @property
    def name(self) -> str:
        """Its name in tables."""
        return f"{self.annotator} + {100 * self.noise:g}% flipped" if self.noise else self.annotator

    @property
    def settings(self) -> tuple[str, ...]:
        """The settings of a run that learns from them."""
        return f"annotate.annotator={self.annotator}", f"annotate.label_noise={self.noise:g}"

    def judging(self, draw: int) -> tuple[str, ...]:
        """Return the settings of a run judged by them; each `draw` gives other labels of the same outputs."""
        judged = f"evaluate.annotator={self.annotator}", f"evaluate.label_noise={self.noise:g}"
        return *judged, f"evaluate.label_seed={draw}"

    @classmethod
    def parse_all(cls, texts: str) -> list[Labels]:
        """Read several, with commas between, each once. Raises `ConfigError`."""
        return list(dict.fromkeys(cls.parse(text) for text in texts.split(",")))

    @classmethod
    def parse(cls, text: str) -> Labels:
        """Read "pool" or "pool+0.25". Raises `ConfigError`."""
        annotator, plus, share = (part.strip() for part in text.partition("+"))
        if not annotator or (plus and not is_share_flipped(share)):
            raise ConfigError([f"{text!r}: an annotator, or one with a share up to 0.5, such as pool+0.25"])
        return cls(annotator, float(share) if plus else 0.0)


def is_share_flipped(text: str) -> bool:
    """True for a share of labels that can be flipped: at 0.5 nothing is left of them."""
    try:
        return 0 <= float(text) <= 0.5
    except ValueError:
        return False


@dataclass(frozen=True, slots=True)
class HumanLabels:
    """Labels of people to learn from: their own, or those of an annotator that stands for them.

    `files` are their own by method, "" for the others. `annotator` stands for people, and judges what is learned; if it
    is empty, the recipe's does.
    """

    annotator: str
    files: Mapping[str, str]

    @classmethod
    def parse(cls, annotator: str, texts: Sequence[str], methods: Sequence[str]) -> HumanLabels:
        """Read an annotator's name and files as FILE or METHOD=FILE. Raises `ConfigError`."""
        files: dict[str, str] = {}
        for text in texts:
            name, file = named_file(text)
            method = name if file != text else ""
            if method and method not in methods:
                raise ConfigError([f"people_preferences: {method!r} is none of the methods: {', '.join(methods)}"])
            if method in files:
                raise ConfigError([f"people_preferences: two files for {method or 'all methods'}: join them into one"])
            files[method] = file
        return cls(annotator or ("" if files else STAND_IN), files)

    @property
    def name(self) -> str:
        """Their name in tables."""
        return "people" if self.files else self.annotator

    @property
    def judge(self) -> str:
        """The judge of what is learned, in words."""
        return self.annotator or "the recipe's annotator"

    @property
    def judging(self) -> tuple[str, ...]:
        """The settings of a run that is judged by people."""
        return (f"evaluate.annotator={self.annotator}",) if self.annotator else ()

    def settings(self, method: str) -> tuple[str, ...] | None:
        """Return the settings of a run of `method` that learns from them; None without labels for it."""
        if not self.files:
            return Labels(self.annotator, 0.0).settings
        file = self.files.get(method, self.files.get(""))
        return None if file is None else (f"preferences={file}",)

    def notes(self, methods: Iterable[str]) -> list[str]:
        """Say whose the labels are if they are people's own, and which methods have none."""
        if not self.files:
            return []
        files = ", ".join(f"{Path(f).name}{f' for {m}' if m else ''}" for m, f in self.files.items())
        lacking = [method for method in methods if self.settings(method) is None]
        return [
            f"Labels of people are their own preferences ({files}), on other pairs than the simulated ones; what is "
            f"learned from them is judged by {self.judge}.",
            *(f"{method} has no preferences of people: it learned from simulated labels alone." for method in lacking),
        ]


def labels_in_run(done: FinishedRun, annotator: str) -> list[Label]:
    """Return the labels of a run's pairs as those of an annotator, without the pairs of equal outputs."""
    return [to_label(judged, annotator) for judged in done.pairs() if not judged.pair.identical]
