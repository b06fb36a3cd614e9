"""Rewards as functions of one's own, and weighted sums of reward models."""

from __future__ import annotations

import hashlib
from contextlib import suppress
from typing import Any, Literal

from afarm import Config, Register, hookimpl, open_user_file, setting


class FunctionConfig(Config):
    """The arguments of a reward function."""

    columns: str = setting(
        "",
        "a file with a prompt and further columns in each row, such as the right answer, which the function is called "
        "with as keyword arguments",
    )
    format: Literal["text", "chat"] = setting(
        "text", "what prompts and completions are: texts, or lists of messages as TRL's conversational data have them"
    )

    def result_fields(self) -> dict[str, Any]:
        """See `Config.result_fields`; of the file of columns it is the content that counts."""
        return {**super().result_fields(), "columns": _file_digest(self.columns)}


def _file_digest(source: str) -> str:
    """Digest a file; what is none, or is not to be opened, stands for itself."""
    with suppress(OSError), open_user_file(source) as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()[:24]
    return source


@hookimpl
def register_reward_models(register: Register) -> None:
    register(
        "function",
        "afarm_plugins.function_rewards.function:FunctionReward",
        config=FunctionConfig,
        summary="a Python function, as TRL's: function:FILE.py:NAME, or function:package.module:NAME",
        spec="FILE.py:NAME",
    )
    register(
        "sum",
        "afarm_plugins.function_rewards.weighted_sum:WeightedSum",
        summary="a weighted sum of reward models: sum:NAME=WEIGHT,NAME=WEIGHT",
        spec="NAME=WEIGHT,…",
    )
