"""The loops: the kit's verdict, pairs that nobody decides, annotators and judges that fail."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from afarm_online import METHODS, Online, xpo
from afarm_online.pairs import label_pairs

from afarm import JudgeError, MethodInputs, Pair, Preference, TrainingError
from afarm.backend import read_logprobs, rollout, start_training
from afarm.testing import (
    MetricsRecorder,
    check_method,
    tiny_config,
    tiny_inputs,
    tiny_policy,
    train_context,
)


def goodness(text: str) -> float:
    """The number of times that an output says one of twelve words."""
    return float(sum(word in {f"w{n}" for n in range(12)} for word in text.split()))


def by_goodness(pairs: Sequence[Pair], *, noiseless: bool = False) -> list[Preference]:
    """Prefer the output that says more of these words; a draw if both say as many."""
    found = []
    for pair in pairs:
        assert not pair.identical
        margin = goodness(pair.output_2) - goodness(pair.output_1)
        found.append(
            Preference(pair.id, float(margin > 0)) if margin else Preference(pair.id, None, "draw", source="judge")
        )
    return found


def make(name: str, **changes: Any) -> Online:
    method, kind, *_ = METHODS[name]
    settings = {"rollout_batch_size": 16, "mini_batch_size": 8, "learning_rate": 1e-2, "num_iterations": 1}
    return method(tiny_config(kind, **{k: v for k, v in (settings | changes).items() if k in kind.model_fields}))


def inputs_of(method: Online, **changes: Any) -> MethodInputs:
    return replace(tiny_inputs(method.needs), **({"annotate": by_goodness} | changes))


@pytest.mark.parametrize(
    ("name", "changes", "processes"),
    [
        ("online_dpo", {"num_iterations": 2}, 2),
        ("iterative_dpo", {"total_steps": 3, "warmup_steps": 0, "save_steps": 1}, 2),
        ("xpo", {"alpha": 1e-3}, 1),
        ("nash_md", {"kl_coef": 0.02, "mini_batch_size": 16}, 2),
    ],
)
def test_it_keeps_the_promises_of_a_method(name: str, changes: dict[str, Any], processes: int, tmp_path: Path) -> None:
    """Repeatable, killed and gone on with, in two processes as in one, and it learns what is preferred."""
    method = make(name, **changes)
    check_method(method, tmp_path, inputs=inputs_of(method), learns=goodness, processes=processes)


@pytest.mark.parametrize(("name", "labels"), [("xpo", "rating"), ("online_dpo", "ranking")])
def test_a_judge_can_label(name: str, labels: str, tmp_path: Path) -> None:
    """One in eight of the scripted judge's answers cannot be read; what it is asked is what was planned."""
    method = make(name, labels=labels, num_generations=4 if name == "online_dpo" else 1, total_steps=2, save_steps=1)
    assert method.needs == {"judge", "unlabeled"}
    check_method(method, tmp_path)
    lines = train(method, tmp_path / "log", tiny_inputs(method.needs))
    assert sum(line["pairs/unread"] for line in lines) + sum(line["objective/unjudged"] for line in lines) > 0


@pytest.mark.parametrize("labels", ["rating", "ranking", "reward_model"])
def test_nash_md_takes_a_probability_from_a_reward_models_scores_alone(labels: str, tmp_path: Path) -> None:
    method = make("nash_md", labels=labels)
    training = start_training(method.config, tiny_inputs(method.needs), train_context(tmp_path))
    prompts, samples = rollout(training, 0)
    pairs, _ = label_pairs(training, 0, prompts, samples, soft=True)
    decided = {pair.p for pair in pairs if pair.weight}
    assert decided <= {0.0, 1.0} if labels != "reward_model" else all(0 < p < 1 for p in decided)
    assert len(decided) > 1


def train(method: Online, directory: Path, inputs: MethodInputs) -> list[dict[str, float]]:
    """Return the metrics that each step logs."""
    log = MetricsRecorder()
    method.train(inputs, train_context(directory, log_metrics=log))
    return [metrics for _, metrics in log.lines if "pairs/decided" in metrics]


Answer = Callable[[Pair], Preference]


def answering(answer: Answer) -> Any:
    return lambda pairs, noiseless=False: [answer(pair) for pair in pairs]


@pytest.mark.parametrize("name", ["online_dpo", "iterative_dpo", "xpo"])
def test_pairs_that_nobody_decides_are_counted_and_teach_nothing(name: str, tmp_path: Path) -> None:
    method = make(name, alpha=0.0)
    draw = answering(lambda pair: Preference(pair.id, None, "draw"))
    for metrics in train(method, tmp_path, inputs_of(method, annotate=draw)):
        assert metrics["pairs/undecided"] + metrics["pairs/equal"] == method.config.pairs_per_step
        assert metrics["policy/grad_norm"] == 0
        assert metrics["objective/kl"] == pytest.approx(0, abs=1e-4)


