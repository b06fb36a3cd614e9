"""Regressions: figures by hand, a planted one, runs that do not belong together, the command."""

from __future__ import annotations

import json
from math import comb
from pathlib import Path
from statistics import fmean

import pytest
from afarm_neighbours.regressions import (
    OTHERS,
    find_regressions,
    read_categories,
    sign_test,
    tally,
    with_rates,
    write_section,
)

from afarm import DataError, Instruction, JudgedPair, Pair, Preference, standard_error, write_rows
from afarm.results import StoredRun, win_rate_interval

Fate = tuple[str, str, float | None]
"""An instruction's text, its data set, and the probability that the system's output is better (None: a draw)."""

PLANTED: list[Fate] = [
    *((f"Write poem {n}", "poems", 1.0 if n < 80 else 0.0) for n in range(100)),  # won
    *((f"Add sum {n}", "sums", 1.0 if n < 10 else 0.0) for n in range(40)),  # lost
    *((f"Name tree {n}", "names", [1.0, 0.0, None][n % 3]) for n in range(30)),  # even
    *((f"Say {n}", f"rare {n}", 1.0) for n in range(4)),
]


def store(output_dir: Path, seed: int, fates: list[Fate], **config: object) -> StoredRun:
    """Write a run with these judgements."""
    directory = output_dir / "runs" / f"mine-{seed}"
    directory.mkdir(parents=True)
    record = {"name": directory.name, "seed": seed, "judged_by": "a judge", "results": [], "stages": []}
    (directory / "run.json").write_text(json.dumps({**record, "config": {"seed": seed, **config}}))
    rows = []
    for text, dataset, p2 in fates:
        pair = Pair(Instruction(text, dataset=dataset), "old <b>", "new", generator_1="sft", generator_2="mine")
        label = Preference(pair.id, p2, "draw" if p2 is None else "decided")
        rows.append(JudgedPair(pair, label, "pool").to_row())
    write_rows(directory / "outputs.jsonl", rows)
    return StoredRun(directory)


def test_tests_and_rates_are_those_worked_by_hand() -> None:
    assert sign_test(3, 1) == pytest.approx(5 / 16)
    assert sign_test(0, 0) == sign_test(0, 7) == pytest.approx(1)
    assert sign_test(600, 400) == pytest.approx(sum(comb(1000, k) for k in range(600, 1001)) / 2**1000, rel=1e-6)
    whole = tally("all", [1.0] * 7 + [0.0] * 2 + [0.5])
    assert (whole.count, whole.won, whole.lost, whole.win_rate) == (10, 7, 2, 75)
    assert (whole.low, whole.high) == pytest.approx((44.22, 91.90), abs=0.01)  # Wilson: 7.5 of 10
    fifth = [tally(f"{lost}", [0.0] * lost + [1.0]) for lost in (9, 6, 5, 2)]  # p: 11/1024, 8/128, 7/64, 4/8
    q = {each.name: each.q for each in with_rates(fifth)}
    assert q == pytest.approx({"9": 44 / 1024, "6": 16 / 128, "5": 4 / 3 * 7 / 64, "2": 0.5})
    assert [each.name for each in with_rates(fifth) if each.is_regression] == ["9"]
    close = with_rates([tally(f"{lost}", [0.0] * lost + [1.0]) for lost in (9, 8)])  # p: 11/1024, 10/512
    assert [each.q for each in close] == pytest.approx([10 / 512] * 2)  # never above that of a higher p


def test_a_category_that_got_worse_is_found_though_the_mean_rose(tmp_path: Path) -> None:
    found = find_regressions([store(tmp_path, 1, PLANTED)])
    p2s = [100 * (0.5 if p2 is None else p2) for *_, p2 in PLANTED]
    figures = {"win_rate": fmean(p2s), "standard_error": standard_error(p2s), "n_instructions": len(p2s)}
    assert (found.whole.low, found.whole.high) == pytest.approx(win_rate_interval(figures))  # as the run shows it
    assert found.whole.low > 50
    assert [each.name for each in found.categories if each.is_regression] == ["sums"]
    assert {each.name: each.count for each in found.categories} == {"poems": 100, "sums": 40, "names": 30, OTHERS: 4}
    assert {one.category for one in found.lost[:30]} == {"sums"}  # the worst category first
    assert len(found.lost) == 20 + 30 + 10
    said = " ".join(found.sentences())
    assert "rose" in said
    assert "worse in sums, at a false discovery rate of 5%" in said
    assert "no evidence about it alone" in said
    assert not any(one.tally.is_regression for one in found.lost)


def test_several_runs_tell_which_instructions_are_lost(tmp_path: Path) -> None:
    noisy = [[("a", "", 0.0), *((f"b{n}", "", float((n + seed) % 2)) for n in range(6))] for seed in range(8)]
    found = find_regressions([store(tmp_path, seed, fates) for seed, fates in enumerate(noisy)])
    [lost] = found.lost
    assert (lost.instruction.instruction, lost.tally.lost, lost.tally.p) == ("a", 8, pytest.approx(1 / 256))
    assert lost.tally.q == pytest.approx(7 / 256)
    assert "1 instructions are lost at a false discovery rate of 5% among 7" in found.sentences()[-1]


def test_runs_that_do_not_belong_together_are_refused(tmp_path: Path) -> None:
    one, other = store(tmp_path, 1, PLANTED, dpo={"beta": 0.1}), store(tmp_path, 2, PLANTED, dpo={"beta": 0.2})
    with pytest.raises(DataError, match=r"differ in more than their seeds: dpo.beta: 0.1 → 0.2"):
        find_regressions([one, other])
    with pytest.raises(DataError, match="are of one seed"):
        find_regressions([one, one])
    with pytest.raises(DataError, match="and hold nothing judged"):
        find_regressions([store(tmp_path, 3, [])])


def test_categories_can_be_first_words_or_those_of_a_file(tmp_path: Path) -> None:
    alike = [(text, "one", p2) for text, _, p2 in PLANTED]
    run = store(tmp_path, 1, alike)
    assert {each.name for each in find_regressions([run]).categories} == {"write", "add", "name", OTHERS}
    rows = [{"prompt": text, "category": "sums" if text.startswith("Add") else "rest"} for text, _, _ in alike[:-4]]
    write_rows(tmp_path / "mine.jsonl", rows)
    found = find_regressions([run], read_categories(str(tmp_path / "mine.jsonl")))
    assert {each.name: each.count for each in found.categories} == {"sums": 40, "rest": 130, OTHERS: 4}
    write_rows(tmp_path / "others.jsonl", [{"prompt": "no such task", "category": "x"}])
    with pytest.raises(DataError, match="none of the 174 instructions of the runs is in the file of categories"):
        find_regressions([run], read_categories(str(tmp_path / "others.jsonl")))
    write_rows(tmp_path / "without.jsonl", [{"prompt": "Add", "kind": "sums"}])
    with pytest.raises(DataError, match="has no column 'category'"):
        read_categories(str(tmp_path / "without.jsonl"))


def test_the_report_has_a_section(tmp_path: Path) -> None:
    run = store(tmp_path, 1, PLANTED)
    html = write_section(run.record)
    assert "<td>sums</td><td>40</td><td>10</td><td>30</td>" in html
    assert "old &lt;b&gt;" in html
    assert write_section(store(tmp_path, 9, []).record) == ""
