from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from tiny_models import make_gpt2, make_instructions, make_model, make_policy

from afarm.backend import CheckpointPolicy, Generation, TorchSampler, join_and_pad, pad, response_logprobs
from afarm.backend.sampling import MOST_PADS, batches, choose, nucleus
from afarm.core.interfaces import Decoding

SHORT = Decoding(max_new_tokens=12, per_device_batch_size=8)


def ending(policy: CheckpointPolicy, bias: float = 3.0) -> CheckpointPolicy:
    """`policy` with responses of different lengths: the end-of-sequence token made likelier."""

    def raise_eos(module: Any, inputs: Any, logits: torch.Tensor) -> torch.Tensor:
        logits[..., 1] += bias
        return logits

    policy.model.lm_head.register_forward_hook(raise_eos)
    return policy


@pytest.mark.parametrize("temperature", [1.0, 0.0])
def test_batch_size_and_companions_change_nothing(policy: CheckpointPolicy, temperature: float) -> None:
    ending(policy)
    instructions = make_instructions(23)
    decoding = replace(SHORT, temperature=temperature, n=2)
    expected = list(policy.sample(instructions, replace(decoding, per_device_batch_size=1), seed=3))
    assert len({len(s.token_ids) for s in expected}) > 3
    for size in (3, 8, 64):
        found = list(policy.sample(instructions, replace(decoding, per_device_batch_size=size), seed=3))
        assert [s.token_ids for s in found] == [s.token_ids for s in expected]
        assert [s.prompt_ids for s in found] == [s.prompt_ids for s in expected]
    backwards = list(policy.sample(instructions[::-1], decoding, seed=3))
    pairs = [expected[i : i + 2] for i in range(0, len(expected), 2)][::-1]
    assert [s.token_ids for s in backwards] == [s.token_ids for pair in pairs for s in pair]


def test_learned_positions_are_counted_from_each_prompts_first_token(policy: CheckpointPolicy) -> None:
    policy.model = make_gpt2()
    ending(policy)
    instructions = make_instructions(12)
    alone = list(policy.sample(instructions, replace(SHORT, per_device_batch_size=1), seed=3))
    together = list(policy.sample(instructions, replace(SHORT, per_device_batch_size=12), seed=3))
    assert [s.token_ids for s in together] == [s.token_ids for s in alone]


def test_more_samples_extend_fewer(policy: CheckpointPolicy) -> None:
    ending(policy)
    instructions = make_instructions(5)
    two = list(policy.sample(instructions, replace(SHORT, n=2), seed=3))
    five = list(policy.sample(instructions, replace(SHORT, n=5), seed=3))
    assert [s.token_ids for s in two] == [s.token_ids for i, s in enumerate(five) if i % 5 < 2]


def test_seeds_and_sample_numbers_draw_independently(policy: CheckpointPolicy) -> None:
    instructions = make_instructions(6)
    one = list(policy.sample(instructions, replace(SHORT, n=3), seed=1))
    two = list(policy.sample(instructions, replace(SHORT, n=3), seed=2))
    assert len({s.token_ids for s in one + two}) == 36


def test_greedy_equals_transformers_generate(policy: CheckpointPolicy) -> None:
    ending(policy)
    instructions = make_instructions(9)
    greedy = list(policy.sample(instructions, replace(SHORT, temperature=0.0), seed=0))
    ids, mask = pad(policy.prompt_ids(instructions), 0, "left")
    theirs = policy.model.generate(ids, attention_mask=mask, do_sample=False, max_new_tokens=12, pad_token_id=0)
    for sample, row in zip(greedy, theirs[:, ids.shape[1] :].tolist(), strict=True):
        n = len(sample.token_ids)
        assert list(sample.token_ids) == row[:n]
        assert not any(row[n:])


def test_responses_end_at_eos_or_at_the_limit(policy: CheckpointPolicy) -> None:
    samples = list(ending(policy).sample(make_instructions(40), SHORT, seed=0))
    reasons = Counter(s.finish_reason for s in samples)
    assert reasons["stop"] > 3
    assert reasons["length"] > 3
    for s in samples:
        assert 1 not in s.token_ids[:-1]
        assert (s.token_ids[-1] == 1) == (s.finish_reason == "stop")
        assert len(s.token_ids) <= 12
        assert s.finish_reason == "stop" or len(s.token_ids) == 12
        assert "<eos>" not in s.text


