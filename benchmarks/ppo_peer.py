"""The same PPO iterations in TRL 1.12, the last TRL with a PPO trainer; runs in an environment of its own.

`AFARM_BENCH_TRL` is what starts that environment's Python (torch 2.13, transformers 5.23, peft, trl 1.12.0). Weights
and prompts are those that `benchmarks.ppo_step --models` wrote. Prints one JSON line as that module does, and writes
what was sampled and scored to `--record`, so that both sides can be compared on the same rollouts.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.sides import Meter, arguments, parse, take_cores

os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")


def main() -> None:
    parser = arguments(argparse.ArgumentParser())
    parser.add_argument("--record", type=Path)
    a = parse(parser)
    take_cores(a)
    trainer, meter, recorded = build(a), Meter(a.device), list[dict[str, Any]]()
    watch(trainer, meter, recorded)
    trainer.train()
    if a.record:
        import torch

        torch.save(recorded, a.record)
    sys.stdout.write(json.dumps(meter.figures(a.batch)) + "\n")


def build(a: argparse.Namespace) -> Any:
    from datasets import Dataset
    from transformers import (
        AutoModelForCausalLM,
        AutoModelForSequenceClassification,
        AutoTokenizer,
        DataCollatorWithPadding,
    )
    from trl.experimental.ppo import PPOConfig, PPOTrainer

    tokenizer = AutoTokenizer.from_pretrained(a.models / "policy", padding_side="left")
    policy = AutoModelForCausalLM.from_pretrained(a.models / "policy", dtype="float32")
    value, reward = (
        AutoModelForSequenceClassification.from_pretrained(a.models / "reward", dtype="float32") for _ in range(2)
    )
    prompts = json.loads((a.models / "prompts.json").read_text())
    rows = Dataset.from_list([{"input_ids": row} for row in prompts * max(2, a.steps)])
    peft_config = None
    if a.lora:
        from peft import LoraConfig

        names = ["q_proj", "k_proj", "v_proj", "o_proj"]
        peft_config = LoraConfig(r=8, lora_alpha=16, target_modules=names, task_type="CAUSAL_LM")
    settings = PPOConfig(
        output_dir=tempfile.mkdtemp(),
        per_device_train_batch_size=a.micro,
        gradient_accumulation_steps=a.batch // a.micro,
        num_mini_batches=1,
        total_episodes=a.batch * a.steps,
        response_length=a.resp_len,
        num_ppo_epochs=a.epochs,
        local_rollout_forward_batch_size=min(64, max(8, a.micro)),
        learning_rate=3e-6,
        lr_scheduler_type="constant",
        adam_epsilon=1e-5,
        kl_coef=0.05,
        temperature=1.0,
        gradient_checkpointing=False,
        bf16=a.bf16,
        report_to="none",
        save_strategy="no",
        num_sample_generations=0,
        logging_steps=1,
        disable_tqdm=True,
        use_cpu=a.device == "cpu",
        seed=0,
    )
    return PPOTrainer(
        args=settings,
        processing_class=tokenizer,
        model=policy,
        ref_model=None,
        reward_model=reward,
        value_model=value,
        train_dataset=rows,
        data_collator=DataCollatorWithPadding(tokenizer),
        peft_config=peft_config,
    )


def watch(trainer: Any, meter: Meter, recorded: list[dict[str, Any]]) -> None:
    """Collect time, memory and metrics of each iteration, and what was sampled and scored."""
    import torch
    from transformers import TrainerCallback
    from trl.experimental.ppo import ppo_trainer

    class Clock(TrainerCallback):
        def on_train_begin(self, *_: Any, **__: Any) -> None:
            meter.tick()

        def on_step_end(self, *_: Any, **__: Any) -> None:
            meter.tick()

        def on_log(self, _args: Any, _state: Any, _control: Any, logs: dict[str, float], **_: Any) -> None:
            meter.metrics.append(dict(logs))

    trainer.add_callback(Clock())
    generate, score = ppo_trainer.batch_generation, ppo_trainer.get_reward

    def generation(*given: Any, **named: Any) -> Any:
        found = generate(*given, **named)
        recorded.append({"tokens": found[0].cpu().clone(), "scores": torch.empty(0)})
        return found

    def reward(model: Any, *given: Any, **named: Any) -> Any:
        found = score(model, *given, **named)
        if model is trainer.reward_model:
            recorded[-1]["scores"] = torch.cat([recorded[-1]["scores"], found[1].detach().cpu()])
        return found

    ppo_trainer.batch_generation, ppo_trainer.get_reward = generation, reward


if __name__ == "__main__":
    main()
