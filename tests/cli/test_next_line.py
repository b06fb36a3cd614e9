"""The line of the result screen that says what to try next."""

from __future__ import annotations

from afarm.cli.run import _next_command


def test_the_next_command_leaves_the_settings_of_the_method_that_ran_out() -> None:
    given = "afarm run --method dpo --set dpo.beta=0.2 --set rows.sft=20 --set=dpo.lora={} --seed 3"
    assert _next_command({"method": "dpo", "command": given}) == "afarm run --method ppo --set rows.sft=20 --seed 3"


def test_the_next_command_is_for_the_screen() -> None:
    given = "afarm run --json --seed 3"
    assert _next_command({"method": "ppo", "command": given}) == "afarm run --seed 3 --method best_of_n"