def test_logprobs_are_those_of_the_training_forward_at_temperature_1(policy: CheckpointPolicy) -> None:
    samples = list(policy.sample(make_instructions(10), replace(SHORT, temperature=0.7, top_p=0.9), seed=0))
    batch = join_and_pad([s.prompt_ids for s in samples], [s.token_ids for s in samples], 0)
    expected = response_logprobs(policy.model, batch.input_ids, batch.attention_mask, batch.response_mask)
    for s, row in zip(samples, expected, strict=True):
        assert s.logprobs is not None
        torch.testing.assert_close(torch.tensor(s.logprobs), row[: len(s.logprobs)].detach(), atol=1e-5, rtol=0)


def test_no_logprobs_in_low_precision_where_they_would_not_be_exact(policy: CheckpointPolicy) -> None:
    policy.model.bfloat16()
    assert next(policy.sample(make_instructions(1), SHORT, seed=0)).logprobs is None


def test_finished_rows_leave_the_batch(policy: CheckpointPolicy) -> None:
    sizes: list[int] = []
    ending(policy).model.model.embed_tokens.register_forward_hook(lambda m, i, o: sizes.append(len(i[0])))
    samples = list(policy.sample(make_instructions(30), replace(SHORT, per_device_batch_size=30), seed=0))
    # one forward for the prompts, then one row for each token that has a successor
    assert sum(sizes) == 30 + sum(len(s.token_ids) - 1 for s in samples)
    assert sizes == sorted(sizes, reverse=True)


def test_prompts_are_prefilled_once_for_all_their_samples(policy: CheckpointPolicy) -> None:
    prefills: list[tuple[int, ...]] = []
    policy.model.model.embed_tokens.register_forward_hook(lambda m, i, o: prefills.append(tuple(i[0].shape)))
    list(policy.sample(make_instructions(2), replace(SHORT, n=4, max_new_tokens=1), seed=0))
    assert [shape[0] for shape in prefills] == [2]


@pytest.mark.parametrize(("n", "prefills"), [(4, 2), (8, 3), (9, 3), (40, 3)])
def test_a_prompt_is_read_once_however_many_batches_its_samples_take(
    policy: CheckpointPolicy, n: int, prefills: int
) -> None:
    seen: list[tuple[int, ...]] = []
    policy.model.model.embed_tokens.register_forward_hook(lambda m, i, o: seen.append(tuple(i[0].shape)))
    instructions = make_instructions(3)
    samples = list(policy.sample(instructions, replace(SHORT, n=n, max_new_tokens=3), seed=0))
    assert sum(shape[1] > 1 for shape in seen) == prefills  # two prompts fit one batch where n is 4
    assert max(shape[0] for shape in seen) <= SHORT.per_device_batch_size
    alone = replace(SHORT, n=n, max_new_tokens=3, per_device_batch_size=1)
    assert [s.token_ids for s in policy.sample(instructions, alone, seed=0)] == [s.token_ids for s in samples]


@pytest.mark.parametrize(("n", "size"), [(1, 1), (1, 8), (3, 8), (8, 8), (9, 8), (20, 8), (5, 1)])
def test_batches_hold_every_row_once_and_never_parts_of_two_prompts(n: int, size: int) -> None:
    found = list(batches([2, 0, 1], [4, 4, 4], n, size))
    assert [row for batch in found for row in batch] == [(i, j) for i in (2, 0, 1) for j in range(n)]
    assert max(map(len, found)) <= size
    for batch in found:
        whole = Counter(i for i, _ in batch)
        assert len(whole) == 1 or set(whole.values()) == {n}


