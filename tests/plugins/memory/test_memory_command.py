"""`afarm memory`: what fits a card by arithmetic, and what to change where it does not."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from places import DOCS
from typer.testing import CliRunner

from afarm.cli import make_app
from afarm.core.errors import AfarmError
from afarm.storage.model_files import require_on_hub


def rows(*arguments: str) -> dict[str, dict[str, object]]:
    result = CliRunner().invoke(make_app(), ["memory", "--json", *arguments])
    found = {row["stage"]: row for row in json.loads(result.stdout)}
    assert result.exit_code == (0 if all(row["fits"] for row in found.values()) else 1), result.output
    return found


def refused(*arguments: str) -> str:
    result = CliRunner().invoke(make_app(), ["memory", *arguments])
    assert isinstance(result.exception, AfarmError), result.output
    return str(result.exception)


@pytest.mark.parametrize("method", ["ppo", "dpo", "quark", "expert_iteration", "best_of_n"])
def test_the_papers_recipe_fits_eight_cards_and_with_adapters_one(method: str) -> None:
    for options in (("--recipe", "paper", "--gpus", "8"), ("--recipe", "paper-lora")):
        assert [row["stage"] for row in rows(*options, "--method", method).values() if not row["fits"]] == []


def test_a_stage_that_does_not_fit_says_what_to_change() -> None:
    found = rows("--recipe", "paper")
    assert not found["sft"]["fits"]
    assert found["sft"]["change"] == (
        "--gpus 2 (cards share it in shards), or --set backend.dtype=bfloat16 (half of all, another result), "
        "or --set sft.lora={} (adapters, another result)"
    )
    assert found["sft"]["total"] == pytest.approx(137.5e9, rel=0.02)
    crowded = rows("--recipe", "paper-lora", "--set", "sample.per_device_batch_size=1024")["sample"]
    assert str(crowded["change"]).startswith("--set sample.per_device_batch_size=128 (changes no result)")


def test_changes_are_named_that_are_not_made_yet_and_are_enough() -> None:
    """Each alone if it is enough, else several together: with them the stage fits."""
    found = rows("--recipe", "paper-lora", "--card", "24")
    assert found["sample"]["change"] == (
        "--set sample.per_device_batch_size=32 (changes no result), "
        "or --set backend.sampler=vllm@URL (a vLLM server of one or more cards samples)"
    )
    said = str(found["train ppo"]["change"])
    assert said == (
        "--set backend.sampler=vllm@URL --gpus 2 (a vLLM server of one or more cards samples; cards share it in shards)"
    )
    typed = said.partition(" (")[0].split()
    assert rows("--recipe", "paper-lora", "--card", "24", *typed)["train ppo"]["fits"]
    alone = rows("--recipe", "paper-lora", "--card", "24", "--set", "backend.sampler=vllm@URL")["train ppo"]
    assert (alone["fits"], alone["change"]) == (False, "--gpus 2 (cards share it in shards)")


def test_if_only_cards_or_a_smaller_model_remain_that_is_said() -> None:
    small = rows("--recipe", "paper-lora", "--card", "10")
    assert small["sft"]["change"] == "--gpus 2 (cards share it in shards)", "adapters and bfloat16 are set"
    assert rows("--recipe", "paper-lora", "--card", "3")["train ppo"]["change"] == (
        "no setting is enough on up to 8 cards: a smaller model (--model), or larger cards (--card)"
    )
    assert str(small["evaluate"]["change"]).startswith("--set evaluate.evaluators=[win_rate] (")
    sampled = rows("--recipe", "paper-lora", "--card", "10", "--set", "backend.sampler=vllm@URL")["sample"]
    assert sampled["change"] == (
        "--gpus 2 (cards share it in shards), "
        "or --set backend.device=cpu for this stage (the model is whole on one card)"
    )


def test_what_is_scored_as_it_is_sampled_has_the_reward_model_beside_the_policy() -> None:
    plain = rows("--recipe", "paper-lora", "--method", "dpo")["outputs"]
    best = rows("--recipe", "paper-lora", "--method", "best_of_n")["outputs"]
    best_of_many = rows("--recipe", "paper-lora", "--method", "expert_iteration")["train expert_iteration"]
    whole = 2 * 6_738_415_616
    assert plain["weights"] == whole
    assert best["weights"] == best_of_many["weights"] == 2 * whole - 2 * 4096 * (32000 - 1), "with a head of one number"
    assert best["cache"] == plain["cache"], "the n samples of a prompt are sampled in batches"


ON_TWO = ("--recipe", "paper", "--method", "dpo", "--gpus", "2", "--card", "24")


def test_shards_on_the_host_are_advised_where_they_are_enough_with_what_the_host_then_has() -> None:
    advised, offloaded = rows(*ON_TWO), rows(*ON_TWO, "--offload")
    for stage in ("sft", "fit-reward", "train dpo"):
        said = re.search(
            r"--offload \(shards wait on the host, (\d+) GB of it for each process; slower", str(advised[stage])
        )
        assert said, advised[stage]
        assert (advised[stage]["fits"], offloaded[stage]["fits"]) == (False, True)
        assert float(str(offloaded[stage]["host"])) == pytest.approx(float(said[1]) * 1e9, abs=5e8)
        assert advised[stage]["host"] == 0
    for stage in ("sample", "outputs", "evaluate"):
        assert "--offload" not in str(advised[stage]["change"]), "the first process has the model whole"
        assert offloaded[stage] == advised[stage]
    assert not any("--offload" in str(row["change"]) for row in offloaded.values()), "it is made already"


def test_several_changes_may_have_shards_on_the_host_among_them() -> None:
    small = ("--recipe", "paper-lora", "--card", "10")
    said = str(rows(*small)["train ppo"]["change"])
    assert said.startswith("--set backend.sampler=vllm@URL --gpus 2 --offload (")
    assert rows(*small, *said.partition(" (")[0].split())["train ppo"]["fits"]


def test_what_the_host_has_is_shown() -> None:
    shown = CliRunner().invoke(make_app(), ["memory", *ON_TWO, "--offload"]).output
    assert re.search(r"^ .* total +host$", shown, re.MULTILINE)
    most = max(float(line.split()[10]) for line in shown.splitlines() if "(learning)" in line)
    assert re.search(rf"2 processes on one machine: up to {2 * most:.0f} GB on its host", shown)


def test_one_process_has_no_shards_to_offload() -> None:
    assert "--offload is of shards, and one process has none: add --gpus 2" in refused("--recipe", "paper", "--offload")


LARGEST = ("--recipe", "paper-lora", "--method", "dpo", "--model", "meta-llama/Llama-2-70b-hf")
SERVED = ("--set", "backend.sampler=vllm@http://127.0.0.1:1")


def test_a_model_larger_than_a_card_is_sampled_on_a_server() -> None:
    by_torch, by_server = rows(*LARGEST, "--gpus", "8"), rows(*LARGEST, "--gpus", "8", *SERVED)
    for stage in ("sample", "outputs"):
        assert by_torch[stage]["fits"] is False
        assert by_torch[stage]["change"] == (
            "--set backend.sampler=vllm@URL (a vLLM server of one or more cards samples)"
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
    said = refused("--recipe", "paper", "--method", method, "--gpus", "7")
    assert expected in said
    assert "sft: a batch of per_device_train_batch_size 4 times gradient_accumulation_steps 32" in said
    assert ("mini_batch_size" in said) == (method == "ppo"), "Quark fills up uneven minibatches"


@pytest.mark.parametrize(
    ("recipe", "sampler", "expected"),
    [
        ("paper", "vllm@http://x:8000", "ppo trains every weight and samples with them while it trains, and .* only"),
        ("paper", "vllm@URL", "ppo trains every weight and samples with them while it trains, and .* only"),
        ("paper-lora", "vlm@http://a", r"unknown sampler 'vlm'\. Did you mean 'vllm'\?"),
        ("paper-lora", "vllm@somewhere", "write vllm@http://HOST:PORT"),
        ("paper-lora", "torch@x", "backend.sampler=torch@x: torch takes no address"),
    ],
)
def test_what_a_run_refuses_is_refused_in_the_same_words(
    recipe: str, sampler: str, expected: str, tmp_path: Path
) -> None:
    options = ["--recipe", recipe, "--set", f"backend.sampler={sampler}"]
    said = refused(*options)
    assert re.search(expected, said)
    if sampler == "vllm@URL":  # a placeholder, as on the pages: here alone, since nothing is asked
        return
    model = ["--model", "pkg:afarm_plugins.toy/base2", "--output-dir", str(tmp_path)]
    run = CliRunner().invoke(make_app(), ["run", "--dry-run", *options, *model])
    assert said in str(run.exception)


def at_no_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have nobody answer for the Hub: port 9 is that of "discard"."""
    require_on_hub.cache_clear()
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)


def test_without_the_hub_the_message_says_what_to_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    at_no_hub(monkeypatch)
    said = refused("--recipe", "smol", "--model", "nope/nope")
    assert "without a network name a local model: --model DIRECTORY or --model FILE.gguf" in said


def test_the_page_shows_what_is_printed() -> None:
    page = (DOCS / "guides/large-models.md").read_text(encoding="utf-8")
    shown = re.findall(r"^\$ afarm (memory .*)\n((?:(?!```).*\n)+)", page, re.MULTILINE)
    assert len(shown) == 4
    for command, table in shown:
        printed = CliRunner().invoke(make_app(), command.split()).stdout
        pattern = re.escape(table).replace(re.escape("…\n"), "(.*\n)*").replace("…", ".*")
        assert re.match(pattern, printed), printed
