"""Pools of the user's own: a YAML file that lists members and defines new ones beside its templates.

    members: [gpt4_4, gpt4_4, grumpy]        # one named twice is drawn twice as often; left out: those defined here
    annotators:
      grumpy:                                # the fields of members.yaml; `like` takes over those of another entry
        like: gpt4_3
        persona: You have seen it all and are hard to please.
    demonstrations:                          # as in demonstrations.yaml; afarm's own can be named as well
      fish: {instruction: Name a fish., first: Eel., second: Oak., better: a, reason: An oak is a tree.}

    calibration: {noise: 0.2}                # what `afarm study calibrate` fitted to people's labels

`prompt: mine` is `mine.jinja` next to the file, or one of afarm's own templates where there is none.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import jinja2
from jinja2.loaders import split_template_path

from afarm import Config, ConfigError, Instruction, ShownPair, did_you_mean, read_config_file, setting
from afarm_plugins.annotators.calibration import Calibration
from afarm_plugins.annotators.prompt_library import Library, PoolMember, environment, load_member, shipped

MOST_MEMBERS, MOST_DEFINED = 1_000, 200


class PoolFile(Config):
    """The file of a pool."""

    members: list[str] = setting(
        [],
        "the annotators one of which is drawn for each pair; those defined, if left out",
        max_length=MOST_MEMBERS,
    )
    annotators: dict[str, Any] = setting({}, "annotators defined here, by name", max_length=MOST_DEFINED)
    demonstrations: dict[str, Any] = setting({}, "solved comparisons for their prompts, by name")
    calibration: Calibration | None = setting(None, "weights, noise and tilts, as fitted to people's labels")


class _BesidePool(jinja2.FileSystemLoader):
    """Templates below a pool's directory. Links out of it are refused: what they show goes to a judge."""

    def get_source(self, environment: jinja2.Environment, template: str) -> tuple[str, str, Callable[[], bool]]:
        directory = Path(self.searchpath[0])
        path = directory.joinpath(*split_template_path(template))
        if path.exists() and not path.resolve().is_relative_to(directory.resolve()):
            raise jinja2.TemplateError(f"{template} is a link out of the pool's directory: copy the file there")
        return super().get_source(environment, template)


def read_pool(path: Path) -> tuple[list[PoolMember], Calibration | None]:
    """Read a pool's members, one named twice twice, and its calibration. Raises `ConfigError`."""
    pool = read_config_file(path, PoolFile)
    names = pool.members or list(pool.annotators)
    if not names:
        raise ConfigError([f"{path}: members: name at least one annotator, or define one under annotators"])
    problems = [
        f"{path}: annotators: {name!r} is one of afarm's own: choose another name"
        for name in pool.annotators
        if name in shipped().entries
    ]
    library = Library(
        str(path),
        pool.annotators,
        {**shipped().demonstrations, **pool.demonstrations},
        environment(_BesidePool(path.parent)),
    )
    members: dict[str, PoolMember] = {}
    for name in dict.fromkeys([*names, *pool.annotators]):
        try:
            members[name] = _member(name, library)
        except ConfigError as error:
            problems += error.problems
    for name in pool.calibration.weights if pool.calibration else ():
        if name not in names:
            problems.append(f"{path}: calibration: weights: {name!r} is no member.{did_you_mean(name, names)}")
    if problems:
        raise ConfigError(list(dict.fromkeys(problems)))
    return [members[name] for name in names], pool.calibration


def _member(name: str, library: Library) -> PoolMember:
    if name not in library.entries:
        entries = {**shipped().entries, **library.entries}
        if name not in entries:
            raise ConfigError([f"{library.where}: members: no prompt annotator {name!r}.{did_you_mean(name, entries)}"])
        return load_member(name)
    member = replace(library, entries={name: _over_its_base(name, library)}).member(name)
    if member.spec.answer_format in ("rating", "criteria"):
        raise ConfigError([f"{library.where}: {name}: answer_format: a pool compares: single, list or json"])
    _require_outputs(member, f"{library.where}: {name}: prompt: {member.spec.prompt}.jinja")
    return member


def _require_outputs(member: PoolMember, at: str) -> None:
    """Raise `ConfigError` if a prompt leaves out one of the outputs: what it costs would be for nothing."""
    first, second = "afarmlooksforthefirst", "afarmlooksforthesecond"
    for material in ("", "An input."):
        probe = ShownPair("look", Instruction("An instruction.", material), first, second)
        request = member.request([probe], seed=0, sample_index=0)
        text = "".join([request.prompt, *(message.content for message in request.messages)]).lower()
        if missing := [name for name, output in (("first", first), ("second", second)) if output not in text]:
            fields = " and ".join(f"comparisons[…].{name}" for name in missing)
            form = "with an input" if material else "without an input"
            raise ConfigError([f"{at}: does not show the judge {fields} of instructions {form}"])


def _over_its_base(name: str, library: Library) -> Any:
    """The entry `name` over the entry that its `like` names. Raises `ConfigError` if there is none."""
    entries = {**shipped().entries, **library.entries}
    at, above = f"{library.where}: {name}: like", [name]
    while isinstance(entry := entries[above[-1]], Mapping) and "like" in entry:
        base = str(entry["like"])
        if base not in entries:
            raise ConfigError([f"{at}: no prompt annotator {base!r}.{did_you_mean(base, entries)}"])
        if base in above:
            raise ConfigError([f"{at}: {base!r} is itself like {name!r}"])
        above.append(base)
    merged = entry
    for name in reversed(above[:-1]):
        merged = {**(merged if isinstance(merged, Mapping) else {}), **entries[name]}
    return {key: value for key, value in merged.items() if key != "like"} if isinstance(merged, Mapping) else merged
