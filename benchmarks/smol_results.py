"""Whether each method improves what it maximises on a real model: the table of docs/start/first-real-run.md.

    afarm compare --recipe smol --methods all --model FILE.gguf --data FILE
    python -m benchmarks.smol_results --model FILE.gguf --data FILE --output-dir afarm-runs

The second command reuses what the first one made. What learns from fixed rows is measured by its loss on them, read
with the model before and after; what samples its own, by the rewards of its samples early and late.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from afarm import Decoding, Farm
from afarm.backend import CheckpointPolicy, batched_logprobs
from afarm.core.records import Instruction, JudgedPair
from afarm.experiment import pipeline

BATCH = 8
ENDS = 5
"""Steps at each end of what samples its own responses."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", required=True)
    parser.add_argument("--data", required=True)
    parser.add_argument("--output-dir", type=Path, default=Path("afarm-runs"))
    a = parser.parse_args()
    settings = {"model": a.model, "dataset": "files", "files": {"path": a.data}}
    print("| method | its objective | before | after | change |\n|---|---|---|---|---|")
    with Farm("smol", settings=settings, output_dir=a.output_dir) as farm:
        for measured in (on_demonstrations, on_preferences, by_choosing, on_its_winners, on_its_samples):
            for row in measured(farm):
                before, after, change = mean(row.before), mean(row.after), ""
                if row.paired:
                    change = mean([y - x for x, y in zip(row.before, row.after, strict=True)])
                print(f"| {row.method} | {row.objective} | {before} | {after} | {change} |", flush=True)


Example = tuple[Sequence[int], Sequence[int]]
"""A prompt and its response, as token ids."""


class Row(NamedTuple):
    """The figures of each response, pair or instruction before and after."""

    method: str
    objective: str
    before: Sequence[float]
    after: Sequence[float]
    paired: bool = True


def on_demonstrations(farm: Farm) -> list[Row]:
    rows = farm.workspace.data.rows("sft")

    def examples(policy: CheckpointPolicy) -> Sequence[Example]:
        instructions, outputs = [row.instruction for row in rows], [row.output for row in rows]
        return policy.template.encode(instructions, outputs, config(farm, "sft").max_length)[0]

    return [Row("SFT", "NLL a token of the demonstrations", *both(farm, "sft", examples))]


def on_preferences(farm: Farm) -> list[Row]:
    pairs = [judged for judged in farm.annotate() if judged.chosen_rejected]
    found = [
        Row(
            "FeedME",
            "NLL a token of the preferred outputs",
            *both(farm, "feedme", lambda policy: encoded(farm, "feedme", policy, pairs, 0)),
        )
    ]
    trained = policy_of(farm, "reward_conditioning")
    positive = trained.template.control
    negative = config(farm, "reward_conditioning").negative_text
    for said, control, place in (("preferred", positive, 0), ("other", negative, 1)):
        start, after = start_of(farm).controlled(control), trained.controlled(control)
        found.append(
            Row(
                "reward conditioning",
                f"NLL a token of the {said} outputs behind their control",
                per_token(start, encoded(farm, "reward_conditioning", start, pairs, place)),
                per_token(after, encoded(farm, "reward_conditioning", after, pairs, place)),
            )
        )
    start, trained = start_of(farm), policy_of(farm, "dpo")
    beta = config(farm, "dpo").beta
    (w0, l0), (w1, l1) = (
        [sums(policy, encoded(farm, "dpo", policy, pairs, place)) for place in (0, 1)] for policy in (start, trained)
    )
    margins = [beta * ((a - b) - (c - d)) for a, b, c, d in zip(w1, w0, l1, l0, strict=True)]
    losses = [math.log1p(math.exp(-margin)) for margin in margins]
    return [*found, Row("DPO", "its loss, a pair", [math.log(2)] * len(losses), losses)]


