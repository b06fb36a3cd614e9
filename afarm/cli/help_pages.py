"""Help pages of commands: options in panels, plain words for values, examples.

Written by hand over Typer's plain pages: its rich ones take longer to draw than all the rest of a start.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

PANELS: Mapping[str, Sequence[str]] = {
    "Method and model": ("method", "methods", "reward_model", "recipe", "model", "settings", "seed", "seeds"),
    "Data": ("dataset", "data", "preferences", "on_unusable", "labels", "eval_set"),
    "Judges": ("annotator", "judge", "both_orders", "votes", "vote", "label_noise", "allow_degraded"),
    "Money and speed": ("budget", "price", "max_concurrency", "batch_api", "accelerate_config"),
    "Output": ("output_dir", "ledger", "store", "output", "format", "plots", "as_json", "dry_run", "help"),
}
"""The shared options, by parameter; a command's own come before them."""

VALUES: Mapping[str, str] = {
    **dict.fromkeys(("method", "annotator", "reward_model", "dataset", "evaluator"), "NAME"),
    "judge": "NAME:MODEL",
    "recipe": "NAME|FILE",
    "model": "MODEL",
    "label_noise": "SHARE",
    "vote": "RULE",
    "data": "FILE",
    "preferences": "FILE",
    "eval_set": "NAME|FILE",
    "reference": "NAME|FILE",
    "budget": "DOLLARS",
    "output_dir": "DIR",
    "output": "FILE",
    "methods": "NAMES",
    "seeds": "NUMBERS",
}
"""Words for the values of options whose type says too little."""

TYPES: Mapping[str, str] = {"int": "N", "float": "NUMBER", "path": "PATH", "str": "TEXT", "file": "FILE"}

