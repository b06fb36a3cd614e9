"""The stages that sample from a policy: outputs to be labelled, and a system's evaluation outputs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from afarm.core.errors import attribute_failures
from afarm.core.interfaces import Decoding, Policy
from afarm.core.records import Instruction, Output
from afarm.experiment.return_checks import require_returned
from afarm.experiment.stage import Inputs, Stage
from afarm.experiment.workspace import Workspace
from afarm.storage.record_fields import require_samples
from afarm.storage.rows import write_rows


def samples_stage(workspace: Workspace, policy: Stage) -> Stage:
    """Outputs of the starting policy for the preference instructions, to be compared."""
    settings = workspace.config.sample
    instructions = workspace.data.instructions("preference")
    data = workspace.data.digest("preference")
    sampler = workspace.components.sampler_identity()
    key_fields = workspace.key_fields("sample", settings=settings.result_fields(), data=data, sampler=sampler)

    def write(directory: Path, inputs: Inputs) -> Mapping[str, Any]:
        start: Policy = workspace.load(inputs["policy"])
        name = workspace.start_name
        return write_outputs(workspace, directory, start, instructions, settings.decoding, name, "sample")

    return Stage("sample", "sample", {"policy": policy}, key_fields, write)


def outputs_stage(workspace: Workspace, system: str, policy: Stage, temperature: float | None = None) -> Stage:
    """A method's evaluation outputs, at the recipe's temperature unless another is given."""
    default = workspace.config.evaluate.decoding
    decoding = default if temperature is None else replace(default, temperature=temperature)
    split = workspace.data.evaluated_on
    instructions = workspace.data.instructions(split)
    fields = {"temperature": decoding.temperature, "top_p": decoding.top_p, "max_new_tokens": decoding.max_new_tokens}
    sampler, data = workspace.components.sampler_identity(), workspace.data.digest(split)
    key_fields = workspace.key_fields("outputs", decoding=fields, data=data, sampler=sampler)

    def write(directory: Path, inputs: Inputs) -> Mapping[str, Any]:
        answering: Policy = workspace.load(inputs["policy"])
        with attribute_failures("methods", system, answering):
            own = answering.decoding(decoding)
        require_returned(Decoding, own, "methods", system, "decoding", answering)
        summary = write_outputs(workspace, directory, answering, instructions, own, system, "outputs")
        return {**summary, "temperature": own.temperature, **answering.counted}

    name = system if temperature is None else f"{system} at T={temperature:g}"
    return Stage("outputs", f"outputs {name}", {"policy": policy}, key_fields, write)


def write_outputs(
    workspace: Workspace,
    directory: Path,
    policy: Policy,
    instructions: Sequence[Instruction],
    decoding: Decoding,
    generator: str,
    purpose: str,
) -> Mapping[str, Any]:
    """Sample into `outputs.jsonl`, each row as soon as it is ready: memory does not grow with them.

    Each instruction is answered `decoding.n` times in turn. `generator`, the system's name, and `purpose` are together
    the purpose of the seed.
    """
    repeated = (instruction for instruction in instructions for _ in range(decoding.n))
    # A seed for each system: with one for all, best-of-n would be compared with one of its own candidates.
    seed = workspace.seed(f"{purpose} {generator}")
    samples = require_samples(policy, "methods", generator, instructions, decoding, seed)
    counted = workspace.progress(samples, f"{generator}: sampling", len(instructions) * decoding.n)
    characters = cut_off = 0

    def rows() -> Iterator[Mapping[str, Any]]:
        nonlocal characters, cut_off
        for instruction, sample in zip(repeated, counted, strict=True):
            characters += len(sample.text)
            cut_off += sample.finish_reason == "length"
            details = {"finish_reason": sample.finish_reason, "tokens": len(sample.token_ids), **sample.details}
            if sample.score is not None:
                details["score"] = sample.score
            yield Output(instruction, sample.text, generator, details).to_row()

    with workspace.components.autocast():
        count = write_rows(directory / "outputs.jsonl", rows())
    return {"rows": count, "mean_characters": round(characters / max(count, 1), 1), "cut_off": cut_off}
