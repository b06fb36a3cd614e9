"""A plugin's code in artifact keys: every file of its distribution, however it is installed."""

from __future__ import annotations

import sys
from importlib.metadata import entry_points
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from light_forks import call

from afarm.core.errors import PluginError
from afarm.core.hooks import GROUP
from afarm.core.plugins import discover
from afarm.core.registry import Component
from afarm.experiment.components import Components
from afarm.experiment.plugin_code import find_package, plugin_digest, plugin_files

PLUGIN = """
from afarm import hookimpl

@hookimpl
def register_methods(register):
    register("turned", "turned_method:Turned")

@hookimpl
def register_annotators(register):
    register("turned", "turned_method:TurnedAnnotator")
"""

METHOD = """
from afarm import Annotator
from turned_losses import SIGN

class Turned:
    pass

class TurnedAnnotator(Annotator):
    def annotate(self, pairs, context):
        return []
"""

MODULES = {"turned_plugin.py": PLUGIN, "turned_method.py": METHOD, "turned_losses.py": "SIGN = 1.0\n"}
"""A distribution as `py-modules` lists its files."""

NAMES = [name.removesuffix(".py") for name in MODULES]
INFO = "afarm_turned-1.0.dist-info"
EDITABLE = "__editable__.afarm_turned-1.0.pth"


def identity(site: Path) -> list[str]:
    """The identity of the method and the annotator's source, in a process of its own, as the next command has them."""
    links = [line for pth in site.glob("*.pth") for line in pth.read_text().splitlines()]
    return call(found_in, [str(site), *links])  # pth files work in site folders only


def found_in(places: list[str]) -> list[str]:
    sys.path[:0] = places
    components: Any = Components(discover(), SimpleNamespace(of=lambda component: None))  # type: ignore[arg-type]
    return [str(components.identity(components.component("methods", "turned"))), components.annotator("turned").source]


def write(folder: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


def install(site: Path, **metadata: str) -> None:
    write(
        site / INFO,
        {
            "METADATA": "Metadata-Version: 2.1\nName: afarm-turned\nVersion: 1.0\n",
            "entry_points.txt": f"[{GROUP}]\nturned = turned_plugin\n",
            **{name.replace("_txt", ".txt"): text for name, text in metadata.items()},
        },
    )


def record(*files: str) -> str:
    return "".join(f"{name},,\n" for name in (*files, f"{INFO}/METADATA", "../../../bin/turned"))


def wheel(site: Path) -> Path:
    write(site, MODULES)
    install(site, RECORD=record(*MODULES))
    return site


def editable_by_setuptools(site: Path) -> Path:
    """It declares the top-level modules; that the link is a path is setuptools' form for a `src` folder."""
    write(site.parent / "project" / "src", MODULES)
    write(site, {EDITABLE: f"{site.parent / 'project' / 'src'}\n"})
    install(site, RECORD=record(EDITABLE), top_level_txt="\n".join(NAMES))
    return site.parent / "project" / "src"


def editable_by_others(site: Path) -> Path:
    """hatchling, flit, poetry and pdm leave a link to the folder, and nothing that lists modules."""
    write(site.parent / "project", {**MODULES, "runs/out/notes.txt": "1", "README.md": "1"})
    write(site, {"_afarm_turned.pth": f"{site.parent / 'project'}\n"})
    install(site, RECORD=record("_afarm_turned.pth"))
    return site.parent / "project"


LAYOUTS = [wheel, editable_by_setuptools, editable_by_others]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_sign_flipped_in_a_helper_module_is_another_method(layout, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    site = tmp_path / "site-packages"
    site.mkdir()
    source = layout(site)
    before = identity(site)
    assert before[1] in before[0], "a prompt annotator tells its stored judgements by it"
    write(source, {"runs/out/notes.txt": "2", "README.md": "2"})
    assert identity(site) == before, "nothing that is no part of the package"
    write(source, {"turned_losses.py": "SIGN = -1.0\n"})
    assert identity(site) != before


def test_one_distribution_has_one_digest_however_it_is_installed(tmp_path: Path) -> None:
    identities = set()
    for layout in LAYOUTS:
        site = tmp_path / layout.__name__ / "site-packages"
        site.mkdir(parents=True)
        layout(site)
        identities.add(tuple(identity(site)))
    assert len(identities) == 1


def test_a_distribution_is_its_modules_and_data_without_metadata_and_scripts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = wheel(tmp_path)
    write(site, {"turned_data/prompt.txt": "Which?", "turned_data/__pycache__/x.pyc": ""})
    write(site / INFO, {"RECORD": record(*MODULES, "turned_data/prompt.txt", "turned_data/__pycache__/x.pyc")})
    monkeypatch.syspath_prepend(str(site))
    assert set(plugin_files("afarm-turned", ["turned_plugin"])) == {*MODULES, "turned_data/prompt.txt"}


def test_first_party_plugins_are_digested_one_by_one() -> None:
    registry = discover(entry_points(group=GROUP)).registry
    methods = [component for component in registry if component.kind == "methods"]
    folders = {c.name: {name.rpartition("/")[0] for name in plugin_files(c.package, c.modules)} for c in methods}
    assert folders["ppo"] == {"afarm_plugins/ppo"}
    assert folders["dpo"] == {"afarm_plugins/dpo"}


def test_a_module_that_no_distribution_has_is_digested_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, {**MODULES, "package/__init__.py": "", "package/inner/data.yaml": "", "package/inner/x.py": ""})
    monkeypatch.syspath_prepend(str(tmp_path))
    assert set(plugin_files("unknown", ["turned_plugin"])) == {"turned_plugin.py"}
    inside = {"package/__init__.py", "package/inner/data.yaml", "package/inner/x.py"}
    assert set(plugin_files("unknown", ["package.inner"])) == inside
    assert plugin_files("unknown", ["sys", "no_such_module_anywhere", "afarm.backend"]) == {}


def test_more_sources_are_modules_files_and_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, {"lab/__init__.py": "1 / 0", "lab/losses.py": "", "lab/other.py": "", "data/words.txt": "a"})
    monkeypatch.syspath_prepend(str(tmp_path))
    sources = ("lab.losses", tmp_path / "data")
    assert set(plugin_files("unknown", [], sources)) == {"lab/losses.py", "data/words.txt"}

    def component(*sources: str | Path) -> Component:
        return Component("methods", "turned", "afarm-turned", "afarm-turned:turned", "x:X", sources=sources)

    assert plugin_digest(component(*sources)) != plugin_digest(component("lab.losses"))
    for missing in ("lab.no_such", tmp_path / "nowhere"):
        with pytest.raises(PluginError, match=r"^plugin 'afarm-turned:turned': a source of .*turned', '.*', is no"):
            plugin_digest(component(missing))


