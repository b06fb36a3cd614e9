"""`afarm study calibrate`: judges label people's pairs on its account, and the pool that comes of it is used."""

from __future__ import annotations

import json
import re
from pathlib import Path

import yaml
from labelled_people import CALIBRATE, write_people
from light_plugin import CountingJudge
from said import Afarm, failed


def test_a_pool_is_fitted_to_people_and_then_labels(afarm: Afarm, tmp_path: Path) -> None:
    write_people(tmp_path / "people.json")
    planned = afarm(*CALIBRATE, "--dry-run", "--json")
    assert CountingJudge.asked == 0
    assert not (tmp_path / "afarm-runs").exists()
    said = afarm(*CALIBRATE, "--json")
    assert said.code == 0, said.err
    left = [row for row in json.loads((tmp_path / "people.json").read_text()) if row["output_1"] != row["output_2"]]
    assert CountingJudge.asked == len(left) * 13 * 2, "each member, in both orders"
    assert planned.json["stages"][0]["calls"] > 0
    fit = {row["parameter"]: row for row in said.json["tables"]["fit"]}
    assert fit["position"]["reading"] == "kept at prior"
    assert 5 < fit["noise, %"]["fitted"][0] < 35
    assert [row["system"] for row in said.json["tables"]["rankings"]] != []
    page = Path(said.json["page"])
    said_first = (
        r"On labels of people that it did not see, .* of [\d.]+ \([\d. to]+\) %; it predicts them [\w ]+ than the pool"
    )
    assert re.search(said_first, page.with_suffix(".md").read_text())
    pool = page.with_name("calibrated.yaml")
    assert yaml.safe_load(pool.read_text())["calibration"]["noise"] == round(fit["noise, %"]["fitted"][0] / 100, 4)
    assert afarm(*CALIBRATE, "--json").json == said.json
    assert CountingJudge.asked == len(left) * 13 * 2, "no answer is paid for twice"
    light = ["run", "--recipe", "light.yaml", "--annotator", f"pool:{pool}"]
    failed(afarm(*light, "--label-noise", "0.1"), "has its noise: add --label-noise 0")
    assert afarm(*light, "--label-noise", "0").code == 0


def test_what_cannot_be_fitted_is_refused_before_a_judge_is_asked(afarm: Afarm, tmp_path: Path) -> None:
    failed(afarm("study", "calibrate", "--recipe", "light.yaml"), "needs people's labels: --humans FILE")
    write_people(tmp_path / "people.json", 20)
    failed(afarm(*CALIBRATE), "too few to tell a pool's noise from chance")
    failed(afarm(*CALIBRATE, "--pool", "nowhere.yaml"), "nowhere.yaml cannot be read")
    assert CountingJudge.asked == 0
