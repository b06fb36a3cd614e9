"""The recipes `toy` and `smol` hold the settings that the pages of their trials call chosen."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
TUNED = {
    "toy": ["ppo", "dpo", "expert_iteration", "quark", "feedme", "reward_conditioning"],
    "smol": ["ppo", "dpo", "expert_iteration", "quark"],
}
DIGITS = {"toy": 3, "smol": 2}
"""The digits that a recipe's numbers share with the page's, which have three."""


def chosen_rows(page: str) -> Iterator[tuple[str, dict[str, float]]]:
    """Yield the method and the settings of each row that is marked as chosen."""
    for section in re.split(r"^## ", page, flags=re.MULTILINE)[1:]:
        names: list[str] = []
        for line in section.splitlines():
            cells = [cell.strip() for cell in line.strip("|").split("|")]
            if cells[0] == "trial":
                names = cells[1 : cells.index("win rate, %")]
            elif cells[0].endswith("(chosen)"):
                yield section.split()[0], dict(zip(names, map(float, cells[1:]), strict=False))


@pytest.mark.parametrize("recipe", TUNED)
def test_the_recipe_holds_what_its_trials_chose(recipe: str) -> None:
    rows = list(chosen_rows((ROOT / "docs" / "notes" / f"{recipe}-trials.md").read_text(encoding="utf-8")))
    held: dict[str, Any] = yaml.safe_load((ROOT / "afarm" / "recipes" / f"{recipe}.yaml").read_text(encoding="utf-8"))
    assert list(dict.fromkeys(method for method, _ in rows)) == TUNED[recipe]

    def rounded(settings: dict[str, float]) -> dict[str, float]:
        return {name: float(f"{value:.{DIGITS[recipe]}g}") for name, value in settings.items()}

    for method, settings in rows:
        assert "learning_rate" in settings
        assert rounded({name: held[method][name] for name in settings}) == rounded(settings), method
