"""`afarm memory`: what fits a card by arithmetic, and what to change where it does not."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from afarm.cli import make_app


def rows(*arguments: str) -> dict[str, dict[str, object]]:
    result = CliRunner().invoke(make_app(), ["memory", "--json", *arguments])
    assert result.exit_code == 0, result.output
    return {row["stage"]: row for row in json.loads(result.stdout)}


@pytest.mark.parametrize("method", ["ppo", "dpo", "quark", "expert_iteration", "best_of_n"])
def test_the_papers_recipe_fits_eight_cards_and_with_adapters_one(method: str) -> None:
    for options in (("--recipe", "paper", "--gpus", "8"), ("--recipe", "paper-lora")):
        assert [row["stage"] for row in rows(*options, "--method", method).values() if not row["fits"]] == []


def test_a_stage_that_does_not_fit_says_what_to_change() -> None:
    found = rows("--recipe", "paper")
    assert not found["sft"]["fits"]
    assert "sft.lora" in str(found["sft"]["change"])
    assert found["sft"]["total"] == pytest.approx(137.5e9, rel=0.02)
    crowded = rows("--recipe", "paper-lora", "--set", "sample.per_device_batch_size=1024")["sample"]
    assert "lower sample.per_device_batch_size" in str(crowded["change"])


def test_what_is_scored_as_it_is_sampled_has_the_reward_model_beside_the_policy() -> None:
    plain = rows("--recipe", "paper-lora", "--method", "dpo")["outputs"]
    best = rows("--recipe", "paper-lora", "--method", "best_of_n")["outputs"]
    best_of_many = rows("--recipe", "paper-lora", "--method", "expert_iteration")["train expert_iteration"]
    whole = 2 * 6_738_415_616
    assert plain["weights"] == whole
    assert best["weights"] == best_of_many["weights"] == 2 * whole - 2 * 4096 * (32000 - 1), "with a head of one number"
    assert best["cache"] == plain["cache"], "the n samples of a prompt are sampled in batches"


LARGEST = ("--recipe", "paper-lora", "--method", "dpo", "--model", "meta-llama/Llama-2-70b-hf")
SERVED = ("--set", "backend.sampler=vllm@http://127.0.0.1:1")


def test_a_model_larger_than_a_card_is_sampled_on_a_server() -> None:
    by_torch, by_server = rows(*LARGEST, "--gpus", "8"), rows(*LARGEST, "--gpus", "8", *SERVED)
    for stage in ("sample", "outputs"):
        assert by_torch[stage]["fits"] is False
        assert "sample on a vLLM server of several cards (--set backend.sampler=vllm@URL)" in str(
            by_torch[stage]["change"]
        )
        assert (by_server[stage]["moment"], by_server[stage]["total"]) == ("proof", 0), "the copy is on the host"
    assert [stage for stage, row in by_server.items() if not row["fits"]] == ["evaluate"]
    assert "--set evaluate.evaluators=[win_rate]" in str(by_server["evaluate"]["change"])
    judged = rows(*LARGEST, "--gpus", "8", *SERVED, "--set", "evaluate.evaluators=[win_rate]")
    assert all(row["fits"] for row in judged.values())
    assert "evaluate" not in judged


def test_a_server_leaves_one_process_its_own_copy_and_no_cache() -> None:
    alone = rows(*LARGEST, *SERVED)["sample"]
    assert alone["weights"] == pytest.approx(138e9, rel=0.01)
    assert alone["cache"] == 0
    assert "--set backend.device=cpu for this stage" in str(alone["change"])


def test_no_process_holds_a_whole_policy_if_a_server_samples_the_adapters_of_shards() -> None:
    trained = ("--recipe", "paper-lora", "--method", "ppo", "--gpus", "2")
    by_torch, by_server = rows(*trained)["train ppo"], rows(*trained, *SERVED)["train ppo"]
    assert by_torch["moment"] == "sampling"
    assert (by_server["moment"], by_server["cache"]) == ("reading", 0)
    assert by_server["gathered"] < by_torch["gathered"] / 4


@pytest.mark.parametrize(
    ("method", "expected"),
    [
        ("ppo", "ppo.rollout_batch_size (512) must be divisible by the 7 processes of FSDP2"),
        ("quark", "quark.rollout_batch_size (512) must be divisible by the 7 processes of FSDP2"),
        (
            "dpo",
            "dpo: a batch of per_device_train_batch_size 4 times gradient_accumulation_steps 16 does not divide by 7",
        ),
    ],
)
def test_sizes_that_a_run_in_so_many_processes_refuses_are_named(method: str, expected: str) -> None:
    result = CliRunner().invoke(make_app(), ["memory", "--recipe", "paper", "--method", method, "--gpus", "7"])
    assert expected in str(result.exception)
    assert "sft: a batch of per_device_train_batch_size 4 times gradient_accumulation_steps 32" in str(result.exception)
    assert ("mini_batch_size" in str(result.exception)) == (method == "ppo"), "Quark fills up uneven minibatches"
