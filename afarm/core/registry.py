"""Names of components, each with a lazy target.

A name is `name` or `package/name`. First-party plugins own their bare names. A third party's component is always
reachable as `package/name`, and by its bare name as long as nothing first-party and no other package has that name;
an ambiguous bare name is an error that names both, raised only when it is used.
"""

from __future__ import annotations

import importlib
import importlib.util
import re
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from afarm.core.errors import AfarmError, PluginError, did_you_mean
from afarm.core.hooks import KINDS

if TYPE_CHECKING:
    from afarm.core.config import Config

FIRST_PARTY = "afarm"


@dataclass(frozen=True, slots=True)
class Component:
    """One registered component: its name, its plugin, and the place of its class (not yet imported).

    `spec` names what may follow the name after a colon ("FILE"); empty if nothing may. `defaults` replace the
    config's own, so that one class and config serve several names.
    """

    kind: str
    name: str
    package: str
    plugin: str
    target: Any
    config: type[Config] | None = None
    summary: str = ""
    defaults: Mapping[str, Any] = field(default_factory=dict)
    spec: str = ""
    modules: tuple[str, ...] = ()
    """The modules of its entry point and of its target: an artifact's key digests them with their distribution."""
    sources: tuple[str | Path, ...] = ()
    """More modules, files and folders for the key."""
    recipes: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Settings under recipes, by their names, and under recipes that are based on these."""

    @property
    def full_name(self) -> str:
        return self.name if self.package == FIRST_PARTY else f"{self.package}/{self.name}"

    def load(self) -> Any:
        """Import the class. Raises `PluginError` naming the missing extra or what is wrong with the target."""
        if not isinstance(self.target, str):
            return self.target
        module_name, _, attribute = self.target.partition(":")
        which = f"{KINDS[self.kind]} {self.full_name!r}"
        try:
            return getattr(importlib.import_module(module_name), attribute)
        except AfarmError:
            raise
        except (Exception, SystemExit) as error:
            missing = (error.name or "").split(".")[0] if isinstance(error, ModuleNotFoundError) else ""
            if missing and importlib.util.find_spec(missing) is None:
                extra = _EXTRA_OF.get(missing)
                remedy = f"install it with: pip install 'afarm[{extra}]'" if extra else f"install {missing!r}"
                if missing == module_name.split(".")[0]:
                    remedy += f", or correct the target {self.target!r}"
                raise PluginError(f"{which} needs {missing!r}, which is not installed; {remedy}") from error
            place = traceback.extract_tb(error.__traceback__)[-1]
            within = not isinstance(error, ImportError | AttributeError | SyntaxError)  # these say where
            line = f" ({Path(place.filename).name}:{place.lineno})" if within else ""
            what = f"{which} of plugin {self.plugin!r} cannot be loaded from {self.target!r}"
            raise PluginError(f"{what}: {type(error).__name__}: {error}{line}") from error

    def settings(self, values: Mapping[str, Any] | None = None) -> Config | None:
        """Build this component's config from `values` over its own defaults; None if it takes none."""
        if self.config is None:
            return None
        return self.config.model_validate({**self.defaults, **(values or {})}, context={"section": self.name})


_EXTRA_OF = {
    **dict.fromkeys(["torch", "transformers", "trl", "peft", "accelerate", "datasets", "gguf", "safetensors"], "train"),
    **dict.fromkeys(["openai", "anthropic", "genai_prices", "bpe_openai"], "judges"),
    "plotly": "report",
    "ray": "ray",
    **dict.fromkeys(["numpy", "scipy", "sklearn", "statsmodels", "ppi_py"], "evaluation"),
}

RESERVED = """allow_degraded annotate answers backend based_on batch_api batch_poll_seconds budget dataset eval_set
evaluate judge labels max_concurrency method model on_unusable preferences price prices prompt_template reward_model
rows sample seed start summary"""
"""The names of recipes' own settings."""
PACKAGES = {
    "afarm-grpo": "grpo dr_grpo dapo gspo cispo rloo",
    "afarm-neighbours": "chain_of_hindsight language_feedback segment_reinforce self_reward p_true",
    "afarm-online": "online_dpo iterative_dpo xpo nash_md",
    "afarm-people": "human",
    "afarm-preferences": "kto ipo simpo orpo cpo conservative_dpo robust_dpo sppo apo_zero apo_down mpo",
    "afarm-rewards": "margin_reward scaled_reward ordinal_reward regression_reward attributes_reward uncertain_reward "
    "generative_reward",
    "afarm-slurm": "slurm",
}
"""Names of components that packages of `plugins-contrib/` bring, each a section of recipes too."""
ELSEWHERE = {name: package for package, names in PACKAGES.items() for name in names.split()}


