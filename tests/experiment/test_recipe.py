"""From a recipe and overrides to one validated configuration."""

from __future__ import annotations

import importlib.metadata
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from afarm.core.config import Config, changes_result, setting
from afarm.core.errors import ConfigError
from afarm.core.hooks import KINDS
from afarm.core.plugins import Plugins, discover
from afarm.core.registry import RESERVED, Component
from afarm.experiment.components import Components
from afarm.experiment.farm import Farm
from afarm.experiment.opening import open_workspace
from afarm.experiment.recipe import Settings, list_overrides, merge, parse_override, read_recipe, recipe_names, resolve
from afarm.experiment.settings import RunConfig


@pytest.fixture(scope="module")
def plugins() -> Plugins:
    return discover()


def problems(plugins: Plugins, *overrides: str | dict[str, Any], recipe: str = "toy") -> list[str]:
    with pytest.raises(ConfigError) as caught:
        resolve(recipe, overrides, plugins)
    return caught.value.problems


def config_of(plugins: Plugins, settings: Settings, kind: str, name: str) -> Any:
    return settings.of(plugins.get(kind, name))


# -------------------------------------------------------------------------------------------------------- overrides


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("ppo.learning_rate=1e-5", 1e-5),
        ("ppo.learning_rate=0.00001", 1e-5),
        ("ppo.total_steps=3", 3),
        ("a.b=true", True),
        ("a.b=null", None),
        ("a.b=[x, y]", ["x", "y"]),
        ("a.b={x: 1}", {"x": 1}),
        ("a.b=some text", "some text"),
        ("a.b=", ""),
        ("a.b=x=y", "x=y"),
    ],
)
def test_override_values_are_yaml_and_scientific_numbers_are_numbers(text: str, value: Any) -> None:
    section, _, name = text.partition("=")[0].partition(".")
    parsed = parse_override(text)
    assert parsed == {section: {name: value}}
    assert type(parsed[section][name]) is type(value)


@pytest.mark.parametrize(
    ("given", "overrides"),
    [
        ((), []),
        ("seed=1", ["seed=1"]),
        ({"seed": 1}, [{"seed": 1}]),
        (["seed=1", {"ppo": {"total_steps": 2}}], ["seed=1", {"ppo": {"total_steps": 2}}]),
        ((text for text in ("seed=1", "budget=2")), ["seed=1", "budget=2"]),
    ],
)
def test_a_farm_takes_one_override_or_several_as_text_or_mappings(given: Any, overrides: list[Any]) -> None:
    assert list_overrides(given) == overrides


@pytest.mark.parametrize("given", [3, [3], [("seed", 1)], None, [None]])
def test_what_is_no_override_is_an_error_that_shows_it(given: Any) -> None:
    with pytest.raises(ConfigError, match=r"is neither text, such as .* nor a mapping"):
        list_overrides(given)


@pytest.mark.parametrize("settings", ["seed=1", {"seed": 1}])
def test_a_farms_settings_may_be_one_override(settings: Any, tmp_path: Path) -> None:
    with Farm("toy", settings=settings, output_dir=tmp_path) as farm:
        assert farm.workspace.config.seed == 1


