"""Artifacts that were changed after they were made: found before they are used, with the way out."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from light_farm import Make, light_farm
from light_plugin import RAN, CountingJudge

from afarm.cli import main
from afarm.core.errors import AfarmError, StoreError
from afarm.experiment.dry_run import plan_run
from afarm.storage import contents

LABEL = {"annotate": "annotate", "evaluate": "evaluate nudge against sft", "train": "train nudge"}


def lines_of(path: Path) -> list[str]:
    return path.read_text().splitlines(keepends=True)


def flip(path: Path) -> None:
    """Turn the first rows' preferences round, as many bytes as before."""
    rows = [json.loads(line) for line in lines_of(path)]
    for row in rows:
        row["preference"] = {1: 2, 2: 1}.get(row["preference"], row["preference"])
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))


def edit_win_rate(path: Path) -> None:
    rows = [json.loads(line) for line in lines_of(path)]
    rows[0]["metrics"]["win_rate"] = 99.0
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))


def cut(path: Path) -> None:
    lines = lines_of(path)
    path.write_text("".join(lines[: len(lines) // 2]))


def empty(path: Path) -> None:
    path.write_text("")


def alter_bytes(path: Path) -> None:
    path.write_bytes(bytes(byte ^ 1 for byte in path.read_bytes()))


DAMAGES = {
    "flipped judgements": ("evaluate", "judgements.jsonl", flip),
    "an edited win rate": ("evaluate", "results.jsonl", edit_win_rate),
    "half of the judgements": ("evaluate", "judgements.jsonl", cut),
    "no judgements": ("evaluate", "judgements.jsonl", empty),
    "flipped preferences": ("annotate", "preferences.jsonl", flip),
    "a part of the preferences": ("annotate", "preferences.jsonl", cut),
    "altered weights": ("train", "model/policy.json", alter_bytes),
    "a deleted file": ("train", "model/policy.json", Path.unlink),
    "an added file": ("train", "model/adapter.json", lambda path: path.write_text("{}")),
    "edited metadata": (
        "annotate",
        contents.META,
        lambda path: path.write_text(path.read_text().replace('"seed": 42', '"seed": 43')),
    ),
}


def damage(make: Make, case: str) -> Path:
    """Run an experiment, then damage an artifact of it, whose directory is returned."""
    with make() as finished:
        finished.evaluate("nudge")
        stage, name, change = DAMAGES[case]
        directory = Path(finished.workspace.history[LABEL[stage]].artifact.path)
    change(directory / name)
    RAN.clear()
    return directory


@pytest.mark.parametrize("case", DAMAGES)
def test_a_damaged_artifact_is_refused_with_the_way_out(case: str, farm: Make) -> None:
    directory = damage(farm, case)
    stage, name, _ = DAMAGES[case]
    again = farm()
    for use in (lambda: again.evaluate("nudge"), lambda: plan_run(farm().workspace, "nudge")):
        with pytest.raises(StoreError) as caught:
            use()
        label = "is damaged" if name == contents.META else repr(LABEL[stage])
        for told in (name, str(directory), label, "`afarm artifacts verify --remove --output-dir"):
            assert told in str(caught.value)
    assert RAN == []


def test_shortened_preferences_do_not_reach_the_reward_model_under_its_clean_key(farm: Make) -> None:
    directory = damage(farm, "a part of the preferences")
    fitted = farm().workspace.store.artifacts / "fit-reward"
    shutil.rmtree(fitted)
    with pytest.raises(StoreError, match=r"preferences\.jsonl has .* bytes, not "):
        farm().evaluate("nudge")
    assert not fitted.exists()
    assert directory.exists()


def test_what_is_removed_is_made_again_without_buying_an_answer_twice(
    farm: Make, capsys: pytest.CaptureFixture[str]
) -> None:
    directory = damage(farm, "flipped preferences")
    asked, before = CountingJudge.asked, contents.META
    root = str(farm().workspace.store.root)
    with pytest.raises(SystemExit) as stop:
        main(["artifacts", "verify", "--output-dir", root])
    assert stop.value.code == 1
    [line, total] = capsys.readouterr().out.splitlines()
    assert line == f"annotate/{directory.name} (annotate): preferences.jsonl has other bytes than were written"
    assert total.startswith("9 artifacts checked, 1 damaged")
    with pytest.raises(SystemExit) as stop:
        main(["artifacts", "verify", directory.name[:6], "--remove", "--json", "--output-dir", root])
    assert stop.value.code == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["checked"], [row["removed"] for row in told["damaged"]]) == (1, [True])
    again = farm()
    again.evaluate("nudge")
    assert (directory / before).exists()
    assert [label for label, run in again.workspace.history.items() if not run.reused] == ["annotate"]
    assert CountingJudge.asked == asked
    with pytest.raises(SystemExit) as stop:
        main(["artifacts", "verify", "--output-dir", root])
    assert stop.value.code == 0
    assert capsys.readouterr().out == "9 artifacts checked, none is damaged.\n"


@pytest.fixture
def digested(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The files that were read from their first byte to the last."""
    files: list[Path] = []
    digest: Callable[[Path], str] = contents.file_digest

    def watched(path: Path) -> str:
        files.append(path)
        return digest(path)

    monkeypatch.setattr(contents, "file_digest", watched)
    return files


def test_an_untouched_store_is_reused_without_a_digest_and_a_copied_one_after_one(
    tmp_path: Path, digested: list[Path]
) -> None:
    def rerun(directory: Path) -> dict[str, bool]:
        digested.clear()
        with light_farm(directory, model=str(tmp_path / "one" / "base")) as farm:
            farm.evaluate("nudge")
            return {label: run.reused for label, run in farm.workspace.history.items()}

    rerun(tmp_path / "one")
    assert all(rerun(tmp_path / "one").values())
    assert digested == []
    shutil.copytree(tmp_path / "one" / "out", tmp_path / "two" / "out", copy_function=shutil.copyfile)
    assert all(rerun(tmp_path / "two").values())
    assert digested
    assert len(set(digested)) == len(digested)
    assert all(rerun(tmp_path / "two").values())
    assert digested == [], "the new times are remembered"


def test_bytes_that_changed_behind_sizes_and_times_are_found_by_verifying(
    farm: Make, capsys: pytest.CaptureFixture[str]
) -> None:
    with farm() as finished:
        finished.evaluate("nudge")
        directory = finished.workspace.history["train nudge"].artifact.path
        root = str(finished.workspace.store.root)
    weights = directory / "model" / "policy.json"
    times = weights.stat()
    alter_bytes(weights)
    os.utime(weights, ns=(times.st_atime_ns, times.st_mtime_ns))
    with pytest.raises(SystemExit) as stop:
        main(["artifacts", "verify", "--json", "--output-dir", root])
    assert stop.value.code == 1
    [row] = json.loads(capsys.readouterr().out)["damaged"]
    assert row == {
        "stage": "train",
        "key": directory.name,
        "label": "train nudge",
        "damages": ["model/policy.json has other bytes than were written"],
        "removed": False,
    }


@pytest.mark.parametrize("damage", ["missing", "label"])
def test_metadata_that_are_gone_or_edited_are_damage(
    damage: str, farm: Make, capsys: pytest.CaptureFixture[str]
) -> None:
    with farm() as finished:
        finished.sft()
        path = finished.workspace.history["sft"].artifact.path / contents.META
        root = str(finished.workspace.store.root)
    if damage == "missing":
        path.unlink()
    else:
        path.write_text(path.read_text().replace('"label": "sft"', '"label": "dpo"'))
    for more, code in ([], 1), (["--remove"], 0), ([], 0):
        with pytest.raises(SystemExit) as stop:
            main(["artifacts", "verify", *more, "--output-dir", root])
        assert stop.value.code == code
        said = {"missing": "artifact.json is missing", "label": "artifact.json cannot be read: it is not as it was"}
        assert (said[damage] in capsys.readouterr().out) == (code == 1 or more != [])
    farm().sft()
    assert path.exists()


def test_metadata_that_cannot_be_read_is_damage_that_can_be_removed(
    farm: Make, capsys: pytest.CaptureFixture[str]
) -> None:
    with farm() as finished:
        finished.sft()
        directory = finished.workspace.history["sft"].artifact.path
        root = str(finished.workspace.store.root)
    (directory / contents.META).write_text("{")
    with pytest.raises(StoreError, match="afarm artifacts verify --remove"):
        farm().sft()
    with pytest.raises(SystemExit) as stop:
        main(["artifacts", "verify", "--remove", "--output-dir", root])
    assert stop.value.code == 0
    assert f"train/{directory.name}: artifact.json cannot be read" in capsys.readouterr().out
    farm().sft()
    assert directory.exists()


def test_what_an_open_run_reads_is_not_removed_under_it(farm: Make, capsys: pytest.CaptureFixture[str]) -> None:
    with farm() as reading:
        reading.sft()
        directory = reading.workspace.history["sft"].artifact.path
        root = str(reading.workspace.store.root)
        (directory / contents.META).write_text("[" * 100_000)
        for command in (["verify", "--remove"], ["verify", directory.name, "--remove"]):
            with pytest.raises(SystemExit) as stop:
                main(["artifacts", *command, "--output-dir", root])
            assert stop.value.code == 1
            assert "in use by an open run, and so not deleted" in capsys.readouterr().out
        assert (directory / "model" / "policy.json").exists()
    with pytest.raises(SystemExit) as stop:
        main(["artifacts", "verify", "--remove", "--output-dir", root])
    assert stop.value.code == 0
    assert "it is nested too deeply" in capsys.readouterr().out
    assert not directory.exists()


def test_garbage_is_not_collected_under_an_open_run(farm: Make, capsys: pytest.CaptureFixture[str]) -> None:
    with farm() as reading:
        reading.sft()
        directory = reading.workspace.history["sft"].artifact.path
        collect = ["artifacts", "gc", "--yes", "--days", "0", "--output-dir", str(reading.workspace.store.root)]
        with pytest.raises(SystemExit):
            main(collect)
        assert "in use by an open run" in capsys.readouterr().out
        assert directory.exists()
    with pytest.raises(SystemExit):
        main(collect)
    assert not directory.exists()


def test_a_fitted_reward_model_that_is_named_by_its_directory_is_checked(farm: Make) -> None:
    with farm() as finished:
        finished.evaluate("nudge")
        directory = finished.workspace.history["fit-reward"].artifact.path
    alter_bytes(directory / "model" / "weight.json")
    with pytest.raises(AfarmError, match=r"model/weight\.json"):
        farm(annotator=f"reward:{directory}").annotate()


def test_a_store_that_may_only_be_read_is_reused(farm: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    with farm() as finished:
        finished.sft()
        directory = finished.workspace.history["sft"].artifact.path
    os.utime(directory / "model" / "policy.json", (1, 1))

    def refuse(*arguments: Any) -> None:
        raise StoreError("cannot be written")

    monkeypatch.setattr("afarm.storage.artifacts.write_json", refuse)
    again = farm()
    again.sft()
    assert again.workspace.history["sft"].reused


def test_a_damaged_relative_stops_no_run_that_does_not_use_it(farm: Make) -> None:
    with farm() as finished:
        finished.sft()
        artifact = finished.workspace.history["sft"].artifact
    (artifact.path / contents.META).write_text("{")  # as one that an older version wrote may look
    with farm("seed=7") as other:
        other.sft()
        assert other.workspace.history["sft"].artifact.key != artifact.key
