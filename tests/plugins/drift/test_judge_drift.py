"""Judge drift: stored labels are asked about anew, and a shift is told from the judge's own noise."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from light_farm import light_workspace
from light_plugin import CountingJudge

from afarm.core.errors import BudgetError, DataError
from afarm.core.judge import ChatRequest, Completion
from afarm.core.records import Instruction, JudgedPair, Output, Pair, Preference
from afarm.evaluation.drift_log import latest_shift, read_drift_log
from afarm.experiment.comparison.outputs import OutputComparison
from afarm.experiment.workspace import Workspace
from afarm.judging import render
from afarm.storage.rows import read_preferences, write_rows
from afarm_plugins.drift import drift
from afarm_plugins.drift.drift import exchange_test, plan_probe, probe, require_same_judge, stored_labels

COUNT = 30


@pytest.fixture
def workspace(tmp_path: Path) -> Iterator[Workspace]:
    with light_workspace(tmp_path) as made:
        yield made


@pytest.fixture
def labels(workspace: Workspace) -> Path:
    """What the light judge, which prefers more words, said of 30 pairs."""
    tasks = [Instruction(f"task {i}") for i in range(COUNT)]
    mine = [Output(task, " ".join(["word"] * (2 + i % 3)), "mine") for i, task in enumerate(tasks)]
    theirs = [Output(task, "word" if i % 4 else "word " * 9, "theirs") for i, task in enumerate(tasks)]
    CountingJudge.asked = 0
    return OutputComparison.of(workspace, mine, theirs, "chatgpt_1").run().artifact.path / "judgements.jsonl"


async def _prefers_fewer(self: CountingJudge, request: ChatRequest) -> Completion:
    verdicts = [len(c.first.split()) <= len(c.second.split()) for c in request.comparisons]
    return Completion(render(verdicts, request.answer_format), 100, 10, price=0.001)


def test_a_judge_that_answers_as_before_has_not_shifted(workspace: Workspace, labels: Path) -> None:
    before = CountingJudge.asked
    found = probe(workspace, labels, None, 100, "one")
    assert not found.shifted
    assert (found.annotator, found.pairs, found.disagreement, found.noise) == ("chatgpt_1", COUNT, 0.0, 0.0)
    assert found.judges == {"*": "counting:"}
    assert CountingJudge.asked - before == 2 * COUNT, "the ledger knows the answers, and is not asked"
    assert latest_shift(workspace.store.root, found.judges) == ""


def test_the_same_probe_buys_nothing_twice_and_another_asks_anew(workspace: Workspace, labels: Path) -> None:
    first = probe(workspace, labels, "chatgpt_1", 100, "one")
    before = CountingJudge.asked
    assert probe(workspace, labels, "chatgpt_1", 100, "one") == first
    assert CountingJudge.asked == before
    assert len(read_drift_log(workspace.store.root)) == 1
    probe(workspace, labels, "chatgpt_1", 25, "two")
    assert CountingJudge.asked - before == 2 * 25
    assert [row["epoch"] for row in read_drift_log(workspace.store.root)] == ["one", "two"]


def test_a_judge_that_has_changed_its_mind_has_shifted(
    workspace: Workspace, labels: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(CountingJudge, "complete", _prefers_fewer)
    found = probe(workspace, labels, None, 100, "2026-11-21")
    assert found.shifted
    assert found.disagreement == 100.0
    assert found.noise == 0.0
    assert found.win_rate_now == pytest.approx(100 - found.win_rate_before)
    assert latest_shift(workspace.store.root, found.judges) == "2026-11-21"
    assert latest_shift(workspace.store.root, {"light": "counting:"}) == "2026-11-21", "it is the same judge"
    assert latest_shift(workspace.store.root, {"light": "counting:other"}) == ""


def test_it_is_metered(tmp_path: Path, workspace: Workspace, labels: Path) -> None:
    _, plan = plan_probe(workspace, labels, None, 100, "one")
    assert (plan.calls, plan.most_dollars) == (2 * COUNT, pytest.approx(2 * COUNT * 0.001))
    with light_workspace(tmp_path, budget=0.010) as poor, pytest.raises(BudgetError):
        probe(poor, labels, None, 100, "one")
    assert read_drift_log(workspace.store.root) == []
    before = CountingJudge.asked
    probe(workspace, labels, None, 100, "one")
    assert CountingJudge.asked - before <= 2 * COUNT - 9, "what was paid for is not paid again"


def test_another_judge_is_no_drift(workspace: Workspace, labels: Path) -> None:
    rows = read_preferences(labels)
    with pytest.raises(DataError, match=r"those of counting:, and openai:x would be asked.*--judge"):
        require_same_judge(rows, {"*": "openai:x"}, labels)


def test_labels_that_no_judge_gave_tell_nothing(tmp_path: Path) -> None:
    def row(i: int, source: str, outcome: str = "decided", annotator: str = "a") -> JudgedPair:
        pair = Pair(Instruction(f"task {i}"), "one", "two")
        p2 = 1.0 if outcome == "decided" else None
        return JudgedPair(pair, Preference(pair.id, p2, outcome, source), annotator)  # type: ignore[arg-type]

    good = [row(i, "judge") for i in range(25)]
    others = [row(40, "noise"), row(41, "human"), row(42, "judge", "unparsed"), row(0, "judge"), row(1, "rule")]
    write_rows(tmp_path / "labels.jsonl", (r.to_row() for r in good + others))
    name, found = stored_labels(tmp_path / "labels.jsonl", None, 100)
    assert name == "a"
    assert len(found) == 25
    _, some = stored_labels(tmp_path / "labels.jsonl", "a", 22)
    assert some == found[:22], "fewer pairs are some of the same"
    write_rows(tmp_path / "two.jsonl", (r.to_row() for r in [*good, row(50, "judge", annotator="b")]))
    with pytest.raises(DataError, match=r"labels of a, b: name the annotator.*--annotator"):
        stored_labels(tmp_path / "two.jsonl", None, 100)
    with pytest.raises(DataError, match=r"1 labels of 'b'.*too few"):
        stored_labels(tmp_path / "two.jsonl", "b", 100)


def test_exchanging_the_labels_of_a_pair_gives_the_p_value() -> None:
    """Of k pairs whose old label alone is another one, each could as well have had another odd one out: 3^-k."""
    triples, p, _ = exchange_test([0.0] * 3 + [1.0] * 9, ([1.0] * 12, [1.0] * 12))
    assert len(triples) == 12
    assert p == pytest.approx(1 / 27, abs=0.01)
    assert exchange_test([1.0] * 9, ([1.0] * 9, [1.0] * 9))[1:] == (1.0, 1.0)


def test_unread_answers_are_left_out() -> None:
    triples, _, _ = exchange_test([None, 1.0, 0.5], ([1.0, None, 0.0], [1.0, 1.0, 0.5]))
    assert triples == [(0.5, 0.0, 0.5)]


def labels_of(chances: list[float], draw: random.Random) -> list[float | None]:
    return [float(draw.random() < chance) for chance in chances]


def test_a_noisy_judge_that_has_not_changed_is_hardly_ever_said_to_have(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drift, "PERMUTATIONS", 199)
    draw = random.Random(1)
    said = 0
    for repeat in range(400):
        chances = [draw.random() for _ in range(40)]
        old, *new = (labels_of(chances, draw) for _ in range(3))
        _, p_disagreement, p_win_rate = exchange_test(old, new, repeat)
        said += 2 * min(p_disagreement, p_win_rate) <= 0.1
    assert said / 400 <= 0.1 + 3 * (0.1 * 0.9 / 400) ** 0.5


def test_a_shift_within_the_noise_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A judge at 80% for the better output that falls to 50% on 100 pairs."""
    monkeypatch.setattr(drift, "PERMUTATIONS", 999)
    draw = random.Random(2)
    old = labels_of([0.8] * 100, draw)
    new = [labels_of([0.5] * 100, draw) for _ in range(2)]
    _, _, p_win_rate = exchange_test(old, new)
    assert p_win_rate < 0.005
