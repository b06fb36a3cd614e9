"""The pictures of docs/studies: their points stand in their page's tables, or the files that they are of give them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree

import pytest
from places import DOCS, SHARED_DATA

from afarm import Bounded, Findings
from afarm_plugins.instructions.settings import InstructionsConfig
from afarm_plugins.instructions.study import Instructions
from afarm_plugins.studies.annotators import Annotators
from afarm_plugins.studies.rankings import Rankings
from afarm_plugins.studies.settings import AnnotatorsConfig, RankingsConfig

STUDIES = DOCS / "studies"
NUMBER = re.compile(r"(?<![\w.])[-−+]?\d[\d,]*(?:\.\d+)?(?:e[-+]\d+)?")


def numbers(text: str) -> list[tuple[float, float]]:
    """Each number of a text, and half a unit of its last digit."""
    found = []
    for number in NUMBER.findall(text):
        plain = number.replace(",", "").replace("−", "-").lower()
        mantissa, _, power = plain.partition("e")
        found.append((float(plain), 0.5 * 10 ** (int(power or 0) - len(mantissa.partition(".")[2]))))
    return found


def points(picture: Path) -> Iterator[list[tuple[float, float]]]:
    """The x and y of each point, as far as they are numbers."""
    for circle in ElementTree.fromstring(picture.read_text("utf-8")).iter():
        for title in circle if circle.tag.endswith("circle") else ():
            named = re.sub(r" \([^)]* to [^)]*\)", "", str(title.text)).partition(": ")[2]
            values = [numbers(part[part.rfind(" ") :]) for part in re.split(r", (?!%|√)", named)]
            yield [value[0] for value in values if value]


def rows(page: Path) -> list[list[tuple[float, float]]]:
    return [numbers(line) for line in page.read_text("utf-8").splitlines() if line.startswith("|")]


def in_row(point: list[tuple[float, float]], row: list[tuple[float, float]]) -> bool:
    """True if each number of a point is one of the row's, as far as both are written out."""
    return all(any(abs(a - b) <= 1.001 * (half + digit) for b, digit in row) for a, half in point)


TABLED = [
    ("rankings-toy", "rankings", "xy"),
    ("transfer-toy", "transfer", "y"),
    ("label-noise-toy", "label-noise", "y"),
    ("overoptimization-crowd", "overoptimization", "y"),
    ("overoptimization-true-labels", "overoptimization", "y"),
    ("kl-toy", "sweep", "xy"),
    ("data-size-toy", "sweep", "xy"),
    ("lengths-toy", "lengths", "xy"),
    ("eval-sets-toy", "eval-sets", "xy"),
    ("model-size", "model-size", "xy"),
    ("pool-size", "pool-size", "xy"),
    ("costs-toy", "costs", "xy"),
    ("calibrate-pandalm", "calibrate", "xy"),
]
"""Pictures whose points stand in a table: the page, and the axes that the table has."""

OF_FILES = [
    ("rankings-pandalm", "rankings"),
    ("annotators-pandalm", "preferences"),
    ("instructions-verbs", "verb-shares"),
]
"""Pictures of files alone, and the names of their plots."""


@pytest.mark.parametrize(("picture", "page", "axes"), TABLED)
def test_each_point_of_a_picture_stands_in_a_row_of_its_pages_tables(picture: str, page: str, axes: str) -> None:
    table = rows(STUDIES / f"{page}.md")
    drawn = [point if axes == "xy" else point[-1:] for point in points(STUDIES / f"{picture}.svg") if point[0][0] != 0]
    assert drawn
    assert [point for point in drawn if not any(in_row(point, row) for row in table)] == []


PANDALM = SHARED_DATA / "pandalm"


def pandalm() -> dict[str, object]:
    judges = {"gpt-3.5": "gpt-3.5-turbo-testset-v1", "pandalm-7b": "pandalm-7b-testset-v1"}
    judged = [f"{name}={PANDALM / file}.json.gz" for name, file in judges.items()]
    return {"humans": str(PANDALM / "testset-v1.json.gz"), "judged": judged}


def of_verbs() -> Findings:
    sets = {"alpaca": "alpaca/alpaca_5000", "evaluation": "alpaca_eval/outputs.text_davinci_003"}
    files = [f"{name}={SHARED_DATA / file}.json.gz" for name, file in sets.items()]
    study = Instructions(InstructionsConfig(instructions=files, tagger="rules"))
    study.read(lambda split: ())
    return study.analyse([])


@pytest.mark.skipif(not PANDALM.is_dir(), reason=f"no PandaLM at {SHARED_DATA}")
@pytest.mark.parametrize(("picture", "plot"), OF_FILES)
def test_a_picture_of_files_shows_what_they_give(picture: str, plot: str) -> None:
    findings = {
        "rankings": lambda: Rankings(RankingsConfig(**pandalm())).analyse([]),
        "preferences": lambda: Annotators(AnnotatorsConfig(**pandalm())).analyse([]),
        "verb-shares": of_verbs,
    }[plot]()
    [found] = [one for one in findings.plots if one.name == plot]
    drawn = list(points(STUDIES / f"{picture}.svg"))
    given = [(x, y) for series in found.series for x, y in zip(series.x, series.y, strict=True)]
    assert len(drawn) == len(given) > 0
    for point, (x, y) in zip(drawn, given, strict=True):
        known = [y.value] if isinstance(x, str) else [x.value if isinstance(x, Bounded) else x, y.value]
        assert all(abs(a - b) <= 1.001 * half for (a, half), b in zip(point[-len(known) :], known, strict=True))
