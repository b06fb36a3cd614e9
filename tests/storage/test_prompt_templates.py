"""Prompt templates of one's own: read, checked and rendered."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from jinja2 import Environment, TemplateRuntimeError

from afarm.core.errors import ConfigError
from afarm.core.records import Instruction, Message
from afarm.storage.prompt_templates import answer_cues, foreign_templates, read_prompt_template, render_template

PAIR = {"prompt_inputs": "Do: {instruction}\nWith: {input}\nSo:", "prompt_noinputs": "Do: {instruction}\nSo:"}
JINJA = """{% for turn in messages %}{{ turn.role }}: {{ turn.content }}
{% endfor %}Task: {{ instruction }}{% if input %} ({{ input }}){% endif %}
Answer:
"""


def test_a_name_is_a_name() -> None:
    assert [read_prompt_template(name) for name in ("auto", "chat", "alpaca")] == ["auto", "chat", "alpaca"]


def test_a_pair_is_filled_in_one_pass(tmp_path: Path) -> None:
    (tmp_path / "pair.json").write_text(json.dumps(PAIR))
    texts = read_prompt_template(str(tmp_path / "pair.json"))
    assert texts == PAIR
    assert render_template(texts, Instruction("Count.")) == "Do: Count.\nSo:"
    hostile = Instruction("Print {input} and {0}.", "{instruction}")
    assert render_template(texts, hostile) == "Do: Print {input} and {0}.\nWith: {instruction}\nSo:"
    with pytest.raises(ConfigError, match="earlier turns"):
        render_template(texts, Instruction("Count.", messages=(Message("user", "Hi"),)))


def test_a_jinja_file_has_the_input_and_earlier_turns(tmp_path: Path) -> None:
    (tmp_path / "own.jinja").write_text(JINJA)
    texts = read_prompt_template(str(tmp_path / "own.jinja"))
    asked = Instruction("Count {{ 1 }}.", "to 3", messages=(Message("user", "Hi"),))
    assert render_template(texts, asked) == "user: Hi\nTask: Count {{ 1 }}. (to 3)\nAnswer:"


@pytest.mark.parametrize(
    ("name", "text", "problem"),
    [
        ("own.jinja", "{{ instruction", "line 1: "),
        ("own.jinja", "{{ instruction.__class__.__mro__ }}", "unsafe|undefined"),
        ("own.jinja", "{{ instructions }}", "'instructions' is undefined; it may use instruction, input and messages"),
        ("own.jinja", "{{ instruction }}", "do not show input"),
        ("own.jinja", "{{ instruction }} {{ input }}", "do not show messages"),
        ("own.jinja", "{{ instruction }}{{ 1 // 0 }}", "ZeroDivisionError"),
        ("own.jinja", "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}", "too much for"),
        ("own.jinja", "{{ instruction * 3000000000 }}", r"\* is for two numbers"),
        ("own.json", "[]", "prompt_inputs and prompt_noinputs"),
        ("own.json", '{"prompt_inputs": "{instruction}", "prompt_noinputs": "{instruction}"}', "do not show input"),
        ("own.json", "{", "own.json: Expecting"),
        ("own.txt", "", "neither auto, chat, alpaca, dialogue, summary nor a .jinja or .json file"),
    ],
)
def test_a_file_that_cannot_serve_is_refused_with_its_name_and_why(
    tmp_path: Path, name: str, text: str, problem: str
) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(ConfigError, match=problem) as caught:
        read_prompt_template(str(tmp_path / name))
    assert name in str(caught.value)


def test_a_missing_file_and_a_misspelt_name_are_told_apart(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"lost\.jinja cannot be read: No such file"):
        read_prompt_template(str(tmp_path / "lost.jinja"))
    with pytest.raises(ConfigError, match="Did you mean 'alpaca'"):
        read_prompt_template("alpacca")


def test_a_template_within_its_bounds_writes_what_jinja_writes() -> None:
    text = """{% macro shout(x) %}{{ x.upper() ~ "!" ~ 1 }}{% endmacro %}
{% for word in words %}{{ loop.index }}/{{ loop.length }} {{ shout(word) }}{{ ", " if not loop.last }}{% endfor %}
{% for word in [] %}{% else %}none{% endfor %} {% for number in range(3) recursive %}{{ number }}{% endfor %}
{% set all %}{{ words | map("title") | join("; ") }}{% endset %}{{ all | replace("B", "é") | replace("", "_") }}
{{ 2 * 3 + 7 % 4 }} {{ [1] + [2] }} {{ "a" + "b" }} {{ words | join(", ", attribute=0) }} {{ cycler(1, 2).next() }}
{{ dict(a=1).items() | list }} {{ none }} {{ true }} {{ words | length }} {{ words | sort(reverse=true) | first }}"""
    words = ["alpha", "beta"]
    for _ in range(2):
        templates = foreign_templates()
        assert templates.from_string(text).render(words=words) == Environment().from_string(text).render(words=words)


LONG = "{% set x = range(9999) | list %}{% set t = x | join %}{% for i in range(99999) %}"
DOUBLED = "{% set ns = namespace(a=['x']) %}{% for i in range(99) %}{% set ns.a = [ns.a, ns.a] %}{% endfor %}"
COSTLY = {
    "sort": "{% for i in range(9999) %}{{ range(99999) | sort | length }}{% endfor %}",
    "unique": "{% for i in range(9999) %}{{ range(99999) | unique | list | length }}{% endfor %}",
    "map": "{% for i in range(9999) %}{{ range(99999) | map('string') | max }}{% endfor %}",
    "no loop": "{{ range(99999) | reverse | list | length }}" * 200,
    "reject": "{{ range(99999) | reject('in', range(99999) | list) | list }}",
    "slice": LONG + "{{ x == x[1:] }}{% endfor %}",
    "in a list": LONG + "{{ i in x }}{% endfor %}",
    "is in": LONG + "{{ i is in x }}{% endfor %}",
    "in a text": LONG + "{{ 'zz' in t }}{% endfor %}",
    "method": LONG + "{{ t.strip('0123456789') }}{% endfor %}",
    "call": LONG + "{{ dict(a=x) | length }}{% endfor %}",
    "shown": DOUBLED + "{{ ns.a }}",
    "string": DOUBLED + "{{ ns.a | string | length }}",
    "json": DOUBLED + "{{ ns.a | json }}",
    "equal": DOUBLED + "{{ ns.a == [ns.a, ns.a] }}",
}


@pytest.mark.parametrize("name", COSTLY)
def test_what_a_filter_a_test_or_a_comparison_takes_is_paid_for(name: str) -> None:
    with pytest.raises(TemplateRuntimeError, match="too much for a prompt"):
        foreign_templates().from_string(COSTLY[name]).render()


def test_the_budget_is_a_prompts_and_not_a_templates() -> None:
    template = foreign_templates().from_string("{% for i in range(2000) %}x{% endfor %}")
    assert {len(template.render()) for _ in range(100)} == {2000}


@pytest.mark.parametrize(
    ("spec", "text", "is_rendered"),
    [
        ("auto", "### Instruction:\nName a fish.\n\n### Response:\n", True),
        ("alpaca", "Human: Name a fish.\n\nAssistant:", True),
        ("auto", "Name a fish. Answer:", False),
        ("own.jinja", "Name a fish.\nAnswer:", True),
        ("own.jinja", "Name a fish.\n\nTL;DR: ", True),
        ("auto", "What does '### Response:' mean?", False),
        ("as-is.json", "Human: Name a fish.\n\nAssistant:", False),
        ("short.jinja", "Name a fish?", False),
    ],
)
def test_a_rendered_prompt_ends_as_a_template_does(spec: str, text: str, is_rendered: bool, tmp_path: Path) -> None:
    turns = "{% for turn in messages %}{{ turn.content }}{% endfor %}"
    for name, before, after in (("own", "", "\nAnswer:"), ("short", "Q: ", "?")):
        (tmp_path / f"{name}.jinja").write_text(f"{before}{turns}{{{{ instruction }}}}{{{{ input }}}}{after}")
    as_is = {"prompt_noinputs": "{instruction}", "prompt_inputs": "{instruction}{input}"}
    (tmp_path / "as-is.json").write_text(json.dumps(as_is))
    named = str(tmp_path / spec) if "." in spec else spec
    assert text.rstrip().endswith(answer_cues(named)) == is_rendered


def test_templates_for_base_models_ship_and_show_everything() -> None:
    turns = (Message("user", "Eels?"), Message("assistant", "Yes."))
    dialogue = render_template(read_prompt_template("dialogue"), Instruction("And carps?", "In ponds.", messages=turns))
    assert dialogue == "Human: Eels?\n\nAssistant: Yes.\n\nHuman: And carps?\n\nIn ponds.\n\nAssistant:"
    summary = render_template(read_prompt_template("summary"), Instruction("Sum up.", "A {{ text }}."))
    assert summary == "A {{ text }}.\n\nSum up.\n\nTL;DR:"
    with pytest.raises(ConfigError, match="Did you mean 'dialogue'"):
        read_prompt_template("dialog")