def name_package(name: str, near: str = "") -> str:
    """Say which package brings an unknown name, or what a `package/name` needs; `near` if it names some."""
    if name in ELSEWHERE:
        return f" {ELSEWHERE[name]!r} brings it; install it with: pip install {ELSEWHERE[name]}."
    named = re.fullmatch(r"([A-Za-z0-9][\w.-]*)/[^/]*", name, re.ASCII)  # or it is an owner's
    if not named or near.endswith("?"):
        return near
    command = f"; install it with: pip install {named[1]}" if named[1].startswith("afarm-") else ""
    return f" The package {named[1]!r} is not installed, or brings no such name{command}."


MODELS_OF = {
    "openai": r"(chat)?gpt-(?!oss)|o\d\b",
    "anthropic": "claude-",
    "gemini": "gemini-",
    "deepseek": r"deepseek-(chat|reasoner|flash|v\d)",
    "mistral": r"\w+stral-",
    "xai": "grok-",
}
"""The judges that ask a model's own vendor, by how its models are called."""


class Registry:
    """Components by kind and name."""

    def __init__(self, components: Iterable[Component] = ()) -> None:
        self._components: dict[str, dict[str, Component]] = {kind: {} for kind in KINDS}
        for component in components:
            self.register(component)

    def register(self, component: Component) -> None:
        """Add a component. Raises `PluginError` if its package has one of that name, or the name is malformed."""
        self.require_name(component.name)
        taken = self._components[component.kind].get(component.full_name)
        if taken is not None:
            by = f"by {taken.plugin!r} and {component.plugin!r}"
            raise PluginError(f"{KINDS[component.kind]} {component.full_name!r} is registered twice, {by}")
        self._components[component.kind][component.full_name] = component

    def require_name(self, name: str) -> None:
        """Raise `PluginError` for a name that no component can have."""
        if not re.fullmatch(r"[^\W_][\w-]*", name, re.ASCII) or name in RESERVED.split():
            rule = "it must be ASCII letters, digits, '_' and '-', begin with a letter or digit, be no recipe's setting"
            raise PluginError(f"{name!r} is no component name: {rule}")

    def get(
        self, kind: str, name: str, also: Sequence[str] = (), why_unknown: Callable[[str, str], str] = name_package
    ) -> Component:
        """Look up a component by kind and name (bare, or `package/name`); text after a colon is ignored.

        Raises `PluginError` if it is unknown, naming the nearest names (also of what is not registered, in `also`) or
        what `why_unknown` says of it and these; if it is ambiguous, naming all candidates; and if it has a spec but
        takes none.
        """
        name, colon, _ = name.partition(":")
        components = self._components[kind]
        candidates = [components[name]] if name in components else [c for c in components.values() if c.name == name]
        if not candidates:
            writable = [c.full_name if "/" in name else self.list_names(c)[-1] for c in components.values()]
            near = self._suggest_judge(name) if kind == "judges" else ""
            near = near or why_unknown(name, did_you_mean(name, [*also, *writable]))
            elsewhere = kind == "methods" and "\n" not in near and name not in ELSEWHERE
            others = " Other methods are plugins: docs/methods/README.md" if elsewhere else ""
            raise PluginError(f"unknown {KINDS[kind]} {name!r}.{near}{others}")
        if len(candidates) > 1:
            raise PluginError(f"{KINDS[kind]} {self.explain_ambiguous(name, kind)}")
        [component] = candidates
        if colon and not component.spec and kind != "judges":
            raise PluginError(f"{KINDS[kind]} {component.full_name!r} takes nothing after a colon")
        return component

    def _suggest_judge(self, model: str) -> str:
        """Say how to name a judge for what is a model's name; empty for others."""
        vendor, _, rest = model.partition("/")
        judges = [f"{name}:{model}" for name, pattern in MODELS_OF.items() if re.match(pattern, model)]
        judges = judges or [f"{vendor}:{rest}"] * (vendor in {c.name for c in self._components["judges"].values()})
        judges = judges or [f"local:{model}", f"openrouter:{model}"] * bool(re.match(r"(?!afarm-)[\w-]+/", model))
        how = f" It is a model's name: write its judge before it, as in --judge {' or '.join(judges)}."
        return how if judges else ""

    def list_names(self, component: Component) -> list[str]:
        """List the names that `component` is found under: its full name, and its bare name if that is unique."""
        rivals = [c for c in self._components[component.kind].values() if c.name == component.name]
        return [component.full_name] if len(rivals) > 1 else list(dict.fromkeys([component.full_name, component.name]))

    def explain_ambiguous(self, name: str, kind: str = "") -> str:
        """Say which names to write for one that components of several packages share; empty for others."""
        rivals = [c for c in self if c.name == name and kind in ("", c.kind)]
        if not rivals or any(name in self.list_names(c) for c in rivals):
            return ""
        return f"{name!r} is ambiguous: write {' or '.join(dict.fromkeys(repr(c.full_name) for c in rivals))}"

    def __iter__(self) -> Iterator[Component]:
        for components in self._components.values():
            yield from components.values()

    def discard(self, plugin: str) -> None:
        """Remove everything that `plugin` registered."""
        for components in self._components.values():
            for name in [n for n, c in components.items() if c.plugin == plugin]:
                del components[name]
