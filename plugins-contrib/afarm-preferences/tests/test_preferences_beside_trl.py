"""Losses and gradients beside those of TRL's trainers (1.16), on the same tokens and weights."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from afarm_preferences import KTOConfig, PairwiseConfig
from afarm_preferences.kto import KTOTrainer, collate_rows, mismatched_rows
from afarm_preferences.pairwise import PairwiseTrainer, collate_pairs, encode_pairs
from afarm_preferences.trainer import PreferenceTrainer, summed_logprobs
from datasets import Dataset
from transformers import TrainingArguments

from afarm import Instruction, JudgedPair, Pair, Preference
from afarm.backend import CheckpointPolicy, join_and_pad, trainer_arguments
from afarm.testing import make_instructions, tiny_policy, train_context

warnings.filterwarnings("ignore", category=FutureWarning)

Given = dict[str, Any]

CLOSE = {"rtol": 1e-5, "atol": 1e-5}
QUIET: Given = {"use_cpu": True, "report_to": "none", "bf16": False, "gradient_checkpointing": False, "max_length": 99}


@pytest.fixture(scope="module")
def start() -> CheckpointPolicy:
    return tiny_policy()


@pytest.fixture(scope="module")
def policy(start: CheckpointPolicy) -> CheckpointPolicy:
    """The start some steps later."""
    moved = start.copy()
    with torch.random.fork_rng(), torch.no_grad():
        torch.manual_seed(1)
        for weight in moved.model.parameters():
            weight += 0.03 * torch.randn_like(weight)
    return moved


def judged(instruction: Instruction, chosen: str, rejected: str) -> JudgedPair:
    pair = Pair(instruction, chosen, rejected)
    return JudgedPair(pair, Preference(pair.id, 0.0))


@pytest.fixture(scope="module")
def pairs() -> list[JudgedPair]:
    """Six pairs, chosen responses equally long, since TRL's `sft` is a mean over a batch's tokens."""
    words = [f"w{(7 * n) % 40}" for n in range(60)]
    return [
        judged(task, " ".join(words[n : n + 3]), " ".join(words[n + 9 : n + 10 + 2 * n]))
        for n, task in enumerate(make_instructions(6))
    ]


@pytest.fixture(scope="module")
def examples(start: CheckpointPolicy, pairs: list[JudgedPair]) -> list[Given]:
    made, _ = encode_pairs(start, pairs, 99)
    for example in made:
        example["reference"] = tuple(summed_logprobs(start, [example["chosen"], example["rejected"]], 2))
    return made


def our_trainer(
    kind: type[PreferenceTrainer], config: PairwiseConfig | KTOConfig, policy: CheckpointPolicy, directory: Path
) -> PreferenceTrainer:
    arguments = trainer_arguments(TrainingArguments, config, train_context(directory))
    return kind(config, model=policy.model, args=arguments, train_dataset=Dataset.from_list([{"length": 1}]))


def rows_for_trl(start: CheckpointPolicy, rows: list[Any], name: str = "") -> Given:
    batch = join_and_pad([prompt for prompt, _ in rows], [response for _, response in rows], start.pad_id)
    tensors = {"input_ids": batch.input_ids, "attention_mask": batch.attention_mask}
    return {f"{name}{k}": v for k, v in {**tensors, "completion_mask": batch.response_mask.long()}.items()}


def with_gradients(model: Any, compute: Callable[[], torch.Tensor]) -> tuple[float, torch.Tensor]:
    """The loss, and its gradient by all weights in one vector."""
    model.zero_grad()
    loss = compute()
    loss.backward()
    gradient = torch.cat([weight.grad.flatten() for weight in model.parameters() if weight.grad is not None])
    return loss.item(), gradient


def assert_equal(model: Any, ours: Callable[[], torch.Tensor], theirs: Callable[[], torch.Tensor]) -> None:
    (loss, gradient), (their_loss, their_gradient) = with_gradients(model, ours), with_gradients(model, theirs)
    assert loss == pytest.approx(their_loss, rel=1e-5, abs=1e-5)
    scale = their_gradient.abs().max()
    assert scale > 0.01
    torch.testing.assert_close(gradient / scale, their_gradient / scale, **CLOSE)


# --------------------------------------------------------------------------------------------------------- DPOTrainer


@pytest.fixture(scope="module")
def dpo(start: CheckpointPolicy, policy: CheckpointPolicy, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    from trl import DPOConfig, DPOTrainer

    rows = Dataset.from_list([{"prompt": "w1", "chosen": " w2", "rejected": " w3"}])
    arguments = DPOConfig(output_dir=str(tmp_path_factory.mktemp("dpo")), **QUIET)
    yield DPOTrainer(policy.model, start.copy().model, arguments, train_dataset=rows, processing_class=start.tokenizer)
    policy.model.__dict__.pop("forward", None)


MPO = {"loss_type": ["sigmoid", "bco_pair", "sft"], "loss_weights": [0.8, 0.2, 1.0]}


@pytest.mark.parametrize(
    "settings",
    [
        *({"loss_type": [name]} for name in ("sigmoid", "sigmoid_norm", "hinge", "ipo", "sppo_hard")),
        *({"loss_type": [name]} for name in ("apo_zero", "apo_down")),
        {"loss_type": ["robust"], "label_smoothing": 0.2},
        MPO,
    ],
    ids=lambda settings: "+".join(settings["loss_type"]),
)
def test_losses_with_a_reference_are_those_of_trls_dpo_trainer(
    settings: Given, dpo: Any, start: CheckpointPolicy, policy: CheckpointPolicy, examples: list[Given], tmp_path: Path
) -> None:
    config = PairwiseConfig(beta=0.3, **settings)
    trainer = our_trainer(PairwiseTrainer, config, policy, tmp_path)
    batch = collate_pairs(start.pad_id, examples)
    given = rows_for_trl(start, [e["chosen"] for e in examples] + [e["rejected"] for e in examples])
    dpo.loss_types, dpo.loss_weights = config.loss_type, list(config.weights.values())
    dpo.beta, dpo.label_smoothing = config.beta, config.label_smoothing
    assert_equal(
        policy.model,
        lambda: trainer.compute_loss(policy.model, batch, num_items_in_batch=len(examples)),
        lambda: dpo.compute_loss(policy.model, given),
    )


# ---------------------------------------------------------------------------------------- CPOTrainer and ORPOTrainer


def sides_for_trl(start: CheckpointPolicy, examples: list[Given]) -> Given:
    given = {}
    for side in ("chosen", "rejected"):
        rows = rows_for_trl(start, [example[side] for example in examples])
        mask = rows.pop("completion_mask")
        labels = rows["input_ids"].masked_fill(mask == 0, -100)
        given |= {f"{side}_{name}": tensor for name, tensor in {**rows, "labels": labels}.items()}
    return given


@pytest.mark.parametrize("name", ["simpo", "cpo", "conservative"])
def test_losses_without_a_reference_are_those_of_trls_cpo_trainer(
    name: str, start: CheckpointPolicy, policy: CheckpointPolicy, examples: list[Given], tmp_path: Path
) -> None:
    from trl.experimental.cpo import CPOConfig, CPOTrainer

    kinds = {
        "simpo": ({"loss_type": "simpo", "cpo_alpha": 0.0}, {"loss_type": ["simpo"]}),
        "cpo": ({"loss_type": "sigmoid", "cpo_alpha": 0.5}, {"loss_type": ["sigmoid", "sft"], "reference": "none"}),
        "conservative": (  # TRL's DPOTrainer smooths other losses only
            {"loss_type": "sigmoid", "cpo_alpha": 0.0, "label_smoothing": 0.2},
            {"loss_type": ["sigmoid"], "reference": "none", "label_smoothing": 0.2},
        ),
    }
    theirs, ours = kinds[name]
    arguments = CPOConfig(output_dir=str(tmp_path / "trl"), beta=0.7, simpo_gamma=0.4, **theirs, **QUIET)
    rows = Dataset.from_list([{"prompt": "w1", "chosen": "w2", "rejected": "w3"}])
    trl = CPOTrainer(policy.model, args=arguments, train_dataset=rows, processing_class=start.tokenizer)
    weights = [1.0, 0.5][: len(ours["loss_type"])]
    config = PairwiseConfig(beta=0.7, simpo_gamma=0.4, loss_weights=weights, **ours)
    trainer = our_trainer(PairwiseTrainer, config, policy, tmp_path / "ours")
    without = [{**example, "reference": (0.0, 0.0)} for example in examples]
    batch, given = collate_pairs(start.pad_id, without), sides_for_trl(start, examples)
    assert_equal(
        policy.model,
        lambda: trainer.compute_loss(policy.model, batch, num_items_in_batch=len(examples)),
        lambda: trl.get_batch_loss_metrics(policy.model, given)[0],
    )


def test_orpo_is_that_of_trls_orpo_trainer_where_prompts_are_one_token(
    start: CheckpointPolicy, policy: CheckpointPolicy, examples: list[Given], tmp_path: Path
) -> None:
    """TRL's cross-entropy is over the prompt too, of which a first token is not predicted."""
    from trl.experimental.orpo import ORPOConfig, ORPOTrainer

    arguments = ORPOConfig(output_dir=str(tmp_path / "trl"), beta=0.25, **QUIET)
    rows = Dataset.from_list([{"prompt": "w1", "chosen": "w2", "rejected": "w3"}])
    trl = ORPOTrainer(policy.model, args=arguments, train_dataset=rows, processing_class=start.tokenizer)
    config = PairwiseConfig(loss_type=["sft", "odds_ratio"], beta=0.25)
    trainer = our_trainer(PairwiseTrainer, config, policy, tmp_path / "ours")
    short = [
        {**e, **{side: (e[side][0][-1:], e[side][1]) for side in ("chosen", "rejected")}, "reference": (0.0, 0.0)}
        for e in examples
    ]
    batch, given = collate_pairs(start.pad_id, short), sides_for_trl(start, short)
    assert_equal(
        policy.model,
        lambda: trainer.compute_loss(policy.model, batch, num_items_in_batch=len(examples)),
        lambda: trl.get_batch_loss_metrics(policy.model, given)[0],
    )


