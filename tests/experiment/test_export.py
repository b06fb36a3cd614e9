"""Runs taken out of afarm: what lies in the folder, what the Hub gets, and what is refused before any work."""

from __future__ import annotations

import base64
import json
import os
import re
import threading
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from light_farm import Make, light_plugins
from light_plugin import WordPolicy

from afarm.cli import main
from afarm.core.errors import DataError, StoreError
from afarm.core.records import Instruction, JudgedPair, Message, Output, Pair, Preference
from afarm.evaluation.matching import match_rows
from afarm.experiment.export import alpaca_eval_rows, export_run, trl_rows
from afarm.experiment.model_card import model_card
from afarm.experiment.run_record import record
from afarm.storage.hub import push_folder, require_token
from afarm.storage.labelled_pairs import own_preferences
from afarm.storage.rows import read_outputs
from afarm.storage.runs import RunRecord
from afarm.storage.text import longest_run


@pytest.fixture
def run(farm: Make) -> RunRecord:
    """A finished run whose policy is a number."""
    made = farm()
    return record(made.workspace, "nudge", made.evaluate(), "afarm run --method nudge", 0.0)


def exported(run: RunRecord, directory: Path) -> Path:
    return export_run(run, directory, light_plugins())


# ------------------------------------------------------------------------------------------------------ the folder


def test_an_export_has_policy_card_preferences_and_evaluation(run: RunRecord, tmp_path: Path) -> None:
    directory = exported(run, tmp_path / "exported")
    assert sorted(path.name for path in directory.iterdir()) == [
        *("README.md", "annotations.json", "model_outputs.json", "policy.json", "preferences.jsonl"),
        "reference_outputs.json",
    ]
    preferences = [json.loads(line) for line in (directory / "preferences.jsonl").open()]
    stored = [json.loads(line) for line in (stage(run, "annotate") / "preferences.jsonl").open()]
    decided = [row for row in stored if row["preference"] in (1, 2)]
    assert preferences == [
        {
            "prompt": [{"role": "user", "content": row["instruction"]}],
            "chosen": [{"role": "assistant", "content": row[f"output_{row['preference']}"]}],
            "rejected": [{"role": "assistant", "content": row[f"output_{3 - row['preference']}"]}],
            "chosen_finish_reason": "stop",
            "rejected_finish_reason": "stop",
        }
        for row in decided
    ]
    outputs, reference, annotations = (
        json.loads((directory / f"{name}.json").read_text())
        for name in ("model_outputs", "reference_outputs", "annotations")
    )
    assert {row["generator"] for row in outputs} == {"nudge"}
    assert {row["generator"] for row in reference} == {"sft"}
    assert [row["instruction"] for row in outputs] == [row["instruction"] for row in reference]
    assert [row["output_2"] for row in annotations] == [row["output"] for row in outputs]
    assert [row["output_1"] for row in annotations] == [row["output"] for row in reference]


def test_the_card_has_recipe_data_judge_win_rate_and_versions(run: RunRecord, tmp_path: Path) -> None:
    card = (exported(run, tmp_path / "exported") / "README.md").read_text()
    head, _, body = card.removeprefix("---\n").partition("\n---\n")
    assert "- nudge" in head
    metrics = run.results[0].metrics
    assert f"win rate {metrics['win_rate']:.1f} % (95 % " in body
    assert f"n {metrics['n_total']}" in body
    for fact in ("recipe: ", "method: nudge", "seed: 42", "data: numbers", "label noise 0.0", "reward model: words"):
        assert fact in body
    assert "afarm run --method nudge" in body
    assert f"python {run.section('versions')['python']}" in body
    assert "in a form of its own" in body, "no transformers model"


def stage(run: RunRecord, name: str) -> Path:
    [artifact] = [row["artifact"] for row in run.stages if row["stage"] == name]
    return run.directory.parents[1] / artifact


def test_a_farm_exports_what_it_evaluates(farm: Make, tmp_path: Path) -> None:
    made = farm()
    directory = made.export(tmp_path / "exported", "direct")
    assert "method: direct" in (directory / "README.md").read_text()
    assert json.loads((directory / "policy.json").read_text())[0] > 0


# ------------------------------------------------------------------------------------------------------- bad input


