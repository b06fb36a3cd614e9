"""One's own preferences in place of samples and labels: what is trained on them, and that nobody is asked."""

from __future__ import annotations

import json
import re
import tracemalloc
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from light_farm import RECIPE, Make
from light_plugin import RAN, CountingJudge

from afarm import Farm
from afarm.core.errors import ConfigError, DataError
from afarm.core.plugins import discover
from afarm.experiment.dry_run import plan_run, plan_stage
from afarm.experiment.pipeline import annotate, fit_reward
from afarm.experiment.recipe import parse_override, resolve
from afarm.storage import hub, labelled_pairs
from afarm.storage.rows import read_placed_rows

GOOD = {"prompt": "p", "chosen": "word word", "rejected": "word"}


def write(directory: Path, *rows: Mapping[str, Any], name: str = "own.jsonl") -> str:
    path = directory / name
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def own(directory: Path, count: int = 6) -> str:
    return write(directory, *({**GOOD, "prompt": f"prompt {n}"} for n in range(count)))


def test_a_method_that_learns_from_preferences_needs_no_samples_and_asks_nobody(farm: Make, tmp_path: Path) -> None:
    one = farm(preferences=own(tmp_path))
    one.train("direct")
    assert list(one.workspace.history) == ["base", "preferences", "sft", "train direct"]
    assert CountingJudge.asked == 0
    assert not any("sample" in what for what in RAN)
    assert [row.chosen_rejected for row in one.annotate()] == [("word word", "word")] * 6
    assert {row.annotator for row in one.annotate()} == {"own"}


def test_the_reward_model_and_what_learns_from_it_are_trained_on_them(farm: Make, tmp_path: Path) -> None:
    source = own(tmp_path)
    one = farm(preferences=source)
    one.fit_reward()
    assert list(one.workspace.history) == ["base", "preferences", "sft", "fit-reward"]
    assert "fit-reward 6" in RAN
    result = one.evaluate("nudge")
    assert result.win_rate == one.evaluate("nudge").win_rate
    assert 0 < CountingJudge.asked <= 10, "the recipe's annotator judges the evaluation as ever"
    assert "sample" not in one.workspace.history


def test_the_plan_shows_neither_samples_nor_labels(farm: Make, tmp_path: Path) -> None:
    source = own(tmp_path)
    planned = plan_run(farm(preferences=source).workspace, "nudge")
    assert [p.label for p in planned][:5] == ["base", "preferences", "sft", "fit-reward", "train nudge"]
    assert {p.label for p in planned if p.calls} == {"evaluate nudge against sft"}
    stage = fit_reward(farm(preferences=source).workspace)
    assert stage is not None
    assert sum(p.calls for p in plan_stage(farm(preferences=source).workspace, stage)) == 0
    assert RAN == []
    farm(preferences=source).evaluate("nudge")
    assert all(p.reused for p in plan_run(farm(preferences=source).workspace, "nudge"))


def test_the_key_holds_what_is_in_the_file(farm: Make, tmp_path: Path) -> None:
    farm(preferences=own(tmp_path)).train("direct")
    moved = tmp_path / "elsewhere.jsonl"
    moved.write_text(own_text := Path(own(tmp_path)).read_text())
    again = farm(preferences=str(moved), seed=42)
    again.train("direct")
    assert again.workspace.history["preferences"].reused, "it is the content that counts"
    moved.write_text(own_text + json.dumps({**GOOD, "prompt": "one more"}))
    edited = farm(preferences=str(moved))
    edited.train("direct")
    assert not edited.workspace.history["train direct"].reused
    assert len(edited.annotate()) == 7
    # Another format with the same rows trains nothing again.
    as_list = tmp_path / "elsewhere.json"
    as_list.write_text(json.dumps([json.loads(line) for line in moved.read_text().splitlines()]))
    same = farm(preferences=str(as_list))
    same.train("direct")
    assert (same.workspace.history["preferences"].reused, same.workspace.history["train direct"].reused) == (
        False,
        True,
    )


