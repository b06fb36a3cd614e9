"""Expert iteration (AlpacaFarm, section 3.2): SFT on the best of n samples, in rounds.

A round: sample each unlabeled instruction `n` times, keep the sample with the highest reward, and fine-tune the start
policy on those kept. The next round samples the policy that this one made. The paper has one round (Anthony et al.
2017 and others iterate); over many, `pool=accumulate` keeps what earlier rounds found, so that variety is not lost.

Not as in the reference implementation, and why:

- The policy learns the tokens that were sampled, not text tokenised again, and a response that was cut off teaches no
  end of sequence. (There: text, an end appended to everything, so that a policy learns to stop where the limit fell.)
- A prompt that leaves no room for a response in `max_length` is left out and counted, not cut.

Samples stream and are scored a batch at a time: those of one instruction are held, not those of all. The
best of every few instructions are written to disk, so that a killed round samples nothing twice.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from statistics import fmean
from typing import Any

from afarm import Decoding, Instruction, MethodInputs, Policy, TrainContext, seeding, write_rows
from afarm.backend import (
    SampleScorer,
    best_sample,
    continued_context,
    fit_supervised,
    require_checkpoint,
    sample_scorer,
    scored_samples,
    selection_of,
    shard,
    short_prompts,
    wait_for,
)
from afarm_plugins.expert_iteration import ExpertIterationConfig

PROMPTS_PER_FILE = 128
"""Instructions whose best responses are written together. Fixed, for a resumed round must batch as it did before."""

ROUND_CARD = "round.json"
"""In each checkpoint: which round it belongs to, and how many steps went before that round."""


def train_in_rounds(config: ExpertIterationConfig, inputs: MethodInputs, context: TrainContext) -> Policy:
    """Train. Raises `TrainingError` if the loss is not finite, `DataError` if no prompt is short enough."""
    start = require_checkpoint(inputs.start, "expert_iteration")
    assert inputs.reward_model is not None  # named in `needs`
    rewards = sample_scorer(inputs.reward_model, start)
    longest = config.max_length - config.response_length
    prompts = short_prompts(start, inputs.unlabeled, longest, config.response_length, "expert_iteration.max_length")
    policy, current = start, resume(context)
    while True:
        winners = best_responses(config, policy, rewards, prompts, current)
        if current.context.checkpoints.latest() is None:  # otherwise it is in the log already
            left_out = len(inputs.unlabeled) - len(prompts)
            metrics = {**round_summary(winners), "round": current.number, "data/prompts_left_out": left_out}
            current.context.log_metrics(1, metrics)
        first = 1 if config.pool == "accumulate" else current.number
        earlier = [read_winners(current.directory(number)) for number in range(first, current.number)]
        learned = [winner for of_round in [*earlier, winners] for winner in of_round]
        examples = [(winner.prompt_ids, winner.token_ids) for winner in learned]
        selection = selection_of(config, inputs, current.context)
        policy = fit_supervised(start, examples, config, current.context, "expert_iteration", selection=selection)
        if current.number == config.rounds:
            return policy
        current = Round(context, current.number + 1, current.last_step)


def best_responses(
    config: ExpertIterationConfig,
    policy: Policy,
    rewards: SampleScorer,
    prompts: Sequence[Instruction],
    current: Round,
) -> list[Winner]:
    """Sample the best response to each prompt; those on disk are read from there.

    Processes sample a shard each.
    """
    context, directory = current.whole, current.directory(current.number)
    directory.mkdir(parents=True, exist_ok=True)
    decoding = Decoding(
        temperature=config.temperature,
        max_new_tokens=config.response_length,
        n=config.n,
        per_device_batch_size=config.per_device_rollout_batch_size,
    )
    seed = seeding.integer(context.seed, "expert_iteration", current.number)
    chunks = range(0, len(prompts), PROMPTS_PER_FILE)
    paths = {start: directory / f"{start:08d}.jsonl" for start in chunks}
    own_chunks = shard(chunks)
    description = f"expert iteration {current.number}: best of {config.n}"
    for start in context.progress(own_chunks, description, len(own_chunks)):
        path = paths[start]
        if path.exists():
            continue
        winners = pick_winners(policy, rewards, prompts[start : start + PROMPTS_PER_FILE], decoding, seed)
        unfinished = path.with_suffix(".tmp")
        write_rows(unfinished, (winner.to_row() for winner in winners))
        os.replace(unfinished, path)
        if context.should_stop():
            raise KeyboardInterrupt("stopped while sampling; the same command goes on from there")
    wait_for(lambda: all(path.exists() for path in paths.values()))
    return read_winners(directory)


@dataclass(frozen=True, slots=True)
class Winner:
    """The best of the samples of one prompt; `mean_score` and `distinct` (a share) are over all of them."""

    output: str
    prompt_ids: tuple[int, ...]
    token_ids: tuple[int, ...]
    finish_reason: str
    score: float
    mean_score: float
    distinct: float

    def to_row(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__slots__}


def pick_winners(
    policy: Policy, rewards: SampleScorer, instructions: Sequence[Instruction], decoding: Decoding, seed: int
) -> Iterator[Winner]:
    """Yield the best of `decoding.n` samples for each instruction, as they are ready.

    Ties go to the sample drawn first.
    """
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
        with path.open(encoding="utf-8") as handle:
            for row in map(json.loads, handle):
                values: dict[str, Any] = {n: tuple(v) if isinstance(v, list) else v for n, v in row.items()}
                winners.append(Winner(**values))
    return winners


# ----------------------------------------------------------------------------------------------- rounds and resuming


class Round:
    """One round of the run, after `before` steps of earlier rounds; `context` is its training's.

    It is the `Checkpoints` of the run, and leaves a card in each that tells the round.
    """

    def __init__(self, whole: TrainContext, number: int, before: int):
        self.whole, self.number, self.before = whole, number, before
        self.last_step = before
        seed = seeding.integer(whole.seed, "expert_iteration", "train", number)
        self.context = continued_context(
            replace(whole, checkpoints=self, log_metrics=self.log_metrics), before, seed=seed
        )

    def directory(self, number: int) -> Path:
        """Return the directory of a round's best responses."""
        return self.whole.directory / "best_responses" / f"round-{number}"

    def log_metrics(self, step: int, metrics: Mapping[str, float]) -> None:
        self.last_step = step
        self.whole.log_metrics(step, metrics)

    def save(self, step: int, write: Callable[[Path], None]) -> None:
        card = {"round": self.number, "before": self.before}

        def write_with_card(directory: Path) -> None:
            write(directory)
            (directory / ROUND_CARD).write_text(json.dumps(card), encoding="utf-8")

        self.whole.checkpoints.save(step, write_with_card)

    def latest(self) -> tuple[int, Path] | None:
        return self.whole.checkpoints.latest()


def resume(context: TrainContext) -> Round:
    """Find the round to go on with: that of the newest checkpoint, or the first.

    Its sampling was over before its training began. If that training was over too, going on with it makes the policy
    that the next round samples.
    """
    newest = context.checkpoints.latest()
    if newest is None:
        return Round(context, 1, 0)
    card = json.loads((newest[1] / ROUND_CARD).read_text(encoding="utf-8"))
    return Round(context, card["round"], card["before"])
