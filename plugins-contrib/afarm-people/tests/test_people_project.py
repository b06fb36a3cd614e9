"""The rules of who gets which pair, pairs drawn from runs, when it stops, and who stands out."""

from __future__ import annotations

import random
import sqlite3
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
import typer
from afarm_people import rules
from afarm_people.command import add_commands, name_draw
from afarm_people.draw import DIFFER, SAME, beside, draw_pairs, draw_tasks, focus_on, read_known, read_pairs, read_runs
from afarm_people.organiser import describe_project, tail
from afarm_people.rules import Project
from afarm_people.server import Place
from afarm_people.stopping import decision
from afarm_people.store import CHECK, PAIR, Person, ProjectStore
from label_client import make_project, make_rows, write_pairs

from afarm import DataError, Instruction, JudgedPair, Pair, Preference, StoreError, read_rows


def label_all(project: Project, person: Person, choose: object, most: int = 10**6) -> int:
    """Label until there is no pair; `choose` makes a choice from the response that is shown first."""
    for count in range(most):
        person = project.store.find_person(person.id) or person
        number = project.next_number(person)
        one = project.look(person, number) if number else None
        if one is None:
            return count
        first = one.row["output_1"] if one.shown == "12" else one.row["output_2"]
        project.answer(person, one.number, choose(first), "", one.version, 5.0)  # type: ignore[operator]
    return most


def rightly(first: str) -> int:
    return -2 if "better" in first else 2


def test_every_pair_goes_to_so_many_people_and_to_nobody_twice(tmp_path: Path) -> None:
    project = make_project(tmp_path, count=12, each=2)
    people = [project.enter(name) for name in ("ann", "bo", "cy")]
    given = [label_all(project, person, rightly, most=7) for person in people]  # together 21 of 24
    given[0] += label_all(project, people[0], rightly)
    labels = project.store.labels()
    assert len(labels) == 24
    assert set(Counter(one.pair.id for one in labels).values()) == {2}
    assert len({(one.pair.id, one.person) for one in labels}) == 24
    assert all(one.win == 1.0 for one in labels)
    assert project.summary() == {"pairs": 12, "labels": 24, "done": 12}


def test_a_pair_that_is_left_open_goes_to_others_after_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    project = make_project(tmp_path, count=1, timeout=60.0)
    ann, bo = project.enter("ann"), project.enter("bo")
    assert project.next_number(ann) == 1
    one = project.look(ann, 1)
    assert one
    assert project.next_number(bo) is None
    now = rules.time.time()
    monkeypatch.setattr(rules.time, "time", lambda: now + 61)
    assert project.next_number(bo) == 1
    assert project.look(ann, 1) is None
    with pytest.raises(rules.StaleError, match="went to somebody else"):
        project.answer(ann, 1, 2, "", 0, None)
    project.answer(bo, 1, 2, "", 0, None)
    assert [label.person for label in project.store.labels()] == [bo.id]


def test_a_pair_that_is_skipped_goes_to_others_at_once(tmp_path: Path) -> None:
    project = make_project(tmp_path, count=2)
    ann, bo = project.enter("ann"), project.enter("bo")
    for number in (1, 2):  # who skips all keeps nothing from the others
        assert project.next_number(ann, number - 1) == number
        project.skip(ann, number)
    assert label_all(project, bo, rightly, most=1) == 1
    assert [number for number, _ in project.open_numbers(ann)] == [2]
    assert project.look(ann, 2)  # hers again, as long as she looks at it
    assert label_all(project, bo, rightly) == 0
    project.answer(ann, 2, 1, "", 0, None)
    assert len(project.store.labels()) == 2


def test_a_discarded_persons_pairs_are_open_again(tmp_path: Path) -> None:
    project = make_project(tmp_path, count=4)
    ann, bo = project.enter("ann"), project.enter("bo")
    assert label_all(project, ann, rightly) == 4
    assert label_all(project, bo, rightly) == 0
    project.store.discard(ann, "asked a model")
    assert label_all(project, bo, rightly) == 4


def test_labels_that_another_program_keeps_on_disk_are_not_called_deleted(tmp_path: Path) -> None:
    project = make_project(tmp_path, count=1)
    ann = project.enter("ann")
    label_all(project, ann, rightly)
    other = sqlite3.connect(project.store.path)
    other.execute("BEGIN")
    assert other.execute("SELECT count(*) FROM people").fetchone() == (1,)
    project.store.db.execute("PRAGMA busy_timeout = 10")
    with pytest.raises(StoreError, match="ann is deleted, but another program reads the file"):
        project.store.delete_person(ann)
    assert project.store.people() == []