def test_a_prompt_far_longer_than_the_others_is_read_alone() -> None:
    """Eleven short prompts are not read with thousands of pads each; some pads are cheaper than a batch more."""
    longest = 10 + MOST_PADS // 11
    for last, cut in ((longest, [12]), (longest + 1, [11, 1])):
        found = list(batches(range(12), [10] * 11 + [last], n=2, size=64))
        assert [len(batch) // 2 for batch in found] == cut
        assert [row for batch in found for row in batch] == [(i, j) for i in range(12) for j in range(2)]
    rising = list(batches(range(30), [100 * i for i in range(30)], n=1, size=64))
    assert [len(batch) for batch in rising] == [30], "pads are counted as the batch's longest prompt makes them"


def test_samples_stream_in_bounded_windows(policy: CheckpointPolicy) -> None:
    forwards: list[int] = []
    policy.model.model.embed_tokens.register_forward_hook(lambda m, i, o: forwards.append(1))
    stream = policy.sample(make_instructions(1), replace(SHORT, n=1000, max_new_tokens=1), seed=0)
    for _ in range(8):
        next(stream)
    assert len(forwards) == 1


def test_training_mode_is_restored_before_each_sample_is_handed_out(policy: CheckpointPolicy) -> None:
    policy.model.train()
    modes: list[bool] = []
    policy.model.model.embed_tokens.register_forward_hook(lambda m, i, o: modes.append(m.training))
    stream = policy.sample(make_instructions(20), SHORT, seed=0)
    next(stream)
    assert policy.model.training
    list(stream)
    assert policy.model.training
    assert not any(modes)


def test_any_of_several_eos_tokens_ends_a_response() -> None:
    model = make_model()
    prompts = [[5, 6], [7]]
    free = [g.token_ids for g in TorchSampler(model, [1], 0).generate(prompts, ["a", "b"], SHORT, seed=0)]
    also = free[0][4]
    ended = next(TorchSampler(model, [1, also], 0).generate(prompts, ["a", "b"], SHORT, seed=0))
    assert ended.token_ids == free[0][: free[0].index(also) + 1]
    assert ended.finish_reason == "stop"


def test_uniforms_pick_tokens_by_inverse_cumulative_distribution() -> None:
    logits = torch.log(torch.tensor([0.1, 0.0, 0.6, 0.3])).repeat(5, 1)
    uniforms = torch.tensor([0.0, 0.0999, 0.11, 0.71, 0.99999])
    assert choose(logits, Decoding(), uniforms).tolist() == [0, 0, 2, 3, 3]


def test_temperature_sharpens() -> None:
    logits = torch.log(torch.tensor([[0.2, 0.8]]))
    # at temperature 1/2 the odds are squared: 0.04 : 0.64, so the first token has 1/17
    half = Decoding(temperature=0.5)
    assert choose(logits, half, torch.tensor([1 / 17 - 1e-4])).item() == 0
    assert choose(logits, half, torch.tensor([1 / 17 + 1e-4])).item() == 1


def test_nucleus_keeps_the_smallest_set_that_reaches_top_p() -> None:
    probabilities = torch.tensor([[0.1, 0.5, 0.15, 0.25]])
    assert nucleus(probabilities, 0.5).tolist()[0] == pytest.approx([0, 0.5, 0, 0])
    assert nucleus(probabilities, 0.6).tolist()[0] == pytest.approx([0, 0.5, 0, 0.25])
    assert nucleus(probabilities, 1e-9).tolist()[0] == pytest.approx([0, 0.5, 0, 0])


def test_frequencies_follow_the_model() -> None:
    policy = make_policy(initializer_range=0.02)
    with torch.no_grad():
        policy.model.lm_head.weight.zero_()
    bias = torch.full((45,), -20.0)
    bias[5], bias[6], bias[7] = 0.5**0.5, 0.0, -1.0
    policy.model.lm_head.register_forward_hook(lambda m, i, o: o + bias)
    drawn = Counter(
        s.token_ids[0]
        for s in policy.sample(
            make_instructions(1), Decoding(n=4000, max_new_tokens=1, per_device_batch_size=512), seed=0
        )
    )
    for token, probability in enumerate(bias.softmax(0).tolist()):
        assert drawn[token] / 4000 == pytest.approx(probability, abs=4 * (probability / 4000) ** 0.5 + 1e-6)


def test_long_prompts_lose_their_beginning_and_are_counted(policy: CheckpointPolicy) -> None:
    instructions = make_instructions(6)
    lengths = [len(p) for p in policy.prompt_ids(instructions)]
    cut = policy.prompt_ids(instructions, max_length=4)
    assert [len(p) for p in cut] == [min(n, 4) for n in lengths]
    assert cut[-1] == policy.prompt_ids(instructions)[-1][-4:]
    assert policy.truncated == sum(n > 4 for n in lengths) > 0


def test_the_cache_of_a_batch_is_freed_before_the_next_and_before_its_samples_are_handed_out(
    policy: CheckpointPolicy, monkeypatch: pytest.MonkeyPatch
) -> None:
    caches: list[weakref.ref[object]] = []
    prefill = TorchSampler._prefill

    def watched(sampler: TorchSampler, *args: Any) -> Any:
        assert not any(cache() for cache in caches)
        prefix = prefill(sampler, *args)
        caches.append(weakref.ref(prefix.caches[0]))
        return prefix

    monkeypatch.setattr(TorchSampler, "_prefill", watched)
    sampler = TorchSampler(policy.model, [], 0)
    for _ in sampler.generate(
        [[3, 5]] * 9, list("abcdefghi"), Decoding(max_new_tokens=4, per_device_batch_size=3), seed=0
    ):
        assert not any(cache() for cache in caches)
    assert len(caches) == 3


def test_batches_are_told_of_as_they_are_drawn_and_not_once_a_window_is_whole(policy: CheckpointPolicy) -> None:
    told: list[Any] = []

    def progress(items: Iterable[Any], description: str, total: int | None = None) -> Iterator[Any]:
        for done, item in enumerate(items):
            told.append((description, done, total))
            yield item

    policy.backend.progress = progress
    long_first = make_instructions(16)[::-1]
    assert next(policy.sample(long_first, replace(SHORT, per_device_batch_size=2), seed=3)).token_ids
    assert len(told) > 1
    assert told == [("batches drawn", done, 8) for done in range(len(told))]
    told.clear()
    list(policy.sample(long_first[:2], replace(SHORT, per_device_batch_size=2), seed=3))
    assert told == [], "one batch is no loop"


def test_a_mixture_of_two_models_samples_by_the_mean_of_their_logits(policy: CheckpointPolicy) -> None:
    one, other = ending(policy, 1.0).model, ending(make_policy(seed=1), 2.0).model
    prompts, keys = policy.prompt_ids(make_instructions(7)), [str(n) for n in range(7)]

    def draw(share: float, size: int = 4, n: int = 3) -> list[Generation]:
        sampler = TorchSampler(one, policy.eos_ids, policy.pad_id, mixed_with=(other, share))
        return list(sampler.generate(prompts, keys, replace(SHORT, n=n, per_device_batch_size=size), seed=3))

    mixed = draw(0.25)
    assert len({len(generation.token_ids) for generation in mixed}) > 3  # rows have left both caches
    batch = join_and_pad([prompts[row // 3] for row in range(21)], [g.token_ids for g in mixed], policy.pad_id)
    with torch.inference_mode():
        mean = sum(
            share * model(batch.input_ids, attention_mask=batch.attention_mask).logits
            for model, share in ((one, 0.75), (other, 0.25))
        )
    by_hand = mean.log_softmax(-1)[:, :-1].gather(-1, batch.input_ids[:, 1:, None]).squeeze(-1)
    for generation, row, mask in zip(mixed, by_hand, batch.response_mask[:, 1:], strict=True):
        torch.testing.assert_close(torch.tensor(generation.logprobs), row[mask], atol=1e-5, rtol=0)
    assert [g.token_ids for g in draw(0.25, size=2)] == [
        g.token_ids for g in mixed
    ]  # one prompt's draws in two batches
    for share, alone in ((0.0, one), (1.0, other)):
        sampler = TorchSampler(alone, policy.eos_ids, policy.pad_id)
        expected = sampler.generate(prompts, keys, replace(SHORT, n=3), seed=3)
        assert [g.token_ids for g in draw(share)] == [g.token_ids for g in expected]
