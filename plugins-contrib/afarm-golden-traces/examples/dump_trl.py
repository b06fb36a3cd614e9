"""Dump TRL's trainers as JSON for the check: `python dump_trl.py dump.json METHOD [VARIANT]`.

A trainer takes two steps of its own, on the trace's tokens and weights. What it computes is read from the variables of
its functions. Written for TRL 1.16; its last PPO is in 1.12, which needs an environment of its own.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from afarm_golden_traces import METHODS, Trace, load_trace
from afarm_golden_traces.quantities import PASSES
from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers
from torch.utils.data import SequentialSampler
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    LlamaForSequenceClassification,
    PreTrainedTokenizerFast,
)

os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")

Dump = dict[str, Any]
Variables = dict[str, Any]


# ---------------------------------------------------------------------------------------------- what a trainer is given


def build(trace: Trace, network: str, kind: Any = LlamaForCausalLM, part: str = "") -> Any:
    """Make a model of one of the trace's networks, or of one part of it."""
    model = kind(LlamaConfig(**{**trace.model, "num_labels": 1}))
    load(model, trace, network, part)
    return model


def load(model: Any, trace: Trace, network: str, part: str = "") -> None:
    weights = {n.removeprefix(part): torch.tensor(w).float() for n, w in trace.weights[network].items() if part in n}
    model.load_state_dict(weights)


