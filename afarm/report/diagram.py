"""Where the boxes and arrows of the diagram of stages go.

The diagram is laid out once in units of boxes: `depth` along the way the data flows, `lane` across it. It is drawn
twice from that, running to the right for wide screens and downwards for narrow ones.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

WIDTH, HEIGHT, GAP = 160, 78, 24
"""Of a box, and between boxes, in SVG units (about a pixel)."""

_USUAL_INPUT = {
    "sample": ("sft",),
    "annotate": ("sample",),
    "fit-reward": ("annotate",),
    "train": ("fit-reward", "annotate"),
}


@dataclass(frozen=True, slots=True)
class Box:
    """One stage, at its top left corner."""

    stage: Mapping[str, Any]
    x: int
    y: int


@dataclass(frozen=True, slots=True)
class Diagram:
    """`arrows` are SVG path data; `width` and `height` the view box."""

    direction: str
    width: int
    height: int
    boxes: list[Box]
    arrows: list[str]


def diagrams(stages: Sequence[Mapping[str, Any]]) -> list[Diagram]:
    """The diagram of `stages` for wide and for narrow screens; none without stages."""
    if not stages:
        return []
    inputs = find_inputs(stages)
    places = place(inputs)
    return [_draw(stages, inputs, places, direction) for direction in ("wide", "narrow")]


def find_inputs(stages: Sequence[Mapping[str, Any]]) -> list[list[int]]:
    """For each stage, which earlier ones feed it: its own `inputs` (names) where given, else the usual ones."""
    names = [str(stage.get("stage", "")) for stage in stages]
    found = []
    for index, (stage, name) in enumerate(zip(stages, names, strict=True)):
        earlier = {n: i for i, n in enumerate(names[:index])}
        wanted = stage.get("inputs")
        if isinstance(wanted, list):
            found.append([earlier[n] for n in wanted if n in earlier])
        elif name == "evaluate":
            outputs = [i for n, i in earlier.items() if n.startswith("outputs")]
            found.append(outputs or list(range(index))[-1:])
        elif name.startswith("outputs"):
            source = "sft" if "(sft)" in name else "train"
            found.append([earlier[source]] if source in earlier else [])
        else:
            usual = [earlier[n] for n in _USUAL_INPUT.get(name, ()) if n in earlier]
            found.append(usual[:1] or list(range(index))[-1:])
    return found


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

    def corner(index: int) -> tuple[int, int]:
        column, row = places[index] if wide else reversed(places[index])
        return 2 + column * (WIDTH + GAP), 2 + row * (HEIGHT + GAP)

    boxes = [Box(stage, *corner(i)) for i, stage in enumerate(stages)]
    arrows = [
        _arrow(boxes[source], boxes[target], places[target][1] - places[source][1], wide)
        for target, sources in enumerate(inputs)
        for source in sources
    ]
    right, bottom = max(b.x for b in boxes) + WIDTH + 2, max(b.y for b in boxes) + HEIGHT + 2
    return Diagram(direction, right, bottom, boxes, arrows)


def _arrow(source: Box, target: Box, lanes: int, wide: bool) -> str:
    """Straight within a lane; one corner between lanes, which leaves the lane at once when going outwards."""
    source_x, source_y = source.x + WIDTH // 2, source.y + HEIGHT // 2
    target_x, target_y = target.x + WIDTH // 2, target.y + HEIGHT // 2
    tip = 7  # the arrow head's length
    if wide:
        if lanes == 0:
            return f"M{source.x + WIDTH} {source_y}H{target.x - tip}"
        if lanes > 0:
            return f"M{source_x} {source.y + HEIGHT}V{target_y}H{target.x - tip}"
        return f"M{source.x + WIDTH} {source_y}H{target_x}V{target.y + HEIGHT + tip}"
    if lanes == 0:
        return f"M{source_x} {source.y + HEIGHT}V{target.y - tip}"
    if lanes > 0:
        return f"M{source.x + WIDTH} {source_y}H{target_x}V{target.y - tip}"
    return f"M{source_x} {source.y + HEIGHT}V{target_y}H{target.x + WIDTH + tip}"
