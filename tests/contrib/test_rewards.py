"""afarm-rewards: its reward models by the command line, with methods, in sums and refused."""

from __future__ import annotations

import json
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
from places import ROOT

from afarm.cli import main

pytestmark = pytest.mark.xdist_group("end_to_end")

SOURCE = ROOT / "plugins-contrib" / "afarm-rewards" / "src"
GRPO = ROOT / "plugins-contrib" / "afarm-grpo" / "src"
HEADS = ("margin_reward", "uncertain_reward", "attributes_reward")
SMALL = {
    "toy": "{sft: 48, preference: 24, unlabeled: 16, validation: 8, evaluation: 8}",
    "rows": "{sft: 48, preference: 24, unlabeled: 16, validation: 8, evaluation: 8}",
    "sft.num_train_epochs": 1,
    "sample.max_new_tokens": 8,
    "evaluate.max_new_tokens": 8,
    "best_of_n.n": 2,
    **{f"{name}.gradient_accumulation_steps": 1 for name in HEADS},
}
SETTINGS = [word for name, value in SMALL.items() for word in ("--set", f"{name}={value}")]


@pytest.fixture
def on_the_path(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The package, and afarm-grpo, as if they were installed."""
    for name, module in (("rewards", "afarm_rewards"), ("grpo", "afarm_grpo")):
        described = tmp_path / "site" / f"afarm_{name}-0.1.0.dist-info"
        described.mkdir(parents=True)
        (described / "METADATA").write_text(f"Name: afarm-{name}\nVersion: 0.1.0\n")
        (described / "entry_points.txt").write_text(f"[afarm]\n{name} = {module}\n")
    monkeypatch.chdir(tmp_path)
    for directory in (GRPO, SOURCE, tmp_path / "site"):
        monkeypatch.syspath_prepend(str(directory))


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    with pytest.raises(SystemExit, match=r"^0$"):
        main(["run", *arguments, *SETTINGS, "--json"])
    record: dict[str, Any] = json.loads(capsys.readouterr().out)
    return record


def fitted(kind: str) -> dict[str, float]:
    """What the fit of a reward model logged, with this among its metrics."""
    for path in Path("afarm-runs").glob("artifacts/fit-reward/*/metrics.jsonl"):
        found: dict[str, float] = {}
        for line in path.read_text().splitlines():
            found |= json.loads(line)
        if kind in found:
            return found
    raise AssertionError(f"nothing logged {kind}")


def test_methods_choose_by_them_sums_hold_them_and_rows_that_lack_something_are_refused(
    on_the_path: None, capsys: pytest.CaptureFixture[str]
) -> None:
    record = run(capsys, "--method", "best_of_n", "--reward-model", "margin_reward")
    assert record["method"] == "best_of_n"
    metrics = fitted("pairs_without_strength")
    assert metrics["pairs_without_strength"] == metrics["pairs_decided"] > 0
    assert metrics["eval_pairs"] >= 1

    [stored] = Path("afarm-runs").glob("artifacts/annotate/*/preferences.jsonl")
    with pytest.raises(SystemExit, match=r"^[12]$"):
        main(["fit-reward", "--preferences", str(stored), "--reward-model", "attributes_reward", *SETTINGS])
    said = " ".join(capsys.readouterr().err.replace("│", " ").split())
    assert (
        "attributes_reward: none of 24 pairs has attributes; files of preferences have them as 'score_chosen'" in said
    )

    steps = "total_steps: 1, warmup_steps: 0, rollout_batch_size: 8, mini_batch_size: 8, num_generations: 4"
    grpo = ["--set", f"grpo={{{steps}}}"]
    careful = ["--set", "uncertain_reward.conservatism=2"]
    run(capsys, "--method", "grpo", "--reward-model", "uncertain_reward", *careful, *grpo)
    assert fitted("prior_precision")["eval_spread"] > 0

    Path("rewards.py").write_text(
        "def short(prompts, completions, **columns):\n    return [-len(c) for c in completions]\n"
    )
    both = "sum:margin_reward=1,function:rewards.py:short=0.01"
    assert run(capsys, "--method", "best_of_n", "--reward-model", both)["method"] == "best_of_n"


def test_without_the_package_the_error_says_what_brings_it(capsys: pytest.CaptureFixture[str]) -> None:
    if "afarm-rewards" in {distribution.name for distribution in metadata.distributions()}:
        pytest.skip("it is installed here")
    with pytest.raises(SystemExit, match=r"^[12]$"):
        main(["run", "--method", "best_of_n", "--reward-model", "margin_reward", "--dry-run"])
    assert "'afarm-rewards' brings it" in " ".join(capsys.readouterr().err.replace("│", " ").split())
