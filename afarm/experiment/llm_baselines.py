"""Judge LLMs that answer the instructions themselves: the paper's API baselines (section 4).

Its name as a system is its spec, such as "openai:gpt-4.1". It is asked through the same engine as judges are, so that
answers are in the ledger, counted and within the budget.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from afarm.core.errors import ConfigError
from afarm.core.judge import CHARACTERS_PER_TOKEN, ChatRequest
from afarm.core.records import Message, Output
from afarm.experiment.stage import Inputs, Stage
from afarm.experiment.workspace import Workspace
from afarm.judging.pairwise import REFUSALS
from afarm.storage.conversations import task_text
from afarm.storage.rows import write_rows

ANNOTATOR = "(answers)"
"""In the ledger's accounts, where annotators stand for judgements."""


def is_llm_system(system: str) -> bool:
    """Tell if a system is a judge LLM, named by its spec: no method has a colon in its name."""
    return ":" in system


def answers_stage(workspace: Workspace, spec: str) -> Stage:
    """The answers of the judge `spec` to the evaluation instructions.

    Raises `ConfigError` for a judge that is a formula and writes nothing.
    """
    judge = workspace.judges.judge(spec)
    if judge.simulated:
        raise ConfigError(f"{spec} is a formula that writes no answers: name a language model, such as openai:gpt-4.1")
    settings, seed = workspace.config.answers, workspace.seed(f"outputs {spec}")
    split = workspace.data.evaluated_on
    instructions = workspace.data.instructions(split)
    key_fields = workspace.key_fields(
        "answers",
        judge=judge.identity,
        settings=settings.result_fields(),
        data=workspace.data.digest(split),
    )

    def plan_requests() -> Iterator[ChatRequest]:
        for instruction in instructions:
            turns = (Message("system", settings.prompt), *instruction.messages, Message("user", task_text(instruction)))
            asked: dict[str, Any] = {"messages": turns}
            if not judge.capabilities.chat:  # a model that only completes texts gets the same as one text
                text = "".join(f"{turn.role.capitalize()}: {turn.content}\n\n" for turn in turns)
                asked = {"prompt": f"{text}Assistant:"}
            asked |= {"max_tokens": settings.max_tokens, "temperature": settings.temperature}
            asked["typical_tokens"] = settings.max_characters // CHARACTERS_PER_TOKEN // 2
            yield ChatRequest(spec, **asked, annotator=ANNOTATOR, seed=seed)

    def write(directory: Path, inputs: Inputs) -> Mapping[str, Any]:
        if problems := judge.check_access():
            raise ConfigError(problems)
        client = workspace.judges.client
        client.judges[spec] = judge
        stream = client.stream(plan_requests())
        completions = dict(workspace.progress(stream, f"{spec}: answering", len(instructions)))
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

    return Stage("outputs", f"outputs {spec}", {}, key_fields, write, plan_requests=plan_requests)
