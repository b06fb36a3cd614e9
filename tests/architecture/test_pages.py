"""The pages agree with each other and with the code: links, paths, dotted names, and the generated reference."""

from __future__ import annotations

import importlib
import importlib.util
import os
import re
import tomllib
import types
from collections.abc import Callable
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml
from places import DOCS, ROOT

from afarm.backend import CheckpointPolicy
from afarm.core.hooks import GROUP
from afarm.core.interfaces import Method, MethodInputs, PairLabels
from afarm.core.records import Preference
from afarm.judging import PromptAnnotator
from afarm.testing import FakeJudgeClient, MetricsRecorder

PAGES = [*sorted(DOCS.rglob("*.md")), *ROOT.glob("*.md"), ROOT / "changes/README.md"]
PAGES += sorted((ROOT / "plugins-contrib").rglob("README.md"))


def name(page: Path) -> str:
    return str(page.relative_to(ROOT))


@cache
def text_of(page: Path) -> str:
    return page.read_text(encoding="utf-8")


@cache
def anchors(page: Path) -> frozenset[str]:
    """The anchors that GitHub gives the headings of a page."""
    found = set()
    for heading in re.findall(r"^#+ (.*)$", re.sub(r"^```.*?^```", "", text_of(page), flags=re.DOTALL | re.M), re.M):
        words = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).lower()
        found.add(re.sub(r"[^\w\- ]", "", words).replace(" ", "-"))
    return frozenset(found)


def on_each_page(wrong: Callable[[Path], list[str]]) -> dict[str, list[str]]:
    """What is wrong on each page, for pages on which anything is."""
    assert len(PAGES) > 50
    return {name(page): found for page in PAGES if (found := wrong(page))}


def test_links_lead_to_pages_and_headings_that_exist() -> None:
    def broken_links(page: Path) -> list[str]:
        broken = []
        for target in re.findall(r"\]\(([^)\s]+)\)", text_of(page)):
            if re.match(r"[a-z]+:", target):
                continue
            path, _, anchor = target.partition("#")
            there = Path(os.path.normpath(page.parent / path)) if path else page
            if not there.exists() or (anchor and there.suffix == ".md" and anchor not in anchors(there)):
                broken.append(target)
        return broken

    assert on_each_page(broken_links) == {}


def test_paths_of_the_repository_exist() -> None:
    folders = "afarm|afarm_plugins|benchmarks|docs|tests|tools|plugins-contrib"

    def missing_paths(page: Path) -> list[str]:
        paths = re.findall(rf"`((?:{folders})/[^`\s]*)`", text_of(page))
        return [p for p in set(paths) if not any(c in p for c in "<*…") and not (ROOT / p).exists()]

    assert on_each_page(missing_paths) == {}


def test_dotted_names_exist() -> None:
    assert on_each_page(lambda page: [dotted for dotted in dotted_names(page) if not exists(dotted)]) == {}


def dotted_names(page: Path) -> list[str]:
    """`afarm.x.y` in backticks, calls included, and what code blocks import."""
    quoted = re.findall(r"`(?:@|python -m )?((?:afarm|afarm_plugins|benchmarks|tools)(?:\.\w+)+)", text_of(page))
    for module, names in re.findall(r"^ *from ((?:afarm|afarm_plugins)[\w.]*) import ([\w, ]+)", text_of(page), re.M):
        quoted += [f"{module}.{each.strip().partition(' as ')[0]}" for each in names.split(",")]
    return quoted


@cache
def exists(dotted: str) -> bool:
    """Whether it is a module, or a name or a name of a name in one."""
    parts = dotted.split(".")
    for cut in range(len(parts), 0, -1):
        try:
            value = importlib.import_module(".".join(parts[:cut]))
        except ModuleNotFoundError:
            continue
        for part in parts[cut:]:
            if not hasattr(value, part) and part not in getattr(value, "model_fields", {}):
                return False
            value = getattr(value, part, None)
        return True
    return False


@cache
def generator() -> types.ModuleType:
    spec = importlib.util.spec_from_file_location("generate_reference", DOCS / "generate_reference.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def declared_plugins() -> set[str]:
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    return set(declared["project"]["entry-points"][GROUP].values())


def installed_plugins() -> set[str]:
    """The first-party plugins as pip has noted them, which a working tree of its own may have changed since."""
    return {point.value for point in entry_points(group=GROUP) if point.value.startswith("afarm_plugins.")}


@pytest.mark.parametrize("page", sorted(path.name for path in (DOCS / "reference").glob("*.md")))
def test_the_reference_is_up_to_date(page: str) -> None:
    if page in ("settings.md", "cli.md", "methods.md") and installed_plugins() != declared_plugins():
        pytest.skip("it lists the plugins of another installation: pip install -e . first")
    pages = generator().PAGES
    assert sorted(pages) == sorted(path.name for path in (DOCS / "reference").glob("*.md"))
    assert text_of(DOCS / "reference" / page) == pages[page](), "run: python docs/generate_reference.py"


def test_the_reference_has_decorators_attributes_and_types_of_signatures() -> None:
    page = generator()
    assert page.class_signature(Preference).startswith("@dataclass(frozen=True, slots=True)\nclass Preference\n")
    told = page.attributes(Method)
    assert "\n- `needs: frozenset[str] = frozenset()`: Required inputs: preferences, feedback, reward_model" in told
    assert "\n- `measures_kl: ClassVar[bool] = False`: True if it logs its KL" in told
    assert "\n- `config: Any`" in told
    assert "- `batch_size: int = 1`: Pairs per prompt." in page.attributes(PromptAnnotator)
    assert "- `lines: list[tuple[int, dict[str, float]]]`" in page.attributes(MetricsRecorder)
    assert "### `CheckpointPolicy.pad_id`" in list(page.members(CheckpointPolicy))
    assert ("PairLabels", "afarm.core.interfaces") in set(page.named_types(MethodInputs))
    assert ("LabelOutcome", "afarm.core.records") in set(page.named_types(Preference))
    assert ("Answer", "afarm.testing.fake_judge") in set(page.named_types(FakeJudgeClient))
    assert "### `PairLabels.__call__`" in list(page.members(PairLabels))
    assert page.alias("afarm.core.records", "LabelOutcome")[0].startswith("```python\nLabelOutcome = Literal[")


def test_every_public_name_is_listed_once() -> None:
    listed = re.findall(r"^- `(\w+)`:", text_of(DOCS / "reference" / "names.md"), re.M)
    doors = [importlib.import_module(door) for door in generator().DOORS]
    public = {each for door in doors for each in generator().public_names(door)}
    assert sorted(listed) == sorted(public)


@pytest.mark.parametrize("module", generator().PROVISIONAL)
def test_a_provisional_module_exists(module: str) -> None:
    assert importlib.util.find_spec(module)


def test_nothing_is_written_without_a_plugin_of_the_repository(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its settings would be gone from the reference."""
    found = [SimpleNamespace(module=name, error="") for name in sorted(declared_plugins())]
    found.remove(missing := found[0])
    found[0].error = "ImportError: no"
    monkeypatch.setattr(generator(), "discover", lambda: SimpleNamespace(found=found))
    monkeypatch.setattr(generator(), "PAGES", {"settings.md": lambda: pytest.fail("it was written")})
    with pytest.raises(SystemExit) as stopped:
        generator().write()
    assert f"{missing.module} is not installed" in str(stopped.value)
    assert f"{found[0].module} cannot be loaded: ImportError: no" in str(stopped.value)


def test_the_citation_has_the_projects_licence() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))["license"] == project["license"]
