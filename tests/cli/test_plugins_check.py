"""`afarm plugins --check`: a component that keeps its promises, one that does not, and none at all."""

from __future__ import annotations

import importlib.metadata
from pathlib import Path

import pytest

from afarm.cli import listing, main
from afarm.core import plugins

BROKEN = """
from afarm import Evaluation, Evaluator, hookimpl

class Nan(Evaluator):
    def evaluate(self, inputs):
        return Evaluation("nan_figure", inputs.system, {"nan_figure": float("nan")})

@hookimpl
def register_evaluators(register):
    register("nan_figure", Nan)
"""


def test_a_component_is_held_to_its_promises(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as done:
        main(["plugins", "--check", "evaluators/win_rate"])
    assert not done.value.code
    assert "evaluator win_rate keeps what its interface promises" in capsys.readouterr().out


def test_a_broken_promise_is_named_and_an_unknown_name_too(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "nan_plugin.py").write_text(BROKEN)
    monkeypatch.syspath_prepend(tmp_path)
    theirs = plugins.discover([importlib.metadata.EntryPoint("nan", "nan_plugin", "afarm")])
    monkeypatch.setattr(listing, "discover", lambda **_: theirs)
    with pytest.raises(SystemExit) as done:
        main(["plugins", "--check", "nan_figure"])
    assert done.value.code == 1
    assert "✗ evaluator" in (said := capsys.readouterr().out)
    assert "finite" in said or "NaN" in said or "nan" in said
    with pytest.raises(SystemExit):
        main(["plugins", "--check", "nan_figur"])
    assert "Did you mean 'nan_figure'" in capsys.readouterr().err


HOSTILE = """
from afarm import Annotator, Dataset, Evaluation, Evaluator, hookimpl

class Listed(Evaluator):
    def evaluate(self, inputs):
        return Evaluation("listed", inputs.system, [1])

class Fails(Annotator):
    def annotate(self, pairs, context):
        raise KeyError("missing")

class Numbers(Dataset):
    def load(self, split):
        return 3

@hookimpl
def register_evaluators(register):
    register("listed", Listed)

@hookimpl
def register_annotators(register):
    register("fails", Fails)

@hookimpl
def register_datasets(register):
    register("numbers", Numbers)
"""


@pytest.mark.parametrize(("kind", "name"), [("evaluator", "listed"), ("annotator", "fails"), ("data set", "numbers")])
def test_a_component_that_fails_is_named_with_its_line(
    kind: str, name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "hostile_plugin.py").write_text(HOSTILE)
    monkeypatch.syspath_prepend(tmp_path)
    theirs = plugins.discover([importlib.metadata.EntryPoint("hostile", "hostile_plugin", "afarm")])
    monkeypatch.setattr(listing, "discover", lambda **_: theirs)
    with pytest.raises(SystemExit) as done:
        main(["plugins", "--check", name])
    assert done.value.code == 1
    assert f"✗ {kind} " in capsys.readouterr().out
