"""A component that fails is named, with the line of its code; what a user can act on passes as it is."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from afarm.core.errors import PluginError, TrainingError, attributed_to
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


@pytest.mark.parametrize("error", [TrainingError("NaN at step 3"), KeyboardInterrupt()])
def test_what_a_user_can_act_on_and_an_interrupt_pass(error: BaseException) -> None:
    with pytest.raises(type(error)) as caught, attributed_to("methods", "x"):
        raise error
    assert caught.value is error
