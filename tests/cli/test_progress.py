"""Progress bars: what a person at a terminal sees, and what a log does."""

import io
import os
import re
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
from light_farm import light_farm
from plugin_site import installed, light_recipe
from rich.console import Console
from said import Afarm
from terminal import run_in_terminal, screen
from waiting import wait_until

from afarm.cli.progress import ProgressBars
from afarm.cli.stage_lines import StageLines, expected_seconds, roughly
from afarm.experiment import pipeline
from afarm.judging.client import Spend


def shown_on(terminal: bool, waited_at: int | None = None) -> str:
    """What a stage with a loop of three items shows; at one of them it waits until the loop has a bar."""
    text = io.StringIO()
    bars = ProgressBars(Console(file=text, force_terminal=terminal, width=100))
    bars.begin("train ppo")
    for number in bars(range(3), "PPO", 3):
        wait_until(lambda number=number: number != waited_at or all(word in text.getvalue() for word in ("PPO", "/3")))
    bars.end()
    return text.getvalue()


def test_a_stage_and_its_loop_are_shown_while_they_last() -> None:
    assert "train ppo" in shown_on(terminal=True, waited_at=1)


def test_a_short_loop_gets_no_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("afarm.cli.progress.PATIENCE", 60.0)  # on a busy machine too it is short
    assert "PPO" not in shown_on(terminal=True)


def test_a_log_gets_one_line_a_stage_and_no_bars() -> None:
    assert shown_on(terminal=False) == "… train ppo\n"


def test_a_log_tells_of_a_loop_once_in_a_while_also_while_no_item_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("afarm.cli.progress.LOG_SECONDS", 0.01)
    text = io.StringIO()
    bars = ProgressBars(Console(file=text, force_terminal=False, width=200))
    bars.note = lambda: "$0.12, openai:gpt-4o asks to slow down: waiting 4 s"
    for item in bars(range(3), "judging", 805):
        wait_until(lambda item=item: f"judging: {item} of 805, " in text.getvalue())
    assert "judging: 1 of 805, 00:0" in text.getvalue(), "the first item may have waited for a model"
    line = next(line for line in text.getvalue().splitlines() if "2 of 805" in line)
    assert re.fullmatch(
        r"… judging: 2 of 805, [\d.e+,]+/s, [\d:]+ left, \$0\.12, openai:gpt-4o asks to slow down: waiting 4 s", line
    )


def test_a_log_tells_of_a_stage_that_is_in_no_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("afarm.cli.progress.LOG_SECONDS", 0.01)
    text = io.StringIO()
    bars = ProgressBars(Console(file=text, force_terminal=False, width=200))
    bars.begin("train ppo", "stage 2 of 4", left=lambda: "≈ 3 min left")
    wait_until(lambda: "… train ppo: 00:00 so far, ≈ 3 min left\n" in text.getvalue())
    for _ in bars(range(1), "PPO", 40):
        wait_until(lambda: "… PPO: 0 of 40, 00:00 so far\n" in text.getvalue())
    bars.end()
    for _ in bars(range(1), "judging", 805):
        wait_until(lambda: "… judging: 0 of 805, 00:00 so far\n" in text.getvalue())


def test_a_log_tells_of_a_loop_within_a_loop_only_if_it_is_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("afarm.cli.progress.LOG_SECONDS", 0.05)
    text = io.StringIO()
    bars = ProgressBars(Console(file=text, force_terminal=False, width=200))
    for step in bars(range(2), "PPO", 2):
        for _ in range(200):
            for _ in bars(range(1), "short ones", 1):
                time.sleep(0.001)
        for _ in bars(range(1), "a long one", 1):
            wait_until(lambda step=step: text.getvalue().count("a long one: 0 of 1") > step)
    assert "PPO: 1 of 2" in text.getvalue()
    assert "short ones" not in text.getvalue()


