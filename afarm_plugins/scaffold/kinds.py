"""The kinds of plugin that `afarm plugin new` makes, each with its template, test and commands."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class Kind(NamedTuple):
    """The differences between packages of kinds, as templates of a component's `name` and `cls`.

    Args:
        title: What it is, in a word.
        registered: Its kind in the registry; empty for commands.
        suffix: The end of its class's name.
        check: The lines of its test.
        imports: What these import, beside its own names.
        commands: How it is used, after `afarm`; the first runs in minutes.
        extra: What its code needs of afarm, such as "[train]".
    """

    title: str
    registered: str
    suffix: str
    check: str
    imports: str
    commands: tuple[str, ...]
    extra: str = ""


KINDS: Mapping[str, Kind] = {
    "method": Kind(
        "A method",
        "methods",
        "Method",
        "check_method({{ cls }}Method(tiny_config({{ cls }}Settings, prompts=8, max_new_tokens=8)), tmp_path)",
        "from pathlib import Path\n\nfrom afarm.testing import check_method, tiny_config",
        ("run --method {{ name }}", "compare --methods {{ name }},dpo", "tune --method {{ name }}"),
        "[train]",
    ),
    "annotator": Kind(
        "An annotator",
        "annotators",
        "Annotator",
        'check_annotator({{ cls }}Annotator({{ cls }}Settings(both_orders=True)), prefers=[("right", "wrong")])',
        "from afarm.testing import check_annotator",
        (
            "run --method best_of_n --annotator {{ name }}",
            "evaluate mine.json --reference theirs.json --annotator {{ name }} --judge openai:gpt-4o --dry-run",
        ),
    ),
    "judge": Kind(
        "A judge",
        "judges",
        "Judge",
        'check_judge({{ cls }}Judge("", {{ cls }}Settings(), judge_context()))',
        "from afarm.testing import check_judge, judge_context",
        (
            "run --method best_of_n --judge {{ name }} --allow-degraded",
            "evaluate mine.json --reference theirs.json --judge {{ name }}",
        ),
    ),
    "reward-model": Kind(
        "A reward model",
        "reward_models",
        "RewardModel",
        "check_reward_model({{ cls }}RewardModel({{ cls }}Settings()))",
        "from afarm.testing import check_reward_model",
        ("run --method best_of_n --reward-model {{ name }}", "run --method ppo --reward-model {{ name }}"),
    ),
    "evaluator": Kind(
        "An evaluator",
        "evaluators",
        "Evaluator",
        "check_evaluator({{ cls }}Evaluator({{ cls }}Settings()))",
        "from afarm.testing import check_evaluator",
        (
            "run --method best_of_n --set 'evaluate.evaluators=[win_rate,{{ name }}]'",
            "leaderboard --evaluator {{ name }}",
        ),
    ),
    "dataset": Kind(
        "A data set",
        "datasets",
        "Dataset",
        "check_dataset({{ cls }}Dataset({{ cls }}Settings()))",
        "from afarm.testing import check_dataset",
        (
            "study instructions --recipe smol --dataset {{ name }}",
            "run --recipe smol --dataset {{ name }} --dry-run",
        ),
    ),
    "study": Kind(
        "A study",
        "studies",
        "Study",
        "check_study({{ cls }}Study({{ cls }}Settings()))",
        "from afarm.testing import check_study",
        ("study {{ name }} --seeds 1,2 --dry-run", "study {{ name }} --seeds 1,2"),
    ),
    "command": Kind(
        "A command",
        "",
        "",
        "app = typer.Typer()\n"
        "register_commands(app)\n"
        '[command] = app.registered_commands\nassert command.name == "{{ name }}"',
        "import typer\n",
        ("{{ name }}", "{{ name }} --help"),
    ),
}
"""By the names that users write."""
