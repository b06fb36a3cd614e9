"""Evaluator directories written for tests, in the form of AlpacaEval's: a `configs.yaml` and its templates."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

COMPARE = """\
<|im_start|>system
You compare answers. Say nothing else.
<|im_end|>
<|im_start|>user
Task: {instruction}

First answer: {output_1}

Second answer: {output_2}
<|im_end|>
"""

RANK: dict[str, Any] = {"fn_completion_parser": "ranking_parser"}
WEIGH: dict[str, Any] = {
    "fn_completion_parser": "logprob_parser",
    "completion_parser_kwargs": {"numerator_token": "m", "denominator_tokens": ["m", "M"], "is_binarize": False},
    "completion_key": "completions_all",
}
LETTERS: dict[str, Any] = {
    "completion_parser_kwargs": {"outputs_to_match": {1: r"(?:^|\n) ?Output \(a\)", 2: r"(?:^|\n) ?Output \(b\)"}}
}


def entry(
    template: str = "prompt.txt", *, directory: str = "mine", asked: dict[str, Any] | None = None, **own: Any
) -> Any:
    """One annotator's settings: a strong model at temperature 0 unless said otherwise."""
    sampling = {"model_name": "gpt-4-1106-preview", "max_tokens": 100, "temperature": 0, **(asked or {})}
    return {
        "prompt_template": f"{directory}/{template}",
        "fn_completions": "openai_completions",
        "completions_kwargs": sampling,
        **own,
    }


def weighted() -> Any:
    """As the second AlpacaEval asks: one token, with the five likeliest."""
    return entry(asked={"max_tokens": 1, "temperature": 1, "logprobs": True, "top_logprobs": 5}, **WEIGH)


def write(base: Path, configs: Any, templates: dict[str, str] | None = None, *, directory: str = "mine") -> str:
    """Write a directory under `base` and return its path, as `alpaca_eval:` takes it."""
    path = base / directory
    path.mkdir(parents=True, exist_ok=True)
    (path / "configs.yaml").write_text(yaml.safe_dump(configs, sort_keys=False), encoding="utf-8")
    for name, text in (templates or {"prompt.txt": COMPARE}).items():
        (path / name).write_text(text, encoding="utf-8")
    return str(path)


def batch_template(size: int) -> str:
    """A chat about `size` comparisons at once."""
    parts = [f"{n}. {{instruction}}\n(a) {{output_1}}\n(b) {{output_2}}\n" for n in range(1, size + 1)]
    return f"<|im_start|>user\n{''.join(parts)}<|im_end|>\n"