@pytest.mark.parametrize("text", ["ppo.learning_rate", "=3", "", "ppo.lora={r: 1", "a=[1", "a=2020-99-99"])
def test_an_override_that_cannot_be_read_is_an_error_that_shows_it(text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_override(text)
    assert repr(text) in str(caught.value)


def test_a_scientific_override_reaches_the_plugins_config_as_a_float(plugins: Plugins) -> None:
    settings = resolve("toy", [parse_override("ppo.learning_rate=1e-5")], plugins)
    assert config_of(plugins, settings, "methods", "ppo").learning_rate == 1e-5
    assert config_of(plugins, settings, "methods", "ppo").total_steps == read_recipe("toy")["ppo"]["total_steps"]


def test_merging_goes_key_by_key_later_wins_and_changes_neither_side() -> None:
    base: dict[str, Any] = {"a": {"x": 1, "y": {"z": 1}}, "b": [1, 2]}
    over: dict[str, Any] = {"a": {"y": {"w": 2}}, "b": [3], "c": 4}
    assert merge(base, over) == {"a": {"x": 1, "y": {"z": 1, "w": 2}}, "b": [3], "c": 4}
    assert merge({"a": {"x": 1}}, {"a": 2}) == {"a": 2}
    assert base == {"a": {"x": 1, "y": {"z": 1}}, "b": [1, 2]}
    assert over == {"a": {"y": {"w": 2}}, "b": [3], "c": 4}


# --------------------------------------------------------------------------------------------- every problem at once


def test_every_problem_of_a_configuration_is_reported_at_once(plugins: Plugins) -> None:
    found = problems(
        plugins,
        "ppo.lerning_rate=1",
        "ppo.cliprange=2",
        "sft.num_train_epochs=none",
        "rows.evaluatoin=5",
        "sead=1",
        "seed=-1",
        "annotate.label_noise=0.75",
        "method=pop",
        "annotate.annotator=poool",
        "evaluate.evaluators=[winrate]",
    )
    expected = [
        ("ppo.lerning_rate", "'learning_rate'"),
        ("ppo.cliprange", "2"),
        ("sft.num_train_epochs", "none"),
        ("rows.evaluatoin", "'evaluation'"),
        ("'sead'", "'seed'"),
        ("seed", "-1"),
        ("annotate.label_noise", "0.75"),
        ("'pop'", "'ppo'"),
        ("'poool'", "'pool'"),
        ("'winrate'", "'win_rate'"),
    ]
    for parts in expected:
        assert any(all(part in problem for part in parts) for problem in found), (parts, found)
    assert len(found) == len(expected), found


def test_problems_that_a_further_check_finds_are_reported_beside_wrong_fields(plugins: Plugins) -> None:
    with pytest.raises(ConfigError) as caught:
        resolve("toy", [{"seed": -1, "method": "pop"}], plugins, lambda settings: ["the cat is out"])
    assert len(caught.value.problems) == 3
    assert "the cat is out" in caught.value.problems


def test_no_mixed_precision_is_no_though_yaml_reads_false(plugins: Plugins) -> None:
    settings = resolve("toy", [parse_override("backend.mixed_precision=no")], plugins)
    assert settings.run.backend.mixed_precision == "no"


def test_a_missing_model_says_how_to_give_one(plugins: Plugins, tmp_path: Path) -> None:
    recipe = tmp_path / "own.yaml"
    recipe.write_text("method: pop\n")
    found = problems(plugins, recipe=str(recipe))
    assert any("model" in p and "--set model=" in p for p in found)
    assert any("'pop'" in p for p in found)


def test_a_section_must_be_a_mapping_and_belong_to_something(plugins: Plugins) -> None:
    assert "must be a section" in problems(plugins, "ppo=3")[0]
    assert "'bradley_terry'" in problems(plugins, "bradly_terry.learning_rate=1")[0]
    assert "takes no settings" in problems(plugins, "win_rate.x=1")[0]


def test_a_section_that_is_no_mapping_is_a_problem_and_no_crash_for_what_looks_further(plugins: Plugins) -> None:
    with pytest.raises(ConfigError, match="ppo: must be a section"):
        resolve("toy", [parse_override("ppo=3")], plugins, lambda s: [str(s.of(plugins.get("methods", "ppo")))][1:])


def test_judges_are_for_known_roles(plugins: Plugins) -> None:
    (said,) = problems(plugins, {"judge": {"*": "offline", "strng": "offline"}})
    assert said == "judge: unknown role 'strng'. Did you mean 'strong'?"


@pytest.mark.parametrize(
    "override", ["seed=yes", "budget=true", "ppo.learning_rate=on", "rows.evaluation=no", "toy.world=true"]
)
def test_yes_and_no_are_no_numbers(override: str, plugins: Plugins) -> None:
    (said,) = problems(plugins, override)
    assert said.startswith(override.partition("=")[0] + ": must be a number")


def test_an_unknown_setting_of_a_name_that_two_components_share_is_one_problem(plugins: Plugins) -> None:
    """`bradley_terry` is a reward model and an evaluator."""
    (near,) = problems(plugins, "bradley_terry.learning_rte=1e-4")
    assert near.startswith("bradley_terry.learning_rte: unknown setting. Did you mean 'learning_rate'")
    (other,) = problems(plugins, "bradley_terry.priors=1")
    assert other == "bradley_terry.priors: unknown setting. Did you mean 'prior'?"
    (none,) = problems(plugins, "bradley_terry.xyzzy=1")
    assert none.startswith("bradley_terry.xyzzy: unknown setting")


def test_no_rows_are_not_all_rows(plugins: Plugins) -> None:
    for none in ("0", "-1"):
        said = f"rows.sft: {none} takes no rows: write a number from 1, or all for every row"
        assert problems(plugins, f"rows.sft={none}") == [said]
    assert problems(plugins, "rows.sft=some") == ["rows.sft: must be a number of rows, or all, not 'some'"]
    assert problems(plugins, "rows.sft=1.5") == ["rows.sft: must be a number of rows, or all, not 1.5"]
    rows = resolve("toy", ["rows.sft=all", "rows.preference=null", "rows.unlabeled=7"], plugins).run.rows
    assert (rows.sft, rows.preference, rows.unlabeled) == ("all", "all", 7)


def test_some_evaluator_must_be_named(plugins: Plugins) -> None:
    assert problems(plugins, "evaluate.evaluators=[]")[0].startswith("evaluate.evaluators: ")


def test_what_is_no_recipe_is_named_for_what_it_looks_like(tmp_path: Path) -> None:
    def said(name: str) -> str:
        with pytest.raises(ConfigError) as caught:
            read_recipe(str(tmp_path / name))
        return str(caught.value).replace(f"{tmp_path}/", "")

    (tmp_path / "p.csv").write_text("prompt,chosen,rejected\np,x,y\n")
    (tmp_path / "d.jsonl").write_text('{"instruction": "i", "output": "o"}')
    (tmp_path / "broken.json").write_text("[{")
    (tmp_path / "notes.txt").touch()
    none = "names no recipe: give a name or a .yaml file"
    assert said("p.csv") == (
        f"--recipe p.csv {none}; it holds rows: its fields are 'prompt', 'chosen', 'rejected'. These look like "
        "preferences to train on, in TRL's form: afarm fit-reward --preferences p.csv"
    )
    assert "afarm sft --data d.jsonl" in said("d.jsonl")
    assert f"{none}; as rows of data, broken.json: row 0: not valid JSON" in said("broken.json")
    assert said("notes.txt") == f"--recipe notes.txt {none}"
    assert said("") == f"--recipe {tmp_path} is a directory: a recipe is a name or a YAML file"


def test_a_recipe_that_cannot_be_read_names_the_nearest_or_the_line(plugins: Plugins, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"unknown recipe 'tou'.*'toy'"):
        read_recipe("tou")
    with pytest.raises(ConfigError, match="cannot be read: No such file"):
        read_recipe(str(tmp_path / "none.yaml"))
    bad = tmp_path / "bad.yaml"
    unreadable = ((b"model: \xff", "UTF-8"), (b"a: 0b_", "valid YAML"), (b"[" * 99_999, "valid YAML"))
    for content, problem in unreadable:
        bad.write_bytes(content)
        with pytest.raises(ConfigError, match=problem):
            read_recipe(str(bad))
    for text, said in (("a: [1\nb: 2", "line 2"), ("- 1", "mapping"), ("", "mapping"), ("1: 2\nmodel: x", "'1'|1")):
        bad.write_text(text)
        with pytest.raises(ConfigError, match=said):
            resolve(str(bad), [], plugins)


# ------------------------------------------------------------------------------------ sections and whose they are


class SideConfig(Config):
    strength: float = setting(1.0, "how much")


class Side:
    """A component's class: sections are about its config only."""


def with_plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str, name: str = "sideshow") -> Plugins:
    """All plugins of the environment and one more, whose module holds `source`."""
    (tmp_path / f"{name}.py").write_text(source)
    monkeypatch.syspath_prepend(str(tmp_path))
    own = importlib.metadata.EntryPoint(name, name, "afarm")
    return discover([*importlib.metadata.entry_points(group="afarm"), own])