FLAT = {
    "turned_plugin.py": "import turned_method, examples, afarm, torch",
    "turned_method.py": "def later():\n    from turned_kernels import fused",
    "turned_kernels/__init__.py": "",
    "turned_kernels/fused.py": "",
    "examples/__init__.py": "imported",
    "tests/__init__.py": "",
    "tests/test_losses.py": "1",
    "test_more.py": "1",
    "conftest.py": "1",
    "setup.py": "1",
    "scripts/__init__.py": "1",
}


def test_of_an_editable_project_what_its_modules_import_counts_not_tests_and_scripts_beside_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site, project = tmp_path / "site", tmp_path / "project"
    write(project, FLAT)
    write(site, {"_afarm_turned.pth": f"{project}\n"})
    install(site, RECORD=record("_afarm_turned.pth"))
    monkeypatch.syspath_prepend(str(project))
    monkeypatch.syspath_prepend(str(site))
    kernels = {"turned_kernels/__init__.py", "turned_kernels/fused.py"}
    own = {"turned_plugin.py", "turned_method.py", "examples/__init__.py", *kernels}
    assert set(plugin_files("afarm-turned", ["turned_plugin"])) == own
    shared = project.rename(tmp_path / "site-packages")
    monkeypatch.syspath_prepend(str(shared))
    assert set(plugin_files("unknown", ["turned_plugin"])) == {"turned_plugin.py"}, "packages of others lie beside it"


def test_of_a_namespace_package_it_is_the_own_portion(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    site, project, stranger = tmp_path / "site", tmp_path / "project", tmp_path / "stranger"
    write(project, {"fleet/words/__init__.py": "from fleet import other, shared", "fleet/shared/__init__.py": ""})
    write(stranger, {"fleet/other/__init__.py": "theirs"})
    write(site, {"_afarm_turned.pth": f"{project}\n"})
    install(site, RECORD=record("_afarm_turned.pth"))
    for folder in (stranger, project, site):
        monkeypatch.syspath_prepend(str(folder))
    find_package.cache_clear()
    assert find_package("fleet.words.losses") == "fleet.words"
    assert find_package("fleet.other") == "fleet.other"
    own = {"fleet/words/__init__.py", "fleet/shared/__init__.py"}
    assert set(plugin_files("afarm-turned", ["fleet.words"])) == own


def test_a_source_may_be_a_folder_without_a_file_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, {"fat/__init__.py": "", "fat/runs/losses.py": "", "fat/runs/inner/words.txt": ""})
    monkeypatch.syspath_prepend(str(tmp_path))
    for source in ("fat.runs", "fat.runs.losses", "fat.runs.inner"):
        assert plugin_files("unknown", [], (source,))
