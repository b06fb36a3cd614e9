"""The stored traces beside a trainer in torch, in double precision, and transformers' Llama."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from afarm_golden_traces import METHODS, check, load_trace
from afarm_golden_traces.model import join, scores_at, token_logprobs, token_values
from reference_trainer import train
from transformers import LlamaConfig, LlamaForCausalLM, LlamaForSequenceClassification


@pytest.mark.parametrize("method", METHODS)
def test_a_trainer_in_torch_follows_the_trace_to_the_last_digits(method: str) -> None:
    report = check(method, train(method, load_trace(method).stored), tolerance=1e-10)
    assert report.follows, str(report)
    assert report.missing == []


@pytest.mark.parametrize("method", METHODS)
def test_variants_differ_from_the_trace_and_from_each_other(method: str) -> None:
    """Each variant's own values follow it and leave the trace."""
    for variant in METHODS[method].variants:
        stored = load_trace(method, variant).stored["quantities"]
        assert check(method, stored, variant, tolerance=1e-9).follows
        report = check(method, stored)
        assert not report.follows
        assert report.notes[-1] == f"All of the dump follows the variant {variant}: check it with --variant {variant}."


def test_the_model_is_transformers_llama() -> None:
    """To float32, in which it computes norms and softmax whatever the weights are."""
    trace = load_trace("ppo")
    batch = join(trace.inputs["prompts"], trace.inputs["responses"], 0)
    ids, attention, real = torch.tensor(batch.ids), torch.tensor(batch.attention).long(), batch.mask == 1
    responses = batch.mask.shape[1]
    config = LlamaConfig(**trace.model)

    def load(kind: Any, name: str) -> Any:
        model = kind(config).double().eval()
        model.load_state_dict({weight: torch.tensor(value) for weight, value in trace.weights[name].items()})
        return model

    with torch.no_grad():
        policy = load(LlamaForCausalLM, "reference")
        logprobs = (policy(input_ids=ids, attention_mask=attention).logits[:, -responses - 1 : -1] / 0.8).log_softmax(
            -1
        )
        theirs = logprobs.gather(-1, ids[:, -responses:, None])[..., 0].numpy()
        config.num_labels = 1
        value = load(LlamaForSequenceClassification, "old_value")
        scores = value.score(value.model(input_ids=ids, attention_mask=attention).last_hidden_state)[..., 0].numpy()
    close = {"rtol": 2e-6, "atol": 2e-6}
    np.testing.assert_allclose(token_logprobs(trace.weights["reference"], batch, 0.8)[real], theirs[real], **close)
    np.testing.assert_allclose(
        token_values(trace.weights["old_value"], batch)[real], scores[:, -responses - 1 : -1][real], **close
    )
    ends = ids.shape[1] - responses + batch.lengths - 1
    ours = scores_at(trace.weights["old_value"], batch, ends)
    np.testing.assert_allclose(ours, scores[np.arange(len(ends)), ends], **close)