def test_what_is_evaluated_on_is_not_trained_on(farm: Make, tmp_path: Path) -> None:
    rows = [{**GOOD, "prompt": text} for text in ("evaluation 3", "evaluation 11", "p")]
    one = farm(preferences=write(tmp_path, *rows))
    assert [row.pair.instruction.instruction for row in one.annotate()] == ["p"], "whatever rows.evaluation takes"
    assert one.workspace.history["preferences"].artifact.meta["summary"]["rows_evaluated_on"] == 2
    with pytest.raises(ConfigError, match=r"own\.jsonl: all its preferences answer instructions that are evaluated on"):
        farm(preferences=write(tmp_path, *rows[:2]))


def test_what_is_evaluated_on_is_found_however_it_is_written(farm: Make, tmp_path: Path) -> None:
    sets = [{"instruction": " one\r\ntwo "}, {"instruction": "do", "input": "it"}, {"instruction": "cafe\u0301"}]
    asked = write(tmp_path, *sets, {"messages": [{"role": "user", "content": "chat"}]}, name="evaluated.jsonl")
    system = {"role": "system", "content": "Be kind."}
    chat = [system, {"role": "user", "content": "chat"}]
    turns = [{"role": "user", "content": "x"}, {"role": "assistant", "content": "y"}, *chat[1:]]
    same = [
        *({**GOOD, "prompt": text} for text in ("one\ntwo", "do\n\nit ", "café", "chat")),
        {"instruction": "one\ntwo ", "output_1": "a", "output_2": "b", "preference": 1},
        {**GOOD, "prompt": chat},
    ]
    others = [{**GOOD, "prompt": "Do\n\nit"}, {**GOOD, "prompt": turns}]
    one = farm(preferences=write(tmp_path, *same, *others), eval_set=asked, rows={"evaluation": "all"})
    assert len(one.annotate()) == len(others)
    assert one.workspace.history["preferences"].artifact.meta["summary"]["rows_evaluated_on"] == len(same)


def test_rows_that_cannot_be_learned_from_are_refused_together_or_dropped_and_counted(
    farm: Make, tmp_path: Path
) -> None:
    empty = {**GOOD, "chosen": ""}
    source = write(tmp_path, GOOD, empty, {**GOOD, "prompt": ""}, empty)
    with pytest.raises(ConfigError) as caught:
        farm(preferences=source)
    assert str(caught.value) == (
        f"{source}: 3 of 4 preferences cannot be learned from; mend them, or leave such rows out with --on-unusable "
        f"drop:\n  {source}: row 1 (line 2): field 'chosen': turn 1 (assistant) is empty; write its text, or take the "
        f"row out"
        f"\n  {source}: row 2 (line 3): field 'prompt' is empty; write the prompt, or take the row out"
    )
    assert RAN == [], "nothing was trained to find that out"
    one = farm(preferences=source, on_unusable="drop")
    assert len(one.annotate()) == 1
    assert one.workspace.history["preferences"].artifact.meta["summary"]["rows_unusable"] == 3
    with pytest.raises(ConfigError, match="2 of 2 preferences cannot be learned from; none is left"):
        farm(preferences=write(tmp_path, empty, empty), on_unusable="drop")


def test_equal_answers_are_draws_which_learners_leave_out_and_count(farm: Make, tmp_path: Path) -> None:
    one = farm(preferences=write(tmp_path, GOOD, {**GOOD, "rejected": "word word"}))
    assert [row.preference.outcome for row in one.annotate()] == ["decided", "draw"]
    assert one.workspace.history["preferences"].artifact.meta["summary"]["outcomes"] == {"decided": 1, "draw": 1}


def test_a_file_without_a_better_output_is_refused_before_anything_runs(farm: Make, tmp_path: Path) -> None:
    pair = {"instruction": "i", "output_1": "x", "output_2": "y"}
    draws = [{**pair, "preference": 0}, {**pair, "instruction": "j", "preference": 1.5}]
    source = write(tmp_path, *draws, {**pair, "instruction": "k", "preference": None})
    with pytest.raises(ConfigError) as caught:
        farm(preferences=source)
    assert str(caught.value) == (
        f"{source}: nothing to learn from: draws 2, without a label 1; say in each row which output is better: "
        "label 1 or 2, or a 'chosen' unlike its 'rejected'"
    )
    assert RAN == []
    farm(preferences=write(tmp_path, *draws, {**pair, "preference": 2})).annotate()


