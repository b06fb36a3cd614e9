"""The methods: the kit's verdict, what each learns, invariances, and rows that nothing can be learned from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from afarm_preferences import KTO, KTOConfig, Pairwise, PairwiseConfig, register_methods
from afarm_preferences.kto import mismatched_rows
from afarm_preferences.pairwise import encode_pairs
from afarm_preferences.trainer import summed_logprobs

from afarm import DataError, Feedback, JudgedPair, LoraConfig, Method, MethodInputs, Preference
from afarm.backend import CheckpointPolicy
from afarm.testing import (
    MetricsRecorder,
    check_method,
    make_instructions,
    separable_preferences,
    tiny_config,
    tiny_policy,
    train_context,
)

Registered = dict[str, tuple[type[Method], dict[str, Any]]]


def registered() -> Registered:
    found: Registered = {}
    register_methods(lambda name, target, **more: found.update({name: (target, more)}))
    return found


REGISTERED = registered()
STEPS: dict[str, Any] = {"learning_rate": 5e-3, "warmup_ratio": 0.0, "num_train_epochs": 1, "max_length": 48}
EIGHT = {"per_device_train_batch_size": 8}
CUT = {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 4}


def make(name: str, **settings: Any) -> Method:
    """A method as it is registered, with settings over its own."""
    target, more = REGISTERED[name]
    config = more["config"].model_validate({**more.get("defaults", {}), **settings})
    return target(config)


def goodness(text: str) -> float:
    """Words of the better outputs of `separable_preferences`, less those of the worse."""
    words = text.split()
    return sum(words.count(word) for word in ("w1", "w2")) - sum(words.count(word) for word in ("w31", "w32"))


def margin(policy: CheckpointPolicy, pairs: list[JudgedPair]) -> float:
    """The mean of log π(chosen) − log π(rejected), in nats."""
    examples, _ = encode_pairs(policy, pairs, 48)
    chosen = summed_logprobs(policy, [example["chosen"] for example in examples], 64)
    rejected = summed_logprobs(policy, [example["rejected"] for example in examples], 64)
    return (sum(chosen) - sum(rejected)) / len(pairs)


def train(
    method: Method, directory: Path, pairs: list[JudgedPair], start: CheckpointPolicy | None = None
) -> tuple[CheckpointPolicy, list[dict[str, float]]]:
    log = MetricsRecorder()
    feedback = [thumb for judged in pairs for thumb in judged.feedback]
    inputs = MethodInputs(start or tiny_policy(), preferences=pairs, feedback=feedback)
    policy = method.train(inputs, train_context(directory, log_metrics=log))
    assert isinstance(policy, CheckpointPolicy)
    return policy, [metrics for _, metrics in log.lines]


@pytest.mark.parametrize(
    "method",
    [
        KTO(tiny_config(KTOConfig, beta=0.5)),
        Pairwise(tiny_config(PairwiseConfig, loss_type=["apo_zero", "sft"], beta=0.5)),
        Pairwise(tiny_config(PairwiseConfig, loss_type="simpo", beta=2.0, checkpoint="best")),
    ],
    ids=["kto", "with a reference", "without"],
)
def test_a_method_conforms_in_one_process_and_in_two(method: Method, tmp_path: Path) -> None:
    check_method(method, tmp_path, learns=goodness, processes=2)


@pytest.mark.parametrize("name", REGISTERED)
def test_each_method_prefers_the_chosen_outputs_more_than_its_start_did(name: str, tmp_path: Path) -> None:
    start, pairs = tiny_policy(), separable_preferences(24)
    trained, lines = train(make(name, **STEPS, **EIGHT), tmp_path, pairs, start)
    assert margin(trained, pairs) > margin(start, pairs) + 0.1
    assert lines[-1]["rows_desirable" if name == "kto" else "pairs_decided"] == 24
    assert {"loss", "rewards/chosen", "rewards/rejected", "logps/chosen", "logps/rejected"} <= lines[-2].keys()


@pytest.mark.parametrize("name", REGISTERED)
def test_under_toy_and_smol_a_method_has_no_settings_of_a_large_model(name: str) -> None:
    target, more = REGISTERED[name]
    for recipe, lowest in (("toy", 1e-4), ("smol", 1e-4)):
        config = more["config"].model_validate({**more.get("defaults", {}), **more["recipes"][recipe]})
        assert config.learning_rate > lowest
    assert target.search_space.keys() <= more["config"].model_fields.keys()


@pytest.mark.parametrize("name", ["kto", "mpo"])
def test_how_a_step_is_cut_into_micro_batches_changes_nothing(name: str, tmp_path: Path) -> None:
    """27 pairs: the last step is smaller. KTO's KL is that of a step."""
    pairs = separable_preferences(27)
    whole, lines = train(make(name, **STEPS, **EIGHT, beta=0.5), tmp_path / "whole", pairs)
    cut, cut_lines = train(make(name, **STEPS, **CUT, beta=0.5), tmp_path / "cut", pairs)
    for one, other in zip(whole.model.parameters(), cut.model.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)
    assert len(lines) == len(cut_lines)
    for ours, theirs in zip(lines, cut_lines, strict=True):
        assert theirs | {"epoch": 0} == pytest.approx(ours | {"epoch": 0}, abs=2e-3)


