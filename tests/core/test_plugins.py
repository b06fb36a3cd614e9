"""Discovery: one plugin's fault is recorded with its cause and takes no other plugin down."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Callable, Iterator
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from afarm.cli import main
from afarm.core.errors import ConfigError, PluginError
from afarm.core.hooks import GROUP, hook_names
from afarm.core.plugins import Plugin, Plugins, discover
from afarm.experiment.recipe import resolve

Publish = Callable[..., None]

GOOD = """
from afarm import Config, hookimpl, setting

class MyConfig(Config):
    margin: int = setting(0, "a margin")

@hookimpl
def register_annotators(register):
    register("{name}", "{module}_classes:Mine", config=MyConfig, summary="mine")
"""


@pytest.fixture
def publish(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Publish]:
    """`publish(package, module, source, **points)` installs a distribution, as pip would leave it, on sys.path."""
    site = tmp_path / "site-packages"
    site.mkdir()
    monkeypatch.syspath_prepend(str(site))
    published: list[str] = []

    def make(
        package: str, module: str, source: str, version: str = "1.0", requires: str = "afarm", **points: str
    ) -> None:
        (site / f"{module}.py").write_text(source, encoding="utf-8")
        info = site / f"{package.replace('-', '_')}-{version}.dist-info"
        info.mkdir()
        about = f"Metadata-Version: 2.1\nName: {package}\nVersion: {version}\nRequires-Dist: {requires}\n"
        (info / "METADATA").write_text(about, "utf-8")
        lines = [f"{name} = {value}" for name, value in (points or {module: module}).items()]
        (info / "entry_points.txt").write_text("\n".join([f"[{GROUP}]", *lines, ""]), "utf-8")
        published.append(module)
        importlib.invalidate_caches()

    yield make
    for module in published:
        sys.modules.pop(module, None)


def good(module: str, name: str = "mine") -> str:
    return GOOD.format(name=name, module=module)


def named(plugins: Plugins, name: str) -> Plugin:
    [plugin] = [p for p in plugins.found if p.name == name]
    return plugin


def first_party_names(plugins: Plugins) -> set[tuple[str, str]]:
    return {(c.kind, c.name) for c in plugins.registry if c.package == "afarm"}


# ------------------------------------------------------------------------------------------------------- what works


def test_an_installed_plugin_is_found_with_its_package_and_version(publish: Publish) -> None:
    publish("my-farm", "my_farm", good("my_farm"), version="2.3")
    found = discover()
    plugin = named(found, "my_farm")
    assert (plugin.package, plugin.version, plugin.module, plugin.error) == ("my-farm", "2.3", "my_farm", "")
    assert [c.full_name for c in plugin.components] == ["my-farm/mine"]


def test_a_third_partys_component_has_a_full_and_a_bare_name(publish: Publish) -> None:
    publish("my-farm", "my_farm", good("my_farm"))
    found = discover()
    assert found.get("annotators", "mine") is found.get("annotators", "my-farm/mine")


def test_finding_a_plugin_does_not_import_its_targets(publish: Publish) -> None:
    publish("my-farm", "my_farm", good("my_farm"))
    component = discover().get("annotators", "mine")
    with pytest.raises(PluginError, match="my_farm_classes"):
        component.load()


def test_an_entry_point_may_name_an_object_whose_methods_are_hooks(publish: Publish) -> None:
    source = """
from afarm import hookimpl

class Hooks:
    @hookimpl
    def register_judges(self, register):
        register("silent", "silent_judge:Silent")