def test_a_file_without_any_label_is_not_told_to_learn_from_draws(tmp_path: Path) -> None:
    pair = {"instruction": "Describe the cat without the words new and wet.", "output_1": "x", "output_2": "y"}
    source = write(tmp_path, *({**pair, "preference": label} for label in (float("nan"), None, "")))
    with pytest.raises(ConfigError, match="draws 0, without a label 3; say in each row") as caught:
        Farm("toy", preferences=source, method="dpo", output_dir=tmp_path / "out")
    assert "keep_draws" not in str(caught.value)


def test_learners_that_keep_draws_may_have_nothing_else(tmp_path: Path) -> None:
    prompts = [f"Describe the {noun} without the words new and wet." for noun in ("cat", "fig", "drum")]
    source = write(tmp_path, *({**GOOD, "prompt": prompt, "rejected": "word word"} for prompt in prompts))
    given = {"preferences": source, "method": "dpo", "output_dir": tmp_path / "out"}
    with pytest.raises(ConfigError, match=r"draws 3, without a label 0.*with --set dpo\.keep_draws=true"):
        Farm("toy", **given)
    Farm("toy", settings="dpo.keep_draws=true", **given).close()


@pytest.mark.parametrize("label", [{"annotator": "pool"}, {"label_noise": 0.1}])
def test_settings_of_labels_are_refused_beside_them(farm: Make, tmp_path: Path, label: dict[str, Any]) -> None:
    [name] = label
    said = f"preferences and annotate.{name} contradict each other: the file has the labels"
    with pytest.raises(ConfigError, match=said):
        farm(preferences=own(tmp_path), annotate=label)
    with pytest.raises(ConfigError, match=said):
        farm(f"annotate.{name}={label[name]}", preferences=own(tmp_path))


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ([], "holds no preferences"),
        ([{"instruction": "i", "output": "x"}], r"row 0 \(line 1\): is no preference.*afarm sft --data .*own.jsonl"),
        (
            [GOOD, {"instruction": "i", "output_1": "x", "output_2": "y", "preference": "a"}],
            r"row 1 \(line 2\): .* is 'a'; a label",
        ),
    ],
)
def test_another_file_is_refused_before_anything_runs(
    farm: Make, tmp_path: Path, rows: list[dict[str, Any]], said: str
) -> None:
    with pytest.raises(ConfigError, match=said):
        farm(preferences=write(tmp_path, *rows))
    with pytest.raises(ConfigError, match=r"nowhere\.jsonl: no such file"):
        farm(preferences=str(tmp_path / "nowhere.jsonl"))


