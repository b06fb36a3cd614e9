"""What a dry run expects to pay, held against the bill of a local server that counts tokens.

It answers as language models do: with a bare verdict, or with a reason where the prompt asks for one.
"""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import bpe_openai  # type: ignore[import-untyped]
import pytest
from light_farm import Make
from light_plugin import Numbers, WordPolicy, register_datasets, register_methods, register_reward_models
from wire_server import Received, WireServer

from afarm.core.hooks import Register, hookimpl
from afarm.core.interfaces import Decoding
from afarm.core.judge import ShownPair
from afarm.core.records import Instruction, Output, Pair, Sample
from afarm.core.seeding import uniform
from afarm.experiment.annotation import run_labelling
from afarm.experiment.dry_run import estimate_labels, plan_run, reading_client
from afarm.experiment.stage import Labelling
from afarm.judging import JudgingConfig, ParsedVerdict, PromptAnnotator
from afarm_plugins.annotators.settings import PROMPTS

__all__ = ["register_datasets", "register_methods", "register_reward_models"]

TOKENS = bpe_openai.get_encoding("o200k_base")

PROSE = (
    "A river that floods each spring leaves a layer of silt on the fields beside it, and farmers along its banks have "
    "long planted the crops that need most where the water stands longest. "
)
REASON = "Output (a) answers what was asked and says why, while the other one repeats the question and then drifts off."
CRITERIA = "\n".join(
    f"{n}. It says in words of its own what the silt does to the fields, and why." for n in range(1, 6)
)


def answer(received: Received) -> str:
    """Answer in the format that the prompt asks for."""
    text = received.body["messages"][-1]["content"]
    if text.endswith("The criteria:"):
        return CRITERIA
    if text.endswith("Mark from 1 to 7:"):
        return str(1 + zlib.crc32(received.raw) % 7)
    shown = re.split(r"# Batch \d|# Sheet \d|=== Page \d|Next round", text)[-1]
    verdicts = [zlib.crc32(received.raw + bytes([n])) % 2 for n in range(max(1, shown.count("## Comparison")))]
    if "JSON" in json.dumps(received.body["messages"]):
        items = [{"index": n, "explanation": REASON, "first_is_better": bool(v)} for n, v in enumerate(verdicts, 1)]
        return json.dumps({"verdicts": items} if "response_format" in received.body else items)
    labels = [f"Output ({'ab'[verdict]})" for verdict in verdicts]
    return "\n".join(f"{n}. {label}" for n, label in enumerate(labels, 1)) if "## Comp" in shown else labels[0]


class Billing(WireServer):
    """Counts the tokens of what it gets and says."""

    def _answered(self, received: Received) -> dict[str, Any]:
        answered = super()._answered(received)
        sent = "".join(message["content"] for message in received.body["messages"])
        said = answered["choices"][0]["message"]["content"]
        counts = {"prompt_tokens": len(TOKENS.encode(sent)), "completion_tokens": len(TOKENS.encode(said)) + 1}
        return {**answered, "usage": counts}


@pytest.fixture
def priced(farm: Make, monkeypatch: pytest.MonkeyPatch) -> Iterator[Make]:
    """A maker of farms whose judge is a paid model at the server."""
    monkeypatch.setenv("OPENAI_API_KEY", "none")
    with Billing(answer) as server:
        address = f"openai.base_url={server.openai_url}"
        yield lambda *settings, **choices: farm(address, *settings, judge={"*": "openai:gpt-4o"}, **choices)