SECOND_PPO = """
from afarm.core.config import Config, setting
from afarm.core.hooks import hookimpl

class OtherConfig(Config):
    strength: float = setting(1.0, "how much")

@hookimpl
def register_methods(register):
    register("ppo", "sideshow:Nothing", config=OtherConfig)
"""


def test_a_strangers_namesake_does_not_touch_the_section_of_ours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plugins = with_plugin(tmp_path, monkeypatch, SECOND_PPO)
    settings = resolve("toy", [{"unknown/ppo": {"strength": 3}}], plugins)
    assert config_of(plugins, settings, "methods", "ppo").total_steps == read_recipe("toy")["ppo"]["total_steps"]
    assert config_of(plugins, settings, "methods", "unknown/ppo").strength == 3


def test_a_broken_plugin_does_not_make_recipes_with_its_section_unusable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "brokenplugin.py").write_text("raise RuntimeError('half edited')")
    monkeypatch.syspath_prepend(str(tmp_path))
    points = [p for p in importlib.metadata.entry_points(group="afarm") if p.name != "best_of_n"]
    plugins = discover([*points, importlib.metadata.EntryPoint("best_of_n", "brokenplugin", "afarm")])
    assert resolve("toy", [{"method": "ppo"}], plugins).run.method == "ppo"
    (named,) = problems(plugins, "method=best_of_n")
    assert "half edited" in named
    (given,) = problems(plugins, "best_of_n.n=4")
    assert "half edited" in given


