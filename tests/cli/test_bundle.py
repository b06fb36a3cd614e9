"""`afarm bundle` and `afarm replay`: every table again from the file alone, no key in it, and hostile files refused."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path

import pytest
from light_plugin import RAN, CountingJudge
from said import Afarm
from test_command_line import failed
from test_study_calibrate import CALIBRATE, write_people

from afarm.bundles.archive import MANIFEST, write_archive

SWEEP = ["study", "sweep", "--recipe", "light.yaml", "--method", "nudge", "--seeds", "1,2"]


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
    for ending in ("sweep.csv", "sweep.tex", "report.md", "report.html", "win_rate.svg", "runs.csv"):
        assert f"studies/{directory.name}/{ending}" in same
    assert sum(what.endswith("judgements.jsonl") for what in same) == 4
    assert sum(what.endswith("preferences.jsonl") for what in same) == 2, "by seed"
    assert sum(what.endswith(": win_rate") for what in same) == 4
    again = Path("again/studies") / directory.name / "sweep.csv"
    assert again.read_bytes() == (tmp_path / "afarm-runs/studies" / directory.name / "sweep.csv").read_bytes()


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


def test_a_study_of_peoples_labels_takes_their_file_along(afarm: Afarm, tmp_path: Path) -> None:
    write_people(tmp_path / "people.json")
    page = Path(afarm(*CALIBRATE, "--json").json["page"])
    said = afarm("bundle", page.parent.name, "--out", "mine.zip", "--json")
    assert said.code == 0, said.err
    assert f"studies/{page.parent.name}/calibrated.yaml" in said.json["same"]
    (tmp_path / "people.json").unlink()
    asked = CountingJudge.asked
    assert afarm("replay", "mine.zip").code == 0
    assert CountingJudge.asked == asked


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


def test_a_bundle_reads_no_file_of_the_reviewer(afarm: Afarm, tmp_path: Path) -> None:
    secret = tmp_path / "secret.json"
    write_people(secret)
    study = {
        "name": "calibrate",
        "command": "",
        "settings": {"humans": [str(secret)]},
        "request": {"method": "nudge", "seeds": [1]},
        "runs": [],
        "records": {},
        "failed": {},
        "judging": {},
    }
    files = {
        "studies/x/study.json": json.dumps(study).encode(),
        "ledger/answers.jsonl": b"",
        "ledger/judgements.jsonl": b"",
    }
    write_archive(tmp_path / "x.zip", {"name": "x"}, files)
    said = afarm("replay", "x.zip", "--json")
    assert said.code == 1
    assert "names a file outside of it" in said.json["differs"]["studies/x"]
