"""Kinds of training labels: an annotator, and the share of its labels that is flipped."""

from __future__ import annotations

from dataclasses import dataclass

from afarm import ConfigError, FinishedRun, Label, to_label


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
        try:
            noise = float(share) if plus else 0.0
        except ValueError:
            noise = -1.0
        if not annotator or not 0 <= noise <= 0.5:
            raise ConfigError([f"{text!r}: an annotator, or one with a share up to 0.5, such as pool+0.25"])
        return cls(annotator, noise)


def labels_in_run(done: FinishedRun, annotator: str) -> list[Label]:
    """Return the labels of a run's pairs as those of an annotator, without the pairs of equal outputs."""
    return [to_label(judged, annotator) for judged in done.pairs() if not judged.pair.identical]
