"""afarm-people: `human:FILE` where commands take an annotator."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from afarm.cli import main
from afarm.core.plugins import discover
from afarm.experiment.recipe import resolve

pytestmark = pytest.mark.xdist_group("end_to_end")

PACKAGE = "afarm-people"


@pytest.mark.parametrize(
    ("given", "noise"),
    [
        ({"annotate": {"annotator": "human:labels.jsonl"}}, 0.0),
        ({"annotate": {"annotator": "human:labels.jsonl", "label_noise": 0.1}}, 0.1),
        ({"annotate": {"annotator": "reward:gold"}}, 0.25),
        ({}, 0.25),
    ],
)
def test_peoples_labels_have_no_noise_unless_it_is_asked_for(
    given: dict[str, Any], noise: float, on_the_path: None, tmp_path: Path
) -> None:
    assert resolve("toy", [given], discover()).run.annotate.label_noise == noise
    own = tmp_path / "own.yaml"  # JSON is YAML
    own.write_text(json.dumps({"based_on": "toy", **given}))
    assert resolve(str(own), [], discover()).run.annotate.label_noise == noise


def test_outputs_are_evaluated_by_peoples_labels(
    on_the_path: None, tmp_path: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    texts = [(f"say {n}", f"a {n}", f"b {n}") for n in range(8)]
    rows = [{"instruction": task, "output_1": a, "output_2": b, "source": "human"} for task, a, b in texts]
    labels = [{**row, "preference": 2 if n < 5 else 1} for n, row in enumerate(rows[:6])]
    (tmp_path / "labels.jsonl").write_text("".join(json.dumps(row) + "\n" for row in labels))
    for name, column in (("mine", "output_2"), ("theirs", "output_1")):
        outputs = [{"instruction": row["instruction"], "output": row[column], "generator": name} for row in rows]
        (tmp_path / f"{name}.json").write_text(json.dumps(outputs))
    with pytest.raises(SystemExit, match=r"^0$"):
        main(["evaluate", "mine.json", "--reference", "theirs.json", "--annotator", "human:labels.jsonl", "--json"])
    result = json.loads(capsys.readouterr().out)
    assert (result["judged_by"], result["metrics"]["win_rate"]) == ("people", pytest.approx(100 * 5 / 6))
    assert "no label for 2 of 8 pairs: they are left out" in caplog.text
    from afarm_people.draw import read_runs

    [run] = (tmp_path / "afarm-runs" / "runs").iterdir()
    for systems in (read_runs([run.name], Path("afarm-runs")), read_runs(["afarm-runs"], Path("elsewhere"))):
        assert {system: len(judged) for system, judged in systems.items()} == {"mine": 8}
    with pytest.raises(SystemExit, match=r"^1$"):
        main(["evaluate", "mine.json", "--reference", "theirs.json", "--annotator", "human:none.jsonl"])
    assert "Label them: afarm label none.pairs.jsonl" in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "name the pairs to label: afarm label PAIRS.jsonl, or afarm label --from-run RUN"),
        (["none.jsonl"], "none.jsonl: no such file"),
        (["pairs.jsonl", "--export", "labels.jsonl"], "there are no labels of pairs.jsonl yet"),
        (["pairs.jsonl", "--host", "0.0.0.0"], "--host 0.0.0.0 needs sign-in links, or anybody could label"),
        (["pairs.jsonl", "--address", "https://a.example"], "--address https://a.example needs sign-in links"),
        (["pairs.jsonl", "--people", "ann", "--certificate", "c.pem"], "--certificate and --key belong together"),
        (["pairs.jsonl", "--until", "decided"], "--until decided needs pairs of systems with one reference"),
        (["pairs.jsonl", "--guideline", "pairs.jsonl", "--gold", "pairs.jsonl"], "--gold takes pairs with a known"),
    ],
)
def test_what_cannot_be_served_is_said(
    arguments: list[str], said: str, on_the_path: None, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    row = {"instruction": "say", "output_1": "a", "output_2": "b", "preference": 1.5, "generator_1": "x"}
    (tmp_path / "pairs.jsonl").write_text(json.dumps(row))
    with pytest.raises(SystemExit, match=r"^[12]$"):
        main(["label", *arguments])
    assert said in " ".join(capsys.readouterr().err.replace("│", " ").split())