# --------------------------------------------------------------------------------------------------------- KTOTrainer


@pytest.mark.parametrize("loss_type", ["kto", "apo_zero_unpaired"])
@pytest.mark.parametrize("weights", [(1.0, 1.0), (1.5, 0.5)])
def test_kto_is_that_of_trls_kto_trainer(
    loss_type: str,
    weights: tuple[float, float],
    start: CheckpointPolicy,
    policy: CheckpointPolicy,
    examples: list[Given],
    tmp_path: Path,
) -> None:
    from trl import KTOConfig as TRLConfig
    from trl import KTOTrainer as TRLTrainer

    settings: Given = {"beta": 0.2, "desirable_weight": weights[0], "undesirable_weight": weights[1]}
    rows = [*(e["chosen"] for e in examples), *(e["rejected"] for e in examples[:3])]
    labels = [True] * 6 + [False] * 3
    # z₀ is clamped at 0; these responses, as the policy's own would, have become more probable to other prompts
    drawn = [mismatched_rows(rows, 99, seed) for seed in range(20)]
    rise = [sum(summed_logprobs(policy, o, 9)) - sum(summed_logprobs(start, o, 9)) for o in drawn]
    others = drawn[rise.index(max(rise))]
    made = [
        {"row": row, "p": float(label), "reference": logp, "other": other, "other_reference": other_logp}
        for row, label, logp, other, other_logp in zip(
            rows, labels, summed_logprobs(start, rows, 9), others, summed_logprobs(start, others, 9), strict=True
        )
    ]
    trainer = our_trainer(KTOTrainer, KTOConfig(loss_type=loss_type, **settings), policy, tmp_path / "ours")
    arguments = TRLConfig(
        output_dir=str(tmp_path / "trl"), loss_type=loss_type, per_device_train_batch_size=2, **settings, **QUIET
    )
    thumbs = Dataset.from_list([{"prompt": f"w{n}", "completion": " w2", "label": n == 1} for n in range(2)])
    trl = TRLTrainer(
        policy.model, start.copy().model, arguments, train_dataset=thumbs, processing_class=start.tokenizer
    )
    given = {**rows_for_trl(start, rows), **rows_for_trl(start, others, "KL_"), "label": torch.tensor(labels)}
    given_kl = {k: v for k, v in given.items() if loss_type == "kto" or not k.startswith("KL_")}

    def ours() -> torch.Tensor:
        batch = collate_rows(start.pad_id, made)
        if loss_type == "kto":
            trainer.kl = trainer.estimate_kl([batch])
            assert trainer.kl > 0.01
        return trainer.compute_loss(policy.model, batch, num_items_in_batch=len(rows))

    assert_equal(policy.model, ours, lambda: trl.compute_loss(policy.model, given_kl))
    if loss_type == "kto":
        noted = [value for metrics in trl._metrics.values() for value in metrics["kl"]]
        assert noted == [pytest.approx(trainer.kl, rel=1e-5)]
    policy.model.__dict__.pop("forward", None)
