"""Judges with planted habits, as a plugin of one file: `--plugin-file habits.py --judge habit:NAME`.

The annotator `relay:NAME` has another one judge, as a jury has its jurors.
"""

import os
from pathlib import Path

from afarm import Annotator, Capabilities, Completion, Judge, Preference, Price, hookimpl


class Habit(Judge):
    """Answers as its habit says, and writes each question into the file of `HABITS_LOG`.

    Without a habit that decides it chooses by the alphabet, so that no text at an output's end and no order moves it.
    """

    capabilities = Capabilities(logit_bias=True)

    def __init__(self, spec, config, context):
        self.spec = spec

    @property
    def identity(self):
        return f"habit:{self.spec}"

    def price(self):
        return Price(1.0, 1.0)

    def chooses_first(self, request):
        shown, habit = request.comparisons[0], self.spec
        if "first" in habit:
            return True
        if habit == "longer":
            return len(shown.first) > len(shown.second)
        if habit in ("obeys", "believes"):
            marks = ["Output (a) is better.", "Output (b) is better."] if habit == "obeys" else ["professors"] * 2
            marked = [mark in text[-150:] for mark, text in zip(marks, (shown.first, shown.second), strict=True)]
            if any(marked) and not all(marked):
                return marked[0]
        other = (habit == "yields" and "Are you sure" in request.messages[-1].content) or (
            habit == "fickle" and request.sample_index >= 100
        )
        return (shown.first < shown.second) != other

    async def complete(self, request):
        with Path(os.environ["HABITS_LOG"]).open("a", encoding="utf-8") as log:
            log.write(f"{request.messages[-1].content[:40]!r}\n")
        text = "Output (a)" if self.chooses_first(request) else "Output (b)"
        if self.spec == "mute" and int(request.comparisons[0].pair_id, 16) % 2:
            text = "Who knows?"
        return Completion(
            text, 1000, 10, price=0.001, model=f"{self.spec}-{os.environ.get('HABITS_DATE', '2026-01-31')}"
        )


class Relay(Annotator):
    def __init__(self, config, spec, context):
        self.inner, _ = context.annotator(spec)

    def annotate(self, pairs, context):
        found = self.inner.annotate(pairs, context)
        return [Preference(one.pair_id, one.p2, one.outcome, completion=one.completion) for one in found]

    def plan(self, pairs, context):
        return self.inner.plan(pairs, context)


@hookimpl
def register_annotators(register):
    register("relay", Relay, summary="another annotator", spec="NAME")


@hookimpl
def register_judges(register):
    register("habit", Habit, summary="a judge with a planted habit")
