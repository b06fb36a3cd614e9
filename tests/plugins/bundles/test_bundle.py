"""`afarm bundle` and `afarm replay`: every table again from the file alone, no key in it, and hostile files refused."""

from __future__ import annotations

import json
import shutil
import sys
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from labelled_people import CALIBRATE, write_people
from light_plugin import RAN, CountingJudge
from said import Afarm, Said, failed

from afarm import ChatRequest, Completion, read_run
from afarm.experiments import merge
from afarm.report import study_page as pages
from afarm.results import Ledger, Store
from afarm_plugins.bundles.archive import MANIFEST, write_archive
from afarm_plugins.bundles.packing import pack_run, with_files_changed, with_inputs_packed
from afarm_plugins.bundles.replay import relocate
from afarm_plugins.studies import model_size

SWEEP = ["study", "sweep", "--recipe", "light.yaml", "--method", "nudge", "--seeds", "1,2"]


@pytest.fixture(autouse=True)
def undrawn(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files of plots are no part of a bundle: they are drawn in one test."""
    if "drawn" not in request.fixturenames:
        monkeypatch.setattr(pages, "can_draw", lambda: False)


@pytest.fixture
def drawn() -> None:
    """Asks for files of plots."""


def made_study(afarm: Afarm) -> Path:
    page = afarm(*SWEEP, "--values", "nudge.skill=0.1,0.5", "--json").json["page"]
    return Path(page).parent


def test_a_study_is_replayed_from_its_bundle_alone(
    afarm: Afarm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = made_study(afarm)
    said = afarm("bundle", directory.name, "--out", "mine.zip", "--json")
    assert said.code == 0, said.err
    assert said.json["differs"] == {}
    first = Path("mine.zip").read_bytes()
    assert afarm("bundle", directory.name, "--out", "mine.zip").code == 0
    assert Path("mine.zip").read_bytes() == first, "equal contents are equal bytes"
    ran, asked = len(RAN), CountingJudge.asked
    empty = tmp_path / "reviewer"
    empty.mkdir()
    monkeypatch.chdir(empty)
    monkeypatch.setattr("socket.socket.connect", lambda *a: pytest.fail("it went to the network"))
    said = afarm("replay", "../mine.zip", "--into", "again", "--json")
    assert said.code == 0, said.err
    assert said.json["differs"] == {}
    same = said.json["same"]
    assert (len(RAN), CountingJudge.asked) == (ran, asked), "nothing was trained, sampled or asked"
    for ending in ("sweep.csv", "sweep.tex", "report.md", "report.html", "runs.csv"):
        assert f"studies/{directory.name}/{ending}" in same
    assert sum(what.endswith("judgements.jsonl") for what in same) == 4
    assert sum(what.endswith("preferences.jsonl") for what in same) == 2, "by seed"
    assert sum(what.endswith(": win_rate") for what in same) == 4
    again = Path("again/studies") / directory.name / "sweep.csv"
    assert again.read_bytes() == (tmp_path / "afarm-runs/studies" / directory.name / "sweep.csv").read_bytes()


def test_studies_of_models_are_replayed_where_these_are_not(afarm: Afarm, tmp_path: Path) -> None:
    """Named like models of the Hub, in directories here."""
    llama = {"model_type": "llama", "hidden_size": 8, "intermediate_size": 16, "num_attention_heads": 2}
    for name, layers in (("small", 1), ("large", 2)):
        shutil.copytree("base", f"org/{name}")
        config = {**llama, "num_hidden_layers": layers, "vocab_size": 32}
        Path(f"org/{name}/config.json").write_text(json.dumps(config))
    models, light = "org/small,org/large", ["--recipe", "light.yaml", "--seeds", "1", "--json"]
    said = afarm("study", "model-size", *light, "--models", models, "--methods", "nudge")
    sizes = {row["model"]: row["parameters"] for row in said.json["tables"]["model-size"]}
    assert 0 < sizes["small"] < sizes["large"]
    pages = [said.json["page"], afarm("study", "sweep", *light, "--values", f"model={models}").json["page"]]
    for number, page in enumerate(pages):
        said = afarm("bundle", Path(page).parent.name, "--out", f"{number}.zip", "--json")
        assert said.code == 0, said.err
    shutil.rmtree("org")
    for number, page in enumerate(pages):
        said = afarm("replay", f"{number}.zip", "--json")
        assert said.json["differs"] == {}
        assert f"studies/{Path(page).parent.name}/runs.csv" in said.json["same"]


def test_a_run_is_replayed_and_a_changed_answer_is_seen(afarm: Afarm, tmp_path: Path) -> None:
    afarm("run", "--recipe", "light.yaml", "--method", "nudge", "--seed", "1")
    [run] = (tmp_path / "afarm-runs" / "runs").iterdir()
    said = afarm("bundle", run.name, "--json")
    assert said.code == 0, said.err
    path = Path(said.json["bundle"])
    assert f"runs/{run.name}/report.html" in said.json["same"]
    with zipfile.ZipFile(path) as archive:
        files = {name: archive.read(name) for name in archive.namelist() if name != MANIFEST}
        about = json.loads(archive.read(MANIFEST))
    assert "requirements.txt" in files
    assert b"pytest==" in files["requirements.txt"]
    assert not any("weights" in name or "/train/" in name for name in files)
    lines = files["ledger/judgements.jsonl"].decode().splitlines()
    turned = [json.dumps({**json.loads(line), "first": 1 - json.loads(line)["first"]}) for line in lines]
    files["ledger/judgements.jsonl"] = "".join(f"{line}\n" for line in turned).encode()
    write_archive(Path("changed.zip"), {"name": about["name"]}, files)
    said = afarm("replay", "changed.zip", "--json")
    assert said.code == 1
    assert any(what.endswith("judgements.jsonl") for what in said.json["differs"])
    files["ledger/judgements.jsonl"] = files["ledger/answers.jsonl"] = b""
    write_archive(Path("without.zip"), {"name": about["name"]}, files)
    said = afarm("replay", "without.zip", "--json")
    assert any("answers are not in the bundle" in why for why in said.json["differs"].values())


@pytest.mark.parametrize("more", [[], ["--on-missing", "loss"], ["--until", "decided"], ["--annotations"]])
def test_a_comparison_of_files_is_replayed(afarm: Afarm, tmp_path: Path, more: list[str]) -> None:
    for name, words in (("mine", "word word"), ("theirs", "word")):
        rows = [{"instruction": f"i{n}", "output": f"{words} {n}", "generator": name} for n in range(6)]
        Path(f"{name}.json").write_text(json.dumps(rows[: 4 if more[:1] == ["--on-missing"] and name == "mine" else 6]))
    files = ["mine.json", "--reference", "theirs.json"]
    noisy = ["--annotator", "chatgpt_1", "--set", "evaluate.label_noise=0.2"]
    judged = afarm("evaluate", *files, "--recipe", "light.yaml", *noisy, *([] if "--annotations" in more else more))
    assert judged.code == 0, judged.err
    [run] = (tmp_path / "afarm-runs" / "runs").iterdir()
    if "--annotations" in more:
        stored = afarm("evaluate", "--annotations", str(run / "outputs.jsonl"), "--recipe", "light.yaml")
        assert stored.code == 0, stored.err
        [run] = {*(tmp_path / "afarm-runs" / "runs").iterdir()} - {run}
    said = afarm("bundle", run.name, "--out", "mine.zip", "--json")
    assert said.code == 0, said.err
    assert any(what.endswith("judgements.jsonl") for what in said.json["same"]) == ("--annotations" not in more)
    assert any(what.endswith(": win_rate") for what in said.json["same"])
    (run / "report.html").write_text("by another afarm")
    said = afarm("bundle", run.name, "--out", "other.zip")
    failed(said, "nothing was written")
    assert not list(tmp_path.glob("other.zip*"))


@pytest.mark.parametrize("annotator", ["chatgpt_1", "gpt4_3", "ratings"])
def test_labels_that_were_asked_for_again_are_replayed(
    afarm: Afarm, tmp_path: Path, annotator: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    complete = CountingJudge.complete

    async def often_unread(self: CountingJudge, request: ChatRequest) -> Completion:
        answer = await complete(self, request)
        asked = "".join(c.instruction.instruction for c in request.comparisons)
        is_read = "i3" not in asked and (request.sample_index % 100 == 1 or "i2" not in asked)
        return answer if is_read else replace(answer, text="", finish_reason="refusal")

    monkeypatch.setattr(CountingJudge, "complete", often_unread)
    for name in ("mine", "theirs"):
        rows = [{"instruction": f"i{n}", "output": f"{name} {n}", "generator": name} for n in range(6)]
        Path(f"{name}.json").write_text(json.dumps(rows))
    more = [] if annotator == "ratings" else ["--both-orders", "--votes", "2"]
    files = ["mine.json", "--reference", "theirs.json", "--recipe", "light.yaml", "--annotator", annotator, *more]
    assert afarm("evaluate", *files).code == 0
    [run] = (tmp_path / "afarm-runs" / "runs").iterdir()
    labels = read_run(run).stage("compare mine with theirs")
    assert labels
    assert labels["summary"]["outcomes"]["refused"] == 1
    said = afarm("bundle", run.name, "--json")
    assert said.code == 0, said.err
    assert any(what.endswith("judgements.jsonl") for what in said.json["same"])


def test_a_manifest_or_ledger_that_is_nested_too_deeply_is_named(afarm: Afarm, tmp_path: Path) -> None:
    deep = b"[" * 100_000
    write_archive(tmp_path / "x.zip", {"name": "x"}, {"ledger/answers.jsonl": deep, "ledger/judgements.jsonl": b""})
    failed(afarm("replay", "x.zip"), "the bundle's ledger cannot be read")
    with zipfile.ZipFile("deep.zip", "w") as archive:
        archive.writestr(MANIFEST, deep)
    failed(afarm("replay", "deep.zip"), "deep.zip: is no bundle")


def test_costs_of_runs_elsewhere_are_replayed_where_these_are_not(afarm: Afarm, tmp_path: Path) -> None:
    light = ["--recipe", "light.yaml"]
    for seed, place in (("1", "here"), ("2", "elsewhere")):
        assert afarm("run", *light, "--method", "nudge", "--seed", seed, "--output-dir", place).code == 0
    for more, runs in ((["--runs", "elsewhere"], 1), (["--runs", "elsewhere/runs", "--runs", "here"], 2), ([], 1)):
        said = afarm("study", "costs", *light, "--spend", "500", "--output-dir", "here", *more, "--json")
        assert [row["runs"] for row in said.json["tables"]["methods"]] == [runs]
        page = Path(said.json["page"])
        bundled = afarm("bundle", page.parent.name, "--output-dir", "here", "--out", f"{len(more)}.zip", "--json")
        assert bundled.code == 0, bundled.err
    shutil.rmtree("here")
    shutil.rmtree("elsewhere")
    for number in (2, 4, 0):
        said = afarm("replay", f"{number}.zip", "--json")
        assert said.json["differs"] == {}
        names = {Path(what).name for what in said.json["same"]}
        assert {"stages.csv", "methods.csv", "plan.csv", "report.html"} <= names


def test_a_study_that_makes_no_run_takes_none_along(afarm: Afarm, tmp_path: Path) -> None:
    afarm("run", "--recipe", "light.yaml", "--method", "nudge", "--seed", "1")
    said = afarm("study", "instructions", "--recipe", "light.yaml", "--splits", "sft,evaluation", "--json")
    page = Path(said.json["page"])
    for name in (page.parent.name, Path(afarm("study", "costs", "--json").json["page"]).parent.name):
        assert afarm("bundle", name, "--out", "mine.zip").code == 0
        with zipfile.ZipFile("mine.zip") as archive:
            assert not any(member.startswith(("runs/", "artifacts/")) for member in archive.namelist())


@pytest.mark.usefixtures("drawn")
def test_a_study_with_plots_for_print_is_replayed_without_matplotlib(
    afarm: Afarm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = Path(afarm(*SWEEP, "--values", "nudge.skill=0.1,0.5", "--plots", "pdf", "--json").json["page"])
    assert 'href="win_rate.pdf"' in page.with_suffix(".html").read_text()
    assert {path.suffix for path in page.parent.glob("win_rate.*")} >= {".svg", ".pdf"}
    said = afarm("bundle", page.parent.name, "--out", "mine.zip", "--json")
    assert said.code == 0, said.err
    monkeypatch.setattr(pages, "can_draw", lambda: False)
    said = afarm("replay", "mine.zip", "--into", "again", "--json")
    assert said.json["differs"] == {}
    assert not [path for path in Path("again").rglob("*") if path.suffix in (".svg", ".png", ".pdf")]


def test_facts_that_are_none_are_an_error_of_the_study(afarm: Afarm, tmp_path: Path) -> None:
    for runs in (7, [7], [{"stages": [{"seconds": [1]}]}]):
        shutil.rmtree("again", ignore_errors=True)
        said = replayed(afarm, tmp_path, "costs", {}, {"facts": {"runs": runs}})
        assert said.code == 1
        assert "study 'costs' failed" in said.json["differs"]["studies/x"]


def test_a_study_of_peoples_labels_takes_their_file_along(
    afarm: Afarm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_people(tmp_path / "people.json")
    assert afarm(*CALIBRATE, "--resamples", "21").code == 0  # another study, which pays for the answers
    page = Path(afarm(*CALIBRATE, "--json").json["page"])
    assert "These preferences are simulated" not in page.read_text()
    monkeypatch.setattr(CountingJudge, "simulated", True)
    assert Path(afarm(*CALIBRATE, "--json").json["page"]) == page
    for written in (page, page.with_suffix(".html")):
        assert "These preferences are simulated" in written.read_text(), "its judges are formulas"
    said = afarm("bundle", page.parent.name, "--out", "mine.zip", "--json")
    assert said.code == 0, said.err
    assert {f"studies/{page.parent.name}/{name}" for name in ("calibrated.yaml", page.name)} <= {*said.json["same"]}
    (tmp_path / "people.json").unlink()
    asked = CountingJudge.asked
    assert afarm("replay", "mine.zip").code == 0
    assert CountingJudge.asked == asked


def test_files_whose_names_have_an_equals_sign_are_found_in_the_bundle(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    given = ["a=b.json", "people=a=b.json", "people=c.json"]
    for name in ("a=b.json", "c.json"):
        Path(name).write_text(name)
    settings, files = with_inputs_packed({"humans": given})
    for name, data in files.items():
        (tmp_path / "bundle" / name).parent.mkdir(parents=True)
        (tmp_path / "bundle" / name).write_bytes(data)
    found = with_files_changed(settings["humans"], lambda named: relocate(named, tmp_path / "bundle"))
    first, second, third = found
    assert Path(first).read_text() == "a=b.json"
    assert Path(second.removeprefix("people=")).read_text() == "a=b.json"
    assert Path(third.removeprefix("people=")).read_text() == "c.json"


def test_no_key_goes_into_a_bundle(afarm: Afarm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    afarm("run", "--recipe", "light.yaml", "--method", "nudge", "--seed", "1")
    [run] = (tmp_path / "afarm-runs" / "runs").iterdir()
    monkeypatch.setenv("SOME_API_KEY", "an unusual passphrase")
    text = (run / "run.json").read_text()
    for secret in ("an unusual passphrase", "sk-abcdefghij0123456789abcdef"):
        (run / "run.json").write_text(text.replace('"afarm run', f'"afarm run --set note={secret}', 1))
        assert secret in (run / "run.json").read_text() or '"command"' in text
        (run / "metrics.jsonl").write_text(json.dumps({"stage": "x", "note": secret}) + "\n")
        failed(afarm("bundle", run.name, "--out", "mine.zip"), "holds what looks like a key: nothing was written")
        assert not Path("mine.zip").exists()


def test_what_cannot_be_bundled_is_named(afarm: Afarm, tmp_path: Path) -> None:
    failed(afarm("bundle", "nothing"), "no run and no study 'nothing' in afarm-runs")
    (tmp_path / "text.zip").write_text("no zip")
    failed(afarm("replay", "text.zip"), "text.zip: is no bundle, or was cut off")
    failed(afarm("replay", "nowhere.zip"), "nowhere.zip: cannot be read")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "x").write_text("")
    failed(afarm("replay", "text.zip", "--into", "full"), "full is not empty")


@pytest.mark.parametrize("named", ["{here}/own/secret.json", "own/secret.json", "inputs/../../secret.json", "secret"])
def test_a_bundle_reads_no_file_of_the_reviewer(afarm: Afarm, tmp_path: Path, named: str) -> None:
    (tmp_path / "own").mkdir()
    for path in (tmp_path / "own" / "secret.json", tmp_path / "secret"):
        write_people(path)
    said = replayed(afarm, tmp_path, "calibrate", {"humans": [named.format(here=tmp_path)]})
    assert said.code == 1
    assert "names a file outside of it" in said.json["differs"]["studies/x"]


def test_models_that_a_bundle_names_are_not_opened(
    afarm: Afarm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their sizes are those of its record, whatever that says."""
    monkeypatch.setattr(model_size, "read_parameter_count", lambda spec: pytest.fail(f"{spec} was opened"))
    afarm("run", "--recipe", "light.yaml", "--method", "nudge", "--seed", "1")
    [record] = (tmp_path / "afarm-runs" / "runs").iterdir()
    run = {"method": "nudge", "seed": 1, "place": {"model": "base", "method": "nudge"}, "settings": []}
    more = {
        "runs": [run],
        "records": {"nudge, model base, method nudge, seed 1": record.name},
        "facts": {"base": 10**400, "else": [1]},
    }
    files = {f"runs/{record.name}/run.json": (record / "run.json").read_bytes()}
    said = replayed(afarm, tmp_path, "model-size", {"models": f"{tmp_path}/base,../other"}, more, files)
    assert "The parameters of base are not known" in Path("again/studies/x/report.md").read_text(), said.err


@pytest.mark.parametrize("field", ["name", "kind", "key"])
@pytest.mark.parametrize("named", ["{here}/victim", "../../victim", "..\\..\\victim", "a\0", "..", ""])
def test_a_bundle_whose_record_names_a_place_outside_writes_nothing(
    afarm: Afarm, tmp_path: Path, field: str, named: str
) -> None:
    """Into a directory of the reviewer's, of which a run by that name would replace files."""
    (tmp_path / "victim").mkdir()
    (tmp_path / "victim" / "authorized_keys").write_text("mine")
    stage = {"stage": "annotate", "kind": "annotate", "key": "0a"}
    name = named.format(here=tmp_path)
    record = {"name": "mine", "config": {}, "results": [], "stages": [stage]}
    changed = record if field == "name" else stage
    changed[field] = name
    files = {
        "runs/mine/run.json": json.dumps(record).encode(),
        "runs/mine/authorized_keys": b"theirs",
        "ledger/answers.jsonl": b"",
        "ledger/judgements.jsonl": b"",
    }
    write_archive(tmp_path / "x.zip", {"name": "x"}, files)
    failed(afarm("replay", "x.zip", "--into", "again"), "must be the name of one file or folder")
    assert [path.name for path in (tmp_path / "victim").iterdir()] == ["authorized_keys"]
    assert (tmp_path / "victim" / "authorized_keys").read_text() == "mine"
    assert not list(Path("again").rglob("*/*"))


def test_a_record_with_another_plain_name_is_replayed_where_its_file_lies(afarm: Afarm, tmp_path: Path) -> None:
    afarm("run", "--recipe", "light.yaml", "--method", "nudge", "--seed", "1")
    [run] = (tmp_path / "afarm-runs" / "runs").iterdir()
    (run / "run.json").write_text(json.dumps({**json.loads((run / "run.json").read_text()), "name": "other"}))
    files = {f"runs/{run.name}/run.json": (run / "run.json").read_bytes()}
    files |= {"ledger/answers.jsonl": b"", "ledger/judgements.jsonl": b""}
    write_archive(tmp_path / "x.zip", {"name": "x"}, files)
    afarm("replay", "x.zip", "--into", "again")
    assert [path.name for path in Path("again/runs").iterdir()] == [run.name]


def test_no_file_that_a_link_leads_to_goes_into_a_bundle(afarm: Afarm, tmp_path: Path) -> None:
    afarm("run", "--recipe", "light.yaml", "--method", "nudge", "--seed", "1")
    [run] = (tmp_path / "afarm-runs" / "runs").iterdir()
    (tmp_path / "secret").write_text('{"private": 1}\n')
    [judged] = (tmp_path / "afarm-runs" / "artifacts" / "annotate").glob("[!.]*")
    for place in (run / "metrics.jsonl", judged / "more.jsonl"):
        place.unlink(missing_ok=True)
        place.symlink_to(tmp_path / "secret")
    with Ledger(Store(Path("afarm-runs")).ledger_path) as ledger:
        files = pack_run(Path("afarm-runs"), read_run(run), ledger)
    assert f"runs/{run.name}/run.json" in files
    assert not any(b"private" in data for data in files.values())


def replayed(
    afarm: Afarm,
    tmp_path: Path,
    name: str,
    settings: Mapping[str, Any],
    more: Mapping[str, Any] | None = None,
    further: Mapping[str, bytes] | None = None,
) -> Said:
    """Replay a bundle of a study that somebody wrote by hand."""
    study = {
        "name": name,
        "command": "",
        "settings": settings,
        "request": {"method": "nudge", "seeds": [1]},
        "runs": [],
        "records": {},
        "failed": {},
        "judging": {},
        **(more or {}),
    }
    files = {
        "studies/x/study.json": json.dumps(study).encode(),
        "ledger/answers.jsonl": b"",
        "ledger/judgements.jsonl": b"",
        **(further or {}),
    }
    write_archive(tmp_path / "x.zip", {"name": "x"}, files)
    return afarm("replay", "x.zip", "--into", "again", "--json")


PLACES = {
    "an annotator on a model": {"annotate": {"annotator": "reward:{evil}"}, "evaluate": {"annotator": "reward:{evil}"}},
    "an annotator on a classifier": {
        "annotate": {"annotator": "reward:classifier:evil/hub"},
        "evaluate": {"annotator": "reward:classifier:{evil}"},
    },
    "a judge of the Hub": {"judge": {"*": "local:evil/hub"}},
    "a judge in a directory": {"judge": {"*": "local:{evil}"}},
    "a section": {"fitted": {"encoder": "evil/hub"}, "annotate": {"annotator": "fitted"}, "judge": {"*": "fitted"}},
    "a pool and a recipe": {"annotate": {"annotator": "pool:{evil}/pool.yaml"}, "based_on": "{evil}/pool.yaml"},
    "an evaluator": {"evaluate": {"evaluators": ["fitted:{evil}", "win_rate"]}},
    "a judge on stored answers": {"judge": {"*": "replay:{evil}/rows.json"}},
    "a fitted judge": {"judge": {"*": "fitted:{evil}"}},
    "a fitted annotator": {"annotate": {"annotator": "fitted:{evil}"}},
    "files of an annotator": {
        "criteria": {"auxiliary": ["{evil}/rows.json"]},
        "annotate": {"annotator": "criteria"},
        "evaluate": {"annotator": "criteria"},
    },
    "files of an evaluator": {
        "length_controlled": {"difficulty": "{evil}/rows.json", "weights": "{evil}/table.csv"},
        "evaluate": {"evaluators": ["length_controlled", "win_rate"]},
    },
    "a prompt and prices": {"prompt_template": "{evil}/prompt.jinja", "prices": "{evil}/prices.yaml"},
    "pairs to learn from": {"preferences": "{evil}/rows.json", "evaluate": {"set": "{evil}/rows.json"}},
    "data": {"eval_set": "hf:evil/hub", "dataset": "{evil}/config.json", "model": "evil/hub"},
    "a reward function": {
        "judge": {"*": "offline:function:{evil}/rewards.py:length"},
        "function": {"columns": "{evil}/rows.json"},
        "reward_model": "function:{evil}/rewards.py:length",
        "annotate": {"annotator": "reward:sum:function:{evil}/rewards.py:length"},
    },
}


def test_a_run_in_a_bundle_opens_nothing_that_it_names(afarm: Afarm, tmp_path: Path) -> None:
    """Neither a model, nor a file, nor an address, wherever the settings name it."""
    afarm("run", "--recipe", "light.yaml", "--method", "nudge", "--seed", "1")
    [run] = (tmp_path / "afarm-runs" / "runs").iterdir()
    assert afarm("bundle", run.name, "--out", "mine.zip").code == 0
    evil = tmp_path / "evil"
    evil.mkdir()
    for name in ("config.json", "class.json", "judge.json", "pool.yaml", "prompt.jinja", "prices.yaml", "table.csv"):
        (evil / name).write_text("{}")
    (evil / "rows.json").write_text('[{"instruction": "a", "output": "b", "generator": "c"}]')
    (evil / "rewards.py").write_text("def length(completions):\n    return list(map(len, completions))\n")
    with zipfile.ZipFile("mine.zip") as archive:
        files = {name: archive.read(name) for name in archive.namelist() if name != MANIFEST}
    record = json.loads(files[f"runs/{run.name}/run.json"])
    for row in record["results"]:
        row["needs"] = ["judgements"]
    opened_by_place = {}
    for place, settings in PLACES.items():
        named = json.loads(json.dumps(settings).replace("{evil}", str(evil)))
        changed = {**record, "config": merge(record["config"], named)}
        files[f"runs/{run.name}/run.json"] = json.dumps(changed).encode()
        write_archive(Path("changed.zip"), {"name": run.name}, files)
        with opened_below(evil) as opened:
            said = afarm("replay", "changed.zip", "--json")
        assert said.code in (0, 1), said.err
        opened_by_place[place] = opened
    assert opened_by_place == {place: [] for place in PLACES}


@pytest.mark.parametrize(
    ("name", "judging"),
    [
        ("instructions", {"eval_set": "{evil}/rows.json"}),
        ("instructions", {"eval_set": "hf:evil/hub"}),
        ("instructions", {"dataset": "instructions", "instructions": {"path": "{evil}/rows.json"}}),
        ("instructions", {"dataset": "alpaca_farm", "alpaca_farm": {"repository": "evil/hub"}}),
        ("calibrate", {"judge": {"*": "local:evil/hub"}}),
        ("calibrate", {"judge": {"light": "local:{evil}"}}),
    ],
)
def test_a_study_in_a_bundle_opens_nothing_that_it_names(
    afarm: Afarm, tmp_path: Path, name: str, judging: dict[str, Any]
) -> None:
    evil = tmp_path / "evil"
    evil.mkdir()
    (evil / "rows.json").write_text('[{"instruction": "a", "output": "b"}]')
    asked: dict[str, dict[str, Any]] = {
        "instructions": {"splits": "evaluation"},
        "calibrate": {"humans": ["inputs/people.json"]},
    }
    write_people(tmp_path / "people.json")
    files = {"inputs/people.json": (tmp_path / "people.json").read_bytes()}
    judging = json.loads(json.dumps(judging).replace("{evil}", str(evil)))
    with opened_below(evil) as opened:
        said = replayed(afarm, tmp_path, name, asked[name], {"judging": judging}, files)
    [why] = said.json["differs"].values()
    assert "names a file outside of it" in why or "not opened" in why
    assert opened == []


def test_what_was_judged_from_files_is_replayed_where_these_are_not(afarm: Afarm, tmp_path: Path) -> None:
    """Their labels are those of the record, which is said, and the figures are made again."""
    for name, words in (("mine", "word word"), ("theirs", "word")):
        rows = [{"instruction": f"i{n}", "output": f"{words} {n}", "generator": name} for n in range(6)]
        Path(f"{name}.json").write_text(json.dumps(rows))
    Path("own.yaml").write_text("members: [chatgpt_1]")
    shutil.copy("mine.json", "auxiliary.json")
    files = ["mine.json", "--reference", "theirs.json", "--recipe", "light.yaml"]
    afarm("evaluate", *files, "--annotator", "chatgpt_1")
    [first] = (tmp_path / "afarm-runs" / "runs").iterdir()
    shutil.copy(first / "outputs.jsonl", "stored.jsonl")
    for judged in (
        ["--annotator", "chatgpt_1", "--judge", "replay:stored.jsonl"],
        ["--annotator", "pool:own.yaml"],
        ["--annotator", "criteria", "--set", "criteria.auxiliary=[auxiliary.json]"],
    ):
        before = {*(tmp_path / "afarm-runs" / "runs").iterdir()}
        said = afarm("evaluate", *files, *judged)
        assert said.code == 0, said.err
        [run] = {*(tmp_path / "afarm-runs" / "runs").iterdir()} - before
        said = afarm("bundle", run.name, "--out", f"{len(before)}.zip")
        assert said.code == 0, said.err
    Path("stored.jsonl").unlink()
    Path("own.yaml").unlink()
    Path("auxiliary.json").unlink()
    found = [afarm("replay", f"{number}.zip", "--json").json for number in (1, 2, 3)]
    assert [replay["differs"] for replay in found] == [{}, {}, {}]
    assert [[Path(what).name for what in replay["kept"]] for replay in found] == 3 * [["judgements.jsonl"]]
    assert all(any(what.endswith(": win_rate") for what in replay["same"]) for replay in found)


WATCHES: dict[Path, list[str]] = {}


def hear_opened(event: str, arguments: tuple[Any, ...]) -> None:
    for below, opened in WATCHES.items():
        if event in ("socket.connect", "socket.getaddrinfo") or (
            event == "open" and str(arguments[0]).startswith(str(below))
        ):
            opened.append(f"{event} {arguments}")


sys.addaudithook(hear_opened)  # cannot be taken away


@contextmanager
def opened_below(directory: Path) -> Iterator[list[str]]:
    """Collect the files below a directory that are opened inside, and connections."""
    WATCHES[directory] = []
    try:
        yield WATCHES[directory]
    finally:
        del WATCHES[directory]
