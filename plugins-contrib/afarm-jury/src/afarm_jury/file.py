"""The file of a jury.

jurors:
  alice: {annotator: gpt4_4, judge: openai:gpt-5.5, weight: 2}
  bob: {annotator: chatgpt_2, judge: {light: anthropic:claude-haiku-5-5}}
  carol: fitted                      # short for {annotator: fitted}
learn: labels.jsonl                  # weights learned from labels, in place of `weight`
on_failure: stop                     # or abstain
on_unread: abstain                   # or stop
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import field_validator

from afarm import Config, read_config_file, setting


class Juror(Config):
    """A juror: an annotator with its judges."""

    annotator: str = setting(..., "the annotator, as after --annotator", min_length=1)
    judge: dict[str, str] = setting({}, "its judge, or one for each family role; left out: the run's judges")
    weight: float = setting(1.0, "what its vote counts", gt=0, le=1e6)

    @field_validator("judge", mode="before")
    @classmethod
    def _one_judge_is_for_all_roles(cls, judge: object) -> object:
        return {"*": judge} if isinstance(judge, str) else judge or {}


class JuryFile(Config):
    """The file of a jury."""

    jurors: dict[str, Juror] = setting(..., "the jurors by name, two or more", min_length=2, max_length=100)
    learn: str = setting("", "a file of pairs, labelled or not, from which the jurors' weights are learned")
    soft: bool = setting(False, "label with the share of the votes, or with the learned probability; asks every juror")
    ask_all: bool = setting(False, "ask every juror about every pair, also once the majority is fixed")
    on_failure: Literal["stop", "abstain"] = setting(
        "stop", "a juror whose judge fails, or that is over budget: stop the run, or let it abstain"
    )
    on_unread: Literal["abstain", "stop"] = setting(
        "abstain", "a juror that refuses, or cannot be read: let it abstain, or stop the run"
    )

    @field_validator("jurors", mode="before")
    @classmethod
    def _a_name_is_an_annotator(cls, jurors: object) -> object:
        if not isinstance(jurors, dict):
            return jurors
        return {str(name): {"annotator": of} if isinstance(of, str) else of for name, of in jurors.items()}

    @field_validator("jurors")
    @classmethod
    def _jurors_differ(cls, jurors: dict[str, Juror]) -> dict[str, Juror]:
        seen: dict[str, str] = {}
        for name, juror in jurors.items():
            if juror.annotator.partition(":")[0].rpartition("/")[2] == "jury":
                raise ValueError(f"{name} is a jury itself: list its jurors here")
            asks = f"{juror.annotator} {sorted(juror.judge.items())}"
            if asks in seen:
                raise ValueError(
                    f"{name} asks just what {seen[asks]} asks, and would always vote with it: give it another "
                    f"annotator or judge, or {seen[asks]} a larger weight"
                )
            seen[asks] = name
        return jurors


def read_jury(path: Path) -> JuryFile:
    """Read a jury's file. Raises `ConfigError` with all its problems."""
    return read_config_file(path, JuryFile)
