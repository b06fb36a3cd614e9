"""Returns of components, held to the promises of their interfaces.

Each function raises `PluginError` that names the component, its plugin, the promise, and what it returned instead.
Labels are held to theirs by `afarm.judging.labelling`, answers by the engine that asks for them, scores by
`RewardModel` itself.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from afarm.core.errors import attribute_failures, require_promise, type_name
from afarm.core.interfaces import AnnotateContext, Annotator, Evaluator, Method, RewardModel
from afarm.core.judge import ChatRequest
from afarm.core.records import Instruction, Message, Output, Pair
from afarm.storage.record_fields import require_record

R = TypeVar("R", Instruction, Output)


def require_returned(wanted: type, returned: object, kind: str, name: str, function: str, owner: object = None) -> None:
    """Check that what `function` of a component `returned` is of the type `wanted`."""
    broken = f"{function} must return an afarm.{wanted.__name__}, not {type_name(returned)}"
    require_promise(isinstance(returned, wanted), kind, name, broken, owner)


def require_needs(component: Method | Evaluator, kind: str, name: str) -> None:
    """Check that `needs` is a set of names."""
    with attribute_failures(kind, name, component):
        needs = component.needs
    fits = isinstance(needs, frozenset | set) and all(isinstance(need, str) for need in needs)
    require_promise(fits, kind, name, f"needs must be a frozenset of names, not {needs!r}", component)


def own_identity(component: Annotator | RewardModel, kind: str, name: str) -> str:
    """Return what a component adds to the keys of its artifacts, if it is a text."""
    with attribute_failures(kind, name, component):
        identity = component.identity
    require_promise(isinstance(identity, str), kind, name, f"identity must be a text, not {identity!r:.80}", component)
    return identity


def problems_seen(check: Callable[[], object], kind: str, name: str, owner: object) -> list[str]:
    """Return the problems that a component's `check` lists, if they are sentences."""
    with attribute_failures(kind, name, owner):
        problems = check()
    fits = isinstance(problems, list | tuple) and all(isinstance(problem, str) for problem in problems)
    function = getattr(check, "__name__", "check")
    require_promise(fits, kind, name, f"{function} must return a list of sentences, not {problems!r:.80}", owner)
    assert isinstance(problems, list | tuple)
    return list(problems)


def requests_planned(
    annotator: Annotator, name: str, pairs: Sequence[Pair], context: AnnotateContext
) -> list[ChatRequest]:
    """Return the requests that an annotator plans, if they are requests."""
    with attribute_failures("annotators", name, annotator):
        requests = list(annotator.plan(pairs, context))
    for request in requests:
        broken = f"plan must return a list of afarm.ChatRequest, not {type_name(request)}"
        require_promise(isinstance(request, ChatRequest), "annotators", name, broken, annotator)
    return requests


def require_rows(rows: object, wanted: type[R], name: str, function: str, owner: object = None) -> list[R]:
    """Check that `function` of a data set returned a list of `wanted` (`Output` or `Instruction`)."""
    what = f"{function} must return a list of afarm.{wanted.__name__}"
    require_promise(isinstance(rows, list | tuple), "datasets", name, f"{what}, not {type_name(rows)}", owner)
    assert isinstance(rows, list | tuple)
    for number, row in enumerate(rows):
        place = f"{what}; row {number}"
        require_promise(isinstance(row, wanted), "datasets", name, f"{place} is {type_name(row)}", owner)
        require_record(row, wanted, "datasets", name, place, owner)
        instruction = row.instruction if isinstance(row, Output) else row
        if isinstance(row, Output):
            require_record(instruction, Instruction, "datasets", name, place, owner)
        for message in instruction.messages:
            require_record(message, Message, "datasets", name, place, owner)
    return list(rows)
