"""Write `trl_1_12.json`: losses and gradients of TRL 1.12's trainers on fixed tokens.

Later versions have no XPO and Nash-MD. Run it in an environment with `trl==1.12.*` beside afarm and its packages:

    python plugins-contrib/afarm-online/tests/make_trl_1_12.py

Each trainer takes its own training step from prompts to gradients. Only what it samples and how that scores is given.
"""

from __future__ import annotations

import json
import os
import tempfile
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from beside_trl import PERTURBED, RESPONSES, SCORES, describe_gradient, move, prompts_of

from afarm.backend import pad
from afarm.testing import tiny_policy

os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")

BETA = 0.3
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "online_dpo sigmoid": ("online_dpo", {"loss_type": "sigmoid"}),
    "online_dpo ipo": ("online_dpo", {"loss_type": "ipo"}),
    "xpo sigmoid": ("xpo", {"loss_type": "sigmoid", "alpha": 0.05}),
    "xpo ipo": ("xpo", {"loss_type": "ipo", "alpha": 0.01}),
    "nash_md": ("nash_md", {"mixture_coef": 0.25}),
}
NAMES = {"online_dpo": "OnlineDPO", "xpo": "XPO", "nash_md": "NashMD"}
METRICS = {"loss/dpo", "loss/score", "objective/scores", "rewards/probabilities"}
METRICS |= {f"rewards/{name}" for name in ("chosen", "rejected", "margins", "accuracies")}


def make_trainer(kind: str, settings: dict[str, Any], directory: str) -> Any:
    from datasets import Dataset

    module, name = import_module(f"trl.experimental.{kind}"), NAMES[kind]
    trainer, config = getattr(module, f"{name}Trainer"), getattr(module, f"{name}Config")
    start, policy = tiny_policy(), tiny_policy()
    policy.tokenizer.chat_template = None
    move(policy.model, PERTURBED)
    return trainer(
        model=policy.model,
        ref_model=start.model,
        reward_funcs=lambda prompts, completions, **_: [0.0] * len(completions),
        args=config(
            output_dir=directory, beta=BETA, max_new_tokens=6, per_device_train_batch_size=len(RESPONSES[0]),
            use_cpu=True, bf16=False, report_to="none", gradient_checkpointing=False, **settings,
        ),
        train_dataset=Dataset.from_list([{"prompt": text} for text in prompts_of()]),
        processing_class=policy.tokenizer,
    )  # fmt: skip


def take_step(kind: str, settings: dict[str, Any], also_generated: tuple[Any, ...] = ()) -> dict[str, Any]:
    """Have a trainer take one step on the fixed tokens, and describe it.

    Later versions generate something more.
    """
    with tempfile.TemporaryDirectory() as directory:
        trainer = make_trainer(kind, settings, directory)
    own, other = (pad(rows, 0)[0] for rows in RESPONSES)
    scores = [torch.tensor(values) for values in SCORES]
    if kind == "online_dpo":
        ids, mask = pad([trainer.processing_class(text)["input_ids"] for text in prompts_of()], 0, "left")
        given, given_mask = pad([*RESPONSES[0], *RESPONSES[1]], 0)
        twice = torch.cat([ids, ids]), torch.cat([mask, mask])
        trainer._generate = lambda *_: (*twice, given, given_mask, *also_generated)
        trainer._calculate_rewards_from_functions = lambda **_: torch.cat(scores)
    else:
        trainer._generate_completions = lambda *of: (  # `prompts` is the one argument that is a dictionary
            *(torch.cat([next(x for x in of if isinstance(x, dict))["input_ids"], rows], 1) for rows in (own, other)),
        )
        trainer._compute_rewards = lambda *_: (scores[0].clone(), scores[1].clone())
    read = {"logprobs": {}}
    if kind == "xpo":
        compute = trainer._compute_logprobs

        def keep(*arguments: Any) -> Any:
            found = compute(*arguments)
            names = ("policy of its own", "policy of the other", "start of the other", "start of its own")
            read["logprobs"] = {n: t.sum(1).tolist() for n, t in zip(names, found, strict=True)}
            return found

        trainer._compute_logprobs = keep
    trainer.model.zero_grad()
    loss = trainer.training_step(trainer.model, {"prompt": prompts_of()})
    stats = {name: values[-1] for name, values in trainer.stats.items() if values and name in METRICS}
    return {"loss": loss.item(), "stats": stats, **read, "gradient": describe_gradient(trainer.model)}


def greedy_mixture(coefficient: float) -> list[list[int]]:
    """Continue the prompts by the likeliest tokens of TRL's geometric mixture."""
    from transformers import GenerationConfig
    from trl.experimental.nash_md.nash_md_trainer import GeometricMixtureWrapper

    start, policy = tiny_policy(), tiny_policy()
    move(policy.model, PERTURBED)
    config = GenerationConfig(max_new_tokens=6, do_sample=False, pad_token_id=0, eos_token_id=1, use_cache=False)
    mixture = GeometricMixtureWrapper(policy.model, start.model, config, coefficient, torch.device("cpu"))
    found = []
    for text in prompts_of():
        ids = torch.tensor([policy.tokenizer(text)["input_ids"]])
        made = mixture.generate(input_ids=ids, attention_mask=torch.ones_like(ids), generation_config=config)
        found.append(made[0, ids.shape[1] :].tolist())
    return found


def main() -> None:
    import trl

    tokenizer = tiny_policy().tokenizer
    made: dict[str, Any] = {"trl": trl.__version__, "beta": BETA, "perturbed": PERTURBED, "scores": SCORES}
    made["prompts"] = [tokenizer(text)["input_ids"] for text in prompts_of()]
    made["responses"] = RESPONSES
    made["cases"] = {name: {"settings": s, **take_step(kind, s)} for name, (kind, s) in CASES.items()}
    made["greedy"] = {str(share): greedy_mixture(share) for share in (0.25, 0.6)}
    Path(__file__).with_name("trl_1_12.json").write_text(json.dumps(made) + "\n")


if __name__ == "__main__":
    main()
