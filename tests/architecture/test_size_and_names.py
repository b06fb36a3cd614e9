"""Files that can be read at one sitting, and names that say what is inside."""

from __future__ import annotations

from syntax import ALL, modules

LONGEST_MODULE = 400
LONGEST_FUNCTION = 80

LONG_FOR_A_REASON: dict[str, str] = {}
"""Modules, or `module.function`, that may be longer, each with the reason."""

SAYS_NOTHING = {"utils", "util", "helpers", "helper", "common", "misc"}


def test_no_module_is_named_for_nothing() -> None:
    found = [m.name for m in [*ALL, *modules("tests", "plugins-contrib")] if m.name.split(".")[-1] in SAYS_NOTHING]
    assert found == []


def test_modules_are_short() -> None:
    long = {m.name: m.lines for m in ALL if m.lines > LONGEST_MODULE and m.name not in LONG_FOR_A_REASON}
    assert long == {}


def test_functions_are_short() -> None:
    long = {
        f"{module.name}.{function.name}": length
        for module in ALL
        for function in module.functions()
        if (length := (function.end_lineno or 0) - function.lineno + 1) > LONGEST_FUNCTION
    }
    assert {name: length for name, length in long.items() if name not in LONG_FOR_A_REASON} == {}


def test_exceptions_are_still_needed() -> None:
    names = {m.name for m in ALL if m.lines > LONGEST_MODULE}
    names |= {f"{m.name}.{f.name}" for m in ALL for f in m.functions() if (f.end_lineno or 0) - f.lineno >= 80}
    assert LONG_FOR_A_REASON.keys() <= names
