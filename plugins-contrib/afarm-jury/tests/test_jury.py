"""`jury:FILE.yaml`: weights worked by hand, questions spared, failing jurors, files, a run."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from afarm_jury.jury import Jury
from afarm_jury.section import tally_votes
from afarm_jury.weights import expect_open, is_open, learn_weights

from afarm import (
    BudgetError,
    BuildContext,
    ChatRequest,
    Completion,
    ConfigError,
    JudgedPair,
    JudgeError,
    Pair,
    Preference,
    ShownPair,
)
from afarm.cli import main
from afarm.judging import ParsedVerdict, PromptAnnotator, render
from afarm.testing import FakeJudgeClient, annotate_context, check_annotator, make_instructions, make_pairs

# ------------------------------------------------------------------------------------------------------------- weights


def test_weights_from_labels_are_the_log_odds_of_the_votes_that_were_right() -> None:
    """Right 7 of 8 times with one of each added: 8/10, log 4. Right 2 of 8: 3/10. No votes: 1/2."""
    labels = [1.0, 1.0, 1.0, 1.0, 0.0, 0.0, 0.0, 0.0]
    good, bad, absent = [1, 1, 1, 1, -1, -1, -1, 1], [-1, -1, -1, 1, 1, 1, 1, -1], [0] * 8
    found = learn_weights([good, bad, absent], labels)
    assert found.accuracies == pytest.approx((0.8, 0.3, 0.5))
    assert found.weights == pytest.approx((math.log(4), math.log(3 / 7), 0.0))


def test_a_label_that_people_share_counts_in_parts() -> None:
    """Two thirds of people for output 2, and a vote for it: (2/3 + 1) / 3."""
    assert learn_weights([[1]], [2 / 3]).accuracies == pytest.approx([5 / 9])


@pytest.mark.parametrize("labelled", [1.0, 0.1, 0.0])
def test_planted_accuracies_are_learned_with_labels_with_some_and_from_the_votes_alone(labelled: float) -> None:
    planted, draws = (0.9, 0.8, 0.7, 0.55, 0.3), np.random.default_rng(5)
    truth = draws.choice([-1, 1], 4000)
    votes = [[int(v) for v in np.where(draws.random(4000) < a, truth, -truth)] for a in planted]
    labels = [float(t > 0) if draws.random() < labelled else None for t in truth]
    found = learn_weights(votes, labels)
    assert found.accuracies == pytest.approx(planted, abs=0.03)
    majority = np.sign(np.sum(votes, 0)) == truth
    weighted = np.sign(np.dot(found.weights, votes)) == truth
    assert weighted.mean() > max(majority.mean(), 0.9)


def test_a_majority_is_fixed_when_no_later_vote_can_turn_or_even_it() -> None:
    assert is_open(2.0, [1.0, 1.0])  # a draw is another verdict
    assert not is_open(2.1, [1.0, -1.0])
    assert is_open(0.0, [0.1])
    assert not is_open(0.0, [0.0])


def test_the_share_of_open_pairs_is_that_of_all_ways_to_vote() -> None:
    weights, accuracies = (1.0, 2.0, 1.5, 0.5), (0.6, 0.7, 0.8, 0.9)
    ways = list(product((1, 0), repeat=4))

    def chance(way: Sequence[int]) -> float:
        return math.prod(a if right else 1 - a for a, right in zip(accuracies, way, strict=True))

    def reaches(way: Sequence[int], n: int) -> bool:
        scores = [sum(w * (2 * v - 1) for w, v in zip(weights[:k], way[:k], strict=True)) for k in range(n + 1)]
        return all(is_open(score, weights[k:]) for k, score in enumerate(scores))

    expected = [sum(chance(way) for way in ways if reaches(way, n)) for n in range(4)]
    assert expect_open(weights, accuracies) == pytest.approx(expected)
    assert expected[:2] == pytest.approx([1, 1])
    assert expected[3] < expected[2] < 1


# -------------------------------------------------------------------------------------------------------------- asking


class Asking(PromptAnnotator):
    """A juror with a name."""

    answer_format = "single"
    max_tokens = 5

    def __init__(self, name: str):
        super().__init__()
        self.name = name

    def render(self, pairs: Sequence[ShownPair]) -> str:
        return f"{self.name}: {pairs[0].instruction.instruction} (a) {pairs[0].first} (b) {pairs[0].second}"

    def read(self, text: str, count: int) -> Sequence[ParsedVerdict]:
        return [{"Output (a)": 1.0, "Output (b)": 0.0}.get(text)]


class Priced(FakeJudgeClient):
    """Asks at a price by role, and fails where it is told to."""

    def __init__(
        self, prices: dict[str, float | None] | None = None, fails: Callable[[ChatRequest], Any] | None = None
    ):
        super().__init__()
        self.prices, self.fails = prices or {}, fails or (lambda request: None)

    def worst_case_price(self, request: ChatRequest) -> float | None:
        return self.prices.get(request.role, 0.0)

    def stream(self, requests: Iterable[ChatRequest]) -> Generator[tuple[int, Completion], None, None]:
        """Answer one after the other, as a real one does: what came before a failure was received."""
        for index, request in enumerate(requests):
            yield index, self._complete(request)

    def _complete(self, request: ChatRequest) -> Completion:
        if error := self.fails(request):
            raise error
        return super()._complete(request)


CONTEXT = BuildContext(lambda name: None, annotator=lambda name: (Asking(name), name))  # type: ignore[arg-type, return-value]


def make_jury(directory: Path, text: str) -> Jury:
    path = directory / "jury.yaml"
    path.write_text(text)
    return Jury(None, str(path), CONTEXT)


FIVE = "jurors:\n" + "".join(f"  j{n}: {{annotator: a{n}, judge: 'fake:{n}', weight: {n}}}\n" for n in range(1, 6))
PAIRS = make_pairs(make_instructions(60))


def ask(jury: Jury, client: Any, pairs: Sequence[Pair] = PAIRS) -> list[Preference]:
    return jury.annotate(pairs, annotate_context(3, client))


@pytest.mark.parametrize("weights", [(1, 2, 3, 4, 5), (2, 1, 2, 1, 2), (1, 1, 1, 1, 1)])
def test_verdicts_are_those_of_all_jurors_and_fewer_are_asked(tmp_path: Path, weights: Sequence[int]) -> None:
    jurors = "".join(f"  j{n}: {{annotator: a{n}, weight: {weight}}}\n" for n, weight in enumerate(weights))
    few, all_of_them = Priced(), Priced()
    stopped = ask(make_jury(tmp_path, f"jurors:\n{jurors}"), few)
    whole = ask(make_jury(tmp_path, f"jurors:\n{jurors}ask_all: true\n"), all_of_them)
    assert [(p.p2, p.outcome) for p in stopped] == [(p.p2, p.outcome) for p in whole]
    assert len(all_of_them.sent) == 5 * len(PAIRS) > len(few.sent) == sum(len(p.votes) for p in stopped)
    for one, other in zip(stopped, whole, strict=True):
        assert set(one.votes) <= set(other.votes)
        score = sum(weights[int(name[1])] * (2 * win - 1) for name, win in other.votes if win is not None)
        assert other.win == (0.5 if score == 0 else float(score > 0))


def test_the_cheapest_is_asked_first_and_unknown_prices_last(tmp_path: Path) -> None:
    client = Priced({"fake:1": None, "fake:2": 0.3, "fake:3": 0.1, "fake:4": 0.2, "fake:5": 0.1})
    [label] = ask(make_jury(tmp_path, f"{FIVE}ask_all: true\n"), client, PAIRS[:1])
    assert [name for name, _ in label.votes] == ["j5", "j3", "j4", "j2", "j1"]
    assert {(request.role, request.annotator) for request in client.sent} == {
        (f"fake:{n}", f"j{n}") for n in range(1, 6)
    }


def test_a_jury_conforms_and_plans_what_it_asks(tmp_path: Path) -> None:
    check_annotator(make_jury(tmp_path, f"{FIVE}ask_all: true\n"))


def test_a_plan_says_the_most_and_how_likely_each_question_is(tmp_path: Path) -> None:
    jury, client = make_jury(tmp_path, FIVE.replace("weight: ", "weight: 1  # ").replace("}", "\n    }")), Priced()
    planned = jury.plan(PAIRS, annotate_context(3, client))
    assert len(planned) == 5 * len(PAIRS)
    assert not client.sent
    likely = {request.role: request.likelihood for request in planned}
    # Three of five: the fourth is asked unless three agree, the fifth at two to two.
    assert [likely[f"fake:{n}"] for n in range(1, 6)] == pytest.approx(
        [1, 1, 1, 1 - 0.4375, 6 * 0.75**2 * 0.25**2], abs=1e-4
    )
    ask(jury, client)
    assert jury.plan(PAIRS, annotate_context(3, client)) == []


def test_weights_are_learned_from_labels_once_and_a_wrong_juror_counts_against(tmp_path: Path) -> None:
    pairs = make_pairs(make_instructions(40), [f"out {n}" for n in range(80)])
    client = FakeJudgeClient(lambda request: render([request.annotator != "liar"], "single"))
    # The judge's first is always "better": label the pairs as an honest juror does that is shown them so.
    honest = [Asking("true").annotate(pairs, annotate_context(0, client))[n].p2 for n in range(len(pairs))]
    rows = [JudgedPair(pair, Preference(pair.id, p2)).to_row() for pair, p2 in zip(pairs, honest, strict=True)]
    (tmp_path / "labels.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    jury = make_jury(tmp_path, "jurors: {honest: a, liar: b}\nlearn: labels.jsonl\n")
    planned = jury.plan(PAIRS, annotate_context(3, client))
    sent, learned = len(client.sent), len(jury.labelled)
    labels = ask(jury, client)
    assert len(client.sent) - sent == 2 * learned + sum(len(p.votes) for p in labels)
    assert len(planned) == 2 * learned + 2 * len(PAIRS)
    weights = {seat.name: seat.weight for seat in jury._learned}
    assert weights["honest"] == pytest.approx(-weights["liar"]) == pytest.approx(math.log(learned + 1))
    sent = len(client.sent)
    again = make_jury(tmp_path, "jurors: {honest: a, liar: b}\nlearn: labels.jsonl\n")
    assert ask(again, client) == labels
    assert len(client.sent) == sent
    assert again.identity == jury.identity
    turned = make_jury(tmp_path, "jurors: {honest: a, liar: b}\nlearn: labels.jsonl\n")
    for order in ("12", "21"):  # weights are learned as ever: only the pairs are shown in this order
        turned.annotate(PAIRS, replace(annotate_context(3, client), order=order))
    assert {request.comparisons[0].pair_id for request in client.sent[sent:]} <= {pair.id for pair in PAIRS}
    assert {seat.name: seat.weight for seat in turned._learned} == weights
    with (tmp_path / "labels.jsonl").open("a") as file:
        file.write(json.dumps(JudgedPair(PAIRS[0], Preference(PAIRS[0].id, 1.0)).to_row()) + "\n")
    assert make_jury(tmp_path, "jurors: {honest: a, liar: b}\nlearn: labels.jsonl\n").identity != jury.identity


# ----------------------------------------------------------------------------------------------------- jurors that fail


@pytest.mark.parametrize("error", [JudgeError("no answer was received"), BudgetError("the budget is spent")])
def test_a_juror_that_fails_stops_the_run_or_abstains(tmp_path: Path, error: Exception) -> None:
    begun = []

    def fails(request: ChatRequest) -> Exception | None:
        begun.append(request.role)
        return error if request.role == "fake:2" and begun.count("fake:2") > 4 else None

    with pytest.raises(type(error), match=r"juror j2 of .*on_failure: abstain"):
        ask(make_jury(tmp_path, FIVE), Priced(fails=fails))
    begun.clear()
    client = Priced(fails=fails)
    labels = ask(make_jury(tmp_path, f"{FIVE}ask_all: true\non_failure: abstain\n"), client)
    abstained = [dict(label.votes)["j2"] is None for label in labels]
    assert any(abstained)
    assert all(len(label.votes) == 5 and label.win is not None for label in labels)
    bought = sum(request.role == "fake:2" for request in client.sent)
    assert abstained.count(False) == bought  # what it had answered counts
    client.fails = lambda request: None
    whole = ask(make_jury(tmp_path, f"{FIVE}ask_all: true\n"), client)  # a larger budget goes on from there
    assert len(client.sent) == 5 * len(PAIRS)
    assert whole == ask(make_jury(tmp_path, f"{FIVE}ask_all: true\n"), Priced())


def test_a_juror_that_cannot_be_read_abstains_or_stops_the_run(tmp_path: Path) -> None:
    def answer(request: ChatRequest) -> str:
        return "Well." if request.annotator == "j5" else "Output (a)"

    [label] = ask(make_jury(tmp_path, FIVE), FakeJudgeClient(answer), PAIRS[:1])
    assert label.votes[0] == ("j5", None)
    assert label.outcome == "decided"
    with pytest.raises(JudgeError, match=r"juror j5 of .* has no verdict on 1 of 1 pairs \(unparsed\).*on_unread"):
        ask(make_jury(tmp_path, f"{FIVE}on_unread: stop\n"), FakeJudgeClient(answer), PAIRS[:1])


# ---------------------------------------------------------------------------------------------------------- wrong files


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("- a\n", "must be a mapping of jurors"),
        ("jurors: [", "is no valid YAML"),
        ("jurors: {a: x}\n", "jurors"),
        ("juror: {a: x, b: y}\njurors: {a: x, b: y}\n", "Did you mean 'jurors'?"),
        ("jurors: {a: {judge: x}, b: y}\n", "jurors.a.annotator"),
        ("jurors: {a: x, b: {annotator: x}}\n", "b asks just what a asks"),
        ("jurors: {a: x, b: 'jury:other.yaml'}\n", "b is a jury itself"),
        ("jurors: {a: x, b: {annotator: y, weight: 0}}\n", "jurors.b.weight"),
        ("jurors: {a: x, b: y}\non_failure: ignore\n", "on_failure"),
    ],
)
def test_a_wrong_file_is_said_with_its_place(tmp_path: Path, text: str, problem: str) -> None:
    with pytest.raises(ConfigError) as raised:
        make_jury(tmp_path, text)
    assert problem in str(raised.value)
    assert "jury.yaml" in str(raised.value)


def test_labels_without_a_better_output_teach_nothing(tmp_path: Path) -> None:
    row = JudgedPair(PAIRS[0], Preference(PAIRS[0].id, None, "draw")).to_row()
    (tmp_path / "labels.jsonl").write_text(json.dumps(row) + "\n")
    with pytest.raises(ConfigError, match="no pair with a better output"):
        make_jury(tmp_path, "jurors: {a: x, b: y}\nlearn: labels.jsonl\n")


# --------------------------------------------------------------------------------------------------------------- a run


def test_votes_survive_a_file_and_turn_with_their_pair() -> None:
    votes = (("a", 1.0), ("b", None), ("c", 0.5), ("d", 0.25))
    judged = JudgedPair(PAIRS[0], Preference(PAIRS[0].id, 1.0, votes=votes))
    assert JudgedPair.from_row(json.loads(json.dumps(judged.to_row()))) == judged
    assert judged.preference.swapped().votes == (("a", 0.0), ("b", None), ("c", 0.5), ("d", 0.75))
    assert "votes" not in JudgedPair(PAIRS[0], Preference(PAIRS[0].id, 1.0)).to_row()
    for other in ({"a": "yes"}, [1, 2], 3, {"a": True}):  # a column of another tool
        assert JudgedPair.from_row({**judged.to_row(), "votes": other}).preference.votes == ()
    tally = tally_votes([judged, replace(judged, preference=replace(judged.preference, votes=votes[:1]))])
    assert [(name, t.asked, t.abstained, t.decided, t.agreed) for name, t in tally.items()] == [
        *(("a", 2, 0, 2, 2), ("b", 1, 1, 0, 0), ("c", 1, 0, 0, 0), ("d", 1, 0, 1, 0))
    ]


def call(*words: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main([*words])
    return int(ended.value.code or 0)


METERED = """
from pathlib import Path
from afarm import Capabilities, Completion, Judge, Price, hookimpl