hooks = Hooks()
"""
    publish("object-farm", "object_farm", source, object_farm="object_farm:hooks")
    found = discover()
    assert named(found, "object_farm").error == ""
    assert found.get("judges", "silent").package == "object-farm"


CALLED_BY_PLUGGY = {
    "an order": '@hookimpl(tryfirst=True)\ndef register_methods(register):\n    register("early", "early:Early")\n',
    "a wrapper": "@hookimpl(wrapper=True)\ndef register_methods(register):\n    return (yield)\n",
    "an optional hook": "@hookimpl(optionalhook=True)\ndef register_studies(register):\n    pass\n",
}


@pytest.mark.parametrize("case", CALLED_BY_PLUGGY)
def test_a_hook_may_be_what_pluggy_allows(case: str, publish: Publish) -> None:
    publish("my-farm", "my_farm", good("my_farm") + CALLED_BY_PLUGGY[case])
    found = discover()
    assert named(found, "my_farm").error == ""
    assert found.get("annotators", "mine").plugin == "my-farm:my_farm"


def test_a_wrapper_is_around_its_own_plugins_hooks_only(publish: Publish) -> None:
    source = "from afarm import hookimpl\n@hookimpl(wrapper=True)\ndef register_annotators(register):\n    yield 1 / 0"
    publish("wrapping-farm", "wrapping", source)
    publish("my-farm", "my_farm", good("my_farm"))
    found = discover()
    assert [plugin.name for plugin in found.broken] == ["wrapping"]
    assert found.get("annotators", "mine").package == "my-farm"


def test_each_discovery_starts_anew(publish: Publish) -> None:
    before = len(discover().found)
    publish("my-farm", "my_farm", good("my_farm"))
    assert len(discover().found) == before + 1


COUNTED = """
import sys
from afarm import hookimpl

@hookimpl
def register_annotators(register):
    sys.asked.append("annotators")
    register("counted", "nowhere:Annotator")

@hookimpl
def register_recipes(register):
    sys.asked.append("recipes")
