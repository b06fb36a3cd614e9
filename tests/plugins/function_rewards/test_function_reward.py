"""Reward functions: how they are called, and what is said about those that break their promise."""

from __future__ import annotations

import json
import random
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from afarm import ConfigError, DataError, Instruction, Message, PluginError
from afarm.storage import named_code
from afarm.testing import check_reward_model, judge_context
from afarm_plugins.function_rewards import FunctionConfig
from afarm_plugins.function_rewards.function import FunctionReward

CODE = """
import random
import numpy as np

def length(prompts, completions, **columns):
    return [len(c) for c in completions]

def arrays(completions):
    return np.array([len(c) for c in completions], dtype=np.float32)

def chat(prompts, completions):
    return [len(p) + (c[0]["role"] == "assistant") for p, c in zip(prompts, completions)]

def right(completions, answer, hint=None):
    return [float(c == a) for c, a in zip(completions, answer)]

def partly(completions):
    return [None if c == "b" else 1 for c in completions]

def raises(completions):
    return [1 / (c != "b") for c in completions]

def together(completions):
    if len(completions) > 1:
        raise ValueError("too many")
    return [1.0]

def leaves(completions):
    raise SystemExit(3)

def nan(completions):
    return [float("nan") if c == "b" else 1.0 for c in completions]

def text(completions):
    return ["0.5" for c in completions]

def lists(completions):
    return [[1.0] if c == "b" else 1.0 for c in completions]

def short(completions):
    return [1.0]

def one(completions):
    return 1.0

def named(completions):
    return {c: 1.0 for c in completions}

def generator(completions):
    return (1.0 for c in completions)

async def later(completions):
    return [1.0 for c in completions]

def noisy(completions):
    print("a line")
    random.seed(1)
    np.random.seed(1)
    completions.append("more")
    return [1.0 for c in completions[:-1]]

constant = 3
"""

TWO = [Instruction("p"), Instruction("q", "and more")]


@pytest.fixture
def code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file of functions in the current directory; what the test names is forgotten afterwards."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(named_code, "_given", [])
    path = tmp_path / "rewards.py"
    path.write_text(CODE)
    return path


def reward(name: str, place: str = "rewards.py", **settings: Any) -> FunctionReward:
    named_code.name_code({"reward_model": f"function:{place}:{name}"})
    return FunctionReward(FunctionConfig(**settings), f"{place}:{name}", judge_context())


def values(model: FunctionReward) -> list[float]:
    return [score.value for score in model.score(TWO, ["a", "b"])]