def test_of_a_draw_nash_md_keeps_the_kl_alone_and_xpo_its_bonus(tmp_path: Path) -> None:
    draw = answering(lambda pair: Preference(pair.id, None, "draw"))
    nash = make("nash_md", kl_coef=0.5, kl_level="sequence")
    [first, *_] = train(nash, tmp_path / "nash", inputs_of(nash, annotate=draw))
    assert (first["rewards/probabilities"], first["loss/score"]) == (0.5, 0)
    assert first["policy/grad_norm"] == pytest.approx(0, abs=1e-4)  # at the start the KL is 0
    xpo = make("xpo", alpha=0.1)
    lines = train(xpo, tmp_path / "xpo", inputs_of(xpo, annotate=draw))
    assert all(line["policy/grad_norm"] > 0 for line in lines)
    assert lines[-1]["objective/kl"] > lines[0]["objective/kl"] + 0.1  # it leaves what the start says


def test_in_xpo_the_start_reads_each_response_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    method, counts = make("xpo", total_steps=2, save_steps=1), list[int]()

    def read(training: Any, policy: Any, samples: Sequence[Any]) -> Any:
        counts.append(len(samples))
        return read_logprobs(training, policy, samples)

    monkeypatch.setattr(xpo, "read_logprobs", read)
    train(method, tmp_path, inputs_of(method))
    assert counts == [32, 32, 16]


def test_equal_responses_are_never_asked_about(tmp_path: Path) -> None:
    """Of one token, most responses to a prompt are equal; `by_goodness` refuses such pairs."""
    method = make("online_dpo", response_length=1)
    inputs = inputs_of(method, start=tiny_policy(initializer_range=0.8))
    lines = train(method, tmp_path, inputs)
    assert all(line["pairs/equal"] > 0 for line in lines)
    assert sum(line["pairs/decided"] for line in lines) > 0


def test_a_label_that_is_unsure_teaches_less(tmp_path: Path) -> None:
    norms = []
    for number, p in enumerate((0.5, 0.7, 1.0)):
        method = make("online_dpo")
        sure = answering(lambda pair, p=p: Preference(pair.id, p if pair.is_canonical else 1 - p))
        norms.append(train(method, tmp_path / str(number), inputs_of(method, annotate=sure))[0]["policy/grad_norm"])
    assert norms[0] < 1e-5 < norms[1] < norms[2]


def test_unread_answers_are_counted_and_an_annotator_that_reads_none_stops_the_training(tmp_path: Path) -> None:
    def unread(pair: Pair) -> Preference:
        return Preference(pair.id, None, "unparsed")

    method = make("online_dpo")
    [first, *_] = train(method, tmp_path / "few", inputs_of(method, annotate=answering(unread)))
    assert first["pairs/unread"] == 8
    many = make("online_dpo", rollout_batch_size=64)
    with pytest.raises(TrainingError, match=r"stops at step 1: the annotator could label none .*unparsed.*--annotator"):
        train(many, tmp_path / "many", inputs_of(many, annotate=answering(unread)))

    def noisy(pair: Pair) -> Preference:  # label noise labels half of the pairs without the annotator
        return Preference(pair.id, 1.0, source="noise") if int(pair.id, 16) % 2 else unread(pair)

    with pytest.raises(TrainingError, match="could label none"):
        train(make("online_dpo", rollout_batch_size=128), tmp_path / "n", inputs_of(many, annotate=answering(noisy)))


def test_an_annotator_that_fails_ends_the_step_and_the_same_labels_are_asked_for_again(tmp_path: Path) -> None:
    method, asked = make("online_dpo"), [list[str](), list[str]()]

    def failing(pairs: Sequence[Pair], *, noiseless: bool = False) -> list[Preference]:
        if len(asked[0]) >= 24:
            raise JudgeError("the judge is away")
        asked[0].extend(pair.id for pair in pairs)
        return by_goodness(pairs)

    def working(pairs: Sequence[Pair], *, noiseless: bool = False) -> list[Preference]:
        asked[1].extend(pair.id for pair in pairs)
        return by_goodness(pairs)

    with pytest.raises(JudgeError, match="away"):
        train(method, tmp_path, inputs_of(method, annotate=failing))
    lines = train(method, tmp_path, inputs_of(method, annotate=working))
    assert len(lines) == 2  # of four steps the checkpoint had two
    assert asked[1][: len(asked[0]) - 16] == asked[0][16:]


def test_a_reward_that_is_no_number_ends_at_the_step(tmp_path: Path) -> None:
    method = make("nash_md", labels="reward_model")
    inputs = tiny_inputs(method.needs)
    for weight in inputs.reward_model.model.score.parameters():
        weight.data.fill_(float("nan"))
    with pytest.raises(TrainingError, match=r"Nash-MD diverged at step 1: a reward is not a finite number"):
        method.train(inputs, train_context(tmp_path))


def test_an_engine_that_cannot_mix_is_named_before_anything_is_asked(tmp_path: Path) -> None:
    method = make("nash_md")
    inputs = inputs_of(method)
    vars(inputs.start.backend)["engine"] = object()
    with pytest.raises(TrainingError, match=r"backend.sampler=torch, or --set nash-md.mixture_coef=0"):
        method.train(inputs, train_context(tmp_path))
