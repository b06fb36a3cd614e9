"""`afarm study costs` reads the records of the runs that are there, and makes none."""

from __future__ import annotations

import pytest
from light_plugin import RAN
from said import Afarm


def test_costs_are_read_off_stored_runs_with_a_plan(afarm: Afarm) -> None:
    said = afarm("study", "costs", "--recipe", "light.yaml", "--json")
    assert said.json["notes"] == ["There is no stored run to read costs from."]
    for seed in ("1", "2"):
        assert afarm("run", "--recipe", "light.yaml", "--method", "nudge", "--seed", seed).code == 0
    ran = len(RAN)
    said = afarm("study", "costs", "--recipe", "light.yaml", "--spend", "5000", "--json")
    assert said.code == 0, said.err
    assert len(RAN) == ran
    stages = {(row["system"], row["stage"]): row for row in said.json["tables"]["stages"]}
    assert stages["shared", "annotate"]["times made"] == 2
    own = next(row for (system, stage), row in stages.items() if stage == "evaluate" and "nudge" in system)
    assert own["judge, $"] == pytest.approx(own["judge calls"] * 0.001)
    assert own["GPU-hours"] is None, "the light backend is on no device"
    [method] = said.json["tables"]["methods"]
    assert (method["runs"], method["frontier"]) == (2, "yes")
    assert method["judge, $"] == pytest.approx(own["judge, $"] + stages["shared", "annotate"]["judge, $"])
    plan = {row["plan"]: row for row in said.json["tables"]["plan"]}
    assert plan["total, $"]["as asked"] <= 5000