def test_checks_come_between_and_count_for_nothing(tmp_path: Path) -> None:
    project = make_project(tmp_path, count=9, check_every=3, per_person=8)
    known = [(Pair(Instruction(f"check {n}"), "better", "worse"), {"p2": 0.0}) for n in range(5)]
    project.store.add_pairs(known, CHECK, ordered=True)
    ann = project.enter("ann")
    for count in range(10):  # the count on the page goes on at a check, too
        assert project.progress(ann) == (count, 8 + 2)
        assert label_all(project, ann, lambda first: 1, most=1) == 1
    assert label_all(project, ann, lambda first: 1) == 0
    kinds = [project.store.assignment(ann.id, n).kind for n in range(1, 11)]  # type: ignore[union-attr]
    assert kinds == [*[PAIR] * 3, CHECK, *[PAIR] * 3, CHECK, *[PAIR] * 2]
    assert len(project.store.labels()) == 8


def test_orders_are_drawn_by_seed_and_half_are_turned(tmp_path: Path) -> None:
    project = make_project(tmp_path, count=60)
    label_all(project, project.enter("ann"), rightly)
    orders = Counter(one.shown for one in project.store.labels())
    assert 18 < orders["12"] < 42


def test_a_store_of_other_pairs_is_refused_and_more_pairs_are_added(tmp_path: Path) -> None:
    project = make_project(tmp_path, count=3)
    assert make_project(tmp_path, count=5).store.count_pairs() == 5
    other = read_pairs(str(write_pairs(tmp_path / "other.jsonl", [{**make_rows(1)[0], "instruction": "other"}]))).pairs
    with pytest.raises(DataError, match="is of other pairs: none of these 1 is among its 5"):
        project.store.add_pairs(other)
    (tmp_path / "text.sqlite").write_text("text")
    with pytest.raises(StoreError, match="cannot be opened"):
        ProjectStore(tmp_path / "text.sqlite")


def test_pairs_are_read_with_or_without_labels_and_equal_ones_counted(tmp_path: Path) -> None:
    [row] = make_rows(1)
    rows = [row, {**row, "preference": 2}, {**row, "instruction": "b", "output_2": row["output_1"], "preference": None}]
    read = read_pairs(str(write_pairs(tmp_path / "pairs.jsonl", rows)))
    assert (len(read.pairs), read.identical, read.repeated) == (2, 1, 1)
    with pytest.raises(DataError, match="has none: take it out"):
        read_known(str(write_pairs(tmp_path / "gold.jsonl", [{**row, "preference": 1.5}])), "--gold")
    with pytest.raises(DataError, match="no pair of different outputs"):
        read_pairs(str(write_pairs(tmp_path / "equal.jsonl", rows[2:])))


