"""An evaluator of a plugin that takes a spec is an option of `afarm leaderboard`, and a column of the board."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from said import Afarm

from afarm.core.plugins import choose_plugins

PEOPLE = '''
from pathlib import Path

from afarm import Config, Evaluation, Evaluator, hookimpl, setting


class Lengths(Config):
    times: int = setting(1, "a letter counts as so many", ge=1)


class People(Evaluator):
    """How often people agree with the win rate's side, from a file of shares by system."""

    needs = frozenset({"judgements"})

    def __init__(self, config, spec, context):
        self.shares = dict(line.split() for line in Path(spec).read_text().splitlines())

    def evaluate(self, inputs):
        return Evaluation("people", inputs.system, {"people_win_rate": float(self.shares[inputs.system])})


class Met(Evaluator):
    """The same, for evaluators of all systems."""

    needs, many = frozenset({"judgements"}), True

    def __init__(self, config, spec, context):
        self.length = len(spec) * (config.times if config else 1)

    def evaluate(self, inputs):
        systems = {row.pair.generator_2 for row in inputs.judgements}
        return Evaluation("met-by", "", {}, tuple({"system": system, "met-by": self.length} for system in systems))


class Ranks(Met):
    """Called like an option of the command's own."""


class Letters(Evaluator):
    needs = frozenset({"judgements"})

    def __init__(self, config):
        self.times = config.times

    def evaluate(self, inputs):
        return Evaluation("letters", inputs.system, {"letters": float(self.times)})


@hookimpl
def register_evaluators(register):
    register("letters", Letters, config=Lengths, summary="letters, as often as they count")
    register("people", People, spec="LABELS", summary="win rate by people, from a file of labels")
    register("met-by", Met, config=Lengths, spec="WORD", summary="letters of a word")
    register("ranks", Ranks, spec="WORD", summary="letters of a word")
'''


@pytest.fixture(autouse=True)
def no_plugins_of_files() -> Iterator[None]:
    yield
    choose_plugins()


def test_an_evaluator_with_a_spec_is_an_option_and_a_column(afarm: Afarm) -> None:
    Path("people.py").write_text(PEOPLE)
    Path("labels.txt").write_text("direct 25\nnudge 75\n")
    for method in ("direct", "nudge"):
        assert afarm("run", "--recipe", "light.yaml", "--method", method).code == 0
    board = ["--plugin-file", "people.py", "leaderboard"]
    said = afarm(*board, "--help")
    assert "--people LABELS" in said.out
    assert "--ranks WORD" not in said.out
    assert "--people" not in afarm("leaderboard", "--help").out
    found = json.loads(afarm(*board, "--people", "labels.txt", "--met-by", "abc", "--json").out)
    [entries] = [found["entries"] for found in found["boards"]]
    for entry, share in zip(sorted(entries, key=lambda entry: entry["system"]), (25, 75), strict=True):
        assert entry["metrics"]["people:labels.txt"]["value"] == share
        assert entry["metrics"]["met-by:abc"]["value"] == 3
    assert found == json.loads(
        afarm(*board, "--evaluator", "people:labels.txt", "--evaluator", "met-by:abc", "--json").out
    )
    ordered = afarm(*board, "--people", "labels.txt", "--order-by", "people", "--format", "csv")
    assert ordered.out.splitlines()[1].startswith("nudge")
    set_twice = afarm(*board, "--met-by", "abc", "--set", "met-by.times=2", "--json")
    [entries] = [found["entries"] for found in json.loads(set_twice.out)["boards"]]
    assert [entry["metrics"]["met-by:abc"]["value"] for entry in entries] == [6, 6]
    for setting, says in {
        "met-by.times=0": "met-by.times: Input should be greater than or equal to 1: --set met-by.SETTING=VALUE",
        "met-by.tims=2": "met-by.tims: Extra inputs are not permitted: --set met-by.SETTING=VALUE",
        "ppo.lam=1": "--set ppo.lam=1: give NAME.SETTING=VALUE of an evaluator asked for here: met-by",
    }.items():
        wrong = afarm(*board, "--met-by", "abc", "--set", setting)
        assert wrong.code == 1
        assert says in " ".join(wrong.err.split())
    missing = afarm(*board, "--people", "none.txt")
    assert (missing.code, "Traceback" in missing.err) == (1, False)
    assert "none.txt" in missing.err


def test_a_figure_that_a_run_stored_is_made_anew_where_its_evaluator_is_set(afarm: Afarm) -> None:
    Path("letters.py").write_text(PEOPLE)
    with_plugin = ["--plugin-file", "letters.py"]
    evaluators = ["--set", "evaluate.evaluators=[win_rate, letters]"]
    assert afarm(*with_plugin, "run", "--recipe", "light.yaml", "--method", "direct", *evaluators).code == 0
    for settings, value in ([], 1), (["--set", "letters.times=3"], 3):
        said = afarm(*with_plugin, "leaderboard", "--evaluator", "letters", *settings, "--json")
        [board] = json.loads(said.out)["boards"]
        assert [entry["metrics"]["letters"]["value"] for entry in board["entries"]] == [value]