@pytest.mark.parametrize(
    ("section", "problem"),
    [
        ("dpoo", "unknown setting or section 'dpoo'. Did you mean 'dpo'"),
        ("toyy", "unknown setting or section 'toyy'. Did you mean 'toy'"),
        ("twin", "section 'twin' is ambiguous: write 'one-farm/twin' or 'two-farm/twin'"),
        ("halfplugin", "section 'halfplugin' is of plugin 'halfplugin' (half-farm), which failed to load: mend the"),
        ("kto", "section 'kto' is of plugin 'halfplugin' (half-farm), which failed to load: mend the plugin or remove"),
        ("half-farm/kto", "section 'half-farm/kto' is of plugin 'halfplugin' (half-farm), which failed to load"),
        ("other-farm/kto", "unknown setting or section 'other-farm/kto'."),
        ("in_a_table", "section 'in_a_table' is of plugin 'halfplugin'"),
    ],
)
@pytest.mark.parametrize("is_broken", [False, True])
def test_a_section_of_a_recipe_that_nobody_reads_is_an_error_whatever_else_is_broken(
    is_broken: bool, section: str, problem: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    twin = SECOND_PPO.replace('"ppo"', '"twin"').replace("sideshow", "{module}")
    kto = 'from afarm import hookimpl\n@hookimpl\ndef register_methods(register):\n    names = ["in_a_table"]\n'
    sources = {"one": twin, "two": twin, "half": f'1 / 0\n{kto}    register("kto", "halfplugin:KTO")\n'}
    for name, source in sources.items() if is_broken else list(sources.items())[:2]:
        (tmp_path / f"{name}plugin.py").write_text(source)
        (info := tmp_path / f"{name}_farm-1.dist-info").mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}-farm\nVersion: 1\n")
        (info / "entry_points.txt").write_text(f"[afarm]\n{name}plugin = {name}plugin\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    plugins = discover()
    assert [plugin.name for plugin in plugins.broken] == ["halfplugin"] * is_broken
    (tmp_path / "own.yaml").write_text(f"based_on: toy\nmethod: dpo\n{section}: {{beta: 0.5}}\n")
    [found] = problems(plugins, recipe=str(tmp_path / "own.yaml"))
    assert found.startswith(problem if is_broken or "halfplugin" not in problem else "unknown setting or section")
    assert "ZeroDivisionError" not in found or is_broken


# ------------------------------------------------------------------------------------------------ configs, recipes


def test_what_does_not_change_the_result_is_no_part_of_it() -> None:
    class Example(Config):
        beta: float = setting(0.1, "matters")
        batch: int = setting(8, "does not", changes_result=False)

    assert Example(batch=9).result_fields() == {"beta": 0.1}
    with pytest.raises(ValueError):
        Example(btea=1)  # type: ignore[call-arg]


def test_every_setting_of_every_component_is_described_and_marked(plugins: Plugins) -> None:
    configs = {c.config for kind in KINDS for c in plugins.registry if c.kind == kind and c.config} | {RunConfig}
    assert len(configs) > 5
    for config in configs:
        for name, info in config.model_fields.items():
            assert info.description, f"{config.__name__}.{name} has no description"
            extra = info.json_schema_extra
            assert isinstance(extra, dict), f"{config.__name__}.{name} is not declared with setting(...)"
            assert "changes_result" in extra
            assert isinstance(changes_result(info), bool)


@pytest.mark.parametrize("recipe", recipe_names())
def test_the_shipped_fitted_judge_reads_only_beside_itself(recipe: str, plugins: Plugins) -> None:
    """It was fitted to people's labels of single instructions: other recipes' texts are not what it knows."""
    run = resolve(recipe, [], plugins).run
    assert ("fitted" in run.evaluate.evaluators) == (set(run.judge.values()) == {"fitted"})


@pytest.mark.parametrize("recipe", recipe_names())
def test_every_recipe_that_ships_is_valid(recipe: str, plugins: Plugins) -> None:
    settings = resolve(recipe, [], plugins)
    assert settings.run.summary
    for component in plugins.registry:
        settings.of(component)


def test_the_three_recipes_ship() -> None:
    assert {"toy", "smol", "paper"} <= set(recipe_names())


def test_the_paper_recipe_has_the_papers_figures(plugins: Plugins) -> None:
    """Dubois et al. 2023, arXiv 2305.14387; sections as named beside each figure."""
    settings = resolve("paper", [], plugins)
    run = settings.run
    # Section 3.1: the splits of Alpaca, and two samples at temperature 1 for each preference instruction.
    rows = run.rows
    assert (rows.sft, rows.preference, rows.unlabeled, rows.validation) == (10_000, 10_000, 20_000, 2000)
    assert (run.sample.n, run.sample.temperature) == (2, 1.0)
    # Section 3.2 and appendix C: the pool with a quarter of the labels flipped; no noise in evaluation.
    assert (run.annotate.annotator, run.annotate.label_noise) == ("pool", 0.25)
    assert (run.evaluate.annotator, run.evaluate.label_noise) == ("pool", 0.0)
    # Section 3.3: 805 instructions, against Davinci003; appendix B: T = 0.7 and at most 300 tokens.
    assert (rows.evaluation, run.evaluate.reference) == (805, "data")
    assert (run.evaluate.temperature, run.evaluate.max_new_tokens, run.sample.max_new_tokens) == (0.7, 300, 300)
    assert (run.seed, run.prompt_template, run.dataset) == (42, "alpaca", "alpaca_farm")
    assert run.backend.mixed_precision == "bf16"

    def effective_batch(config: Any) -> int:
        return int(config.per_device_train_batch_size * config.gradient_accumulation_steps)

    # Appendix B: supervised fine-tuning.
    sft = config_of(plugins, settings, "methods", "sft")
    assert (effective_batch(sft), sft.num_train_epochs, sft.learning_rate) == (128, 3, 2e-5)
    assert (sft.lr_scheduler_type, sft.warmup_ratio, sft.max_length) == ("cosine", 0.03, 512)
    assert (sft.weight_decay, sft.max_grad_norm) == (0.0, 1.0)
    # Appendix B: the surrogate reward model.
    reward = config_of(plugins, settings, "reward_models", "bradley_terry")
    assert (effective_batch(reward), reward.num_train_epochs, reward.learning_rate) == (64, 1, 3e-6)
    assert (reward.lr_scheduler_type, reward.warmup_ratio, reward.max_length) == ("cosine", 0.03, 512)
    # Section 4 and appendix B: PPO, with the KL coefficient for simulated preferences. 390 steps are 10 passes of 20k.
    ppo = config_of(plugins, settings, "methods", "ppo")
    assert (ppo.rollout_batch_size, ppo.mini_batch_size, ppo.num_ppo_epochs) == (512, 256, 2)
    assert (ppo.total_steps, ppo.warmup_steps, ppo.learning_rate) == (390, 5, 1e-5)
    assert ppo.total_steps == 10 * 20_000 // 512
    assert (ppo.kl_coef, ppo.cliprange, ppo.cliprange_value, ppo.vf_coef) == (0.002, 0.2, 0.2, 0.1)
    assert (ppo.gamma, ppo.lam, ppo.temperature, ppo.adam_epsilon) == (1.0, 1.0, 1.0, 1e-5)
    assert (ppo.max_prompt_length, ppo.response_length, ppo.max_grad_norm) == (192, 300, 1.0)
    assert (ppo.whiten_advantages, ppo.value_init) == ("rollout", "reward_model")
    # Its KL coefficient belongs to rewards as fitted.
    assert reward.standardize_outputs == 0
    # Section 4: best-of-n at T = 1, with n = 1024 unless the paper says otherwise.
    best_of_n = config_of(plugins, settings, "methods", "best_of_n")
    assert (best_of_n.n, best_of_n.temperature) == (1024, 1.0)


# ------------------------------------------------------------------------------------------- recipes based on others


def test_a_recipe_says_only_where_it_differs_from_the_one_it_is_based_on(tmp_path: Path) -> None:
    own = tmp_path / "own.yaml"
    own.write_text("based_on: toy\nseed: 7\nrows: {sft: 100}\n")
    toy = read_recipe("toy")
    found = read_recipe(str(own))
    assert found == {**toy, "seed": 7, "rows": {**toy["rows"], "sft": 100}}


def test_a_file_names_the_file_that_it_is_based_on_from_where_it_is(tmp_path: Path) -> None:
    (tmp_path / "first.yaml").write_text("model: m\nseed: 1\n")
    (tmp_path / "deeper").mkdir()
    (tmp_path / "deeper" / "second.yaml").write_text("based_on: ../first.yaml\nseed: 2\n")
    assert read_recipe(str(tmp_path / "deeper" / "second.yaml")) == {"model": "m", "seed": 2}


def test_recipes_that_are_based_on_each_other_or_on_none_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("based_on: b.yaml\n")
    (tmp_path / "b.yaml").write_text("based_on: a.yaml\n")
    (tmp_path / "c.yaml").write_text("based_on: [toy, paper]\n")
    (tmp_path / "d.yaml").write_text("based_on: tooy\n")
    for name, problem in (
        ("a", "based on each other"),
        ("c", "must name one recipe"),
        ("d", "unknown recipe 'tooy'"),
    ):
        with pytest.raises(ConfigError, match=problem):
            read_recipe(str(tmp_path / f"{name}.yaml"))


def test_the_code_s_recipe_differs_from_the_paper_s_where_the_code_does() -> None:
    paper, code = read_recipe("paper"), read_recipe("paper-code")
    changed = {name for name in code if code[name] != paper.get(name)}
    assert changed == {"summary", "bradley_terry", "dpo", "ppo", "quark"}
    assert code["bradley_terry"]["standardize_outputs"] == 0
    # The code: num_reward_tokens 4 and num_gradient_steps_per_step 1, neither set in its script.
    quark = code["quark"]
    assert (quark["num_quantiles"], quark["num_epochs"]) == (4, 1)
    assert quark["rollout_batch_size"] // quark["num_quantiles"] <= quark["mini_batch_size"], "one step per rollout"
    assert (paper["quark"]["num_epochs"], code["ppo"]["whiten_rewards"]) == (2, "shift")
    assert (paper["ppo"].get("kl_penalty", "k1"), code["ppo"]["kl_penalty"]) == ("k1", "clamped")
    pairs = [
        r["bradley_terry"]["per_device_train_batch_size"] * r["bradley_terry"]["gradient_accumulation_steps"]
        for r in (paper, code)
    ]
    assert pairs == [64, 16]
    assert (paper["ppo"]["kl_coef"], code["ppo"]["kl_coef"]) == (0.002, 0.0067)


# ------------------------------------------------------------------------------------------------- the toy recipes


def test_the_full_toy_recipe_has_the_papers_numbers_of_instructions(plugins: Plugins) -> None:
    full = resolve("toy-full", [], plugins)
    sizes = config_of(plugins, full, "datasets", "toy")
    paper = {"sft": 10_000, "preference": 10_000, "unlabeled": 20_000}
    assert {name: getattr(full.run.rows, name) for name in paper} == paper
    assert {name: getattr(sizes, name) for name in paper} == paper
    assert (sizes.validation, sizes.evaluation) == (2000, 805)


def test_a_toy_recipe_takes_its_edition_and_gives_every_method_the_same_checkpoint(plugins: Plugins) -> None:
    editions = {name: resolve(name, [], plugins).run.model[-1] for name in ("toy", "toy-full")}
    assert editions == {"toy": "2", "toy-full": "2"}
    for name in ("toy", "toy-full"):
        settings = resolve(name, [], plugins)
        configs = [settings.of(component) for component in plugins.registry if component.kind == "methods"]
        checkpoints = [config.checkpoint for config in configs if hasattr(config, "checkpoint")]
        assert len(checkpoints) == 6
        assert set(checkpoints) == {"last"}


# ----------------------------------------------------------------------------------------------------- automatic dtype


@pytest.mark.parametrize("supported", [True, False])
def test_an_automatic_dtype_is_resolved_before_keys_and_names_are_made(
    plugins: Plugins, monkeypatch: pytest.MonkeyPatch, supported: bool
) -> None:
    import torch

    monkeypatch.setattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", lambda: supported)
    given = [{"model": "x/y"}, "backend.device=cpu"]
    settings = resolve("smol", given, plugins, native_dtype=Components.native_dtype)
    explicit = resolve("smol", [*given, f"backend.dtype={settings.run.backend.dtype}"], plugins)
    assert settings.run.backend.dtype == ("bfloat16" if supported else "float32")
    assert settings.run_name(plugins.registry) == explicit.run_name(plugins.registry)


@pytest.mark.parametrize("begun", ["bfloat16", "float32"])
def test_a_run_goes_on_in_the_dtype_that_it_was_begun_in(
    plugins: Plugins, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, begun: str
) -> None:
    import torch

    def opened(supported: bool, *settings: str) -> str:
        monkeypatch.setattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", lambda: supported)
        settings = ("backend.device=cpu", "backend.dtype=auto", *settings)
        with open_workspace("toy", settings, tmp_path, checks=[], plugins=plugins) as workspace:
            (workspace.store.runs / workspace.run_name("dpo")).mkdir(parents=True, exist_ok=True)
            return workspace.config.backend.dtype

    native = begun == "bfloat16"
    assert opened(native) == begun
    assert opened(not native) == begun
    assert opened(not native, "rows.evaluation=10") != begun, "another run"


# ---------------------------------------------------------------------------------- what plugins bring for a recipe


class BigConfig(Config):
    steps: int = setting(390, "for 7B")
    rate: float = setting(1e-5, "for 7B")
    margin: int = setting(3, "anything")


MINE = Component("methods", "mine", "mine-farm", "mine", "mine:Mine", BigConfig, defaults={"margin": 5})
RECIPES: dict[str, dict[str, Any]] = {"toy": {"steps": 4, "rate": 0.1}, "toy-full": {"steps": 8}}


@pytest.mark.parametrize(
    ("recipe", "overrides", "found"),
    [
        ("toy", [], (4, 0.1, 5)),
        ("toy", ["mine.steps=7"], (7, 0.1, 5)),
        ("toy", [{"mine-farm/mine": {"rate": 0.2}}], (4, 0.2, 5)),
        ("toy-full", [], (8, 0.1, 5)),
        ("own.yaml", [], (4, 0.3, 5)),
        ("deeper/own.yaml", ["mine.margin=9"], (4, 0.3, 9)),
        ("paper", [], (390, 1e-5, 5)),
    ],
)
def test_a_plugin_has_settings_of_its_own_under_a_recipe_and_those_based_on_it(
    recipe: str, overrides: list[Any], found: tuple[Any, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "deeper").mkdir()
    (tmp_path / "own.yaml").write_text("based_on: toy\nmine: {rate: 0.3}\n")
    (tmp_path / "deeper" / "own.yaml").write_text("based_on: ../own.yaml\n")
    plugins = discover()
    alone = resolve("toy", ["method=ppo"], plugins).run_name(plugins.registry)
    plugins.registry.register(mine := replace(MINE, recipes=RECIPES))
    settings = resolve(recipe, ["method=mine", *overrides], plugins)
    config = config_of(plugins, settings, "methods", "mine")
    assert (config.steps, config.rate, config.margin) == found
    assert set(settings.result_sections([mine])) == ({"mine-farm/mine"} if found[0] != 390 else set())
    assert resolve("toy", ["method=ppo"], plugins).run_name(plugins.registry) == alone, "installing is no setting"


def test_settings_under_a_recipe_are_held_to_the_config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = SECOND_PPO.replace("config=OtherConfig", "config=OtherConfig, recipes={recipes}")
    for recipes in ('{"toy": {"stenght": 3}}', '{"toy": 3}', '["toy"]'):
        (tmp_path / "sideshow.py").write_text(source.format(recipes=recipes))
        monkeypatch.syspath_prepend(str(tmp_path))
        sys.modules.pop("sideshow", None)
        [broken] = discover([importlib.metadata.EntryPoint("sideshow", "sideshow", "afarm")]).broken
        assert "recipes must map names of recipes to settings that the config has, not" in broken.error


def test_no_component_is_called_as_a_recipes_own_setting() -> None:
    assert sorted([*RunConfig.model_fields, "based_on"]) == RESERVED.split()


@pytest.mark.parametrize("brought", [{"recipes": {"toy": {"margin": "wide"}}}, {"defaults": {"margin": "wide"}}])
def test_a_wrong_value_that_a_plugin_brings_is_told_as_the_plugins(brought: dict[str, Any]) -> None:
    component = replace(MINE, **brought)
    with pytest.raises(ConfigError, match=r"^mine\.margin: .*; plugin 'mine' \(mine-farm\) brings this value$"):
        Settings("toy", RunConfig(model="m"), {"mine-farm/mine": dict(component.recipes.get("toy", {}))}).of(component)
    with pytest.raises(ConfigError, match=r"^mine\.margin: [^;]*$"):
        Settings("toy", RunConfig(model="m"), {"mine-farm/mine": {"margin": "long"}}).of(component)


@pytest.mark.parametrize("role", ["strnog", "alice", "Strong"])
def test_a_wrong_role_is_one_problem(role: str, plugins: Plugins) -> None:
    """Not also a price that no judge has, and no judge at all: it would be another judge that is looked at."""
    with pytest.raises(ConfigError) as caught:
        resolve("toy", [{"judge": {role: "offline"}}, "seed=-1"], plugins, lambda settings: ["a price of none"])
    assert [problem.partition(":")[0] for problem in caught.value.problems] == ["judge", "seed"]
    with pytest.raises(ConfigError, match="a price of none"):
        resolve("toy", ["seed=-1"], plugins, lambda settings: ["a price of none"])
