"""From a recipe and its overrides to one validated configuration, reporting every problem at once.

A recipe is a YAML file: the fields of `RunConfig`, and a section of settings for each plugin, by its name; with
`based_on: paper` it says only where it differs from another one. Overrides are `a.b=value`, values read as YAML.

Nothing here loads a model or imports a plugin's heavy parts.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from importlib import resources
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from afarm.core.config import Config
from afarm.core.errors import ConfigError, DataError, PluginError, did_you_mean
from afarm.core.plugins import DISABLED, Plugins, discover
from afarm.core.registry import Component
from afarm.core.seeding import digest
from afarm.experiment.config_files import read_user_yaml
from afarm.experiment.setting_errors import SYNONYMS, explain_validation_error, list_fields, nearest_setting
from afarm.experiment.settings import RunConfig
from afarm.storage.row_shapes import what_it_holds
from afarm.storage.rows import names_a_file, names_a_file_of_rows, read_rows, stem
from afarm.storage.text import holds_key

Override = str | Mapping[str, Any]
"""A change to a recipe: `a.b=value`, or a mapping of settings."""

UNKNOWN = "unknown setting"
REQUIRED = "is required: give it in the recipe or with --set {field}=…"

BASED_ON = "based_on"
"""The line of a recipe that names the one it is based on."""

MOST_HOMES = 3
"""Sections with a setting that are suggested one by one."""


@dataclass(frozen=True, slots=True)
class Settings:
    """A validated configuration: the run's own fields, and a section per component, by full name.

    Sections hold what components are registered with for the recipe, too. `configs` keeps the settings of components by
    kind and full name, validated when first asked for.
    """

    recipe: str
    run: RunConfig
    sections: Mapping[str, Mapping[str, Any]]
    configs: dict[tuple[str, str], Config | None] = field(default_factory=dict, compare=False, repr=False)

    def of(self, component: Component) -> Config | None:
        """Return the settings of `component`: its defaults under what its section says; None if it takes none.

        One name may stand for components of several kinds (a reward model, an evaluator): each takes its own settings.
        Raises `ConfigError` if they do not fit.
        """
        key = component.kind, component.full_name
        if key not in self.configs:
            own = component.config.model_fields if component.config else {}
            section = self.sections.get(component.full_name, {})
            try:
                self.configs[key] = component.settings({name: value for name, value in section.items() if name in own})
            except ValidationError as error:
                assert component.config is not None
                prefix = f"{component.name}."
                wrong = explain_validation_error(error, component.config, prefix, unknown=UNKNOWN, missing=REQUIRED)
                brought = {**component.defaults, **settings_for(component, self.recipe)}
                theirs = {f"{prefix}{name}" for name, value in brought.items() if section.get(name, value) == value}
                by = f"; plugin {component.plugin!r} ({component.package}) brings this value"
                raise ConfigError([p + by * (p.partition(":")[0] in theirs) for p in wrong]) from error
        return self.configs[key]

    def result_sections(self, components: Iterable[Component]) -> dict[str, dict[str, Any]]:
        """Return what the sections set that changes results; sections without any are left out."""
        found: dict[str, dict[str, Any]] = {}
        for component in components:
            section = self.sections.get(component.full_name, {})
            try:
                config = self.of(component) if section else None
                fields = config.result_fields() if config else {}
            except ConfigError:  # of a method that does not run: see `_check_section`
                fields = dict(section)
            given = {name: fields[name] for name in section if name in fields}
            if given:
                found[component.full_name] = found.get(component.full_name, {}) | given
        return found

    def run_name(self, components: Iterable[Component], method: str | None = None) -> str:
        """Return the name of a run of `method` (the recipe's, unless given): equal for the same command.

        `components` are all that are registered: their settings that change results are part of it.
        """
        run = self.run
        fields = {name: value for name, value in run.result_fields().items() if name != "method"}
        name = method or run.method  # of other methods, what they are registered with for the recipe does not count
        own = [c for c in components if c.kind != "methods" or not c.recipes or name in (c.name, c.full_name)]
        settings = digest(fields, self.result_sections(own), length=6)
        labels = stem(run.preferences) if run.preferences else run.annotate.annotator
        parts = [Path(self.recipe).stem, method or run.method, labels, f"seed{run.seed}", settings]
        return "-".join(re.sub(r"[/\\:]", "_", part) for part in parts)  # scp takes what is before a colon for a host


def recipe_names() -> list[str]:
    """List the recipes that ship with afarm."""
    folder = resources.files("afarm") / "recipes"
    return sorted(entry.name.removesuffix(".yaml") for entry in folder.iterdir() if entry.name.endswith(".yaml"))


def plugin_recipes() -> list[str]:
    """List the recipes that plugins bring, by the shortest names."""
    registry = discover(check_configs=False).registry
    return sorted(registry.list_names(component)[-1] for component in registry if component.kind == "recipes")


def _recipe_file(name: str) -> Path:
    """Return the file of a recipe. Raises `ConfigError` if no plugin brings one of that name."""
    if name.endswith((".yaml", ".yml")):
        return Path(name)
    if name in recipe_names():
        return Path(str(resources.files("afarm") / "recipes" / f"{name}.yaml"))
    try:
        plugins = discover(check_configs=False)
        return Path(plugins.get("recipes", name, recipe_names()).target)
    except PluginError as error:
        unknown = _no_recipe(Path(name)) if Path(name).exists() else f"{error} `afarm recipes` shows them."
        raise ConfigError([unknown]) from error


def read_recipe(name: str) -> dict[str, Any]:
    """Read the recipe `name`, or the YAML file at that path, over the recipe that it is based on.

    A file that is based on a file names it from where it is itself. Raises `ConfigError`.
    """
    values: dict[str, Any] = {}
    for own in read_bases(name).values():
        values = merge(values, own)
    return values


def read_bases(name: str, above: Sequence[str] = ()) -> dict[str, dict[str, Any]]:
    """Read the recipes that a recipe is based on, and its own values last, by name."""
    if name in above:
        raise ConfigError([f"recipes are based on each other: {' → '.join([*above, name])}"])
    values = _read_recipe(name)
    base = values.pop(BASED_ON, None)
    if base is None:
        return {name: values}
    if not isinstance(base, str):
        raise ConfigError([f"recipe {name}: {BASED_ON} must name one recipe, such as {BASED_ON}: paper"])
    if base.endswith((".yaml", ".yml")):
        base = str(_recipe_file(name).parent / base)
    return {**read_bases(base, [*above, name]), name: values}


def settings_for(component: Component, recipe: str) -> dict[str, Any]:
    """Return the settings that a component brings for a recipe and for those that it is based on."""
    return {name: value for base in read_bases(recipe) for name, value in component.recipes.get(base, {}).items()}


def _no_recipe(path: Path) -> str:
    """Say what there is at a path that is no recipe's."""
    if path.is_dir():
        return f"--recipe {path} is a directory: a recipe is a name or a YAML file"
    told = f"--recipe {path} names no recipe: give a name or a .yaml file"
    if not names_a_file_of_rows(path.name):
        return told
    try:
        row = next(read_rows(path), {})
    except DataError as error:
        return f"{told}; as rows of data, {error}"
    return f"{told}; it holds rows: {what_it_holds(row, str(path), to_train=True)}"


def _read_recipe(name: str) -> dict[str, Any]:
    """Read what the recipe says itself."""
    path = _recipe_file(name)
    if name.endswith((".yaml", ".yml")):
        values = read_user_yaml(path, f"recipe {name}")
    else:
        loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # libyaml's parser takes a seventh of the time
        values = yaml.load(path.read_text(encoding="utf-8"), Loader=loader)
    if not isinstance(values, dict):
        raise ConfigError([f"recipe {name} must be a mapping of settings"])
    return values


def parse_override(text: str) -> dict[str, Any]:
    """`a.b=value` as `{"a": {"b": value}}`; the value is YAML, and numbers such as 1e-5 are numbers."""
    path, equals, value = text.partition("=")
    if not equals or not path.strip():
        raise ConfigError([f"--set {text!r} is not of the form section.setting=value, such as ppo.learning_rate=1e-5"])
    try:
        parsed: Any = yaml.safe_load(value) if value else ""
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise ConfigError([f"--set {text!r}: the value is no valid YAML; put text in quotes"]) from error
    if isinstance(parsed, str):
        with suppress(ValueError):  # YAML 1.1 reads 1e-5 as text
            parsed = float(parsed)
    for key, inner in parsed.items() if isinstance(parsed, dict) else ():
        if inner is None and ":" in str(key):
            setting, _, meant = str(key).partition(":")
            say = f"--set {path.strip()}.{setting}={meant}"
            raise ConfigError(f"--set {text!r}: a colon needs a space after it, or write {say}")
    return _nested(path.strip(), parsed)


def _nested(name: str, value: Any) -> dict[str, Any]:
    """`a.b` and a value as `{"a": {"b": value}}`."""
    for part in reversed(name.split(".")):
        value = {part: value}
    return value


def list_overrides(settings: Override | Iterable[Override]) -> list[Override]:
    """List overrides as a farm is given them: one or several, each as text (`a.b=value`) or as a mapping.

    A mapping may name settings as texts do (`{"a.b": value}`).
    """
    alone = isinstance(settings, str | Mapping) or not isinstance(settings, Iterable)
    overrides: list[Any] = [settings] if alone else list(settings)
    if strange := [override for override in overrides if not isinstance(override, str | Mapping)]:
        raise ConfigError(f"settings: {strange[0]!r} is neither text, such as 'ppo.learning_rate=1e-5', nor a mapping")
    listed: list[Override] = []
    for override in overrides:
        nested: dict[str, Any] = {}
        for name, value in override.items() if isinstance(override, Mapping) else ():
            nested = merge(nested, _nested(str(name), value))
        listed.append(override if isinstance(override, str) else nested)
    return listed


def merge(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """`base` with the values of `over`, mappings merged key by key."""
    merged = dict(base)
    for key, value in over.items():
        both = isinstance(value, Mapping) and isinstance(merged.get(key), Mapping)
        merged[key] = merge(merged[key], value) if both else value
    return merged


def resolve(
    recipe: str,
    overrides: Iterable[Override],
    plugins: Plugins,
    check: Callable[[Settings], list[str]] = lambda settings: [],
    trains: bool = True,
    native_dtype: Callable[[str], str] | None = None,
    runs: Path = Path(),
) -> Settings:
    """Validate a recipe under its overrides. Raises `ConfigError` with every problem found.

    `check` looks for further problems once the fields are valid (a missing file, say), so that they are reported too.
    If no method `trains`, the settings of the recipe's need not fit each other. With `native_dtype`
    `backend.dtype=auto` becomes the dtype that a run in `runs` was begun in with the same settings, else the device's
    own: keys and records hold that.
    """
    values: dict[str, Any] = {}
    for own in read_bases(recipe).values():
        values = merge(_with_label_noise(values, own, plugins), own)
    given: dict[str, Any] = {}
    unreadable: list[str] = []
    for override in overrides:
        try:
            given = merge(given, parse_override(override) if isinstance(override, str) else override)
        except ConfigError as error:
            unreadable += error.problems
    values = _with_prompts_of_preferences(merge(_with_label_noise(values, given, plugins), given))
    fields = {k: v for k, v in values.items() if k in RunConfig.model_fields}
    sections = {str(k): v for k, v in values.items() if k not in fields}
    run, wrong = _validate(fields)
    problems = [*unreadable, *wrong, *_idle_labels(values, given)]
    names: dict[str, list[Component]] = {}
    for component in plugins.registry:
        for name in plugins.registry.list_names(component):
            names.setdefault(name, []).append(component)
    by_full_name: dict[str, Mapping[str, Any]] = {
        full_name: section
        for name, section in sections.items()
        if isinstance(section, Mapping)  # else it is reported
        for full_name in [c.full_name for c in names.get(name, ())] or [name]
    }
    for component in plugins.registry:
        if component.recipes and (brought := settings_for(component, recipe)):
            by_full_name[component.full_name] = {**brought, **by_full_name.get(component.full_name, {})}
    settings = Settings(recipe, run, by_full_name)
    if run.backend.dtype == "auto" and native_dtype:
        settings = _with_dtype(settings, native_dtype(run.backend.device), plugins, runs)
        run = settings.run
    methods = {run.method, "sft"} if trains else {"sft"}
    for name, section in sections.items():
        # What afarm's recipes say about a plugin that failed to load must not stop a run that does not use it.
        if name in names or not plugins.broken or not any(read_recipe(r).get(name) == section for r in recipe_names()):
            problems += _check_section(name, section, names, plugins, methods, settings)
    problems += _check_names(run, plugins)
    if not any(problem.startswith("judge: ") for problem in wrong):  # else another judge would be looked at
        problems += [p for p in check(settings) if not any(known.startswith(p) for known in problems)]
    if problems:
        raise ConfigError(problems)
    return settings


def _with_dtype(settings: Settings, native: str, plugins: Plugins, runs: Path) -> Settings:
    run, choices = settings.run, []
    for dtype in dict.fromkeys([native, "bfloat16", "float32"]):
        backend = run.backend.model_copy(update={"dtype": dtype})
        choices.append(replace(settings, run=run.model_copy(update={"backend": backend})))
    names = [choice.run_name(plugins.registry).split("-")[-2:] for choice in choices]  # whatever the method
    begun = (choice for choice, name in zip(choices, names, strict=True) if any(runs.glob("-".join(["*", *name]))))
    return next(begun, choices[0])


def _with_label_noise(values: dict[str, Any], given: Mapping[str, Any], plugins: Plugins) -> dict[str, Any]:
    """Give each annotator that `given` names the label noise of its own, if it states one.

    A recipe's noise is meant for the recipe's annotator. What `given` itself says is merged over it.
    """
    for section in ("annotate", "evaluate"):
        with suppress(PluginError, LookupError, AttributeError, TypeError):  # what is no name is reported later
            config = plugins.get("annotators", given[section]["annotator"]).config
            if config is not None and config.default_label_noise is not None:
                values = merge(values, {section: {"label_noise": config.default_label_noise}})
    return values


def _with_prompts_of_preferences(values: dict[str, Any]) -> dict[str, Any]:
    """Take the instructions from own preferences, if the data set is the user's files and none is named."""
    preferences, files = values.get("preferences"), values.get("files")
    named = isinstance(files, Mapping) and any(value and isinstance(value, str) for value in files.values())
    if not preferences or values.get("dataset") != "files" or named:
        return values
    return merge(values, {"dataset": "prompts", "prompts": {"path": preferences, "labels": values.get("labels", "")}})


def _idle_labels(values: Mapping[str, Any], given: Mapping[str, Any]) -> list[str]:
    """List overrides without effect: how to label own preferences, or how to read them if there are none."""
    labels = given.get("annotate")
    if not values.get("preferences"):
        idle = {"labels": "how to read preferences", "on_unusable": "what to do with broken rows of preferences"}
        return [f"{name}: says {what}: name them with --preferences" for name, what in idle.items() if given.get(name)]
    if not isinstance(labels, Mapping):
        return []
    return [f"preferences and annotate.{name} contradict each other: the file has the labels" for name in labels]


def _validate(own: Mapping[str, Any]) -> tuple[RunConfig, list[str]]:
    """Return the run's settings and their problems.

    Settings with a problem are left at their defaults, so that what else is wrong (an unknown method, say) can be
    reported beside them.
    """
    problems: list[str] = []
    while True:
        try:
            return RunConfig.model_validate(own), problems
        except ValidationError as error:
            problems += explain_validation_error(error, RunConfig, unknown=UNKNOWN, missing=REQUIRED)
            for found in error.errors():
                own = _without(own, found["loc"])
            own = {"model": "not/given", **own}


def _without(values: Mapping[str, Any], path: Sequence[int | str]) -> dict[str, Any]:
    """Return `values` without the setting at `path`, or without the list that it is in."""
    name, *rest = path
    inner = values.get(str(name))
    if rest and isinstance(inner, Mapping) and rest[0] in inner:
        return {**values, str(name): _without(inner, rest)}
    return {key: value for key, value in values.items() if key != name}


def _check_section(
    name: str,
    section: Any,
    names: Mapping[str, list[Component]],
    plugins: Plugins,
    runs: Collection[str],
    settings: Settings,
) -> list[str]:
    """List problems of a section.

    A method that is none of `runs` may have settings that do not fit.
    """
    if ambiguous := plugins.registry.explain_ambiguous(name):
        return [f"section {ambiguous}"]
    if name not in names and (owner := plugins.broken_owner(name)):
        which = f"section {name!r} is of plugin {owner.name!r} ({owner.package}), which"
        if owner.error == DISABLED:
            return [f"{which} {DISABLED}: remove the section, or do not disable it"]
        return [f"{which} failed to load: mend the plugin or remove the section. {owner.error}"]
    if name not in names:
        bare = [n for n in names if "/" in name or "/" not in n]
        near = in_a_section(name, names) or did_you_mean(name, [*RunConfig.model_fields, *bare], "`afarm settings`")
        return [f"unknown setting or section {name!r}.{plugins.why_unknown(name, near)}"]
    configured = [c for c in names[name] if c.config is not None]
    if not isinstance(section, Mapping):
        field = next((field for c in configured if c.config for field in c.config.model_fields), "…")
        return [f"{name}: must be a section of settings, such as {name}.{field}=…"]
    if not configured:
        return [f"{name}: takes no settings"]
    kept = [f"{name}.{field}" for field, value in section.items() if isinstance(value, str) and holds_key(value)]
    problems = [f"{field}: a key goes into an environment variable, never into settings or a URL" for field in kept]
    known = {field for c in configured if c.config for field in c.config.model_fields}
    problems += [f"{name}.{f}: {UNKNOWN}.{nearest_setting(str(f), known)}" for f in section if f not in known]
    for component in configured:
        try:
            settings.of(component)
        except ConfigError as error:
            idle = component.kind == "methods" and not {component.name, component.full_name} & set(runs)
            problems += [p for p in error.problems if not idle or p.startswith(f"{component.name}.")]
    return list(dict.fromkeys(problems))


def _check_names(run: RunConfig, plugins: Plugins) -> list[str]:
    wanted = [
        ("datasets", run.dataset),
        *([("datasets", run.eval_set)] if run.eval_set and not names_a_file(run.eval_set) else []),
        ("methods", run.method),
        ("reward_models", run.reward_model),
        ("annotators", run.annotate.annotator),
        ("annotators", run.evaluate.annotator),
        *(("evaluators", name) for name in run.evaluate.evaluators),
        *(("judges", spec) for spec in run.judge.values()),
    ]
    bare = [name for _, name in wanted if name.endswith(":")]  # as of a shell's variable that is not set
    problems = [f"{name!r}: nothing follows the colon: say what, or leave it out" for name in dict.fromkeys(bare)]
    for kind, name in dict.fromkeys(wanted):
        try:
            plugins.get(kind, name)
        except PluginError as error:
            problems.append(str(error))
    return problems


def in_a_section(name: str, names: Mapping[str, list[Component]]) -> str:
    """Name every section that has a setting which was given without one; empty for others.

    The setting may be called as other software calls it.
    """
    for setting in (name, *SYNONYMS.get(name.lower(), ())):
        run = [section for section in RunConfig.model_fields if setting in list_fields(RunConfig, [section])]
        owners: dict[type[Config], str] = {}  # of the names that share a config, such as the annotators', one will do
        for owner, config in ((n, c.config) for n, found in names.items() for c in found):
            if config is not None and setting in config.model_fields:
                owners.setdefault(config, owner)
        homes = sorted([*run, *owners.values()])
        if len(homes) > MOST_HOMES:
            return f" Name its section, such as {homes[0]}.{setting}: {', '.join(homes)} have it."
        if homes:
            return f" Did you mean {' or '.join(repr(f'{home}.{setting}') for home in homes)}?"
    return ""