"""


def test_hooks_are_called_once_for_the_same_modules_and_as_much(
    publish: Publish, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    monkeypatch.setattr(sys, "asked", asked, raising=False)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)  # it would change the folder, which is then read again
    publish("counted-farm", "counted", COUNTED)
    discover(kinds=("recipes",))
    assert asked == ["recipes"]
    plugins = discover()
    assert asked == ["recipes", "annotators", "recipes"], "more kinds were wanted"
    for choice in ({}, {"check_configs": False}, {"kinds": ("annotators",)}):
        plugins.registry.discard("counted-farm:counted")
        plugins.found.clear()
        plugins = discover(**choice)
        assert len(asked) == 3
        assert named(plugins, "counted").components == [plugins.get("annotators", "counted")], (
            "nobody's changes are seen"
        )
    del sys.modules["counted"]
    discover()
    assert asked[3:] == ["annotators", "recipes"], "its module may be another"


def test_settings_are_the_plugins_defaults_under_the_users_values(publish: Publish) -> None:
    source = good("my_farm").replace('summary="mine"', 'defaults={"margin": 5}')
    publish("my-farm", "my_farm", source)
    component = discover().get("annotators", "mine")
    assert component.settings() == component.config(margin=5)  # type: ignore[misc]
    assert component.settings({"margin": 7}) == component.config(margin=7)  # type: ignore[misc]


# --------------------------------------------------------------------------------------------------- what is broken

FOREIGN = ("ne\u0301e", "\u00e9", "mine\uff12", "\u043c\u0438ne", "\u0662")
"""Letters and digits that are not ASCII."""

BROKEN = {
    "a missing module": ("import no_such_module_anywhere\n", "ModuleNotFoundError: No module named"),
    "a syntax error": ("def register_annotators(register:\n", "SyntaxError"),
    "an exit": ("raise SystemExit(3)\n", "SystemExit: 3"),
    "a silent exit": ("import sys\nsys.exit()\n", "SystemExit"),
    "a failing hook": (
        "from afarm import hookimpl\n@hookimpl\ndef register_methods(register):\n    1 / 0\n",
        "ZeroDivisionError: division by zero",
    ),
    "a hook that takes something else": (
        "from afarm import hookimpl\n@hookimpl\ndef register_methods(registry):\n    pass\n",
        "hookimpl definition: register_methods(registry); Argument(s) {'registry'} are declared in the hookimpl but",
    ),
    "a misspelt hook": (
        "from afarm import hookimpl\n@hookimpl\ndef register_anotators(register):\n    pass\n",
        "unknown hook 'register_anotators'. Did you mean 'register_annotators'",
    ),
    "an unmarked hook": (
        "def register_annotators(register):\n    pass\n",
        "defines 'register_annotators' without marking it with @afarm.hookimpl",
    ),
    "an unmarked hook beside a marked one": (
        good("broken") + "\ndef register_commands(app):\n    pass\n",
        "defines 'register_commands' without marking it with @afarm.hookimpl",
    ),
    "no hook at all": ("x = 1\n", "marks no hook"),
    "a name that a door had": (
        "from afarm.cli.options import Farm\n" + good("broken"),
        "ImportError: afarm.cli.options.Farm is afarm.Farm now",
    ),
    **{
        f"the name {name}, a recipe's": (good("broken", name), f"{name!r} is no component name")
        for name in ("seed", "evaluate", "based_on")
    },
    "a name with a slash": (good("broken", "theirs/mine"), "'theirs/mine' is no component name"),
    "a name with a colon": (good("broken", "mine:fast"), "'mine:fast' is no component name"),
    "an empty name": (good("broken", ""), "'' is no component name"),
    "a name with outer spaces": (good("broken", " mine"), "' mine' is no component name"),
    **{
        f"the name {name}": (good("broken", name), f"{name!r} is no component name: it must be ASCII letters, digits,")
        for name in ("bad name!", "--set", "*", "x.y", "_hidden", "a=b", "two words", *FOREIGN)
    },
    "a name that is no text": (good("broken").replace('"mine", "broken', '3, "broken'), "the name must be text, not 3"),
    "a target that is nothing": (
        good("broken").replace('"broken_classes:Mine"', "None"),
        "register_annotators: register('mine', …): the target must be a class or 'package.module:Class', not None",
    ),
    "a target without a class": (
        good("broken").replace('"broken_classes:Mine"', '"broken_classes.Mine"'),
        "the target must be a class or 'package.module:Class', not 'broken_classes.Mine'",
    ),
    "a name with a line break": (good("broken", "mi\\nne"), "'mi\\nne' is no component name"),
    "a target that is an object": (good("broken").replace('"broken_classes:Mine"', "MyConfig()"), "not MyConfig("),
    "a config that is no class": (
        good("broken").replace("config=MyConfig", "config=MyConfig()"),
        "config must be a subclass of afarm.Config, not MyConfig(",
    ),
    "a config of another kind": (good("broken").replace("config=MyConfig", "config=dict"), "afarm.Config, not <class"),
    "a summary that is no text": (good("broken").replace('summary="mine"', "summary=None"), "the summary must be text"),
    "defaults that are no mapping": (
        good("broken").replace('summary="mine"', "defaults=5"),
        "defaults must map settings that the config has to values, not 5",
    ),
    "defaults that the config lacks": (
        good("broken").replace('summary="mine"', 'defaults={"margn": 5}'),
        "defaults must map settings that the config has to values, not {'margn': 5}",
    ),
    "settings for a recipe that is not there": (
        good("broken").replace('summary="mine"', 'recipes={"own.yaml": {"margin": 5}, "toyy": {"margin": 5}}'),
        "recipes must be named as `afarm recipes` lists them, not ['toyy']",
    ),
    "sources that are one name": (
        good("broken").replace('summary="mine"', 'sources="helpers"'),
        "sources must be a list of names of modules and absolute Paths, not 'helpers'",
    ),
    "a source that is a relative path": (
        good("broken").replace('summary="mine"', 'sources=[__import__("pathlib").Path("helpers")]'),
        "sources must be a list of names of modules and absolute Paths, not [",
    ),
    "a config that pydantic cannot build": (
        good("broken").replace("margin: int", "margin: object()"),
        "PydanticSchemaGenerationError",
    ),
    "an error of two lines": ("raise RuntimeError('no\\nluck')\n", "RuntimeError: no luck"),
    "one name twice": (
        good("broken") + '    register("mine", "broken:Mine")\n',
        "'broken-farm/mine' is registered twice",
    ),
}


@pytest.mark.parametrize(
    ("requires", "unmet"),
    [
        ("afarm>=9", "afarm>=9"),
        ("afarm[train,judges] ~= 3.1", "afarm~=3.1"),
        ("afarm>0.2", "afarm>0.2"),
        ("AFARM==0.2; python_version > '3'", "afarm==0.2"),
        ("Afarm (>=9,<10) ; python_version > '3'", "afarm<10,>=9"),
        ("afarm<0.1", "afarm<0.1"),
        ("afarm!=0.1.*", "afarm!=0.1.*"),
        *((met, "") for met in ("afarm", "afarm>=0.1", "afarm==0.1.*", "afarm>0.0.9,<2", "afarmer>=9", "afarm-x>=9")),
        *((met, "") for met in ("afarm>=9; python_version < '3'", "afarm>=9; extra == 'late'", "afarm of today")),
    ],
)
def test_a_plugin_that_needs_another_afarm_is_refused_before_it_is_imported(
    requires: str, unmet: str, publish: Publish
) -> None:
    publish("late-farm", "late", good("late"), requires=requires)
    found = discover()
    said = f"PluginError: late-farm needs {unmet}, and this is afarm 0.1.0.dev0: install versions that fit"
    assert named(found, "late").error == (said if unmet else "")
    assert ("late" in sys.modules) is not unmet
    if unmet:
        with pytest.raises(PluginError, match=r"unknown annotator 'late-farm/mine'\.\nPlugin 'late' .* needs afarm"):
            found.get("annotators", "late-farm/mine")


@pytest.mark.parametrize("case", BROKEN)
def test_a_broken_plugin_is_recorded_with_its_cause_and_the_others_work(case: str, publish: Publish) -> None:
    source, cause = BROKEN[case]
    before = discover()
    publish("broken-farm", "broken", source)
    publish("good-farm", "good_farm", good("good_farm", "kind"))
    found = discover()
    broken = named(found, "broken")
    assert cause in broken.error
    assert broken.components == []
    assert [p.name for p in found.broken] == ["broken"]
    assert not [c for c in found.registry if c.package == "broken-farm"]
    assert found.get("annotators", "kind").package == "good-farm"
    assert first_party_names(found) == first_party_names(before)
    assert not found.manager.has_plugin("broken-farm:broken")


def test_an_interrupt_while_plugins_load_is_an_interrupt(publish: Publish) -> None:
    publish("slow-farm", "slow_farm", "raise KeyboardInterrupt\n")
    with pytest.raises(KeyboardInterrupt):
        discover()


COMMANDS = """
from afarm import hookimpl

