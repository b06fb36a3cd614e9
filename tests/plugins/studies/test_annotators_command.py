"""`afarm annotators compare`: the tables, the JSON and the page."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from opened_page import OpenedPage
from playwright.sync_api import Browser

from afarm.cli import main
from afarm.evaluation.agreement import AnnotatorReport, compare_annotators
from afarm.evaluation.labels import read_labels
from afarm_plugins.studies.annotator_findings import annotator_findings, list_caveats

HOSTILE = "</script><b>judge</b>"


def write_labels(directory: Path, people: bool = True) -> list[str]:
    """Twelve pairs with four labels of two annotators, and of people."""
    names = ["gpt4_x", HOSTILE, *(["human"] if people else [])]
    rows: list[dict[str, Any]] = [
        {
            "instruction": f"task {i}",
            "output_1": "short" + "!" * i,
            "output_2": "long " * 9,
            "generator_1": "gpt-4" if i % 2 else "claude-2",
            "generator_2": "vicuna-13b" if i % 3 else "text_davinci_003",
            "preference": 1 + (i * 5 + k * k + n) % 3 // 2,
            "annotator": name,
            "price_per_example": 0.001 * (n + 1),
            "time_per_example": 0.5,
            "order": "12" if k % 2 else "21",
        }
        for i in range(12)
        for n, name in enumerate(names)
        for k in range(4)
    ]
    path = directory / "labels.json"
    path.write_text(json.dumps(rows))
    return [str(path)]


def plots(comparison: AnnotatorReport) -> set[str]:
    return {plot.name for plot in annotator_findings(comparison).plots}


def run(*arguments: str) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["annotators", "compare", *arguments])
    assert stopped.value.code == 0


def test_json_holds_every_figure_and_nothing_else_is_on_stdout(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = write_labels(tmp_path)
    run(*files, "--json", "--html", str(tmp_path / "page.html"))
    found = json.loads(capsys.readouterr().out)
    assert [row["annotator"] for row in found["annotators"]] == ["humans", HOSTILE, "gpt4_x"]
    judge = found["annotators"][2]
    assert judge["price"] == {"value": pytest.approx(1.0), "error": pytest.approx(0), "n": 48}
    assert judge["prefers_own_family"]["n"] == 24  # of pairs 1, 5, 7, 11 (gpt-4 first) and 0, 6 (davinci second)
    assert {frozenset(row["annotators"]) for row in found["agreement"]} == {
        frozenset(names)
        for names in ([a, b] for a in (HOSTILE, "gpt4_x", "humans") for b in (HOSTILE, "gpt4_x", "humans"))
    }
    assert found["annotators"] == json.loads(
        json.dumps(list(map(asdict, compare_annotators(read_labels(files)).profiles)))
    )


def test_tables_name_every_annotator_and_say_what_cannot_be_known(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run(*write_labels(tmp_path, people=False))
    printed = capsys.readouterr().out
    assert printed.count("gpt4_x") >= 3
    assert "No human labels" in printed
    assert "agreement, %" not in printed


def test_labels_of_pairs_that_nobody_else_judged_have_no_matrix(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [
        {"instruction": str(i), "output_1": "a", "output_2": "b", "preference": 1, "annotator": f"j{i}"} for i in (1, 2)
    ]
    (tmp_path / "p.json").write_text(json.dumps(rows))
    run(str(tmp_path / "p.json"), "--html", str(tmp_path / "page.html"))
    assert "No pair has two labels" in capsys.readouterr().out
    assert "Agreement of one label with another" not in (tmp_path / "page.html").read_text()


def test_one_label_a_pair_or_none_that_can_be_read_leaves_out_what_it_does_not_tell(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    row = {"instruction": "i", "output_1": "a", "output_2": "b", "annotator": "j"}
    people = [{**row, "annotator": "human", "preference": p} for p in (1, 2, 2)]
    (tmp_path / "one.json").write_text(json.dumps([{**row, "preference": 1}, *people]))
    assert plots(compare_annotators(read_labels([tmp_path / "one.json"]))) == {"agreement", "preferences"}
    (tmp_path / "none.json").write_text(json.dumps([{**row, "preference": None}]))
    assert plots(compare_annotators(read_labels([tmp_path / "none.json"]))) == set()
    run(str(tmp_path / "none.json"), "--html", str(tmp_path / "page.html"))
    assert "Share of choices" not in capsys.readouterr().out
    assert "What annotators prefer" not in (tmp_path / "page.html").read_text()


def test_the_matrix_of_a_whole_pool_fits_a_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    row = {"instruction": "i", "output_1": "a", "output_2": "b", "preference": 1}
    (tmp_path / "p.json").write_text(json.dumps([{**row, "annotator": f"davinci003_{i:02}"} for i in range(1, 15)]))
    run(str(tmp_path / "p.json"))
    matrix = capsys.readouterr().out.split("Agreement of one label with another, %")[1]
    assert matrix.split("\n")[2].split() == [str(number) for number in range(1, 15)]
    assert "14 davinci003_14 100 100 100 " in " ".join(matrix.split()) + " "


def test_the_ledger_tells_what_labels_cost(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from afarm.core.judge import ChatRequest, Completion
    from afarm.judging.ledger import Ledger

    with Ledger(tmp_path / "runs" / "ledger.sqlite") as ledger:
        ledger.resolve([(ChatRequest("strong"), "judge", Completion("", price=0.02, key="k", seconds=3.0))], "run")
    row = {"instruction": "i", "output_1": "a", "output_2": "b", "preference": 1, "annotator": "p", "completion": "k"}
    (tmp_path / "p.json").write_text(json.dumps([row]))
    run(str(tmp_path / "p.json"), "--output-dir", str(tmp_path / "runs"), "--json")
    [profile] = json.loads(capsys.readouterr().out)["annotators"]
    assert profile["price"]["value"] == pytest.approx(20)
    assert profile["seconds"]["value"] == pytest.approx(3000)


def test_two_judges_of_one_annotator_are_compared_and_half_a_price_is_said_to_be_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    row = {"instruction": "i", "output_1": "a", "output_2": "b", "preference": 1, "annotator": "gpt4_4"}
    row |= {"generator_1": "claude-2", "generator_2": "gpt-4"}
    for name, judge, price in (("gpt41", "openai:gpt-4.1", 0.5), ("opus", "local:x[y=1]", None)):
        (tmp_path / f"{name}.json").write_text(json.dumps([{**row, "judge": judge, "price_per_example": price}]))
    files = [str(tmp_path / "gpt41.json"), str(tmp_path / "opus.json")]
    run(*files, "--family", "local:x[y=1]=anthropic", "--html", str(tmp_path / "page.html"))
    printed = capsys.readouterr().out
    matrix = printed.split("Agreement of one label with another")[1].split("\n")
    assert ["gpt4_4", "(local:x[y=1])", "-", "100.0", "(1)"] in [line.split() for line in matrix]
    assert "gpt4_4 (local:x[y=1]): a price is known for 0 of 1 labels." in printed
    assert "a price is known for 0 of 1 labels." in (tmp_path / "page.html").read_text()
    run(*files, "--by-file", "--family", "local:x[y=1]=anthropic", "--json")
    found = json.loads(capsys.readouterr().out)["annotators"]
    assert [(p["annotator"], p["judges"], p["prefers_own_family"]["value"]) for p in found] == [
        ("gpt4_4 (gpt41)", ["openai:gpt-4.1"], 0),
        ("gpt4_4 (opus)", ["local:x[y=1]"], 1),
    ]


def test_errors_are_explained(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = write_labels(tmp_path)
    for arguments, said in ((["--humans", "gpt4_y"], "gpt4_x"), (["--family", "gpt4_x"], "NAME=FAMILY")):
        with pytest.raises(SystemExit) as stopped:
            main(["annotators", "compare", *files, *arguments])
        assert stopped.value.code == 1
        printed = capsys.readouterr()
        assert said in printed.err
        assert printed.out == ""


def test_the_page_has_its_tables_without_plotly_and_reads_names_as_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("afarm.report.page_shell.plotly_script", lambda: None)
    run(*write_labels(tmp_path), "--html", str(tmp_path / "page.html"))
    page = (tmp_path / "page.html").read_text()
    assert "pip install" in page
    assert page.count("<script") == 2, "what it leads with, and what sorts the tables"
    assert HOSTILE not in page
    assert "&lt;/script&gt;&lt;b&gt;judge&lt;/b&gt;" in page


@pytest.mark.browser
def test_the_page_draws_its_plots_quietly_and_sorts_its_tables(browser: Browser, tmp_path: Path) -> None:
    run(*write_labels(tmp_path), "--html", str(tmp_path / "page.html"))
    opened = OpenedPage(browser, tmp_path / "page.html", width=420)
    page = opened.page
    page.wait_for_function("document.querySelectorAll('.plot .main-svg').length >= 4")
    assert page.locator("#chart-0 .points path.point").count() == 3, "agreement"
    assert page.locator("#chart-2 .points path.point").count() == 3, "variance over bias"
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    page.locator("#result .sort", has_text="agreement").click()
    cells = page.locator("#result table").first.locator("tbody td:nth-child(4)")
    values = [float(cell.get_attribute("data-value") or "nan") for cell in cells.all()]
    assert values == sorted(values, reverse=True)
    assert opened.is_quiet(), (opened.complaints, opened.requests)


def test_caveats_say_whose_price_is_partial_and_who_comes_from_several_files(tmp_path: Path) -> None:
    def write(name: str, *rows: dict[str, Any]) -> Path:
        about = {"instruction": "i", "output_1": "a", "output_2": "b", "preference": 1}
        (tmp_path / name).write_text(json.dumps([{**about, **row} for row in rows]))
        return tmp_path / name

    one = write(
        "one.json",
        *({"annotator": "pool", "price_per_example": 0.01}, {"annotator": "pool"}),
        *({"annotator": "free"}, {"annotator": "human"}),
    )
    two = write("two.json", {"annotator": "pool"}, {"annotator": "human", "price_per_example": 0.3})
    assert list_caveats(compare_annotators(read_labels([one, two]))) == [
        "humans: a price is known for 1 of 2 labels; $ per 1,000 is theirs.",
        "free: a price is known for 0 of 1 labels.",
        "pool: a price is known for 1 of 3 labels; $ per 1,000 is theirs.",
        "pool: one annotator, from 2 files (one, two); --by-file parts them.",
    ]
    assert list_caveats(compare_annotators(read_labels([write("none.json", {"annotator": "pool"})]))) == []