def test_a_swapped_pair_gives_the_same_policy(tmp_path: Path) -> None:
    pairs = separable_preferences(16)
    swapped = [JudgedPair(row.pair.swapped(), row.preference.swapped()) for row in pairs]
    one, _ = train(make("mpo", **STEPS, **EIGHT), tmp_path / "1", pairs)
    two, _ = train(make("mpo", **STEPS, **EIGHT), tmp_path / "2", swapped)
    assert all(a.equal(b) for a, b in zip(one.model.parameters(), two.model.parameters(), strict=True))


def test_with_adapters_the_first_loss_is_that_of_the_start_and_it_learns(tmp_path: Path) -> None:
    start, pairs = tiny_policy(), separable_preferences(16)
    for name in ("kto", "apo_zero"):
        method = make(name, **{**STEPS, **EIGHT, "learning_rate": 0.03, "lora": LoraConfig(r=4)})
        trained, lines = train(method, tmp_path / name, pairs, start)
        assert lines[0]["rewards/chosen"] == pytest.approx(0, abs=1e-5)
        assert margin(trained, pairs) > margin(start, pairs) + 0.1


# ------------------------------------------------------------------------------------------------ what is learned from


def test_draws_are_left_out_and_counted_and_kept_on_request(tmp_path: Path) -> None:
    pairs = separable_preferences(12)
    draws = [JudgedPair(row.pair, Preference(row.pair.id, None, "draw")) for row in pairs[:4]]
    for more, left_out in (({}, 4), ({"keep_draws": True}, 0)):
        _, lines = train(make("ipo", **STEPS, **EIGHT, **more), tmp_path / str(left_out), [*draws, *pairs[4:]])
        assert (lines[-1]["pairs_decided"], lines[-1]["pairs_left_out"]) == (8, left_out)


@pytest.mark.parametrize(
    ("name", "said"), [("kto", "nothing to learn from: no pair"), ("orpo", "nothing to learn from: 3 draw")]
)
def test_pairs_without_a_better_output_are_named_by_the_methods_own_name(name: str, said: str, tmp_path: Path) -> None:
    draws = [JudgedPair(row.pair, Preference(row.pair.id, None, "draw")) for row in separable_preferences(3)]
    target, more = REGISTERED[name]
    config = more["config"].model_validate(more.get("defaults", {}), context={"section": name})  # as a run builds it
    with pytest.raises(DataError, match=f"{name} .*{said}"):
        train(target(config), tmp_path, draws)


@pytest.mark.parametrize(("label", "word"), [(True, "desirable"), (False, "undesirable")])
def test_rows_of_one_label_are_refused(label: bool, word: str, tmp_path: Path) -> None:
    rows = [Feedback(task, "w1", label) for task in make_instructions(5)]
    with pytest.raises(DataError, match=f"kto learns .* all 5 rows are {word}: add rows of the other label"):
        KTO(KTOConfig()).train(MethodInputs(tiny_policy(), feedback=rows), train_context(tmp_path))


def test_kto_learns_from_more_rows_of_one_label_and_outputs_that_did_not_end(tmp_path: Path) -> None:
    tasks = make_instructions(12)
    rows = [Feedback(task, "w1 w2", True, finish_reason="length") for task in tasks[:9]]
    rows += [Feedback(task, "w31 w32", False) for task in tasks[6:]]  # some prompts have both, most one
    start, log = tiny_policy(), MetricsRecorder()
    context = train_context(tmp_path, log_metrics=log)
    trained = make("kto", **STEPS, **EIGHT).train(MethodInputs(start, feedback=rows), context)
    assert (log.lines[-1][1]["rows_desirable"], log.lines[-1][1]["rows_undesirable"]) == (9, 6)

    def logp(policy: Any, output: str, ended: bool) -> float:
        encoded, _ = start.encode(tasks, [output] * 12, 48, [ended] * 12)
        return sum(summed_logprobs(policy, encoded, 12)) / 12

    assert logp(trained, "w1 w2", False) > logp(start, "w1 w2", False) + 0.1
    assert logp(trained, "w31 w32", True) < logp(start, "w31 w32", True) - 0.1


def test_kto_takes_no_rows_of_one_prompt_and_its_form_without_a_kl_does(tmp_path: Path) -> None:
    [task] = make_instructions(1)
    rows = [Feedback(task, f"w{n}", n < 2) for n in range(4)]
    inputs, log = MethodInputs(tiny_policy(), feedback=rows), MetricsRecorder()
    with pytest.raises(DataError, match="all rows have one prompt"):
        make("kto", **STEPS).train(inputs, train_context(tmp_path / "kto"))
    without = make("kto", **STEPS, loss_type="apo_zero_unpaired")
    without.train(inputs, train_context(tmp_path / "zero", log_metrics=log))
    assert log.lines[0][1]["kl"] == 0


def test_the_kl_is_read_from_responses_of_other_prompts_within_the_limit() -> None:
    rows = [((1, 2), (3,)), ((1, 2), (4, 5, 6, 7)), ((9,), (8, 8, 8, 8))]
    for seed in range(5):
        others = mismatched_rows(rows, 4, seed)
        assert [prompt for prompt, _ in others] == [prompt for prompt, _ in rows]
        assert [response for _, response in others[:2]] == [(8, 8)] * 2
        assert others[2][1] in [(3,), (4, 5, 6)]
    assert mismatched_rows(rows, 4, 0) == mismatched_rows(rows, 4, 0)