def test_settings_that_only_labels_need_are_not_asked_for(
    farm: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An annotator of the recipe that cannot be asked stops only who has pairs labelled."""
    monkeypatch.setitem(RECIPE, "annotate", {"annotator": "reward:nowhere"})
    with pytest.raises(ConfigError, match="nowhere"):
        farm()
    farm(preferences=own(tmp_path)).train("direct")


def test_without_a_data_set_the_prompts_are_the_instructions(tmp_path: Path) -> None:
    source = own(tmp_path, 200)

    def resolved(*settings: str) -> Any:
        return resolve("smol", [{"preferences": source}, *map(parse_override, settings)], discover())

    assert resolved().run.dataset == "prompts"
    assert resolved().sections["prompts"]["path"] == source
    assert resolved("files.path=other.jsonl").run.dataset == "files", "a file that is named is taken"
    assert resolve("smol", [], discover()).run.dataset == "files"
    assert resolve("toy", [{"preferences": source}], discover()).run.dataset == "toy"


def test_the_name_of_a_run_is_that_of_its_labels(farm: Make, tmp_path: Path) -> None:
    assert "-own-seed" in farm(preferences=own(tmp_path)).workspace.run_name("direct")
    assert "-pool-seed" in farm().workspace.run_name("direct")


def test_a_file_is_counted_once_by_all_who_need_it_and_read_again_to_be_written(
    farm: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[str] = []

    def rows_of(source: Any) -> Any:
        read.append(str(source))
        return read_placed_rows(source)

    monkeypatch.setattr(labelled_pairs, "read_placed_rows", rows_of)
    source = own(tmp_path)
    one, other = farm(preferences=source, seed=1), farm(preferences=source, seed=2)
    plan_run(one.workspace, "direct")
    assert read == [source]
    one.train("direct")
    other.train("direct")
    assert read == [source, source]
    assert other.workspace.history["preferences"].reused
    farm(preferences=source)
    assert read == [source, source], "what is stored is not read again"
    Path(source).write_text(json.dumps(GOOD))
    farm(preferences=source)
    assert read == [source] * 3


def test_rows_that_were_read_are_not_in_memory(farm: Make, tmp_path: Path) -> None:
    def memory_for(rows: int) -> int:
        path = tmp_path / f"{rows}.jsonl"
        with path.open("w") as handle:
            for n in range(rows):
                handle.write(json.dumps({"prompt": f"p{n}", "chosen": "x" * 2000, "rejected": f"{n}" * 500}) + "\n")
        assert path.stat().st_size > rows * 2000
        tracemalloc.start()
        workspace = farm(preferences=str(path)).workspace
        workspace.ensure(annotate(workspace))
        _, most = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert workspace.history["preferences"].artifact.meta["summary"]["rows"] == rows
        return most

    memory_for(10)  # what is imported once
    assert memory_for(1500) < 4_000_000


def test_a_file_that_changes_while_it_is_read_is_refused(
    farm: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = own(tmp_path)

    def rows_of(path: Any) -> Any:
        yield from read_placed_rows(path)
        Path(source).write_text(json.dumps(GOOD))

    monkeypatch.setattr(labelled_pairs, "read_placed_rows", rows_of)
    with pytest.raises(ConfigError, match="has changed since it was read; start again"):
        farm(preferences=source)


def test_the_hub_is_asked_by_the_stage_and_its_rows_are_in_the_key(farm: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    datasets = pytest.importorskip("datasets")
    rows = [{**GOOD, "prompt": f"prompt {n}"} for n in range(3)]
    asked: list[str] = []

    def load_dataset(*names: Any, **more: Any) -> Any:
        asked.append(f"{names[0]}:{more['split']}")
        return list(rows)

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    monkeypatch.setattr(hub, "_require_reachable", lambda repository, remedy: None)
    source = "hf:owner/name:train[:3]"
    opened = farm(preferences=source)
    assert asked == [], "no network before the first stage"
    assert len(opened.annotate()) == 3
    assert set(asked) == {"owner/name:train[:3]"}
    again = farm(preferences=source)
    again.annotate()
    assert again.workspace.history["preferences"].reused
    rows.append(GOOD)
    assert len(farm(preferences=source).annotate()) == 4
    rows[:] = [{"prompt": "p", "chosen": "the same", "rejected": "the same"}]
    RAN.clear()
    with pytest.raises(DataError, match="nothing to learn from"):
        farm(preferences=source).train("direct")
    assert RAN == [], "not even SFT"
    assert ":" not in farm(preferences=source).workspace.run_name("direct")


# ------------------------------------------------------------------------------------------- rendered by a template


def tokenizer_file(*special: str) -> str:
    added = [{"content": "<b>", "special": False}, *({"content": token, "special": True} for token in special)]
    return json.dumps({"added_tokens": added})


RENDERED = [
    ("<|im_start|>", {"prompt": "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"}),
    ("<|im_start|>", {"system": "<|im_start|>system"}),
    ("</s>", {"chosen": "word word</s>"}),
    ("</s>", {"rejected": "word</s>"}),
    ("<|user|>", {"prompt": "<|user|>\nhi\n<|assistant|>"}),
    ("[INST]", {"prompt": "[INST] hi [/INST]"}),
]


@pytest.mark.parametrize(("token", "row"), RENDERED)
def test_rows_with_special_tokens_of_the_model_are_unusable(
    farm: Make, tmp_path: Path, token: str, row: dict[str, Any]
) -> None:
    farm()  # which makes the model's directory
    (tmp_path / "base" / "tokenizer.json").write_text(tokenizer_file("<pad>", token))
    source = write(tmp_path, {**GOOD, "prompt": "<b> other < words </ s>"}, {**GOOD, **row})
    said = rf"1 of 2 preferences cannot be learned from.*\n.*row 1 \(line 2\): holds '{re.escape(token)}'.*bare texts"
    with pytest.raises(ConfigError, match=said):
        farm(preferences=source)
    assert len(farm(preferences=source, on_unusable="drop").annotate()) == 1