@pytest.mark.parametrize("place", ["rewards.py", "./rewards.py", "absolute", "rewards"])
def test_a_function_is_found_by_its_file_or_module(place: str, code: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.path", [*__import__("sys").path])
    model = reward("length", str(code) if place == "absolute" else place)
    check_reward_model(model)
    assert [score.value for score in model.score(TWO, ["abc", ""])] == [3.0, 0.0]
    monkeypatch.delitem(__import__("sys").modules, "rewards", raising=False)


def test_numbers_of_numpy_are_numbers_and_none_is_no_reward_which_is_told_once(
    code: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert values(reward("arrays")) == [1.0, 1.0]
    model = reward("partly")
    assert values(model) == values(model) == [1.0, 0.0]
    assert caplog.text.count("gives no reward (None) to 1 of 2, which counts as 0") == 1


def test_prompts_and_completions_are_texts_or_messages(code: Path) -> None:
    model = reward("chat", format="chat")
    task = Instruction("p", "", "", (Message("user", "before"), Message("assistant", "then")))
    assert [score.value for score in model.score([task], ["a"])] == [4.0]
    assert model._prompt(Instruction("p", "more")) == [{"role": "user", "content": "p\n\nmore"}]
    assert reward("length")._prompt(Instruction("p", "more")) == "p\n\nmore"


def write_columns(path: Path, *rows: Any) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def test_columns_come_from_a_file_by_the_prompt_however_it_is_written(code: Path, tmp_path: Path) -> None:
    rows = [{"prompt": "q\n\nand more ", "answer": "b"}, {"prompt": "p", "answer": "x", "other": 1}]
    source = write_columns(tmp_path / "math.jsonl", *rows)
    assert values(reward("right", columns=source)) == [0.0, 1.0]
    lacking = reward("right", columns=write_columns(tmp_path / "one.jsonl", rows[0]))
    with pytest.raises(DataError, match=r"one\.jsonl: has no row with the prompt 'p'"):
        values(lacking)
    with pytest.raises(DataError, match=r"row 1.*: its prompt is there twice"):
        reward("right", columns=write_columns(tmp_path / "twice.jsonl", rows[0], rows[0]))
    with pytest.raises(ConfigError, match=r"asks for 'answer', and it is given prompts, completions: name a file with"):
        reward("right")
    with pytest.raises(ConfigError, match=r"asks for 'answer'.*no\.jsonl has no such column"):
        reward("right", columns=write_columns(tmp_path / "no.jsonl", {"prompt": "p", "solution": "x"}))


def test_the_content_of_code_and_columns_is_in_the_key_and_not_their_place(code: Path, tmp_path: Path) -> None:
    first = reward("length").identity
    assert reward("length", "./rewards.py").identity == first
    assert reward("arrays").identity != first
    code.write_text(CODE.replace("len(c)", "-len(c)"))
    edited = reward("length")
    assert edited.identity != first
    assert values(edited) == [-1.0, -1.0], "the code that runs is the code in the key"
    one = FunctionConfig(columns=write_columns(tmp_path / "a.jsonl", {"prompt": "p", "answer": 1})).result_fields()
    assert (
        FunctionConfig(columns=write_columns(tmp_path / "b.jsonl", {"prompt": "p", "answer": 1})).result_fields() == one
    )
    assert (
        FunctionConfig(columns=write_columns(tmp_path / "c.jsonl", {"prompt": "p", "answer": 2})).result_fields() != one
    )


WRONG = {
    "raises": 'raised ZeroDivisionError: division by zero (rewards.py:21) for row 1 of 2: prompt "q", completion "b"',
    "together": "raised ValueError: too many (rewards.py:25) for a batch of 2 rows, though for none of them alone",
    "leaves": "raised SystemExit: 3 (rewards.py:29) for row 0 of 2",
    "nan": 'returned nan, no finite number, for row 1 of 2: prompt "q", completion "b"',
    "text": "returned '0.5', no finite number, for row 0 of 2",
    "lists": "returned [1.0], no finite number, for row 1 of 2",
    "short": "returned 1 rewards for 2 completions: return a list with a number (or None) for each completion",
    "one": "returned float: return a list",
    "named": "returned dict: return a list",
    "generator": "returned generator: return a list",
    "later": "is asynchronous: define it with `def`",
}


@pytest.mark.parametrize("name", WRONG)
def test_a_function_that_breaks_its_promise_is_named_with_its_file_and_the_row(name: str, code: Path) -> None:
    with pytest.raises(PluginError, match=re.escape(f"reward function {name!r} (rewards.py)")) as error:
        values(reward(name))
    assert WRONG[name] in str(error.value)


def test_prints_go_to_stderr_and_random_states_are_restored_and_both_are_told_once(
    code: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model, before = reward("noisy"), (random.getstate(), np.random.get_state()[1].tolist())  # type: ignore[index, union-attr]
    assert values(model) == values(model) == [1.0, 1.0]
    assert (random.getstate(), np.random.get_state()[1].tolist()) == before  # type: ignore[index, union-attr]
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.count("a line\n") == 2
    for told in ("prints to stdout", "global random state of random", "global random state of numpy.random"):
        assert shown.err.count(told) == 1


NOT_LOADED = {
    "rewards.py:lengthh": "rewards.py has no function 'lengthh'. Did you mean 'length'?",
    "rewards.py:constant": "rewards.py has no function 'constant'",
    ":rewards.py": "':rewards.py' names no function: write FILE.py:NAME or package.module:NAME",
    "nowhere.py:length": "function:nowhere.py: no such file (from ",
    "broken.py:length": "cannot be loaded: SyntaxError",
    "beside.py:length": "a file is read alone: name it as package.module:NAME to import what lies beside it",
    "no_module_of_this_name:length": "ModuleNotFoundError: No module named 'no_module_of_this_name'",
}


@pytest.mark.parametrize("spec", NOT_LOADED)
def test_what_cannot_be_loaded_is_named(spec: str, code: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.path", [*__import__("sys").path])
    (tmp_path / "broken.py").write_text("def length(:\n")
    (tmp_path / "beside.py").write_text("import rewards_beside\n")
    place, _, name = spec.rpartition(":")
    with pytest.raises(ConfigError, match=re.escape(NOT_LOADED[spec])):
        reward(name, place)