EXAMPLES: Mapping[str, tuple[str, str]] = {
    "run": ("--method dpo --seed 1", "--judge openai:gpt-4o --budget 5 --dry-run"),
    "compare": ("--methods ppo,best_of_n --seeds 1,2", "--methods all --dry-run"),
    "tune": ("--methods dpo,ppo --trials 16", "--methods dpo --space dpo.beta=0.05:0.5 --dry-run"),
    "study sweep": ("--method dpo --values dpo.beta=0.03,0.1 --seeds 1,2", "--values ppo.kl_coef=0.02,0.2 --dry-run"),
    "study rankings": ("--methods ppo,dpo,feedme --dry-run", "--humans people.json --judged gpt4=gpt4.json"),
    "study overoptimization": ("--methods best_of_n --seeds 1,2,3", "--methods ppo --set ppo.kl_coef=0.02 --dry-run"),
    "study label-noise": (
        "--methods best_of_n --n 1,16,256 --seeds 1,2,3",
        "--annotators pool --noise 0,0.25 --dry-run",
    ),
    "study transfer": ("--methods ppo --seeds 1,2,3", "--labelled-by crowd,pool+0.25 --dry-run"),
    "study annotators": ("--dry-run", "--humans people.json --judged gpt4=gpt4.json"),
    "study pool-size": ("--sizes 1,4,13 --pools 2", "--methods best_of_n,dpo --seeds 1,2,3 --dry-run"),
    "study model-size": (
        "--models small,large --seeds 1,2,3",
        "--models small.gguf,large.gguf --recipe smol --dry-run",
    ),
    "study eval-sets": ("--annotations a.json --annotations b.json", "--seeds 1,2,3 --by first-word --dry-run"),
    "study lengths": ("--seeds 1,2,3 --difference 10", "--annotations a.json --annotations b.json"),
    "study instructions": ("--data mine.json", "--instructions a=a.json --instructions b=b.json"),
    "study calibrate": ("--humans people.json --dry-run", "--humans people.json --shown output_1"),
    "study costs": ("--hour 2.50", "--spend 500 --difference 5"),
    "study all": ("--recipe toy --dry-run", "--only rankings,transfer --seeds 1"),
    "bundle": ("toy-ppo-pool-seed42-a12a78", "sweep-1f02ab --out mine.zip"),
    "replay": ("mine.afarm.zip", "mine.afarm.zip --into again"),
    "study kl": ("--seeds 1,2,3", "--values ppo.kl_coef=0.01,0.1,1 --dry-run"),
    "study data-size": (
        "--method dpo --seeds 1,2,3",
        "--values rows.preference=1000,4000 --dry-run",
    ),
    "sft": ("--set sft.num_train_epochs=1", "--data mine.json --model HuggingFaceTB/SmolLM2-135M"),
    "sample": ("--set sample.n=4", "--policy ppo"),
    "annotate": ("--annotator gpt4 --judge openai:gpt-4o", "--label-noise 0 --dry-run"),
    "fit-reward": ("--set bradley_terry.num_train_epochs=2", "--annotator pool --label-noise 0.1"),
    "train": ("--method dpo --set dpo.beta=0.2", "--method ppo --dry-run"),
    "report": ("", "toy-ppo-pool-seed42-1a2b3c"),
    "evaluate": ("mine.json --reference theirs.json --judge openai:gpt-4o", "--method dpo --seed 1"),
    "export": ("toy-dpo-pool-seed42-1a2b3c policy/", "toy-dpo-pool-seed42-1a2b3c --push-to-hub me/policy --private"),
    "leaderboard": ("", "afarm-runs leaderboard.csv --output board.html"),
    "diff": ("toy-ppo-pool-seed42-1a2b3c toy-dpo-pool-seed42-4d5e6f", "one/run.json other/run.json --flips 3"),
    "drift": ("afarm-runs/runs/NAME/outputs.jsonl --dry-run", "labels.jsonl --judge openai:gpt-4o --budget 1"),
    "cost": ("--judge openai:gpt-4o", "mine.json --reference theirs.json --judge openai:gpt-4o"),
    "memory": ("--recipe paper --gpus 8", "--recipe paper --set ppo.lora={} --set backend.dtype=bfloat16"),
    "view": ("", "afarm-runs --export pages"),
    "ledger": ("", "--json"),
    "plugins": ("", "--json"),
    "recipes": ("", "toy"),
    "settings": ("ppo", "dpo --recipe paper"),
    "cluster check": ("--launcher local:2", "--launcher ray:10.0.0.1:6379 --output-dir /shared/runs"),
    "artifacts list": ("", "--output-dir afarm-runs"),
    "artifacts gc": ("", "--yes --days 30"),
    "artifacts why": ("1a2b3c4d", "1a2b --output-dir afarm-runs"),
    "artifacts verify": ("", "1a2b3c4d"),
    "annotators compare": ("labels.jsonl", "gpt4.json --humans people.json"),
    "judge fit": ("annotations.json --out mine", "people.jsonl --out mine --embeddings ./minilm --licence MIT"),
    "best-of-n": ("--n 1 --n 4", "--n 16 --seed 1"),
}
"""Two ways to call each command, without the command itself."""

WIDEST = 200
"""Characters of a command's line in its group's help."""

FINDINGS: Mapping[str, str] = {
    "Value error, ": "",
    "Input should be a valid integer.*": "must be a whole number",
    "Input should be a (valid|finite) number.*": "must be a number",
    "Input should be greater than or equal to": "must be at least",
    "Input should be less than or equal to": "must be at most",
    "Input should be": "must be",
}
"""Findings of pydantic about options, as regular expressions, in plain words."""

NAMED_DEFAULT = re.compile(r"\[default: \(([^)]*)\)")
"""A default in words, which Typer puts in brackets."""


def arrange(app: typer.Typer) -> None:
    """Let every command of an application, and of its groups, have these pages."""
    for command in app.registered_commands:
        if not issubclass(command.cls or TyperCommand, Page):
            command.cls = Page
    for group in app.registered_groups:
        group.cls = GroupPage
        if group.typer_instance is not None:
            arrange(group.typer_instance)


