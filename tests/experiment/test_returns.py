"""Every return of a component is held to its interface: the error names the component that broke its promise."""

from __future__ import annotations

import asyncio
import json
import math
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import light_plugin
import numpy as np
import pytest
import torch
from light_farm import Make
from light_plugin import CountingJudge, Nudge, Numbers, Sft, WordPolicy, WordReward

from afarm import compare_outputs
from afarm.core.errors import AfarmError, ConfigError, JudgeError, PluginError
from afarm.core.interfaces import AnnotateContext, Decoding, EvaluationInputs, RewardModel
from afarm.core.judge import ChatRequest, Completion
from afarm.core.plugins import discover
from afarm.core.records import Evaluation, Instruction, Output, Pair, Preference, Sample, Score
from afarm.core.registry import Component
from afarm.experiment.components import Components
from afarm.experiment.farm import Farm
from afarm.experiment.recipe import Settings
from afarm.experiment.settings import RunConfig
from afarm_plugins.annotators.pool import PoolAnnotator
from afarm_plugins.evaluators.win_rate import WinRate

Do = Callable[[Farm], object]

SFT: Do = lambda farm: farm.sft()  # noqa: E731  (a table of things to do)
SAMPLE: Do = lambda farm: farm.sample()  # noqa: E731
FIT: Do = lambda farm: farm.fit_reward()  # noqa: E731
TRAIN: Do = lambda farm: farm.train("nudge")  # noqa: E731
OUTPUTS: Do = lambda farm: farm.outputs("nudge")  # noqa: E731
ANNOTATE: Do = lambda farm: farm.annotate()  # noqa: E731
EVALUATE: Do = lambda farm: farm.evaluate("sft")  # noqa: E731


def too_few(self: WordPolicy, instructions: Sequence[Instruction], *decoding: Any, seed: int) -> Iterator[Sample]:
    yield Sample("word")


def too_many(self: WordPolicy, instructions: Sequence[Instruction], *decoding: Any, seed: int) -> Iterator[Sample]:
    yield from [Sample("word")] * 999


def breaks(self: object, *inputs: object, **named: object) -> None:
    raise KeyError("missing")


def ends(*inputs: object, **named: object) -> None:
    sys.exit(0)


def fails_when_read(self: object) -> None:
    raise KeyError("missing")


def logs(step: object, /, **metrics: object) -> Callable[..., None]:
    return lambda self, inputs, context: context.log_metrics(step, metrics)


def keeps(step: object) -> Callable[..., None]:
    return lambda self, inputs, context: context.checkpoints.save(step, lambda directory: None)


def evaluated(value: object) -> Callable[..., Evaluation]:
    return lambda self, inputs: Evaluation("win_rate", inputs.system, {"win_rate": value})  # type: ignore[dict-item]


