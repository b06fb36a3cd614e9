"""Pools of the user's own: what the file means, and that an error names file, member and field."""

import json
from collections import Counter

import pytest
from places import DOCS
from scripted_ask import ScriptedAsk, by_lot, make_pairs

from afarm import Farm
from afarm.core.errors import ConfigError, JudgeError
from afarm.core.interfaces import AnnotateContext
from afarm_plugins.annotators.pool import PoolAnnotator
from afarm_plugins.annotators.prompt_library import PromptSpec, load_member
from afarm_plugins.annotators.settings import PoolConfig

POOL = """
members: [gpt4_4, gpt4_4, grumpy, plain]
annotators:
  grumpy:
    like: gpt4_3
    persona: You have seen it all.
  plain:
    role: light
    prompt: plain
    answer_format: single
    batch_size: 1
    max_tokens: 5
    demonstrations: [[fish, capital]]
    verdicts: {capital: a}
demonstrations:
  fish: {instruction: Name a fish., first: Eel., second: Oak., better: a, reason: An oak is a tree.}
"""
TEMPLATE = """
{% from "blocks.jinja" import comparison with context %}
{% call turn("user") %}
Choose.
{% for d in demonstrations %}
{{ comparison(d.comparison) }}
Better: Output ({{ d.better }})

{% endfor %}
{{ comparison(comparisons[0]) }}
Better:
{% endcall %}
"""


def multiplied(form):
    """Twelve values, each with nine aliases of the one before in it: 9^11 written out."""
    lines = ["a0: &a0 {x: 1}", *(f"a{n}: &a{n} " + form.format(", ".join(9 * [f"*a{n - 1}"])) for n in range(1, 12))]
    return "\n".join(lines)


def write(directory, pool=POOL, template=TEMPLATE):
    (directory / "plain.jinja").write_text(template, encoding="utf-8")
    path = directory / "mine.yaml"
    path.write_text(pool, encoding="utf-8")
    return str(path)


def build(path, **settings):
    return PoolAnnotator(PoolConfig(**settings), path)


@pytest.mark.parametrize(
    "reach",
    [
        "{{ cycler.__init__.__globals__.os.popen('touch LEAK').read() }}",
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ turn.__globals__['__builtins__']['open']('LEAK', 'w') }}",
        "{{ '{0.__class__.__init__.__globals__}'.format(comparisons[0]) }}",
        "{{ comparisons[0]|attr('__class__') }}",
        "{% set _ = demonstrations.append(1) %}",
    ],
)
def test_a_template_reaches_no_further_than_the_text(reach, tmp_path):
    """Pools are shared as data: a template that reaches into Python is refused by name, and nothing of it runs."""
    leak = tmp_path / "leak"
    path = write(tmp_path, template=TEMPLATE.replace("Choose.", reach.replace("LEAK", str(leak))))
    with pytest.raises(ConfigError, match=r"mine\.yaml: plain: prompt: plain\.jinja: .*"):
        build(path)
    assert not leak.exists()


def test_half_a_character_in_a_pool_is_named(tmp_path):
    path = write(tmp_path, json.dumps({"annotators": {"half \ud83d": {"like": "gpt4_4"}}}))
    with pytest.raises(ConfigError, match=r"mine\.yaml has '\\ud83d', half of a character"):
        build(path)


@pytest.mark.parametrize(
    "endless",
    [
        "{% for i in range(99999) %}{% for j in range(99999) %}x{% endfor %}{% endfor %}",
        "{% macro f(n) %}{{ f(n - 1) if n }}{{ f(n - 1) if n }}{% endmacro %}{{ f(60) }}",
        "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
        "{% set n = namespace(x='ab') %}{% for i in range(60) %}{% set n.x = n.x ~ n.x %}{% endfor %}",
        "{% set n = namespace(x='ab') %}{% for i in range(60) %}{% set n.x = n.x + n.x %}{% endfor %}",
        "{% set n = namespace(x='a') %}{% for i in range(9) %}{% set n.x = n.x | replace('a', 'a,a,a,a,a,a,a,a,a,a') %}"
        "{% endfor %}",
        "{{ 'x' * 3000000000 }}",
        "{{ 3000000000 * [1] }}",
        "{{ 9 ** 9 ** 9 }}",
        "{{ '%3000000000s' % 'x' }}",
        "{{ '{:>3000000000}'.format('x') }}",
        "{{ 'x'.ljust(3000000000) }}",
        "{{ 'x' | center(3000000000) }}",
        "{{ range(3000000000) | list }}",
        "{{ (1).to_bytes(3000000000) }}",
        "{{ 1 // 0 }}",
    ],
)
def test_a_template_without_end_or_measure_is_refused(endless, tmp_path):
    path = write(tmp_path, template=TEMPLATE.replace("Choose.", endless))
    with pytest.raises(ConfigError, match=r"mine\.yaml: plain: prompt: plain\.jinja: .*"):
        build(path)


