"""Layout of the diagram of stages: boxes and arrows as SVG coordinates.

The diagram is laid out once in units of boxes: `depth` along the way the data flows, `lane` across it. It is drawn
twice from that, running to the right for wide screens and downwards for narrow ones.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

WIDTH, HEIGHT, GAP = 146, 90, 28
"""Of a box, and between boxes, in SVG units (about a pixel)."""

TIP = 7
"""The length of an arrow's head."""


@dataclass(frozen=True, slots=True)
class Box:
    """One stage, at its top left corner, with its title on two lines."""

    stage: Mapping[str, Any]
    kind: str
    subject: str
    x: int
    y: int


@dataclass(frozen=True, slots=True)
class Diagram:
    """`direction` is "wide" or "narrow", `width` and `height` the view box, `arrows` SVG path data."""

    direction: str
    width: int
    height: int
    boxes: list[Box]
    arrows: list[str]


def diagrams(stages: Sequence[Mapping[str, Any]]) -> list[Diagram]:
    """The diagram of `stages` for wide and for narrow screens; none without stages."""
    if not stages:
        return []
    inputs = without_shortcuts(find_inputs(stages))
    places = place(inputs)
    return [_draw(stages, inputs, places, direction) for direction in ("wide", "narrow")]


def find_inputs(stages: Sequence[Mapping[str, Any]]) -> list[list[int]]:
    """For each stage, the indices of the earlier stages whose names are its `inputs`."""
    names = [str(stage.get("stage", "")) for stage in stages]
    indices: list[list[int]] = []
    for number, stage in enumerate(stages):
        earlier = {name: index for index, name in enumerate(names[:number])}
        inputs = stage.get("inputs")
        indices.append([earlier[name] for name in inputs if name in earlier] if isinstance(inputs, list) else [])
    return indices


def without_shortcuts(inputs: Sequence[Sequence[int]]) -> list[list[int]]:
    """`inputs` less those that also arrive by way of another input: the arrows that tell the order."""
    before: list[set[int]] = []
    for sources in inputs:
        before.append(set(sources).union(*(before[s] for s in sources)))
    return [[s for s in sources if not any(s in before[other] for other in sources)] for sources in inputs]


def place(inputs: Sequence[Sequence[int]]) -> list[tuple[int, int]]:
    """(depth, lane) of each stage: as late as what it feeds allows, the longest chain of stages in lane 0."""
    earliest: list[int] = []
    for sources in inputs:
        earliest.append(1 + max((earliest[s] for s in sources), default=-1))
    depth = list(earliest)
    for index in reversed(range(len(inputs))):
        consumers = [depth[i] for i, sources in enumerate(inputs) if index in sources]
        depth[index] = min(consumers) - 1 if consumers else depth[index]
    lanes = [0] * len(inputs)
    taken: dict[int, int] = {}
    for index in sorted(range(len(inputs)), key=lambda i: (-earliest[i], i)):
        lanes[index] = taken.get(depth[index], 0)
        taken[depth[index]] = lanes[index] + 1
    return list(zip(depth, lanes, strict=True))


def _draw(
    stages: Sequence[Mapping[str, Any]], inputs: list[list[int]], places: list[tuple[int, int]], direction: str
) -> Diagram:
    wide = direction == "wide"
    boxes = []
    for stage, (depth, lane) in zip(stages, places, strict=True):
        column, row = (depth, lane) if wide else (lane, depth)
        boxes.append(Box(stage, *title(str(stage["stage"])), 2 + column * (WIDTH + GAP), 2 + row * (HEIGHT + GAP)))
    arrows = [
        _arrow(places[source], places[target], wide) for target, sources in enumerate(inputs) for source in sources
    ]
    right, bottom = max(b.x for b in boxes) + WIDTH + 2, max(b.y for b in boxes) + HEIGHT + 2
    return Diagram(direction, right, bottom, boxes, arrows)


def title(name: str) -> tuple[str, str]:
    """A stage's name on two lines: "evaluate ppo against sft" is ("evaluate", "against sft")."""
    kind, _, subject = name.partition(" ")
    _, against, reference = subject.partition("against ")
    return kind, against + reference if against else subject


def _arrow(source: tuple[int, int], target: tuple[int, int], wide: bool) -> str:
    """Out of the source, in the gap behind it over to the target's lane, and along that into the target.

    Arrows that change lanes leave, cross and arrive each on a track of their own, so that none seems to join another.
    """
    length, breadth = (WIDTH, HEIGHT) if wide else (HEIGHT, WIDTH)
    (depth, lane), (target_depth, target_lane) = source, target
    side = (target_lane > lane) - (target_lane < lane)
    begin = 2 + depth * (length + GAP) + length
    end = 2 + target_depth * (length + GAP) - TIP
    middle = 2 + lane * (breadth + GAP) + breadth // 2
    target_middle = 2 + target_lane * (breadth + GAP) + breadth // 2
    leave, arrive, track = middle + 14 * side, target_middle - 7 * side, begin + 6 + 5 * lane
    points = [(begin, leave), (track, leave), (track, arrive), (end, arrive)]
    return "M" + "L".join(f"{a} {b}" if wide else f"{b} {a}" for a, b in points)
