"""What chat templates are told and take: the date, the thinking switch, system turns."""

from __future__ import annotations

from datetime import date
from pathlib import Path
from typing import Any

import pytest
from tiny_models import make_policy, make_tokenizer
from transformers.utils import chat_template_utils

from afarm.backend import Backend, PromptTemplate, render_chat
from afarm.backend.chat_templates import settle_template
from afarm.core.config import BackendConfig
from afarm.core.errors import ModelError
from afarm.core.records import Instruction, JudgedPair, Message, Pair, Preference
from afarm.experiment.export import trl_rows

TURNS = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}"
SYSTEM = [{"role": "system", "content": 'Be "kind".\n\tYes.'}, {"role": "user", "content": "Hi"}]


def rendered(template: str, turns: Any = SYSTEM, **settings: Any) -> str:
    tokenizer = make_tokenizer()
    tokenizer.chat_template = settle_template(template, BackendConfig(**settings))
    assert settle_template(tokenizer.chat_template, BackendConfig(date=date(1999, 1, 1))) == tokenizer.chat_template
    return render_chat(tokenizer, turns, "a model")[0]


@pytest.mark.parametrize(
    ("template", "prompt"),
    [
        ("{{ strftime_now('%d %b %Y') }}", "03 Feb 2021"),
        (
            "{% if strftime_now is defined %}{% set d = strftime_now('%B %-d, %Y') %}{{ d }}{% endif %}",
            "February 3, 2021",
        ),
        (
            "{% if not date_string is defined %}{% set date_string = strftime_now('%y') %}{% endif %}{{ date_string }}",
            "21",
        ),
        ("{% set form = '%Y-%m-%d' %}{{ strftime_now(format=form) }}", "2021-02-03"),
        ("{%- macro head() %}{{ strftime_now('%Y') }}{% endmacro -%}\n  {{ head() }}", "2021"),
        ("\n  {% if true %}\n{{ '%d%%' }}{% endif %}{{ strftime_now('%d') }}", "\n%d%%03"),
    ],
)
def test_a_template_is_told_the_date_that_is_set_on_any_day(
    monkeypatch: pytest.MonkeyPatch, template: str, prompt: str
) -> None:
    monkeypatch.setattr(chat_template_utils, "datetime", None)  # nobody looks at the clock
    assert rendered(template + "{#Be kind#}", [{"role": "user", "content": "Hi"}], date="2021-02-03") == prompt


SWITCHED = [
    "{% if enable_thinking is defined and enable_thinking is false %}none{% else %}thoughts{% endif %}",
    "{% if enable_thinking | default(true) %}thoughts{% else %}none{% endif %}",
    "{% macro end() %}{% if thinking is false %}none{% else %}thoughts{% endif %}{% endmacro %}{{ end() }}",
]


@pytest.mark.parametrize("template", SWITCHED)
def test_the_thinking_switch_is_off_unless_it_is_set(template: str) -> None:
    turns = [{"role": "user", "content": "Hi"}]
    assert rendered(template, turns) == "none"
    assert rendered(template, turns, thinking=True) == "thoughts"


def test_only_settings_that_differ_are_in_keys_and_other_templates_stay_as_they_are() -> None:
    assert BackendConfig().result_fields().keys() == {"dtype", "mixed_precision", "sampler"}
    assert BackendConfig(date="2025-01-02", thinking=True).result_fields()["date"] == "2025-01-02"
    assert settle_template(TURNS, BackendConfig(date="2025-01-02", thinking=True)) == TURNS
    with pytest.raises(ValueError, match="date"):
        BackendConfig(date="today")


MERGED = '<user>Be "kind".\n\tYes.\n\nHi'


@pytest.mark.parametrize(
    ("template", "prompt"),
    [
        (TURNS, '<system>Be "kind".\n\tYes.<user>Hi'),
        ("{% if messages[0].role == 'system' %}{{ raise_exception('no system') }}{% endif %}" + TURNS, MERGED),
        ("{% for m in messages if m.role != 'system' %}<{{ m.role }}>{{ m.content }}{% endfor %}", MERGED),
        ("{% for m in messages %}{{ {'user': '<user>'}[m.role] + m.content }}{% endfor %}", MERGED),
        ("{% for m in messages %}{{ m.content | tojson }}{% endfor %}", '"Be \\"kind\\".\\n\\tYes.""Hi"'),
    ],
)
def test_a_system_text_stands_before_the_users_where_the_template_takes_no_system(template: str, prompt: str) -> None:
    assert rendered(template) == prompt


def test_exported_pairs_have_the_turns_that_the_template_takes() -> None:
    tokenizer = make_tokenizer()
    tokenizer.chat_template = "{% if messages[0].role == 'system' %}{{ raise_exception('no') }}{% endif %}" + TURNS
    pair = Pair(Instruction("w2", messages=(Message("system", "w1"),)), "w3", "w4")
    [row] = trl_rows([JudgedPair(pair, Preference(pair.id, 0.0))], PromptTemplate("chat", tokenizer))
    assert row["prompt"] == [{"role": "user", "content": "w1\n\nw2"}]


def test_a_prompt_that_a_template_refuses_is_named_before_any_is_encoded() -> None:
    tokenizer = make_tokenizer()
    tokenizer.chat_template = "{% if messages | length > 1 %}{{ raise_exception('one turn only') }}{% endif %}" + TURNS
    template = PromptTemplate("chat", tokenizer, "org/single")
    earlier = (Message("user", "w1"), Message("assistant", "w2"))
    with pytest.raises(ModelError, match=r"chat template of org/single refuses the prompt 'w7 w8': one turn only"):
        template.encode_prompts([Instruction("w5"), Instruction("w7 w8", messages=earlier)])


def test_a_saved_policy_keeps_the_date_that_it_was_trained_with(tmp_path: Path) -> None:
    policy = make_policy()
    policy.tokenizer.chat_template = "<q> {{ strftime_now('w%d') }} {{ messages[0].content }} <a>"
    policy.save(tmp_path / "model")
    loaded = Backend(BackendConfig(device="cpu", date="2021-02-13")).load_policy(str(tmp_path / "model"))
    loaded.export(tmp_path / "export")
    exported = Backend(BackendConfig(device="cpu")).load_policy(str(tmp_path / "export"))
    prompts = [one.template.render(Instruction("w1")) for one in (loaded, exported)]
    assert prompts == ["<q> w13 w1 <a>"] * 2