def tokenizer(trace: Trace) -> PreTrainedTokenizerFast:
    """Tokens t0 to t11. Only their ids matter."""
    words = Tokenizer(models.WordLevel({f"t{i}": i for i in range(trace.model["vocab_size"])}, unk_token="t0"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=words, pad_token="t0", eos_token="t1", padding_side="left")


def adamw(trace: Trace, model: Any) -> torch.optim.AdamW:
    """The trace's optimiser: transformers' own has no weight decay on norms."""
    given = trace.hyperparameters
    return torch.optim.AdamW(
        model.parameters(), given["learning_rate"], (given["adam_beta1"], given["adam_beta2"]), given["adam_epsilon"],
        given["weight_decay"],
    )  # fmt: skip


def arguments(trace: Trace, directory: str, rows: int, *names: str) -> dict[str, Any]:
    """Settings of a trainer, of the trace's those in `names`."""
    given = trace.hyperparameters
    return {
        "output_dir": directory, "per_device_train_batch_size": rows, "max_steps": 2, "use_cpu": True, "bf16": False,
        "report_to": "none", "save_strategy": "no", "logging_strategy": "no", "disable_tqdm": True,
        "gradient_checkpointing": False, "max_grad_norm": given["max_grad_norm"], "lr_scheduler_type": "constant",
        **{name: given[name] for name in ("learning_rate", "adam_beta1", "adam_beta2", "adam_epsilon", "weight_decay")},
        **{name: given[name] for name in names},
    }  # fmt: skip


# ---------------------------------------------------------------------------------------------- what is read from it


@contextmanager
def watching(*functions: str) -> Iterator[dict[str, Variables]]:
    """Keep the variables that functions had when they last returned, by their names."""
    kept: dict[str, Variables] = {}

    def keep(frame: Any, event: str, _: Any) -> None:
        if event == "return" and frame.f_code.co_name in functions:
            kept[frame.f_code.co_name] = dict(frame.f_locals)

    sys.setprofile(keep)
    try:
        yield kept
    finally:
        sys.setprofile(None)


def train(trainer: Any, method: str, describe: Callable[..., Dump], *functions: str) -> Dump:
    """Have a trainer take two steps. `describe` makes quantities of the variables of `functions`."""
    dump: Dump = {}
    once = {quantity.name for quantity in METHODS[method].before}
    prefixes = iter(PASSES)
    backward = trainer.accelerator.backward

    def by_weight(read: Callable[[Any], Any]) -> Dump:
        return {name.replace("value_model.", "value."): read(w).tolist() for name, w in trainer.model.named_parameters()
                if "critic_backbone" not in name}  # fmt: skip

    def backward_and_read(loss: Any, **options: Any) -> None:
        backward(loss, **options)
        dump["prefix"] = prefix = next(prefixes)
        found = describe(*(kept[name] for name in functions)) if functions else describe(sys._getframe(1).f_locals)
        for name, value in found.items():
            dump.setdefault(name if name in once else prefix + name, plain(value))
        dump[f"{prefix}gradients"] = by_weight(lambda weight: weight.grad)

    def read_parameters(*_: Any) -> None:
        dump[f"{dump['prefix']}parameters"] = by_weight(lambda weight: weight)

    trainer.accelerator.backward = backward_and_read
    getattr(trainer.optimizer, "optimizer", trainer.optimizer).register_step_post_hook(read_parameters)
    trainer._get_train_sampler = lambda *_: SequentialSampler(trainer.train_dataset)
    with watching(*functions) as kept:
        trainer.train()
    del dump["prefix"]
    return dump


def plain(value: Any) -> Any:
    if isinstance(value, list):
        return [plain(v) for v in value]
    return value.tolist() if isinstance(value, torch.Tensor) else value


def cut(tokens: Any, mask: Any) -> list[Any]:
    """Rows of response tokens, of rows with pads and prompts."""
    return [row[where.bool()] for row, where in zip(tokens, mask, strict=True)]


# ---------------------------------------------------------------------------------------------------------- preferences


def dump_dpo(trace: Trace, directory: str) -> Dump:
    import trl

    inputs, policy, loss_type = trace.inputs, build(trace, "learned"), trace.hyperparameters["loss_type"]
    rows = {"prompt_ids": "prompts", "chosen_ids": "chosen_responses", "rejected_ids": "rejected_responses"}
    config = trl.DPOConfig(**arguments(trace, directory, len(inputs["prompts"]), "beta"), loss_type=[loss_type])
    texts = Dataset.from_list([{"prompt": "t2", "chosen": "t5", "rejected": "t6"}])
    trainer = trl.DPOTrainer(
        policy, build(trace, "reference"), config, train_dataset=texts, processing_class=tokenizer(trace),
        optimizers=(adamw(trace, policy), None),
    )  # fmt: skip
    trainer.train_dataset = Dataset.from_dict({name: inputs[given] for name, given in rows.items()})

    def describe(v: Variables) -> Dump:
        mask = v["shift_completion_mask"]
        ours, theirs = (cut(v[f"{whose}per_token_logps"], mask) for whose in ("", "ref_"))
        pairs = len(ours) // 2
        found = {"losses": v["per_sequence_loss"], "loss": v["loss"]}
        found |= {"chosen_logprobs": ours[:pairs], "rejected_logprobs": ours[pairs:]}
        found |= {"ref_chosen_logprobs": theirs[:pairs], "ref_rejected_logprobs": theirs[pairs:]}
        for side in ("chosen", "rejected", "ref_chosen", "ref_rejected"):
            found[f"{side}_sequence_logprobs"] = v[f"{side}_logps"]
        if loss_type == "sigmoid":  # what it logs of others is not what they learn from
            found |= {name: v[name] for name in ("chosen_rewards", "rejected_rewards", "margins")}
            found["accuracy"] = v["reward_accuracies"].mean()
        return found

    return train(trainer, "dpo", describe, "_compute_loss")


def dump_kto(trace: Trace, directory: str) -> Dump:
    import trl

    inputs, policy, loss_type = trace.inputs, build(trace, "learned"), trace.hyperparameters["loss_type"]
    settings = arguments(trace, directory, len(inputs["prompts"]), "beta", "desirable_weight", "undesirable_weight")
    texts = Dataset.from_list([{"prompt": f"t{n}", "completion": "t5", "label": n == 2} for n in (2, 3)])
    trainer = trl.KTOTrainer(
        policy, build(trace, "reference"), trl.KTOConfig(**settings, loss_type=loss_type), train_dataset=texts,
        processing_class=tokenizer(trace), optimizers=(adamw(trace, policy), None),
    )  # fmt: skip
    rows = {"prompt_ids": inputs["prompts"], "completion_ids": inputs["responses"], "label": inputs["labels"]}
    if loss_type == "kto":
        rows["KL_completion_ids"] = inputs["mismatched_responses"]
    trainer.train_dataset = Dataset.from_dict(rows)

    def describe(v: Variables) -> Dump:
        mask = v["batch"]["completion_mask"][:, 1:]
        order = torch.cat([v["chosen_idx"], v["rejected_idx"]]).argsort()  # it puts desirable rows first
        found = {
            "logprobs": cut(v["per_token_logps"], mask), "ref_logprobs": cut(v["ref_per_token_logps"], mask),
            "sequence_logprobs": v["completion_logps"], "ref_sequence_logprobs": v["ref_completion_logps"],
            "log_ratios": torch.cat([v["chosen_logratios"], v["rejected_logratios"]])[order],
            "reference_point": v["kl"], "losses": v["losses"][order], "loss": v["loss"],
        }  # fmt: skip
        if loss_type == "kto":
            found |= {"mismatched_sequence_logprobs": v["KL_logps"]}
            found |= {"ref_mismatched_sequence_logprobs": v["ref_KL_logps"]}
        return found

    return train(trainer, "kto", describe, "_compute_loss")


def dump_reward(trace: Trace, directory: str) -> Dump:
    import trl

    inputs, model = trace.inputs, build(trace, "learned", LlamaForSequenceClassification)
    settings = arguments(trace, directory, len(inputs["prompts"]), "center_rewards_coefficient")
    trainer = trl.RewardTrainer(
        model, trl.RewardConfig(**settings), train_dataset=Dataset.from_list([{"chosen": "t5", "rejected": "t6"}]),
        processing_class=tokenizer(trace), optimizers=(adamw(trace, model), None),
    )  # fmt: skip
    rows = {
        f"{side}_ids": [p + r for p, r in zip(inputs["prompts"], inputs[f"{side}_responses"], strict=True)]
        for side in ("chosen", "rejected")
    }
    margins = {"margin": inputs["pair_margins"]} if trace.hyperparameters["use_margins"] else {}
    trainer.train_dataset = Dataset.from_dict({**rows, **margins})

    def describe(v: Variables) -> Dump:
        scores = {f"{side}_scores": v[f"rewards_{side}"] for side in ("chosen", "rejected")}
        return {**scores, "loss": v["loss"], "accuracy": v["mean_accuracy"]}

    return train(trainer, "reward", describe, "compute_loss")


# ------------------------------------------------------------------------------------------------------------ on policy


def make_online(trace: Trace, directory: str, kind: str, rewards: str, *names: str, **settings: Any) -> Any:
    """Make a trainer of GRPO or RLOO, whose rollout is the trace's."""
    import trl

    inputs, policy, reference = trace.inputs, build(trace, "learned"), build(trace, "reference")
    reference.save_pretrained(f"{directory}/reference")
    policy.config._name_or_path = f"{directory}/reference"  # where it takes the reference from
    names = ("temperature", "num_generations", "beta", *names)
    given = arguments(trace, directory, len(inputs["prompts"]), *names) | settings
    trainer = getattr(trl, f"{kind}Trainer")(
        policy, lambda prompts, **_: inputs[rewards], getattr(trl, f"{kind}Config")(**given, num_iterations=2),
        train_dataset=Dataset.from_list([{"prompt": "t2"}] * len(inputs["prompts"])),
        processing_class=tokenizer(trace), optimizers=(adamw(trace, policy), None),
    )  # fmt: skip
    texts, rollout = [""] * len(inputs["prompts"]), trainer._generate_and_score_completions
    more = (None, texts, None, {}, None, None) if kind == "GRPO" else (texts,)
    trainer._generate = lambda prompts: (inputs["prompts"], inputs["responses"], *more)

    def of_the_old_policy(rows: Any) -> Any:
        load(policy, trace, "old")
        made = rollout(rows)
        load(policy, trace, "learned")
        return made

    trainer._generate_and_score_completions = of_the_old_policy
    return trainer


def dump_grpo(trace: Trace, directory: str) -> Dump:
    given = trace.hyperparameters
    named = ("epsilon", "scale_rewards", "importance_sampling_level", "use_bias_correction_kl", "max_completion_length")
    high = given["epsilon_high"] + (given["loss_type"] == "cispo")  # its bound itself, not how far it is above 1
    trainer = make_online(
        trace, directory, "GRPO", "rewards", *named, loss_type=given["loss_type"], epsilon_high=high
    )  # fmt: skip

    def describe(rollout: Variables, v: Variables) -> Dump:
        mask = v["mask"]
        found = {
            "response_mask": mask, "old_logprobs": v["old_per_token_logps"], "advantages": rollout["advantages"],
            "group_means": rollout["mean_grouped_rewards"], "logprobs": v["per_token_logps"], "entropy": v["entropies"],
            "ratio": v["coef_1"].expand_as(mask), "token_losses": v["per_token_loss"] * mask, "loss": v["loss"],
        }  # fmt: skip
        if given["beta"]:
            found["ref_logprobs"] = v["ref_per_token_logps"]
        if given["beta"] and not given["use_bias_correction_kl"]:  # else it has it times the ratio alone
            found["kl"] = v["per_token_kl"]
        if given["scale_rewards"] == "group":
            found["group_stds"] = rollout["std_rewards"]
        if given["loss_type"] != "cispo":
            found["policy_losses"] = -torch.min(v["per_token_loss1"], v["per_token_loss2"]).expand_as(mask)
        return found

    with patch("trl.trainer.grpo_trainer.shuffle_sequence_dict", lambda rows: rows):
        return train(trainer, "grpo", describe, "_generate_and_score_completions", "_compute_loss")


def dump_rloo(trace: Trace, directory: str) -> Dump:
    trainer = make_online(trace, directory, "RLOO", "scores", "epsilon", "normalize_advantages")

    def describe(rollout: Variables, v: Variables) -> Dump:
        return {
            "response_mask": v["completion_mask"], "old_logprobs": rollout["old_per_token_logps"],
            "ref_logprobs": rollout["ref_per_token_logps"], "kl": rollout["per_token_kl"], "sequence_kl": rollout["kl"],
            "rewards": rollout["grouped_rewards"].view(-1), "baselines": rollout["baselines"],
            "advantages": rollout["advantages"], "logprobs": v["per_token_logps"], "entropy": v["entropies"],
            "sequence_logprobs": v["logps"], "ratio": v["coef_1"], "losses": v["per_sequence_loss"], "loss": v["loss"],
            "clip_fraction": v["is_region_clipped"].float().mean(),
        }  # fmt: skip

    with patch("trl.trainer.rloo_trainer.shuffle_sequence_dict", lambda rows: rows):
        return train(trainer, "rloo", describe, "_generate_and_score_completions", "_compute_loss")


def dump_ppo(trace: Trace, directory: str) -> Dump:
    """TRL 1.12's, with the variant `trl`."""
    from trl.experimental import ppo

    module = sys.modules[f"{ppo.__name__}.ppo_trainer"]
    inputs, rows = trace.inputs, len(trace.inputs["prompts"])
    policy = build(trace, "learned", part="policy.")
    value, reward = (build(trace, "old_value", LlamaForSequenceClassification) for _ in range(2))
    names = ("temperature", "missing_eos_penalty", "kl_coef", "gamma", "lam", "cliprange", "cliprange_value", "vf_coef")
    settings = arguments(trace, directory, rows, *names) | {"num_ppo_epochs": 2, "num_mini_batches": 1}
    settings |= {"total_episodes": rows, "stop_token": "eos", "num_sample_generations": 0}
    settings |= {"local_rollout_forward_batch_size": rows}
    both = torch.nn.ModuleDict({"policy": policy, "value": value})
    trainer = ppo.PPOTrainer(
        ppo.PPOConfig(**settings), tokenizer(trace), policy, build(trace, "reference"), reward,
        Dataset.from_dict({"input_ids": inputs["prompts"]}), value,
        optimizers=(adamw(trace, both), torch.optim.lr_scheduler.ConstantLR(adamw(trace, both), 1.0)),
    )  # fmt: skip
    get_reward, forward = module.get_reward, module.forward
    prompts, responses = (
        torch.tensor(trace.padded(*name)[0]) for name in (("prompts", "left"), ("responses", "right"))
    )
    trainer.dataloader = [{"input_ids": prompts}]

    def sample(model: Any, queries: Any, *_: Any) -> Any:
        load(policy, trace, "old")
        both_ids = torch.cat([queries, responses], 1)
        logits = forward(model, both_ids, 0).logits[:, queries.shape[1] - 1 : -1]
        return both_ids, logits / trace.hyperparameters["temperature"]

    def score(model: Any, *rest: Any) -> Any:
        return (
            (None, torch.tensor(inputs["reward_model_scores"]), None) if model is reward else get_reward(model, *rest)
        )

    def learned(size: int) -> Any:  # the rollout is over
        if trainer.state.global_step == 0 and torch.equal(policy.lm_head.weight, old_head):
            load(policy, trace, "learned", "policy.")
            load(value, trace, "learned", "value.")
        return range(size)

    old_head = torch.tensor(trace.weights["old"]["lm_head.weight"]).float()

    def describe(v: Variables) -> Dump:
        mask = ~v["padding_mask"]
        return {
            "response_mask": mask.int(), "old_logprobs": cut(v["logprobs"], mask),
            "ref_logprobs": cut(v["ref_logprobs"], mask), "old_values": v["values"], "kl": v["kl"],
            "scores": v["scores"], "rewards": v["rewards"], "returns": v["returns"],
            "whitened_advantages": v["advantages"], "logprobs": v["new_logprobs"], "ratio": v["ratio"],
            "policy_losses": v["pg_loss_max"], "policy_loss": v["pg_loss"], "new_values": v["vpred"],
            "value_losses": v["vf_loss_max"], "value_loss": v["vf_loss"], "loss": v["loss"],
        }  # fmt: skip

    with patch.multiple(module, batch_generation=sample, get_reward=score), \
            patch.object(module.np.random, "permutation", learned):  # fmt: skip
        return train(trainer, "ppo", describe)


DUMPS = {
    "ppo": dump_ppo, "dpo": dump_dpo, "grpo": dump_grpo, "rloo": dump_rloo, "kto": dump_kto, "reward": dump_reward,
}  # fmt: skip


def dump(method: str, variant: str = "") -> Dump:
    """Make the dump of TRL's trainer of a method."""
    trace = load_trace(method, variant)
    with tempfile.TemporaryDirectory() as directory:
        return {"method": method, "variant": variant, **DUMPS[method](trace, directory)}


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(json.dumps(dump(*sys.argv[2:])) + "\n")
