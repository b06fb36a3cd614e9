"""The sampler `vllm` against a server of its protocol: rows, draws, adapters, faults, and the proof of weights."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch
from fake_vllm import FakeVllm

from afarm import ConfigError, Decoding, LoraConfig, ModelError
from afarm.backend import CheckpointPolicy, TorchEngine, trainable_copy
from afarm.testing import check_sampler, judge_context, make_instructions, tiny_policy
from afarm_plugins.vllm.config import VllmConfig
from afarm_plugins.vllm.engine import VllmEngine
from afarm_plugins.vllm.sampler import DOUBT, VllmSampler, make_proof

GREEDY = Decoding(temperature=0, max_new_tokens=6)
INSTRUCTIONS = make_instructions(5)


@pytest.fixture(scope="module")
def policy() -> CheckpointPolicy:
    return tiny_policy()


@pytest.fixture
def server(policy: CheckpointPolicy) -> Iterator[FakeVllm]:
    with FakeVllm(policy) as server:
        yield server


def engine(server: FakeVllm, **settings: Any) -> VllmEngine:
    return VllmEngine(VllmConfig(**{"patience": 120, "max_concurrency": 4, **settings}), server.url, judge_context())


def adapted(policy: CheckpointPolicy, scale: float = 0.3, r: int = 4) -> CheckpointPolicy:
    policy.backend.seed(1)
    copy = trainable_copy(policy, LoraConfig(r=r))
    train(copy, scale)
    return copy


@torch.no_grad()
def train(policy: CheckpointPolicy, scale: float = 0.3) -> None:
    """Change the adapters, as a step of training does."""
    for name, weight in policy.model.named_parameters():
        if "lora_B" in name:
            weight.add_(torch.randn(weight.shape) * scale)


def rows(engine: Any, policy: CheckpointPolicy, decoding: Decoding = GREEDY) -> list[list[int]]:
    prompts, keys = policy.prompt_ids(INSTRUCTIONS), [i.id for i in INSTRUCTIONS]
    return [row.token_ids for row in engine.sampler(policy).generate(prompts, keys, decoding, seed=1)]


# --------------------------------------------------------------------------------------------------------- the promise


def test_both_samplers_keep_the_promises_of_the_kit(server: FakeVllm, policy: CheckpointPolicy) -> None:
    check_sampler(TorchEngine())
    check_sampler(engine(server), policy)


def test_each_response_is_a_request_with_its_own_seed(server: FakeVllm, policy: CheckpointPolicy) -> None:
    rows(engine(server), policy, Decoding(max_new_tokens=4, n=3))
    assert len({body["seed"] for body in server.requests}) == len(server.requests) == 15
    assert all(0 <= body["seed"] < 2**63 for body in server.requests)


def test_greedy_samples_of_a_prompt_are_asked_for_once(server: FakeVllm, policy: CheckpointPolicy) -> None:
    made = rows(engine(server), policy, Decoding(temperature=0, max_new_tokens=6, n=2))
    assert made == rows(TorchEngine(), policy, Decoding(temperature=0, max_new_tokens=6, n=2))
    assert len(server.requests) == len(INSTRUCTIONS)


def test_adapters_have_names_by_their_content_and_old_ones_are_let_go(
    server: FakeVllm, policy: CheckpointPolicy
) -> None:
    own, trained = engine(server), adapted(policy)
    for _ in range(4):
        assert rows(own, trained) == rows(own, trained) == rows(TorchEngine(), trained)
        train(trained)
    assert len(server.loaded) == len(set(server.loaded)) == 4
    assert list(server.adapters) == server.loaded[-2:]
    assert sorted(path.name for path in own.directory.iterdir()) == sorted(server.loaded[-2:])


def merged(policy: CheckpointPolicy, directory: Path) -> CheckpointPolicy:
    """The policy as a stage saves it, adapters merged, and the next one loads it."""
    directory.mkdir()
    policy.save(directory)
    loaded: CheckpointPolicy = policy.backend.load_policy(directory)
    assert not hasattr(loaded.model, "peft_config")
    return loaded


@pytest.mark.parametrize("held", [0, 1, 2])
def test_one_server_holds_what_a_chain_of_stages_trains(held: int, policy: CheckpointPolicy, tmp_path: Path) -> None:
    """SFT's adapters, PPO's on top of them, and the policy that both are merged into."""
    sft = merged(adapted(policy), tmp_path / "sft")
    ppo = adapted(sft, scale=0.4)
    chain = [policy, sft, merged(ppo, tmp_path / "ppo")]
    with FakeVllm(chain[held]) as server:
        own = engine(server)
        for later in chain[held:]:
            assert rows(own, later) == rows(TorchEngine(), later)
        if held < 2:
            assert rows(own, ppo) == rows(TorchEngine(), ppo)
            train(ppo)
            assert rows(own, ppo) == rows(TorchEngine(), ppo)
        if held:
            with pytest.raises(ModelError, match="holds other weights than the policy"):
                own.sampler(policy)


# -------------------------------------------------------------------------------------------------------------- faults


@pytest.mark.parametrize("faults", [(429, 429), (500, 503), ("reset", "reset")], ids=["429", "5xx", "reset"])
def test_passing_trouble_is_waited_out(faults: Any, server: FakeVllm, policy: CheckpointPolicy) -> None:
    server.script(*faults)
    assert rows(engine(server), policy) == rows(TorchEngine(), policy)


def test_a_server_that_restarts_in_the_middle_gets_its_adapter_again(
    server: FakeVllm, policy: CheckpointPolicy
) -> None:
    trained = adapted(policy)
    server.script(None, None, server.restart)
    assert rows(engine(server), trained) == rows(TorchEngine(), trained)
    assert len(server.loaded) > 1


def test_a_server_that_restarts_with_other_weights_is_noticed(server: FakeVllm, policy: CheckpointPolicy) -> None:
    def restart() -> None:
        server.base = tiny_policy(7).model
        server.restart()

    server.script(None, restart)
    with pytest.raises(ModelError, match="holds other weights than the policy"):
        rows(engine(server), policy)


def test_weights_that_change_without_a_restart_are_noticed_before_the_last_row(
    server: FakeVllm, policy: CheckpointPolicy
) -> None:
    server.script(None, lambda: setattr(server, "base", tiny_policy(7).model))
    prompts, keys = policy.prompt_ids(INSTRUCTIONS), [i.id for i in INSTRUCTIONS]
    sampled = engine(server).sampler(policy).generate(prompts, keys, GREEDY, seed=1)
    with pytest.raises(ModelError, match="holds other weights than the policy"):
        list(islice(sampled, len(INSTRUCTIONS)))  # who samples takes no more than these


def test_a_server_that_dies_in_the_middle_ends_sampling_once_patience_is_over(
    server: FakeVllm, policy: CheckpointPolicy
) -> None:
    server.script(None, server.stop)
    with pytest.raises(ModelError, match=rf"{server.url} does not answer .*for 0.5 s now .*the same command goes on"):
        rows(engine(server, patience=0.5), policy)


def test_a_server_that_is_not_there_at_the_start_is_named_with_what_to_do(policy: CheckpointPolicy) -> None:
    with FakeVllm(policy) as server:
        own = engine(server, patience=0.1)
    with pytest.raises(ModelError, match=rf"{server.url} does not answer .* Start it: vllm serve MODEL; or give its"):
        _ = own.version
    assert engine(server, version="0.32.0").version == "vllm 0.32.0", "what is made already needs no server"


def test_trouble_that_does_not_pass_ends_with_the_servers_words(server: FakeVllm, policy: CheckpointPolicy) -> None:
    server.script(*[500] * 200)
    with pytest.raises(ModelError, match=r"gives 500 \(it did not work\)"):
        rows(engine(server, patience=0.5), policy)


def test_a_server_of_another_user_may_read_what_is_handed_over(
    server: FakeVllm, policy: CheckpointPolicy, tmp_path: Path
) -> None:
    engine(server, adapter_dir=str(tmp_path)).sampler(adapted(policy))
    (adapter,) = tmp_path.iterdir()
    assert {path.stat().st_mode & 0o777 for path in adapter.iterdir()} == {0o644}
    assert adapter.stat().st_mode & 0o777 == 0o755


# ------------------------------------------------------------------------------------------------------------- refused


def test_stale_weights_after_a_sync_are_refused(server: FakeVllm, policy: CheckpointPolicy) -> None:
    own, trained = engine(server), adapted(policy)
    rows(own, trained)
    server.stale = True
    train(trained)
    with pytest.raises(ModelError, match=r"holds other weights.* differ by .* per token, and 0.001 is tolerated"):
        own.sampler(trained)


def halved(policy: CheckpointPolicy) -> CheckpointPolicy:
    """The same policy, computing in bfloat16; the server computes in float32 what it is given."""
    copy = policy.copy()
    copy.model = copy.model.bfloat16()
    return copy


@pytest.mark.parametrize("in_half", [True, False])
def test_a_step_within_the_tolerance_is_seen_all_the_same_if_the_server_has_not_followed(
    in_half: bool, server: FakeVllm, policy: CheckpointPolicy
) -> None:
    start = halved(policy) if in_half else policy
    step = 1e-3 if in_half else 2e-5
    own, trained = engine(server), adapted(start, step)
    for _ in range(5):  # the right weights pass, however small the steps
        rows(own, trained)
        train(trained, step)
    server.adapters = {"stale": next(reversed(server.adapters.values()))}
    server.stale = True
    proof = make_proof(trained, own)
    assert proof.difference(own.server.likeliest("stale", proof.prompts)) < proof.tolerance, "which alone lets it pass"

    def go_on() -> None:
        for _ in range(3):  # weights that stay behind are further behind at each step
            own.sampler(trained)
            train(trained, step)

    with pytest.raises(ModelError, match=r"holds earlier weights of this run.*nearer to those of a step before"):
        go_on()


def test_rounding_alone_is_in_no_doubt(server: FakeVllm, policy: CheckpointPolicy) -> None:
    """Of the same weights, read in bfloat16 twice, neither is nearer to what float32 gives."""
    own, base = engine(server), halved(policy)
    one = make_proof(base, own)
    likeliest = own.server.likeliest("tiny", one.prompts)
    for seed in range(20):
        noise = torch.Generator().manual_seed(seed)
        other = replace(one, logprobs=one.logprobs + 0.01 * torch.randn(one.logprobs.shape, generator=noise))
        same = replace(one, logprobs=one.logprobs + 0.01 * torch.randn(one.logprobs.shape, generator=noise))
        assert abs(same.nearer(likeliest, other)) < DOUBT


@pytest.mark.parametrize(("share", "is_refused"), [(0.75, False), (0.45, True)])
def test_weights_must_be_much_nearer_to_be_earlier_ones_since_their_rounding_is_the_same_at_each_text(
    share: float, is_refused: bool, server: FakeVllm, policy: CheckpointPolicy
) -> None:
    sampler = engine(server).sampler(policy)
    truth = sampler.proof.logprobs
    sampler.proof = replace(sampler.proof, logprobs=truth + 0.02, tolerance=0.05)
    sampler.earlier = [replace(sampler.proof, logprobs=truth + 0.02 * share)]
    likeliest = server_says(sampler)
    assert sampler.proof.nearer(likeliest, sampler.earlier[0]) < -2 * DOUBT, "standard errors alone are sure"
    if is_refused:
        with pytest.raises(ModelError, match="holds earlier weights of this run"):
            sampler.prove()
    else:
        sampler.prove()


def server_says(sampler: VllmSampler) -> list[dict[int, float]]:
    return [dict(row) for row in sampler.server.likeliest(sampler.model, sampler.proof.prompts)]


def with_another_model(server: FakeVllm) -> None:
    server.base = tiny_policy(3).model


def with_a_wrong_head(server: FakeVllm) -> None:
    """A tied head that a reload left as it was."""
    server.base.lm_head.weight = torch.nn.Parameter(server.base.lm_head.weight.roll(1, 0))


def with_another_tokenizer(server: FakeVllm) -> None:
    server.tokenize = lambda text: [1, 2, 3]


def with_another_version(server: FakeVllm) -> None:
    server.version = "0.99.0"


def that_is_no_vllm(server: FakeVllm) -> None:
    server.version = None


def with_few_positions(server: FakeVllm) -> None:
    server.max_model_len = 10


@pytest.mark.parametrize(
    ("alter", "message"),
    [
        (with_another_model, "holds other weights than the policy: with tiny, .*vllm serve"),
        (with_a_wrong_head, "holds other weights than the policy"),
        (with_another_tokenizer, "has another tokenizer than the policy: it serves tiny"),
        (with_another_version, "is vllm 0.99.0, and this run's artifacts are keyed by vllm 0.32.0"),
        (that_is_no_vllm, "is no vLLM server"),
        (with_few_positions, "takes 10: start it with --max-model-len"),
    ],
)
def test_a_server_that_cannot_serve_the_policy_is_refused_by_name(
    alter: Callable[[FakeVllm], None], message: str, server: FakeVllm, policy: CheckpointPolicy
) -> None:
    alter(server)
    with pytest.raises(ModelError, match=message):
        rows(engine(server, version="0.32.0"), policy)


def test_a_server_without_adapters_at_run_time_is_told_how_to_start(server: FakeVllm, policy: CheckpointPolicy) -> None:
    server.dynamic_lora = False
    with pytest.raises(ModelError, match=r"VLLM_ALLOW_RUNTIME_LORA_UPDATING=True and the option --enable-lora"):
        rows(engine(server), adapted(policy))


def test_an_adapter_of_too_high_a_rank_is_refused_at_once(server: FakeVllm, policy: CheckpointPolicy) -> None:
    with pytest.raises(ModelError, match=r"greater than max_lora_rank 16\. .*--max-lora-rank"):
        rows(engine(server, patience=600), adapted(policy, r=32))


def test_a_policy_with_tokens_of_its_own_is_refused(server: FakeVllm, policy: CheckpointPolicy) -> None:
    steered = policy.copy_with_tokens(["<|good|>"])
    ids = steered.tokenizer.convert_tokens_to_ids(list(steered.control_tokens))
    with pytest.raises(ModelError, match=r"token embeddings are trained too, --set quark\.variant=top"):
        engine(server).sampler(trainable_copy(steered, LoraConfig(r=4), train_tokens=ids))


@pytest.mark.parametrize("url", ["", "localhost:8000", "http://me:secret@host:8000", "http://host:8000/?key=secret"])
def test_an_url_that_is_none_is_a_config_error(url: str) -> None:
    with pytest.raises(ConfigError, match="write vllm@http://HOST:PORT"):
        VllmEngine(VllmConfig(), url, judge_context())
