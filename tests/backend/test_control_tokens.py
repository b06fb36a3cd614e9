"""Control tokens: in front of prompts, never sampled, kept with the checkpoint."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from afarm.backend import CheckpointPolicy
from afarm.core.interfaces import Decoding
from afarm.testing.examples import make_instructions
from afarm.testing.models import tiny_policy

GOOD, BAD = "<|good|>", "<|bad|>"


@pytest.fixture
def steered() -> CheckpointPolicy:
    return tiny_policy().copy_with_tokens([GOOD, BAD])


def test_new_tokens_change_neither_the_original_nor_what_the_model_thinks_of_other_tokens(
    steered: CheckpointPolicy,
) -> None:
    start = tiny_policy()
    known = start.model.get_input_embeddings().weight
    added = steered.model.get_input_embeddings().weight
    assert len(added) == len(known) + 2
    assert torch.equal(added[: len(known)], known)
    assert torch.allclose(added[-1], known.mean(0))
    assert GOOD not in start.tokenizer.get_vocab()


def test_a_control_token_is_one_token_and_stands_before_the_prompt(steered: CheckpointPolicy) -> None:
    instructions = make_instructions(2)
    plain = steered.prompt_ids(instructions)
    [token] = steered.tokenizer.convert_tokens_to_ids([BAD])
    assert steered.controlled(BAD).prompt_ids(instructions) == [[token, *row] for row in plain]
    assert steered.prompt_ids(instructions) == plain


def test_a_control_stands_behind_the_token_that_begins_a_text(steered: CheckpointPolicy) -> None:
    first = steered.prompt_ids(make_instructions(1))[0][0]
    steered.tokenizer.bos_token = steered.tokenizer.convert_ids_to_tokens(first)
    [plain] = steered.prompt_ids(make_instructions(1))
    [controlled] = steered.controlled(GOOD).prompt_ids(make_instructions(1))
    assert controlled[0] == plain[0]
    assert controlled[2:] == plain[1:]


def test_a_control_may_be_text_where_the_vocabulary_is_fixed() -> None:
    policy = tiny_policy()
    [plain] = policy.prompt_ids(make_instructions(1))
    word = policy.tokenizer.convert_ids_to_tokens(plain[-1])
    [controlled] = policy.controlled(word).prompt_ids(make_instructions(1))
    assert controlled == [plain[-1], *plain]


def test_control_tokens_are_never_sampled(steered: CheckpointPolicy) -> None:
    with torch.no_grad():  # a head that would write nothing else
        steered.model.get_output_embeddings().weight.zero_()
    tokens = steered.tokenizer.convert_tokens_to_ids([GOOD, BAD])
    samples = steered.sample(make_instructions(8), Decoding(max_new_tokens=48, n=2), seed=1)
    drawn = {token for sample in samples for token in sample.token_ids}
    assert len(drawn) > 20
    assert drawn.isdisjoint(tokens)


def test_a_controlled_policy_is_loaded_as_it_was_saved(steered: CheckpointPolicy, tmp_path: Path) -> None:
    saved = steered.controlled(GOOD)
    saved.save(tmp_path)
    loaded = saved.backend.load_policy(tmp_path)
    assert loaded.control_tokens == (GOOD, BAD)
    instructions, decoding = make_instructions(3), Decoding(max_new_tokens=6)
    assert [s.token_ids for s in loaded.sample(instructions, decoding, seed=2)] == [
        s.token_ids for s in saved.sample(instructions, decoding, seed=2)
    ]
    assert loaded.prompt_ids(instructions) == saved.prompt_ids(instructions)


def test_a_control_stays_where_a_prompt_is_cut(steered: CheckpointPolicy) -> None:
    [plain] = steered.prompt_ids(make_instructions(1))
    [token] = steered.tokenizer.convert_tokens_to_ids([GOOD])
    good = steered.controlled(GOOD)
    assert good.prompt_ids(make_instructions(1), max_length=3) == [[token, *plain[-2:]]]
    [(prompt, response)], cut = good.template.encode(make_instructions(1), ["w1"], max_length=4)
    assert (prompt, cut) == ([token, plain[-1]], 1)
    assert len(response) == 2
    [(prompt, response)], _ = good.template.encode(make_instructions(1), ["w1 w2 w3 w4"], max_length=4)
    assert (prompt, len(response)) == ([token, plain[-1]], 2)  # rather than the control, the response is cut
    assert good.prompt_ids(make_instructions(1), max_length=1) == [plain[-1:]]  # no room for both


def test_control_tokens_are_the_mean_of_known_tokens_where_the_vocabulary_is_padded() -> None:
    policy = tiny_policy(vocab_size=64)
    known = len(policy.tokenizer)
    controlled = policy.copy_with_tokens(["<|good|>", "<|bad|>"])
    for head in ("get_input_embeddings", "get_output_embeddings"):
        before, found = (getattr(model, head)().weight for model in (policy.model, controlled.model))
        assert len(found) == 64
        torch.testing.assert_close(found[known : known + 2], before[:known].mean(0).expand(2, -1))
