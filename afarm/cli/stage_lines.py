"""Lines of stages on the screen: their place, how they went, and how long the command still takes."""

from __future__ import annotations

from collections.abc import Mapping
from time import monotonic
from typing import TYPE_CHECKING, Any

from afarm.cli.console import err
from afarm.cli.progress import ProgressBars
from afarm.core.errors import AfarmError
from afarm.storage.text import dollars, markup, one_line

if TYPE_CHECKING:
    from afarm.experiment.stage import StageRun
    from afarm.experiment.workspace import Workspace

ENOUGH = 0.05
"""The share of a stage from which its answers tell what all of them cost."""

WIDTH = 28
"""The width of the column of labels."""


class StageLines:
    """Shows the stages of a workspace as they begin and end: its `on_stage`."""

    def __init__(self, bars: ProgressBars, workspace: Workspace):
        self.bars = bars
        self.workspace = workspace
        self._expected: dict[str, float] | None = None
        self._paid_before = 0.0

    def __call__(self, label: str, run: StageRun | None) -> None:
        if run is None:
            self._paid_before = self._paid
            planned = list(self.workspace.planned)
            number, of = planned.index(label) + 1 if label in planned else 1, len(planned)
            place = f"stage {number} of {of}" if of > 1 else ""
            self._expected = None
            self.bars.begin(label, place, (number - 1) / max(of, 1), lambda: self.time_left(label))
            return
        self.bars.end()
        rest = run.why if run.reused else in_short(run.artifact.meta["summary"])
        shown = stage_line(label, None if run.reused else run.seconds, run.artifact.key[:8])
        narrow = err().is_terminal and max(WIDTH, len(one_line(label))) + 18 + len(rest) + 4 > err().width
        err().print(shown + ("\n    " if narrow and rest else "  ") + markup(rest))

    def time_left(self, label: str) -> str:
        """Say roughly how much time the command still takes, once there is something to go by."""
        if self._expected is None:  # read only if a stage takes long enough to be looked at
            self._expected = expected_seconds(self.workspace)
        if not self._expected:
            return ""
        spent, share = monotonic() - self.bars.stage_began, self.bars.share
        this = spent * (1 - share) / share if share > 0.05 else self._expected.get(label, 0.0) - spent
        rest = sum(seconds for name, seconds in self._expected.items() if name != label)
        return f"≈ {roughly(max(0.0, this) + rest)} left"

    @property
    def _paid(self) -> float:
        spend = self.workspace.judges.spend
        return spend.dollars if spend else 0.0

    def spent(self) -> str:
        """Say what is paid so far, what that makes at the stage's end, and which judges ask to slow down."""
        spend, share = self.workspace.judges.spend, self.bars.share
        unknown = f" + {spend.unpriced_calls} calls of unknown price" if spend and spend.unpriced_calls else ""
        texts = [f"{dollars(self._paid)}{unknown}" if self._paid or unknown else ""]
        if share > ENOUGH and self._paid > self._paid_before:
            at_end = self._paid_before + (self._paid - self._paid_before) / share
            texts.append(f"≈ {dollars(at_end)} at the end of this stage")
        return ", ".join(filter(None, [*texts, *self.workspace.judges.slowed]))


def stage_line(label: str, seconds: float | None, key: str) -> str:
    """Write the line of a stage that is there, as markup: made in `seconds`, or reused (None)."""
    took = " reused " if seconds is None else f"{seconds:5.1f} s"
    return f"[green]✓[/] {markup(one_line(label).ljust(WIDTH))} {took} [dim]{key}[/]"


def expected_seconds(workspace: Workspace) -> dict[str, float]:
    """Return what planned stages that are not there yet took last time; empty if one was never made."""
    found = {}
    for label, stage in list(workspace.planned.items()):
        if label not in workspace.history:
            try:
                found[label] = float(workspace.store.of_stage(stage.kind, label)[-1].meta["seconds"])
            except (AfarmError, LookupError, ValueError):  # none, or a damaged one, which is reported where it is used
                return {}
    return found


def roughly(seconds: float) -> str:
    """Round a time, as an estimate deserves."""
    if seconds < 90:
        return f"{max(10, round(seconds, -1)):.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def in_short(summary: Mapping[str, Any]) -> str:
    """The few figures of a stage's summary that say how it went."""
    from afarm.report.run import stage_figures

    names = ["rows", "labels", "mean_characters", "loss", "held-out accuracy", "objective/scores", "objective/kl"]
    known = stage_figures(summary)
    figures = {name: known[name] for name in names if name in known}
    outcomes = summary.get("outcomes", {})
    identical = summary.get("members", {}).get("(identical)", 0)
    counts = {"identical": identical, "draws": outcomes.get("draw", 0) - identical}
    counts |= {name: outcomes.get(name, summary.get(name, 0)) for name in ("unparsed", "refused", "empty")}
    counts["unreadable"] = sum(int(count) for name, count in summary.items() if name.endswith(" unreadable"))
    figures |= {name: count for name, count in counts.items() if count > 0}
    cuts = ("pairs_equal_after_cut", "examples_cut", "outputs_cut", "prompts_cut_to_nothing")
    for name in ("rows_unusable", "rows_evaluated_on", "pairs_left_out", *cuts):
        if count := summary.get(name):
            figures[name.replace("_", " ")] = int(count)
    shown = {name: f"{value:.3g}" if isinstance(value, float) else value for name, value in figures.items()}
    return ", ".join(f"{name} {value}" for name, value in shown.items())
