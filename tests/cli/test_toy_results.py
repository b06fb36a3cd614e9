"""`benchmarks.toy_results`: the parts of its page that are read off studies, from stored runs."""

from __future__ import annotations

import json
import re
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
from places import DOCS
from said import Afarm

from benchmarks import method_board, toy_results, toy_studies

PAGE = DOCS / "notes" / "toy-results.md"


def test_each_part_lies_once_on_the_page_between_its_marks() -> None:
    text = PAGE.read_text()
    for name in toy_results.PARTS:
        assert (text.count(f"<!-- {name} -->\n"), text.count(f"<!-- /{name} -->")) == (1, 1), name
    assert len(re.findall(r"^<!-- \S+ -->$", text, re.MULTILINE)) == 2 * len(toy_results.PARTS)


def test_the_methods_of_packages_have_the_board_on_their_pages() -> None:
    for page in method_board.PAGES:
        text = (DOCS.parent / page).read_text()
        assert (text.count("<!-- board -->\n"), text.count("<!-- /board -->\n")) == (1, 1), page
        lines = text.partition("<!-- board -->\n")[2].partition("<!-- /board -->")[0]
        assert {line.split("`")[1] for line in lines.splitlines() if line.startswith("| `")} == {*method_board.METHODS}


def test_best_of_n_is_tabled_from_the_studys_own_runs(
    afarm: Afarm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def in_this_process(arguments: list[str], seeds: tuple[int, ...], output_dir: Path) -> Any:
        given = ("--seeds", ",".join(map(str, seeds)), "--output-dir", str(output_dir), "--json")
        said = afarm("study", *arguments, *given)
        assert said.code == 0, said.err
        asked.append(said.json)
        return said.json

    light = {"toy": "light.yaml", "1,4,16,64,256": "1,4", "pool+0.25,pool,greedy_gpt4": "pool"}
    monkeypatch.setattr(toy_studies, "BEST_OF_N", [light.get(word, word) for word in toy_studies.BEST_OF_N])
    monkeypatch.setattr(toy_studies, "run_study", in_this_process)
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- best-of-n -->\nold\n<!-- /best-of-n -->\nafter\n")
    for _ in range(2):  # the second time from stored runs
        make, _ = toy_results.PARTS["best-of-n"]
        toy_results.write_part(page, "best-of-n", make((1, 2), tmp_path / "out", tmp_path))
    text = page.read_text()
    assert text.startswith("before\n<!-- best-of-n -->\n| n | labels | win rate | reward | characters |\n")
    assert text.endswith("<!-- /best-of-n -->\nafter\n")
    assert asked[0] == asked[1]
    one, four = (
        fmean(run["figures"]["win_rate"] for run in asked[0]["runs"] if run["place"]["reach"] == n) for n in (1, 4)
    )
    assert f"\n| 1 | pool | {one:.1f} (" in text, "two seeds: an interval cut at 100 is not even"
    assert f"\n| 4 | pool | {four:.1f} " in text
    assert "| labels | best n | fall of the win rate from there to 4 | fitted peak, √KL |" in text
    assert "(toy-best-of-n.svg)" in text
    assert "<svg" in (tmp_path / "toy-best-of-n.svg").read_text()


def test_long_ppo_is_tabled_with_standard_errors_over_seeds() -> None:
    runs = [
        {"place": {"labels": "pool", "reach": 20}, "figures": {"win_rate": rate, "gold": -gold, "reward": 1.0}}
        for rate, gold in ((60.0, 0.1), (62.0, 0.3))
    ]
    peaks = [{"labels": "pool", "best reach": 20, "last reach": 200, "fall to it": [-4.0, -9.5, 1.5]}]
    found = {"runs": runs, "tables": {"peaks": peaks}}
    assert toy_studies.step_lines(found)[2] == "| 20 | pool | 61.0 ± 1.0 | −0.20 ± 0.10 | 1.00 ± 0.00 |"
    assert list(toy_studies.fall_lines(found)) == ["- pool: from the peak at 20 to 200, −4.0 (−9.5 to +1.5) points."]


def test_value_models_are_compared_by_seed_over_the_last_steps(tmp_path: Path) -> None:
    runs = []
    for start, rates, explained in (("sft", (61.0, 64.0), 0.5), ("reward_model", (60.0, 65.0), 0.4)):
        for seed, rate in enumerate(rates):
            record = tmp_path / "runs" / f"{start}-{seed}"
            record.mkdir(parents=True)
            values = [-9.0, *[explained] * toy_studies.LAST_STEPS]
            logged = [{"step": step, "val/explained_variance": value} for step, value in enumerate(values)]
            (record / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in [{"loss": 1}, *logged]))
            place = {"ppo.value_init": start}
            runs.append({"place": place, "seed": seed, "record": record.name, "figures": {"win_rate": rate, "gold": 1}})
    lines = toy_studies.value_lines({"runs": runs}, tmp_path)
    assert lines[2:] == [
        "| win rate, points | +0.0 ± 1.0 |",
        "| gold | +0.00 ± 0.00 |",
        "| share of variance explained, from SFT and from the reward model, last ten steps | 0.50 and 0.40 |",
    ]