@hookimpl
def register_commands(app):
    {body}
"""


def test_plugins_add_commands_and_one_that_fails_is_a_warning(
    publish: Publish, capsys: pytest.CaptureFixture[str]
) -> None:
    publish("bad-farm", "bad_commands", COMMANDS.format(body="1 / 0"))
    publish("shear-farm", "shear_commands", COMMANDS.format(body='app.command("shear")(lambda: print("baa"))'))
    with pytest.raises(SystemExit) as stop:
        main(["shear"])
    assert stop.value.code == 0
    shown = capsys.readouterr()
    assert shown.out == "baa\n"
    assert "plugin 'bad-farm:bad_commands' could not add its commands: ZeroDivisionError" in shown.err


@pytest.mark.parametrize("command", [["badcmd"], ["badgroup", "inner"]])
def test_a_plugins_command_that_raises_names_the_plugin(
    command: list[str], publish: Publish, capsys: pytest.CaptureFixture[str]
) -> None:
    body = """
    import typer
    group = typer.Typer(name="badgroup")
    app.add_typer(group)
    app.command("badcmd")(fail)
    app.command("done")(leave)
    app.command("wrong")(refuse)
    group.command("inner")(fail)
    group.command("other")(fail)

def fail():
    raise ValueError("x")

def leave():
    import typer
    raise typer.Exit(3)

def refuse():
    import typer
    raise typer.BadParameter("no such sheep")
"""
    publish("bad-farm", "bad_commands", COMMANDS.format(body=body))
    for words, code, said in (
        (command, 1, "Error: plugin 'bad-farm:bad_commands' failed: ValueError: x (site-packages/bad_commands.py:"),
        (["done"], 3, ""),
        (["wrong"], 2, "no such sheep"),
    ):
        with pytest.raises(SystemExit) as stop:
            main(words)
        shown = " ".join(capsys.readouterr().err.split())
        assert stop.value.code == code
        assert said in shown
        assert "Traceback" not in shown


def test_a_plugin_cannot_take_the_place_of_a_command_that_is_there(
    publish: Publish, capsys: pytest.CaptureFixture[str]
) -> None:
    body = """
    import typer
    app.command()(recipes)
    app.command("artifacts")(recipes)
    app.command("shear")(lambda: print("baa"))

