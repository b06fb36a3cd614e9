"""`check_study` goes red for studies that break one promise each."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from afarm import Bounded, Findings, FinishedRun, Series, Study, StudyPlot, StudyRequest, StudyRun, StudyTable
from afarm.core.errors import ConfigError
from afarm.testing import ConformanceError, check_study


class Sound(Study):
    """Two values with every seed."""

    calls = 0

    def grid(self, request: StudyRequest) -> Sequence[StudyRun]:
        return [
            StudyRun(request.method, seed, {"n": n}, (f"best_of_n.n={n}",)) for n in (1, 4) for seed in request.seeds
        ]

    def analyse(self, finished: Sequence[FinishedRun]) -> Findings:
        rows = [[done.run.place["n"], done.figures["win_rate"]] for done in finished]
        points = [Bounded(done.figures["win_rate"]) for done in finished]
        plot = StudyPlot("plot", "", "n", "", [Series("", [done.run.place["n"] for done in finished], points)])
        return Findings([StudyTable("table", "", {"n": "d", "win rate": ".1f"}, rows)], [plot])


class Empty(Sound):
    def grid(self, request: StudyRequest) -> Sequence[StudyRun]:
        return []


class Twice(Sound):
    def grid(self, request: StudyRequest) -> Sequence[StudyRun]:
        return [*super().grid(request), *super().grid(request)]


class Wavering(Sound):
    def grid(self, request: StudyRequest) -> Sequence[StudyRun]:
        self.calls += 1
        return list(super().grid(request))[: 2 + self.calls % 2]


class LooksUpNoJson(Sound):
    def look_up(self) -> Mapping[str, Any]:
        return {"model": Path("model")}


class NeedsAll(Sound):
    def analyse(self, finished: Sequence[FinishedRun]) -> Findings:
        return super().analyse(finished) if finished else None  # type: ignore[return-value]


class Ragged(Sound):
    def analyse(self, finished: Sequence[FinishedRun]) -> Findings:
        return Findings([StudyTable("table", "", {"n": "d"}, [[1, 2]])])


class NotFinite(Sound):
    def analyse(self, finished: Sequence[FinishedRun]) -> Findings:
        return Findings([StudyTable("table", "", {"n": ".1f"}, [[Bounded(1, float("-inf"), 2)]])])


class Climbs(Sound):
    def analyse(self, finished: Sequence[FinishedRun]) -> Findings:
        return Findings([StudyTable("../table", "", {"n": "d"}, [])])


class Overwrites(Sound):
    def analyse(self, finished: Sequence[FinishedRun]) -> Findings:
        return Findings([StudyTable("runs", "", {"n": "d"}, [])])


class Unpaired(Sound):
    def analyse(self, finished: Sequence[FinishedRun]) -> Findings:
        return Findings(plots=[StudyPlot("plot", "", "", "", [Series("", [1.0, 2.0], [Bounded(1)])])])


def returning(rows: Any = (), form: str = "d", found: Any = None, runs: Any = None, facts: Any = None) -> Any:
    """Return a study that returns wrong things: cells of a table, or findings, a grid, or facts."""

    class Returning(Sound):
        def grid(self, request: StudyRequest) -> Sequence[StudyRun]:
            return super().grid(request) if runs is None else runs

        def look_up(self) -> Mapping[str, Any]:
            return {} if facts is None else facts

        def analyse(self, finished: Sequence[FinishedRun]) -> Findings:
            return Findings([StudyTable("t", "", {"a": form}, rows)]) if found is None else found

    return Returning


class AsksForValues(Sound):
    def grid(self, request: StudyRequest) -> Sequence[StudyRun]:
        raise ConfigError("name values")


@pytest.mark.parametrize("study", [Sound, AsksForValues])
def test_a_sound_study_passes(study: type[Study]) -> None:
    check_study(study())


@pytest.mark.parametrize(
    ("study", "promise"),
    [
        (Empty, "must state a run"),
        (Twice, "must state each run once"),
        (Wavering, "the same runs for the same request"),
        (LooksUpNoJson, "must return JSON"),
        (NeedsAll, "must return afarm.Findings"),
        (Ragged, "must have 1 cells"),
        (NotFinite, "must be finite"),
        (Climbs, "names its files"),
        (Overwrites, "names its files"),
        (Unpaired, "must have an x for each y"),
        (returning(found=Findings(5)), "its tables is 5"),  # type: ignore[arg-type]
        (returning(found=Findings([5])), "its tables is .5.: Input should be an instance of StudyTable"),  # type: ignore[list-item]
        (returning(found=Findings(notes=[5])), "its notes is"),  # type: ignore[list-item]
        (returning(found=Findings(plots=[StudyPlot("p", "", "", "", [("", [1], [Bounded(1)])])])), "afarm.Series"),  # type: ignore[list-item]
        (returning([7]), "its rows is .7."),
        (returning([[1]], "zz"), "'zz', the format of 'a'"),
        (returning([[math.nan]]), "nan cannot be written as 'd'"),
        (returning([[10**400]], ".1f"), "cannot be written as '.1f'"),
        (returning([[Bounded(1, 0, 2)]]), "cannot be written as 'd'"),
        (returning(runs=5), "grid must return a list of afarm.StudyRun, not int"),
        (returning(runs=[5]), "grid must return afarm.StudyRun"),
        (returning(facts=5), "look_up must return JSON"),
    ],
)
def test_a_broken_promise_is_named(study: type[Study], promise: str) -> None:
    with pytest.raises(ConformanceError, match=promise):
        check_study(study())