RETURNS: dict[str, tuple[type, str, Callable[..., object] | object, Do, str]] = {
    "train, nothing": (Nudge, "train", lambda *a: None, TRAIN, "method 'nudge': train must return an afarm.Policy"),
    "train, of the start": (Sft, "train", lambda *a: {"a": 1}, SFT, "method 'sft': .* an afarm.Policy, not dict"),
    "fit": (
        *(WordReward, "fit", classmethod(lambda *a: a[0]), FIT),
        "reward model 'words': fit must return an afarm.RewardModel, not ABCMeta",
    ),
    "load, a policy": (
        *(WordPolicy, "load", classmethod(lambda *a: None), SFT),
        "policy 'light_plugin:WordPolicy': load must return an afarm.Policy, not None",
    ),
    "load that fails": (
        *(WordPolicy, "load", classmethod(breaks), SFT),
        "policy 'light_plugin:WordPolicy' failed: KeyError: 'missing'",
    ),
    "load, a reward model": (
        *(WordReward, "load", classmethod(lambda *a: 1), FIT),
        "reward model 'light_plugin:WordReward': load must return an afarm.RewardModel, not int",
    ),
    "save that fails": (WordPolicy, "save", breaks, SFT, "method 'sft' failed: KeyError: 'missing'"),
    "sample, too few": (
        *(WordPolicy, "sample", too_few, SAMPLE),
        "method 'sft': sample must yield 2 afarm.Sample per instruction: 12 instructions gave 1 and not 24",
    ),
    "sample, too many": (WordPolicy, "sample", too_many, SAMPLE, "method 'sft': .* 12 instructions gave more than 24"),
    "sample, texts": (
        *(WordPolicy, "sample", lambda *a, **n: iter(["word"]), SAMPLE),
        "method 'sft': sample must yield 2 afarm.Sample per instruction, not str",
    ),
    "sample that fails": (WordPolicy, "sample", breaks, SAMPLE, "method 'sft' failed: KeyError: 'missing'"),
    "decoding": (
        *(WordPolicy, "decoding", lambda self, default: 0.7, OUTPUTS),
        "method 'nudge': decoding must return an afarm.Decoding, not float",
    ),
    "load, instructions": (
        *(Numbers, "load", lambda self, split: [Instruction("a")], SFT),
        r"data set 'numbers': load\('evaluation'\) must return a list of afarm.Output; row 0 is Instruction",
    ),
    "load, nothing": (Numbers, "load", lambda self, split: None, SFT, "data set 'numbers': load.* not None"),
    "load, numbers in rows": (
        *(Numbers, "load", lambda self, split: [Output(Instruction("a"), 1)], SFT),  # type: ignore[arg-type]
        "data set 'numbers': .* row 0; its output is 1: Input should be a valid string",
    ),
    "evaluate, a mapping": (
        *(WinRate, "evaluate", lambda self, inputs: {"win_rate": 50.0}, EVALUATE),
        "evaluator 'win_rate': evaluate must return an afarm.Evaluation, not dict",
    ),
    "evaluate, NaN": (
        *(WinRate, "evaluate", evaluated(math.nan), EVALUATE),
        "evaluator 'win_rate': evaluate must return flat JSON numbers: metric 'win_rate' is nan",
    ),
    "evaluate, beyond all floats": (
        *(WinRate, "evaluate", evaluated(10**400), EVALUATE),
        "evaluator 'win_rate': evaluate must return flat JSON numbers: metric 'win_rate' is 1000",
    ),
    "evaluate, beyond all texts": (
        *(WinRate, "evaluate", evaluated(10**5000), EVALUATE),
        "evaluator 'win_rate': evaluate must .*: metric 'win_rate' is a number of too many digits",
    ),
    "log, beyond all floats": (
        *(Nudge, "train", logs(1, loss=10**400), TRAIN),
        "method 'nudge' failed: TypeError: log_metrics takes numbers: metric 'loss' is 1000",
    ),
    "evaluate, nested": (WinRate, "evaluate", evaluated({"a": 1}), EVALUATE, "evaluator 'win_rate': .* is {'a': 1}"),
    "evaluate, a list": (
        *(WinRate, "evaluate", lambda self, inputs: Evaluation("win_rate", inputs.system, [1]), EVALUATE),  # type: ignore[arg-type]
        r"evaluator 'win_rate': evaluate must return flat JSON numbers by name, not \[1\]",
    ),
    "evaluate, another's name": (
        *(WinRate, "evaluate", lambda self, inputs: Evaluation("elo", inputs.system, {"a": 1}), EVALUATE),
        "evaluator 'win_rate': evaluate must return an afarm.Evaluation of evaluator 'win_rate', not of 'elo'",
    ),
    "evaluate, another system": (
        *(WinRate, "evaluate", lambda self, inputs: Evaluation("win_rate", "other", {"a": 1}), EVALUATE),
        "evaluator 'win_rate': evaluate must return an afarm.Evaluation of system 'sft', not of 'other'",
    ),
    "evaluate, rows that are no JSON": (
        *(WinRate, "evaluate", lambda self, inputs: Evaluation("win_rate", inputs.system, {}, ({"a": {1}},)), EVALUATE),
        "evaluator 'win_rate': evaluate must .*; its rows is .*: Object of type set is not JSON serializable",
    ),
    "needs, a name": (WinRate, "needs", "judgements", EVALUATE, "evaluator 'win_rate': needs must be a frozenset"),
    "check, a sentence": (
        *(WinRate, "check", lambda self, instructions: "wrong", EVALUATE),
        "evaluator 'win_rate': check must return a list of sentences, not 'wrong'",
    ),
    "check that fails": (Nudge, "check", breaks, TRAIN, "method 'nudge' failed: KeyError: 'missing'"),
    "sample, no text": (
        *(WordPolicy, "sample", lambda *a, **n: iter([Sample(None)]), SAMPLE),  # type: ignore[arg-type]
        "method 'sft': sample must yield 2 .*; its text is None: Input should be a valid string",
    ),
    "sample, a score that is no number": (
        *(WordPolicy, "sample", lambda *a, **n: iter([Sample("a", score=math.nan)]), SAMPLE),
        "method 'sft': sample must yield 2 .*; its score is nan",
    ),
    "sample, details that are no JSON": (
        *(WordPolicy, "sample", lambda *a, **n: iter([Sample("a", details={"a": b"b"})]), SAMPLE),
        "method 'sft': sample must yield 2 .*; its details is .*: Object of type bytes is not JSON serializable",
    ),
    "decoding that fails": (WordPolicy, "decoding", breaks, OUTPUTS, "method 'nudge' failed: KeyError: 'missing'"),
    "train that exits": (Nudge, "train", ends, TRAIN, r"method 'nudge' failed: SystemExit: 0 \(experiment/test_ret"),
    "fit that exits": (WordReward, "fit", classmethod(ends), FIT, "reward model 'words' failed: SystemExit: 0"),
    "load that exits": (Numbers, "load", ends, SFT, "data set 'numbers' failed: SystemExit: 0"),
    "evaluate that exits": (WinRate, "evaluate", ends, EVALUATE, "evaluator 'win_rate' failed: SystemExit: 0"),
    "complete that exits": (CountingJudge, "complete", ends, ANNOTATE, "judge 'counting:' failed: SystemExit: 0"),
    "needs that fail": (
        *(WinRate, "needs", property(fails_when_read), EVALUATE),
        "evaluator 'win_rate' failed: KeyError: 'missing'",
    ),
    "identity that fails": (
        *(CountingJudge, "identity", property(fails_when_read), ANNOTATE),
        "judge 'CountingJudge' failed: KeyError: 'missing'",
    ),
    "identity of an annotator": (
        PoolAnnotator,
        "identity",
        7,
        ANNOTATE,
        "annotator 'pool': identity must be a text, not 7",
    ),
    "a step that is none": (Nudge, "train", logs("a"), TRAIN, "method 'nudge' failed: TypeError: 'str' object cannot"),
    "a metric called step": (Nudge, "train", logs(1, step=7), TRAIN, "method 'nudge' failed: ValueError: .* 'step'"),
    "a checkpoint before the first": (Nudge, "train", keeps(-1), TRAIN, "'nudge' failed: .* number from 0, not -1"),
    "load, messages in rows": (
        *(Numbers, "load", lambda self, split: [Output(Instruction("a", messages=("hi",)), "b")], SFT),  # type: ignore[arg-type]
        "data set 'numbers': .* row 0; its messages is .*: Input should be .* instance of Message",
    ),
}
"""What breaks a promise: the class, its function and what that does instead, how it is found, and what is said."""