class Metered(Judge):
    capabilities = Capabilities(completion=True, logit_bias=True)
    def __init__(self, spec, config, context):
        self.cost = float(spec)
    @property
    def identity(self):
        return f"metered:{self.cost}"
    def price(self):
        return Price(self.cost, self.cost)
    async def complete(self, request):
        with Path("asked.txt").open("a") as file:
            file.write(f"{self.cost} {request.annotator}\\n")
        return Completion("Output (a)", 100, 1, price=self.price().of(100, 1), finish_reason="stop")

@hookimpl
def register_judges(register):
    register("metered", Metered)
"""


def write_systems() -> None:
    for name in ("mine", "theirs"):
        rows = [{"instruction": f"task {n}", "output": f"{name} says {n} " * (1 + n % 3)} for n in range(20)]
        Path(f"{name}.json").write_text(json.dumps(rows))


def test_a_jury_over_budget_names_the_juror_and_goes_on_with_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    write_systems()
    Path("metered.py").write_text(METERED)
    Path("jury.yaml").write_text(
        "jurors:\n  dear: {annotator: chatgpt_4, judge: 'metered:500'}\n"
        "  cheap: {annotator: chatgpt_4, judge: 'metered:5'}\n  free: fitted\n"
    )
    command = ["evaluate", "mine.json", "--reference", "theirs.json", "--annotator", "jury:jury.yaml"]
    command = ["--plugin-file", "metered.py", *command]
    assert call(*command, "--budget", "0.3", "--set", "max_concurrency=1") == 1
    said = " ".join(capsys.readouterr().err.split())
    assert "juror dear of jury.yaml" in said
    assert "on_failure: abstain goes on without it" in said
    before = Path("asked.txt").read_text().splitlines()
    assert before.count("5.0 cheap") == 20
    assert before[:20] == before[:1] * 20  # the cheapest first
    assert call(*command, "--budget", "100", "--price", "metered:5=5/5", "--json") == 0
    record = json.loads(capsys.readouterr().out)
    asked = Path("asked.txt").read_text().splitlines()
    rows = [json.loads(line) for line in next(Path("afarm-runs").rglob("outputs.jsonl")).read_text().splitlines()]
    assert len(asked) == 20 + sum("dear" in row["votes"] for row in rows) < 40  # nothing is bought twice
    assert {one["identity"] for one in record["judges"]} == {"metered:5.0", "metered:500.0"}
    report = next(Path("afarm-runs").rglob("report.html")).read_text()
    assert "<td>cheap</td><td>20</td><td>0</td>" in report
    assert f"<td>${20 * 101 * 5 / 1e6:,.4f}</td>" in report


def test_a_jury_judges_outputs_and_its_judges_stand_in_its_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    write_systems()
    Path("jury.yaml").write_text(
        "jurors:\n  alice: {annotator: chatgpt_4, judge: offline}\n"
        "  bob: {annotator: chatgpt_2, judge: offline}\n  carol: fitted\n"
    )
    command = ["evaluate", "mine.json", "--reference", "theirs.json", "--annotator", "jury:jury.yaml"]
    assert call(*command, "--dry-run", "--json") == 0
    [judge] = json.loads(capsys.readouterr().out)["judges"]
    assert judge["judge"].startswith("offline")
    assert judge["most_calls"] == 40
    assert judge["calls"] == 28
    assert call(*command, "--json") == 0
    record = json.loads(capsys.readouterr().out)
    assert [one["role"] for one in record["judges"]] == ["offline"]
    assert record["judged_by"] == "jury:jury.yaml"
    assert call("leaderboard") == 0
    assert "judged by the formula offline:text_utility with annotator jury:jury.yaml" in capsys.readouterr().out
    rows = [json.loads(line) for line in next(Path("afarm-runs").rglob("outputs.jsonl")).read_text().splitlines()]
    assert all(next(iter(row["votes"])) == "carol" and 2 <= len(row["votes"]) <= 3 for row in rows)
    assert (
        "votes were not asked for, since the majority was fixed"
        in next(Path("afarm-runs").rglob("report.html")).read_text()
    )
    Path("jury.yaml").write_text("jurors: {alice: chatgpt_4, carol: chatgpt_44}\n")
    assert call(*command) == 1
    assert "jury.yaml: carol: unknown annotator 'chatgpt_44'" in capsys.readouterr().err.replace("\n", " ")
