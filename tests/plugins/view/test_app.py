"""The application over HTTP: what it answers, what it refuses, and that what is hostile stays text."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from afarm import Bounded, Findings, Series, StudyPlot, StudyTable
from afarm.experiments import GridProgress
from afarm.report import ShownStudy, write_comparison, write_study
from afarm_plugins.view.app import View, view_app
from afarm_plugins.view.live_record import process_identity
from afarm_plugins.view.page import NEEDS, PAGES, STATIC, static_file

IdOf = Callable[[View, str], str]
WriteRun = Callable[..., Path]
HOME = "http://127.0.0.1:8640"


def client_of(view: View, *hosts: str) -> TestClient:
    return TestClient(view_app(view, hosts), base_url=HOME)


def test_every_page_answers_with_its_scripts_and_the_policy(client: TestClient, view: View, id_of: IdOf) -> None:
    run = id_of(view, "nudge")
    pages = [file for file, _ in PAGES.values()]
    for address in ["/", *(f"/{file}" for file in pages), "/compare.html", f"/run/{run}.html", f"/outputs/{run}.html"]:
        answer = client.get(address)
        assert answer.status_code == 200, address
        assert "default-src 'none'; script-src 'self'" in answer.headers["content-security-policy"]
        assert "<script>" not in answer.text, "scripts are files"
        root = "../" if address.count("/") > 1 else ""
        assert f'src="{root}static/elements.js"' in answer.text
    assert {name for names in NEEDS.values() for name in names} <= {name.removesuffix(".js") for name in STATIC}
    for name in STATIC:
        assert client.get(f"/static/{name}").status_code == 200


def test_data_say_what_is_there(client: TestClient, view: View, id_of: IdOf) -> None:
    first, second = id_of(view, "nudge"), id_of(view, "direct")
    assert {run["id"] for run in client.get("/data/runs.json").json()["runs"]} == {first, second}
    details = client.get(f"/data/run/{first}.json").json()
    assert details["stages"][-1]["stage"] == "evaluate nudge against base"
    assert details["commands"]["report"].startswith(f"afarm report {details['name']} --output-dir ")
    assert client.get(f"/data/outputs/{first}.json?count=3").json()["of"] == 10
    compared = client.get(f"/data/compare.json?run={first}&run={second}").json()
    assert {row["name"] for row in compared["settings"]} == {"method"}
    assert compared["differences"][0]["shared"] == 10
    [store] = client.get("/data/artifacts.json").json()["stores"]
    by_label = {row["label"]: row for row in store["rows"]}
    trained = by_label["train nudge"]
    assert by_label["fit-reward"]["name"] in trained["inputs"]
    assert trained["name"] in by_label["outputs nudge"]["inputs"]
    assert sorted(by_label["annotate"]["runs"]) == sorted([first, second]), "both runs share the labels"


def test_what_has_not_changed_is_not_sent_again(client: TestClient) -> None:
    first = client.get("/data/artifacts.json")
    again = client.get("/data/artifacts.json", headers={"if-none-match": first.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")
    assert first.headers["content-encoding"] == "gzip"
    assert first.headers["vary"].lower() == "accept-encoding"


@pytest.mark.parametrize(
    "host",
    [
        *("evil.example", "evil.example:8640", "127.0.0.1.evil.example", "", "localhost.evil", "[::1].evil.example"),
        *("[::1].evil.example:8640", "[::1]evil", "a@127.0.0.1", "127.0.0.1/x", "127.0.0.1#x", "127.0.0.1:x"),
    ],
)
def test_another_host_is_refused(client: TestClient, host: str) -> None:
    """A site whose name leads to this machine (DNS rebinding) sends that name."""
    for address in ("/", "/data/runs.json", "/static/elements.js"):
        answer = client.get(address, headers={"host": host})
        assert answer.status_code == 403
        assert "--allow-host" in answer.text


@pytest.mark.parametrize(
    "host", ["127.0.0.1:8640", "localhost:1", "[::1]:8640", "192.168.1.5", "BOX.lan:8640", "[::1]"]
)
def test_its_own_addresses_and_allowed_names_are_answered(view: View, host: str) -> None:
    assert client_of(view, "box.lan").get("/", headers={"host": host}).status_code == 200


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
def test_pages_of_other_sites_get_no_data(client: TestClient, site: str) -> None:
    assert client.get("/data/runs.json", headers={"sec-fetch-site": site}).status_code == 403
    assert client.get("/", headers={"sec-fetch-site": site}).status_code == 200, "a link may lead here"


@pytest.mark.parametrize(
    "name",
    ["../../etc/passwd", "%2e%2e%2f%2e%2e%2fetc%2fpasswd", "..%5c..", "run.json", "a%00b", "%ff", "x" * 5000],
)
def test_names_are_looked_up_and_never_joined_to_a_path(client: TestClient, name: str) -> None:
    for address in ("run/{}.json", "outputs/{}.json", "pair/{}/0.json"):
        answer = client.get("/data/" + address.format(name))
        assert answer.status_code == 404
        assert "root:" not in answer.text
    for address in ("static/{}", "document/{}", "document/0/boards/{}", "report/{}.html"):
        assert client.get("/" + address.format(name)).status_code == 404


@pytest.mark.parametrize(
    "query", ["order=price", "verdict=x", "longer_from=many", "flips=nothing", "kind=<script>", "from=-1&order=%00"]
)
def test_a_wrong_query_says_what_is_wrong(client: TestClient, view: View, id_of: IdOf, query: str) -> None:
    answer = client.get(f"/data/outputs/{id_of(view, 'nudge')}.json?{query}")
    assert answer.status_code == 404
    assert answer.json()["problem"]


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH"])
def test_nothing_is_written(client: TestClient, method: str) -> None:
    for address in ("/", "/data/runs.json", "/static/elements.js"):
        assert client.request(method, address).status_code == 405


def test_control_characters_are_shown_as_text(write_run: WriteRun) -> None:
    directory = write_run("plain", {"method": "\x1b]0;x\x07‮evil", "results": []})
    text = client_of(View([directory.parents[1]])).get("/data/runs.json").text
    assert "\\\\x1b]0;x\\\\x07\\\\u202eevil" in text


def test_hostile_names_do_not_leave_their_quotes(write_run: WriteRun) -> None:
    attack = '"><script>alert(1)</script>'
    directory = write_run(attack.replace("/", "∕"), {"method": attack})
    client = client_of(View([directory.parents[1]]))
    [row] = client.get("/data/runs.json").json()["runs"]
    page = client.get(f"/run/{row['id']}.html").text
    assert "alert" not in page
    assert "alert" not in client.get("/run/%22%3E%3Cscript%3Ealert(1)%3C.html").text.replace("&lt;script&gt;alert", "")


def test_documents_run_in_an_origin_of_their_own(made: Path, output_dir: Path) -> None:
    (output_dir / "boards").mkdir()
    (output_dir / "boards" / "a&b.html").write_text("<script>alert(1)</script>")
    (output_dir / "boards" / "key.pem").write_text("secret")
    (output_dir / "boards" / "link.md").symlink_to("/etc/passwd")
    client = client_of(View([output_dir]))
    [board] = client.get("/data/boards.json").json()["boards"]
    assert [file["name"] for file in board["files"]] == ["a&b.html"]
    run = next(iter((output_dir / "runs").iterdir()))
    (run / "report.html").write_text("<p>a report")
    linked = client.get(f"/document/0/boards/../runs/{run.name}/report.html")
    assert linked.text == "<p>a report", "a board's links to its runs hold"
    assert linked.headers["content-security-policy"].startswith("sandbox allow-scripts;")
    assert client.get(f"/document/0/runs/{run.name}/run.json").status_code == 404
    assert client.get(f"/document/1/runs/{run.name}/report.html").status_code == 404
    answer = client.get("/document/0/boards/a%26b.html")
    assert answer.headers["content-security-policy"].startswith("sandbox allow-scripts;")
    assert client.get("/document/0/boards/key.pem").status_code == 404
    assert client.get("/document/0/boards/link.md").status_code == 404


def test_boards_and_studies_lead_with_what_their_pages_lead_with(output_dir: Path) -> None:
    table = StudyTable(
        "board", "Ranking", {"system": "", "win rate, %": ".1f"}, [["</script>ppo", Bounded(60.0, 55, 65)]]
    )
    plot = StudyPlot("rates", "Win rates", "", "win rate, %", [Series("", ["a", "b"], [Bounded(60), Bounded(40)])])
    findings = Findings([table], [plot], answer="ppo first")
    (output_dir / "boards").mkdir()
    write_comparison(
        output_dir / "boards" / "x.html", ShownStudy("ppo, dpo", "afarm compare", GridProgress(()), findings)
    )
    write_study(output_dir / "studies" / "y", ShownStudy("y", "afarm study y", GridProgress(()), findings))
    found = client_of(View([output_dir])).get("/data/boards.json").json()
    for [row], title in ((found["boards"], "ppo, dpo"), (found["studies"], "y")):
        summary = row["summary"]
        assert (summary["title"], summary["answer"], summary["chart"]["title"]) == (title, "ppo first", "Win rates")
        assert summary["table"]["columns"] == [["system", False], ["win rate, %", True]]
        assert summary["table"]["rows"] == [[["</script>ppo", "", ""], ["60.0", "55.0 to 65.0", "60.0"]]]


@pytest.mark.filterwarnings("error")
def test_a_pipe_in_the_place_of_outputs_is_named_and_not_waited_for(output_dir: Path) -> None:
    view = View([output_dir])
    run = next(iter(view.sources.runs().values()))
    (run.directory / "outputs.jsonl").unlink()
    os.mkfifo(run.directory / "outputs.jsonl")
    answer = client_of(view).get(f"/data/outputs/{run.id}.json")
    assert (answer.status_code, "outputs.jsonl: is no file" in answer.text) == (404, True)


# -------------------------------------------------------------------------------------------------------- stopping


@pytest.fixture
def sleeper(write_run: WriteRun) -> Any:
    """A process with a run that says it is making it."""
    code = "import sys, time; print('up', flush=True); time.sleep(600)"
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    process.stdout.readline()
    directory = write_run("sleeper")
    record = {"status": "running", "method": "ppo", "updated": time.time(), **process_identity(process.pid)}
    (directory / "live.json").write_text(json.dumps(record))
    yield process, directory
    process.kill()
    process.wait()
    process.stdout.close()


def asked(client: TestClient, token: str, **headers: str) -> Any:
    return client.post("/stop/sleeper", headers={"x-afarm-token": token, "origin": HOME, **headers})


def test_a_run_is_stopped_by_the_views_own_page_alone(sleeper: Any) -> None:
    process, directory = sleeper
    view = View([directory.parents[1]], may_stop=True)
    client = client_of(view)
    assert f'data-token="{view.token}"' in client.get("/run/sleeper.html").text
    for answer in (
        asked(client, ""),
        asked(client, "wrong"),
        asked(client, view.token, origin="http://evil.example"),
        asked(client, view.token, origin="null"),
        asked(client, view.token, **{"sec-fetch-site": "cross-site"}),
        client.post("/stop/sleeper", headers={"x-afarm-token": view.token}),
        client.get("/stop/sleeper", headers={"x-afarm-token": view.token, "origin": HOME}),
    ):
        assert answer.status_code in (403, 405)
        assert process.poll() is None
    answer = asked(client, view.token)
    assert (answer.status_code, answer.json()["done"].split(";")[0]) == (
        200,
        f"process {process.pid} was asked to stop",
    )
    assert process.wait(60) == -signal.SIGINT
    assert asked(client, view.token).status_code == 409, "it is not running any more"


def test_a_view_that_only_reads_stops_nothing(sleeper: Any) -> None:
    process, directory = sleeper
    view = View([directory.parents[1]])
    client = client_of(view)
    assert 'data-token=""' in client.get("/run/sleeper.html").text
    assert asked(client, "").json()["problem"] == "this view only reads: afarm view --allow-stop"
    assert process.poll() is None


@pytest.mark.parametrize("change", [{"process_start": "1"}, {"host": "other"}, {"pid": 1}, {"pid": True}, {"pid": -1}])
def test_no_other_process_is_stopped(sleeper: Any, change: dict[str, Any]) -> None:
    process, directory = sleeper
    record = json.loads((directory / "live.json").read_text())
    (directory / "live.json").write_text(json.dumps({**record, **change}))
    view = View([directory.parents[1]], may_stop=True)
    assert asked(client_of(view), view.token).status_code == 409
    assert process.poll() is None


def test_plotly_comes_from_the_package() -> None:
    found = static_file("plotly.js")
    assert found is not None
    assert len(found[0]) > 1_000_000
    assert static_file(os.path.join("..", "app.py")) is None


def test_a_run_tells_the_settings_that_most_of_its_method_have_otherwise(write_run: WriteRun, tmp_path: Path) -> None:
    def write(name: str, method: str, created: float, **config: Any) -> None:
        about = {"recipe": "toy", "method": method, "created": created, "config": config}
        write_run(name, {"stages": [], "results": [], "files": {}, "headline": {"win_rate": 50.0}, **about})

    write("old", "ppo", 1.0, seed=1, ppo={"kl": 0.2}, annotate={"noise": 0.0})
    write("same", "ppo", 2.0, seed=2, budget=1.0, ppo={"kl": 0.2}, annotate={"noise": 0.0})
    write("new", "ppo", 3.0, seed=1, ppo={"kl": "x" * 99}, annotate={"noise": 0.25})
    write("other", "dpo", 4.0, seed=1, annotate={"noise": 0.25})
    view = View([tmp_path / "hand"])
    told = {run["name"]: run["settings"] for run in view.table()["runs"]}
    assert told["old"] == told["same"] == told["other"] == []
    assert told["new"][0] == "annotate.noise=0.25"
    assert told["new"][1].startswith("ppo.kl=xxx")
    assert len(told["new"][1]) < 60
    assert {run["name"]: run["settings"] for run in view.costs()["runs"]} == told


def test_curves_of_a_stage_that_runs_share_are_not_compared(write_run: WriteRun, tmp_path: Path) -> None:
    for number, name in enumerate(("one", "two")):
        stages = [{"stage": "sft", "key": "5f7"}, {"stage": "train ppo", "key": f"7a{number}"}]
        directory = write_run(name, {"headline": {}, "results": [], "stages": stages, "created": number})
        lines = [{"stage": "sft", "step": step, "loss": 1.0 / step} for step in (1, 2, 3)]
        lines += [{"stage": "train", "step": step, "reward": step} for step in (1, 2, 3)]
        (directory / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    view = View([tmp_path / "hand"])
    assert [chart["name"] for chart in view.comparison(["one", "two"])["charts"]] == ["reward"]