def test_a_template_that_reaches_out_for_some_pairs_only_is_stopped_at_those(tmp_path):
    reach = "{% if 'Task 1' in comparisons[0].instruction.instruction %}{{ cycler.__init__.__globals__ }}{% endif %}"
    annotator = build(write(tmp_path, POOL.replace("[gpt4_4, gpt4_4, grumpy, plain]", "[plain]"), TEMPLATE + reach))
    with pytest.raises(JudgeError, match=r"plain: prompt: plain\.jinja: .*sandbox"):
        annotator.annotate(make_pairs(3), AnnotateContext(0, ScriptedAsk(lambda c: True)))


@pytest.mark.parametrize("include", ["link.jinja", "below/link.jinja", "linked/secret.jinja"])
def test_a_link_out_of_the_directory_of_a_pool_is_not_followed(include, tmp_path):
    """Archives and repositories of pools bring links as well, and what they point to would be sent to a judge."""
    pool, outside = tmp_path / "pool", tmp_path / "outside"
    (pool / "below").mkdir(parents=True)
    outside.mkdir()
    (outside / "secret.jinja").write_text("SECRET")
    for link in ("link.jinja", "below/link.jinja"):
        (pool / link).symlink_to(outside / "secret.jinja")
    (pool / "linked").symlink_to(outside)
    path = write(pool, template=TEMPLATE.replace("Choose.", f'{{% include "{include}" %}}'))
    with pytest.raises(ConfigError, match=rf"plain\.jinja: {include} is a link out of the pool's directory") as caught:
        build(path)
    assert "SECRET" not in str(caught.value)


def test_a_link_within_the_directory_of_a_pool_is_followed(tmp_path):
    (tmp_path / "below").mkdir()
    (tmp_path / "below" / "words.jinja").write_text("Choose.")
    (tmp_path / "link.jinja").symlink_to("below/words.jinja")
    path = write(tmp_path, template=TEMPLATE.replace("Choose.", '{% include "link.jinja" %}'))
    [member] = [member for member in build(path).members if member.name == "plain"]
    assert dict(member.sources)["link.jinja"] == "Choose."


def test_a_template_that_leaves_an_output_out_is_refused(tmp_path):
    blind = TEMPLATE.replace("comparison(comparisons[0])", "comparisons[0].first")
    with pytest.raises(
        ConfigError, match=r"plain: prompt: plain.jinja: does not show .*\.second of .* without an input"
    ):
        build(write(tmp_path, template=blind))


def test_a_pool_draws_the_members_of_its_file_by_their_weights(tmp_path):
    ask = ScriptedAsk(by_lot)
    preferences = build(write(tmp_path)).annotate(make_pairs(1200), AnnotateContext(0, ask))
    members = Counter(p.member for p in preferences)
    assert set(members) == {"gpt4_4", "grumpy", "plain"}
    # 600, 300 and 300 expected; standard deviations of 17 and 15.
    assert abs(members["gpt4_4"] - 600) < 70
    assert abs(members["plain"] - 300) < 60


def test_a_member_of_the_file_has_its_own_template_demonstrations_and_verdicts(tmp_path):
    members = {member.name: member for member in build(write(tmp_path)).members}
    pair = make_pairs(1)[0]
    ask = ScriptedAsk(by_lot)
    PoolAnnotator(PoolConfig(), write(tmp_path, POOL.replace("gpt4_4, gpt4_4, grumpy, ", ""))).annotate(
        [pair], AnnotateContext(0, ask)
    )
    (request,) = ask.requests
    text = request.messages[0].content
    assert (request.role, request.max_tokens, request.annotator) == ("light", 5, "plain")
    assert text.startswith("Choose.\nInstruction:\nName a fish.\n")
    assert "Better: Output (a)\n\nInstruction:\nWhat is the capital of Australia?" in text
    assert text.count("Better: Output (a)") == 2  # `verdicts` turned the capital's
    assert members["grumpy"].spec == load_member("gpt4_3").spec.model_copy(update={"persona": "You have seen it all."})
    assert members["gpt4_4"] is load_member("gpt4_4")