def write_texts(monkeypatch: pytest.MonkeyPatch, words: int) -> None:
    """Have people and policies write around `words` words, the policies with a wider spread."""
    prose = (PROSE * (1 + words // 10)).split()

    def load(self: Numbers, split: str) -> list[Output]:
        tasks = [Instruction(f"{split} {n}", "a note" * (n % 2), "numbers") for n in range(self.config.count)]
        return [Output(task, " ".join(prose[: words + n % 4]), "people") for n, task in enumerate(tasks)]

    def sample(
        self: WordPolicy, instructions: Sequence[Instruction], decoding: Decoding, *, seed: int
    ) -> Iterator[Sample]:
        for task in instructions:
            for n in range(decoding.n):
                count = int(words * (0.6 + 0.8 * uniform(seed, task.id, n)))
                yield Sample(" ".join([*prose[:count], f"{seed % 9999} {n}"]), finish_reason="stop")

    monkeypatch.setattr(Numbers, "load", load)
    monkeypatch.setattr(WordPolicy, "sample", sample)


def require_near(planned: float | None, billed: float) -> None:
    assert planned is not None
    assert abs(planned - billed) < billed / 3, f"{planned:.4f} planned, {billed:.4f} billed"


RUNS = [  # annotator, label noise, words of an output, rows: as many as leave little to the draws
    ("pool", 0.0, 8, 40),
    ("ratings", 0.25, 240, 20),
    ("criteria", 0.25, 8, 20),
    ("criteria", 0.0, 240, 10),
]


@pytest.mark.parametrize(("annotator", "noise", "words", "rows"), RUNS)
def test_what_is_expected_is_billed(
    annotator: str, noise: float, words: int, rows: int, priced: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of labels to learn from, labels in training, a few at a time, and an evaluation; none of the outputs exists."""
    write_texts(monkeypatch, words)
    named = [f"{stage}.annotator={annotator}" for stage in ("annotate", "evaluate")]
    one = priced(
        *named, f"annotate.label_noise={noise}", f"numbers.count={rows}", "sample.n=2", f"rows.evaluation={rows}"
    )
    planned = {stage.label: stage for name in ("stepwise", "nudge") for stage in plan_run(one.workspace, name)}
    made: dict[str, Callable[[], object]] = {
        "annotate": one.annotate,
        "train stepwise": lambda: one.train("stepwise"),
        "evaluate stepwise against sft": lambda: one.evaluate("stepwise"),
    }
    spend, before = one.workspace.judges.client.spend, 0.0
    for label, make in made.items():
        make()
        require_near(planned[label].dollars, spend.dollars - before)
        assert (planned[label].most_dollars or 0.0) > spend.dollars - before
        assert "as long as those of split 'sft'" in planned[label].unwritten
        before = spend.dollars


class OwnFormat(PromptAnnotator):
    """Asks for A or B."""

    def render(self, pairs: Sequence[ShownPair]) -> str:
        return f"Which is better?\n\nA: {pairs[0].first}\n\nB: {pairs[0].second}\n\nA or B:"

    def read(self, text: str, count: int) -> list[ParsedVerdict]:
        return [1.0 if text.endswith("(a)") else 0.0]


class Explains(OwnFormat):
    """Asks for more than it is thought to, and says so."""

    typical_tokens = 110

    def render(self, pairs: Sequence[ShownPair]) -> str:
        return f"{super().render(pairs)}\n\nThe criteria:"


@hookimpl
def register_annotators(register: Register) -> None:
    register("own_format", OwnFormat, config=JudgingConfig)
    register("explains", Explains, config=JudgingConfig)


def test_each_prompt_and_each_own_format_is_billed_what_is_expected(priced: Make) -> None:
    one = priced(module=__name__)
    text = PROSE * 3
    pairs = [Pair(Instruction(f"Task {n}", "a note" * (n % 2)), f"{text} {n}", f"{n} {text}") for n in range(10)]
    spend, client = one.workspace.judges.client.spend, reading_client(one.workspace, one.workspace.judges.by_role)
    for name in [*PROMPTS, "ratings", "criteria", "own_format", "explains"]:
        labelling, before = Labelling("evaluate", pairs, name, 0.0), spend.dollars
        expected = sum(judge.dollars or 0.0 for judge in estimate_labels(one.workspace, labelling, client))
        list(run_labelling(one.workspace, labelling))
        require_near(expected, spend.dollars - before)
