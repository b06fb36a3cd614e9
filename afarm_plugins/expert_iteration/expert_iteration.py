"""Expert iteration (AlpacaFarm, section 3.2): SFT on the best of n samples, in rounds.

A round: sample each unlabeled instruction `n` times, keep the sample with the highest reward, and fine-tune the start
policy on the samples kept. The next round samples the new policy. Deviations from the reference implementation, and
why: `docs/methods/expert_iteration.md`.

Samples stream, and only one instruction's are held. The best of every few instructions are written to disk, so that a
killed round samples nothing twice.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from statistics import fmean
from typing import Any

from afarm import Decoding, Instruction, MethodInputs, Policy, TrainContext, read_rows, seeding, write_rows
from afarm.backend import (
    SampleScorer,
    best_sample,
    continued_context,
    fit_supervised,
    make_selection,
    require_checkpoint,
    sample_scorer,
    scored_samples,
    shard,
    short_prompts,
    wait_for,
)
from afarm_plugins.expert_iteration import ExpertIterationConfig

PROMPTS_PER_FILE = 128
"""Instructions per file of best responses. Fixed, since a resumed round must batch as before."""


def train_in_rounds(config: ExpertIterationConfig, inputs: MethodInputs, context: TrainContext) -> Policy:
    """Train. Raises `TrainingError` if the loss is not finite, `DataError` if no prompt is short enough."""
    start = require_checkpoint(inputs.start, "expert_iteration")
    assert inputs.reward_model is not None  # named in `needs`
    rewards = sample_scorer(inputs.reward_model, start)
    longest = config.max_length - config.response_length
    prompts = short_prompts(start, inputs.unlabeled, longest, config.response_length, "expert_iteration.max_length")
    policy: Policy = start
    learned: list[Winner] = []
    steps = 0  # of all rounds so far
    for number in range(1, config.rounds + 1):
        winners = best_responses(config, policy, rewards, prompts, context, number)
        learned = [*learned, *winners] if config.pool == "accumulate" else winners
        batch_size = config.per_device_train_batch_size * config.gradient_accumulation_steps
        before, steps = steps, steps + math.ceil(math.ceil(len(learned) / batch_size) * config.num_train_epochs)
        newest = context.checkpoints.latest()
        if newest and newest[0] > steps:
            continue  # a later round has begun, and has sampled this one's policy
        seed = seeding.integer(context.seed, "expert_iteration", "train", number)
        own = continued_context(context, before, seed=seed)
        if own.checkpoints.latest() is None:  # else it is logged already
            left_out = len(inputs.unlabeled) - len(prompts)
            own.log_metrics(1, {**round_summary(winners), "round": number, "data/prompts_left_out": left_out})
        examples = [(winner.prompt_ids, winner.token_ids) for winner in learned]
        selection = make_selection(config, inputs, own)
        policy = fit_supervised(start, examples, config, own, "expert_iteration", selection=selection)
    return policy


def best_responses(
    config: ExpertIterationConfig,
    policy: Policy,
    rewards: SampleScorer,
    prompts: Sequence[Instruction],
    context: TrainContext,
    number: int,
) -> list[Winner]:
    """Sample the best response to each prompt, or read it from disk. Each process samples a shard."""
    directory = context.directory / "best_responses" / f"round-{number}"
    directory.mkdir(parents=True, exist_ok=True)
    decoding = Decoding(
        temperature=config.temperature,
        max_new_tokens=config.response_length,
        n=config.n,
        per_device_batch_size=config.per_device_rollout_batch_size,
    )
    seed = seeding.integer(context.seed, "expert_iteration", number)
    chunks = range(0, len(prompts), PROMPTS_PER_FILE)
    paths = {start: directory / f"{start:08d}.jsonl" for start in chunks}
    own_chunks = shard(chunks)
    description = f"expert iteration {number}: best of {config.n}"
    for start in context.progress(own_chunks, description, len(own_chunks)):
        path = paths[start]
        if path.exists():
            continue
        winners = pick_winners(policy, rewards, prompts[start : start + PROMPTS_PER_FILE], decoding, seed)
        write_rows(path, map(asdict, winners))  # atomic
        if context.should_stop():
            raise KeyboardInterrupt("stopped while sampling; the same command goes on from there")
    wait_for(lambda: all(path.exists() for path in paths.values()))
    return read_winners(directory)


@dataclass(frozen=True, slots=True)
class Winner:
    """The best sample of a prompt; `mean_score` and `distinct` (a share) are over all of its samples."""

    output: str
    prompt_ids: tuple[int, ...]
    token_ids: tuple[int, ...]
    finish_reason: str
    score: float
    mean_score: float
    distinct: float


def pick_winners(
    policy: Policy, rewards: SampleScorer, instructions: Sequence[Instruction], decoding: Decoding, seed: int
) -> Iterator[Winner]:
    """Yield the best (of equals the first) of `decoding.n` samples per instruction, as ready."""
    scored = scored_samples(policy, rewards, instructions, decoding, seed=seed)
    for _ in instructions:
        candidates = list(islice(scored, decoding.n))
        best, scores = best_sample(candidates), [score for _, score in candidates]
        yield Winner(
            best.text,
            best.prompt_ids,
            best.token_ids,
            best.finish_reason,
            max(scores),
            fmean(scores),
            len({sample.text for sample, _ in candidates}) / decoding.n,
        )


def round_summary(winners: Sequence[Winner]) -> dict[str, float]:
    """Summarise a round's sampling over all prompts, as metrics."""
    best, mean = fmean(w.score for w in winners), fmean(w.mean_score for w in winners)
    return {
        "objective/best_scores": best,
        "objective/scores": mean,
        "objective/gain": best - mean,
        "objective/length": fmean(len(w.token_ids) for w in winners),
        "objective/distinct": fmean(w.distinct for w in winners),
        "objective/distinct_best": len({w.output for w in winners}) / len(winners),
        "val/num_eos_tokens": sum(w.finish_reason == "stop" for w in winners),
    }


def read_winners(directory: Path) -> list[Winner]:
    """Read the winners of one round, in the order of the prompts."""
    winners = []
    for path in sorted(directory.glob("*.jsonl")):
        for row in read_rows(path):
            values: dict[str, Any] = {n: tuple(v) if isinstance(v, list) else v for n, v in row.items()}
            winners.append(Winner(**values))
    return winners
