"""Jinja templates of anyone: they run in the sandbox, and neither for ever nor without end.

The sandbox keeps a template from Python, not from `{% for a in range(99999) %}{% for b in range(99999) %}`. Each prompt
has a budget of characters. It pays for what is shown and for all that a filter, a test, a call, a comparison or a slice
is given and makes; a round of a loop and a call cost at least as much as the longest template. Operators, filters and
methods that make much of little are left out.
"""

from __future__ import annotations

import json
from collections.abc import ItemsView, Iterable, Iterator, KeysView, ValuesView
from functools import partial, wraps
from typing import Any, cast

from jinja2 import BaseLoader, StrictUndefined, Template, TemplateRuntimeError, nodes
from jinja2.filters import make_attrgetter
from jinja2.sandbox import ImmutableSandboxedEnvironment

BUDGET = 50_000_000
"""Characters per prompt: a second or two, and as much memory."""
STEP = 1_000
"""The characters that a round of a loop or a call costs at least."""
ITEM = 100
"""The characters that an item of a list costs."""
LISTS = (list, tuple, dict, set, frozenset, ItemsView, KeysView, ValuesView)
LARGEST = 10**15
"""The largest product."""

FILTERS = frozenset(
    {
        *("abs", "capitalize", "count", "d", "default", "dictsort", "e", "escape", "first", "float", "int", "items"),
        *("join", "json", "last", "length", "list", "lower", "map", "max", "min", "reject", "rejectattr", "replace"),
        *("reverse", "round", "select", "selectattr", "sort", "string", "title", "trim", "truncate", "unique", "upper"),
    }
)
METHODS = frozenset(
    {
        *("capitalize", "casefold", "count", "endswith", "find", "isalnum", "isalpha", "isdigit", "islower", "isspace"),
        *("lower", "lstrip", "partition", "removeprefix", "removesuffix", "rfind", "rpartition", "rsplit", "rstrip"),
        *("split", "splitlines", "startswith", "strip", "swapcase", "title", "upper"),
    }
)
"""The methods of texts and numbers that a template may call."""


class _Template(Template):
    def render(self, *args: Any, **kwargs: Any) -> str:
        cast("BoundedTemplates", self.environment).left = BUDGET
        return super().render(*args, **kwargs)


class BoundedTemplates(ImmutableSandboxedEnvironment):
    """Jinja's sandbox with a budget per rendering, beyond which it raises `TemplateRuntimeError`."""

    template_class = _Template
    intercepted_binops = frozenset({"*", "**", "%", "+"})

    def __init__(self, loader: BaseLoader | None = None, **options: Any):
        super().__init__(loader=loader, finalize=self._charge, **{"undefined": StrictUndefined, **options})
        self.left = BUDGET
        self._step = STEP
        write = partial(json.dumps, ensure_ascii=False)  # jinja's own `tojson` escapes for HTML
        self.filters |= {"join": self._join, "replace": self._replace, "json": write}
        self.filters = {name: self._charged(self.filters[name]) for name in FILTERS}
        self.tests = {name: self._charged(function) for name, function in self.tests.items()}
        self.filters |= {"_rounds": self._rounds, "_charge": self._charge}
        del self.globals["lipsum"]

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        """Parse, and have rounds of loops, joined texts, comparisons and slices paid for."""
        self._step = max(self._step, len(source))
        tree = super()._parse(source, name, filename)
        for loop in tree.find_all(nodes.For):
            loop.iter = self._through("_rounds", cast("nodes.Expr", loop.iter))
        for joined in list(tree.find_all(nodes.Concat)):
            joined.nodes = [self._through("_charge", nodes.Concat(joined.nodes, lineno=joined.lineno))]
        for compared in tree.find_all((nodes.Compare, nodes.Operand)):
            compared.expr = self._through("_charge", compared.expr)  # type: ignore[attr-defined]
        for item in tree.find_all(nodes.Getitem):
            if isinstance(item.arg, nodes.Slice):
                item.node = self._through("_charge", item.node)
        return tree

    def _through(self, name: str, value: nodes.Expr) -> nodes.Expr:
        through = nodes.Filter(value, name, [], [], None, None, lineno=value.lineno)
        through.set_environment(self)
        return through

    def _pay(self, characters: int) -> None:
        self.left -= characters
        if self.left < 0:
            raise TemplateRuntimeError("its loops and calls make too much for a prompt")

    def _charge(self, value: Any) -> Any:
        """Pay for a value, or for the items of an iterator as they are taken, and return it."""
        if isinstance(value, Iterator):
            return map(self._charge, value)
        self._pay(_weigh(value, {}))
        return value

    def _charged(self, function: Any) -> Any:
        @wraps(function)
        def charged(*args: Any, **options: Any) -> Any:
            self._pay(self._step)
            return self._charge(function(*map(self._charge, args), **options))

        return charged

    def _rounds(self, items: Iterable[Any]) -> Iterator[Any]:
        for item in items:
            self._pay(self._step)
            yield item

    def call(self, context: Any, obj: Any, /, *args: Any, **kwargs: Any) -> Any:
        self._pay(self._step)
        self._charge([getattr(obj, "__self__", None), *args])
        return self._charge(super().call(context, obj, *args, **kwargs))

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        numbers = all(isinstance(value, int | float) for value in (left, right))
        if operator == "**" or (operator in "*%" and not numbers):
            raise TemplateRuntimeError(f"{operator} is for two numbers" if operator in "*%" else "** is left out")
        result = super().call_binop(context, operator, left, right)
        if numbers and abs(result) > LARGEST:
            raise TemplateRuntimeError("a number is too large")
        return result if numbers else self._charge(result)

    def wrap_str_format(self, value: Any) -> None:
        """Leave `format` to `is_safe_attribute`, which refuses it: its widths are numbers."""

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        if isinstance(obj, str | bytes | int | float) and attr not in METHODS:
            return False
        return super().is_safe_attribute(obj, attr, value)

    def _join(self, values: Iterable[Any], d: str = "", attribute: str | int | None = None) -> str:
        read = str if attribute is None else make_attrgetter(self, attribute, str)
        items = list(map(read, values))
        self._pay(sum(map(len, items)) + len(d) * len(items))
        return d.join(items)

    def _replace(self, text: str, old: str, new: str, count: int = -1) -> str:
        text = str(text)
        self._pay(len(text) + text.count(old) * len(new))
        return text.replace(old, new, count)


def _weigh(value: Any, known: dict[int, tuple[Any, int]]) -> int:
    """Return the characters that a value costs; a list that is in another twice is looked through once."""
    if isinstance(value, str):
        return len(value)
    if isinstance(value, range):
        return ITEM * len(value)
    if not isinstance(value, LISTS):
        return 1
    if id(value) not in known:
        inside = [*value, *value.values()] if isinstance(value, dict) else value
        known[id(value)] = value, sum(ITEM + _weigh(item, known) for item in inside)
    return known[id(value)][1]