@pytest.mark.parametrize("case", RETURNS)
def test_a_return_that_breaks_a_promise_names_the_component(
    case: str, farm: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    owner, function, instead, do, message = RETURNS[case]
    monkeypatch.setattr(owner, function, instead)
    with pytest.raises(AfarmError, match=message):  # data are looked at before anything runs: a ConfigError
        do(farm("evaluate.reference=data" if do is EVALUATE else "seed=1"))


TENSOR = torch.tensor(0.5)
HALF = [np.float32(0.5), np.float64(0.5), np.float16(0.5), np.array(0.5), TENSOR, TENSOR.bfloat16()]


@pytest.mark.parametrize("half", HALF, ids=lambda number: f"{type(number).__name__} {getattr(number, 'dtype', '')}")
def test_numbers_of_numpy_and_torch_are_numbers(half: Any, farm: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a plugin's model returns them, wherever it returns any."""

    def evaluate(self: WinRate, inputs: EvaluationInputs) -> Evaluation:
        return Evaluation("win_rate", inputs.system, {"win_rate": half}, ({"value": half, "parts": [half]},))

    def annotate(self: PoolAnnotator, pairs: Sequence[Pair], context: AnnotateContext) -> list[Preference]:
        return [Preference(pair.id, half, strength=half, scores=(half, half)) for pair in pairs]

    def sample(self: WordPolicy, instructions: Sequence[Instruction], *decoding: Any, seed: int) -> Iterator[Sample]:
        yield from [Sample("word", score=half, details={"logprob": half})] * len(instructions)

    monkeypatch.setattr(WinRate, "evaluate", evaluate)
    monkeypatch.setattr(PoolAnnotator, "annotate", annotate)
    monkeypatch.setattr(WordPolicy, "sample", sample)
    one = farm("evaluate.reference=data", "evaluate.evaluators=[win_rate]")
    result = one.evaluate("sft")
    [judged] = result.judgements.values()
    assert {row.p2 for row in judged if row.preference.source == "judge"} == {0.5}
    assert result.win_rate == 0.5
    score = Score(half, ((0, 1, half),), half)
    assert [type(number) for number in (score.value, score.spread, (score.spans or ())[0][2])] == [float] * 3


def completion(**values: object) -> Callable[..., object]:
    async def complete(self: CountingJudge, request: ChatRequest) -> object:
        return replace(Completion("Output (a)"), **values)  # type: ignore[arg-type]

    return complete


async def plain_text(self: CountingJudge, request: ChatRequest) -> str:
    return "Output (a)"


@pytest.mark.parametrize(
    ("complete", "message"),
    [
        (plain_text, "an answer must be an afarm.Completion, not str"),
        (completion(text=None), "an answer must be an afarm.Completion; its text is None"),
        (completion(price=-3.0), "the price of an answer must be dollars of at least 0, or None .*, not -3.0"),
        (completion(price=math.nan), "the price of an answer must be .*, not nan"),
        (completion(price="free"), "an answer must be an afarm.Completion; its price is 'free'"),
        (completion(output_tokens=-1), "counts of tokens must be whole numbers of at least 0, not -1"),
        (completion(finish_reason=3), "an answer must be an afarm.Completion; its finish_reason is 3"),
        (completion(logprobs=[1.0]), "an answer must be an afarm.Completion; its logprobs is"),
    ],
)
def test_an_answer_that_cannot_be_counted_names_the_judge_and_is_never_stored(
    complete: Callable[..., object], message: str, farm: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(CountingJudge, "complete", complete)
    one = farm(judge={"*": "counting:x"})
    with pytest.raises(PluginError, match=f"judge 'counting:x': {message}"):
        one.annotate()
    assert one.workspace.judges.ledger.read("SELECT COUNT(*) FROM completions") == [(0,)]


@pytest.mark.parametrize("price", [-1.0, math.nan, math.inf])
def test_a_worst_case_that_would_talk_the_budget_down_is_refused(
    price: float, farm: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(CountingJudge, "worst_case_price", lambda self, request: price)
    with pytest.raises(AfarmError, match="judge 'counting:': worst_case_price must be dollars of at least 0"):
        farm("budget=1").annotate()


@pytest.mark.parametrize("function", ["worst_case_price", "price"])
def test_a_price_that_cannot_be_told_names_the_judge_and_its_line(
    function: str, farm: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(CountingJudge, function, breaks)
    with pytest.raises(AfarmError, match=r"judge 'counting:' failed: KeyError: 'missing' \(experiment/test_returns"):
        farm("budget=1").annotate()


def test_a_judge_that_fails_is_named_with_its_line(farm: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    async def complete(self: CountingJudge, request: ChatRequest) -> Completion:
        raise KeyError("missing")

    monkeypatch.setattr(CountingJudge, "complete", complete)
    with pytest.raises(
        JudgeError, match=r"^judge 'counting:' failed: KeyError: 'missing' \(experiment/test_"
    ) as caught:
        farm().annotate()
    assert isinstance(caught.value.__cause__, KeyError)


@pytest.mark.parametrize("error", [KeyboardInterrupt, asyncio.CancelledError])
def test_a_judge_that_ends_the_loop_does_not_hang_the_run(
    error: type[BaseException], farm: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def complete(self: CountingJudge, request: ChatRequest) -> Completion:
        raise error

    monkeypatch.setattr(CountingJudge, "complete", complete)
    with pytest.raises(JudgeError, match=rf"^judge 'counting:' failed: RuntimeError: {error.__name__} \("):
        farm().annotate()


@pytest.mark.parametrize("identity", ["", None, 3])
def test_answers_are_filed_under_a_name(identity: object, farm: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CountingJudge, "identity", identity)
    with pytest.raises(AfarmError, match="judge 'CountingJudge': identity must be a text that is not empty"):
        farm().annotate()


def test_a_judge_that_cannot_be_closed_spoils_no_result(farm: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    async def close(self: CountingJudge) -> None:
        raise KeyError("missing")

    monkeypatch.setattr(CountingJudge, "close", close)
    with pytest.warns(UserWarning, match="judge 'counting:' failed: KeyError: 'missing'"), farm() as one:
        assert one.annotate()


# -------------------------------------------------------------------------------------------------- reward models


class Formula(RewardModel):
    """One that needs no fitting; `values` are its scores, by the number of words."""

    def values(self, lengths: Sequence[int]) -> Any:
        return [Score(float(length)) for length in lengths]

    def score(self, instructions: Sequence[Instruction], outputs: Sequence[str]) -> Any:
        return self.values([len(output.split()) for output in outputs])


def judged_by(values: Callable[..., object], farm: Make, monkeypatch: pytest.MonkeyPatch) -> object:
    """Compare outputs by `--annotator reward:words`."""
    broken = type("Broken", (Formula,), {"values": values, "__module__": __name__})
    monkeypatch.setattr(light_plugin, "WordReward", broken)
    monkeypatch.setattr("afarm.core.plugins._made", [])  # else the plugin's hook is not called again
    rows = [Output(Instruction(f"i{n}"), "word " * n, "mine") for n in range(1, 5)]
    others = [replace(row, output="word word", generator="theirs") for row in rows]
    return compare_outputs(rows, others, annotator="reward:words", farm=farm())


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
def test_scores_that_are_no_numbers_are_no_losses(number: float, farm: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    message = rf"reward model 'test_returns:Broken' failed: ValueError: a score must be a finite number, not {number}"
    with pytest.raises(PluginError, match=message):
        judged_by(lambda self, lengths: [Score(number) for _ in lengths], farm, monkeypatch)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (lambda self, lengths: [Score(1.0)], r"score must return one afarm.Score per row, 1 for \d+ rows"),
        (lambda self, lengths: [1.0 for _ in lengths], "score must return one afarm.Score per row, not float"),
        (lambda self, lengths: None, "score must return one afarm.Score per row, not None"),
        (breaks, "failed: KeyError: 'missing'"),
    ],
)
def test_the_reward_model_is_named_and_not_the_annotator_that_asks_it(
    values: Callable[..., object], message: str, farm: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(PluginError, match=f"^reward model 'test_returns:Broken'(: | ){message}"):
        judged_by(values, farm, monkeypatch)


@pytest.mark.parametrize("method", ["fit", "load"])
def test_what_makes_a_reward_model_must_be_of_its_class(
    method: str, farm: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = type("Broken", (Formula,), {method: lambda self, *given: self, "__module__": __name__})
    monkeypatch.setattr(light_plugin, "WordReward", broken)
    monkeypatch.setattr("afarm.core.plugins._made", [])  # else the plugin's hook is not called again
    row = Output(Instruction("i"), "word", "mine")
    with pytest.raises(ConfigError, match=f"'words': {method} must be a class method: put @classmethod above it"):
        compare_outputs([row], [replace(row, generator="theirs")], annotator="reward:words", farm=farm())


@pytest.mark.parametrize("number", [math.nan, math.inf])
def test_a_score_is_held_to_its_promise_when_it_is_returned_too(
    number: float, farm: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    def changed(self: object, lengths: Sequence[int]) -> list[Score]:
        scores = [Score(float(length)) for length in lengths]
        object.__setattr__(scores[-1], "value", number)
        return scores

    with pytest.raises(
        PluginError, match=f"^reward model 'test_returns:Broken' failed: .* a finite number, not {number}"
    ):
        judged_by(changed, farm, monkeypatch)


def test_a_score_that_a_base_beside_the_interface_brings_is_checked_too() -> None:
    class Scores:
        def score(self, instructions: object, outputs: Sequence[str]) -> Any:
            return [float(len(output)) for output in outputs]

    class Mixed(Scores, RewardModel):
        pass

    model: RewardModel = Mixed()  # type: ignore[abstract]
    for score in (
        lambda: model.score([Instruction("i")], ["a"]),
        lambda: model.score_outputs([Output(Instruction("i"), "a")]),
    ):
        with pytest.raises(PluginError, match=r"Mixed': score must return one afarm\.Score per row, not float"):
            score()


def test_a_score_of_numpy_is_a_number_of_json() -> None:
    assert json.dumps(Score(np.float32(0.5)).value) == "0.5"


def test_a_score_is_a_finite_number() -> None:
    for wrong in (
        {"value": math.nan},
        {"value": 1.0, "spread": math.inf},
        {"value": 1.0, "spans": ((0, 1, math.nan),)},
    ):
        with pytest.raises(ValueError, match="a score must be a finite number, not"):
            Score(**wrong)  # type: ignore[arg-type]


# --------------------------------------------------------------------------------------------------------- saving


def test_save_is_given_a_directory_that_exists(farm: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    def save(self: WordPolicy, directory: Path) -> None:
        (directory / "policy.json").write_text(f"[{self.skill}, null]")

    monkeypatch.setattr(WordPolicy, "save", save)
    assert isinstance(farm().sft(), WordPolicy)


def test_a_policy_is_called_by_its_method_when_outputs_are_sampled(farm: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    one = farm()
    one.train("nudge")
    monkeypatch.setattr(WordPolicy, "sample", too_few)
    with pytest.raises(PluginError, match="method 'nudge': sample must yield 1 "):
        one.outputs("nudge")
    assert list(WordPolicy(0.5).sample([], Decoding(), seed=0)) == [Sample("word")]


@pytest.mark.parametrize("target", [WordReward, "light_plugin:WordReward"])
def test_a_class_of_another_kind_is_named_before_it_is_built(target: Any) -> None:
    """Else its constructor would fail at arguments that are not for it."""
    plugins = discover()
    plugins.registry.register(Component("annotators", "mine", "mine-farm", "mine", target, spec="FILE"))
    components = Components(plugins, Settings("test", RunConfig(model="nothing"), {}))
    with pytest.raises(PluginError, match=r"annotator 'mine:x': .*WordReward'?>? is no afarm.Annotator"):
        components.annotator("mine:x")
