from __future__ import annotations

import pytest
from tiny_models import make_instructions, make_tokenizer

from afarm.backend import PromptTemplate
from afarm.core.errors import ModelError
from afarm.core.records import Instruction, Message


def test_chat_uses_the_tokenizers_own_template_with_input_and_earlier_turns() -> None:
    template = PromptTemplate("auto", make_tokenizer())
    assert template.name == "chat"
    instruction = Instruction("w1 w2", "w3", messages=(Message("user", "w0"), Message("assistant", "w4")))
    assert template.render(instruction).split() == ["<q>", "w0", "<q>", "w4", "<q>", "w1", "w2", "w3", "<a>"]
    assert template.encode_prompts([instruction]) == [[3, 5, 3, 9, 3, 6, 7, 8, 4]]


def test_alpaca_has_a_section_for_the_input_only_where_there_is_one() -> None:
    template = PromptTemplate("alpaca", make_tokenizer(chat=False))
    plain, with_input = template.render(Instruction("Count.")), template.render(Instruction("Count.", "a b"))
    assert plain.endswith("### Instruction:\nCount.\n\n### Response:\n")
    assert with_input.endswith("### Instruction:\nCount.\n\n### Input:\na b\n\n### Response:\n")
    assert "input" not in plain.lower()


def test_a_model_without_chat_template_is_refused_with_the_setting_that_helps() -> None:
    for name in ("auto", "chat"):
        with pytest.raises(ModelError, match="--set prompt_template=alpaca"):
            PromptTemplate(name, make_tokenizer(chat=False))


def test_a_tokenizer_without_end_of_sequence_is_refused() -> None:
    tokenizer = make_tokenizer()
    tokenizer.eos_token = None
    with pytest.raises(ModelError, match="end-of-sequence"):
        PromptTemplate("chat", tokenizer)


def test_responses_are_closed_by_eos() -> None:
    template = PromptTemplate("auto", make_tokenizer())
    assert template.encode_responses(["w0 w1", ""]) == [[5, 6, 1], [1]]
    assert template.encode_responses(["w0 w1"], ended=False) == [[5, 6]]
    assert template.encode_responses(["w0", "w1"], [False, True]) == [[5], [6, 1]]


def test_too_long_cuts_the_prompts_beginning_then_the_responses_end_without_eos() -> None:
    template = PromptTemplate("auto", make_tokenizer())
    instruction = Instruction("w0 w1 w2")  # <q> w0 w1 w2 <a>: 5 tokens
    assert template.encode([instruction], ["w3"], 7) == ([([3, 5, 6, 7, 4], [8, 1])], 0)
    assert template.encode([instruction], ["w3"], 5) == ([([6, 7, 4], [8, 1])], 1)
    assert template.encode([instruction], ["w3 w4 w5"], 3) == ([([4], [8, 9])], 1)


def test_no_instructions_no_prompts() -> None:
    template = PromptTemplate("auto", make_tokenizer())
    assert template.encode_prompts([]) == []
    assert template.encode_responses([]) == []
    assert len(template.encode_prompts(make_instructions(3))) == 3
