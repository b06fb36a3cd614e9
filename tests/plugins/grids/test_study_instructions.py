"""`afarm study instructions` reads the recipe's data set, or files, and makes no run."""

from __future__ import annotations

import json
from pathlib import Path

from light_plugin import RAN
from said import Afarm, failed

STUDY = ["study", "instructions", "--recipe", "light.yaml"]


def test_the_data_set_or_files_are_read_and_nothing_is_run(afarm: Afarm, tmp_path: Path) -> None:
    said = afarm(*STUDY, "--json")
    assert said.code == 0, said.err
    assert RAN == []
    sets = {row["set"]: row["instructions"] for row in said.json["tables"]["sets"]}
    assert {"preference", "evaluation"} <= sets.keys()
    assert afarm("bundle", Path(said.json["page"]).parent.name, "--out", "mine.zip").code == 0
    again = afarm("replay", "mine.zip")
    assert again.code == 0, again.out + again.err

    (tmp_path / "own.json").write_text(json.dumps([{"instruction": "Name a river."}, {"instruction": "Name a sea."}]))
    said = afarm(*STUDY, "--instructions", "mine=own.json", "--json")
    assert [(row["set"], row["instructions"]) for row in said.json["tables"]["sets"]] == [("mine", 2)]
    [name] = said.json["tables"]["verbs"]
    assert (name["verb"], name["mine, %"][0]) == ("name", 100)
    failed(afarm(*STUDY, "--instructions", "gone.json"), "gone.json")
