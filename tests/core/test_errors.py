"""A component that fails is named, with the line of its code; what a user can act on passes as it is."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from afarm.core.errors import PluginError, TrainingError, attribute_failures
from afarm.core.interfaces import AnnotateContext, Annotator
from afarm.core.records import Instruction, Pair, Preference
from afarm.judging.labelling import annotate_in_chunks
from afarm.testing import annotate_context


class Divides(Annotator):
    def annotate(self, pairs: Sequence[Pair], context: AnnotateContext) -> list[Preference]:
        return [Preference(pair.id, 1 / 0) for pair in pairs]


def test_an_annotator_that_fails_is_named_with_its_line() -> None:
    with pytest.raises(PluginError) as caught:
        list(annotate_in_chunks([Pair(Instruction("i"), "a", "b")], Divides(), "pkg/boom", annotate_context()))
    assert str(caught.value).startswith("annotator 'pkg/boom' failed: ZeroDivisionError: division by zero (core/test_e")
    assert isinstance(caught.value.__cause__, ZeroDivisionError)


BROUGHT = """
from afarm import Annotator

class Divides(Annotator):
    def annotate(self, pairs, context):
        return [1 / 0]

class Nothing(Annotator):
    def annotate(self, pairs, context):
        return None
"""


@pytest.mark.parametrize(
    ("points", "named"),
    [("[afarm]\nlab = brought_by_lab\n", "plugin 'lab' (afarm-lab 1.5)"), ("", "afarm-lab")],
)
def test_the_plugin_and_its_distribution_are_named(
    points: str, named: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "brought_by_lab.py").write_text(BROUGHT)
    info = tmp_path / "afarm_lab-1.5.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: afarm-lab\nVersion: 1.5\n")
    (info / "entry_points.txt").write_text(points)
    (info / "top_level.txt").write_text("brought_by_lab")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "brought_by_lab", raising=False)
    module = importlib.import_module("brought_by_lab")
    pairs = [Pair(Instruction("i"), "a", "b")]
    for annotator, said in {
        module.Divides(): f" failed: ZeroDivisionError: division by zero ({tmp_path.name}/brought_by_lab.py:6)",
        module.Nothing(): ": annotate must return one afarm.Preference per pair, in the order of the pairs: 0 for 1 ",
    }.items():
        with pytest.raises(PluginError) as caught:
            list(annotate_in_chunks(pairs, annotator, "boom", annotate_context()))
        assert str(caught.value).startswith(f"annotator 'boom' of {named}{said}")


@pytest.mark.parametrize("error", [TrainingError("NaN at step 3"), KeyboardInterrupt()])
def test_what_a_user_can_act_on_and_an_interrupt_pass(error: BaseException) -> None:
    with pytest.raises(type(error)) as caught, attribute_failures("methods", "x"):
        raise error
    assert caught.value is error
