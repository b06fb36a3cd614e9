"""What chat templates are told and take, for policies, reward models, exports and local judges."""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence
from typing import Any

from transformers import PreTrainedTokenizerBase

from afarm.core.config import BackendConfig
from afarm.core.errors import ModelError
from afarm.core.records import Row
from afarm.storage.conversations import without_system_turn

logger = logging.getLogger(__name__)

SETTLED = "{# the date and the thinking switch, as set when afarm loaded the model #}"

_SAID = set[str]()
"""The templates of which it was said that they take no system turn."""


def settle_template(template: str, config: BackendConfig) -> str:
    """Write the configured date and thinking switch into a chat template that asks for them.

    It then renders the same on any day, in afarm and in what loads an export. A template that was settled before, such
    as an export's, stays as it is.
    """
    head, thinking = "", str(config.thinking).lower()
    if template.startswith(SETTLED):
        return template
    if "thinking" in template:
        head += "".join(f"{{% set {n} = {n} | default({thinking}) %}}" for n in ("enable_thinking", "thinking"))
    if "strftime_now" in template:
        directives = sorted(set(re.findall(r"%-?[a-zA-Z]", template)))
        replaced = "".join(f" | replace('{part}', '{config.date.strftime(part)}')" for part in directives)
        head += f"{{% macro strftime_now(format) %}}{{{{ format{replaced} }}}}{{% endmacro %}}"
    return f"{SETTLED}{head}\n{template}" if head else template  # the line's end belongs to the block before it


def render_chat(
    tokenizer: PreTrainedTokenizerBase, turns: Sequence[Row], model: str, *, answer: bool = True, **variables: Any
) -> tuple[str, Sequence[Row]]:
    """Render chat turns (`role`, `content`) by the tokenizer's template: (text, the turns it shows).

    The text ends where the next answer begins, if there is to be an `answer`. The text of a system turn that the
    template refuses or leaves out is put before the first other turn's. Raises `ModelError`, naming `model` and the
    prompt, if the template refuses that as well.
    """
    system = " ".join(turn["content"] for turn in turns if turn["role"] == "system")
    words = max(re.findall(r"[\w ]+", system), key=len, default="").strip()  # which no template escapes
    try:
        text = tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=answer, **variables)
        if words in text:
            return text, turns
    except Exception as error:  # whatever a template's expressions may raise
        if not system:
            prompt = next((turn["content"] for turn in reversed(turns) if turn["role"] == "user"), "")
            raise ModelError(
                f"the chat template of {model} refuses the prompt {prompt[:80]!r}: {error}. Change or leave "
                "out that row, or choose another template: --set prompt_template=alpaca"
            ) from error
    if (template := str(tokenizer.chat_template)) not in _SAID:
        _SAID.add(template)
        logger.warning("%s: its chat template takes no system turn: the text stands before the user's", model)
    return render_chat(tokenizer, without_system_turn(turns), model, answer=answer, **variables)
