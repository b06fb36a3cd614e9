"""The view in a real browser: tables, outputs by keyboard, a run from start to end, exported pages."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Route, expect
from viewed import opened, served

from afarm_plugins.view.app import View
from afarm_plugins.view.export import write_pages
from afarm_plugins.view.live_record import LIVE, process_identity

IdOf = Callable[[View, str], str]
WriteRun = Callable[..., Path]
pytestmark = pytest.mark.browser


def row(number: int, first: str, second: str, preference: float | None, **more: Any) -> dict[str, Any]:
    named = {"instruction": f"task {number:04}", "input": "", "output_1": first, "output_2": second}
    return {**named, "preference": preference, "generator_1": "sft", "generator_2": "ppo", "member": "gpt4_1", **more}


def test_runs_are_filtered_sorted_and_compared(browser: Browser, output_dir: Path, id_of: IdOf) -> None:
    view = View([output_dir])
    with served(view) as home, opened(browser, home, "") as page:
        names = page.locator("tbody .name a, tbody td.name a")
        expect(names).to_have_count(2)
        page.keyboard.press("/")
        page.keyboard.type("nudge")
        expect(names).to_have_text([view.run(id_of(view, "nudge")).name])
        expect(page.locator("#shown")).to_have_text("1 of 2 runs")
        page.keyboard.press("Control+a")
        page.keyboard.press("Delete")
        page.get_by_role("button", name="Method").click()
        expect(page.locator("tbody tr td:nth-child(5)")).to_have_text(["direct", "nudge"])
        page.get_by_role("button", name="Method").click()
        expect(page.locator("tbody tr td:nth-child(5)")).to_have_text(["nudge", "direct"])
        page.get_by_role("button", name="Status").click()
        expect(page.get_by_role("columnheader", name="Status")).to_have_attribute("aria-sort", "ascending")
        assert page.locator(".runs-table .scroll").evaluate("one => one.scrollWidth - one.clientWidth") == 0
        for box in page.get_by_role("checkbox").all():
            box.check()
        expect(page.locator("tbody tr.selected")).to_have_count(2)
        page.locator("#compare").click()
        expect(page.locator("h1")).to_have_text("2 runs compared")
        expect(page.locator("#settings tbody th code")).to_have_text(["method"])
        expect(page.locator("#curves .command-box code")).to_contain_text(f"--output-dir {output_dir}\nafarm report ")
        expect(page.locator("#outputs .command-box code")).to_contain_text(" --flips ")
        expect(page.locator("#difference .reading")).to_contain_text("Paired over 10 instructions.")
        expect(page.locator("#curves figcaption").first).to_have_text("KL from the starting policy train")
        record = view.run(id_of(view, "nudge")).directory / "run.json"
        values = json.loads(record.read_text())
        values["results"][0]["protocol"]["judges"] = {"*": "openai:other"}
        record.write_text(json.dumps(values))
        page.reload()
        expect(page.locator("#difference .banner")).to_contain_text("Not comparable: ")
        expect(page.locator("#difference .reading")).to_have_text("Paired over 10 instructions.")  # and no conclusion


def test_outputs_are_searched_filtered_and_read_by_keyboard_alone(browser: Browser, write_run: WriteRun) -> None:
    rows = [row(n, "the quay", "the quay " + "long " * (n % 5), 1 + n % 2) for n in range(3000)]
    votes = {"votes": {"alice": 1.0, "<b>bob</b>": 0.0, "carol": None}}
    rows[2718] = {**row(2718, "a plain answer", "the kestrel answer", 2), **votes}
    directory = write_run("many", {"results": []}, rows)
    with served(View([directory.parents[1]])) as home, opened(browser, home, "outputs/many.html") as page:
        expect(page.locator("#shown")).to_have_text("3,000 pairs")
        assert page.locator("#list .row").count() < 40, "only the rows in sight are drawn"
        page.keyboard.press("/")
        page.keyboard.type("KESTREL")
        expect(page.locator("#shown")).to_have_text("1 of 3,000 pairs")
        expect(page.locator("#pair .prompt")).to_have_text("task 2718")
        expect(page.locator("#pair mark")).to_have_text(["a plain", "the kestrel"])
        expect(page.locator("#pair .chosen .mark")).to_have_text("✓ judge’s choice")
        jurors = ["alice prefers ppo", "<b>bob</b> prefers sft", "carol abstained"]
        expect(page.locator("#pair .jurors li")).to_have_text(jurors)
        page.keyboard.press("Control+a")
        page.keyboard.press("Delete")
        expect(page.locator("#shown")).to_have_text("3,000 pairs")
        page.keyboard.press("Escape")
        page.locator("#list").focus()
        page.keyboard.press("End")
        expect(page.locator("#pair .prompt")).to_have_text("task 2999")
        page.keyboard.press("k")
        expect(page.locator("#pair .prompt")).to_have_text("task 2998")
        expect(page.locator("#list [aria-selected=true]")).to_contain_text("#2999")
        page.get_by_label("lost 1,499").check(force=True)
        expect(page.locator("#shown")).to_have_text("1,499 of 3,000 pairs")


def test_a_hundred_thousand_pairs_and_an_output_of_a_megabyte(browser: Browser, write_run: WriteRun) -> None:
    line = json.dumps(row(0, "the quay", "the long quay", 2)).replace("task 0000", "task %05d") + "\n"
    directory = write_run("large", {"results": []})
    found = row(99_999, "a plain answer", "kestrel " * 125_000, 1)
    lines = [*(line % number for number in range(99_999)), json.dumps(found) + "\n"]
    (directory / "outputs.jsonl").write_text("".join(lines), "utf-8")
    with served(View([directory.parents[1]])) as home, opened(browser, home, "outputs/large.html") as page:
        expect(page.locator("#list .row:not(.loading)").first).to_contain_text("task 00000")
        expect(page.locator("#shown")).to_have_text("100,000 pairs")
        page.keyboard.press("/")
        page.keyboard.type("kestrel task", delay=20)
        expect(page.locator("#shown")).to_have_text("1 of 100,000 pairs")
        expect(page.locator("#pair .prompt")).to_have_text("task 99999")
        expect(page.locator("#pair .system .text")).to_have_text("kestrel " * 25_000)
        expect(page.locator("#pair .system .cut")).to_contain_text("the first 200,000 of 1,000,000 characters")
        held: list[Route] = []
        page.route("**/data/outputs/large.json?q=task&*", lambda route: held.append(route))
        with page.expect_request("**/data/outputs/large.json?q=task&*"):
            page.locator("#words").fill("task")
        page.keyboard.type(" 04711")  # before there is an answer
        page.wait_for_timeout(100)
        held[0].continue_()
        expect(page.locator("#pair .prompt")).to_have_text("task 04711")
        page.locator("#words").fill("")
        expect(page.locator("#shown")).to_have_text("100,000 pairs")
        page.locator("#list").focus()
        page.keyboard.press("End")
        expect(page.locator("#list [aria-selected=true]")).to_contain_text("#100000")


def test_votes_show_order_raw_answer_and_price(browser: Browser, view: View, id_of: IdOf) -> None:
    run = id_of(view, "nudge")
    number = view.outputs(run, {"verdict": "win"})["rows"][0]["number"]
    with served(view) as home, opened(browser, home, f"outputs/{run}.html?pair={number}") as page:
        expect(page.locator(".vote")).to_have_count(2)
        expect(page.locator(".votes")).to_contain_text("saw base first")
        expect(page.locator(".votes")).to_contain_text("saw nudge first")
        expect(page.locator(".votes")).to_contain_text("$0.001")
        commands = [page.locator(f"{place} .command-box code") for place in (".outputs-head", "#pair")]
        expect(commands[0]).to_have_text(["afarm run --method nudge", view.details(run)["commands"]["outputs"]])
        expect(commands[1]).to_have_text(view.pair(run, number)["command"])

        def shared(route: Route) -> None:
            answer = route.fetch()
            pair = answer.json()
            for vote in pair["votes"]:
                vote |= {"place": 2, "shared_by": 3, "text": "1. Output (a)\n2. Output (b)\n3. Output (a)"}
            route.fulfill(response=answer, json=pair)

        page.route("**/data/pair/**", shared)
        page.reload()
        first = page.locator(".vote details").first
        expect(first.locator("summary")).to_have_text("raw answer: this pair is number 2 of 3 in the prompt")
        expect(first.locator("mark")).to_have_text("2. Output (b)")


def test_a_run_is_followed_from_its_start_to_its_death(browser: Browser, write_run: WriteRun) -> None:
    directory = write_run("at-work")
    about: dict[str, Any] = {
        "status": "running",
        "method": "ppo",
        "command": "afarm tune",
        "created": time.time() - 5,
    }
    made = {"stage": "sft", "kind": "train", "reused": False, "seconds": 2.0}
    stages = [made, {"stage": "train ppo", "kind": "train"}]

    def write(**changes: Any) -> None:

        state = {**about, "updated": time.time(), "stages": stages, **process_identity(os.getpid()), **changes}
        beside = directory / "beside"
        beside.write_text(json.dumps(state))
        beside.rename(directory / LIVE)

    write()
    view = View([directory.parents[1]], may_stop=True)
    with served(view) as home, opened(browser, home, "run/at-work.html") as page:
        expect(page.locator("h1 .chip")).to_have_text("running")
        expect(page.locator("#live")).to_contain_text("1 of 2 stages")
        expect(page.locator("#repeat")).to_contain_text("This is one run of a search for settings")
        expect(page.locator("#stop")).to_have_text("Stop it")
        working = [made, {"stage": "train ppo", "kind": "train", "status": "working", "began": time.time()}]
        loops = [{"description": "rollouts", "done": 3, "total": 12}]
        slowed = ["openai:x asks to slow down: waiting 7 s"]
        write(stages=working, loops=loops, slowed=slowed, refusals=4, budget=5.0, committed=1.25)
        expect(page.locator("#live")).to_contain_text("stage 2 of 2: train ppo")
        expect(page.locator("#live")).to_contain_text("$1.25 of $5.00")
        expect(page.get_by_role("progressbar", name="rollouts")).to_have_attribute("aria-valuenow", "25")
        expect(page.locator(".waits")).to_have_text(slowed[0])
        write(process_start="1")
        expect(page.locator("h1 .chip")).to_have_text("stopped")
        expect(page.locator("#live")).to_contain_text("is gone without a word; the same command goes on: afarm tune")
        (directory / "run.json").write_text(json.dumps({"method": "ppo", "stages": [], "results": []}))
        write(status="finished")
        expect(page.locator("h1 .chip")).to_have_text("finished")


def test_exported_pages_find_what_the_server_finds(browser: Browser, view: View, id_of: IdOf, tmp_path: Path) -> None:
    write_pages(view, tmp_path / "pages")
    run = id_of(view, "nudge")

    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(tmp_path / "pages")))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    home = f"http://127.0.0.1:{server.server_address[1]}/"
    for path in ("index.html", f"outputs/{run}.html"):
        with opened(browser, (tmp_path / "pages").as_uri() + "/", path) as page:
            expect(page.locator(".banner code")).to_have_text(f"python -m http.server -d {tmp_path / 'pages'}/")
    queries = [
        "",
        "verdict=loss",
        "q=word+evaluation",
        "longer_from=1",
        "order=longer&ascending=1",
        "family=gpt4",
        "q=1",
    ]
    with opened(browser, home, "index.html") as page:
        for query in queries:
            page.goto(f"{home}outputs/{run}.html?{query}")
            found = view.outputs(run, dict(part.split("=") for part in query.replace("+", " ").split("&") if part))
            expect(page.locator("html[data-answered]:not([data-answered=''])")).to_have_count(1)
            numbers = page.locator("#list .row-below > span:first-child").all_inner_texts()
            assert numbers == [f"#{one['number'] + 1}" for one in found["rows"]], query
        page.goto(f"{home}index.html")
        page.get_by_role("link", name=view.run(run).name).click()
        expect(page.locator("h1")).to_contain_text(view.run(run).name)
        page.get_by_role("link", name="All outputs and votes").click()
        expect(page.locator(".votes")).to_be_visible()
    server.shutdown()
    server.server_close()


def priced(method: str, rate: float, seconds: float, dollars: float) -> dict[str, Any]:
    """The record of a run: 100 training labels of 500 + 10 tokens each, 50 evaluations of 800 + 20."""
    spends = [{"input_tokens": 50_000, "output_tokens": 1_000, "dollars": dollars}]
    spends.append({"input_tokens": 40_000, "output_tokens": 1_000, "dollars": 0.0})
    stages = [
        {"stage": kind, "kind": kind, "seconds": seconds, "spend": spend, "summary": {"rows": rows}}
        for kind, spend, rows in zip(("annotate", "evaluate"), spends, (100, 50), strict=True)
    ]
    metrics = {"win_rate": rate, "standard_error": 5.0, "n_instructions": 100, "n_total": 100}
    results = [{"system": method, "reference": "sft", "evaluator": "win_rate", "metrics": metrics}]
    headline = {"win_rate": rate, "standard_error": 5.0}
    return {"method": method, "seed": 3, "stages": stages, "results": results, "headline": headline}


def test_a_run_that_is_not_there_and_a_view_that_has_ended_say_so_once(browser: Browser, output_dir: Path) -> None:
    with served(View([output_dir])) as home, browser.new_page() as page:  # whose console tells of the failures
        page.goto(home + "run/none.html")
        expect(page.locator("h1")).to_have_text("Nothing to show")
        expect(page.get_by_role("alert")).to_contain_text("no run 'none' is there")
        expect(page.locator("#pulse")).to_be_empty()
        page.set_viewport_size({"width": 390, "height": 800})
        page.goto(home)
        bar = page.locator(".bar")
        height = bar.evaluate("one => one.offsetHeight")
        page.route("**/data/**", lambda route: route.abort())
        expect(page.locator("#pulse")).to_contain_text("The view does not answer")
        assert bar.evaluate("one => one.offsetHeight") == height, "the message takes no place from the menu"


def test_costs_are_planned_from_stored_tokens(browser: Browser, write_run: WriteRun, tmp_path: Path) -> None:
    write_run("a", priced("dpo", 56.25, 900.0, 1.0))
    write_run("b", priced("ppo", 54.0, 1800.0, 2.0))
    reused = priced("base", 0.0, 0.0, 0.0)  # all of its answers were in the ledger: no measure of tokens
    reused["stages"][0]["spend"] = {"input_tokens": 0, "output_tokens": 0, "dollars": 0.0}
    write_run("z", {**reused, "headline": {}, "results": [], "created": 8.0})
    curve = tmp_path / "hand" / "studies" / "best-of-n-x"
    curve.mkdir(parents=True)
    points = [{"n": 1, "win_rate": 50.0, "kl_bound": 0.0}, {"n": 4, "win_rate": 61.5, "kl_bound": 0.64}]
    (curve / "curve.json").write_text(json.dumps(points))
    with served(View([tmp_path / "hand"])) as home, opened(browser, home, "costs.html") as page:
        rows = page.locator("#methods tbody tr")
        unjudged = "base1–0.0 s$0.00$0.00"
        expect(rows).to_have_text(
            ["dpo156.2 ± 5.030 min 0 s$1.00$1.00yes", "ppo154.0 ± 5.01 h 0 min$2.00$2.00", unjudged]
        )
        expect(page.locator("#answer")).to_have_text(
            "dpo (56.2 % for $1.00) has the highest win rate, and none costs less."
        )
        expect(page.locator("#chart-frontier")).to_be_visible()
        hour = page.get_by_label("Price of the machine per hour")
        hour.focus()
        page.keyboard.press("End")  # $40: half an hour and an hour
        expect(rows).to_contain_text(["$21.00", "$42.00", "$0.00"])
        expect(page.locator("#frontier code")).to_have_text(
            f"afarm study costs --output-dir {tmp_path / 'hand'} --hour 40"
        )
        near = [{"name": f"method {n}", "x": 100 + n / 50, "y": 60, "half": 2} for n in range(6)]
        near.append({"name": "far", "x": 200, "y": 50, "half": 2})
        places = page.evaluate("points => labelled(points, 1000, 280)", near)
        assert sorted(filter(None, places[:6])) == ["bottom left", "bottom right", "top left", "top right"]
        assert places[6] == "top right", "the others have no place and no label"
        menu = "rows => h('select', {}, grouped(rows, (r) => r[0], (r) => h('option', {}, r))).outerHTML"
        assert page.evaluate(menu, ["a1", "b1", "a2"]).count("<optgroup") == 0, "a short menu is flat"
        assert page.evaluate(menu, [f"{'ab'[n % 2]}{n}" for n in range(8)]).count("<optgroup") == 2
        figures = page.locator("#best-of-n dd")
        expect(figures).to_have_text(["61.5 %", "0.64 nats"])
        page.get_by_label("n", exact=True).press("Home")
        expect(figures).to_have_text(["50.0 %", "0.00 nats"])
        cost = page.locator(".plan-card .figure")
        expect(cost).to_have_text("$0.092")  # 100 · 510 + 50 · 820 tokens at $1 per million
        expect(page.locator(".plan-out dd").nth(4)).to_have_text("19.8 points")  # 2.8016 · 50 / √50
        page.get_by_label("Training pairs").press("End")
        expect(cost).to_have_text("$102.00")
        expect(page.locator(".plan-card .reading")).to_contain_text("Over the budget of $20.00 by $82.00.")
        expect(page.locator(".plan-card .reading")).to_contain_text("It pays for 39,100 training pairs")
        text = page.locator("#plan .command-box code").text_content() or ""
        assert text.startswith("afarm cost --method ")
        assert "--set rows.preference=200000 --set rows.evaluation=50 " in text
        page.get_by_role("button", name="Win rate, %").click()
        page.get_by_role("button", name="Win rate, %").click()  # the lowest first
        write_run("c", {**priced("feedme", 55.0, 900.0, 0.0), "created": 9.0})
        page.evaluate("get('data/costs.json').then(take)")
        expect(rows).to_contain_text(["ppo", "feedme", "dpo", "base"])
        expect(cost).to_have_text("$102.00")  # sliders stay as they were set


def test_people_take_the_place_of_judges_in_the_pipeline(browser: Browser, view: View, id_of: IdOf) -> None:
    run = id_of(view, "nudge")
    judged = [stage for stage in view.details(run)["stages"] if stage["kind"] in ("annotate", "evaluate")]
    many = sum(stage["rows"] for stage in judged)
    with served(view) as home, opened(browser, home, f"run/{run}.html") as page:
        expect(page.locator("#labelled")).to_contain_text(f"{many} labels, simulated")
        expect(page.locator(".diagram .people")).to_have_count(0)
        page.get_by_text("human", exact=True).click()
        expect(page.locator(".diagram .people")).to_have_count(len(judged))
        price = page.get_by_label("Person’s price per label")
        price.press("End")  # $20
        expect(page.locator("#labelled")).to_contain_text(f"${20 * many:,}.00, instead of")
        expect(page.locator(".diagram .people").first).to_contain_text(f"${20 * judged[0]['rows']:,}.00")
        page.goto(home + "costs.html")
        expect(page.get_by_label("Person’s price per label")).to_have_attribute("aria-valuetext", "$20.00")


def test_members_are_profiled_and_probes_are_shown(browser: Browser, view: View, output_dir: Path) -> None:
    probe = {"epoch": "may", "annotator": "pool", "judges": {"*": "openai:x"}, "pairs": 50, "unread": 0}
    shares = {"disagreement": 46.25, "noise": 10.0, "win_rate_before": 55.0, "win_rate_now": 70.0}
    row = {**probe, **shares, "p_disagreement": 0.001, "p_win_rate": 0.5, "p_value": 0.002, "shifted": True}
    (output_dir / "drift.jsonl").write_text(json.dumps(row) + "\n")
    view = View([output_dir])
    file = next(file for file in view.annotators()["files"] if file["use"] == "training")
    profiles = view.list_annotators(file["run"], "training")["rows"]
    with served(view) as home, opened(browser, home, "annotators.html") as page:
        cells = page.locator("section:last-of-type tbody tr > *")
        expect(cells).to_contain_text(["may", "pool", "openai:x", "shifted", "0.0020", "50", "46.2", "10.0"])
        choices = page.get_by_label("Labels").locator("option").all_text_contents()
        [place] = [place for place, text in enumerate(choices) if ": training" in text]
        page.get_by_label("Labels").select_option(index=place)
        expect(page.locator("#annotators tbody tr")).to_have_count(len(profiles))
        expect(page.locator("#annotators tbody tr td:nth-child(2)").first).to_have_text(str(profiles[0]["labels"]))
        rows = [{"annotator": "a", "longer": {"value": 1 - at, "error": 1.0}} for at in (0.25, 0.75)]
        bars = page.evaluate("rows => dots({ rows }, { name: 'longer' })[0][0].error_x", rows)
        assert (bars["arrayminus"], bars["array"]) == ([0.75, 0.25], [0.25, 0.75]), "a share ends at 0 and 1"
