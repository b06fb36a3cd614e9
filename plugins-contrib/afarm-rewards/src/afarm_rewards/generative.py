"""A generative reward model: a language model says if an answer is good, perhaps after a reason.

It learns the verdict of each output of a pair by the loss of the next token, and the reward is the log odds of the two
verdicts (GenRM, Zhang et al. 2024, arXiv 2408.15240, sections 3.1 and 3.2). With reasons, P(good) is averaged over
several (section 3.3). What it learns from then is its own: of the reasons that the start policy writes about an output,
the one that makes the label most likely (as STaR keeps those that lead to the answer, Zelikman et al. 2022).
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from afarm import DataError, Decoding, Instruction, JudgedPair, Policy, RewardModel, Score, TrainContext, seeding
from afarm.backend import (
    CheckpointPolicy,
    batched_logprobs,
    fit_supervised,
    hold_out,
    pairwise_accuracy,
    require_checkpoint,
    usable_pairs,
)
from afarm_rewards import GenerativeConfig

CARD = "afarm_rewards.json"
REASONS_SEED = 0
"""Reasons about an output are the same whatever else is scored, and by whom."""

Row = tuple[Instruction, str]
"""A task and an output."""


@dataclass(eq=False)
class GenerativeRewardModel(RewardModel):
    """A policy that gives verdicts. Rewards are (log odds − mean) / std; spreads are those over reasons."""

    policy: CheckpointPolicy
    config: GenerativeConfig
    mean: float = 0.0
    std: float = 1.0

    @classmethod
    def fit(
        cls, preferences: Sequence[JudgedPair], start: Policy, config: GenerativeConfig, context: TrainContext
    ) -> GenerativeRewardModel:
        """Train a copy of `start` on the verdicts of decided pairs. Raises `DataError` if none is decided."""
        start = require_checkpoint(start, config.section)
        pairs, counts = usable_pairs(
            preferences, lambda judged: judged.chosen_rejected, config.section, start, config.max_length
        )
        training, held_out = hold_out(pairs, config.eval_fraction, partial(seeding.digest, context.seed, "held out"))
        learned = [pairs[place] for place in training]
        rows = [(judged.pair.instruction, text) for judged in learned for text in judged.chosen_rejected or ()]
        labels = [number % 2 == 0 for number in range(len(rows))]  # the chosen outputs come first
        judge = cls(start, config)
        judge.require_verdicts()
        reasons = judge.best_reasons(rows, labels) if config.reasons else [""] * len(rows)
        answers = [judge.answer(reason, label) for reason, label in zip(reasons, labels, strict=True)]
        examples, cut = start.encode([judge.question(*row) for row in rows], answers, config.max_length, False)

        last = 0

        def log(step: int, metrics: Mapping[str, float]) -> None:
            nonlocal last
            last = step
            context.log_metrics(step, metrics)

        policy = fit_supervised(
            start, examples, config, replace(context, log_metrics=log), config.section, {**counts, "outputs_cut": cut}
        )
        fitted = cls(policy, config)
        metrics = fitted.standardize(rows[: config.standardize_outputs])
        metrics |= fitted.measure(learned[:500], "train")
        metrics |= fitted.measure([pairs[place] for place in held_out], "eval") if held_out else {}
        context.log_metrics(last, {name: value for name, value in metrics.items() if math.isfinite(value)})
        return fitted

    def question(self, instruction: Instruction, output: str) -> Instruction:
        """Ask about an output. The question is last, so that long outputs do not cut it off."""
        good, bad = self.config.verdicts
        turns = [f"{turn.role}: {turn.content}" for turn in instruction.messages]
        task = "\n".join(filter(None, [*turns, instruction.instruction, instruction.input]))
        asked = "Say why in a sentence or two, then write" if self.config.reasons else "Write"
        return Instruction(
            f"Task: {task}\nAnswer: {output}", f"Is this a good answer to the task? {asked} {good} or {bad}."
        )

    def answer(self, reason: str, is_good: bool) -> str:
        """Write an answer to the question."""
        verdict = self.config.verdicts[not is_good]
        return f"{reason}\nVerdict: {verdict}" if self.config.reasons else verdict

    def require_verdicts(self) -> None:
        """Raise `DataError` if the tokenizer cannot tell the verdicts apart."""
        [(_, good), (_, bad)], _ = self.policy.encode(
            [Instruction("Task")] * 2, [self.answer("", True), self.answer("", False)], self.config.max_length, False
        )
        if list(good) == list(bad):
            words, section = " and ".join(map(repr, self.config.verdicts)), self.config.section
            raise DataError(
                f"{section}: the model's tokenizer writes {words} as the same tokens: name two words that it knows, as "
                f"--set '{section}.verdicts=[good, bad]'"
            )

    def best_reasons(self, rows: Sequence[Row], labels: Sequence[bool]) -> list[str]:
        """Return, for each output, the reason of the policy's that makes its label most likely."""
        reasons = self.write_reasons(rows)
        odds = self.odds([row for row in rows for _ in range(self.config.reasons)], [r for of in reasons for r in of])
        signed = odds.view(len(rows), -1) * torch.tensor([1.0 if label else -1.0 for label in labels]).unsqueeze(-1)
        return [of[int(best)] for of, best in zip(reasons, signed.argmax(-1), strict=True)]

    def write_reasons(self, rows: Sequence[Row]) -> list[list[str]]:
        """Sample reasons about each output."""
        config = self.config
        decoding = Decoding(
            temperature=config.reason_temperature, max_new_tokens=config.reason_tokens, n=config.reasons
        )
        samples = list(self.policy.sample([self.question(*row) for row in rows], decoding, seed=REASONS_SEED))
        texts = [sample.text.partition("Verdict:")[0].strip() for sample in samples]
        return [texts[place : place + config.reasons] for place in range(0, len(texts), config.reasons)]

    def odds(self, rows: Sequence[Row], reasons: Sequence[str]) -> Tensor:
        """Compute the log odds [N] of a good verdict on each output after its reason: what both share cancels.

        It reads all rows in this process: callers that have several give each its own rows.
        """
        config, questions = self.config, [self.question(*row) for row in rows]
        sums = []
        for is_good in (True, False):
            answers = [self.answer(reason, is_good) for reason in reasons]
            encoded, _ = self.policy.encode(questions, answers, config.max_length, False)
            prompts, responses = [prompt for prompt, _ in encoded], [response for _, response in encoded]
            size = config.per_device_score_batch_size
            logprobs = batched_logprobs(self.policy, prompts, responses, batch_size=size, shared=False)
            sums.append(logprobs.double().sum(-1).cpu())
        return sums[0] - sums[1]

    def raw(self, rows: Sequence[Row]) -> tuple[Tensor, Tensor]:
        """Compute the log odds [N] of outputs, of P(good) averaged over reasons, and their spread [N]."""
        if not self.config.reasons:
            odds = self.odds(rows, [""] * len(rows))
            return odds, torch.zeros_like(odds)
        reasons = self.write_reasons(rows)
        repeated = [row for row in rows for _ in range(self.config.reasons)]
        odds = self.odds(repeated, [reason for of in reasons for reason in of]).view(len(rows), -1)
        good, bad = (torch.nn.functional.logsigmoid(sign * odds).logsumexp(-1) for sign in (1, -1))
        return good - bad, odds.std(-1, correction=0)

    def score(self, instructions: Sequence[Instruction], outputs: Sequence[str]) -> list[Score]:
        if not outputs:
            return []
        odds, spread = self.raw(list(zip(instructions, outputs, strict=True)))
        values = ((odds - self.mean - self.config.conservatism * spread) / self.std).tolist()
        if self.config.reasons < 2:
            return [Score(value) for value in values]
        return [Score(v, spread=s) for v, s in zip(values, (spread / self.std).tolist(), strict=True)]

    def standardize(self, rows: Sequence[Row]) -> dict[str, float]:
        """Make rewards of these outputs mean 0, std 1, and measure verdicts; every other one is chosen."""
        if not rows:
            return {}
        odds, _ = self.raw(rows)
        self.mean, self.std = odds.mean().item(), odds.std(correction=0).item()
        self.std = self.std if self.std > 1e-8 else 1.0
        right = [(value > 0) == (number % 2 == 0) for number, value in enumerate(odds.tolist())]
        return {"train_verdict_accuracy": sum(right) / len(right)}

    def measure(self, pairs: Sequence[JudgedPair], name: str) -> dict[str, float]:
        """Measure the share of pairs whose preferred output has the higher reward; held-out ones in more ways."""
        both = [(judged.pair.instruction, (judged.pair.output_1, judged.pair.output_2)) for judged in pairs]
        values = [[s.value for s in self.score([i for i, _ in both], [texts[n] for _, texts in both])] for n in (0, 1)]
        metrics = {f"{name}_accuracy": pairwise_accuracy(pairs, *values)}
        if name == "eval":
            odds = torch.tensor(values, dtype=torch.float64) * self.std
            p2 = torch.tensor([judged.p2 for judged in pairs], dtype=torch.float64)
            predicted = (odds[1] - odds[0]).sigmoid().clamp(1e-12, 1 - 1e-12)
            metrics["eval_pairs"] = float(len(pairs))
            metrics["eval_loss"] = torch.nn.functional.binary_cross_entropy(predicted, p2).item()
        return metrics

    def save(self, directory: Path) -> None:
        self.policy.save(directory)
        card = {"config": self.config.model_dump(mode="json"), "mean": self.mean, "std": self.std}
        (Path(directory) / CARD).write_text(json.dumps(card) + "\n", "utf-8")

    @classmethod
    def load(cls, directory: Path, context: TrainContext) -> GenerativeRewardModel:
        card: dict[str, Any] = json.loads((Path(directory) / CARD).read_text("utf-8"))
        config = GenerativeConfig.model_validate(card["config"])
        return cls(CheckpointPolicy.load(directory, context), config, card["mean"], card["std"])