def recipes():
    print("mine")
"""
    publish("cuckoo-farm", "cuckoo", COMMANDS.format(body=body))
    for command, said, warned in (
        (["recipes"], "toy", False),  # whose call needs no plugin
        (["artifacts", "list", "--help"], "List all", True),
        (["shear"], "baa", True),
        (["--help"], "recipes    List the recipes, or show one.", True),
    ):
        with pytest.raises(SystemExit) as stop:
            main(command)
        assert stop.value.code == 0
        shown = capsys.readouterr()
        assert said in shown.out
        for name in ("recipes", "artifacts"):
            problem = f"plugin 'cuckoo-farm:cuckoo' may not replace the command {name!r}"
            assert (problem in shown.err) == warned


def test_a_plugin_adds_to_a_group_that_another_or_afarm_owns_and_replaces_none_of_its_commands(
    publish: Publish, capsys: pytest.CaptureFixture[str]
) -> None:
    body = """
    import typer
    for name in ("fold", "artifacts"):
        group = typer.Typer(name=name, help="Of {farm}.")
        app.add_typer(group)
        for inner in ("list", "{farm}"):
            group.command(inner)(lambda inner=inner: print(f"{{inner}} of {farm}"))
"""
    for farm in ("dog", "hen"):
        publish(f"{farm}-farm", f"{farm}_groups", COMMANDS.format(body=body.format(farm=farm)))
    for command, said, refused in (
        (["fold", "dog"], "dog of dog\n", ["fold list"]),
        (["fold", "hen"], "hen of hen\n", ["fold list"]),
        (["fold", "list"], "list of dog\n", ["fold list"]),
        (["fold", "--help"], "Of dog.", ["fold list"]),
        (["artifacts", "hen"], "hen of hen\n", ["artifacts list"]),
        (["artifacts", "--help"], "What is stored", ["artifacts list"]),
    ):
        with pytest.raises(SystemExit) as stop:
            main(command)
        assert stop.value.code == 0
        shown = capsys.readouterr()
        assert said in shown.out
        for name in refused:
            assert f"may not replace the command {name!r}" in shown.err
    assert "plugin 'hen-farm:hen_groups' may not replace the command 'fold list'" in shown.err


def test_a_plugin_is_loaded_for_its_commands_only_if_it_may_have_any(
    publish: Publish, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    publish("herd-farm", "herd", good("herd"))
    publish("starred-farm", "starred", "from bleating import *\n")
    bleats = 'app.command("bleat")(lambda: print("baa"))'
    (tmp_path / "site-packages" / "bleating.py").write_text(COMMANDS.format(body=bleats))
    lows = (
        'class Cow:\n    @hookimpl\n    def register_commands(self, app):\n        app.command("low")(lambda: None)\n'
    )
    publish("cow-farm", "cow", f"from afarm import hookimpl\n{lows}cow = Cow()\n", cow="cow:cow")
    with pytest.raises(SystemExit) as stop:
        main(["--help"])
    assert stop.value.code == 0
    shown = capsys.readouterr().out.partition("Brought by plugins:")[2]
    assert "bleat" in shown
    assert "low" in shown
    assert "herd" not in sys.modules


def test_the_list_of_plugins_has_their_commands(publish: Publish, capsys: pytest.CaptureFixture[str]) -> None:
    body = """app.command("shear")(lambda: None)
    import typer
    group = typer.Typer()
    group.command("deep")(lambda: None)
    app.add_typer(group, name="dip")
    raise ValueError("what came before stays")"""
    publish("shear-farm", "shear", COMMANDS.format(body=body))
    with pytest.raises(SystemExit):
        main(["plugins", "--json"])
    [row] = [row for row in json.loads(capsys.readouterr().out) if row["plugin"] == "shear"]
    assert row["commands"] == ["shear", "dip deep"]
    with pytest.raises(SystemExit):
        main(["plugins"])
    shown = capsys.readouterr().out
    assert "command       shear\n" in shown
    assert "command       dip deep\n" in shown


def test_settings_of_a_shared_name_ask_for_the_full_one(
    publish: Publish, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("one", "two"):
        publish(f"{name}-farm", f"{name}_farm", good(f"{name}_farm"))
    publish("my-farm", "my_farm", good("my_farm", "alone"))
    with pytest.raises(SystemExit):
        main(["settings", "mine"])
    assert "section 'mine' is ambiguous: write 'one-farm/mine' or 'two-farm/mine'" in capsys.readouterr().err
    (tmp_path / "own.yaml").write_text("alone: {margin: 77}\none-farm/mine: {margin: 78}\n")
    for name, value in {"alone": 77, "my-farm/alone": 77, "one-farm/mine": 78}.items():
        with pytest.raises(SystemExit):
            main(["settings", name, "--recipe", str(tmp_path / "own.yaml"), "--json"])
        assert [row["recipe"] for row in json.loads(capsys.readouterr().out)] == [value]


def test_a_plugin_that_fails_half_way_leaves_nothing_behind(publish: Publish) -> None:
    publish("half-farm", "half_farm", good("half_farm", "half") + "    raise RuntimeError('no more')\n")
    found = discover()
    assert "no more" in named(found, "half_farm").error
    with pytest.raises(PluginError, match="unknown annotator 'half'"):
        found.get("annotators", "half")


NOT_THERE = "ModuleNotFoundError: No module named 'no_such_module_anywhere' (kto.py:1)"
KTO = f"\nPlugin 'kto' (kto-farm) failed to load: {NOT_THERE}"


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("kto", KTO),
        ("kto-farm/kto", KTO),
        ("kto-farm/brought by another module", KTO),
        ("KTO_Farm/kto", KTO),
        ("halo", "\nPlugin 'other' (other-broken) failed to load: ValueError: two lines (other.py:2)"),
        ("pppo", " Did you mean 'ppo' or 'dpo' or 'pool'?"),
        ("kto-frm/pppo", " The package 'kto-frm' is not installed, or brings no such name."),
        ("xyzzyx", "`afarm settings` lists them. 2 plugins failed to load: `afarm plugins` says why."),
    ],
)
def test_an_unknown_name_is_explained_by_the_plugin_that_may_bring_it(name: str, why: str, publish: Publish) -> None:
    publish("kto-farm", "kto", "import no_such_module_anywhere\n")
    publish("other-broken", "other", "brought = ['halo']\nraise ValueError('two\\n lines')\n")
    with pytest.raises(ConfigError) as caught:
        resolve("toy", [{name: {"beta": 1}}], discover())
    if why.startswith("\n"):
        owner, _, error = why.removeprefix("\nPlugin ").partition(" failed to load: ")
        why = f"section {name!r} is of plugin {owner}, which failed to load: mend the plugin or remove the section. "
        why += error
    assert str(caught.value).endswith(why)
    assert str(caught.value).count("\n") == 0
    with pytest.raises(PluginError, match=f"unknown method {name!r}"):
        discover().get("methods", name)


def test_misspelt_names_are_not_explained_by_a_broken_plugin(publish: Publish) -> None:
    publish("kto-flock", "kto", "1 / 0\n")
    with pytest.raises(ConfigError) as caught:
        resolve("toy", [{"method": "pppo", "dataset": "toyy", "sead": 1}], discover())
    assert len(caught.value.problems) == 3
    assert "failed to load" not in str(caught.value), "other names are near"


def test_a_config_that_pydantic_cannot_build_does_not_take_the_help_down(
    publish: Publish, capsys: pytest.CaptureFixture[str]
) -> None:
    publish("my-farm", "my_farm", good("my_farm").replace("margin: int", "margin: object()"))
    publish("shear-farm", "shear", COMMANDS.format(body='app.command("shear", help="Shear.")(lambda: None)'))
    with pytest.raises(SystemExit) as stop:
        main(["--help"])
    assert stop.value.code == 0
    assert "Shear." in capsys.readouterr().out


def test_an_entry_point_to_nowhere_is_a_broken_plugin() -> None:
    found = discover([EntryPoint("ghost", "no_such_module_anywhere:hooks", GROUP)])
    [plugin] = found.found
    assert (plugin.name, plugin.package) == ("ghost", "unknown")
    assert "ModuleNotFoundError" in plugin.error


# -------------------------------------------------------------------------------------------------- names that clash


def test_two_packages_may_have_one_name_until_it_is_used_bare(publish: Publish) -> None:
    publish("one-farm", "one_farm", good("one_farm"))
    publish("two-farm", "two_farm", good("two_farm"))
    found = discover()
    assert found.broken == []
    assert found.get("annotators", "one-farm/mine").package == "one-farm"
    assert found.get("annotators", "two-farm/mine").package == "two-farm"
    with pytest.raises(PluginError, match="'mine' is ambiguous: write 'one-farm/mine' or 'two-farm/mine'"):
        found.get("annotators", "mine")


def test_first_party_plugins_own_their_bare_names(publish: Publish) -> None:
    publish("rival-farm", "rival_farm", good("rival_farm", "pool"))
    found = discover()
    assert found.get("annotators", "pool").package == "afarm"
    assert found.get("annotators", "rival-farm/pool").package == "rival-farm"


def test_one_name_may_be_of_several_kinds(publish: Publish) -> None:
    source = """
