"""The shell of afarm's pages: one file that fetches nothing and runs only the scripts it names.

The outputs of models are hostile text: templates escape every value, and a security policy names scripts by hash.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from functools import cache
from importlib import resources
from typing import Any

from jinja2 import Environment, FunctionLoader, StrictUndefined
from markupsafe import Markup

from afarm.report.charts import pack, plotly_script
from afarm.report.format import FILTERS
from afarm.storage.text import visible


def render_page(name: str, scripts: Sequence[str] = (), /, charts: Any = None, **values: Any) -> str:
    """Render the template `{name}.html.jinja`, which fills the blocks of `page.html.jinja`.

    Args:
        name: The template's. A value that it needs and is not in `values` is an error.
        scripts: The names of the scripts that it runs, one after another in one scope: charts, tables, its own.
        charts: The data of its charts; the page then holds plotly.js, if that is installed.
        values: Its values.
    """
    script = "".join(['"use strict";\n', *(_file(f"{each}.js") for each in scripts)]) if scripts else ""
    plotly = None if charts is None else plotly_script()
    return (
        _templates()
        .get_template(f"{name}.html.jinja")
        .render(
            style=_file("page.css"),
            script=script,
            charts=charts,
            plotly=pack(plotly) if plotly else None,
            script_hashes=[_csp_hash(source) for source in (script, plotly) if source],
            **values,
        )
    )


def render_markdown(name: str, **values: Any) -> str:
    """Render the template `{name}.md.jinja`, which escapes what is anybody's text by its filters."""
    return _templates().get_template(f"{name}.md.jinja").render(values).rstrip() + "\n"


@cache
def _templates() -> Environment:
    """Set up the templates, which are compiled once: a comparison writes nine pages."""
    environment = Environment(
        autoescape=lambda name: name is None or not name.endswith(".md.jinja"),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_show_controls,
        loader=FunctionLoader(_file),
    )
    environment.filters.update(FILTERS)
    return environment


def _show_controls(value: Any) -> Any:
    """Show a text's control characters as text; markup, which the page itself made, is unchanged."""
    return visible(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def _file(name: str) -> str:
    return resources.files("afarm.report").joinpath(name).read_text(encoding="utf-8")


@cache
def _csp_hash(source: str) -> str:
    return "'sha256-" + base64.b64encode(hashlib.sha256(source.encode("utf-8")).digest()).decode("ascii") + "'"
