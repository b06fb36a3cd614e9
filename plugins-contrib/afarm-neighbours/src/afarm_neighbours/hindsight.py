"""Chain of Hindsight (Liu, Sferrazza, Abbeel 2023, arXiv 2302.02676).

The two outputs of a pair stand in one sequence, each behind a phrase that says how good it is:

    [bad phrase] prompt, worse output, [good phrase], better output

and the other way round. The loss is the negative log-likelihood of the outputs' tokens; phrases and prompts carry none
(eq. 2). Up to `mask_ratio` of the tokens are hidden from those after them, so that the second output is not copied from
the first (section 2). The saved policy has the good phrase in front of its prompts.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import torch
from datasets import Dataset
from torch import Tensor
from transformers import Trainer, TrainingArguments

from afarm import ConfigError, JudgedPair, MethodInputs, TrainContext, seeding
from afarm.backend import (
    CandidatePolicies,
    CheckpointPolicy,
    LengthSortedTrainer,
    all_gather_object,
    all_reduce_by_name,
    backbone,
    chosen_and_rejected,
    make_selection,
    pad,
    require_checkpoint,
    run_trainer,
    token_loss,
    trainable_copy,
    trained_model,
    trainer_arguments,
    usable_pairs,
    world_size,
)
from afarm_neighbours import ChainOfHindsightConfig

GOOD, BAD = "<|good|>", "<|bad|>"
KINDS = ("bad", "good", "demonstrations")
"""What a token is learned as: a token's kind is 1 plus its place here, and 0 if it is not learned."""


def train_hindsight(config: ChainOfHindsightConfig, inputs: MethodInputs, context: TrainContext) -> CheckpointPolicy:
    """Train a copy of `inputs.start`, and return it behind the good phrase.

    Raises `DataError` if no pair has a better output.
    """
    start = require_checkpoint(inputs.start, config.section)
    pairs, counts = usable_pairs(
        inputs.preferences, lambda judged: judged.chosen_rejected, config.section, start, config.max_length
    )
    policy, good, bad = with_phrases(config, start)
    sequences, cut = encode_chains(policy, good, bad, pairs, config)
    counts["sequences_cut"] = cut
    if shown := inputs.demonstrations if config.demonstration_weight else ():
        rows, _ = start.encode([one.instruction for one in shown], [one.output for one in shown], config.max_length)
        sequences += [([*prompt, *output], [0] * len(prompt) + [3] * len(output)) for prompt, output in rows]
    examples = [
        {"ids": ids, "kinds": kinds, "length": len(ids), "number": number}
        for number, (ids, kinds) in enumerate(sequences)
    ]
    context.backend.seed(context.seed)  # adapters start from random numbers
    trained = trainable_copy(policy.controlled(good), config.lora)
    trainer = HindsightTrainer(
        config,
        context.seed,
        model=trained.model,
        args=trainer_arguments(TrainingArguments, config, context),
        train_dataset=Dataset.from_list(examples),
        data_collator=partial(collate, policy.pad_id),
        processing_class=policy.tokenizer,
    )
    selection = make_selection(config, inputs, context)
    candidates = CandidatePolicies(trained, selection) if selection else None
    run_trainer(trainer, context, config.section, config.section, candidates)
    context.log_metrics(trainer.state.global_step, {"examples": len(examples), **counts})
    trained.model = trained_model(trainer)
    return trained


def with_phrases(config: ChainOfHindsightConfig, start: CheckpointPolicy) -> tuple[CheckpointPolicy, str, str]:
    """Return the policy to start from and both phrases. Raises `ConfigError` if they are one."""
    if config.control == "token":
        return start.copy_with_tokens([GOOD, BAD]), GOOD, BAD
    good, bad = config.good_text, config.bad_text
    if start.template.with_control(good).control_ids == start.template.with_control(bad).control_ids:
        raise ConfigError(
            f"the model's tokenizer reads {good!r} and {bad!r} as the same tokens: nothing tells good from bad "
            f"outputs; choose others with --set {config.section}.good_text and bad_text, or control=token"
        )
    return start, good, bad