def test_a_folder_that_is_not_empty_is_refused_and_left_as_it_is(run: RunRecord, tmp_path: Path) -> None:
    taken = tmp_path / "taken"
    taken.mkdir()
    (taken / "mine.txt").write_text("mine")
    with pytest.raises(DataError, match="taken is not empty: name a new directory"):
        exported(run, taken)
    assert [path.name for path in taken.iterdir()] == ["mine.txt"]
    with pytest.raises(DataError, match=r"mine\.txt is a file"):
        exported(run, taken / "mine.txt")
    (taken / "mine.txt").unlink()
    assert (exported(run, taken) / "README.md").is_file(), "an empty one is fine"


def test_a_folder_that_cannot_be_made_is_named_with_what_to_do(run: RunRecord, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    for place in (Path("/proc/exported"), tmp_path / "file" / "exported"):
        with pytest.raises(StoreError, match=rf"{place} cannot be made: .*; name another directory to export to$"):
            exported(run, place)


def test_a_link_to_an_empty_folder_is_followed_and_folders_beside_are_left(run: RunRecord, tmp_path: Path) -> None:
    real, mine = tmp_path / "real", tmp_path / ".exported.partial"
    for folder in (real, mine):
        folder.mkdir()
    (mine / "mine.txt").write_text("mine")
    (tmp_path / "link").symlink_to(real)
    exported(run, tmp_path / "link")
    exported(run, tmp_path / "exported")
    assert (real / "README.md").is_file()
    assert (mine / "mine.txt").is_file()
    assert not list(tmp_path.glob(".afarm-export-*"))


def test_an_export_that_fails_leaves_no_folder(run: RunRecord, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("afarm.experiment.export.write_rows", full)
    with pytest.raises(Exception, match="No space left"):
        exported(run, tmp_path / "exported")
    assert not (tmp_path / "exported").exists()
    assert not list(tmp_path.glob(".afarm-export-*"))


def test_an_artifact_that_is_gone_is_named_with_the_command_that_makes_it(run: RunRecord, tmp_path: Path) -> None:
    (stage(run, "train nudge") / "artifact.json").unlink()
    with pytest.raises(DataError, match=r"'train nudge' is gone .*: `afarm run --method nudge` makes it"):
        exported(run, tmp_path / "exported")


@pytest.mark.parametrize(("made", "file"), [("train nudge", "model/policy.json"), ("annotate", "preferences.jsonl")])
def test_a_damaged_artifact_is_not_exported(made: str, file: str, run: RunRecord, tmp_path: Path) -> None:
    path = stage(run, made) / file
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(StoreError, match=rf"{file} has .* bytes, not .*afarm artifacts verify --remove"):
        exported(run, tmp_path / "exported")
    assert not (tmp_path / "exported").exists()


def test_a_run_without_a_policy_says_what_it_is_and_what_is_exported(run: RunRecord, tmp_path: Path) -> None:
    judged = {**run, "stages": [row for row in run.stages if row["stage"] != "train nudge"]}
    with pytest.raises(DataError, match="is a run of nudge, which trained no policy") as refused:
        exported(RunRecord(run.directory, judged), tmp_path / "exported")
    assert f"runs of `afarm run` and `afarm compare` ({run.name})" in str(refused.value)
    config = {"seed": 42, "evaluate": {"evaluators": ["win_rate"]}, "judge": {}}
    compared = {"name": "a-b", "files": {"outputs": "a.json", "reference": "b.json"}, "config": config, "stages": []}
    with pytest.raises(DataError, match=r"a-b compares the files a\.json and b\.json: it trained no policy") as refused:
        exported(RunRecord(run.directory, compared), tmp_path / "exported")
    assert "another version" not in str(refused.value)
    assert "`afarm leaderboard --output board.csv`" in str(refused.value)


@pytest.mark.parametrize("mask", [0o022, 0o077])
def test_exported_files_have_the_rights_of_new_ones(
    mask: int, run: RunRecord, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def private(self: WordPolicy, directory: Path) -> None:
        (directory / "inner").mkdir(mode=0o700)
        for name in ("model.safetensors", "inner/model.safetensors"):
            (directory / name).touch(mode=0o600)  # as safetensors writes its files

    monkeypatch.setattr(WordPolicy, "export", private)
    before = os.umask(mask)
    try:
        directory = exported(run, tmp_path / "exported")
    finally:
        os.umask(before)
    modes = {path.relative_to(directory): path.stat().st_mode & 0o777 for path in (directory, *directory.rglob("*"))}
    assert len(modes) > 8
    assert {mode for name, mode in modes.items() if (directory / name).is_dir()} == {0o777 & ~mask}
    assert {mode for name, mode in modes.items() if (directory / name).is_file()} == {0o666 & ~mask}


def test_a_card_has_names_and_no_places_on_this_machine(run: RunRecord, tmp_path: Path) -> None:
    own = {"adapter": "/home/me/secret/adapter", "batch": 3}
    config = {**run.section("config"), "model": "/home/me/models/llama", "dataset": "../data/rows.json", "nudge": own}
    first, *others = run.rows("results")
    protocol = {"annotator": "reward:/home/me/runs/fit", "judges": {"*": "local:~/models/judge.gguf"}}
    card = model_card(
        RunRecord(
            run.directory,
            {
                **run,
                "config": {**config, "preferences": "hf:owner/pairs"},
                "recipe": "/home/me/recipes/mine.yaml",
                "command": "afarm run --recipe ~/mine.yaml --set files.sft=/home/me/a.json --model='/home/me/my model'",
                "judges": [{"role": "*", "identity": "local:/home/me/judge.gguf"}],
                "judged_by": "local:~/models/judge.gguf with 2 prompts of reward:/home/me/runs/fit",
                "results": [{**first, "protocol": protocol}, *others],
            },
        ),
        tmp_path,
        "",
        1,
        0,
    )
    assert "/home/" not in card
    assert "~/" not in card
    assert "../" not in card
    for name in (
        "`llama`",
        "recipe: mine.yaml",
        "`adapter=adapter`",
        "Judged by `local:judge.gguf with 2 prompts of reward:fit`.",
        "`local:judge.gguf`",
        "hf:owner/pairs",
    ):
        assert name in card
    assert "afarm run --recipe mine.yaml --set files.sft=a.json '--model=my model'" in card


def test_a_record_of_another_version_says_what_it_does_not_know(run: RunRecord, tmp_path: Path) -> None:
    config = {**run.section("config"), "seed": "forty-two"}
    with pytest.raises(DataError, match="the same command writes the run afresh"):
        exported(RunRecord(run.directory, {**run, "config": config}), tmp_path / "exported")


def test_the_command_needs_a_folder_or_a_repository(
    run: RunRecord, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    root = str(run.directory.parents[1])
    with pytest.raises(SystemExit):
        main(["export", run.name, "--output-dir", root])
    assert "afarm export RUN DIR" in capsys.readouterr().err
    monkeypatch.setattr("huggingface_hub.get_token", lambda: None)
    with pytest.raises(SystemExit):
        main(["export", run.name, "--push-to-hub", "me/policy", "--output-dir", root])
    assert "hf auth login" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["export", "nowhere", "x", "--output-dir", root])
    assert "no run 'nowhere'" in capsys.readouterr().err


# ------------------------------------------------------------------------------------------------------ the formats


def test_preferences_are_chat_messages_with_earlier_turns_and_input() -> None:
    instruction = Instruction("Translate.", "chat", messages=(Message("user", "Hi"), Message("assistant", "Hello")))
    pair = Pair(instruction, "cat", "chien")
    [row] = trl_rows([JudgedPair(pair, Preference(pair.id, 0.2)), JudgedPair(pair, Preference(pair.id, None, "draw"))])
    assert row == {
        "prompt": [
            {"role": "user", "content": "Hi"},
            {"role": "assistant", "content": "Hello"},
            {"role": "user", "content": "Translate.\n\nchat"},
        ],
        "chosen": [{"role": "assistant", "content": "cat"}],
        "rejected": [{"role": "assistant", "content": "chien"}],
    }


def test_outputs_that_were_cut_off_come_back_as_cut_off(tmp_path: Path) -> None:
    cut = Pair(Instruction("Count."), "one two", "none", finish_reason_1="length", finish_reason_2="stop")
    unknown = Pair(Instruction("Name it."), "cat", "dog")
    judged = [JudgedPair(pair, Preference(pair.id, p2)) for pair in (cut, unknown) for p2 in (0.0, 1.0)]
    rows = list(trl_rows(judged))
    assert [(row["chosen_finish_reason"], row["rejected_finish_reason"]) for row in rows] == [
        *(("length", "stop"), ("stop", "length"), ("", ""), ("", ""))
    ], "a reader of tables needs the same columns in each row"
    (tmp_path / "preferences.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    read = list(own_preferences(tmp_path / "preferences.jsonl"))
    ended = [dict(zip((row.pair.output_1, row.pair.output_2), row.pair.ended, strict=True)) for row in read]
    assert ended == [{"one two": False, "none": True}] * 2 + [{"cat": True, "dog": True}] * 2
    assert [row.chosen_rejected for row in read] == [row.chosen_rejected for row in judged]


def test_the_card_says_where_more_than_a_fifth_was_cut_off(run: RunRecord, tmp_path: Path) -> None:
    def card(cut_off: int) -> str:
        summary = {"rows": 10, "cut_off": cut_off}
        stages = [{"stage": name, "kind": name, "summary": summary} for name in ("sample", "outputs")]
        return model_card(RunRecord(run.directory, {**run, "stages": stages}), tmp_path, "", 1, 0)

    assert "cut off" not in card(2)
    for name in ("sample", "outputs"):
        assert f"{name}: 3 of 10 outputs (30 %) were cut off in the middle by the length limit" in card(3)
    assert "--set" not in card(3), "who reads the card does not run it"


def test_an_input_stands_below_its_instruction_in_outputs_for_alpaca_eval() -> None:
    rows = alpaca_eval_rows([Output(Instruction("Translate.", "chat", "own"), "cat")], "me")
    assert rows == [{"dataset": "own", "instruction": "Translate.\n\nchat", "output": "cat", "generator": "me"}]


def test_exported_outputs_are_those_of_the_instructions_that_were_answered(tmp_path: Path) -> None:
    turns = (Message("user", "Hi"), Message("assistant", "Hello"))
    asked = [Instruction("Translate.", "chat"), Instruction("Translate."), Instruction("Go on.", "so", messages=turns)]
    answers = [Output(instruction, str(number), "me") for number, instruction in enumerate(asked)]
    (tmp_path / "model_outputs.json").write_text(json.dumps(alpaca_eval_rows(answers, "me")))
    matched = match_rows(read_outputs(tmp_path / "model_outputs.json"), [replace(row, output="") for row in answers])
    assert [(row.instruction, row.output) for row in matched.outputs] == [
        (row.instruction, row.output) for row in answers
    ]


# ---------------------------------------------------------------------------------------------------------- the Hub


class Hub(BaseHTTPRequestHandler):
    """The Hub's calls for a new repository and a commit of files that are small."""

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        calls: list[tuple[str, str, bytes]] = self.server.calls  # type: ignore[attr-defined]
        calls.append((self.path, self.headers.get("Authorization", ""), body))
        if self.server.refuse and "/commit/" in self.path:  # type: ignore[attr-defined]
            return self.answer({"error": "quota exceeded"}, 403)
        if self.path.endswith("/repos/create"):
            return self.answer({"url": "https://huggingface.co/me/policy"})
        if "/preupload/" in self.path:
            files = json.loads(body)["files"]
            rows = [{"path": f["path"], "uploadMode": "regular", "shouldIgnore": False, "oid": None} for f in files]
            return self.answer({"files": rows})
        if "/commit/" in self.path:
            return self.answer(
                {"commitUrl": "https://huggingface.co/me/policy/commit/abc", "commitOid": "abc", "success": True}
            )
        return self.answer({})

    def do_GET(self) -> None:
        self.answer({"id": "me/policy", "siblings": [], "sha": "abc"})

    def answer(self, content: Any, status: int = 200) -> None:
        body = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    server: Any = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    server.calls, server.refuse = [], False
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    address = f"http://127.0.0.1:{server.server_address[1]}"
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", address)
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


def test_a_push_uploads_every_file_to_a_new_repository(run: RunRecord, tmp_path: Path, hub: Any) -> None:
    directory = exported(run, tmp_path / "exported")
    assert push_folder(directory, "me/policy", private=True).endswith("/me/policy")
    [created] = [json.loads(body) for path, _, body in hub.calls if path == "/api/repos/create"]
    assert (created["name"], created["organization"], created["visibility"]) == ("policy", "me", "private")
    [commit] = [body for path, _, body in hub.calls if "/commit/" in path]
    lines = [json.loads(line) for line in commit.splitlines()]
    sent = {line["value"]["path"]: line["value"] for line in lines if line["key"] == "file"}
    assert {*sent} == {path.name for path in directory.iterdir()}
    assert base64.b64decode(sent["README.md"]["content"]) == (directory / "README.md").read_bytes()
    assert all(token == "Bearer hf_secret" for _, token, _ in hub.calls)


def test_a_hub_that_refuses_is_named_with_what_to_do(run: RunRecord, tmp_path: Path, hub: Any) -> None:
    hub.refuse = True
    directory = exported(run, tmp_path / "exported")
    with pytest.raises(DataError, match="me/policy: the Hub did not take the files") as refused:
        push_folder(directory, "me/policy")
    assert "quota exceeded" in str(refused.value)
    assert "`hf upload me/policy FOLDER`" in str(refused.value)
    assert "hf_secret" not in str(refused.value)


@pytest.mark.parametrize("name", ["", "a/b/c", "spaces in it", "--"])
def test_what_is_no_name_of_a_repository_is_refused(name: str) -> None:
    with pytest.raises(DataError, match="no name of a repository"):
        require_token(name)


def test_a_card_tells_own_preferences_from_simulated_ones(run: RunRecord, tmp_path: Path) -> None:
    simulated = {**run, "judges": [{"role": "*", "identity": "offline", "simulated": True}]}
    card = model_card(RunRecord(run.directory, simulated), tmp_path, "", 1, 0)
    assert "**Its preferences and win rate are simulated by a formula**" in card
    own = {**simulated, "config": {**run.section("config"), "preferences": "/home/me/mine.jsonl"}}
    card = model_card(RunRecord(run.directory, own), tmp_path, "", 1, 0)
    assert "**Its win rate is simulated by a formula**" in card
    assert "training labels: `mine.jsonl`, preferences of one's own" in card
    assert "/home/me" not in card


def test_the_judges_bias_stands_with_the_results_and_is_no_red_flag(run: RunRecord, tmp_path: Path) -> None:
    first, *others = run.rows("results")
    bias = {"prefers_longer": {"value": 0.5, "error": 0.1, "n": 4}, "flags": []}
    biased = {**run, "results": [{**first, "red_flags": bias}, *others]}
    card = model_card(RunRecord(run.directory, biased), tmp_path, "", 1, 0)
    assert "The judge chose the longer output 50 % of 4 times (lengths differ by more than 30 characters)." in card
    assert "Red flags" not in card


@pytest.mark.parametrize(
    "text", ["`x`\n# y\n```", "<script>alert(1)</script>", "\x1b[31mred\u202e\x00", "[a](http://b)"]
)
def test_names_and_prompts_in_a_card_are_text(text: str, run: RunRecord, tmp_path: Path) -> None:
    config = {**run.section("config"), "model": text, "nudge": {"target": text}}
    (result,) = run["results"][:1]
    hostile = {**run, "recipe": text, "annotator": text, "command": text, "config": config}
    hostile["results"] = [{**result, "protocol": {**result["protocol"], "annotator": text, "judges": {"*": text}}}]
    hostile["judges"] = [{"identity": text}]
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "afarm.json").write_text("{}")
    card = model_card(RunRecord(run.directory, hostile), tmp_path, text, 1, 0)
    assert not any(character in card for character in "\x1b\u202e\x00")
    for block in re.findall(r"^(`{3,})\w*\n.*?\n\1$", card, re.DOTALL | re.MULTILINE):
        assert len(block) > longest_run(text) or len(block) == 3
    body = card.split("\n---\n", 1)[1]
    prose = re.sub(r"^(`{3,})\w*\n.*?\n\1$", "", body, flags=re.DOTALL | re.MULTILINE)
    prose = re.sub(r"(?<!`)(`+)(?!`).*?(?<!`)\1(?!`)", "", prose)
    assert "\n# y" not in prose
    assert "<script>" not in prose
    assert "[a](http" not in prose
