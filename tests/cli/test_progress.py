"""Progress bars: what a person at a terminal sees, and what a log does."""

import io
import time

from rich.console import Console

from afarm.cli.console import PATIENCE, ProgressBars


def shown_on(terminal: bool, seconds: float) -> str:
    text = io.StringIO()
    bars = ProgressBars(Console(file=text, force_terminal=terminal, width=100))
    bars.begin("train ppo")
    for _ in bars(range(3), "PPO", 3):
        time.sleep(seconds / 2)
    bars.end()
    return text.getvalue()


def test_a_stage_and_its_loop_are_shown_while_they_last() -> None:
    text = shown_on(terminal=True, seconds=PATIENCE * 1.2)
    assert "train ppo" in text
    assert "PPO" in text
    assert "/3" in text


def test_a_short_loop_gets_no_bar() -> None:
    assert "PPO" not in shown_on(terminal=True, seconds=0)


def test_a_log_gets_one_line_a_stage_and_no_bars() -> None:
    assert shown_on(terminal=False, seconds=0) == "… train ppo\n"


def test_every_item_comes_through_in_order() -> None:
    bars = ProgressBars(Console(file=io.StringIO(), force_terminal=True))
    assert list(bars(iter("abc"), "letters")) == ["a", "b", "c"]