def serve(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> Project:
    """Run `afarm label` until it would serve; return the project that it would serve."""
    app, served = typer.Typer(), list[Project]()
    add_commands(app)
    app.callback()(lambda: None)

    def begin(project: Project, place: Place, ready: Callable[[str], None]) -> None:
        ready("http://127.0.0.1:1")
        served.append(project)

    monkeypatch.setattr("afarm_people.server.serve", begin)
    app(["label", *arguments], standalone_mode=False)
    return served[0] if served else Project(ProjectStore(Path("pairs.people.sqlite")), rules.Rules())


def test_a_project_keeps_its_rules_until_others_are_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_pairs(tmp_path / "pairs.jsonl", make_rows(3))
    given = ["--people", "ann", "--each", "3", "--pay", "0.25", "--until", "decided", "--no-tie", "--timeout", "5"]
    first = serve(monkeypatch, "pairs.jsonl", *given)
    again = serve(monkeypatch, "pairs.jsonl")
    assert again.rules == first.rules
    assert (again.rules.each, again.rules.pay, again.rules.until_decided) == (3, 0.25, True)
    label_all(again, again.store.people()[0], rightly)
    serve(monkeypatch, "pairs.jsonl", "--export", "labels.jsonl")
    assert [row["price_per_example"] for row in read_rows("labels.jsonl")] == [0.25] * 3
    others = [{**row, "instruction": f"other {n}", "preference": 1} for n, row in enumerate(make_rows(2))]
    write_pairs(tmp_path / "others.jsonl", others)
    with pytest.raises(DataError, match=r"pairs\.people\.sqlite has labels of other pairs than others\.jsonl"):
        serve(monkeypatch, "others.jsonl", "--store", "pairs.people.sqlite", "--export", "new.jsonl")
    write_pairs(tmp_path / "pairs.jsonl", [{**row, "preference": "A"} for row in make_rows(3)])  # no scale of afarm's
    serve(monkeypatch, "pairs.jsonl", "--export", "labels.jsonl")  # over its own labels
    write_pairs(tmp_path / "pairs.jsonl", make_rows(3))
    write_pairs(tmp_path / "pairs.jsonl", make_rows(5))  # a later round's pairs go to other tools as well
    serve(monkeypatch, "pairs.jsonl", "--export", "tasks.json", "--as", "argilla")
    assert len(list(read_rows("tasks.json"))) == 5
    write_pairs(tmp_path / "pairs.jsonl", make_rows(3))
    other = serve(monkeypatch, "pairs.jsonl", "--until", "all", "--each", "1")
    assert (other.rules.each, other.rules.until_decided, other.rules.tie) == (1, False, False)


def test_draws_and_files_of_other_names_have_their_own_store() -> None:
    named = [["a", "b"], ["x/a", "y/b"], ["z/a", "y/b"], ["y/b"], ["/y/b"], ["r" * 90, "s" * 90], ["r" * 90, "t" * 90]]
    assert len({name_draw(runs) for runs in named}) == len(named)
    assert name_draw(["a", "b"]) == "a-b"
    places = {"data.v1.jsonl": "data.v1.x", "data.v2.jsonl.gz": "data.v2.x", "data": "data.x", ".d.json": ".d.x"}
    assert {file: beside(Path(file), ".x").name for file in places} == places


# ----------------------------------------------------------------------------------------------------------- drawing


def judged_systems(count: int, differ: int) -> dict[str, list[JudgedPair]]:
    """Three systems against a reference: a beats b on the instructions where they differ, c loses always."""

    def judge(system: str, number: int, win: float) -> JudgedPair:
        pair = Pair(Instruction(f"task {number}"), "reference", f"{system} {number}", 0, "base", system)
        return JudgedPair(pair, Preference(pair.id, win))

    return {
        "a": [judge("a", n, 1.0) for n in range(count)],
        "b": [judge("b", n, float(n >= differ)) for n in range(count)],
        "c": [judge("c", n, 0.0) for n in range(count)],
    }


def test_pairs_are_drawn_where_finalists_differ_with_known_probabilities() -> None:
    drawn, names = draw_pairs(judged_systems(1000, 200), 2, 200, seed=1)
    assert names == ["a", "b"]
    assert len(drawn) == 200
    tasks = {pair.instruction.id: extra for pair, extra in drawn}
    assert len(tasks) == 100
    by_stratum = Counter(extra["stratum"] for extra in tasks.values())
    assert 60 < by_stratum[DIFFER] < 90  # three of four draws, from a fifth of the instructions
    for extra in tasks.values():
        assert extra["draw_probability"] == {DIFFER: 0.75, SAME: 0.25}[extra["stratum"]]
        assert extra["probability"] == by_stratum[extra["stratum"]] / {DIFFER: 200, SAME: 800}[extra["stratum"]]
    with pytest.raises(DataError, match="systems with labels in these runs: 3"):
        draw_pairs(judged_systems(10, 5), 4, 10, 1)
    unread = [JudgedPair(row.pair, Preference(row.pair.id, None, "unparsed")) for row in judged_systems(10, 5)["c"]]
    with pytest.raises(DataError, match=r"systems with labels in these runs: 2 \(a, b\)"):
        draw_pairs({**judged_systems(10, 5), "c": unread}, 3, 10, 1)


@pytest.mark.parametrize(
    ("differ", "same", "n", "focus"),
    [(200, 800, 100, 0.75), (0, 800, 100, None), (200, 0, 100, None), (30, 970, 100, 0.19), (9, 5, 14, None)],
)
def test_draws_favour_the_first_stratum_only_as_far_as_it_goes(
    differ: int, same: int, n: int, focus: float | None
) -> None:
    assert focus_on(differ, same, n) == (None if focus is None else pytest.approx(focus, abs=0.01))


def test_the_weighted_mean_of_draws_is_that_of_all_instructions() -> None:
    strata = {DIFFER: [f"d{n}" for n in range(60)], SAME: [f"s{n}" for n in range(240)]}
    value = {**dict.fromkeys(strata[DIFFER], 1.0), **dict.fromkeys(strata[SAME], 0.0)}
    means, inverse = [], []
    for seed in range(200):
        drawn = list(draw_tasks(strata, 50, seed))
        weights = [extra["stratum_share"] / extra["draw_probability"] for _, extra in drawn]
        means.append(sum(value[id] * w for (id, _), w in zip(drawn, weights, strict=True)) / len(drawn))
        inverse.append(sum(value[id] / extra["probability"] for id, extra in drawn) / 300)
    assert sum(means) / 200 == pytest.approx(0.2, abs=0.005)
    assert inverse == pytest.approx([0.2] * 200)


def test_it_stops_once_the_better_finalist_is_clear(tmp_path: Path) -> None:
    drawn, _ = draw_pairs(judged_systems(400, 100), 2, 200, seed=2)
    store = ProjectStore(tmp_path / "people.sqlite")
    store.add_pairs(drawn, ordered=True)
    project = Project(store, rules.Rules(is_open=False, until_decided=True))
    project.decide = lambda: decision(store, 1)

    def as_people(first: str) -> int:
        return {"a": -2, "b": 2}.get(first[0], 0)

    people = project.enter("ann")
    count = label_all(project, people, as_people)
    assert project.decision.startswith("a is better than b, after ")
    assert 20 < count < 120
    assert project.next_number(people) is None
    store.discard(people, "asked a model")
    assert project.decision == ""


def test_a_label_of_one_response_is_of_all_systems_that_gave_it(tmp_path: Path) -> None:
    rows = []
    for n in range(60):  # b answers as a does on the first 20
        for system, output in {"a": f"better {n}", "b": f"better {n}" if n < 20 else f"bad {n}"}.items():
            names = {"generator_1": "base", "generator_2": system}
            rows.append({"instruction": f"say {n}", "output_1": f"base {n}", "output_2": output, **names})
    read = read_pairs(str(write_pairs(tmp_path / "pairs.jsonl", rows)))
    assert (len(read.pairs), read.shared, read.repeated) == (100, 20, 0)
    store = ProjectStore(tmp_path / "people.sqlite")
    store.add_pairs(read.pairs, ordered=True)
    project = Project(store, rules.Rules(is_open=False))
    order = {"better": 2, "base": 1, "bad": 0}
    people = project.enter("ann")
    while number := project.next_number(people):
        one = project.look(people, number)
        assert one
        gain = order[one.row["output_2"].split()[0]] - order[one.row["output_1"].split()[0]]
        project.answer(people, number, 2 * gain if one.shown == "12" else -2 * gain, "", one.version, 5.0)
    assert decision(store, 1) == "a is better than b, after 60 instructions."


def test_it_waits_for_open_pairs_and_counts_skipped_ones_against_it(tmp_path: Path) -> None:
    store = ProjectStore(tmp_path / "people.sqlite")
    store.add_pairs([(judged.pair, {}) for judged in judged_systems(40, 0)["a"]], ordered=True)
    project = Project(store, rules.Rules(is_open=False))
    slow, ann = project.enter("slow"), project.enter("ann")
    number = project.next_number(slow)
    assert number
    assert label_all(project, ann, lambda first: -2 if first[0] == "a" else 2) == 39
    assert decision(store, 1) == ""  # slow pairs differ from the others, and this is the first
    project.skip(slow, number)
    assert decision(store, 1) == "a is better than base, after 40 instructions."
    with store.writing() as db:
        db.execute("UPDATE assignments SET skipped = 1, choice = NULL WHERE number < 20")
    assert decision(store, 1) == ""


def test_it_names_what_it_cannot_decide(tmp_path: Path) -> None:
    project = make_project(tmp_path, count=2)
    label_all(project, project.enter("ann"), rightly)
    assert decision(project.store, 1) == ""
    bare = [{name: row[name] for name in ("instruction", "output_1", "output_2")} for row in make_rows(2)]
    store = ProjectStore(tmp_path / "bare.sqlite")
    store.add_pairs(read_pairs(str(write_pairs(tmp_path / "bare.jsonl", bare))).pairs)
    with pytest.raises(DataError, match="needs pairs of systems with one reference"):
        decision(store, 1)


# ------------------------------------------------------------------------------------------------------------ people


def test_people_who_answer_always_left_at_random_or_in_haste_stand_out(tmp_path: Path) -> None:
    project, draws = make_project(tmp_path, count=60, each=5), random.Random(1)
    ways = {
        "ann": rightly,
        "bo": rightly,
        "cy": rightly,
        "left": lambda first: -2,
        "random": lambda first: draws.choice([-2, 2]),
    }
    for name, way in ways.items():
        label_all(project, project.enter(name), way)
    with project.store.writing() as db:
        db.execute("UPDATE assignments SET seconds = CASE person WHEN 2 THEN 1 ELSE 5 END")
    figures = describe_project(project)
    ability = {one["person"].name: one["rating"][0] for one in figures["people"]}
    kappa = {one["person"].name: one["rating"][1] for one in figures["people"]}
    assert max(kappa["left"], kappa["random"]) < 0.3 < min(kappa[name] for name in ("ann", "bo", "cy"))
    assert all(ability[name] > 0.99 for name in ("ann", "bo", "cy"))
    assert max(ability["left"], ability["random"]) < 0.75
    assert 0 < figures["alpha"] < 1
    flags = {one["person"].name: " ".join(one["flags"]) for one in figures["people"]}
    assert flags["ann"] == ""
    assert flags["bo"] == "takes 1 s a label, others 5 s"
    assert "prefers the response shown first in 60 of 60" in flags["left"]
    assert "agrees with others on" in flags["random"]


@pytest.mark.parametrize(("successes", "trials", "p", "value"), [(0, 3, 0.5, 0.125), (1, 2, 0.5, 0.75), (2, 2, 0.9, 1)])
def test_the_binomials_tail(successes: int, trials: int, p: float, value: float) -> None:
    assert tail(successes, trials, p) == pytest.approx(value)


def test_a_run_judged_at_two_temperatures_is_drawn_from_its_main_comparison(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Best-of-n meets SFT at 0.7, then at its own temperature: both are called sft."""
    rows = [
        JudgedPair(
            Pair(Instruction("say"), of_sft, "mine", generator_1="sft", generator_2="best_of_n"),
            Preference("", 1.0, "decided"),
        )
        for of_sft in ("at 0.7", "at 1")
    ]

    class Run:
        name = "run"

        def judgements(self) -> list[JudgedPair]:
            return rows

    monkeypatch.setattr("afarm_people.draw.open_run", lambda name, output_dir: Run())
    assert read_runs(["run"], tmp_path) == {"best_of_n": rows[:1]}


def test_an_export_says_how_far_people_and_a_judge_agree(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of 24 pairs bo contradicts ann on 6. The judge says ann's answer, the other way round, but for 12."""
    monkeypatch.chdir(tmp_path)
    write_pairs(tmp_path / "pairs.jsonl", make_rows(24))
    project = serve(monkeypatch, "pairs.jsonl", "--people", "ann,bo", "--each", "2")
    ids = [id for id, _, _ in project.store.pairs_in_order(PAIR)]
    project.store.take_labels((id, "ann", 2, "12", "", 1.0) for id in ids)
    project.store.take_labels((id, "bo", -2 if n < 6 else 2, "12", "", 1.0) for n, id in enumerate(ids))
    of_judge = [
        {**row, "output_1": row["output_2"], "output_2": row["output_1"], "preference": 1 if n < 12 else 2}
        for n, row in enumerate(read_rows("pairs.jsonl"))
    ]
    write_pairs(tmp_path / "judged.jsonl", of_judge)
    capsys.readouterr()
    serve(monkeypatch, "pairs.jsonl", "--export", "labels.jsonl", "--judged", "judged.jsonl")
    said = capsys.readouterr().err
    assert "People agree with each other on 75 % of their labels (Krippendorff's alpha" in said
    wins = {pair["instruction"]: 2 - pair["preference"] for pair in of_judge}
    same = sum(one.win == wins[one.pair.instruction.instruction] for one in project.store.labels())
    assert f"The judge of judged.jsonl agrees with {100 * same / 48:.0f} % of 48 labels; right on " in said
