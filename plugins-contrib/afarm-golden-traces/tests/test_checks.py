"""Words of the checker: subsets, places, causes, bad dumps, and the two command lines' one function."""

from __future__ import annotations

import copy
import importlib.util
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import typer
from afarm_golden_traces import METHODS, TraceError, check, load_trace
from afarm_golden_traces.__main__ import main
from afarm_golden_traces.commands import register_commands

Dump = dict[str, Any]


@pytest.fixture
def grpo() -> Dump:
    return copy.deepcopy(load_trace("grpo").stored["quantities"])


def test_files_are_what_the_arithmetic_makes() -> None:
    path = Path(__file__).parent.parent / "make_traces.py"
    spec = importlib.util.spec_from_file_location("make_traces", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    inputs, settings, weights = module.of_reward()
    settings = {**module.TOKENS, **settings, **module.OPTIMISER}
    made = module.evaluate(METHODS["reward"], inputs, settings, weights)
    stored = load_trace("reward")
    assert stored.inputs == inputs
    assert stored.hyperparameters == settings
    for name, value in made.items():
        for key in value if isinstance(value, dict) else [None]:
            ours, theirs = (
                (value, stored.quantities[name]) if key is None else (value[key], stored.quantities[name][key])
            )
            np.testing.assert_allclose(ours, theirs, rtol=1e-10, atol=1e-11)


def test_a_dump_may_have_any_quantities_as_lists_arrays_or_tensors(grpo: Dump) -> None:
    lengths = [len(response) for response in load_trace("grpo").inputs["responses"]]
    dump = {
        "logprobs": [row[:length] for row, length in zip(grpo["logprobs"], lengths, strict=True)],  # no pads
        "ratio": np.where(np.array(grpo["response_mask"]) == 1, grpo["ratio"], np.nan),  # anything at pads
        "advantages": torch.tensor(grpo["advantages"]),
        "loss": torch.tensor([grpo["loss"]], dtype=torch.float32, requires_grad=True),
        "gradients": {"model.norm.weight": grpo["gradients"]["model.norm.weight"]},
    }
    report = check("grpo", dump)
    assert report.follows
    assert report.checked == ["advantages", "logprobs", "ratio", "loss", "gradients"]
    assert "old_logprobs" in report.missing
    assert "token_losses" in report.missing


def test_what_is_missing_before_a_departure_is_suspected(grpo: Dump) -> None:
    [one] = check("grpo", {"old_logprobs": grpo["old_logprobs"], "loss": grpo["loss"] + 0.1}).departures
    assert one.quantity == "loss"
    assert {"ratio", "kl", "policy_losses", "logprobs", "advantages", "group_means"} <= set(one.suspects)
    assert "old_logprobs" not in one.suspects
    assert "entropy" not in one.suspects


def test_what_follows_from_a_wrong_value_is_right_and_a_second_mistake_shows(grpo: Dump) -> None:
    grpo["ratio"] = (np.array(grpo["ratio"]) * 2).tolist()
    advantages = np.array(grpo["advantages"])[:, None]
    ratio = np.array(grpo["ratio"])
    grpo["policy_losses"] = np.maximum(-advantages * ratio, -advantages * np.clip(ratio, 0.8, 1.2)).tolist()
    grpo["token_losses"] = (np.array(grpo["policy_losses"]) - 0.1 * np.array(grpo["kl"])).tolist()
    first, second, *_ = check("grpo", grpo).departures
    assert (first.quantity, first.where) == ("ratio", "33 of 33 response tokens: all")
    assert first.cause == "it is 2 times the trace's, which is 2"
    assert (second.quantity, second.cause) == ("token_losses", "beta has the other sign")


@pytest.mark.parametrize(
    ("quantity", "change", "where", "cause"),
    [
        ("logprobs", lambda x: np.where(np.arange(6) == 0, 0, x), "the first of each response", ""),
        ("logprobs", lambda x: load_trace("grpo").quantities["old_logprobs"], "all", "the weights are old_weights"),
        ("kl", lambda x: -x, "all", "the sign is turned"),
        ("response_mask", lambda x: np.ones_like(x), "all pads", "1 everywhere"),
        ("entropy", lambda x: x * 1.002, "all", "it is 1.002 times the trace's"),
        ("entropy", lambda x: x + 0.002 * np.cos(np.arange(54).reshape(9, 6)) * x, "all", "bfloat16"),
    ],
)
def test_places_and_causes(grpo: Dump, quantity: str, change: Any, where: str, cause: str) -> None:
    one = check("grpo", {quantity: change(np.array(grpo[quantity]))}).departures[0]
    assert one.quantity == quantity
    assert one.where.endswith(f": {where}")
    assert cause in one.cause


@pytest.mark.parametrize(
    ("dump", "message"),
    [
        ({"logprob": 1}, r"grpo has no quantity 'logprob'. Did you mean 'logprobs'\?"),
        ({}, "the dump has no quantity"),
        ({"method": "ppo", "loss": 1}, "it is of 'ppo', and is held against grpo"),
        ({"loss": float("nan")}, "loss is nan, not a finite number"),
        ({"loss": "low"}, "loss is not made of numbers"),
        ({"advantages": [1.0, 2.0]}, r"advantages has the shape \[2\], the trace \[9\], one for each row"),
        ({"logprobs": [[0.0] * 6] * 8}, "logprobs has 8 rows, the trace 9"),
        ({"logprobs": 3.0}, "logprobs has 0 rows"),
        ({"logprobs": [[0.0] * 7] * 9}, r"logprobs\[0\] has 7 values. Its response has 4 tokens: give 4, or 6"),
        ({"logprobs": [[0.0, None, 0.0, 0.0, 0.0, 0.0]] * 9}, r"logprobs\[0, 1\] is nan"),
        ({"gradients": [1.0]}, "gradients must be an object"),
        ({"gradients": {"model.norm.bias": 1}}, "gradients has no weight 'model.norm.bias'"),
        ({"gradients": {"model.norm.weight": [1, 2]}}, r"gradients/model.norm.weight has the shape \[2\]"),
        ({"variant": "gdpo", "loss": 1}, "grpo has no variant 'gdpo'. It has: bias_corrected_kl"),
    ],
)
def test_bad_dumps_are_named(dump: Dump, message: str) -> None:
    with pytest.raises(TraceError, match=message):
        check("grpo", dump)


@pytest.mark.parametrize("tolerance", [0.0, -1.0, 1.0, float("inf"), float("nan")])
def test_a_tolerance_that_lets_all_or_nothing_pass_is_refused(tolerance: float) -> None:
    with pytest.raises(TraceError, match="a relative error between 0 and 1"):
        check("grpo", {"loss": 1.0}, tolerance=tolerance)


def test_the_command_line(tmp_path: Path, grpo: Dump, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "dump.json"

    def run(*words: str) -> tuple[int, str]:
        code = main(words)
        out, err = capsys.readouterr()
        return code, out + err

    path.write_text(json.dumps(grpo))
    code, text = run("check", "grpo", str(path))
    assert code == 0
    assert text.endswith("All that was given follows the trace.\n")
    grpo["loss"] *= -1
    path.write_text(json.dumps(grpo))
    code, text = run("check", "grpo", str(path))
    assert code == 1
    assert "✗ loss leaves.\n" in text
    assert "fits: the sign is turned" in text
    assert "not judged, since they follow: gradients" in text
    assert json.loads(run("check", "grpo", str(path), "--json")[1])["departures"][0]["quantity"] == "loss"
    assert "variants: bias_corrected_kl" in run("show", "grpo")[1]
    assert json.loads(run("show", "grpo", "--variant", "dapo", "--json")[1])["hyperparameters"]["loss_type"] == "dapo"
    assert run("show")[1].startswith("ppo     PPO with a value model")
    path.write_text("[")
    for words, message in (
        (("check", "grop", str(path)), "error: there is no trace of 'grop'. Did you mean 'grpo'?"),
        (("check", "grpo", str(path)), "cannot be read as JSON"),
        (("check", "grpo", str(tmp_path / "no.json")), "there is no file"),
    ):
        code, text = run(*words)
        assert code == 2
        assert message in text


def test_the_command_is_among_afarms(capsys: pytest.CaptureFixture[str]) -> None:
    app = typer.Typer()
    register_commands(app)
    with pytest.raises(SystemExit, match="2"):
        app(["check", "grop", "dump.json"])
    assert "Did you mean 'grpo'?" in capsys.readouterr().err