def encode_chains(
    policy: CheckpointPolicy, good: str, bad: str, pairs: Sequence[JudgedPair], config: ChainOfHindsightConfig
) -> tuple[list[tuple[list[int], list[int]]], int]:
    """Encode each pair in each order as (token ids, kinds), and count the sequences that were cut.

    A long sequence loses the beginning of its prompt, then its end.
    """
    better, worse = chosen_and_rejected(pairs)
    tasks = [judged.pair.instruction for judged in pairs]
    sides = {
        kind: (policy.controlled(phrase).template, policy.template.encode_responses(side.texts, side.ended))
        for kind, phrase, side in ((1, bad, worse), (2, good, better))
    }
    orders = {"worse_first": [(1, 2)], "better_first": [(2, 1)], "both": [(1, 2), (2, 1)]}[config.order]
    limit, sequences, cut = policy.longest(config.max_length), [], 0
    for first, second in orders:
        template, phrase = sides[first][0], sides[second][0].control_ids
        outputs = zip(sides[first][1], sides[second][1], strict=True)
        for prompt, (one, two) in zip(template.encode_prompts(tasks), outputs, strict=True):
            room = limit - len(one) - len(phrase) - len(two)
            cut += len(prompt) > room
            prompt = template.shorten(prompt, max(room, 1 + len(template.control_ids)))
            ids = [*prompt, *one, *phrase, *two]
            kinds = [0] * len(prompt) + [first] * len(one) + [0] * len(phrase) + [second] * len(two)
            sequences.append((ids[:limit], kinds[:limit]))
    return sequences, cut


def hidden_tokens(seed: int, step: int, number: int, length: int, mask_ratio: float) -> list[int]:
    """Draw the tokens that a step hides, as 1: a share up to `mask_ratio`, never the first."""
    generator = torch.Generator().manual_seed(seeding.integer(seed, "hidden tokens", step, number))
    share, *draws = torch.rand(1 + length, generator=generator).tolist()
    return [int(place > 0 and draw < share * mask_ratio) for place, draw in enumerate(draws)]


def collate(pad_id: int, examples: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    """Batch B sequences: `ids`, `mask` and `kinds`, right-padded [B, T], and the examples' numbers [B]."""
    ids, mask = pad([example["ids"] for example in examples], pad_id)
    kinds, _ = pad([example["kinds"] for example in examples], 0)
    return {"ids": ids, "mask": mask, "kinds": kinds, "number": torch.tensor([e["number"] for e in examples])}


class HindsightTrainer(LengthSortedTrainer, Trainer):
    """Minimises the negative log-likelihood of learned tokens; demonstrations have a weight."""

    loss_is_scaled_for_ga = True

    def __init__(self, settings: ChainOfHindsightConfig, draws: int, **arguments: Any):
        super().__init__(**arguments)
        self.settings, self.draws = settings, draws
        self.weights = torch.tensor([0.0, 1.0, 1.0, settings.demonstration_weight])  # of a token, by kind
        self.sums = defaultdict[str, float](float)

    def compute_loss(
        self, model: Any, inputs: Any, return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        ids, kinds, mask, length = inputs["ids"], inputs["kinds"], inputs["mask"], inputs["ids"].shape[1]
        drawn = [
            hidden_tokens(self.draws, self.state.global_step, number, own, self.settings.mask_ratio)
            for number, own in zip(inputs["number"].tolist(), mask.sum(1).tolist(), strict=True)
        ]
        visible = mask - pad(drawn, 0, device=ids.device)[0]  # [B, T], as keys; positions stay
        model, places = self.accelerator.unwrap_model(self.model), torch.arange(length, device=ids.device)
        states = backbone(model)(
            input_ids=ids, attention_mask=visible, position_ids=places.expand_as(ids), use_cache=False
        ).last_hidden_state
        rows, columns = kinds.nonzero(as_tuple=True)
        learned = kinds[rows, columns]
        loss = token_loss(
            model, states[rows, columns - 1], ids[rows, columns], self.sum_loss,
            learned, self.weights.to(ids.device)[learned],
        )  # fmt: skip
        loss = loss / num_items_in_batch * world_size()  # gradients are averaged over processes
        return (loss, {}) if return_outputs else loss

    def sum_loss(self, logprobs: Tensor, learned: Tensor, weights: Tensor) -> Tensor:
        """Sum the weighted loss of m tokens, and note each kind's."""
        for kind, name in enumerate(KINDS, start=1):
            own = learned == kind
            self.sums[f"loss/{name}"] -= float(logprobs.detach()[own].sum())
            self.sums[f"tokens/{name}"] += int(own.sum())
        return -(weights * logprobs).sum()

    def _get_num_items_in_batch(self, batch_samples: list[Mapping[str, Tensor]], device: Any) -> float:
        return sum(all_gather_object(sum(float(self.weights[batch["kinds"]].sum()) for batch in batch_samples)))

    def log(self, logs: dict[str, float], *arguments: Any) -> None:
        sums = all_reduce_by_name({name: torch.tensor(value) for name, value in self.sums.items()})
        self.sums.clear()
        learned = [name for name in KINDS if sums.get(f"tokens/{name}")]
        means = {f"loss/{name}": float(sums[f"loss/{name}"] / sums[f"tokens/{name}"]) for name in learned}
        super().log({**logs, **means}, *arguments)