def test_a_file_may_lie_at_home(tmp_path, monkeypatch):
    write(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert build("~/mine.yaml").identity == build(str(tmp_path / "mine.yaml")).identity


def test_members_left_out_are_all_that_are_defined(tmp_path):
    pool = POOL.replace("members: [gpt4_4, gpt4_4, grumpy, plain]", "")
    assert [m.name for m in build(write(tmp_path, pool)).members] == ["grumpy", "plain"]


def test_a_file_may_only_name_members(tmp_path):
    path = write(tmp_path, "members: [gpt4_1, chatgpt_4]")
    ask = ScriptedAsk(by_lot)
    build(path).annotate(make_pairs(30), AnnotateContext(0, ask))
    known = len(ask.compared)
    # What they learned in a pool they know alone.
    PoolAnnotator(PoolConfig(members=["gpt4_1"])).annotate(make_pairs(30), AnnotateContext(0, ask))
    assert known < len(ask.compared) < known + 30


def test_identity_and_fingerprints_change_with_the_file_and_its_templates_and_not_with_its_place(tmp_path):
    def found(pool=POOL, template=TEMPLATE):
        directory = tmp_path / str(len(list(tmp_path.iterdir())))
        directory.mkdir()
        annotator = build(write(directory, pool, template))
        return annotator.identity, {m.name: m.fingerprint() for m in annotator.members}

    identity, fingerprints = found()
    assert found() == (identity, fingerprints)
    changes = {
        "template": (POOL, TEMPLATE.replace("Choose.", "Choose!"), {"plain"}),
        "persona": (POOL.replace("seen it all", "seen nothing"), TEMPLATE, {"grumpy"}),
        "demonstration": (POOL.replace("Eel.", "Carp."), TEMPLATE, {"plain"}),
        "weights": (POOL.replace("gpt4_4, gpt4_4", "gpt4_4"), TEMPLATE, set()),
    }
    for name, (pool, template, changed) in changes.items():
        other, others = found(pool, template)
        assert other != identity, name
        assert {n for n in others if others[n] != fingerprints[n]} == changed, name
    assert PoolAnnotator(PoolConfig()).identity == ""


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("grumpy, plain]", "grumpi]", "members: no prompt annotator 'grumpi'. Did you mean 'grumpy'"),
        ("max_tokens: 5", "max_tokens: many", "plain: max_tokens: .*whole number"),
        ("max_tokens: 5", "max_tokens: 5\n    colour: red", "plain: colour: unknown field"),
        ("    max_tokens: 5\n", "", "plain: max_tokens: is missing"),
        ("batch_size: 1", "batch_size: 3", "plain: batch_size: an answer of the format 'single' is about one"),
        ("answer_format: single", "answer_format: xml", "plain: answer_format: "),
        ("answer_format: single", "answer_format: rating", "plain: answer_format: a pool compares"),
        ("answer_format: single", "answer_format: criteria", "plain: answer_format: a pool compares"),
        ("prompt: plain", "prompt: fancy", "plain: prompt: fancy.jinja: there is no template fancy.jinja"),
        ("[[fish, capital]]", "[[fisch, capital]]", "plain: demonstrations: no demonstration 'fisch'.*fish"),
        ("verdicts: {capital: a}", "verdicts: {sky: a}", "plain: verdicts: 'sky' is none of its demonstrations"),
        ("better: a", "better: c", "demonstration fish: better: "),
        ("first: Eel., ", "", "demonstration fish: first: is missing"),
        ("like: gpt4_3", "like: gpt5_3", "grumpy: like: no prompt annotator 'gpt5_3'. Did you mean"),
        ("like: gpt4_3", "like: grumpy", "grumpy: like: 'grumpy' is itself like"),
        ("  grumpy:\n", "  gpt4_1: {like: gpt4_2}\n  grumpy:\n", "annotators: 'gpt4_1' is one of afarm's own"),
        ("  plain:\n    role: light", "  plain: nonsense\n  other:\n    role: light", "plain: must be a mapping of"),
        ("members: [", "memberz: [", ": memberz: unknown field. Did you mean 'members'"),
        (POOL, "[1, 2]", ": must be a mapping of members"),
        (POOL, "", "members: name at least one annotator"),
        (POOL, "members: {", "is no valid YAML"),
        pytest.param(POOL, "annotators: " + 9999 * "[", "nested too deeply", id="deep"),
        pytest.param(POOL, multiplied("[{}]"), "more than 50,000 values: its aliases", id="aliases"),
        pytest.param(POOL, multiplied("{{<<: [{}]}}"), "more than 50,000 values: its aliases", id="merged"),
        pytest.param(POOL, "annotators: &a {x: *a}", "more than 50,000 values: its aliases", id="endless"),
        pytest.param(POOL, f"members: [{'gpt4_4, ' * 1001}]", "members: .*at most 1000", id="members"),
        pytest.param(POOL, f"annotators: {dict.fromkeys(map(str, range(201)), 1)}", ".*at most 200", id="defined"),
        pytest.param(POOL, f"# {300_000 * 'x'}", "larger than 300,000 bytes", id="large"),
    ],
)
def test_an_error_names_file_member_and_field(tmp_path, old, new, said):
    assert old in POOL
    with pytest.raises(ConfigError, match=f"(?s)mine.yaml.*{said}"):
        build(write(tmp_path, POOL.replace(old, new)))