def test_a_resumed_loop_counts_in_the_same_total(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("afarm.cli.progress.LOG_SECONDS", 0.01)
    text = io.StringIO()
    bars = ProgressBars(Console(file=text, force_terminal=False, width=200))
    shares = []
    for step in bars(range(10, 40), "PPO", 40):
        wait_until(lambda step=step: f"PPO: {step} of 40, " in text.getvalue())
        shares.append((bars.loops[0]["done"], round(bars.share, 3)))
        if step == 13:
            break
    assert shares == [(10, 0.0), (11, 0.033), (12, 0.067), (13, 0.1)]
    assert re.search(r"PPO: 10 of 40, [\d:]+ so far\n", text.getvalue()), "before the first step there is no rate"
    assert re.search(r"PPO: 13 of 40, [\d.]+/s, [\d:]+ left\n", text.getvalue())


def test_a_loop_that_takes_hours_says_so_once_on_any_console(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("afarm.cli.progress.LOG_SECONDS", 0.001)
    for terminal in (True, False):
        text = io.StringIO()
        bars = ProgressBars(Console(file=text, force_terminal=terminal, width=200))
        for number in bars(iter(range(3000)), "dpo", 10**12):
            if number == 2000:
                break
        assert len(re.findall(r"dpo takes about [\d,.]+ hours at this rate", text.getvalue())) == 1


def test_a_bar_says_what_is_waited_for_while_no_item_comes() -> None:
    text = io.StringIO()
    bars = ProgressBars(Console(file=text, force_terminal=True, width=120))
    said = "openai:gpt-4o asks to slow down: waiting 4 s"
    bars.begin("annotate")
    for _ in bars(range(1), "judging", 1):
        wait_until(lambda: "judging" in text.getvalue())
        bars.note = lambda: said
        wait_until(lambda: said in text.getvalue())
    bars.end()


def test_on_a_narrow_screen_names_give_way_to_figures() -> None:
    text = io.StringIO()
    bars = ProgressBars(Console(file=text, force_terminal=True, width=56, color_system=None))
    bars.note = lambda: "$0.12"
    bars.begin("fit-reward of a policy with a long name", "stage 5 of 9", left=lambda: "≈ 3 min left")
    began = time.monotonic()
    for number in bars(range(3), "fitting it to its preferences", 3):
        rate = r" .*/s .* left \$0\.12" if number == 2 else ""
        wait_until(lambda number=number, rate=rate: re.search(f"{number}/3{rate}", text.getvalue()))
        time.sleep(number * 0.3 * (time.monotonic() - began))  # or the second item would count as come with the first
    bars.end()
    assert re.search(r"stage 5 of 9 +\d:\d\d:\d\d ≈ 3 min left", text.getvalue())


def test_every_item_comes_through_in_order() -> None:
    bars = ProgressBars(Console(file=io.StringIO(), force_terminal=True))
    assert list(bars(iter("abc"), "letters")) == ["a", "b", "c"]


def test_a_loop_whose_first_item_takes_long_has_a_bar_with_its_total() -> None:
    text = io.StringIO()
    bars = ProgressBars(Console(file=text, force_terminal=True, width=100))
    bars.begin("fit-reward", "stage 5 of 9")
    for _ in bars(range(1), "fitting", 1):
        wait_until(lambda: all(word in text.getvalue() for word in ("stage 5 of 9", "fitting", "0/1")))
    bars.end()


def test_a_name_in_brackets_is_shown_as_it_is() -> None:
    text = io.StringIO()
    bars = ProgressBars(Console(file=text, force_terminal=True, width=100))
    bars.begin("compare llama[/INST] with \x1b[31mred[bold]")
    for _ in bars(range(1), "judge[/x]", 1):
        wait_until(lambda: "judge[/x]" in text.getvalue())
    bars.end()
    assert r"compare llama[/INST] with \x1b[31mred[bold]" in text.getvalue()
    assert "judge[/x]" in text.getvalue()


def test_a_stage_is_counted_among_all_that_are_planned(tmp_path: Path) -> None:
    text = io.StringIO()
    with light_farm(tmp_path, "start=model") as farm:
        workspace = farm.workspace
        bars = ProgressBars(Console(file=text, force_terminal=False, width=100))
        workspace.on_stage = StageLines(bars, workspace)
        farm.evaluate("nudge")
    lines = text.getvalue().splitlines()
    assert lines[0] == f"… base (stage 1 of {len(lines)})"
    assert lines[-1] == f"… evaluate nudge against base (stage {len(lines)} of {len(lines)})"


def test_what_is_left_is_estimated_from_the_stages_made_before(tmp_path: Path) -> None:
    with light_farm(tmp_path, "start=model") as farm:
        workspace = farm.workspace
        pipeline.plan_evaluations(workspace, "nudge")
        assert expected_seconds(workspace) == {}, "nothing to go by"
        farm.evaluate("nudge")
    with light_farm(tmp_path, "start=model") as farm:
        pipeline.plan_evaluations(farm.workspace, "nudge")
        expected = expected_seconds(farm.workspace)
        assert expected.keys() == farm.workspace.planned.keys()
        assert all(0 < seconds < 60 for seconds in expected.values())
    assert [roughly(seconds) for seconds in (3, 61, 200, 9000)] == ["10 s", "60 s", "3 min", "2.5 h"]


def test_compare_says_which_of_the_methods_it_is_at(afarm: Afarm) -> None:
    said = afarm("compare", "--recipe", "light.yaml", "--methods", "nudge,direct")
    assert said.code == 0, said.err
    assert "method 1 of 2: nudge" in said.err
    assert "method 2 of 2: direct" in said.err
    ends = {found.end() for line in said.err.splitlines() if (found := re.match(r"✓ .*?(\d\.\d s|reused) ", line))}
    assert len(ends) == 1, "one column for all lines"
    assert re.search(r"Page, with each run’s report: \S+\.html$", said.out, re.MULTILINE)


def test_ctrl_c_takes_the_bars_down_and_leaves_the_prompt_a_line_of_its_own(tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "COLUMNS"}
    environment |= {
        "TERM": "xterm-256color",
        "PYTHONPATH": os.pathsep.join(installed(tmp_path / "site", "light_worker")),
    }
    light_recipe(tmp_path)
    code, text = run_in_terminal(
        [sys.executable, "-m", "afarm", "train", "--recipe", "light.yaml", "--method", "long"],
        environment,
        tmp_path,
        interrupt=lambda text: "long" in text and "/" in screen(text)[-1] and "left" in text,
    )
    shown = screen(text)
    assert code == 130
    assert "stage 2 of 2" in text
    assert not [line for line in shown if "━" in line], shown
    assert "Stopped. Nothing finished is lost" in " ".join(shown)
    assert shown[-1] == "▮", "the shell's prompt begins its own line"


class Paid:
    """A workspace whose judges have cost something."""

    history: ClassVar[dict[str, Any]] = {}
    planned: ClassVar[dict[str, str]] = {}

    def __init__(self) -> None:
        self.judges = SimpleNamespace(spend=Spend(), slowed=[])


def test_what_a_stage_is_expected_to_cost_is_learned_from_its_own_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("afarm.cli.stage_lines.expected_seconds", lambda workspace: {})
    for terminal in (True, False):
        bars = ProgressBars(Console(file=io.StringIO(), force_terminal=terminal, width=200))
        workspace: Any = Paid()
        lines = StageLines(bars, workspace)
        workspace.judges.spend.dollars = 1.0  # of the stage before
        lines("annotate", None)
        assert lines.spent() == "$1.00"
        said = []
        for _ in bars(range(10), "judging", 10):
            workspace.judges.spend.dollars += 0.5
            said.append(lines.spent())
        assert said[:2] == ["$1.50", "$2.00, ≈ $11.00 at the end of this stage"]
        assert said[5] == "$4.00, ≈ $7.00 at the end of this stage"
        assert lines.spent() == "$6.00"
        bars.end()