class GroupPage(TyperGroup):
    """A group whose help gives each command its whole line."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        rows = [(name, command.get_short_help_str(WIDEST)) for name, command in self.commands.items()]
        with formatter.section("Commands"):
            formatter.write_dl(rows)


class Page(TyperCommand):
    """A command whose help has panels of options and examples, and whose errors are in plain words."""

    def make_context(self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any) -> Any:
        try:
            return super().make_context(info_name, args, parent, **extra)
        except typer.BadParameter as error:
            error.message = plain_words(error.message)
            if error.param is not None and error.param.param_type_name == "argument":
                error.param_hint = in_usage(error.param).strip("[].")
            raise

    def get_params(self, ctx: Any) -> list[Any]:
        params: list[Any] = super().get_params(ctx)
        return params

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """Leave out hidden arguments: they are there to be refused."""
        arguments = [param for param in self.get_params(ctx) if param.param_type_name == "argument"]
        return [self.options_metavar or "", *(in_usage(param) for param in arguments if not param.hidden)]

    def format_options(self, ctx: Any, formatter: Any) -> None:
        panels: dict[str, list[tuple[str, str]]] = {"Arguments": [], "Options": [], **{name: [] for name in PANELS}}
        panel_of = {name: panel for panel, names in PANELS.items() for name in names}
        for param in self.get_params(ctx):
            record = param.get_help_record(ctx)
            if record is None:
                continue
            is_argument = param.param_type_name == "argument"
            panel = "Arguments" if is_argument else panel_of.get(param.name, "Options")
            panels[panel].append((in_plain_words(param, record[0]), bounds_in_words(record[1])))
        for name, rows in panels.items():
            if rows:
                with formatter.section(name):
                    formatter.write_dl(rows)

    def examples(self, command: str) -> Sequence[str]:
        return EXAMPLES.get(command, ())

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        _, _, path = ctx.command_path.partition(" ")
        command = path or str(self.name)
        if examples := self.examples(command):
            with formatter.section("Examples"):
                for example in examples:
                    formatter.write(f"{'':{formatter.current_indent}}afarm {command} {example}".rstrip() + "\n")
        super().format_epilog(ctx, formatter)


def plain_words(finding: str) -> str:
    """Write a finding about an option's value as those about settings are: "must be a whole number"."""
    for pattern, words in FINDINGS.items():
        finding = re.sub(pattern, words, finding)
    return finding


def bounds_in_words(text: str) -> str:
    """Write the default and the bounds that end a line of help as a sentence would: "0 to 0.5"."""
    text = NAMED_DEFAULT.sub(r"[default: \1", text)
    text = re.sub(r"([\d.]+)<=x<=([\d.]+)\]$", r"\1 to \2]", text)
    return re.sub(r"x>=([\d.]+)\]$", r"at least \1]", text)


class MethodPage(Page):
    """The page of a method's training."""

    def examples(self, command: str) -> Sequence[str]:
        return "--seed 1", "--recipe paper --dry-run"


def in_usage(argument: Any) -> str:
    """An argument as it stands in the line of usage: NAME, or [NAME]... if there may be none or several."""
    word = (argument.metavar or argument.name).strip("[].").upper()
    return f"{word if argument.required else f'[{word}]'}{'...' if argument.nargs != 1 else ''}"


def in_plain_words(param: Any, declared: str) -> str:
    """Name an option's value in a word: `--seed N`, not its type in Python."""
    if param.param_type_name == "argument":
        return in_usage(param)
    if param.metavar or "<" not in declared:
        return declared
    names, _, kind = declared.partition("<")
    kind = kind.rstrip(">").removeprefix("list[").rstrip("]").removesuffix(" range")
    word = VALUES.get(param.name, kind if "|" in kind else TYPES.get(kind.lower(), kind.upper()))
    return f"{names}{word}"
