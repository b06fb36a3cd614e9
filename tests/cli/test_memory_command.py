"""`afarm memory`: what fits a card by arithmetic, and what to change where it does not."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from afarm.cli import make_app


def rows(*arguments: str) -> dict[str, dict[str, object]]:
    result = CliRunner().invoke(make_app(), ["memory", "--json", *arguments])
    assert result.exit_code == 0, result.output
    return {row["stage"]: row for row in json.loads(result.stdout)}


@pytest.mark.parametrize("method", ["ppo", "dpo", "quark"])
def test_the_papers_recipe_fits_eight_cards_and_with_adapters_one(method: str) -> None:
    for options in (("--recipe", "paper", "--gpus", "8"), ("--recipe", "paper-lora")):
        assert [row["stage"] for row in rows(*options, "--method", method).values() if not row["fits"]] == []


def test_a_stage_that_does_not_fit_says_what_to_change() -> None:
    found = rows("--recipe", "paper")
    assert not found["sft"]["fits"]
    assert "sft.lora" in str(found["sft"]["change"])
    assert found["sft"]["total"] == pytest.approx(137.5e9, rel=0.02)
    crowded = rows("--recipe", "paper-lora", "--set", "sample.per_device_batch_size=1024")["sample"]
    assert "lower sample.per_device_batch_size" in str(crowded["change"])