def by_choosing(farm: Farm) -> list[Row]:
    """Best-of-n against one sample at its own temperature; and what was learned, by the reward of held-out answers."""
    model, instructions = farm.fit_reward(), farm.workspace.data.instructions("evaluation")
    sampling = farm.workspace.config.evaluate
    decoding = Decoding(
        temperature=1.0,
        max_new_tokens=sampling.max_new_tokens,
        per_device_batch_size=sampling.per_device_batch_size,
    )
    one = [s.text for s in farm.sft().sample(instructions, decoding, seed=farm.workspace.seed("one sample"))]

    def rewards(texts: Sequence[str]) -> list[float]:
        return [score.value for score in model.score(instructions, texts)]

    def of(method: str) -> list[float]:
        return rewards([row.output for row in farm.outputs(method)])

    plain = of("base")
    held_out = "reward on held-out instructions"
    return [
        Row("best of n", f"{held_out}, against one sample of the same temperature", rewards(one), of("best_of_n")),
        *(Row(name, held_out, plain, of(name)) for name in ("ppo", "quark", "expert_iteration", "reward_conditioning")),
    ]


def on_its_winners(farm: Farm) -> list[Row]:
    directory = (
        farm.workspace.ensure(pipeline.train(farm.workspace, "expert_iteration")).path / "best_responses" / "round-1"
    )
    rows = [json.loads(line) for path in sorted(directory.glob("*.jsonl")) for line in path.open(encoding="utf-8")]
    examples: list[Example] = [(row["prompt_ids"], row["token_ids"]) for row in rows]
    return [
        Row(
            "expert iteration", "NLL a token of its best responses", *both(farm, "expert_iteration", lambda _: examples)
        )
    ]


def on_its_samples(farm: Farm) -> list[Row]:
    """Means of steps, of which each has as many responses."""
    found = []
    for name, objective in (("ppo", "objective/rlhf_reward"), ("quark", "objective/scores")):
        path = farm.workspace.ensure(pipeline.train(farm.workspace, name)).path / "metrics.jsonl"
        values = [row[objective] for row in map(json.loads, path.open(encoding="utf-8")) if objective in row]
        what = f"{objective} of its own samples, means of the first {ENDS} and the last {ENDS} steps"
        found.append(Row(name, what, values[:ENDS], values[-ENDS:], paired=False))
    return found


# -------------------------------------------------------------------------------------------------------- measuring


def both(
    farm: Farm, method: str, examples: Callable[[CheckpointPolicy], Sequence[Example]]
) -> tuple[list[float], list[float]]:
    """Negative log-likelihood a token of the same examples, before and after."""
    start, trained = start_of(farm), policy_of(farm, method)
    return per_token(start, examples(start)), per_token(trained, examples(trained))


def encoded(
    farm: Farm, method: str, policy: CheckpointPolicy, pairs: Sequence[JudgedPair], place: int
) -> Sequence[Example]:
    instructions: list[Instruction] = [judged.pair.instruction for judged in pairs]
    outputs = [judged.chosen_rejected[place] for judged in pairs if judged.chosen_rejected]
    return policy.template.encode(instructions, outputs, config(farm, method).max_length)[0]


def per_token(policy: CheckpointPolicy, examples: Sequence[Example]) -> list[float]:
    return [-total / len(response) for total, (_, response) in zip(sums(policy, examples), examples, strict=True)]


def sums(policy: CheckpointPolicy, examples: Sequence[Example]) -> list[float]:
    """Compute the log-probability of each response."""
    prompts, responses = zip(*examples, strict=True)
    logprobs = batched_logprobs(policy, prompts, responses, batch_size=BATCH)
    totals: list[float] = logprobs.sum(-1).tolist()
    return totals


def start_of(farm: Farm) -> CheckpointPolicy:
    policy = farm.sft()
    assert isinstance(policy, CheckpointPolicy)
    return policy


def policy_of(farm: Farm, method: str) -> CheckpointPolicy:
    policy = farm.train(method)
    assert isinstance(policy, CheckpointPolicy)
    return policy


def config(farm: Farm, method: str) -> Any:
    """A method's settings."""
    trained: Any = farm.workspace.components.method(method)
    return trained.config


def mean(values: Sequence[float]) -> str:
    spread = statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else math.nan
    return f"{statistics.fmean(values):.3f} ± {spread:.3f}"


if __name__ == "__main__":
    main()