from afarm import hookimpl

@hookimpl
def register_annotators(register):
    register("gem", "gem:Annotator")

@hookimpl
def register_evaluators(register):
    register("gem", "gem:Evaluator")
"""
    publish("gem-farm", "gem_farm", source)
    found = discover()
    assert found.get("annotators", "gem").target == "gem:Annotator"
    assert found.get("evaluators", "gem").target == "gem:Evaluator"


def test_two_plugins_of_one_package_may_not_share_a_name(publish: Publish) -> None:
    publish("my-farm", "my_farm", good("my_farm"), first="my_farm", second="my_farm_too")
    (Path(sys.path[0]) / "my_farm_too.py").write_text(good("my_farm_too"), encoding="utf-8")
    try:
        found = discover()
    finally:
        sys.modules.pop("my_farm_too", None)
    assert named(found, "first").error == ""
    assert "'my-farm/mine' is registered twice" in named(found, "second").error
    assert found.get("annotators", "mine").plugin == "my-farm:first"


# ----------------------------------------------------------------------------------------------- targets and sources


TARGETS = {
    "needs_json": "import json.nowhere",
    "torn": "def Mine(:",
    "failing": "x = 0\n1 / x",
    "leaving": "raise SystemExit(3)",
}


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("torch_that_is_missing.models:Mine", "needs 'torch_that_is_missing', which is not installed"),
        ("my_frm:Mine", "is not installed; install 'my_frm', or correct the target 'my_frm:Mine'"),
        ("my_farm:NoSuchClass", "cannot be loaded from 'my_farm:NoSuchClass'"),
        ("my_farm.wrong:Mine", "cannot be loaded from 'my_farm.wrong:Mine': ModuleNotFoundError: No module named"),
        ("needs_json:Mine", "cannot be loaded from .*: ModuleNotFoundError: No module named 'json.nowhere'$"),
        ("torn:Mine", r"SyntaxError: .* \(torn.py, line 1\)$"),
        ("failing:Mine", r"ZeroDivisionError: division by zero \(failing.py:2\)$"),
        ("leaving:Mine", r"SystemExit: 3 \(leaving.py:1\)$"),
    ],
)
def test_a_target_that_is_not_there_says_whose_it_is(target: str, message: str, publish: Publish) -> None:
    publish("my-farm", "my_farm", good("my_farm").replace("my_farm_classes:Mine", target))
    for module, source in TARGETS.items():
        publish(f"{module}-farm", module, source, other="afarm_plugins.dpo")
    component = discover().get("annotators", "mine")
    with pytest.raises(PluginError, match=message):
        component.load()


def test_a_component_names_the_modules_of_its_entry_point_and_target(publish: Publish) -> None:
    publish("my-farm", "my_farm", good("my_farm"))
    component = discover().get("annotators", "mine")
    assert (component.modules, component.sources) == (("my_farm", "my_farm_classes"), ())


def test_every_hook_is_named_for_what_it_registers() -> None:
    assert all(name.startswith("register_") for name in hook_names())
    assert len(hook_names()) == len(set(hook_names())) >= 7
