"""Commands that compute little do little: counts of the work that looking ahead leaves out."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from said import Afarm

from afarm.evaluation import red_flags
from afarm_plugins.annotators.prompt_library import PoolMember
from afarm_plugins.toy import dataset as toy


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Count the demonstrations and the prompts that are written."""
    for cached in (toy._rows, toy._instructions):  # by other tests of this process
        cached.cache_clear()
    counts: Counter[str] = Counter()
    answer, request = toy.write_answer, PoolMember.request

    def count_answer(*arguments: object) -> str:
        counts["answers"] += 1
        return answer(*arguments)  # type: ignore[arg-type]

    def count_request(self: PoolMember, *arguments: object, **named: object) -> object:
        counts["prompts"] += 1
        return request(self, *arguments, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(toy, "write_answer", count_answer)
    monkeypatch.setattr(PoolMember, "request", count_request)
    return counts


def test_a_wrong_setting_is_told_before_any_answer_of_the_data_is_written(afarm: Afarm, written: Counter[str]) -> None:
    said = afarm("run", "--set", "ppo.learning_rat=1")
    assert said.code == 1
    assert "learning_rate" in said.err
    assert written["answers"] == 0
    assert written["prompts"] <= 100  # 13 members: bound to their judges, and one prompt of each


def test_a_dry_run_writes_no_answers_but_those_that_sft_learns_from(afarm: Afarm, written: Counter[str]) -> None:
    said = afarm("run", "--dry-run", "--json")
    assert written["answers"] == 4000
    asked = sum(stage["calls"] for stage in said.json["stages"])
    assert written["prompts"] <= asked + 150


def test_a_cached_evaluation_searches_no_output_again(
    afarm: Afarm, written: Counter[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name, text in (("mine", "blue {}"), ("theirs", "It is red {}.")):
        rows = [{"instruction": f"Task {n}", "output": text.format(n), "generator": name} for n in range(40)]
        (tmp_path / f"{name}.json").write_text(json.dumps(rows))
    search = red_flags.suspicious

    def count_search(*arguments: object) -> list[red_flags.Match]:
        written["searches"] += 1
        return search(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(red_flags, "suspicious", count_search)
    files = ("evaluate", "mine.json", "--reference", "theirs.json", "--judge", "offline", "--json")
    first = afarm(*files)
    assert written["searches"] == 40
    written.clear()
    again = afarm(*files)
    assert written["searches"] == 0
    assert written["prompts"] <= 100
    assert [row["red_flags"] for row in again.json["results"]] == [row["red_flags"] for row in first.json["results"]]


def test_the_grammar_of_verdicts_is_not_built_unless_an_answer_is_read() -> None:
    probe = "import sys, afarm_plugins.annotators.pool; print([m for m in sys.modules if m.endswith('grammar')])"
    assert subprocess.run([sys.executable, "-c", probe], check=True, capture_output=True, text=True).stdout == "[]\n"