@pytest.mark.parametrize(
    ("template", "said"),
    [
        ("{% call turn('user') %}{{ nothing_such }}{% endcall %}", "'nothing_such' is undefined"),
        ("{% call turn('user') %}", "line 1: Unexpected end of template"),
        ("just text", "writes no turn"),
        (
            "{% include 'no' ~ 'ne.jinja' %}",
            r"plain\.jinja names a template by an expression: write the name as",
        ),
        ("{% from 'none.jinja' import x %}", "there is no template none.jinja"),
    ],
)
def test_a_broken_template_is_named(tmp_path, template, said):
    with pytest.raises(ConfigError, match=rf"mine\.yaml: plain: prompt: plain\.jinja: .*{said}"):
        build(write(tmp_path, template=template))


def test_entries_may_be_like_each_other_as_often_as_a_pool_has_room_for(tmp_path):
    entries = "".join(f"\n  n{n}: {{like: n{n + 1}, max_tokens: {200 - n}}}" for n in range(199))
    members = build(write(tmp_path, f"annotators:{entries}\n  n199: {{like: gpt4_3}}")).members
    assert [member.spec.max_tokens for member in members[:3]] == [200, 199, 198]
    assert members[198].spec.persona == members[199].spec.persona == load_member("gpt4_3").spec.persona


def test_every_problem_is_said_at_once(tmp_path):
    pool = POOL.replace("max_tokens: 5", "max_tokens: 0").replace("like: gpt4_3", "like: gpt5_3")
    with pytest.raises(ConfigError) as caught:
        build(write(tmp_path, pool))
    assert len(caught.value.problems) == 2


def test_a_missing_file_and_a_second_list_of_members_are_errors(tmp_path):
    with pytest.raises(ConfigError, match=r"nowhere\.yaml cannot be read: No such file"):
        build(str(tmp_path / "nowhere.yaml"))
    with pytest.raises(ConfigError, match=r"leave pool\.members out"):
        build(write(tmp_path), members=["gpt4_4"])


def test_a_farm_takes_a_pool_by_its_path_and_an_edit_makes_other_labels(tmp_path):
    path = write(tmp_path)

    def identity():
        with Farm(annotator=f"pool:{path}", output_dir=tmp_path / "out") as farm:
            return farm.workspace.components.annotator_identity(f"pool:{path}")

    before = identity()
    assert identity() == before
    write(tmp_path, template=TEMPLATE.replace("Choose.", "Pick."))
    assert identity() != before
    write(tmp_path, POOL.replace("max_tokens: 5", "max_tokens: 0"))
    with pytest.raises(ConfigError, match=r"mine\.yaml: plain: max_tokens"):
        identity()


DOCS = DOCS / "guides" / "annotators.md"


def test_the_documented_pool_and_template_work(tmp_path):
    text = DOCS.read_text(encoding="utf-8")
    pool = text.split("```yaml\n")[1].split("```")[0]
    template = text.split("```\n{% from")[1].split("```")[0]
    (tmp_path / "curt.jinja").write_text("{% from" + template, encoding="utf-8")
    (tmp_path / "mine.yaml").write_text(pool, encoding="utf-8")
    members = build(str(tmp_path / "mine.yaml")).members
    assert [m.name for m in members] == ["gpt4_4", "gpt4_4", "grumpy", "curt"]
    text_of_fields = text[text.index("The fields are those of") : text.index("A template is jinja.")]
    assert [f for f in PromptSpec.model_fields if f"`{f}`" not in text_of_fields] == []
