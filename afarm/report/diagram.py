"""The diagram of stages as SVG coordinates: boxes and arrows, left to right as the data flows.

A box stands in the column `depth` and the row `lane`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

WIDTH, HEIGHT, GAP = 146, 90, 28
"""Of a box, and between boxes, in SVG units (about a pixel)."""

TIP = 7
"""The length of an arrow's head."""


def diagrams(stages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The diagram of `stages`, as a template or JSON takes it; none if no stage is made from another.

    `width` and `height` are the view box, `boxes` are in the order of `stages`: their top left corners `x` and `y`, and
    their titles on two lines, `kind` and `subject`. `arrows` are SVG path data.
    """
    inputs = without_shortcuts(find_inputs(stages))
    if not any(inputs):
        return []
    places = place(inputs)
    boxes = [
        {**title(str(stage["stage"])), "x": 2 + depth * (WIDTH + GAP), "y": 2 + lane * (HEIGHT + GAP)}
        for stage, (depth, lane) in zip(stages, places, strict=True)
    ]
    return [
        {
            "width": max(box["x"] for box in boxes) + WIDTH + 2,
            "height": max(box["y"] for box in boxes) + HEIGHT + 2,
            "box": [WIDTH, HEIGHT],
            "boxes": boxes,
            "arrows": [
                _arrow(places[source], places[target]) for target, sources in enumerate(inputs) for source in sources
            ],
        }
    ]


def find_inputs(stages: Sequence[Mapping[str, Any]]) -> list[list[int]]:
    """For each stage, the indices of the earlier stages whose names are its `inputs`."""
    earlier: dict[str, int] = {}
    indices: list[list[int]] = []
    for number, stage in enumerate(stages):
        inputs = stage.get("inputs")
        indices.append([earlier[name] for name in inputs if name in earlier] if isinstance(inputs, list) else [])
        earlier[str(stage.get("stage", ""))] = number
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


def title(name: str) -> dict[str, Any]:
    """A stage's name on two lines: "evaluate ppo against sft" is evaluate, and against sft."""
    kind, _, subject = name.partition(" ")
    _, against, reference = subject.partition("against ")
    return {"kind": kind, "subject": against + reference if against else subject}


def _arrow(source: tuple[int, int], target: tuple[int, int]) -> str:
    """Out of the source, in the gap behind it over to the target's lane, and along that into the target.

    Arrows that change lanes leave, cross and arrive each on a track of their own, so that none seems to join another.
    """
    (depth, lane), (target_depth, target_lane) = source, target
    side = (target_lane > lane) - (target_lane < lane)
    begin = 2 + depth * (WIDTH + GAP) + WIDTH
    end = 2 + target_depth * (WIDTH + GAP) - TIP
    leave, arrive = (2 + row * (HEIGHT + GAP) + HEIGHT // 2 for row in (lane, target_lane))
    return f"M{begin} {leave + 14 * side}H{begin + 6 + 5 * lane}V{arrive - 7 * side}H{end}"
