"""A judge LLM that answers the instructions itself, as a system to compare with: the paper's API baselines (section 4).

Its name as a system is its spec, such as "openai:gpt-4.1". It is asked through the same engine as judges are, so that
answers are in the ledger, counted and within the budget.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from afarm.core.errors import ConfigError
from afarm.core.judge import ChatRequest, Judge
from afarm.core.records import Instruction, Message, Output
from afarm.experiment.training_stages import Inputs, Stage
from afarm.judging.pairwise import REFUSALS
from afarm.storage.rows import write_rows

if TYPE_CHECKING:
    from afarm.experiment.farm import Farm

ANNOTATOR = "(answers)"
"""In the ledger's accounts, where annotators stand for judgements."""


def is_answering(system: str) -> bool:
    """Whether `system` is a judge's spec: no method's name has a colon, but for that of its plugin."""
    return ":" in system


def answers(farm: Farm, spec: str) -> Stage:
    """The answers of the judge `spec` to the evaluation instructions.

    Raises `ConfigError` for a judge that is a formula and writes nothing.
    """
    judge = farm.components.judge(spec)
    if judge.simulated:
        raise ConfigError(
            [f"{spec} is a formula that writes no answers: name a language model, such as openai:gpt-4.1"]
        )
    settings = farm.config.answers
    instructions = farm.instructions("evaluation")
    key_fields = farm.key_fields(
        "answers", judge=judge.identity, settings=settings.result_fields(), data=farm.data_digest("evaluation")
    )

    def write(directory: Path, inputs: Inputs) -> Mapping[str, Any]:
        if problems := judge.check_access():
            raise ConfigError(problems)
        farm.ask.add_judge(spec, judge, farm.components.limiters.get(judge))
        completions = dict(
            farm.progress(
                farm.ask.stream(requests(farm, spec, judge, instructions)), f"{spec}: answering", len(instructions)
            )
        )
        rows = [
            Output(i, c.text, spec, {"finish_reason": c.finish_reason, "tokens": c.output_tokens})
            for i, c in zip(instructions, (completions[n] for n in range(len(instructions))), strict=True)
        ]
        count = write_rows(directory / "outputs.jsonl", (row.to_row() for row in rows))
        return {
            "rows": count,
            "mean_characters": round(sum(len(row.output) for row in rows) / max(count, 1), 1),
            "cut_off": sum(c.finish_reason == "length" for c in completions.values()),
            "refused": sum(c.finish_reason in REFUSALS for c in completions.values()),
            "empty": sum(not row.output.strip() for row in rows),
            "temperature": settings.temperature,
        }

    return Stage("outputs", f"outputs {spec}", {}, key_fields, write, lambda: requests(farm, spec, judge, instructions))


def requests(farm: Farm, spec: str, judge: Judge, instructions: Sequence[Instruction]) -> Iterator[ChatRequest]:
    """What is asked: the instruction under a system prompt that limits the answer's length, as a text where the model
    only completes texts."""
    settings, seed = farm.config.answers, farm.seed(f"outputs {spec}")
    for instruction in instructions:
        task = "\n\n".join(part for part in (instruction.instruction, instruction.input) if part)
        turns = (Message("system", settings.prompt), *instruction.messages, Message("user", task))
        asked: dict[str, Any] = {"messages": turns}
        if not judge.capabilities.chat:
            asked = {
                "prompt": "".join(f"{turn.role.capitalize()}: {turn.content}\n\n" for turn in turns) + "Assistant:"
            }
        yield ChatRequest(
            spec,
            **asked,
            max_tokens=settings.max_tokens,
            temperature=settings.temperature,
            annotator=ANNOTATOR,
            seed=seed,
        )
